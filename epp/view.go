// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"time"

	"github.com/penstock/penstock/pool"
)

// candidate is one member as one pick sees it: everything is read once, so
// that all stages judge the same numbers.
type candidate struct {
	// What scorers read comes first, on as few cache lines as it goes.

	// Own counts as they weigh: those of a returning member count as if it had
	// only its share of a member's strength.
	requests, queued, context float64

	price   float64 // tokens to compute, hot blocks cheaper; at least 1
	slow    float64
	matched int // tokens of the prompt that the prefix index believes cached
	total   float64
	key     float64 // the picker's order, highest first

	t     *tracked
	page  *pool.Metrics
	load  pool.Load // own counts
	share float64
	state pool.State
	stale bool
	fell  uint32 // bit per scorer that used own counts for want of a metric

	refusedBy string // filter; empty: still a candidate
	why       why
}

// has says that the member's last good page carried a signal.
func (c *candidate) has(signal pool.Signals) bool {
	return c.page != nil && c.page.Has&signal != 0
}

// explained is the number of candidates that a pick ranks and an explanation
// keeps.
const explained = 64

// place is a candidate in the order of the picker.
type place struct {
	key float64
	tie uint32 // random
	i   int32  // index into all
}

func (a place) before(b place) bool { return a.key > b.key || a.key == b.key && a.tie > b.tie }

// view is the scratch of one pick, reused. It grows with the pool and, by the
// hashes of the prompt, with the request (16 KiB at most).
type view struct {
	r      *Request
	now    time.Time
	random random
	turn   uint64 // of the round robin

	all    []candidate
	alive  []int32 // indexes into all
	ranked []place // see rank; at most explained
	scores []float64
	column int // scorer at work

	tokens    int // of the prompt
	chains    chains
	hasher    *hasher
	walk      walk
	constants constants
	order     []int32 // scratch of scorers
	session   session
	saturated bool   // a filter refused a candidate because it is full
	emptied   string // the stage that left no candidate
}

func newView() *view { return &view{hasher: newHasher()} }

// look reads every member once, but for its load (see count), and finds what
// each holds of the prompt.
func (v *view) look(s *Scheduler, p *Profile) {
	members := s.roster().members
	if cap(v.all) < len(members) {
		v.all = make([]candidate, len(members), len(members)+len(members)/4)
	}
	if n := len(members); len(v.all) > n {
		clear(v.all[n:]) // holds no member that has left
	}
	v.all = v.all[:len(members)]
	bound := s.pool.Config().Metrics.Stale.D()
	for i, t := range members {
		s.refresh(t)
		c := &v.all[i]
		*c = candidate{t: t, state: t.m.State(), page: t.m.Metrics(), slow: t.speed.slow.Load(), share: 1}
		if c.page != nil && v.now.Sub(c.page.At) > bound {
			c.stale = t.m.Stale() // the pool's bound is this one or longer
		}
		if t.sized.Load() != c.page {
			s.size(t, c.page, p.index, len(members))
		}
		if c.state == pool.Returning {
			c.share = clamp(t.m.Share(), 0.01, 1)
		}
	}
	v.prefix(s.index, p.index.blocks, s.tick(v.now))
	v.bind(s, p)
}

// count reads the loads, once each and after everything that may have to wait
// for a lock, so that of picks at the same time each sees what the others have
// charged; and admits those that are available.
//
// The counts of a returning member are weighed: (n+1)/share - 1 makes an idle
// one with a share of a tenth look like one with nine requests, and balances at
// a tenth of the others' load.
func (v *view) count() {
	v.alive, v.ranked, v.saturated, v.emptied = v.alive[:0], v.ranked[:0], false, ""
	for i := range v.all {
		c := &v.all[i]
		c.fell, c.refusedBy, c.why = 0, "", why{}
		c.load = c.t.m.Load()
		c.requests, c.queued, c.context = float64(c.load.Requests), float64(c.load.Queued), float64(c.load.Context)
		if c.share < 1 {
			c.requests = (c.requests+1)/c.share - 1
			c.queued /= c.share
			c.context /= c.share
		}
		if c.state != pool.Ready && c.state != pool.Returning {
			c.refusedBy, c.why = stageAvailability, why{code: whyState, s: c.state.String()}
			continue
		}
		v.alive = append(v.alive, int32(i))
	}
}

// prefix hashes the prompt and sets matched and price of every candidate.
func (v *view) prefix(x *index, limit int, now tick) {
	v.tokens = 0
	if v.r.Prompt != nil {
		v.tokens = v.r.Prompt.Tokens()
	}
	v.hasher.hash(&v.chains, v.r.Prompt, v.r.Model, v.r.CacheSalt, limit)
	x.lookup(&v.chains, &v.walk, len(v.all), now)
	rest := max(0, float64(v.tokens-blockTokens*len(v.chains.hash)))
	for i := range v.all {
		c := &v.all[i]
		c.price = max(1, v.walk.price+rest)
		h := c.t.holder.Load()
		if h == nil || h.slot >= len(v.walk.matched) || v.walk.matched[h.slot] == 0 || c.t.trust.lost() {
			continue
		}
		c.matched = min(int(v.walk.matched[h.slot])*blockTokens, v.tokens)
		c.price = max(1, v.walk.price+rest-v.walk.saved[h.slot])
	}
}

// keep drops the candidates for which refuse gives a reason. With fallback it
// keeps all when none would be left.
func (v *view) keep(filter string, fallback bool, refuse func(c *candidate) why) {
	before, kept, full := v.alive, v.alive[:0], false
	for _, i := range before {
		c := &v.all[i]
		if w := refuse(c); w.code != whyNone {
			c.refusedBy, c.why = filter, w
			full = full || w.full()
			continue
		}
		kept = append(kept, i)
	}
	if len(kept) == 0 && fallback { // before still has its content
		for _, i := range before {
			v.all[i].refusedBy, v.all[i].why = "", why{}
		}
		return
	}
	v.alive = kept
	v.saturated = v.saturated || full
}

// score fills the scores of every column and their weighted sum.
func (v *view) score(p *Profile) {
	n := len(v.all)
	v.scores = resized(v.scores, n*len(p.scorers))
	for _, i := range v.alive {
		v.all[i].total = 0
	}
	for k, score := range p.scorers {
		column := v.scores[k*n : (k+1)*n]
		v.column = k
		score(v, column)
		for _, i := range v.alive {
			v.all[i].total += p.columns[k].Weight * column[i]
		}
	}
}

// fell notes that the scorer at work had no metric of c.
func (v *view) fell(c *candidate) { c.fell |= 1 << v.column }

// meanRequests is the mean of the requests in flight over the candidates.
func (v *view) meanRequests() float64 {
	sum := 0.0
	for _, i := range v.alive {
		sum += v.all[i].requests
	}
	return sum / float64(max(1, len(v.alive)))
}

// rank fills ranked with the candidates of the highest keys, ties at random:
// the first n in order, the others (for the explanation) in none.
func (v *view) rank(n int) {
	top := v.ranked[:0]
	for _, i := range v.alive {
		x := place{key: v.all[i].key, tie: uint32(v.random.next()), i: i}
		if len(top) < explained {
			top = append(top, x)
			if len(top) == explained && len(v.alive) > explained {
				for k := explained/2 - 1; k >= 0; k-- {
					sink(top, k)
				}
			}
		} else if x.before(top[0]) {
			top[0] = x
			sink(top, 0)
		}
	}
	for k := range min(n, len(top)) {
		best := k
		for j := k + 1; j < len(top); j++ {
			if top[j].before(top[best]) {
				best = j
			}
		}
		top[k], top[best] = top[best], top[k]
	}
	v.ranked = top
}

// sink restores a heap whose root is the lowest, below k.
func sink(heap []place, k int) {
	for {
		low := 2*k + 1
		if low >= len(heap) {
			return
		}
		if right := low + 1; right < len(heap) && heap[low].before(heap[right]) {
			low = right
		}
		if !heap[k].before(heap[low]) {
			return
		}
		heap[k], heap[low] = heap[low], heap[k]
		k = low
	}
}

// random is a splitmix64 generator: one word of state, so that a pick takes its
// own stream from the scheduler's without a lock.
type random uint64

const golden = 0x9e3779b97f4a7c15

func (r *random) next() uint64 {
	*r += golden
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// float is uniform in (0, 1].
func (r *random) float() float64 {
	return float64(r.next()>>11+1) / (1 << 53)
}

// exponentialKey orders a weighted sample without replacement (Efraimidis and
// Spirakis): the highest of U^(1/weight), here in logarithms.
func (r *random) exponentialKey(weight float64) float64 {
	if weight <= 0 {
		return math.Inf(-1)
	}
	return math.Log(r.float()) / weight
}
