// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"encoding/binary"
	"sync/atomic"
)

// table finds keys by the digests of their secrets: open addressing with linear
// probing, 16 bytes a slot. Readers take no lock. There is one writer at a time,
// which changes slots in place and makes a larger table when three quarters are
// taken, so that a change costs the same among ten keys and a million.
type table struct {
	slots []slot
	mask  uint64
}

// slot is a key with the first bytes of a digest, which spare most visits to it.
// A key that is replaced or gone is so at once, for the pointer is one word.
type slot struct {
	tag atomic.Uint64
	key atomic.Pointer[stored] // nil: free
}

const leastSlots = 1 << 6

// newTable has room for n digests.
func newTable(n int) *table {
	size := leastSlots
	for size*3/4 <= n+n/4 {
		size *= 2
	}
	return &table{slots: make([]slot, size), mask: uint64(size - 1)}
}

func tagOf(d *Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

// find is who has a secret, by its digest. Nobody can choose digests, so that the
// time tells nothing; the whole is compared in constant time nevertheless.
func (t *table) find(d *Digest) (*stored, *secret) {
	tag := tagOf(d)
	for i := tag & t.mask; ; i = (i + 1) & t.mask {
		k := t.slots[i].key.Load()
		if k == nil {
			return nil, nil
		}
		if t.slots[i].tag.Load() != tag {
			continue
		}
		if same(&k.digest, d) {
			return k, &k.secret
		}
		for j := range k.more {
			if same(&k.more[j].digest, d) {
				return k, &k.more[j]
			}
		}
	}
}

// at is the slot of k with the digest; nil: it has none.
func (t *table) at(d *Digest, k *stored) *slot {
	tag := tagOf(d)
	for i := tag & t.mask; ; i = (i + 1) & t.mask {
		s := &t.slots[i]
		switch {
		case s.key.Load() == nil:
			return nil
		case s.tag.Load() == tag && s.key.Load() == k:
			return s
		}
	}
}

// insert takes the first slot that is free, or that of a gone key.
func (t *table) insert(tag uint64, k, gone *stored) (wasGone bool) {
	for i := tag & t.mask; ; i = (i + 1) & t.mask {
		s := &t.slots[i]
		if old := s.key.Load(); old == nil || old == gone {
			s.tag.Store(tag)
			s.key.Store(k)
			return old == gone
		}
	}
}

// put has a digest lead to next, in the place of before where it did so.
func (r *Registry) put(d *Digest, next, before *stored) {
	t := r.index.Load()
	if before != nil {
		if s := t.at(d, before); s != nil {
			s.key.Store(next)
			return
		}
	}
	if (r.live+r.dead+1)*4 > len(t.slots)*3 {
		bigger := newTable(r.live + 1)
		for i := range t.slots {
			if k := t.slots[i].key.Load(); k != nil && k != r.gone {
				bigger.insert(t.slots[i].tag.Load(), k, r.gone)
			}
		}
		r.dead = 0
		r.index.Store(bigger)
		t = bigger
	}
	if t.insert(tagOf(d), next, r.gone) {
		r.dead--
	}
	r.live++
}

// remove has a digest lead nowhere, where it led to k.
func (r *Registry) remove(d *Digest, k *stored) {
	if s := r.index.Load().at(d, k); s != nil {
		s.key.Store(r.gone)
		r.live--
		r.dead++
	}
}
