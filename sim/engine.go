// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reasons for which a sequence is refused, see [Engine.Check].
var (
	ErrTooLong   = errors.New("sequence is longer than the whole KV cache")
	ErrQueueFull = errors.New("waiting queue is full")
	ErrInvalid   = errors.New("invalid sequence")
)

// Engine is a pure step function: it has no clock and no goroutine; the caller
// says what time it is. Not safe for concurrent use.
//
// The rules of one step, in this order:
//
//   - aborted sequences leave and their blocks are free;
//   - every decoding sequence, oldest first, takes one token of the budget; one
//     that needs a block when none is free preempts the newest running sequence,
//     which returns to the head of the queue and computes everything again,
//     except what it finds in the cache;
//   - running prefills that are not done take what is left of the budget;
//   - unless something was preempted in this step, waiting sequences are
//     admitted first in, first out, while there is budget, a place, and free
//     blocks for the whole prompt (all are taken at admission). The first one
//     without room blocks those behind it. One whose adapter finds no LoRA slot
//     is passed over instead, and those behind it may go ahead.
//
// An adapter keeps its slot until another one needs it and no running sequence
// uses it; the least recently used goes first. Loading delays the step.
type Engine struct {
	preset   Preset
	blocks   *blockStore
	running  []*sequence // oldest admission first
	waiting  []*sequence
	byID     map[uint64]*sequence
	adapters []adapterSlot // one per LoRA slot
	aborts   int           // sequences marked and not yet dropped
	loras    int           // sequences with an adapter
	gauges   Gauges
	events   []Event
	hits     []int32 // cached blocks of the sequence that fit looked at last
}

// sequence is a Request on its way. A token is computed when its keys and
// values are in the cache; the newest output token never is.
type sequence struct {
	req       *Request
	salt      uint64   // tells the content of adapters apart
	derived   []uint64 // hashes of the blocks after req.Blocks, as far as known
	blocks    []int32
	published int // blocks whose hash is known to the store
	computed  int // tokens
	output    int
	cached    int
	prefills  int
	scheduled int // tokens in the step at hand
	admitted  bool
	aborted   bool
}

// adapterSlot is a place for one LoRA adapter in memory.
type adapterSlot struct {
	name string        // "": empty
	used int           // running sequences
	last time.Duration // of admission
}

// batch is the work of one step.
type batch struct {
	prefillTokens int
	prefillWork   int // sum over chunks of tokens * mean context
	decodes       int
	decodeContext int
	loads         int
	preempted     bool
}

// NewEngine makes an idle engine with an empty cache. Sizes below one count as
// one, except MaxWaiting and MaxLoRAs.
func NewEngine(p Preset) *Engine {
	p.BlockSize = max(p.BlockSize, 1)
	p.NumBlocks = max(p.NumBlocks, 1)
	p.MaxBatchedTokens = max(p.MaxBatchedTokens, 1)
	p.MaxSequences = max(p.MaxSequences, 1)
	e := &Engine{preset: p}
	e.Reset()
	return e
}

// Reset is a restart: the cache is empty, every sequence is gone, counters are
// zero.
func (e *Engine) Reset() {
	e.blocks = newBlockStore(e.preset.NumBlocks)
	e.running, e.waiting = nil, nil
	e.byID = make(map[uint64]*sequence)
	e.adapters = make([]adapterSlot, max(e.preset.MaxLoRAs, 0))
	e.aborts, e.loras = 0, 0
	e.gauges = Gauges{}
	e.events = nil
}

// Check says why Submit would refuse a sequence, or nil.
func (e *Engine) Check(r *Request) error {
	switch {
	case r.PromptTokens < 1 || r.OutputTokens < 1:
		return fmt.Errorf("%w: %d prompt and %d output tokens", ErrInvalid, r.PromptTokens, r.OutputTokens)
	case e.byID[r.ID] != nil:
		return fmt.Errorf("%w: id %d is in use", ErrInvalid, r.ID)
	case r.Adapter != "" && e.preset.MaxLoRAs < 1:
		return fmt.Errorf("%w: adapter %q without LoRA slots", ErrInvalid, r.Adapter)
	case e.blocksFor(r.PromptTokens+r.OutputTokens-1) > e.preset.NumBlocks:
		return fmt.Errorf("%w: %d tokens, room for %d", ErrTooLong,
			r.PromptTokens+r.OutputTokens, e.preset.NumBlocks*e.preset.BlockSize)
	case e.preset.MaxWaiting > 0 && len(e.waiting) >= e.preset.MaxWaiting:
		return ErrQueueFull
	}
	return nil
}

// Submit queues a sequence; false when it was refused, see [Engine.Check]. The
// engine keeps r until the sequence ends; the caller must not change it.
func (e *Engine) Submit(_ time.Duration, r *Request) bool {
	if e.Check(r) != nil {
		return false
	}
	e.enqueue(r)
	return true
}

// enqueue queues a sequence that was checked.
func (e *Engine) enqueue(r *Request) {
	s := &sequence{req: r, salt: adapterSalt(r.Adapter)}
	e.byID[r.ID] = s
	if r.Adapter != "" {
		e.loras++
	}
	e.waiting = append(e.waiting, s)
}

func adapterSalt(name string) uint64 {
	if name == "" {
		return 0
	}
	return HashText(0, name)
}

// Abort drops a sequence; its blocks are free from the next step on.
func (e *Engine) Abort(id uint64) {
	if s := e.byID[id]; s != nil && !s.aborted {
		s.aborted = true
		e.aborts++
	}
}

// Idle says that a step would do nothing.
func (e *Engine) Idle() bool { return len(e.byID) == 0 }

// Gauges is the state after the last step. What was submitted or aborted since
// does not show yet, as in a real engine's metrics.
func (e *Engine) Gauges() Gauges { return e.gauges }

// Step runs one step that begins at now and returns when it ends and what
// happened at that moment. The slice is valid until the next call. A step with
// nothing to compute takes no time.
func (e *Engine) Step(now time.Duration) (end time.Duration, events []Event) {
	e.events = e.events[:0]
	e.dropAborted()
	var b batch
	budget := e.preset.MaxBatchedTokens
	budget -= e.scheduleDecodes(&b, budget)
	budget -= e.schedulePrefills(&b, budget)
	if !b.preempted {
		e.admit(now, &b, budget)
	}
	end = now
	if b.prefillTokens > 0 || b.decodes > 0 {
		end += e.preset.duration(b)
	}
	e.advance()
	e.observe()
	return end, e.events
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.preset.BlockSize - 1) / e.preset.BlockSize
}

func (e *Engine) dropAborted() {
	if e.aborts == 0 {
		return
	}
	gone := func(s *sequence) bool {
		if s.aborted {
			e.end(s)
		}
		return s.aborted
	}
	e.running = slices.DeleteFunc(e.running, gone)
	e.waiting = slices.DeleteFunc(e.waiting, gone)
	e.aborts = 0
}

// end forgets a sequence.
func (e *Engine) end(s *sequence) {
	e.leave(s)
	delete(e.byID, s.req.ID)
	if s.req.Adapter != "" {
		e.loras--
	}
}

// leave gives back what a running sequence holds; harmless for a waiting one.
func (e *Engine) leave(s *sequence) {
	if s.blocks == nil {
		return
	}
	e.blocks.release(s.blocks)
	s.blocks, s.published, s.computed, s.scheduled = nil, 0, 0, 0
	if s.req.Adapter != "" {
		e.place(s.req.Adapter).used--
	}
}

// tokens is how many tokens the sequence has; all but the newest output token
// must be computed before another one can be sampled.
func (s *sequence) tokens() int { return s.req.PromptTokens + s.output }

func (s *sequence) decoding() bool { return s.output > 0 && s.computed == s.tokens()-1 }

func (e *Engine) scheduleDecodes(b *batch, budget int) (used int) {
	// The list may shrink from its end while it is walked: a victim is newer
	// than the sequence that needs its blocks, or that sequence itself.
	for i := 0; i < len(e.running) && used < budget; i++ {
		s := e.running[i]
		if !s.decoding() {
			continue
		}
		if s.computed == len(s.blocks)*e.preset.BlockSize && !e.grow(b, s) {
			continue
		}
		s.scheduled = 1
		used++
		b.decodes++
		b.decodeContext += s.tokens()
	}
	return used
}

// grow takes one block for s, at the cost of newer sequences if need be; false
// if s itself had to go.
func (e *Engine) grow(b *batch, s *sequence) bool {
	for e.blocks.free == 0 {
		newest := e.running[len(e.running)-1]
		e.preempt(b, newest)
		if newest == s {
			return false
		}
	}
	s.blocks = append(s.blocks, e.blocks.take())
	return true
}

func (e *Engine) preempt(b *batch, s *sequence) {
	e.running = e.running[:len(e.running)-1]
	e.leave(s)
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.gauges.Preemptions++
	e.events = append(e.events, Event{ID: s.req.ID, Kind: Preempted, Tokens: s.output, Prefills: s.prefills})
	b.preempted = true
}

func (e *Engine) schedulePrefills(b *batch, budget int) (used int) {
	for _, s := range e.running {
		if used == budget {
			break
		}
		if !s.decoding() {
			used += e.chunk(b, s, budget-used)
		}
	}
	return used
}

// chunk schedules as much of the prefill of s as the budget allows.
func (e *Engine) chunk(b *batch, s *sequence, budget int) int {
	n := min(s.tokens()-s.computed, budget)
	s.scheduled = n
	s.prefills += n
	b.prefillTokens += n
	b.prefillWork += n * (2*s.computed + n) / 2
	return n
}

func (e *Engine) admit(now time.Duration, b *batch, budget int) {
	kept := e.waiting[:0]
	i := 0
	for ; i < len(e.waiting); i++ {
		s := e.waiting[i]
		if budget == 0 || len(e.running) == e.preset.MaxSequences {
			break
		}
		adapter := s.req.Adapter
		slot := e.place(adapter)
		if adapter != "" && slot == nil {
			kept = append(kept, s)
			continue
		}
		if !e.fit(s) {
			break
		}
		if adapter != "" {
			slot.occupy(now, b, adapter)
		}
		e.start(s)
		e.running = append(e.running, s)
		budget -= e.chunk(b, s, budget)
	}
	if i > 0 {
		kept = append(kept, e.waiting[i:]...)
		clear(e.waiting[len(kept):])
		e.waiting = kept
	}
}

// fit finds the leading blocks of s that are in the cache, in e.hits, and says
// whether there is room for the others. The last token is always computed, else
// there would be nothing to sample from.
func (e *Engine) fit(s *sequence) (room bool) {
	need := e.blocksFor(s.tokens())
	idle := 0
	e.hits = e.hits[:0]
	for most := (s.tokens() - 1) / e.preset.BlockSize; len(e.hits) < most; {
		block, ok := e.blocks.lookup(s.key(len(e.hits)))
		if !ok {
			break
		}
		if e.blocks.idle(block) {
			idle++
		}
		e.hits = append(e.hits, block)
	}
	return need-len(e.hits) <= e.blocks.free-idle
}

// key is the hash under which the store knows block i of the sequence.
func (s *sequence) key(i int) uint64 {
	given := s.req.Blocks
	if i < len(given) {
		return given[i] ^ s.salt
	}
	for n := len(given) + len(s.derived); n <= i; n++ {
		parent := last(s.derived)
		if len(s.derived) == 0 {
			parent = last(given)
		}
		s.derived = append(s.derived, s.req.derive(parent, n))
	}
	return s.derived[i-len(given)] ^ s.salt
}

// start takes the blocks of the whole prompt: first the cached ones that fit
// found, so that none of them is reused for the rest.
func (e *Engine) start(s *sequence) {
	need := e.blocksFor(s.tokens())
	s.blocks = make([]int32, 0, e.blocksFor(s.req.PromptTokens+s.req.OutputTokens-1))
	for _, block := range e.hits {
		e.blocks.share(block)
		s.blocks = append(s.blocks, block)
	}
	for len(s.blocks) < need {
		s.blocks = append(s.blocks, e.blocks.take())
	}
	s.published = len(e.hits)
	s.computed = len(e.hits) * e.preset.BlockSize
	if !s.admitted {
		s.admitted = true
		s.cached = s.computed
		e.gauges.PrefixQueries += int64(s.req.PromptTokens)
		e.gauges.PrefixHits += int64(s.cached)
	}
}

// place is the slot that holds the adapter, else the one that it may take: the
// least recently used of those that no running sequence needs. Nil if there is
// none, or for the base model.
func (e *Engine) place(adapter string) (free *adapterSlot) {
	if adapter == "" {
		return nil
	}
	for i := range e.adapters {
		a := &e.adapters[i]
		if a.name == adapter {
			return a
		}
		if a.used == 0 && (free == nil || free.name != "" && (a.name == "" || a.last < free.last)) {
			free = a
		}
	}
	return free
}

// occupy counts one more running sequence of the adapter, which is loaded if
// another one is in the slot.
func (a *adapterSlot) occupy(now time.Duration, b *batch, adapter string) {
	if a.name != adapter {
		a.name = adapter
		b.loads++
	}
	a.used++
	a.last = now
}

// advance does what the end of a step does: tokens are computed, full blocks
// become reusable, sequences whose tokens are all computed get one more.
func (e *Engine) advance() {
	kept := e.running[:0]
	for _, s := range e.running {
		if s.scheduled == 0 || !e.computed(s) {
			kept = append(kept, s)
			continue
		}
		e.end(s)
	}
	clear(e.running[len(kept):])
	e.running = kept
}

// computed ends the step of one sequence and says whether it has finished.
func (e *Engine) computed(s *sequence) (finished bool) {
	s.computed += s.scheduled
	s.scheduled = 0
	for full := s.computed / e.preset.BlockSize; s.published < full; s.published++ {
		e.blocks.publish(s.blocks[s.published], s.key(s.published))
	}
	if s.computed < s.tokens() {
		return false
	}
	s.output++
	e.gauges.GenerationTokens++
	ev := Event{ID: s.req.ID, Kind: Token, Tokens: s.output, Prefills: s.prefills}
	if s.output == 1 {
		ev.Kind, ev.Cached = FirstToken, s.cached
		e.gauges.PromptTokens += int64(s.req.PromptTokens)
	}
	if s.output >= s.req.OutputTokens {
		ev.Kind, ev.Cached = Finished, s.cached
		e.gauges.FinishedSequences++
	}
	e.events = append(e.events, ev)
	return ev.Kind == Finished
}

// observe takes the gauges.
func (e *Engine) observe() {
	g := &e.gauges
	g.Waiting, g.Running = len(e.waiting), len(e.running)
	g.KVUsage = float64(e.preset.NumBlocks-e.blocks.free) / float64(e.preset.NumBlocks)
	if e.loras > 0 || len(g.RunningAdapters)+len(g.WaitingAdapters) > 0 {
		// Fresh slices: callers keep what Gauges returned.
		g.RunningAdapters, g.WaitingAdapters = adapterNames(e.running), adapterNames(e.waiting)
	}
}

// adapterNames lists the adapters of the sequences, sorted, each once.
func adapterNames(seqs []*sequence) []string {
	var names []string
	for _, s := range seqs {
		if a := s.req.Adapter; a != "" && !slices.Contains(names, a) {
			names = append(names, a)
		}
	}
	slices.Sort(names)
	return names
}
