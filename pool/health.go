// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"time"
)

// Passive health.
//
// What ejects: a refused connection at once, since nobody is there; resets,
// 5xx answers and missing first bytes after Ejection.Failures in a row. An
// answer below 500 clears the row. A time out begins at Base and doubles up to
// Max as long as the member fails again before it has fully returned.
//
// How many: MaxPercent bounds ejections for failures short of a refused
// connection, counted over every member that is out for any reason. Servers
// that answer badly are better than none, and a pool of one is never emptied
// by its own 5xx. Refused connections know no bound and there is no panic
// rule: where every member refuses, no member is available, and the caller
// says 503 with Retry-After rather than dialling into the void.
//
// How it ends: by time, computed from the clock whenever it is asked for, so
// no timer can be late. The member is then Returning: its share rises from 0.1
// to 1 over SlowReturn, and until its first good answer it is on trial, where
// one failure is enough. A member that was refused comes back as soon as a
// fresh connection of the scraper or the prober is accepted, and stays out for
// as long as those are refused: their dial is the trial that costs no client.
//
// Scraping judges nothing but the dial. A refused dial to the scrape path is
// the fact that the next request would meet, same address and port, and counts
// as Refused; a page that is late, broken or missing never ejects.
//
// Everything here is written under Pool.mu; readers load one pointer.

// State says whether a member may be picked.
type State uint8

// The states of a member.
const (
	Ready     State = iota
	Returning       // back from ejection, at a reduced share (see Member.Share)
	Ejected         // out after failures
	Down            // the active probe says so
)

// String is the state in lower case, as in metrics and the status.
func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case Returning:
		return "returning"
	case Ejected:
		return "ejected"
	case Down:
		return "down"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Outcome is what an attempt at a member came to, for passive health.
type Outcome uint8

// The outcomes of an attempt.
const (
	OK          Outcome = iota // any answer below 500
	Refused                    // the connection could not be made
	Reset                      // the connection broke before the answer ended
	ServerError                // 5xx
	TimedOut                   // no first byte in time
)

// String is the outcome as in metrics and the status.
func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case Refused:
		return "refused"
	case Reset:
		return "reset"
	case ServerError:
		return "server_error"
	case TimedOut:
		return "timed_out"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// health is why a member is not simply ready. Immutable; nil is ready.
type health struct {
	down   bool      // the active probe says so; until then means nothing
	reason Outcome   // of the ejection; OK when it was the probe
	until  time.Time // end of the time out
	slow   time.Duration
	trips  int  // ejections in a row
	trial  bool // no good answer since the time out
}

const firstShare = 0.1

func (h *health) state(now time.Time) State {
	switch {
	case h == nil:
		return Ready
	case h.down:
		return Down
	case now.Before(h.until):
		return Ejected
	case now.Before(h.until.Add(h.slow)):
		return Returning
	}
	return Ready
}

func (h *health) share(now time.Time) float64 {
	switch h.state(now) {
	case Ready:
		return 1
	case Returning:
		return firstShare + (1-firstShare)*float64(now.Sub(h.until))/float64(h.slow)
	}
	return firstShare
}

// State is Ready, Returning, Ejected or Down.
func (m *Member) State() State {
	h := m.health.Load()
	if h == nil {
		return Ready // without asking the clock: the case of every pick
	}
	return h.state(m.pool.now())
}

// Available says whether the member may be picked: Ready or Returning.
func (m *Member) Available() bool { return m.State() <= Returning }

// Share is the part of its fair load that a returning member should get: 1
// when Ready, rising from 0.1 while Returning (and 0.1 for one that is out,
// should it be tried all the same).
func (m *Member) Share() float64 {
	h := m.health.Load()
	if h == nil {
		return 1
	}
	return h.share(m.pool.now())
}

// Report tells passive health what an attempt came to. An answer of the 4xx
// class is OK: it says that the server works.
func (m *Member) Report(o Outcome) {
	if o == OK && m.failures.Load() == 0 && m.health.Load() == nil && !m.refused.Load() {
		return
	}
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lists(m) {
		return
	}
	now := p.now()
	h := m.health.Load()
	state := h.state(now)
	out := state > Returning
	switch {
	case o == OK:
		m.failures.Store(0)
		if out {
			return // an exchange from before the ejection has ended well
		}
		p.acceptedLocked(m)
		if state == Returning && h.trial {
			passed := *h
			passed.trial = false
			m.health.Store(&passed)
		}
	case o == Refused:
		m.refused.Store(true)
		m.failures.Store(0)
		if state == Ejected && h.reason != Refused {
			worse := *h
			worse.reason = Refused
			m.health.Store(&worse)
		}
		if !out {
			p.ejectLocked(m, o, now)
		}
	case out:
		// Attempts from before the ejection fail late; they say nothing new.
	default:
		if o != TimedOut {
			p.acceptedLocked(m) // there was a connection
		}
		failures := int(m.failures.Add(1))
		if failures < p.cfg.Load().Ejection.Failures && !(state == Returning && h.trial) {
			return
		}
		if !p.mayEjectLocked(now) {
			p.opts.Metrics.ejectionBounded(p.name)
			return
		}
		p.ejectLocked(m, o, now)
	}
}

// mayEjectLocked says whether one more member may go out for a failure short
// of a refused connection.
func (p *Pool) mayEjectLocked(now time.Time) bool {
	members := p.snapshot.Load().Members
	out := 1
	for _, m := range members {
		if m.health.Load().state(now) > Returning {
			out++
		}
	}
	return out*100 <= p.cfg.Load().Ejection.MaxPercent*len(members)
}

func (p *Pool) ejectLocked(m *Member, reason Outcome, now time.Time) {
	e := p.cfg.Load().Ejection
	h := &health{reason: reason, slow: e.SlowReturn.D(), trips: 1, trial: true}
	if old := m.health.Load(); old.state(now) != Ready {
		h.trips = old.trips + 1
	}
	wait := e.Base.D()
	for i := 1; i < h.trips && wait < e.Max.D(); i++ {
		wait *= 2
	}
	wait = min(wait, e.Max.D())
	h.until = now.Add(wait)
	m.failures.Store(0)
	p.opts.Metrics.ejected(p.name, reason)
	p.log.Warn("member ejected", "member", m.address, "reason", reason.String(), "for", wait)
	p.setHealthLocked(m, h, now)
}

// setHealthLocked stores h and, if that changes the member's state, publishes
// a new snapshot. The health goroutine learns of the new deadline.
func (p *Pool) setHealthLocked(m *Member, h *health, now time.Time) {
	m.health.Store(h)
	if state := h.state(now); state != m.published {
		m.published = state
		p.publishLocked(p.snapshot.Load().Members)
	}
	select {
	case p.healthChanged <- struct{}{}:
	default:
	}
}

// acceptedLocked notes that a connection was made. If the last one was
// refused, another process listens now: what is known of its cache is void.
func (p *Pool) acceptedLocked(m *Member) {
	if m.refused.Swap(false) {
		m.restarted()
	}
}

// accepted is called when a fresh connection of the scraper or prober was
// accepted, not when an old one was used again: a server that drains keeps
// those open while it refuses new ones.
func (p *Pool) accepted(m *Member) {
	if !m.refused.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acceptedLocked(m)
	now := p.now()
	h := m.health.Load()
	if h.state(now) != Ejected || h.reason != Refused {
		return
	}
	back := *h
	back.until = now
	p.log.Info("member accepts connections again", "member", m.address)
	p.setHealthLocked(m, &back, now)
}

// dialRefused is called when the scraper or prober was refused. A member
// that is out stays out until well after the next dial.
func (p *Pool) dialRefused(m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lists(m) {
		return
	}
	now := p.now()
	h := m.health.Load()
	m.refused.Store(true)
	switch state := h.state(now); {
	case state == Down:
	case state == Ejected:
		longer := *h
		longer.reason = Refused
		// Longer than until the next dial, so that no request goes first.
		if until := now.Add(max(p.cfg.Load().Ejection.Base.D(), 3*slowest, 3*p.scrapeInterval())); until.After(h.until) {
			longer.until = until
		}
		p.setHealthLocked(m, &longer, now)
	default:
		p.ejectLocked(m, Refused, now)
	}
}

// probed sets or clears Down. A member that comes up returns slowly.
func (p *Pool) probed(m *Member, up bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lists(m) {
		return
	}
	now := p.now()
	h := m.health.Load()
	isDown := h != nil && h.down
	switch {
	case up && isDown:
		p.log.Info("member is up again", "member", m.address)
		p.setHealthLocked(m, &health{until: now, slow: p.cfg.Load().Ejection.SlowReturn.D(), trips: h.trips, trial: true}, now)
	case !up && !isDown:
		p.log.Warn("member is down", "member", m.address, "probe", why)
		down := &health{down: true}
		if h.state(now) != Ready {
			down.trips = h.trips
		}
		p.setHealthLocked(m, down, now)
	}
}

// forgetProbes brings back what only a probe that no longer runs holds down.
func (p *Pool) forgetProbesLocked(now time.Time) {
	for _, m := range p.snapshot.Load().Members {
		if h := m.health.Load(); h != nil && h.down {
			p.setHealthLocked(m, nil, now)
		}
	}
}

// settleLocked publishes the changes of state that time alone has brought and
// returns the moment of the next one; zero: none.
func (p *Pool) settleLocked(now time.Time) (next time.Time) {
	changed := false
	members := p.snapshot.Load().Members
	for _, m := range members {
		h := m.health.Load()
		state := h.state(now)
		if state != m.published {
			m.published = state
			changed = true
		}
		var turn time.Time
		switch state {
		case Ready:
			if h != nil {
				m.health.Store(nil)
			}
		case Ejected:
			turn = h.until
		case Returning:
			turn = h.until.Add(h.slow)
		}
		if !turn.IsZero() && (next.IsZero() || turn.Before(next)) {
			next = turn
		}
	}
	if changed {
		p.publishLocked(members)
	}
	return next
}

// watchHealth keeps the snapshot's version in step with states that change by
// time. The states themselves do not wait for it.
func (p *Pool) watchHealth(done <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.mu.Lock()
		now := p.now()
		next := p.settleLocked(now)
		p.mu.Unlock()
		wait := time.Hour
		if !next.IsZero() {
			wait = max(next.Sub(now), time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-done:
			return
		case <-timer.C:
		case <-p.healthChanged:
		}
	}
}
