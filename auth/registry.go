// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Registry holds the tenants and keys of a store in memory, for every request to
// read without a lock (table.go). Whoever follows the store tells it of changes by
// [Registry.Apply], whose cost is that of the change and not that of the whole.
type Registry struct {
	index   atomic.Pointer[table]
	peppers atomic.Pointer[Peppers]
	tenants atomic.Pointer[map[string]*Node]
	// generation counts the changes of tenants: identities that were made before
	// one are made again.
	generation atomic.Uint64
	believed   atomic.Int64 // until then, Unix seconds, what is here is believed; 0: for ever

	writing sync.Mutex // guards what follows
	byID    map[string]*stored
	gone    *stored // stands in a slot whose key is gone
	live    int     // slots in use
	dead    int     // slots of gone keys

	hot  ring
	used lastUses
}

const (
	// mostHot bounds the identities that are kept made: about 350 bytes each.
	mostHot = 1 << 17
	// usedEvery is how exactly the last use of a key is known.
	usedEvery = 60 // seconds
	// mostUsed bounds the keys whose last use waits to be written.
	mostUsed = 1 << 16
)

// stored is a key of the store.
type stored struct {
	secret // the first one, beside what a request needs: one visit to memory
	span
	identity atomic.Pointer[Identity]
	lastUsed atomic.Int64 // Unix seconds, coarse
	disabled bool

	more             []secret // nil: it has no other
	id, name, tenant string
	rules            *rules // nil: none
}

// secret is one of a key's.
type secret struct {
	digest Digest
	valid  span
}

// rules are what a key says besides who it is. Most keys say nothing.
type rules struct{ spec KeySpec }

// StoredTenant is a tenant of the store, or word that it is gone.
type StoredTenant struct {
	Path string
	Gone bool
	Spec TenantSpec
}

// StoredKey is a key of the store, or word that it is gone.
type StoredKey struct {
	ID, Tenant, Name string
	Gone             bool
	Spec             KeySpec
	Secrets          []StoredSecret
	LastUsed         int64 // Unix seconds
}

// StoredSecret is a secret as it is stored.
type StoredSecret struct {
	Digest      Digest
	From, Until int64 // Unix seconds; 0: no end
}

// NewRegistry is one without keys, which knows none before it has peppers.
func NewRegistry() *Registry {
	r := &Registry{byID: map[string]*stored{}, gone: &stored{}}
	r.index.Store(newTable(0))
	r.tenants.Store(&map[string]*Node{})
	r.used.keys = map[string]int64{}
	return r
}

// SetPeppers sets the peppers, as the configuration has them; nil: there is no store.
func (r *Registry) SetPeppers(p *Peppers) { r.peppers.Store(p) }

// Believe says until when what is here is believed; the zero time: for ever.
func (r *Registry) Believe(until time.Time) {
	if until.IsZero() {
		r.believed.Store(0)
		return
	}
	r.believed.Store(until.Unix())
}

// Len is how many keys there are.
func (r *Registry) Len() int {
	r.writing.Lock()
	defer r.writing.Unlock()
	return len(r.byID)
}

// Apply takes over changes. Of one that is told twice the later word counts.
func (r *Registry) Apply(tenants []StoredTenant, keys []StoredKey) {
	r.writing.Lock()
	defer r.writing.Unlock()
	if len(tenants) > 0 {
		next := maps.Clone(*r.tenants.Load())
		for i := range tenants {
			t := &tenants[i]
			if t.Gone {
				delete(next, t.Path)
				continue
			}
			next[t.Path] = t.node()
		}
		r.tenants.Store(&next)
		r.generation.Add(1)
	}
	for i := range keys {
		k := &keys[i]
		before := r.byID[k.ID]
		var next *stored
		if k.Gone {
			delete(r.byID, k.ID)
		} else {
			next = k.compile(before)
			r.byID[next.id] = next
			for x := range next.each {
				r.put(&x.digest, next, before)
			}
		}
		if before != nil {
			for x := range before.each {
				r.remove(&x.digest, before) // those that the new one does not have
			}
			before.identity.Store(nil)
		}
	}
}

// Retain forgets what a store that was read whole does not have.
func (r *Registry) Retain(tenants, keys map[string]bool) {
	var goneTenants []StoredTenant
	var goneKeys []StoredKey
	for path := range *r.tenants.Load() {
		if !tenants[path] {
			goneTenants = append(goneTenants, StoredTenant{Path: path, Gone: true})
		}
	}
	r.writing.Lock()
	for id := range r.byID {
		if !keys[id] {
			goneKeys = append(goneKeys, StoredKey{ID: id, Gone: true})
		}
	}
	r.writing.Unlock()
	r.Apply(goneTenants, goneKeys)
}

// each are the secrets of a key that can be known.
func (k *stored) each(yield func(*secret) bool) {
	if k.digest == (Digest{}) || !yield(&k.secret) {
		return
	}
	for i := range k.more {
		if !yield(&k.more[i]) {
			return
		}
	}
}

func (t *StoredTenant) node() *Node {
	s := &t.Spec
	return &Node{
		Name: t.Path, Limits: s.Limits, Users: s.Users, Metadata: s.Metadata, tier: s.Tier, kind: s.Kind,
		regions: s.Regions, models: s.Models, deny: s.Deny, sources: sources(s.Sources),
	}
}

func (k *StoredKey) compile(before *stored) *stored {
	next := &stored{
		id: k.ID, name: k.Name, tenant: k.Tenant, disabled: k.Spec.Disabled,
		span: spanOf(k.Spec.NotBefore, k.Spec.Expires),
	}
	if before != nil && before.tenant == k.Tenant {
		next.tenant = before.tenant // shares its bytes
	}
	if k.Spec.says() {
		next.rules = &rules{spec: k.Spec}
	}
	for i, s := range k.Secrets {
		x := secret{digest: s.Digest, valid: span{s.From, s.Until}}
		if i == 0 {
			next.secret = x
		} else {
			next.more = append(next.more, x)
		}
	}
	next.lastUsed.Store(k.LastUsed)
	if before != nil {
		next.lastUsed.Store(max(k.LastUsed, before.lastUsed.Load()))
	}
	return next
}

// node is a tenant of the store; nil: it is not there.
func (r *Registry) node(path string) *Node { return (*r.tenants.Load())[path] }

// find is who has the key, which is well formed. [unknown]: nobody here.
func (r *Registry) find(d *Directory, key string, now int64) (*Identity, reason) {
	p := r.peppers.Load()
	if p == nil {
		return nil, unknown
	}
	t := r.index.Load()
	for i := range p.list {
		digest := p.list[i].digest(key)
		if k, x := t.find(&digest); k != nil {
			return r.admit(d, k, x, now)
		}
	}
	return nil, unknown
}

// admit says whether a key that is known may be used now.
func (r *Registry) admit(d *Directory, k *stored, s *secret, now int64) (*Identity, reason) {
	if until := r.believed.Load(); until != 0 && now > until {
		return nil, stale
	}
	if k.disabled {
		return nil, disabled
	}
	if why := s.valid.within(k.span).reason(now); why != ok {
		return nil, why
	}
	id := r.identityOf(d, k)
	if id == nil {
		return nil, disabled // a tenant above it is gone
	}
	if last := k.lastUsed.Load(); now-last >= usedEvery && k.lastUsed.CompareAndSwap(last, now) {
		r.used.note(k.id, now)
	}
	return id, ok
}

// identityOf is the key's identity under the configuration of d; nil: a tenant
// above it is not there.
func (r *Registry) identityOf(d *Directory, k *stored) *Identity {
	generation := r.generation.Load()
	if id := k.identity.Load(); id != nil && id.of == d && id.generation == generation {
		return id
	}
	above := d.above(k.tenant)
	if above == nil {
		return nil
	}
	n := &Node{Name: k.tenant + ":" + k.name}
	if k.rules != nil {
		s := &k.rules.spec
		n.Limits, n.Metadata, n.tier, n.models, n.deny, n.sources = s.Limits, s.Metadata, s.Tier, s.Models, s.Deny, sources(s.Sources)
	}
	id := compose(above, n)
	id.ID, id.of, id.generation = k.id, d, generation
	if k.identity.Swap(id) == nil {
		r.hot.put(k)
	}
	return id
}

// as is the identity of a stored key by its ID or TENANT:NAME.
func (r *Registry) as(d *Directory, name string) *Identity {
	r.writing.Lock()
	k := r.byID[name]
	for _, other := range r.byID {
		if k != nil {
			break
		}
		if len(name) == len(other.tenant)+1+len(other.name) && name == other.tenant+":"+other.name {
			k = other
		}
	}
	r.writing.Unlock()
	if k == nil {
		return nil
	}
	return r.identityOf(d, k)
}

// ring keeps the number of identities that are made within a bound: a newer one
// pushes out the oldest, whose key makes it again when it is used.
type ring struct {
	mu   sync.Mutex
	list []*stored
	next int
}

func (h *ring) put(k *stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) < mostHot {
		h.list = append(h.list, k)
		return
	}
	if old := h.list[h.next]; old != k {
		old.identity.Store(nil)
	}
	h.list[h.next] = k
	h.next = (h.next + 1) % mostHot
}

// lastUses are the last use of keys, until somebody writes it down.
type lastUses struct {
	mu   sync.Mutex
	keys map[string]int64
}

func (u *lastUses) note(id string, now int64) {
	u.mu.Lock()
	if len(u.keys) < mostUsed {
		u.keys[id] = now
	}
	u.mu.Unlock()
}

// Used gives the keys that were used since it was asked last, with the time in
// Unix seconds.
func (r *Registry) Used() map[string]int64 {
	r.used.mu.Lock()
	defer r.used.mu.Unlock()
	out := r.used.keys
	r.used.keys = map[string]int64{}
	return out
}
