// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"sync"
	"time"
)

// memory is the store of one process.
type memory struct {
	began    time.Time
	standsIn bool     // for a shared store that is away: limits have their share
	groups   sync.Map // *group by name
}

// NewMemory returns a store that lives in this process.
func NewMemory() Store { return &memory{began: time.Now()} }

// group is all counters of one tree. One lock is enough: it is held for less than
// a microsecond, and makes a reservation of a whole path one step.
type group struct {
	mu       sync.Mutex
	counters map[uint64]*counter
	sweepAt  int // how many counters there are when idle ones are looked for
}

// fewCounters are not worth a look for idle ones.
const fewCounters = 1024

func (m *memory) now() instant {
	t := time.Now()
	return instant{mono: int64(t.Sub(m.began)), wall: t}
}

func (m *memory) group(name string) *group {
	if g, ok := m.groups.Load(name); ok {
		return g.(*group)
	}
	g, _ := m.groups.LoadOrStore(name, &group{counters: map[uint64]*counter{}, sweepAt: fewCounters})
	return g.(*group)
}

// of is the counter of a limit, as it is now.
func (g *group) of(l *Limit, amount int64, now instant) *counter {
	c := g.counters[l.id]
	if c == nil {
		if len(g.counters) >= g.sweepAt {
			g.sweep(now)
		}
		c = &counter{at: now.mono, limit: l, amount: amount}
		g.counters[l.id] = c
	}
	c.roll(l, amount, now)
	return c
}

// sweep drops counters that are as new.
func (g *group) sweep(now instant) {
	for id, c := range g.counters {
		if c.open == 0 {
			c.roll(c.limit, c.amount, now)
			if c.idle() {
				delete(g.counters, id)
			}
		}
	}
	g.sweepAt = max(fewCounters, 2*len(g.counters))
}

// Reserve implements [Store].
func (m *memory) Reserve(_ context.Context, r *Reservation) (*Refusal, error) {
	now, g := m.now(), m.group(r.group)
	g.mu.Lock()
	defer g.mu.Unlock()
	var refusal *Refusal
	for i := range r.entries {
		e := &r.entries[i]
		l, amount := e.limit, e.limit.allows(m.standsIn)
		e.counter = g.of(l, amount, now)
		e.over = false
		if m.standsIn && !l.open {
			if !l.shadow {
				refusal = refusal.or(&Refusal{Limit: l, Needed: e.amount, Away: true})
			}
			continue
		}
		wait, ok := e.counter.room(l, amount, e.amount, now)
		switch {
		case ok:
		case l.shadow:
			e.over = true
		default:
			refusal = refusal.or(&Refusal{
				Limit: l, Needed: e.amount, Left: max(amount-e.counter.used, 0), Wait: max(wait, 0), TooLarge: wait == never,
			})
		}
	}
	if refusal != nil {
		return refusal, nil
	}
	for i := range r.entries {
		e := &r.entries[i]
		amount := e.limit.allows(m.standsIn)
		e.window = e.counter.add(e.limit, e.amount)
		e.counter.open++
		e.used, e.reset = e.counter.used, e.counter.reset(e.limit, amount, now)
	}
	return nil, nil
}

// or is the refusal that keeps a request away the longest.
func (f *Refusal) or(g *Refusal) *Refusal {
	if f == nil || rank(g) > rank(f) || rank(g) == rank(f) && g.Wait > f.Wait {
		return g
	}
	return f
}

func rank(f *Refusal) int {
	switch {
	case f.TooLarge:
		return 2
	case f.Away:
		return 1
	}
	return 0
}

// Settle implements [Store].
func (m *memory) Settle(_ context.Context, s *Settlement) error {
	// What is given back may be taken off before what has flowed off since: only a
	// debt needs the time.
	var now instant
	for i := range s.entries {
		if s.actual[i] > s.entries[i].amount {
			now = m.now()
			break
		}
	}
	g := m.group(s.group)
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range s.entries {
		e := &s.entries[i]
		if e.counter == nil {
			continue
		}
		if s.actual[i] > e.amount {
			e.counter.roll(e.limit, e.limit.allows(m.standsIn), now)
		}
		e.counter.settle(e.limit, e.amount, s.actual[i], e.window)
		e.counter.open--
		e.counter = nil
	}
	return nil
}

// Renew implements [Store]: what ends with the process needs no lease.
func (m *memory) Renew(context.Context, []Lease) ([]Lease, error) { return nil, nil }

// Usage implements [Store].
func (m *memory) Usage(_ context.Context, name string, limits []*Limit) ([]State, error) {
	out := make([]State, len(limits))
	now := m.now()
	var g *group
	if v, ok := m.groups.Load(name); ok {
		g = v.(*group)
		g.mu.Lock()
		defer g.mu.Unlock()
	}
	for i, l := range limits {
		out[i].Limit = l
		if g == nil || g.counters[l.id] == nil {
			continue
		}
		c := g.of(l, l.amount, now)
		out[i].Used, out[i].Reserved, out[i].Reset = c.used, c.reserved, c.reset(l, l.amount, now)
	}
	return out, nil
}

// Close implements [Store].
func (m *memory) Close() error { return nil }
