// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"time"
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
	Running []string `json:"running"`
	Waiting []string `json:"waiting"`
	Max     int      `json:"max"` // slots
}

// signalNames are in the order of the bits.
func signalNames() []string {
	return []string{"waiting", "running", "kv_usage", "cache_config", "prefix", "lora"}
}

// Names lists the signals as they appear in logs, metrics and the status.
func (s Signals) Names() []string {
	var names []string
	for i, name := range signalNames() {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String is Names joined by commas.
func (s Signals) String() string { return strings.Join(s.Names(), ",") }
