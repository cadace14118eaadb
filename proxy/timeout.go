// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"sync/atomic"
	"time"
)

// phase is the one timer of an attempt: it cancels the attempt with the cause
// of the phase that ran out. Moving the deadline forward, which happens once
// per chunk of a stream, is an atomic store; the timer looks at the deadline
// when it fires and sleeps on if it has moved.
type phase struct {
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	start    time.Time // deadlines are counted from here, monotonic
	total    time.Duration
	deadline atomic.Int64 // nanoseconds after start
	cause    atomic.Pointer[error]
	over     *error // the cause when the total is over
}

// newPhase starts in phase cause with limit; total bounds all phases together,
// and over is the cause when it does.
func newPhase(cancel context.CancelCauseFunc, cause *error, limit, total time.Duration, over *error) *phase {
	p := &phase{cancel: cancel, start: time.Now(), total: total, over: over}
	p.cause.Store(cause)
	first := min(limit, total)
	p.deadline.Store(int64(first))
	p.timer = time.AfterFunc(first, p.fire)
	return p
}

// enter begins a phase, limit from now on.
func (p *phase) enter(cause *error, limit time.Duration) {
	end := min(time.Since(p.start)+limit, p.total)
	earlier := int64(end) < p.deadline.Load()
	p.deadline.Store(int64(end))
	p.cause.Store(cause) // after the deadline, or the old one could run out under the new name
	if earlier {
		p.timer.Reset(max(0, end-time.Since(p.start)))
	}
}

// extend gives the phase limit from now on.
// It moves in steps of a sixteenth of limit, but for the last one, to total:
// a deadline left a step before it would blame this phase, and too early.
func (p *phase) extend(now time.Time, limit time.Duration) {
	end, was := min(now.Sub(p.start)+limit, p.total), time.Duration(p.deadline.Load())
	if end-was > limit/16 || end == p.total && was < end {
		p.deadline.Store(int64(end))
	}
}

func (p *phase) stop() { p.timer.Stop() }

func (p *phase) fire() {
	cause := p.cause.Load() // before the deadline, as enter stores them: a new cause has a new deadline
	end := time.Duration(p.deadline.Load())
	if left := end - time.Since(p.start); left > 0 {
		p.timer.Reset(left)
		if p.deadline.Load() < int64(end) { // enter has set the timer to an earlier end, before or after this did to the later one
			p.timer.Reset(0)
		}
		return
	}
	if end >= p.total {
		cause = p.over
	}
	p.cancel(*cause)
}
