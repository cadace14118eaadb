// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "sync/atomic"

// Load is the gateway's own count on a member. It changes at the moment of a
// pick, so the next pick sees it; no scrape is involved.
type Load struct {
	Requests int64 `json:"requests"` // in flight
	Queued   int64 `json:"queued"`   // uncached prompt tokens sent whose answer has not begun
	Context  int64 `json:"context"`  // prompt tokens in flight plus tokens streamed to them so far
}

// load is a Load in the making. It sits on cache lines of its own: every
// request writes here, every pick reads the fields around it.
type load struct {
	_        [64]byte
	requests atomic.Int64
	queued   atomic.Int64
	context  atomic.Int64
	_        [64]byte
}

// add moves a counter. Charges give back exactly what they took, so no counter
// can fall below zero; builds with the race detector check it.
func add(c *atomic.Int64, n int64) {
	if v := c.Add(n); checked && v < 0 {
		panic("pool: a load counter fell below zero")
	}
}

// Load is the gateway's own count.
func (m *Member) Load() Load {
	return Load{
		Requests: max(0, m.load.requests.Load()),
		Queued:   max(0, m.load.queued.Load()),
		Context:  max(0, m.load.context.Load()),
	}
}

// Charge is what one exchange holds on one member. Its methods may be called
// from one goroutine at a time; Release is idempotent. It holds the member
// itself, so it settles rightly after the member has left the pool. A nil
// Charge counts nothing.
type Charge struct {
	member          *Member
	queued, context int64 // what Release still has to give back
	released        bool
}

// Charge counts one exchange on the member, at once: uncached prompt tokens
// queued and prompt tokens of context. Negative numbers count as zero.
func (m *Member) Charge(uncached, prompt int) *Charge {
	c := &Charge{member: m, queued: int64(max(0, uncached)), context: int64(max(0, prompt))}
	add(&m.load.requests, 1)
	add(&m.load.queued, c.queued)
	add(&m.load.context, c.context)
	return c
}

// FirstToken says that the answer has begun: the queued tokens are worked off.
func (c *Charge) FirstToken() {
	if c != nil && c.queued != 0 {
		add(&c.member.load.queued, -c.queued)
		c.queued = 0
	}
}

// Output counts n more tokens streamed.
func (c *Charge) Output(n int) {
	if c != nil && n > 0 && !c.released {
		c.context += int64(n)
		add(&c.member.load.context, int64(n))
	}
}

// Release gives everything back. Later calls of any method do nothing.
func (c *Charge) Release() {
	if c == nil || c.released {
		return
	}
	c.FirstToken()
	c.released = true
	add(&c.member.load.context, -c.context)
	add(&c.member.load.requests, -1)
}
