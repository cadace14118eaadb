// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim is a model server without a GPU: a step-accurate engine, an
// OpenAI-compatible server around it, metrics under the names of each engine,
// and faults on demand. Also a managed provider in the shapes of six APIs.
//
// Standard library only and nothing of Penstock, so that a fault of the
// product cannot hide in its own test. Start reading at [Engine.Step]; the
// server around it starts at [New], a provider at [NewProvider]: each of its
// shapes reads requests into a turn, strictly, and words the answers of one
// maker.
//
// What is modelled: continuous batching in steps under a token budget with
// chunked prefill, so decode slows down when prefills land; paged KV blocks
// with reference counts, LRU eviction, prefix reuse and preemption by
// recomputation; LoRA slots; metrics that move once a step. What is not: the
// values of tokens, speculative decoding, pipeline bubbles, KV transfer between
// servers, KV events, a second cache tier, and any noise in step times. The
// step times are calibrated to published figures, see [Qwen32B] and [Llama8B].
//
// What must always hold: the Engine is a pure function of the calls made to
// it, and every KV block is either free or held by a running sequence.
package sim

// Request is one sequence for an Engine. Content is given as chained hashes,
// one per full KV block of the prompt: equal prefixes have equal hashes.
type Request struct {
	ID uint64
	// Blocks is the chained hash per full prompt block. Entries beyond the
	// prompt name the blocks that the output will fill; where they are absent
	// the engine derives them from Seed, see [Request.Chain].
	Blocks       []uint64
	PromptTokens int
	OutputTokens int    // how many tokens it will generate; at least 1
	Adapter      string // LoRA; "" is the base model
	Seed         uint64 // content of the prompt's tail and of the output; 0: the ID
}

// Event is something that happened to a sequence at the end of a step.
type Event struct {
	ID       uint64
	Kind     EventKind
	Tokens   int // output tokens so far
	Cached   int // prompt tokens found in the cache at first admission (with FirstToken and Finished)
	Prefills int // tokens computed by prefill in all, recomputation included
}

// EventKind tells them apart.
type EventKind uint8

// The kinds of events. A sequence's last token comes as Finished, also when it
// is its first.
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
