// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import "github.com/prometheus/client_golang/prometheus"

// ClientInstruments are the metrics of remote pickers, by pool.
type ClientInstruments struct {
	seconds  *prometheus.HistogramVec
	failures *prometheus.CounterVec
	streams  *prometheus.GaugeVec
	pending  *prometheus.GaugeVec
	replicas *prometheus.GaugeVec
	refused  *prometheus.CounterVec
	oddities *prometheus.CounterVec
	dropped  *prometheus.CounterVec
}

// NewClientInstruments registers the metrics; a nil reg keeps them
// unregistered.
func NewClientInstruments(reg prometheus.Registerer) *ClientInstruments {
	in := &ClientInstruments{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_picker_seconds",
			Help:    "From a question to a remote picker's answer, refusals included.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"pool"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_picker_failures_total",
			Help: "Picks that a remote picker failed to make: unreachable, busy, timeout, ended (without an answer), broken (the stream), invalid (the answer)."}, []string{"pool", "reason"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_picker_streams",
			Help: "Streams open to a remote picker."}, []string{"pool"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_picker_pending",
			Help: "Picks that wait for a remote picker; picker.remote.maxPending is the limit."}, []string{"pool"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_picker_replicas",
			Help: "Addresses of a remote picker by state: ready, other."}, []string{"pool", "state"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_picker_mutations_refused_total",
			Help: "Header edits of a remote picker that were not carried out, by reason: name, value, pseudo, framing, many."}, []string{"pool", "reason"}),
		oddities: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_picker_oddities_total",
			Help: "What a remote picker did that the protocol does not say, and that was put up with: mismatch (header and metadata differ), empty-body, whole-body, no-body, early-body, order, late-head."}, []string{"pool", "what"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_picker_copies_ended_total",
			Help: "Copies of an answer that ended early because the picker did not keep up."}, []string{"pool"}),
	}
	if reg != nil {
		reg.MustRegister(in.seconds, in.failures, in.streams, in.pending, in.replicas, in.refused, in.oddities, in.dropped)
	}
	return in
}

// clientCounters are the instruments of one pool.
type clientCounters struct {
	in   *ClientInstruments
	pool string

	seconds          prometheus.Observer
	streams, pending prometheus.Gauge
}

func (in *ClientInstruments) of(pool string) *clientCounters {
	if in == nil {
		in = NewClientInstruments(nil)
	}
	c := &clientCounters{in: in, pool: pool, seconds: in.seconds.WithLabelValues(pool),
		streams: in.streams.WithLabelValues(pool), pending: in.pending.WithLabelValues(pool)}
	for _, reason := range failureReasons() {
		in.failures.WithLabelValues(pool, reason)
	}
	return c
}

func (c *clientCounters) failed(reason string) { c.in.failures.WithLabelValues(c.pool, reason).Inc() }

func (c *clientCounters) mutationsRefused(why string, n int) {
	c.in.refused.WithLabelValues(c.pool, why).Add(float64(n))
}

func (c *clientCounters) odd(what string) { c.in.oddities.WithLabelValues(c.pool, what).Inc() }

func (c *clientCounters) copyEnded() { c.in.dropped.WithLabelValues(c.pool).Inc() }

func (c *clientCounters) ready(n, all int) {
	c.in.replicas.WithLabelValues(c.pool, "ready").Set(float64(n))
	c.in.replicas.WithLabelValues(c.pool, "other").Set(float64(all - n))
}
