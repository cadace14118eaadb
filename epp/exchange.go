// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// decision is a result with its observer, one allocation.
type decision struct {
	result    Result
	exchange  exchange
	endpoints [defaultEndpoints]string
}

// exchange holds what a pick has charged until it is settled, and learns from
// the answer as it passes. It is the result's Observer; its lock makes Done
// safe beside it.
//
// A pick whose request was never sent (no Attempt, Served, Head or Chunk) leaves no
// trace in the index: what it added and nobody has used since is withdrawn.
type exchange struct {
	s      *Scheduler
	chains chains
	prompt int // tokens
	pick   uint32
	op     llm.Op
	stream bool

	session    *sessionParams
	sessionKey uint64

	mu      sync.Mutex
	t       *tracked // nil: a member that the scheduler does not know
	m       *pool.Member
	holder  *holder
	charge  *pool.Charge
	matched int // tokens predicted cached on m
	at      sample
	sent    time.Time // before that, when it was picked for
	heard   bool      // the request was sent
	began   bool      // the first token has come
	settled bool
	chunks  int // with tokens
	output  int // tokens
	last    time.Time
}

// take charges m. t is what is kept of m, or nil. c are the chains; first: this
// is the pick's own choice, which counts as a request in the index.
func (e *exchange) take(t *tracked, m *pool.Member, matched int, c *chains, now tick, first bool) {
	e.t, e.m, e.matched, e.holder = t, m, matched, nil
	load := m.Load()
	uncached := max(0, e.prompt-matched)
	e.at = sample{
		uncached: float64(uncached),
		queued:   float64(load.Queued),
		decode:   e.s.fleet.constants().decodeLoad(float64(load.Requests), float64(load.Context)),
	}
	e.charge = m.Charge(uncached, e.prompt)
	if t != nil {
		e.holder = t.holder.Load()
		e.s.index.insert(e.holder, c, e.pick, now, first)
		if e.session != nil && e.sessionKey != 0 {
			e.s.session.bind(e.sessionKey, t.token, e.s.now())
		}
	}
}

// Attempt says that the request is sent to m now.
func (e *exchange) Attempt(m *pool.Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settled || m == nil {
		return
	}
	now := e.s.now()
	e.move(m, now)
	e.sent, e.heard, e.began = now, true, false
}

// Served says that m has the request since it was sent.
func (e *exchange) Served(m *pool.Member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settled || m == nil {
		return
	}
	e.move(m, e.s.now())
	e.heard = true
}

// move lets the charge and the index follow the request to m. The lock is held.
func (e *exchange) move(m *pool.Member, now time.Time) {
	if m == e.m {
		return
	}
	e.charge.Release()
	e.s.index.withdraw(e.holder, &e.chains, e.pick)
	t, matched := e.s.find(m), 0
	if t != nil {
		matched = min(e.prompt, e.s.index.depth(t.holder.Load(), &e.chains)*blockTokens)
	}
	e.take(t, m, matched, &e.chains, e.s.tick(now), false)
}

// Head adds the session token.
func (e *exchange) Head(status int, header http.Header) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = true
	if e.session != nil && e.session.echo && e.t != nil && header != nil && status < http.StatusBadRequest {
		header.Set(e.session.header, strconv.FormatUint(e.t.token, 16))
	}
}

// Chunk counts output and measures. The first token ends the wait of the
// prompt; it is a sample of the member's speed when the answer is a stream (else
// it comes with the last).
func (e *exchange) Chunk(_ []byte, tokens int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = true
	if tokens <= 0 || e.settled {
		return
	}
	e.chunks++
	e.output += tokens
	e.charge.Output(tokens)
	if !e.began {
		e.began = true
		e.charge.FirstToken()
		e.chunks = 1
		if e.stream && e.t != nil && !e.short() {
			e.s.fleet.firstToken(e.t.speed, e.s.now().Sub(e.sent), e.at)
		}
		return
	}
	if !e.stream || e.t == nil {
		return
	}
	// One gap of every gapEvery is measured: two clock readings for eight chunks.
	switch e.chunks % gapEvery {
	case gapEvery - 1:
		e.last = e.s.now()
	case 0:
		load := e.m.Load()
		decode := e.s.fleet.constants().decodeLoad(float64(load.Requests), float64(load.Context))
		e.s.fleet.tokenGap(e.t.speed, e.s.now().Sub(e.last)/time.Duration(tokens), decode)
	}
}

// short says that the member's queue waits for KV memory: what it takes then
// says nothing about its speed.
func (e *exchange) short() bool {
	page := e.m.Metrics()
	const need = pool.HasWaiting | pool.HasKVUsage
	return page != nil && page.Has&need == need && page.Waiting > 0 && page.KVUsage > 0.9
}

// End says that the answer has passed.
func (e *exchange) End(http.Header) {}

// settle releases everything.
func (e *exchange) settle(o Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settled {
		return
	}
	e.settled = true
	e.charge.Release()
	if !e.heard {
		e.s.index.withdraw(e.holder, &e.chains, e.pick)
		return
	}
	switch e.op {
	case llm.OpChat, llm.OpCompletions, llm.OpResponses:
		if o.Err == nil {
			output := o.Usage.Completion()
			if output == 0 {
				output = e.output
			}
			e.s.fleet.ended(output)
		}
	}
	if o.Usage.Reported() && e.t != nil {
		e.s.metrics.cached(e.matched, o.Usage.CacheRead)
		if e.t.trust.reported(e.matched, o.Usage.CacheRead) {
			e.s.log.Warn("member reports none of the cached tokens predicted; its prefix matches count for nothing until it does",
				"pool", e.s.pool.Config().Name, "endpoint", e.t.address)
		}
	}
}

// trust compares the cached tokens predicted of a member with those it reports.
// A member that once reported some and then none of what was predicted over
// trustWindow requests has lost its cache or hashes otherwise: its matches
// count for nothing until it reports some again. One that never reports any
// (engines do not by default) is believed.
type trust struct {
	off       atomic.Bool
	mu        sync.Mutex
	ever      bool
	requests  int // in this window, with a prediction
	confirmed bool
}

const trustWindow = 100

func (t *trust) lost() bool { return t.off.Load() }

// reported takes one answer; it returns true when trust is lost by it.
func (t *trust) reported(predicted, cached int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cached > 0 {
		t.ever, t.confirmed = true, true
		t.off.Store(false)
	}
	if predicted == 0 {
		return false
	}
	if t.requests++; t.requests < trustWindow {
		return false
	}
	lost := t.ever && !t.confirmed && !t.off.Load()
	if lost {
		t.off.Store(true)
	}
	t.requests, t.confirmed = 0, false
	return lost
}

func (t *trust) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ever, t.confirmed, t.requests = false, false, 0
	t.off.Store(false)
}

// session is what a request says of its session.
type session struct {
	key   uint64 // of a session id; 0: none
	bound uint64 // token of the member it is bound to; 0: none
}

// bind reads the request's session.
func (v *view) bind(s *Scheduler, p *Profile) {
	v.session = session{}
	if p.session == nil || v.r.Header == nil {
		return
	}
	value := v.r.Header.Get(p.session.header)
	if p.session.cookie != "" {
		value = cookie(v.r.Header, p.session.cookie)
	}
	if value == "" {
		return
	}
	if p.session.echo {
		v.session.bound, _ = strconv.ParseUint(value, 16, 64)
		return
	}
	v.session.key = max(1, xxhash.Sum64String(value))
	v.session.bound = s.session.get(v.session.key, v.now, p.session.ttl)
}

func cookie(h http.Header, name string) string {
	c, err := (&http.Request{Header: h}).Cookie(name)
	if err != nil {
		return ""
	}
	return c.Value
}

// sessions remembers the member of each session id in two generations of at
// most sessionGeneration each, some 5 MiB in all. The zero value is ready.
type sessions struct {
	mu       sync.Mutex
	now, old map[uint64]binding
}

type binding struct {
	token uint64
	at    int64 // Unix seconds
}

const sessionGeneration = 1 << 16

func (s *sessions) get(key uint64, now time.Time, ttl time.Duration) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.now[key]
	if !ok {
		b, ok = s.old[key]
	}
	if !ok || now.Unix()-b.at > int64(ttl/time.Second) {
		return 0
	}
	return b.token
}

func (s *sessions) bind(key, token uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.now[key]; !ok && len(s.now) >= sessionGeneration || s.now == nil {
		s.now, s.old = map[uint64]binding{}, s.now
	}
	s.now[key] = binding{token, now.Unix()}
}
