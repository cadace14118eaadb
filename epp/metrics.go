// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the Prometheus metrics of all schedulers
// (penstock_pool_picks_total and others).
type Instruments struct {
	picks     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	predicted *prometheus.CounterVec
	reported  *prometheus.CounterVec

	mu         sync.Mutex
	schedulers map[string]*Scheduler // by pool
}

var (
	descBlocks = prometheus.NewDesc("penstock_pool_prefix_index_blocks",
		"Blocks of 64 tokens in the prefix index, counted once for every member that is believed to hold them.", []string{"pool"}, nil)
	descKappa = prometheus.NewDesc("penstock_pool_decode_cost_tokens",
		"Learnt cost of one stream to a decoding step, in tokens of prefill.", []string{"pool"}, nil)
	descSlow = prometheus.NewDesc("penstock_pool_endpoint_slowness_ratio",
		"Learnt slowness of an endpoint against the median of its pool; 1 is as fast.", []string{"pool", "endpoint"}, nil)
)

// slowSeries bounds the endpoints per pool that have a series of their own.
const slowSeries = 256

// NewInstruments registers them.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		picks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_pool_picks_total",
			Help: "Decisions of a pool's picker, each once, by what became of it: picked, a fallback, or a refusal.",
		}, []string{"pool", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_pool_pick_seconds",
			Help:    "Time of one decision.",
			Buckets: []float64{2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 1e-1},
		}, []string{"pool"}),
		predicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_pool_predicted_cached_tokens_total",
			Help: "Prompt tokens that the prefix index believed cached on the member, of answers with usage.",
		}, []string{"pool"}),
		reported: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_pool_reported_cached_tokens_total",
			Help: "Prompt tokens that members reported as cached, of answers with usage.",
		}, []string{"pool"}),
		schedulers: map[string]*Scheduler{},
	}
	reg.MustRegister(in.picks, in.seconds, in.predicted, in.reported, in)
	return in
}

// Describe is part of prometheus.Collector.
func (in *Instruments) Describe(ch chan<- *prometheus.Desc) {
	ch <- descBlocks
	ch <- descKappa
	ch <- descSlow
}

// Collect reads what the schedulers hold at the moment of a scrape.
func (in *Instruments) Collect(ch chan<- prometheus.Metric) {
	in.mu.Lock()
	defer in.mu.Unlock()
	gauge := func(d *prometheus.Desc, x float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
	}
	for name, s := range in.schedulers {
		gauge(descBlocks, float64(s.index.len()), name)
		gauge(descKappa, s.fleet.kappa.Load(), name)
		for i, t := range s.members.Load().members {
			if i == slowSeries {
				break
			}
			gauge(descSlow, t.speed.slow.Load(), name, t.address)
		}
	}
}

// counters are those of one scheduler; nil counts nothing.
type counters struct {
	in        *Instruments
	pool      string
	of        *Scheduler
	outcomes  map[string]prometheus.Counter
	seconds   prometheus.Observer
	predicted prometheus.Counter
	reported  prometheus.Counter
}

func (in *Instruments) of(pool string, s *Scheduler) *counters {
	if in == nil {
		return nil
	}
	c := &counters{
		in: in, pool: pool, of: s, outcomes: map[string]prometheus.Counter{}, seconds: in.seconds.WithLabelValues(pool),
		predicted: in.predicted.WithLabelValues(pool), reported: in.reported.WithLabelValues(pool),
	}
	for _, reason := range []string{
		reasonPicked, reasonSaturated, reasonNoEndpoints, reasonNoneReady, reasonSubset, reasonTried, reasonFiltered,
	} {
		c.outcomes[reason] = in.picks.WithLabelValues(pool, reason)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.schedulers[pool] = s
	return c
}

// Count adds a decision that was not a scheduler's own: a fallback or a refusal
// by whoever asked it. outcome is one of few constants.
func (in *Instruments) Count(pool, outcome string) {
	if in != nil {
		in.picks.WithLabelValues(pool, outcome).Inc()
	}
}

func (c *counters) picked(reason string, took time.Duration) {
	if c == nil {
		return
	}
	c.outcomes[reason].Inc()
	c.seconds.Observe(took.Seconds())
}

func (c *counters) cached(predicted, reported int) {
	if c == nil {
		return
	}
	c.predicted.Add(float64(max(0, predicted)))
	c.reported.Add(float64(max(0, reported)))
}

func (c *counters) close() {
	if c == nil {
		return
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.schedulers[c.pool] != c.of {
		return // a newer scheduler of a pool of that name
	}
	delete(c.in.schedulers, c.pool)
	for reason := range c.outcomes {
		c.in.picks.DeleteLabelValues(c.pool, reason)
	}
	c.in.seconds.DeleteLabelValues(c.pool)
	c.in.predicted.DeleteLabelValues(c.pool)
	c.in.reported.DeleteLabelValues(c.pool)
}
