// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ServerInstruments are the Prometheus metrics of the picker listeners.
type ServerInstruments struct {
	open      *prometheus.GaugeVec
	started   *prometheus.CounterVec
	ended     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	odd       *prometheus.CounterVec
	immediate *prometheus.CounterVec
	reg       prometheus.Registerer
}

// How a stream ended.
const (
	outcomeCompleted = "completed" // the answer has passed
	outcomePicked    = "picked"    // answered; the gateway showed nothing of the answer
	outcomeImmediate = "immediate" // by an immediate response
	outcomeEvicted   = "evicted"   // the picker withdrew the request
	outcomeCanceled  = "canceled"  // the gateway left, or the stream was cut
	outcomeSilent    = "silent"    // the gateway did not send the whole request
	outcomeFailed    = "failed"    // a message that could not be taken, or a fault here
	outcomeObserved  = "observed"  // observability mode
	outcomeRefused   = "refused"   // too many streams
)

// NewServerInstruments registers the metrics; a nil reg keeps them
// unregistered.
func NewServerInstruments(reg prometheus.Registerer) *ServerInstruments {
	in := &ServerInstruments{
		reg: reg,
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_epp_streams_open",
			Help: "Picker streams under way, one for each request of a gateway."}, []string{"pool"}),
		started: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_epp_streams_started_total",
			Help: "Picker streams begun."}, []string{"pool"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_epp_streams_ended_total",
			Help: "Picker streams ended, by how."}, []string{"pool", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_epp_answer_seconds",
			Help:    "From the last byte of a request to the picker's answer, waiting for the gateway to take it included.",
			Buckets: []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 1e-1, 1}}, []string{"pool"}),
		odd: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_epp_spurious_messages_total",
			Help: "Messages of gateways that were out of order, not understood or ignored, by kind."}, []string{"pool", "kind"}),
		immediate: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_epp_immediate_responses_total",
			Help: "Requests that the picker answered itself, by status."}, []string{"pool", "status"}),
	}
	if reg != nil {
		reg.MustRegister(in.open, in.started, in.ended, in.seconds, in.odd, in.immediate)
	}
	return in
}

// heldBy registers the gauge of request bodies held.
func (in *ServerInstruments) heldBy(bodies *atomic.Int64) {
	if in.reg != nil {
		in.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_epp_request_body_bytes_held",
			Help: "Bytes of request bodies held by picker streams."}, func() float64 { return float64(bodies.Load()) }))
	}
}

// poolCounts are the instruments of one pool, looked up once.
type poolCounts struct {
	in        *ServerInstruments
	pool      string
	open      prometheus.Gauge
	started   prometheus.Counter
	completed prometheus.Counter
	refused   prometheus.Counter
	seconds   prometheus.Observer
}

func (in *ServerInstruments) of(pool string) *poolCounts {
	return &poolCounts{
		in: in, pool: pool, open: in.open.WithLabelValues(pool), started: in.started.WithLabelValues(pool),
		completed: in.ended.WithLabelValues(pool, outcomeCompleted), refused: in.ended.WithLabelValues(pool, outcomeRefused),
		seconds: in.seconds.WithLabelValues(pool),
	}
}

func (c *poolCounts) begin() {
	c.open.Inc()
	c.started.Inc()
}

func (c *poolCounts) end(outcome string) {
	c.open.Dec()
	if outcome == outcomeCompleted {
		c.completed.Inc()
		return
	}
	c.in.ended.WithLabelValues(c.pool, outcome).Inc()
}

func (c *poolCounts) answered(since time.Time) { c.seconds.Observe(time.Since(since).Seconds()) }

// spurious counts a message; kind is one of few constants.
func (c *poolCounts) spurious(kind string) { c.in.odd.WithLabelValues(c.pool, kind).Inc() }

func (c *poolCounts) refusal(status int) {
	c.in.immediate.WithLabelValues(c.pool, strconv.Itoa(status)).Inc()
}
