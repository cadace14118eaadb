// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// Action is what an edit does.
type Action string

// The actions, as the audit trail has them.
const (
	CreateTenant Action = "tenant.create"
	UpdateTenant Action = "tenant.update"
	DeleteTenant Action = "tenant.delete"
	CreateKey    Action = "key.create"
	UpdateKey    Action = "key.update"
	RotateKey    Action = "key.rotate"
	RevokeKey    Action = "key.revoke"
	DisableKey   Action = "key.disable"
	EnableKey    Action = "key.enable"
)

// Edit is one change that somebody wishes.
type Edit struct {
	Action   Action
	Target   string        // path of the tenant, or ID of the key; of a new key its tenant
	Name     string        // of a new key
	Tenant   *TenantSpec   // of a tenant that is made or replaced
	Key      *KeySpec      // of a key that is made or replaced
	Revision int           // that it must have; 0: any
	Grace    time.Duration // that older secrets are taken after a rotation
	DryRun   bool          // everything is checked, and nothing is changed

	Actor, Role string // who wishes it
}

// Outcome is what there is after an edit.
type Outcome struct {
	Tenant *Tenant
	Key    *Key
}

// Page is a part of a list.
type Page struct {
	Tenant string // and those below it; "": all
	After  string // the last one of the page before; "": from the start
	Limit  int
}

// AuditRow is one edit that was made.
type AuditRow struct {
	Seq    int    `yaml:"seq"`
	At     string `yaml:"at"`
	Actor  string `yaml:"actor"`
	Role   string `yaml:"role"`
	Action string `yaml:"action"`
	Target string `yaml:"target"`
	Before any    `yaml:"before"` // the document; none where it was made
	After  any    `yaml:"after"`  // none where it was deleted
}

// Reader tells of tenants, keys and edits. What it refuses is a [Fault].
type Reader interface {
	Tenant(ctx context.Context, path string) (*Tenant, error)
	Tenants(ctx context.Context, p Page) ([]Tenant, error)
	Key(ctx context.Context, id string) (*Key, error)
	Keys(ctx context.Context, p Page) ([]Key, error)
	Audit(ctx context.Context, before, limit int) ([]AuditRow, error)
}

// Editor makes edits. What it refuses is a [Fault].
type Editor interface {
	Do(ctx context.Context, e Edit) (*Outcome, error)
}

// Files are the tenants and keys of a configuration: nothing else can be read,
// and nothing changed.
type Files struct {
	Config *config.Config
}

// Tenant is one of the configuration.
func (f Files) Tenant(_ context.Context, path string) (*Tenant, error) {
	for _, t := range FileTenants(f.Config) {
		if t.Path == path {
			return &t, nil
		}
	}
	return nil, Faultf(NotFound, "", "penstock tenants list", "there is no tenant %s", path)
}

// Tenants are a page, in the order of their paths.
func (f Files) Tenants(_ context.Context, p Page) ([]Tenant, error) {
	var out []Tenant
	for _, t := range FileTenants(f.Config) {
		if t.Path > p.After && p.Holds(t.Path) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Tenant) int { return strings.Compare(a.Path, b.Path) })
	return out[:min(len(out), p.Limit)], nil
}

// Key is one of the configuration, by TENANT:NAME.
func (f Files) Key(_ context.Context, id string) (*Key, error) {
	for _, k := range FileKeys(f.Config, time.Now().Unix()) {
		if k.ID == id {
			return &k, nil
		}
	}
	return nil, Faultf(NotFound, "", "penstock keys list", "there is no key %s", id)
}

// Keys are a page, in the order of their IDs.
func (f Files) Keys(_ context.Context, p Page) ([]Key, error) {
	var out []Key
	for _, k := range FileKeys(f.Config, time.Now().Unix()) {
		if k.ID > p.After && p.Holds(k.Tenant) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return strings.Compare(a.ID, b.ID) })
	return out[:min(len(out), p.Limit)], nil
}

// Audit is empty: whoever changes a file is not known here.
func (f Files) Audit(context.Context, int, int) ([]AuditRow, error) { return nil, nil }

// Do refuses.
func (f Files) Do(context.Context, Edit) (*Outcome, error) {
	return nil, Faultf(ReadOnly, "", `write keys: {store: sqlite, path: keys.db, pepper: "${PENSTOCK_PEPPER}"} into the configuration, or list tenants there`, "there is no store of tenants and keys")
}

// Holds says that the tenant at path is on a page's list.
func (p Page) Holds(path string) bool {
	return p.Tenant == "" || path == p.Tenant || strings.HasPrefix(path, p.Tenant+"/")
}
