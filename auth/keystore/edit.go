// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package keystore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// maxSecrets bounds those of one key.
const maxSecrets = 8

// editing is an edit within its transaction.
type editing struct {
	*auth.Edit
	s             *Store
	ctx           context.Context
	tx            *sql.Tx
	now           int64
	seq           int64
	before, after any // documents for the audit trail; nil: there is none
}

// Do makes an edit. What is refused is an [auth.Fault]. When it returns, this
// process already goes by the edit; others do within the refresh of theirs.
func (s *Store) Do(ctx context.Context, e auth.Edit) (*auth.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := s.do(ctx, &e)
	if err != nil {
		var f *auth.Fault
		if errors.As(err, &f) {
			return nil, f
		}
		return nil, &auth.Fault{Kind: auth.Unreachable, Message: s.explain(err).Error(), Hint: "nothing was changed"}
	}
	if !e.DryRun {
		s.Metrics.edited(string(e.Action))
		s.Refresh(ctx)
	}
	return out, nil
}

func (s *Store) do(ctx context.Context, e *auth.Edit) (*auth.Outcome, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	x := &editing{Edit: e, s: s, ctx: ctx, tx: tx, now: s.Now().Unix()}
	// The row is locked until the end: edits are numbered in their order.
	if err := tx.QueryRowContext(ctx, "UPDATE auth_meta SET value = value + 1 WHERE name = 'sequence' RETURNING value").Scan(&x.seq); err != nil {
		return nil, err
	}
	out := &auth.Outcome{}
	switch e.Action {
	case auth.CreateTenant, auth.UpdateTenant, auth.DeleteTenant:
		out.Tenant, err = x.tenant()
	default:
		out.Key, err = x.key()
	}
	if err != nil {
		return nil, err
	}
	if e.DryRun {
		if out.Key != nil {
			out.Key.Secret = "" // it would be of no use
		}
		return out, nil
	}
	if err := x.audit(); err != nil {
		return nil, err
	}
	return out, tx.Commit()
}

func (x *editing) exec(query string, args ...any) error {
	_, err := x.tx.ExecContext(x.ctx, x.s.bind(query), args...)
	return err
}

// audit adds the line of the edit.
func (x *editing) audit() error {
	text := func(doc any) string {
		if doc == nil {
			return ""
		}
		return string(config.EncodeJSON(doc))
	}
	target := x.Target
	if k, is := x.after.(auth.Key); is {
		target = k.ID
	}
	err := x.exec("INSERT INTO auth_audit (seq, at, actor, role, action, target, before, after) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		x.seq, x.now, x.Actor, x.Role, string(x.Action), target, text(x.before), text(x.after))
	if err == nil && x.s.postgres {
		err = x.exec("SELECT pg_notify('penstock_auth', '')")
	}
	return err
}

// tenant makes, replaces or deletes a tenant.
func (x *editing) tenant() (*auth.Tenant, error) {
	if t := fileTenant(x.s.File(), x.Target); t != nil {
		if x.Action == auth.CreateTenant {
			return nil, auth.Faultf(auth.Exists, "path", "choose another name", "tenant %s is there already, in the configuration", x.Target)
		}
		return nil, x.fileOwned("tenant", x.Target, x.Target)
	}
	old, gone, err := x.s.tenant(x.ctx, x.tx, x.Target)
	switch {
	case err != nil:
		return nil, err
	case x.Action == auth.CreateTenant && old != nil && !gone:
		return nil, auth.Faultf(auth.Exists, "path", "choose another name, or change it", "tenant %s is there already", x.Target)
	case x.Action == auth.CreateTenant:
		return x.createTenant(old)
	case old == nil || gone:
		return nil, auth.Faultf(auth.NotFound, "", "penstock tenants list", "there is no tenant %s", x.Target)
	}
	if err := x.current(old.Revision); err != nil {
		return nil, err
	}
	x.before = *old
	next := *old
	next.Revision, next.Updated = old.Revision+1, timeText(x.now)
	if x.Action == auth.DeleteTenant {
		if err := x.unused(); err != nil {
			return nil, err
		}
		return &next, x.exec("UPDATE auth_tenants SET seq = ?, revision = ?, gone = 1, updated = ?, spec = '{}' WHERE path = ?", x.seq, next.Revision, x.now, x.Target)
	}
	next.Spec = *x.Tenant
	if err := x.checkTenant(&next); err != nil {
		return nil, err
	}
	x.after = next
	return &next, x.exec("UPDATE auth_tenants SET seq = ?, revision = ?, updated = ?, spec = ? WHERE path = ?",
		x.seq, next.Revision, x.now, string(config.EncodeJSON(next.Spec)), x.Target)
}

// createTenant makes a tenant, perhaps in the place of one that is gone: then
// its revision goes on, so that an old one fits nothing.
func (x *editing) createTenant(gone *auth.Tenant) (*auth.Tenant, error) {
	t := &auth.Tenant{Path: x.Target, Origin: auth.FromStore, Revision: 1, Created: timeText(x.now), Updated: timeText(x.now), Spec: *x.Tenant}
	if gone != nil {
		t.Revision = gone.Revision + 1
	}
	if err := x.checkTenant(t); err != nil {
		return nil, err
	}
	x.after = *t
	return t, x.exec(`INSERT INTO auth_tenants (path, seq, revision, gone, created, updated, spec) VALUES (?, ?, ?, 0, ?, ?, ?)
		ON CONFLICT (path) DO UPDATE SET seq = excluded.seq, revision = excluded.revision, gone = 0, created = excluded.created, updated = excluded.updated, spec = excluded.spec`,
		t.Path, x.seq, t.Revision, x.now, x.now, string(config.EncodeJSON(t.Spec)))
}

// unused refuses to delete a tenant with others or keys below it.
func (x *editing) unused() error {
	var n int
	below := x.Target + "/"
	for _, c := range x.s.File().Tenants {
		if strings.HasPrefix(c.Path(), below) {
			n++
		}
	}
	var stored, keys int
	err := x.tx.QueryRowContext(x.ctx, x.s.bind("SELECT COUNT(*) FROM auth_tenants WHERE gone = 0 AND substr(path, 1, ?) = ?"), len([]rune(below)), below).Scan(&stored)
	if err == nil {
		err = x.tx.QueryRowContext(x.ctx, x.s.bind("SELECT COUNT(*) FROM auth_keys WHERE revoked = 0 AND tenant = ?"), x.Target).Scan(&keys)
	}
	switch {
	case err != nil:
		return err
	case n+stored > 0:
		return auth.Faultf(auth.InUse, "", "delete those first", "tenant %s has %d tenants below it", x.Target, n+stored)
	case keys > 0:
		return auth.Faultf(auth.InUse, "", "revoke them first", "tenant %s has %d keys", x.Target, keys)
	}
	return nil
}

// current refuses an edit of something that has changed since it was read.
func (x *editing) current(revision int) error {
	if x.Revision != 0 && x.Revision != revision {
		return auth.Faultf(auth.Outdated, "", "read it again, and make the change to that", "%s has changed since: it is at revision %d, and revision %d was to be changed", x.Target, revision, x.Revision)
	}
	return nil
}

// branch are the tenants from the outermost to the one at path.
func (x *editing) branch(path string) ([]config.Tenant, error) {
	var out []config.Tenant
	for path != "" {
		parent, _ := auth.Split(path)
		if t := fileTenant(x.s.File(), path); t != nil {
			c := *t
			c.Keys = nil
			out = append(out, c)
		} else if t, gone, err := x.s.tenant(x.ctx, x.tx, path); err != nil {
			return nil, err
		} else if t != nil && !gone {
			out = append(out, *t.Config())
		}
		path = parent
	}
	slices.Reverse(out)
	return out, nil
}

func (x *editing) checkTenant(t *auth.Tenant) error {
	c := t.Config()
	branch, err := x.branch(c.Parent)
	if err != nil {
		return err
	}
	ps := config.CheckBranch(x.s.File(), append(branch, *c))
	if len(ps) == 0 {
		return nil
	}
	f := auth.FaultOf(ps, "spec")
	if f.Param == "spec.name" || f.Param == "spec.parent" {
		f.Param = "path"
	}
	return f
}

// anyHash stands for the digest of a key that is checked without one.
func anyHash() string { return "sha256:" + strings.Repeat("0", 64) }

func (x *editing) checkKey(k *auth.Key) error {
	branch, err := x.branch(k.Tenant)
	if err != nil {
		return err
	}
	if len(branch) == 0 || branch[len(branch)-1].Path() != k.Tenant {
		return auth.Faultf(auth.Invalid, "tenant", "make it with penstock tenants create, or list it in the configuration", "there is no tenant %q", k.Tenant)
	}
	c := k.Config()
	c.Hash = anyHash()
	branch[len(branch)-1].Keys = []config.Key{*c}
	for _, p := range config.CheckBranch(x.s.File(), branch) {
		rest, below := strings.CutPrefix(p.Path, "keys[0].")
		if !below {
			continue // of the tenant, as it stands
		}
		f := &auth.Fault{Param: "spec." + rest, Message: p.What, Hint: p.Hint}
		if rest == "name" {
			f.Param = rest
		}
		return f
	}
	return nil
}

// key makes, replaces or ends a key.
func (x *editing) key() (*auth.Key, error) {
	if x.Action == auth.CreateKey {
		return x.createKey()
	}
	if x.fileKey(x.Target) {
		return nil, x.fileOwned("key", x.Target, x.Target[:strings.LastIndexByte(x.Target, ':')])
	}
	old, err := x.s.key(x.ctx, x.tx, x.Target)
	switch {
	case err != nil:
		return nil, err
	case old == nil:
		return nil, auth.Faultf(auth.NotFound, "", "penstock keys list", "there is no key %s", x.Target)
	case old.State == "revoked" && x.Action == auth.RevokeKey:
		return old, nil
	case old.State == "revoked":
		return nil, auth.Faultf(auth.InUse, "", "make a new one", "key %s is revoked, for good", x.Target)
	}
	if err := x.current(old.Revision); err != nil {
		return nil, err
	}
	x.before = *old
	next := *old
	next.Revision, next.Updated = old.Revision+1, timeText(x.now)
	switch x.Action {
	case auth.RevokeKey:
		next.State, next.Secrets = "revoked", nil
		if err := x.exec("DELETE FROM auth_secrets WHERE key_id = ?", old.ID); err != nil {
			return nil, err
		}
	case auth.RotateKey:
		if err := x.rotate(&next); err != nil {
			return nil, err
		}
	case auth.DisableKey, auth.EnableKey:
		next.Spec.Disabled = x.Action == auth.DisableKey
	case auth.UpdateKey:
		next.Spec = *x.Key
		if err := x.checkKey(&next); err != nil {
			return nil, err
		}
	}
	revoked := int64(0)
	if next.State == "revoked" {
		revoked = x.now
	} else {
		next.State = next.Spec.State(x.now)
	}
	audited := next
	audited.Secret = ""
	x.after = audited
	return &next, x.exec("UPDATE auth_keys SET seq = ?, revision = ?, updated = ?, revoked = ?, spec = ? WHERE id = ?",
		x.seq, next.Revision, x.now, revoked, string(config.EncodeJSON(next.Spec)), old.ID)
}

func (x *editing) createKey() (*auth.Key, error) {
	k := &auth.Key{
		ID: auth.NewID("key_"), Tenant: x.Target, Name: x.Name, Origin: auth.FromStore, Revision: 1,
		Created: timeText(x.now), Updated: timeText(x.now), Spec: *x.Key,
	}
	if err := x.checkKey(k); err != nil {
		return nil, err
	}
	if x.fileKey(k.Tenant + ":" + k.Name) {
		return nil, auth.Faultf(auth.Exists, "name", "choose another name", "tenant %s has a key %s already, in the configuration", k.Tenant, k.Name)
	}
	var n int
	if err := x.tx.QueryRowContext(x.ctx, x.s.bind("SELECT COUNT(*) FROM auth_keys WHERE tenant = ? AND name = ? AND revoked = 0"), k.Tenant, k.Name).Scan(&n); err != nil {
		return nil, err
	}
	if n > 0 {
		return nil, auth.Faultf(auth.Exists, "name", "choose another name, or rotate that one", "tenant %s has a key %s already", k.Tenant, k.Name)
	}
	k.State = k.Spec.State(x.now)
	if err := x.exec("INSERT INTO auth_keys (id, tenant, name, seq, revision, revoked, created, updated, spec) VALUES (?, ?, ?, ?, 1, 0, ?, ?, ?)",
		k.ID, k.Tenant, k.Name, x.seq, x.now, x.now, string(config.EncodeJSON(k.Spec))); err != nil {
		return nil, err
	}
	if err := x.addSecret(k); err != nil {
		return nil, err
	}
	audited := *k
	audited.Secret = ""
	x.after = audited
	return k, nil
}

// addSecret draws a further secret for k.
func (x *editing) addSecret(k *auth.Key) error {
	k.Secret = auth.NewSecret()
	digest := x.s.peppers.Digest(k.Secret)
	m := auth.Mention{Shown: auth.Shown(k.Secret), Created: timeText(x.now), Pepper: x.s.peppers.Current()}
	k.Secrets = append(k.Secrets, m)
	return x.exec("INSERT INTO auth_secrets (digest, key_id, pepper, shown, created, expires) VALUES (?, ?, ?, ?, ?, 0)",
		hex.EncodeToString(digest[:]), k.ID, m.Pepper, m.Shown, x.now)
}

// rotate adds a secret, and ends the older ones after the grace.
func (x *editing) rotate(k *auth.Key) error {
	end := x.now + int64(x.Grace/time.Second)
	if err := x.exec("UPDATE auth_secrets SET expires = ? WHERE key_id = ? AND (expires = 0 OR expires > ?)", end, k.ID, end); err != nil {
		return err
	}
	if err := x.exec("DELETE FROM auth_secrets WHERE key_id = ? AND expires <= ?", k.ID, x.now); err != nil {
		return err
	}
	left, err := x.s.mentions(x.ctx, x.tx, k.ID)
	if err != nil {
		return err
	}
	if len(left) >= maxSecrets {
		return auth.Faultf(auth.InUse, "", "wait until one has ended, or rotate with grace 0s", "key %s has %d secrets already", k.ID, len(left))
	}
	k.Secrets = left
	return x.addSecret(k)
}

// fileTenant is a tenant of the configuration; nil: it has none at path.
func fileTenant(c *config.Config, path string) *config.Tenant {
	for i := range c.Tenants {
		if c.Tenants[i].Path() == path {
			return &c.Tenants[i]
		}
	}
	return nil
}

// fileKey says that the configuration has the key, TENANT:NAME.
func (x *editing) fileKey(id string) bool {
	_, err := x.s.files().Key(x.ctx, id)
	return err == nil
}

// fileOwned refuses an edit of what the configuration has, and says where.
func (x *editing) fileOwned(what, name, tenant string) error {
	place := "the configuration"
	if x.s.FileName != "" {
		place = x.s.FileName
	}
	i := slices.IndexFunc(x.s.File().Tenants, func(t config.Tenant) bool { return t.Path() == tenant })
	return auth.Faultf(auth.ReadOnly, "", "change it there; the file is read again when it changes", "%s %s is in %s (tenants[%d])", what, name, place, i)
}
