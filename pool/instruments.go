// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the Prometheus metrics of all pools (penstock_pool_…).
//
// Counts of events are counters; what is true of a pool or a member at this
// moment is collected from the running pools when it is asked for, so a
// member's series vanish with the member and a pool's with Close. The methods
// of a nil *Instruments do nothing.
type Instruments struct {
	scrapes         *prometheus.CounterVec
	scrapeSeconds   *prometheus.HistogramVec
	discoveryErrors *prometheus.CounterVec
	ejections       *prometheus.CounterVec
	bounded         *prometheus.CounterVec

	mu    sync.Mutex
	pools map[string]*Pool // running, by name

	descs gaugeDescs
}

// gaugeDescs describe what is collected from the pools.
type gaugeDescs struct {
	members, interval, missing, discovery      *prometheus.Desc
	up, inFlight, queued, waiting, running, kv *prometheus.Desc
}

// NewInstruments registers them. It panics if they are registered already.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_pool_" + name, Help: help}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_pool_"+name, help, labels, nil)
	}
	i := &Instruments{
		pools:   map[string]*Pool{},
		scrapes: counter("scrapes_total", "Scrapes of members by result.", "pool", "result"),
		scrapeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_pool_scrape_seconds",
			Help:    "Time from the request for a member's metrics page to the page read.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}, []string{"pool"}),
		discoveryErrors: counter("discovery_errors_total", "Attempts at discovery that kept the last good members.", "pool"),
		ejections:       counter("ejections_total", "Members taken out by passive health, by reason.", "pool", "reason"),
		bounded:         counter("ejections_bounded_total", "Ejections that did not happen because too many members were out already.", "pool"),
		descs: gaugeDescs{
			members:   desc("members", "Members by state.", "pool", "state"),
			interval:  desc("scrape_interval_seconds", "Effective scrape interval; it stretches with the size of the pool.", "pool"),
			missing:   desc("metric_missing", "Members whose metrics page lacks a signal that it had or should have.", "pool", "signal"),
			discovery: desc("discovery_up", "1 if the last attempt at discovery brought members.", "pool"),
			up:        desc("member_up", "1 if the member may be picked.", "pool", "endpoint"),
			inFlight:  desc("member_in_flight", "Requests that this gateway has open at the member.", "pool", "endpoint"),
			queued:    desc("member_queued_tokens", "Uncached prompt tokens sent to the member whose answers have not begun.", "pool", "endpoint"),
			waiting:   desc("member_waiting", "Requests in the member's queue by its own count; absent while unknown, stale or missing.", "pool", "endpoint"),
			running:   desc("member_running", "Requests in the member's batch by its own count; absent while unknown, stale or missing.", "pool", "endpoint"),
			kv:        desc("member_kv_usage", "Part of the member's KV cache in use, 0 to 1; absent while unknown, stale or missing.", "pool", "endpoint"),
		},
	}
	if reg != nil {
		reg.MustRegister(i.scrapes, i.scrapeSeconds, i.discoveryErrors, i.ejections, i.bounded, i)
	}
	return i
}

// Describe implements [prometheus.Collector].
func (i *Instruments) Describe(ch chan<- *prometheus.Desc) {
	d := i.descs
	for _, desc := range []*prometheus.Desc{d.members, d.interval, d.missing, d.discovery, d.up, d.inFlight, d.queued, d.waiting, d.running, d.kv} {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector].
func (i *Instruments) Collect(ch chan<- prometheus.Metric) {
	i.mu.Lock()
	pools := make([]*Pool, 0, len(i.pools))
	for _, p := range i.pools {
		pools = append(pools, p)
	}
	i.mu.Unlock()
	for _, p := range pools {
		i.collect(p, ch)
	}
}

func (i *Instruments) collect(p *Pool, ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var states [Down + 1]int
	missing := make([]int, len(signalNames()))
	for _, m := range p.Snapshot().Members {
		state := m.State()
		states[state]++
		lacks := Signals(m.lacks.Load())
		for bit := range missing {
			missing[bit] += int(lacks>>bit) & 1
		}
		up := 0.0
		if state <= Returning {
			up = 1
		}
		load := m.Load()
		gauge(i.descs.up, up, p.name, m.address)
		gauge(i.descs.inFlight, float64(load.Requests), p.name, m.address)
		gauge(i.descs.queued, float64(load.Queued), p.name, m.address)
		x := m.Metrics()
		if x == nil || m.Stale() {
			continue
		}
		if x.Has&HasWaiting != 0 {
			gauge(i.descs.waiting, x.Waiting, p.name, m.address)
		}
		if x.Has&HasRunning != 0 {
			gauge(i.descs.running, x.Running, p.name, m.address)
		}
		if x.Has&HasKVUsage != 0 {
			gauge(i.descs.kv, x.KVUsage, p.name, m.address)
		}
	}
	for state, n := range states {
		gauge(i.descs.members, float64(n), p.name, State(state).String())
	}
	for bit, name := range signalNames() {
		gauge(i.descs.missing, float64(missing[bit]), p.name, name)
	}
	if !p.cfg.Load().Metrics.Off {
		gauge(i.descs.interval, p.scrapeInterval().Seconds(), p.name)
	}
	if d := p.discovery.Load(); d.Source != sourceNone {
		ok := 0.0
		if d.OK {
			ok = 1
		}
		gauge(i.descs.discovery, ok, p.name)
	}
}

// add shows p from now on. Of two pools of one name, as there may be for a
// moment at a reload, the later is shown.
func (i *Instruments) add(p *Pool) {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.pools[p.name] = p
	i.mu.Unlock()
	i.discoveryErrors.WithLabelValues(p.name)
	i.bounded.WithLabelValues(p.name)
	for _, reason := range []Outcome{Refused, Reset, ServerError, TimedOut} {
		i.ejections.WithLabelValues(p.name, reason.String())
	}
}

func (i *Instruments) remove(p *Pool) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pools[p.name] != p {
		return
	}
	delete(i.pools, p.name)
	series := prometheus.Labels{"pool": p.name}
	for _, vec := range []*prometheus.CounterVec{i.scrapes, i.discoveryErrors, i.ejections, i.bounded} {
		vec.DeletePartialMatch(series)
	}
	i.scrapeSeconds.DeletePartialMatch(series)
}

func (i *Instruments) scraped(pool string, f fault, took time.Duration) {
	if i == nil {
		return
	}
	if f == "" {
		i.scrapes.WithLabelValues(pool, "ok").Inc()
		i.scrapeSeconds.WithLabelValues(pool).Observe(took.Seconds())
		return
	}
	i.scrapes.WithLabelValues(pool, string(f)).Inc()
}

func (i *Instruments) discoveryFailed(pool string) {
	if i != nil {
		i.discoveryErrors.WithLabelValues(pool).Inc()
	}
}

func (i *Instruments) ejected(pool string, reason Outcome) {
	if i != nil {
		i.ejections.WithLabelValues(pool, reason.String()).Inc()
	}
}

func (i *Instruments) ejectionBounded(pool string) {
	if i != nil {
		i.bounded.WithLabelValues(pool).Inc()
	}
}
