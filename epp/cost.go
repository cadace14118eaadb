// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The expected cost of sending a request to member i, in tokens of prefill:
//
//	cost_i = slow_i * [ u_i*(1 + n_mean) + Q_i + decodeWeight*kappa*L*(n_i + C_i/1000) ]
//
//	u_i     uncached tokens of the prompt on i, hot blocks cheaper (see index), at least 1
//	n_i     requests in flight on i; n_mean their mean over the candidates: a prefill
//	        stalls every stream it shares a server with, so a miss costs u*(1+n), not u
//	Q_i     uncached tokens sent to i whose answer has not begun
//	C_i     context in flight on i (prompts and what was streamed) + n_i*L/4
//	L       mean output tokens of an answer
//	kappa   learnt: prefill tokens that one stream costs a step of decoding
//	slow_i  learnt: how much slower i is than the median member
//
// All of it is the gateway's own knowledge at the moment of the pick; no
// scraped gauge takes part. The terms, weights and the learning below come from
// a simulator study of twelve workloads; without the first or the last term a
// policy loses about a quarter of its goodput.
const (
	decodeWeight = 2
	startOutput  = 300 // L before anything is known
	outputWeight = 0.02
)

// costOf is the formula for one candidate. price is u_i.
func costOf(c *candidate, meanRequests float64, k constants) float64 {
	return c.slow * (c.price*(1+meanRequests) + c.queued + decodeWeight*k.kappa*k.output*k.decodeLoad(c.requests, c.context))
}

// decodeLoad is n + C/1000: what the streams of a member cost each step, in
// units of one stream without context. n*L/4 stands for what the answers in
// flight will still add to their context.
func (k constants) decodeLoad(requests, context float64) float64 {
	return requests + (context+requests*k.output/4)/1000
}

// constants are the learnt numbers of a fleet, as one pick sees them.
type constants struct{ kappa, output float64 }

// Learning. Every sample comes from the streams that pass; nothing is scraped.
//
// At the first token: x = TTFT / (Q + u + 1.5*(fixed + kappa*(n + C/1000))),
// with Q, n, C as they were at the pick: seconds per prefill token, cleared of
// load. Each member keeps a running median of x, and slow is that median over
// the fleet's. Between tokens: a running median and a minimum of the gap; what
// the median exceeds the minimum by, per unit of decode load, is kappa.
//
// Guards: steps of a percent, so that no single sample moves traffic; a dead
// band around 1; hard clamps; samples of a member whose queue waits for KV are
// left out; when more than half the fleet leaves the dead band the estimate is
// at fault, and every member counts as 1.
const (
	medianStep     = 1.01
	medianFastStep = 1.04 // for the first medianFast samples
	medianFast     = 100
	slowBand       = 1.4
	slowClamp      = 8
	slowFull       = 10 // samples until an estimate counts in full
	slowRefresh    = 16 // samples between two refreshes, or as many as there are members
	kappaMin       = 0.05
	kappaMax       = 5
	fixedPrior     = 256 // prefill tokens that an empty step is worth
	fixedMin       = 16
	fixedMax       = 1024
	gapEvery       = 8 // every eighth gap of a stream is measured
	gapsNeeded     = 1000 / gapEvery
	gapWeight      = gapEvery / 1000.0
	gapLoadLeast   = 5
)

// fleet learns. Its lock is taken at first tokens, at every eighth gap and at
// ends, never while scoring.
type fleet struct {
	mu      sync.Mutex
	members map[*speed]struct{}
	median  float64 // seconds per prefill token over the fleet; 0: unknown
	unit    float64 // seconds per unit of decode load
	fixed   float64
	gaps    int
	fresh   int // samples since the last refresh
	// Read without the lock.
	kappa  atomicFloat
	output atomicFloat
}

// speed is what is learnt of one member.
type speed struct {
	slow atomicFloat // read without the lock

	median  float64 // of x, seconds per prefill token; 0: no sample
	samples int
	gap     float64 // running median of the gap, seconds; 0: none
	gapMin  float64
}

// atomicFloat is a float64 behind an atomic word.
type atomicFloat struct{ bits atomic.Uint64 }

func (f *atomicFloat) Load() float64   { return math.Float64frombits(f.bits.Load()) }
func (f *atomicFloat) Store(x float64) { f.bits.Store(math.Float64bits(x)) }

func newFleet() *fleet {
	f := &fleet{members: map[*speed]struct{}{}, fixed: fixedPrior}
	f.kappa.Store(1)
	f.output.Store(startOutput)
	return f
}

func (f *fleet) constants() constants {
	return constants{kappa: f.kappa.Load(), output: f.output.Load()}
}

// join begins to learn of a member.
func (f *fleet) join() *speed {
	s := &speed{}
	s.slow.Store(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[s] = struct{}{}
	return s
}

func (f *fleet) leave(s *speed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, s)
}

// forget drops what was learnt of a member: it has restarted.
func (f *fleet) forget(s *speed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.median, s.samples, s.gap, s.gapMin = 0, 0, 0, 0
	s.slow.Store(1)
}

// sample is the state of a member at a pick, without the request itself.
type sample struct {
	uncached float64 // of the request
	queued   float64
	decode   float64 // decode load
}

// firstToken takes a measured time to first token.
func (f *fleet) firstToken(s *speed, ttft time.Duration, at sample) {
	if ttft <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	work := at.queued + max(1, at.uncached) + 1.5*(f.fixed+f.kappa.Load()*at.decode)
	s.median = follow(s.median, ttft.Seconds()/work, s.samples)
	s.samples++
	f.sampled()
}

// tokenGap takes a measured time between two tokens of one stream, under a
// decode load.
func (f *fleet) tokenGap(s *speed, gap time.Duration, load float64) {
	if gap <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := gap.Seconds()
	s.gap = follow(s.gap, g, medianFast)
	if s.gapMin == 0 || g < s.gapMin {
		s.gapMin = g
	}
	if load <= gapLoadLeast {
		return
	}
	unit := (s.gap - s.gapMin) / load / s.slow.Load()
	if f.gaps == 0 {
		f.unit = unit
	}
	f.unit += gapWeight * (unit - f.unit)
	f.gaps++
	f.sampled()
}

// sampled refreshes now and then. The lock is held.
func (f *fleet) sampled() {
	if f.fresh++; f.fresh >= max(slowRefresh, len(f.members)) {
		f.fresh = 0
		f.refresh()
	}
}

// ended takes the output tokens of an answer that came whole.
func (f *fleet) ended(output int) {
	if output <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.output.Load()
	f.output.Store(old + outputWeight*(float64(output)-old))
}

// refresh recomputes slow of every member, kappa and fixed. The lock is held.
func (f *fleet) refresh() {
	medians := make([]float64, 0, len(f.members))
	minima, n := 0.0, 0
	for s := range f.members {
		if s.median > 0 {
			medians = append(medians, s.median)
		}
		if s.gapMin > 0 {
			minima += s.gapMin / s.slow.Load()
			n++
		}
	}
	if len(medians) == 0 {
		return
	}
	slices.Sort(medians)
	// With an even number the mean of the middle two, so that a fleet of two
	// speeds is judged from the middle.
	f.median = (medians[(len(medians)-1)/2] + medians[len(medians)/2]) / 2
	outside := 0
	for s := range f.members {
		slow := slowOf(s.median/f.median, s.samples)
		s.slow.Store(slow)
		if slow != 1 {
			outside++
		}
	}
	if outside*2 > len(f.members) {
		for s := range f.members {
			s.slow.Store(1)
		}
	}
	if f.gaps >= gapsNeeded {
		f.kappa.Store(clamp(f.unit/f.median, kappaMin, kappaMax))
		if n > 0 {
			f.fixed = clamp(minima/float64(n)/f.median, fixedMin, fixedMax)
		}
	}
}

// slowOf damps a ratio by the number of samples, and takes small ones for
// noise.
func slowOf(ratio float64, samples int) float64 {
	if samples == 0 || ratio <= 0 {
		return 1
	}
	slow := math.Pow(ratio, min(1, float64(samples)/slowFull))
	if slow <= slowBand && slow >= 1/slowBand {
		return 1
	}
	return clamp(slow, 1.0/slowClamp, slowClamp)
}

// follow moves a running median one step towards x.
func follow(median, x float64, samples int) float64 {
	if median == 0 {
		return x
	}
	step := medianStep
	if samples < medianFast {
		step = medianFastStep
	}
	switch {
	case x > median:
		return median * step
	case x < median:
		return median / step
	}
	return median
}

func clamp(x, low, high float64) float64 { return min(max(x, low), high) }

// Learnt is what a scheduler has learnt, for inspection.
type Learnt struct {
	Kappa       float64        `json:"kappa"`       // prefill tokens per unit of decode load and step
	Output      float64        `json:"output"`      // mean output tokens
	Fixed       float64        `json:"fixed"`       // prefill tokens that an empty step is worth
	SecPerToken float64        `json:"secPerToken"` // median seconds per prefill token; 0: unknown
	Gaps        int            `json:"gaps"`        // gaps measured under load
	Members     []LearntMember `json:"members"`
}

// LearntMember is one member's part of it.
type LearntMember struct {
	Endpoint    string  `json:"endpoint"`
	Slow        float64 `json:"slow"` // 1: as fast as the median
	Samples     int     `json:"samples"`
	SecPerToken float64 `json:"secPerToken"`
	Gap         float64 `json:"gapSeconds"`
	GapMin      float64 `json:"gapMinSeconds"`
	Distrusted  bool    `json:"distrusted,omitempty"` // reports none of the cached tokens predicted
	Blocks      int     `json:"blocks"`               // in the prefix index
	BlockLimit  int     `json:"blockLimit"`
}

// Learnt returns a copy of what was learnt so far.
func (s *Scheduler) Learnt() Learnt {
	members := s.roster().members
	s.fleet.mu.Lock()
	out := Learnt{
		Kappa: s.fleet.kappa.Load(), Output: s.fleet.output.Load(), Fixed: s.fleet.fixed,
		SecPerToken: s.fleet.median, Gaps: s.fleet.gaps,
	}
	for _, t := range members {
		out.Members = append(out.Members, LearntMember{
			Endpoint: t.m.Address(), Slow: t.speed.slow.Load(), Samples: t.speed.samples,
			SecPerToken: t.speed.median, Gap: t.speed.gap, GapMin: t.speed.gapMin,
			Distrusted: t.trust.lost(),
		})
	}
	s.fleet.mu.Unlock()
	for i, t := range members {
		out.Members[i].Blocks, out.Members[i].BlockLimit = s.index.held(t.holder.Load())
	}
	return out
}
