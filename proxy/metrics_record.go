// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
)

// observe adds v to a histogram, with the trace as exemplar if there is one to be
// found: that of a sampled request.
func observe(o prometheus.Observer, v float64, t *usage.Trace) {
	if e, ok := o.(prometheus.ExemplarObserver); ok && t.Sampled {
		e.ObserveWithExemplar(v, prometheus.Labels{"trace_id": t.ID.String()})
		return
	}
	o.Observe(v)
}

// phases are how long the steps of requests take.
type phases struct {
	*prometheus.HistogramVec
	read, quota, pick, firstOutput, stream prometheus.Observer
}

func newPhases() phases {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_phase_seconds",
		Help:    "Time of a request by phase: read (the client's body), quota (its limits were asked), pick, first_output (from the request to a server to its first output), stream (from there to the end).",
		Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}, []string{"phase"})
	return phases{v, v.WithLabelValues("read"), v.WithLabelValues("quota"), v.WithLabelValues("pick"), v.WithLabelValues("first_output"), v.WithLabelValues("stream")}
}

// observe counts the phases of a request that had a target.
func (p *phases) observe(rec *usage.Record) {
	if rec.Read > 0 {
		p.read.Observe(rec.Read)
	}
	if rec.Reserve > 0 {
		p.quota.Observe(rec.Reserve)
	}
	for i := range rec.Tries {
		t := &rec.Tries[i]
		if t.Pick > 0 {
			p.pick.Observe(t.Pick)
		}
		if i == len(rec.Tries)-1 && t.Error == "" {
			p.firstOutput.Observe(t.Seconds)
			p.stream.Observe(max(rec.Total-t.At-t.Seconds, 0))
		}
	}
}

// mostTenants bounds the tenants that metrics tell apart.
const mostTenants = 1000

// tenantCounts are the metrics by tenant.
type tenantCounts struct {
	names    *usage.Labels
	series   *sync.Map // *tenantSeries by label
	requests *prometheus.CounterVec
	tokens   *prometheus.CounterVec
	cost     *prometheus.CounterVec
}

// tenantSeries are those of one tenant, looked up once.
type tenantSeries struct {
	ok            prometheus.Counter
	input, output prometheus.Counter
	cost          prometheus.Counter
}

func newTenantCounts() tenantCounts {
	return tenantCounts{
		names: &usage.Labels{Most: mostTenants}, series: &sync.Map{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_tenant_requests_total",
			Help: "Requests ended, by tenant and status as sent; the first 1,000 tenants are told apart, the others are other."}, []string{"tenant", "status"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_tenant_tokens_total",
			Help: "Tokens by tenant and kind: input, output."}, []string{"tenant", "kind"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_tenant_cost_usd_total",
			Help: "What the requests of a tenant cost in USD, by the price table."}, []string{"tenant"}),
	}
}

// observe counts a request of a tenant.
func (t *tenantCounts) observe(rec *usage.Record) {
	if rec.Tenant == "" {
		return
	}
	name := t.names.Of(rec.Tenant)
	v, ok := t.series.Load(name)
	if !ok {
		v, _ = t.series.LoadOrStore(name, &tenantSeries{
			ok: t.requests.WithLabelValues(name, "200"), input: t.tokens.WithLabelValues(name, "input"),
			output: t.tokens.WithLabelValues(name, "output"), cost: t.cost.WithLabelValues(name),
		})
	}
	s := v.(*tenantSeries)
	if rec.Status == 200 {
		s.ok.Inc()
	} else {
		t.requests.WithLabelValues(name, strconv.Itoa(rec.Status)).Inc()
	}
	s.input.Add(float64(rec.Counts.Prompt()))
	s.output.Add(float64(rec.Counts.Completion()))
	if rec.Cost.Known {
		s.cost.Add(float64(rec.Cost.Pico) / float64(config.Dollar))
	}
}
