// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package keystore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/penstock/penstock/auth"
)

// asker is the database, or a transaction.
type asker interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// fault makes an error of the database one that says so.
func (s *Store) fault(err error) error {
	var f *auth.Fault
	if err == nil || errors.As(err, &f) {
		return err
	}
	return &auth.Fault{Kind: auth.Unreachable, Message: s.explain(err).Error()}
}

func (s *Store) files() auth.Files { return auth.Files{Config: s.File()} }

// Tenant is one of the configuration's or the store's.
func (s *Store) Tenant(ctx context.Context, path string) (*auth.Tenant, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if t, err := s.files().Tenant(ctx, path); err == nil {
		return t, nil
	}
	t, gone, err := s.tenant(ctx, s.db, path)
	if err == nil && (t == nil || gone) {
		err = auth.Faultf(auth.NotFound, "", "penstock tenants list", "there is no tenant %s", path)
	}
	return t, s.fault(err)
}

const tenantColumns = "path, revision, gone, created, updated, spec"

func scanTenant(row interface{ Scan(...any) error }, s *Store) (t *auth.Tenant, gone bool, err error) {
	t = &auth.Tenant{Origin: auth.FromStore}
	var created, updated, flag int64
	var spec string
	if err := row.Scan(&t.Path, &t.Revision, &flag, &created, &updated, &spec); err != nil {
		return nil, false, err
	}
	t.Created, t.Updated = timeText(created), timeText(updated)
	s.read("tenant "+t.Path, spec, &t.Spec)
	return t, flag != 0, nil
}

func (s *Store) tenant(ctx context.Context, in asker, path string) (t *auth.Tenant, gone bool, err error) {
	t, gone, err = scanTenant(in.QueryRowContext(ctx, s.bind("SELECT "+tenantColumns+" FROM auth_tenants WHERE path = ?"), path), s)
	if isNone(err) {
		return nil, false, nil
	}
	return t, gone, err
}

// Tenants are a page of both origins, in the order of their paths.
func (s *Store) Tenants(ctx context.Context, p auth.Page) ([]auth.Tenant, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, _ := s.files().Tenants(ctx, p) // always are there
	rows, err := s.db.QueryContext(ctx, s.bind("SELECT "+tenantColumns+` FROM auth_tenants WHERE gone = 0 AND path > ?
		AND (? = '' OR path = ? OR substr(path, 1, ?) = ?) ORDER BY path LIMIT ?`), p.After, p.Tenant, p.Tenant, len([]rune(p.Tenant))+1, p.Tenant+"/", p.Limit)
	if err != nil {
		return nil, s.fault(err)
	}
	defer rows.Close()
	for rows.Next() {
		t, _, err := scanTenant(rows, s)
		if err != nil {
			return nil, s.fault(err)
		}
		if fileTenant(s.File(), t.Path) == nil { // the configuration's counts
			out = append(out, *t)
		}
	}
	slices.SortFunc(out, func(a, b auth.Tenant) int { return strings.Compare(a.Path, b.Path) })
	return out[:min(len(out), p.Limit)], s.fault(rows.Err())
}

// Key is one of the configuration's (TENANT:NAME) or the store's (its ID, or
// TENANT:NAME).
func (s *Store) Key(ctx context.Context, id string) (*auth.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if k, err := s.files().Key(ctx, id); err == nil {
		return k, nil
	}
	k, err := s.key(ctx, s.db, id)
	if err == nil && k == nil {
		err = auth.Faultf(auth.NotFound, "", "penstock keys list", "there is no key %s", id)
	}
	return k, s.fault(err)
}

const keyColumns = `SELECT k.id, k.tenant, k.name, k.revision, k.revoked, k.created, k.updated, k.spec, COALESCE(u.at, 0)
	FROM auth_keys k LEFT JOIN auth_last_used u ON u.key_id = k.id `

func (s *Store) scanKey(row interface{ Scan(...any) error }) (*auth.Key, error) {
	k := &auth.Key{Origin: auth.FromStore}
	var revoked, created, updated, used int64
	var spec string
	if err := row.Scan(&k.ID, &k.Tenant, &k.Name, &k.Revision, &revoked, &created, &updated, &spec, &used); err != nil {
		return nil, err
	}
	k.Created, k.Updated, k.LastUsed = timeText(created), timeText(updated), timeText(used)
	s.read("key "+k.ID, spec, &k.Spec)
	k.State = k.Spec.State(s.Now().Unix())
	if revoked != 0 {
		k.State = "revoked"
	}
	return k, nil
}

// key is nil where there is none.
func (s *Store) key(ctx context.Context, in asker, id string) (*auth.Key, error) {
	query, args := keyColumns+"WHERE k.id = ?", []any{id}
	if tenant, name, ok := strings.Cut(id, ":"); ok {
		query, args = keyColumns+"WHERE k.tenant = ? AND k.name = ? AND k.revoked = 0", []any{tenant, name}
	}
	k, err := s.scanKey(in.QueryRowContext(ctx, s.bind(query), args...))
	if isNone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k.Secrets, err = s.mentions(ctx, in, k.ID)
	return k, err
}

// mentions are the secrets of a key, oldest first.
func (s *Store) mentions(ctx context.Context, in asker, id string) ([]auth.Mention, error) {
	rows, err := in.QueryContext(ctx, s.bind("SELECT shown, created, expires, pepper FROM auth_secrets WHERE key_id = ? ORDER BY created, digest"), id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []auth.Mention
	for rows.Next() {
		var m auth.Mention
		var created, expires int64
		if err := rows.Scan(&m.Shown, &created, &expires, &m.Pepper); err != nil {
			return nil, err
		}
		m.Created, m.Expires = timeText(created), timeText(expires)
		out = append(out, m)
	}
	return out, rows.Err()
}

// Keys are a page: first those of the configuration, then the store's, each in
// the order of their IDs. Revoked ones are left out.
func (s *Store) Keys(ctx context.Context, p auth.Page) ([]auth.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var out []auth.Key
	after := p.After
	if after == "" || strings.Contains(after, ":") { // the configuration's have it in their IDs
		out, _ = s.files().Keys(ctx, p)
		after = ""
	}
	if len(out) >= p.Limit {
		return out[:p.Limit], nil
	}
	rows, err := s.db.QueryContext(ctx, s.bind(keyColumns+`WHERE k.revoked = 0 AND k.id > ?
		AND (? = '' OR k.tenant = ? OR substr(k.tenant, 1, ?) = ?) ORDER BY k.id LIMIT ?`),
		after, p.Tenant, p.Tenant, len([]rune(p.Tenant))+1, p.Tenant+"/", p.Limit-len(out))
	if err != nil {
		return nil, s.fault(err)
	}
	var stored []*auth.Key
	for rows.Next() {
		k, err := s.scanKey(rows)
		if err != nil {
			rows.Close()
			return nil, s.fault(err)
		}
		stored = append(stored, k)
	}
	if err := rows.Err(); err != nil {
		return nil, s.fault(err)
	}
	for _, k := range stored {
		if k.Secrets, err = s.mentions(ctx, s.db, k.ID); err != nil {
			return nil, s.fault(err)
		}
		out = append(out, *k)
	}
	return out, nil
}

// Audit is the trail, newest first: edits before number before (0: from the
// newest), at most limit.
func (s *Store) Audit(ctx context.Context, before, limit int) ([]auth.AuditRow, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := s.db.QueryContext(ctx, s.bind(`SELECT seq, at, actor, role, action, target, before, after FROM auth_audit
		WHERE ? = 0 OR seq < ? ORDER BY seq DESC LIMIT ?`), before, before, limit)
	if err != nil {
		return nil, s.fault(err)
	}
	defer rows.Close()
	var out []auth.AuditRow
	for rows.Next() {
		var r auth.AuditRow
		var at int64
		var was, is string
		if err := rows.Scan(&r.Seq, &at, &r.Actor, &r.Role, &r.Action, &r.Target, &was, &is); err != nil {
			return nil, s.fault(err)
		}
		r.At, r.Before, r.After = timeText(at), tree(was), tree(is)
		out = append(out, r)
	}
	return out, s.fault(rows.Err())
}

// tree is a stored document as plain values; nil: there is none.
func tree(text string) any {
	var out any
	if text == "" || json.Unmarshal([]byte(text), &out) != nil {
		return nil
	}
	return whole(out)
}

// whole makes whole numbers of those that are.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if n := int(v); float64(n) == v {
			return n
		}
	}
	return v
}
