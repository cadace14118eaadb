// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/pool"
)

// scorer fills scores, 0 to 1 and higher is better, at the indexes in v.alive.
// A candidate whose metric is missing is judged by the gateway's own counts
// ([view.byRequests]) and marked ([view.fell]).
type scorer func(v *view, scores []float64)

// span is the least and the greatest value over the candidates that have one.
type span struct{ low, high float64 }

func (v *view) span(value func(c *candidate) (float64, bool)) span {
	s := span{math.Inf(1), math.Inf(-1)}
	for _, i := range v.alive {
		if x, ok := value(&v.all[i]); ok {
			s.low, s.high = min(s.low, x), max(s.high, x)
		}
	}
	return s
}

// below is (high-x)/(high-low): 1 at the low end.
func (s span) below(x, equal float64) float64 {
	if s.high <= s.low {
		return equal
	}
	return (s.high - x) / (s.high - s.low)
}

func ownRequests(c *candidate) (float64, bool) { return c.requests, true }

// byGauge scores (max-x)/(max-min), 1 when all are equal, and candidates
// without the gauge by own requests in flight, one half when all are equal:
// neither full nor idle.
func byGauge(value func(c *candidate) (float64, bool)) scorer {
	return func(v *view, scores []float64) {
		gauge := v.span(value)
		var own *span
		for _, i := range v.alive {
			c := &v.all[i]
			if x, ok := value(c); ok {
				scores[i] = gauge.below(x, 1)
				continue
			}
			if own == nil {
				s := v.span(ownRequests)
				own = &s
			}
			v.fell(c)
			scores[i] = own.below(c.requests, 0.5)
		}
	}
}

// queueScorer: (maxQ-q)/(maxQ-minQ) over the waiting gauge; all equal: 1.
func queueScorer() scorer {
	return byGauge(func(c *candidate) (float64, bool) {
		if !c.has(pool.HasWaiting) {
			return 0, false
		}
		return c.page.Waiting, true
	})
}

// runningScorer: the same over the running gauge.
func runningScorer() scorer {
	return byGauge(func(c *candidate) (float64, bool) {
		if !c.has(pool.HasRunning) {
			return 0, false
		}
		return c.page.Running, true
	})
}

// kvScorer: 1 - KV usage.
func kvScorer(v *view, scores []float64) {
	own, known := span{}, false
	for _, i := range v.alive {
		c := &v.all[i]
		if c.has(pool.HasKVUsage) {
			scores[i] = clamp(1-c.page.KVUsage, 0, 1)
			continue
		}
		if !known {
			own, known = v.span(ownRequests), true
		}
		v.fell(c)
		scores[i] = own.below(c.requests, 0.5)
	}
}

// loadAware: nothing waiting 0.5, else 0.5*(1 - min(w,T)/T). Without the gauge
// w is the gateway's own requests in flight.
func loadAware(threshold float64) scorer {
	return func(v *view, scores []float64) {
		for _, i := range v.alive {
			c := &v.all[i]
			w := c.requests
			if c.has(pool.HasWaiting) {
				w = c.page.Waiting
			} else {
				v.fell(c)
			}
			scores[i] = 0.5 * (1 - min(w, threshold)/threshold)
		}
	}
}

// activeRequest: n at most idle: 1; else (max-n)/max*busy, n the gateway's own
// requests in flight.
func activeRequest(idle, busy float64) scorer {
	return func(v *view, scores []float64) {
		high := v.span(ownRequests).high
		for _, i := range v.alive {
			n := v.all[i].requests
			if n <= idle {
				scores[i] = 1
				continue
			}
			scores[i] = (high - n) / high * busy
		}
	}
}

// tokenLoad: 1 - min(queued tokens + uncached tokens of this request, T)/T.
func tokenLoad(threshold float64) scorer {
	return func(v *view, scores []float64) {
		for _, i := range v.alive {
			c := &v.all[i]
			load := c.queued + float64(v.uncached(c))
			scores[i] = 1 - min(load, threshold)/threshold
		}
	}
}

// prefixCache: w*min(1, matched/scale)^2 + (1-w)*match/total, in full blocks.
func prefixCache(weight, scale float64) scorer {
	return func(v *view, scores []float64) {
		total := float64(len(v.chains.hash) * blockTokens)
		for _, i := range v.alive {
			scores[i] = 0
			if total > 0 {
				m := float64(v.all[i].matched)
				length := min(1, m/scale)
				scores[i] = weight*length*length + (1-weight)*min(1, m/total)
			}
		}
	}
}

// loraAffinity: the adapter is loaded 1; a free slot 0.8; it waits for a slot
// 0.6; else 0. Without the gauge by own requests, between 0 and 0.8.
func loraAffinity(v *view, scores []float64) {
	own, known := span{}, false
	for _, i := range v.alive {
		c := &v.all[i]
		if !c.has(pool.HasLoRA) {
			if !known {
				own, known = v.span(ownRequests), true
			}
			v.fell(c)
			scores[i] = 0.8 * own.below(c.requests, 0.5)
			continue
		}
		l := &c.page.LoRA
		switch {
		case slices.Contains(l.Running, v.r.Model):
			scores[i] = 1
		case len(l.Running)+len(l.Waiting) < l.Max:
			scores[i] = 0.8
		case slices.Contains(l.Waiting, v.r.Model):
			scores[i] = 0.6
		default:
			scores[i] = 0
		}
	}
}

// noHitLRU spreads cold prompts: when any member holds a part of the prompt all
// get 0.5; else members that never got a cold prompt 1, the others 1-rank/(n-1)
// by how long ago they got one.
func noHitLRU(v *view, scores []float64) {
	for _, i := range v.alive {
		if v.all[i].matched > 0 {
			for _, j := range v.alive {
				scores[j] = 0.5
			}
			return
		}
	}
	order := append(v.order[:0], v.alive...)
	v.order = order
	for _, i := range order {
		scores[i] = float64(v.all[i].t.cold.Load())
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(scores[a], scores[b]) })
	for rank, i := range order {
		if scores[i] == 0 || len(order) == 1 {
			scores[i] = 1
			continue
		}
		scores[i] = 1 - float64(rank)/float64(len(order)-1)
	}
}

// sessionAffinity: 1 for the member that the session is bound to, else 0.
func sessionAffinity(v *view, scores []float64) {
	for _, i := range v.alive {
		scores[i] = 0
		if v.session.bound != 0 && v.all[i].t.token == v.session.bound {
			scores[i] = 1
		}
	}
}

// expectedCost: least cost / cost, by the formula of cost.go: 1 for the
// cheapest, one half for one that is twice as dear.
func expectedCost(v *view, scores []float64) {
	mean := v.meanRequests()
	relative(v, scores, func(c *candidate) float64 { return costOf(c, mean, v.constants) })
}

// lmetric: least/x over x = uncached tokens * (own requests in flight + 1).
func lmetric(v *view, scores []float64) {
	relative(v, scores, func(c *candidate) float64 {
		return float64(max(1, v.uncached(c))) * (c.requests + 1)
	})
}

func relative(v *view, scores []float64, cost func(c *candidate) float64) {
	least := math.Inf(1)
	for _, i := range v.alive {
		scores[i] = cost(&v.all[i])
		least = min(least, scores[i])
	}
	for _, i := range v.alive {
		scores[i] = least / scores[i]
	}
}

// uncached tokens of the prompt on c.
func (v *view) uncached(c *candidate) int { return v.tokens - c.matched }
