// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package usage says what one request cost: one [Record] per request,
// rejections included, and the sink it goes to.
//
// It leaves counting tokens to package llm and the metrics of requests to
// package proxy. Start reading at [Record]; a [Log] writes records as JSON
// lines.
//
// Always true: [Log.Emit] never blocks and never fails; a record that cannot
// be kept is dropped and counted.
package usage

import (
	"time"

	"github.com/penstock/penstock/llm"
)

// Record is what is known of one request when it has ended. Times are in
// seconds; a zero that means "not reached" is left out of the JSON.
type Record struct {
	Time        time.Time `json:"time"` // when the request came in
	RequestID   string    `json:"requestId"`
	Listener    string    `json:"listener"`
	Route       string    `json:"route,omitempty"`
	Rule        string    `json:"rule,omitempty"` // of an HTTP route, if it has a name
	Client      string    `json:"client"`         // address
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	ModelAsked  string    `json:"modelAsked,omitempty"`
	ModelUsed   string    `json:"modelUsed,omitempty"`
	Pool        string    `json:"pool,omitempty"`
	Picked      string    `json:"endpointPicked,omitempty"` // the picker's first choice
	Served      string    `json:"endpointServed,omitempty"` // who answered
	PickOutcome string    `json:"pickOutcome,omitempty"`    // picked, fallback-…, refused-…
	Attempts    int       `json:"attempts"`
	Stream      bool      `json:"stream"`
	Status      int       `json:"status"` // as sent; 499: the client left
	ErrorClass  string    `json:"errorClass,omitempty"`
	Error       string    `json:"error,omitempty"`
	Tokens      Tokens    `json:"tokens"`
	Finish      string    `json:"finishReason,omitempty"`
	TTFT        float64   `json:"ttftSeconds,omitempty"`
	TPOT        float64   `json:"tpotSeconds,omitempty"` // mean time per output token after the first
	Total       float64   `json:"totalSeconds"`
	Traffic
}

// Traffic is the bytes of the bodies.
type Traffic struct {
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
}

// Tokens are llm.Usage for the record.
type Tokens struct {
	Input     int  `json:"input"`
	Cached    int  `json:"cached"`
	Output    int  `json:"output"`
	Reasoning int  `json:"reasoning,omitempty"`
	Reported  bool `json:"reported"` // false: counted by the gateway
}

// TokensOf converts.
func TokensOf(u llm.Usage) Tokens {
	return Tokens{Input: u.Input, Cached: u.Cached, Output: u.Output, Reasoning: u.Reasoning, Reported: u.Reported}
}
