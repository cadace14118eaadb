// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/penstock/penstock/config"
)

// This file is tenants and keys as the admin API and the store have them. Their
// keys are those of the configuration; see [config.DecodeJSON].

// Tenant is an organisation, a team or a project.
type Tenant struct {
	Path     string     `yaml:"path"`     // acme/search: its name below that of those above it
	Origin   string     `yaml:"origin"`   // store, or file: then it is changed there
	Revision int        `yaml:"revision"` // of this document
	Created  string     `yaml:"created"`  // RFC 3339, as every time here
	Updated  string     `yaml:"updated"`
	Spec     TenantSpec `yaml:"spec"`
}

// TenantSpec is what an operator says of a tenant.
type TenantSpec struct {
	Kind     string            `yaml:"kind" enum:"organisation|team|project"`
	Tier     string            `yaml:"tier"`
	Regions  []string          `yaml:"regions"`
	Models   []string          `yaml:"models"`
	Deny     []string          `yaml:"deny"`
	Sources  []string          `yaml:"sources"`
	Limits   []config.Limit    `yaml:"limits"`
	Users    *config.Users     `yaml:"users"`
	Metadata map[string]string `yaml:"metadata"`
}

// Key is a key of a tenant.
type Key struct {
	ID       string    `yaml:"id"`
	Tenant   string    `yaml:"tenant"`
	Name     string    `yaml:"name"`
	Origin   string    `yaml:"origin"`
	Revision int       `yaml:"revision"`
	State    string    `yaml:"state"` // active, disabled, pending (not valid yet), expired or revoked
	Created  string    `yaml:"created"`
	Updated  string    `yaml:"updated"`
	LastUsed string    `yaml:"lastUsed"` // to the minute
	Spec     KeySpec   `yaml:"spec"`
	Secrets  []Mention `yaml:"secrets"`
	Secret   string    `yaml:"secret"` // the secret itself, once: in the answer to who made it
}

// KeySpec is what an operator says of a key.
type KeySpec struct {
	Tier      string            `yaml:"tier"`
	Models    []string          `yaml:"models"`
	Deny      []string          `yaml:"deny"`
	Sources   []string          `yaml:"sources"`
	NotBefore string            `yaml:"notBefore"`
	Expires   string            `yaml:"expires"`
	Disabled  bool              `yaml:"disabled"`
	Limits    []config.Limit    `yaml:"limits"`
	Metadata  map[string]string `yaml:"metadata"`
}

// Mention is what is told of a secret.
type Mention struct {
	Shown   string `yaml:"shown"`   // its first characters
	Created string `yaml:"created"` // empty: a configuration's
	Expires string `yaml:"expires"` // empty: when the key does
	Pepper  string `yaml:"pepper"`  // name of the pepper it was made under
}

// The origins.
const (
	FromStore = "store"
	FromFile  = "file"
)

// says tells whether a spec holds more than times and being disabled.
func (s *KeySpec) says() bool {
	c := *s
	c.NotBefore, c.Expires, c.Disabled = "", "", false
	return !reflect.ValueOf(c).IsZero()
}

// Split is the path of the tenant above and the name below it.
func Split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

// Config is the tenant as a configuration has it.
func (t *Tenant) Config() *config.Tenant {
	s := &t.Spec
	parent, name := Split(t.Path)
	return &config.Tenant{
		Name: name, Parent: parent, Kind: s.Kind, Tier: s.Tier, Regions: s.Regions, Models: s.Models, Deny: s.Deny,
		Sources: s.Sources, Limits: s.Limits, Users: s.Users, Metadata: s.Metadata,
	}
}

// Config is the key as a configuration has it, without digests.
func (k *Key) Config() *config.Key {
	s := &k.Spec
	return &config.Key{
		Name: k.Name, Tier: s.Tier, Models: s.Models, Deny: s.Deny, Sources: s.Sources, NotBefore: s.NotBefore,
		Expires: s.Expires, Disabled: s.Disabled, Limits: s.Limits, Metadata: s.Metadata,
	}
}

// FileTenants are the tenants of a configuration as documents.
func FileTenants(c *config.Config) []Tenant {
	byPath := map[string]*config.Tenant{}
	for i := range c.Tenants {
		byPath[c.Tenants[i].Path()] = &c.Tenants[i]
	}
	out := make([]Tenant, len(c.Tenants))
	for i := range c.Tenants {
		t := &c.Tenants[i]
		out[i] = Tenant{Path: t.Path(), Origin: FromFile, Spec: TenantSpec{
			Kind: t.KindIn(byPath), Tier: t.Tier, Regions: t.Regions, Models: t.Models, Deny: t.Deny, Sources: t.Sources,
			Limits: t.Limits, Users: t.Users, Metadata: t.Metadata,
		}}
	}
	return out
}

// FileKeys are the keys of a configuration as documents.
func FileKeys(c *config.Config, now int64) []Key {
	var out []Key
	for i := range c.Tenants {
		t := &c.Tenants[i]
		for j := range t.Keys {
			k := &t.Keys[j]
			doc := Key{ID: t.Path() + ":" + k.Name, Tenant: t.Path(), Name: k.Name, Origin: FromFile, Spec: KeySpec{
				Tier: k.Tier, Models: k.Models, Deny: k.Deny, Sources: k.Sources, NotBefore: k.NotBefore, Expires: k.Expires,
				Disabled: k.Disabled, Limits: k.Limits, Metadata: k.Metadata,
			}}
			if k.Hash != "" {
				doc.Secrets = append(doc.Secrets, Mention{Shown: k.Hash[:min(len(k.Hash), 15)] + "…"})
			}
			for _, s := range k.Secrets {
				doc.Secrets = append(doc.Secrets, Mention{Shown: s.Hash[:min(len(s.Hash), 15)] + "…", Expires: s.Expires})
			}
			doc.State = doc.Spec.State(now)
			out = append(out, doc)
		}
	}
	return out
}

// State is that of a key which is not revoked.
func (s *KeySpec) State(now int64) string {
	switch why := spanOf(s.NotBefore, s.Expires).reason(now); {
	case s.Disabled:
		return "disabled"
	case why == tooEarly:
		return "pending"
	case why == expired:
		return "expired"
	}
	return "active"
}

// FaultKind is what is wrong with an edit.
type FaultKind int

// The kinds.
const (
	Invalid     FaultKind = iota
	NotFound              // there is no such thing
	Exists                // there is one already
	Outdated              // it has changed since it was read
	ReadOnly              // it is a file's
	InUse                 // something is below it
	Unreachable           // the store cannot be asked
)

// Fault is why an edit is refused.
type Fault struct {
	Kind           FaultKind
	Param, Message string
	Hint           string
}

func (f *Fault) Error() string {
	text := f.Message
	if f.Param != "" {
		text = f.Param + ": " + text
	}
	if f.Hint != "" {
		text += "; " + f.Hint
	}
	return text
}

// Faultf makes a fault.
func Faultf(kind FaultKind, param, hint, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Param: param, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// FaultOf is the first of the problems of a document.
func FaultOf(err error, below string) *Fault {
	ps := config.AsProblems(err)
	if len(ps) == 0 {
		return &Fault{Message: err.Error()}
	}
	p := ps[0]
	f := &Fault{Message: p.What, Hint: p.Hint, Param: p.Path}
	if below != "" {
		f.Param = strings.TrimSuffix(below+"."+p.Path, ".")
	}
	return f
}
