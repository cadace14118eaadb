// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync"
	"sync/atomic"
)

// Member is one model server. Its methods are safe for concurrent use and,
// but for Report and SetMetrics, lock-free.
type Member struct {
	address string
	pool    *Pool
	labels  atomic.Pointer[map[string]string]
	metrics atomic.Pointer[Metrics]
	health  atomic.Pointer[health] // nil: ready
	epoch   atomic.Uint64
	lacks   atomic.Uint32 // Signals that were there, or should be, and are not

	refused   atomic.Bool  // the last connection could not be made
	failures  atomic.Int32 // in a row, short of refused; written under Pool.mu
	published State        // in the snapshot's version; under Pool.mu

	lastScrape atomic.Pointer[scrapeFailure] // nil: it went well, or there was none

	pageMu  sync.Mutex
	seen    Signals // ever on a page; under pageMu
	witness witness // under pageMu

	load load
}

// Address is host:port in canonical form: lower case, IPv6 in brackets.
func (m *Member) Address() string { return m.address }

// Labels are the configured labels; may be nil. Read only.
func (m *Member) Labels() map[string]string { return *m.labels.Load() }

// Metrics is the last good page; nil when there never was one (unknown).
func (m *Member) Metrics() *Metrics { return m.metrics.Load() }

// Stale says that there is a page and that it is older than the pool's bound:
// Metrics.Stale, or three effective scrape intervals if that is longer.
func (m *Member) Stale() bool {
	x := m.metrics.Load()
	return x != nil && m.pool.now().Sub(x.At) > m.pool.staleAfter()
}

// SetMetrics is what the scraper calls; tests and virtual time call it too.
// The member owns x from now on. nil makes the member unknown again.
func (m *Member) SetMetrics(x *Metrics) { m.setPage(x, 0, witness{}) }

// Epoch changes when the server behind the address has restarted (a counter
// ran backwards, or it refused and then accepted): its cache is gone.
func (m *Member) Epoch() uint64 { return m.epoch.Load() }

// witness is what tells a restarted server by its page: counters that only
// grow, and the start of the process.
type witness struct {
	has    uint8 // bits by index
	values [5]float64
}

// The values of a witness.
const (
	prefixQueries = iota
	prefixHits
	promptTokens
	outputTokens
	processStart
)

func (w *witness) set(i int, v float64) {
	w.has |= 1 << i
	w.values[i] = v
}

// advance takes over the values of now and says whether they are from another
// process: a counter ran backwards, or the start changed. A value that is not
// on the page says nothing, and is remembered.
func (w *witness) advance(now witness) (restarted bool) {
	for i, v := range now.values {
		if now.has&w.has&(1<<i) == 0 {
			continue
		}
		if v < w.values[i] || i == processStart && v != w.values[i] {
			*w = now
			return true
		}
	}
	for i, v := range now.values {
		if now.has&(1<<i) != 0 {
			w.set(i, v)
		}
	}
	return false
}

// setPage takes over a page, on which expected should be, and what else it
// witnesses. At most one change of epoch comes of it.
func (m *Member) setPage(x *Metrics, expected Signals, w witness) {
	var has Signals
	m.pageMu.Lock()
	if x == nil {
		m.seen = 0
		m.witness = witness{}
	} else {
		has = x.Has
		m.seen |= has
		if has&HasPrefix != 0 {
			w.set(prefixQueries, x.PrefixQueries)
			w.set(prefixHits, x.PrefixHits)
		}
		if m.witness.advance(w) {
			m.epoch.Add(1)
		}
	}
	m.metrics.Store(x)
	lacks := (m.seen | expected) &^ has
	m.pageMu.Unlock()
	m.setLacks(lacks)
}

// emptyPage notes an answer without one signal. The last good page stays, and
// grows stale.
func (m *Member) emptyPage(expected Signals) {
	m.pageMu.Lock()
	lacks := m.seen | expected
	m.pageMu.Unlock()
	m.setLacks(lacks)
}

func (m *Member) setLacks(s Signals) {
	if m.lacks.Swap(uint32(s)) != uint32(s) {
		m.pool.noteLacks(m)
	}
}

// restarted says that another process listens at the address. The counters of
// the old one are no measure for the new one's.
func (m *Member) restarted() {
	m.pageMu.Lock()
	defer m.pageMu.Unlock()
	m.witness = witness{}
	m.epoch.Add(1)
}

// forget voids all but the charges. Pool.mu is held.
func (m *Member) forget() {
	m.restarted()
	m.metrics.Store(nil)
	m.lacks.Store(0)
	m.health.Store(nil)
	m.failures.Store(0)
	m.refused.Store(false)
	m.published = Ready
}

// noteLacks reports a signal in the log when the first member comes to lack
// it, and again when none does any more. In between only the gauge speaks.
func (p *Pool) noteLacks(m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLacksLocked(m.address)
}

func (p *Pool) noteLacksLocked(member string) {
	var lacking Signals
	for _, other := range p.snapshot.Load().Members {
		lacking |= Signals(other.lacks.Load())
	}
	if lost := lacking &^ p.lacking; lost != 0 {
		p.log.Warn("metrics page lacks a signal; the gateway's own counts stand in", "signals", lost.String(), "member", member)
	}
	if found := p.lacking &^ lacking; found != 0 {
		p.log.Info("no metrics page lacks the signal any more", "signals", found.String())
	}
	p.lacking = lacking
}
