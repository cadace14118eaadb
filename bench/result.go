// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Result is what a [Run] came to. Requests that arrived in the warm-up do not
// count. Times are in seconds; a request without an answer counts as a TTFT of
// 60 s.
type Result struct {
	Policy   string  `json:"policy"`
	Workload string  `json:"workload"`
	Load     float64 `json:"load"`
	Seed     uint64  `json:"seed"`
	Gateways int     `json:"gateways"`

	Offered  int `json:"offered"`
	Answered int `json:"answered"`
	Good     int `json:"good"` // answered within the SLO
	GaveUp   int `json:"gaveUp"`
	Refused  int `json:"refused"`
	Broken   int `json:"broken"`

	TTFT         Quantiles `json:"ttft"`
	TPOT         Quantiles `json:"tpot"`
	PromptTokens int       `json:"promptTokens"`
	HitTokens    int       `json:"hitTokens"` // the engines' own count
	OutputTokens int       `json:"outputTokens"`
	OutputRate   float64   `json:"outputTokensPerSecond"`

	// Balance is the mean number of requests in flight of the busiest server
	// over the median server's.
	Balance  float64 `json:"maxOverMedianLoad"`
	MaxQueue int     `json:"maxQueue"` // longest waiting line of any server
	// QueueExcess is by how much a server's waiting line was longer than twice
	// the median line plus 2, at the worst of the samples (every 100 ms). 0: never.
	QueueExcess    float64          `json:"queueExcess"`
	AssignedTokens []int            `json:"assignedTokens"` // prompt tokens of them
	Assigned       []int            `json:"assigned"`       // requests to each server
	Classes        map[string]Class `json:"classes"`        // by part of the workload
}

// Class is the part of a result that belongs to one source of the workload.
type Class struct {
	Offered      int       `json:"offered"`
	Good         int       `json:"good"`
	PromptTokens int       `json:"promptTokens"`
	HitTokens    int       `json:"hitTokens"`
	TTFT         Quantiles `json:"ttft"`
}

// Goodput is the part of the offered requests that were answered within the
// SLO, 0..1.
func (r *Result) Goodput() float64 { return ratio(r.Good, r.Offered) }

// HitRate is the part of the prompt tokens that the engines found cached.
func (r *Result) HitRate() float64 { return ratio(r.HitTokens, r.PromptTokens) }

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Quantiles are exact: samples, not buckets.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// QuantilesOf sorts the samples.
func QuantilesOf(samples []float64) Quantiles {
	slices.Sort(samples)
	return Quantiles{Quantile(samples, 0.5), Quantile(samples, 0.9), Quantile(samples, 0.99)}
}

// Quantile is the smallest sample that at least a part q of all does not
// exceed; the samples are sorted. 0 without samples.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(0, min(i, len(sorted)-1))]
}

// tally collects what the measured requests came to.
type tally struct {
	result  Result
	ttft    []float64
	tpot    []float64
	classes map[string]*classTally
	queues  []int // scratch
}

type classTally struct {
	Class
	ttft []float64
}

func newTally() tally { return tally{classes: map[string]*classTally{}} }

// offered counts a request whatever became of it.
func (t *tally) offered(f *flight, ttft float64) *classTally {
	name := f.session.Class
	c := t.classes[name]
	if c == nil {
		c = &classTally{}
		t.classes[name] = c
	}
	t.result.Offered++
	c.Offered++
	t.ttft = append(t.ttft, ttft)
	c.ttft = append(c.ttft, ttft)
	return c
}

func (t *tally) refused(f *flight) {
	if f.counts {
		t.result.Refused++
		t.offered(f, patience.Seconds())
	}
}

func (t *tally) gaveUp(f *flight) {
	if f.counts {
		t.result.GaveUp++
		t.offered(f, patience.Seconds())
	}
}

func (t *tally) broken(f *flight) {
	if f.counts {
		t.result.Broken++
		t.offered(f, patience.Seconds())
	}
}

func (t *tally) answered(f *flight, slo SLO) {
	if !f.counts {
		return
	}
	ttft := f.first - f.arrived
	c := t.offered(f, ttft.Seconds())
	var tpot time.Duration
	if f.tokens > 1 {
		tpot = (f.last - f.first) / time.Duration(f.tokens-1)
		t.tpot = append(t.tpot, tpot.Seconds())
	}
	prompt := f.Prompt.Tokens()
	t.result.Answered++
	t.result.PromptTokens += prompt
	t.result.HitTokens += f.cached
	t.result.OutputTokens += f.tokens
	c.PromptTokens += prompt
	c.HitTokens += f.cached
	bound := slo.TTFT
	if slo.PromptRate > 0 {
		bound += time.Duration(float64(prompt) / slo.PromptRate * float64(time.Second))
	}
	if ttft <= bound && tpot <= slo.TPOT {
		t.result.Good++
		c.Good++
	}
}

// sample looks at the waiting lines.
func (c *race) sample() {
	q := c.tally.queues[:0]
	for i := range c.servers {
		if c.servers[i].up {
			q = append(q, c.servers[i].gauges.Waiting)
		}
	}
	slices.Sort(q)
	if n := len(q); n > 0 {
		excess := float64(q[n-1]) - 2*median(q) - 2
		c.tally.result.QueueExcess = max(c.tally.result.QueueExcess, excess)
	}
	c.tally.queues = q
	if c.now < c.run.Workload.Window {
		c.push(event{at: c.now + sampling, kind: sample})
	}
}

// median of sorted values.
func median[T int | float64](sorted []T) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (float64(sorted[(n-1)/2]) + float64(sorted[n/2])) / 2
}

func (c *race) result() *Result {
	for _, f := range c.flights {
		if !f.over && f.counts { // it outlived the run
			c.tally.offered(f, max(c.now-f.arrived, patience).Seconds())
			c.tally.result.GaveUp++
		}
	}
	r := c.tally.result
	w := &c.run.Workload
	r.Policy, r.Workload, r.Load, r.Seed, r.Gateways = c.run.Policy, w.Name, c.run.Load, c.run.Seed, len(c.gateways)
	r.TTFT, r.TPOT = QuantilesOf(c.tally.ttft), QuantilesOf(c.tally.tpot)
	r.OutputRate = float64(r.OutputTokens) / (w.Window - w.Warmup).Seconds()
	areas := make([]float64, len(c.servers))
	for i := range c.servers {
		s := &c.servers[i]
		s.account(c.now)
		areas[i] = s.area
		r.Assigned = append(r.Assigned, s.assigned)
		r.AssignedTokens = append(r.AssignedTokens, s.assignedTokens)
		r.MaxQueue = max(r.MaxQueue, s.maxQueue)
	}
	slices.Sort(areas)
	if m := median(areas); m > 0 {
		r.Balance = areas[len(areas)-1] / m
	}
	r.Classes = map[string]Class{}
	for name, t := range c.tally.classes {
		t.Class.TTFT = QuantilesOf(t.ttft)
		r.Classes[name] = t.Class
	}
	return &r
}

// sortedFlights makes the order of a map's requests the same in every run.
func sortedFlights(m map[uint64]*flight) []*flight {
	out := make([]*flight, 0, len(m))
	for _, f := range m {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *flight) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
