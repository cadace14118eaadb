// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package pool holds the members of a pool and what is known of each:
// discovery, scraped engine metrics, the gateway's own in-flight counts,
// health.
//
// It leaves choosing to package epp and dialling to package proxy. Start
// reading at [Pool]; a [Snapshot] is what a picker sees.
//
// Always true: a Snapshot never changes; a [Member] keeps its identity for as
// long as it stays listed; a charge on a member is released exactly once.
package pool

import (
	"time"
)

// Snapshot is the membership of a pool at one moment. Immutable.
type Snapshot struct {
	Version uint64
	Members []*Member // ordered by address; every listed member, whatever its state
}

// State says whether a member may be picked.
type State uint8

// The states of a member.
const (
	Ready     State = iota
	Returning       // back from ejection, at a reduced share (see Member.Share)
	Ejected         // out after failures
	Down            // the active probe says so
)

// Signals says which metrics were on a member's last good page.
type Signals uint16

// The canonical signals.
const (
	HasWaiting Signals = 1 << iota
	HasRunning
	HasKVUsage
	HasCacheConfig // BlockSize and NumBlocks
	HasPrefix      // PrefixQueries and PrefixHits
	HasLoRA
)

// Metrics is one scraped page of a member, reduced to the canonical signals.
// Immutable. A signal that is absent from Has is missing: its value is zero
// and means nothing.
type Metrics struct {
	At            time.Time // when the page was read
	Has           Signals
	Waiting       float64 // requests in the engine's queue
	Running       float64 // requests in the batch
	KVUsage       float64 // 0..1, of running requests
	BlockSize     int     // tokens per KV block
	NumBlocks     int
	PrefixQueries float64 // tokens looked up, counter
	PrefixHits    float64 // tokens found, counter
	LoRA          LoRA
}

// LoRA is a member's adapter state.
type LoRA struct {
	Running, Waiting []string
	Max              int // slots
}

// Load is the gateway's own count on a member. It changes at the moment of a
// pick, so the next pick sees it; no scrape is involved.
type Load struct {
	Requests int64 // in flight
	Queued   int64 // uncached prompt tokens sent whose answer has not begun
	Context  int64 // prompt tokens in flight plus tokens streamed to them so far
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
