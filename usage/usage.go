// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package usage says what one request cost: one [Record] per request,
// rejections included, and the sink it goes to.
//
// It leaves counting tokens to package llm and the metrics of requests to
// package proxy. Start reading at [Record]; a [Log] writes records as JSON
// lines. [Prices] is the price table, [Price.Cost] the arithmetic.
//
// Always true: [Log.Emit] never blocks and never fails; a record that cannot
// be kept is dropped and counted.
package usage

import "time"

// Record is what is known of one request when it has ended. Times are in
// seconds; a zero that means "not reached" is left out of the JSON.
type Record struct {
	Time       time.Time `json:"time"` // when the request came in
	RequestID  string    `json:"requestId"`
	Listener   string    `json:"listener"`
	Route      string    `json:"route,omitempty"`
	Rule       string    `json:"rule,omitempty"` // of an HTTP route, if it has a name
	Client     string    `json:"client"`         // address
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Operation  string    `json:"operation,omitempty"` // of the model API; empty on HTTP routes
	ModelAsked string    `json:"modelAsked,omitempty"`
	ModelUsed  string    `json:"modelUsed,omitempty"`
	Trace      Trace     `json:"trace,omitzero"`
	Routing
	Pool string `json:"pool,omitempty"`
	Picking
	Attempts   int    `json:"attempts"`
	Stream     bool   `json:"stream"`
	Status     int    `json:"status"` // as sent; 499: the client left
	ErrorClass string `json:"errorClass,omitempty"`
	Error      string `json:"error,omitempty"`
	Spending
	Finish string `json:"finishReason,omitempty"`
	Timing
	Traffic
	Work
}

// Work is what a client says of whom a request is for, and of the task that it is
// part of.
type Work struct {
	User    string `json:"user,omitempty"`        // the end user, where a tenant tells them apart
	Task    string `json:"task,omitempty"`        // id
	Outcome string `json:"taskOutcome,omitempty"` // of the task: success, failure
}

// Picking is which member of a pool was chosen.
type Picking struct {
	Picked      string `json:"endpointPicked,omitempty"` // the picker's first choice
	Served      string `json:"endpointServed,omitempty"` // who answered: a member, or the account at a provider
	PickOutcome string `json:"pickOutcome,omitempty"`    // picked, fallback-…, refused-…
}

// Routing is who asked, and how it was decided who serves.
type Routing struct {
	Tenant   string    `json:"tenant,omitempty"`
	Key      string    `json:"key,omitempty"` // its name
	Tier     string    `json:"tier,omitempty"`
	Alias    string    `json:"alias,omitempty"` // the model that the name asked for stood for
	Provider string    `json:"provider,omitempty"`
	Fallback string    `json:"fallback,omitempty"` // the class of failures, and the one that led to it
	Tries    []Attempt `json:"tries,omitempty"`    // the attempts at models, at most 32 of them
	Bound    string    `json:"bound,omitempty"`    // the key that allowed no further attempt, although somebody was left to ask
	Skipped  []Skipped `json:"skipped,omitempty"`  // targets that could not serve the request, or were out
	Dropped  []string  `json:"dropped,omitempty"`  // parameters that the target has no word for
	Limiting
}

// Limiting is what limits had to say.
type Limiting struct {
	Limit  string   `json:"limit,omitempty"`       // that refused the request: its node, amount, unit and window
	Warned []string `json:"limitWarned,omitempty"` // limits of which more than their soft threshold is in use
	Shadow []string `json:"limitShadow,omitempty"` // limits in shadow mode that would have refused the request
}

// Attempt is one attempt at a target.
type Attempt struct {
	Target  string  `json:"target"`
	Server  string  `json:"server,omitempty"`      // the member of a pool, or the account at a provider
	System  string  `json:"system,omitempty"`      // who speaks there, as gen_ai.provider.name; a pool's engine
	Error   string  `json:"error,omitempty"`       // "": it answered
	At      float64 `json:"atSeconds"`             // when it began, after the request came in
	Pick    float64 `json:"pickSeconds,omitempty"` // that the picker took before it
	Seconds float64 `json:"seconds"`               // until the answer began, or failed
	Used    *Used   `json:"used,omitempty"`        // nil: nothing
}

// Used is what one attempt used, and what that costs.
type Used struct {
	Counts Counts `json:"tokens"`
	Cost   Cost   `json:"costUSD"`
}

// Skipped is a target that was left out, and why.
type Skipped struct {
	Target string `json:"target"`
	Reason string `json:"reason"`
}

// Timing is how long it took.
type Timing struct {
	Read    float64 `json:"readSeconds,omitempty"`    // until the client's body was there
	Reserve float64 `json:"reserveSeconds,omitempty"` // that the limits took to be asked
	TTFT    float64 `json:"ttftSeconds,omitempty"`
	TPOT    float64 `json:"tpotSeconds,omitempty"` // mean time per output token after the first
	Total   float64 `json:"totalSeconds"`
}

// Traffic is the bytes of the bodies.
type Traffic struct {
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
}
