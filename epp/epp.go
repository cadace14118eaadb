// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package epp chooses an endpoint for a request: a profile of filters, scorers
// and a picker over a snapshot of the pool.
//
// The seam is [Picker], one method. [Scheduler] is the picker in this process;
// a picker elsewhere implements the same method. A picker proposes: whoever
// dials checks that the endpoint is a member of the pool at that moment.
//
// Start reading at [Scheduler.Pick]; what a profile may be made of is the table
// in plugins.go, the default's formula is in cost.go, the prefix index in
// prefix.go. A new scorer is a function and a row. Package pool says what is
// known of a member, package proxy dials.
//
// Always true: scoring never blocks and reads an immutable snapshot; what a
// pick charges is settled exactly once.
package epp

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// Picker chooses endpoints for one request. Pick may wait for admission or for
// a remote answer, bounded by ctx; it returns an error only when it could not
// decide. A decision to refuse is a Result with a Denial.
type Picker interface {
	Pick(ctx context.Context, r *Request) (*Result, error)
}

// Request is what a picker may know of a request. Read only.
type Request struct {
	ID        string
	Method    string
	Host      string
	Path      string
	Header    http.Header // the client's; nil is allowed
	Op        llm.Op
	Model     string // as the server will see it: the base model or an adapter
	Asked     string // as the client named it; shown, not used
	Prompt    *llm.Prompt
	CacheSalt string
	MaxTokens int // output bound; 0: none
	Stream    bool
	// Body is the body as it would be sent, made when it is asked for; nil:
	// there is none to be had.
	Body   func() []byte
	Subset []string // only these endpoints (host:port); nil: the whole pool
	Tried  []string // endpoints that have failed this request already
}

// Result is a decision.
type Result struct {
	Endpoints []string    // host:port, best first; empty only with a Denial
	Header    HeaderEdits // for the request to the endpoint
	Body      []byte      // replaces the request's body; nil: keep it
	Denial    *Denial     // refuse instead of dialling
	Observer  Observer    // told of the answer as it passes; may be nil
	Edits     bool        // Observer may edit an answer's head
	// Evicted ends when the picker withdraws the request; nil: never. Its cause
	// may be an *[Eviction].
	Evicted context.Context
	Reason  string // one word for the metric: picked, saturated, no-endpoints, …
	// OnDone settles what the pick charged. Call Done, not this.
	OnDone func(Outcome)

	done atomic.Bool
}

// Done settles the pick, exactly once however often it is called. Every
// Result must be settled, denials too.
func (r *Result) Done(o Outcome) {
	if r != nil && !r.done.Swap(true) && r.OnDone != nil {
		r.OnDone(o)
	}
}

// Outcome is how the exchange ended.
type Outcome struct {
	Usage llm.Usage
	Err   error // nil: the client got a whole answer
}

// HeaderEdits are applied removal first, then Set in order (later wins).
type HeaderEdits struct {
	Remove []string
	Set    []HeaderValue
}

// HeaderValue is one header to set. It replaces what is there, unless it says
// Append.
type HeaderValue struct {
	Name, Value string
	Append      bool
}

// Denial is a refusal by decision.
type Denial struct {
	Status int
	Header http.Header
	Body   []byte // nil: the gateway shapes an error from Reason and Detail
	Detail string // per candidate, who refused and why
}

// Error is the refusal in the client's dialect; reason is the result's. What
// Detail says of the members is not in it.
func (d *Denial) Error(reason string) *llm.Error {
	e := &llm.Error{
		Status: d.Status, Type: "server_error", Code: reason, Header: d.Header,
		Message: "the endpoint picker refused the request: " + reason,
	}
	if d.Status == http.StatusTooManyRequests {
		e.Type = "rate_limit_error"
	}
	return e
}

// Eviction is why a request was withdrawn: a refusal that came late.
type Eviction struct{ Denial *Denial }

func (e *Eviction) Error() string { return "the endpoint picker withdrew the request" }

// Observer hears of the exchange in this order: Attempt (again for each
// further member tried), Served if that was another member, Head once, Chunk as
// the answer passes, End. One goroutine at a time. It must return at once.
type Observer interface {
	Attempt(m *pool.Member) // the request is sent to m now
	// Served is for who learns only from the answer that another gateway took
	// m: the request was sent at the last Attempt, or at the pick.
	Served(m *pool.Member)
	Head(status int, header http.Header) // may edit header
	Chunk(data []byte, tokens int)       // tokens: how many output tokens data carried
	End(trailer http.Header)
}

// WholeObserver is an Observer that can do with less if it learns of the end
// with the head. Whole is called in place of Head for an answer that is there as
// a whole; Chunk and End follow as ever.
type WholeObserver interface {
	Observer
	Whole(status int, header http.Header, u llm.Usage)
}
