// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Directory knows every key: those of one configuration, and those of a store.
// Immutable, but for what the store tells.
type Directory struct {
	keys   map[Digest]*fileKey
	list   []*Identity      // of the configuration, in its order
	nodes  map[string]*Node // its tenants, by path
	stored *Registry        // nil: no store
}

// fileKey is a digest of the configuration.
type fileKey struct {
	id       *Identity
	disabled bool
	span
}

// span is the time in which something holds, in Unix seconds; 0: no end.
type span struct{ from, until int64 }

func (s span) reason(now int64) reason {
	switch {
	case now < s.from:
		return tooEarly
	case s.until != 0 && now >= s.until:
		return expired
	}
	return ok
}

// within is the part of s that lies in t too.
func (s span) within(t span) span {
	s.from = max(s.from, t.from)
	if t.until != 0 && (s.until == 0 || t.until < s.until) {
		s.until = t.until
	}
	return s
}

// reason is why a key is not taken. They are the values of a metric's label.
type reason string

const (
	ok       reason = ""
	missing  reason = "missing"  // no key was sent
	unknown  reason = "unknown"  // nobody has it
	mistyped reason = "mistyped" // of Penstock's form with a wrong checksum, or too long
	tooEarly reason = "early"
	expired  reason = "expired"
	disabled reason = "disabled"
	foreign  reason = "source" // not from this address
	stale    reason = "stale"  // the store was not reached for too long
)

// New compiles the tenants of a configuration that is valid. stored are the keys
// of a store; nil: there is none.
func New(tenants []config.Tenant, stored ...*Registry) *Directory {
	d := &Directory{keys: map[Digest]*fileKey{}, nodes: map[string]*Node{}}
	for _, r := range stored {
		d.stored = r // nil counts as none
	}
	for i := range tenants {
		t := &tenants[i]
		d.nodes[t.Path()] = &Node{
			Name: t.Path(), Limits: t.Limits, Users: t.Users, Metadata: t.Metadata, tier: t.Tier, kind: t.Kind,
			regions: t.Regions, models: t.Models, deny: t.Deny, sources: sources(t.Sources),
		}
	}
	for i := range tenants {
		t := &tenants[i]
		for j := range t.Keys {
			d.add(t, &t.Keys[j])
		}
	}
	return d
}

func (d *Directory) add(t *config.Tenant, k *config.Key) {
	above := d.above(t.Path())
	if above == nil {
		return // not in a valid configuration
	}
	id := compose(above, &Node{
		Name: t.Path() + ":" + k.Name, Limits: k.Limits, Metadata: k.Metadata, tier: k.Tier, models: k.Models, deny: k.Deny, sources: sources(k.Sources),
	})
	d.list = append(d.list, id)
	whole := spanOf(k.NotBefore, k.Expires)
	put := func(hash string, s span) {
		var digest Digest
		if n, err := hex.Decode(digest[:], []byte(strings.TrimPrefix(hash, "sha256:"))); err == nil && n == len(digest) {
			d.keys[digest] = &fileKey{id: id, disabled: k.Disabled, span: s.within(whole)}
		}
	}
	if k.Hash != "" {
		put(k.Hash, whole)
	}
	for _, s := range k.Secrets {
		put(s.Hash, spanOf(s.NotBefore, s.Expires))
	}
}

// spanOf reads two times, of which either may be missing.
func spanOf(from, until string) (s span) {
	if t, err := config.ParseTime(from); err == nil {
		s.from = t.Unix()
	}
	if t, err := config.ParseTime(until); err == nil {
		s.until = t.Unix()
	}
	return s
}

func sources(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range list {
		if p, err := config.ParseSource(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// maxLevels bounds the tenants above a key.
const maxLevels = 3

// above are the nodes of the tenant at path and those above it, outermost first;
// nil: one of them is not there. The configuration's come before a store's.
func (d *Directory) above(path string) []*Node {
	out := make([]*Node, 0, maxLevels+1)
	for end := 0; end < len(path); {
		if i := strings.IndexByte(path[end+1:], '/'); i >= 0 && end+1 < len(path) {
			end += 1 + i
		} else {
			end = len(path)
		}
		n := d.nodes[path[:end]]
		if n == nil && d.stored != nil {
			n = d.stored.node(path[:end])
		}
		if n == nil || len(out) == maxLevels {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// compose is the identity of a key below the tenants above it, which are not
// kept by anybody else.
func compose(above []*Node, key *Node) *Identity {
	id := &Identity{Tenant: above[len(above)-1].Name, Key: key.Name[strings.LastIndexByte(key.Name, ':')+1:], Nodes: append(above, key)}
	for _, n := range id.Nodes {
		id.Tier = cmp.Or(n.tier, id.Tier)
		if n.sources != nil {
			id.bound = append(id.bound, n)
		}
		switch {
		case n.regions == nil:
		case id.Regions == nil:
			id.Regions = n.regions
		default:
			id.Regions = meet(id.Regions, n.regions)
		}
	}
	return id
}

// nowhere is the list of regions that have none in common: no target is there.
const nowhere = "(none)"

func meet(a, b []string) []string {
	var out []string
	for _, r := range b {
		if slices.Contains(a, r) {
			out = append(out, r)
		}
	}
	if out == nil {
		return []string{nowhere}
	}
	return out
}

// As is the identity of a key by its name: TENANT:KEY, or TENANT/KEY; without a
// key, of the tenant with its first key. nil: there is none. Stored keys have
// their IDs.
func (d *Directory) As(name string) *Identity {
	if d.stored != nil {
		if id := d.stored.as(d, name); id != nil {
			return id
		}
	}
	tenant, key, named := strings.Cut(name, ":")
	if !named {
		for _, id := range d.list {
			if id.Tenant == name {
				return id
			}
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return nil
		}
		tenant, key = name[:i], name[i+1:]
	}
	for _, id := range d.list {
		if id.Tenant == tenant && id.Key == key {
			return id
		}
	}
	return nil
}

// maxKey bounds what is hashed for a request.
const maxKey = 4 << 10

// Identify finds who sent r, by the first key that it carries. Digests of keys
// are looked up, so that the time it takes tells nothing of the keys that exist.
func (d *Directory) Identify(r *http.Request) (*Identity, *llm.Error) {
	id, why := d.find(Credential(r), client(r), time.Now().Unix())
	if why != ok {
		return nil, why.refusal()
	}
	return id, nil
}

// find is Identify by the key and where it came from.
func (d *Directory) find(key string, from netip.Addr, now int64) (*Identity, reason) {
	if key == "" {
		return nil, missing
	}
	if len(key) > maxKey {
		return nil, mistyped
	}
	id, why := d.lookUp(key, now)
	if why == ok && !id.admits(from) {
		return nil, foreign
	}
	return id, why
}

func (d *Directory) lookUp(key string, now int64) (*Identity, reason) {
	why := unknown
	if d.stored != nil && strings.HasPrefix(key, keyPrefix) {
		if !WellFormed(key) {
			why = mistyped // if the configuration has it, it is none of ours
		} else if id, stored := d.stored.find(d, key, now); stored != unknown {
			return id, stored
		}
	}
	if len(d.keys) == 0 {
		return nil, why
	}
	digest := Digest(sha256.Sum256([]byte(key)))
	k := d.keys[digest]
	switch {
	case k == nil:
		return nil, why
	case k.disabled:
		return nil, disabled
	}
	if why := k.reason(now); why != ok {
		return nil, why
	}
	return k.id, ok
}

// same compares in constant time.
func same(a, b *Digest) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// refusal is what the client is told. Only who has a key is told more of it.
func (why reason) refusal() *llm.Error {
	switch why {
	case missing:
		return unauthorized("this address asks for a key: send it as Authorization: Bearer KEY, x-api-key, api-key or x-goog-api-key")
	case tooEarly:
		return unauthorized("the key is not valid yet")
	case expired:
		return unauthorized("the key has expired")
	case disabled:
		return unauthorized("the key is disabled")
	case foreign:
		return &llm.Error{Status: http.StatusForbidden, Type: "permission_error", Code: "source_not_allowed", Message: "the key may not be used from this address"}
	case stale:
		return llm.Unavailable("keys cannot be checked at the moment", 5*time.Second)
	}
	return unauthorized("the key is not known here")
}
