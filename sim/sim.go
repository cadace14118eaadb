// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim is a model server without a GPU: a step-accurate engine, an
// OpenAI-compatible server around it, metrics under the names of each engine,
// and faults on demand. Also a managed provider in OpenAI form.
//
// Standard library only and nothing of Penstock, so that a fault of the
// product cannot hide in its own test. Start reading at [Engine.Step].
package sim

// Request is one sequence for an Engine. Content is given as chained hashes,
// one per full KV block of the prompt: equal prefixes have equal hashes.
type Request struct {
	ID           uint64
	Blocks       []uint64 // chained hash per full prompt block
	PromptTokens int
	OutputTokens int    // how many tokens it will generate; at least 1
	Adapter      string // LoRA; "" is the base model
}

// Event is something that happened to a sequence at the end of a step.
type Event struct {
	ID       uint64
	Kind     EventKind
	Tokens   int // output tokens so far
	Cached   int // prompt tokens found in the cache (with FirstToken)
	Prefills int // prompt tokens computed in all, recomputation included
}

// EventKind tells them apart.
type EventKind uint8

// The kinds of events. A sequence's last token comes as Finished.
const (
	FirstToken EventKind = iota
	Token
	Finished
	Preempted
)

// Gauges is the state of an Engine at the end of a step.
type Gauges struct {
	Waiting, Running  int
	KVUsage           float64 // 0..1 of blocks held by running sequences
	PrefixQueries     int64   // tokens
	PrefixHits        int64
	Preemptions       int64
	RunningAdapters   []string
	WaitingAdapters   []string
	PromptTokens      int64
	GenerationTokens  int64
	FinishedSequences int64
}
