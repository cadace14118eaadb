// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/epp"
)

// traces are the newest picks, for explanations: at most maxTraces.
type traces struct {
	mu   sync.Mutex
	ring []*trace
	next int
}

const maxTraces = 1024

// trace is what became of one pick.
type trace struct {
	mu sync.Mutex
	e  epp.Explanation
}

func (s *traces) begin(r *epp.Request, pool, picker string) *trace {
	t := &trace{e: epp.Explanation{
		RequestID: r.ID, At: time.Now(), Pool: pool, Model: r.Model, Asked: r.Asked, PromptTokens: r.Prompt.Tokens(),
		Remote: &epp.RemotePick{Picker: picker},
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) < maxTraces {
		s.ring = append(s.ring, t)
	} else {
		s.ring[s.next%maxTraces] = t
	}
	s.next++
	return t
}

func (s *traces) count() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(s.next)
}

func (s *traces) newest(yield func(*trace) bool) {
	s.mu.Lock()
	list := make([]*trace, 0, len(s.ring))
	for i := range s.ring {
		list = append(list, s.ring[(s.next-1-i+2*maxTraces)%len(s.ring)])
	}
	s.mu.Unlock()
	for _, t := range list {
		if !yield(t) {
			return
		}
	}
}

func (s *traces) recent(n int) (out []*epp.Explanation) {
	s.newest(func(t *trace) bool {
		if len(out) < n {
			out = append(out, t.explanation())
		}
		return len(out) < n
	})
	return out
}

func (s *traces) find(id string) (found *epp.Explanation) {
	s.newest(func(t *trace) bool {
		if e := t.explanation(); e.RequestID == id {
			found = e
		}
		return found == nil
	})
	return found
}

func (t *trace) explanation() *epp.Explanation {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.e
	remote := *t.e.Remote
	remote.Attempts = slices.Clone(remote.Attempts)
	e.Remote = &remote
	return &e
}

func (t *trace) note(f func(e *epp.Explanation, since time.Duration)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.e, time.Since(t.e.At))
}

func (t *trace) asks(replica string) {
	t.note(func(e *epp.Explanation, since time.Duration) {
		e.Remote.Replica = replica
		e.Remote.Asked = since
	})
}

// answered notes what the picker said; outcome and list are what becomes of it.
func (t *trace) answered(res *epp.Result, strangers []string, outcome string, list []string) {
	t.note(func(e *epp.Explanation, since time.Duration) {
		e.Took, e.Reason, e.Picked = since, outcome, list
		e.Remote.Answered, e.Remote.NotMembers = since, strangers
		e.Remote.BodyReplaced, e.Remote.HeaderEdits = res.Body != nil, len(res.Header.Remove)+len(res.Header.Set)
		if res.Denial != nil {
			e.Remote.Status = res.Denial.Status
		}
	})
}

// failed notes a failure; outcome and list are what becomes of the request.
func (t *trace) failed(why string, err error, outcome string, list []string) {
	t.note(func(e *epp.Explanation, since time.Duration) {
		e.Took, e.Reason, e.Picked = since, outcome, list
		e.Remote.Failed, e.Remote.Failure = since, why+": "+err.Error()
	})
}

func (t *trace) attempts(address string) {
	t.note(func(e *epp.Explanation, since time.Duration) {
		if len(e.Remote.Attempts) < maxAttempts {
			e.Remote.Attempts = append(e.Remote.Attempts, epp.RemoteAttempt{Endpoint: address, At: since})
		}
	})
}

const maxAttempts = 16 // kept of one pick

func (t *trace) served(address string) {
	t.note(func(e *epp.Explanation, since time.Duration) { e.Remote.Served, e.Remote.ServedAt = address, since })
}

// servedLast says that the member it was sent to last answers.
func (t *trace) servedLast() {
	t.note(func(e *epp.Explanation, since time.Duration) {
		if n := len(e.Remote.Attempts); n > 0 {
			e.Remote.Served, e.Remote.ServedAt = e.Remote.Attempts[n-1].Endpoint, since
		}
	})
}
