// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strconv"
	"strings"
	"sync"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the Prometheus metrics of the data plane. The labels model
// and pool hold configured names only, so their number is bounded.
type Instruments struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	ttft     *prometheus.HistogramVec
	tpot     *prometheus.HistogramVec
	tokens   *prometheus.CounterVec
	cost     *prometheus.CounterVec
	unpriced *prometheus.CounterVec
	sources  *prometheus.CounterVec
	attempts *prometheus.CounterVec
	fallen   *prometheus.CounterVec
	routes   *prometheus.CounterVec
	copies   *prometheus.CounterVec
	refused  *prometheus.CounterVec
	phases   phases
	tenants  tenantCounts
	overload prometheus.Counter
	full     prometheus.Counter
	cut      prometheus.Counter
	reg      prometheus.Registerer
}

// targetCounts are the instruments of one model on one pool, looked up once: at
// the start, so that rates begin at 0, or with very many models at the first
// request, for each has forty series.
type targetCounts struct {
	in          *Instruments
	model, pool string
	once        sync.Once

	seconds, ttft, tpot prometheus.Observer
	input, cached       prometheus.Counter
	output              prometheus.Counter
	ok                  prometheus.Counter // requests answered 200
}

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		reg: reg,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_requests_total",
			Help: "Requests ended, by model, pool, status as sent and class of error."}, []string{"model", "pool", "status", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_request_seconds",
			Help: "From the request's head to the answer's last byte.", Buckets: durationBuckets()}, []string{"model", "pool"}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_time_to_first_token_seconds",
			Help: "From the request's head to the first token of a stream, or to a whole answer.", Buckets: firstTokenBuckets()}, []string{"model", "pool"}),
		tpot: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_time_per_output_token_seconds",
			Help:    "Mean time between the output tokens of one stream.",
			Buckets: []float64{.005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}}, []string{"model", "pool"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_tokens_total",
			Help: "Tokens by kind: input, cached and written (parts of input), output, reasoning (part of output), audio (part of either)."}, []string{"model", "pool", "kind"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_cost_usd_total",
			Help: "What requests cost in USD, by the price table; those whose price is not known are in penstock_unpriced_requests_total."}, []string{"model", "pool"}),
		unpriced: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_unpriced_requests_total",
			Help: "Requests that used tokens and have no known price, although there are prices."}, []string{"model", "pool"}),
		sources: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_usage_sources_total",
			Help: "Requests that used tokens by who counted them: reported (the server), estimated (the gateway), partial (the answer broke off), lost."}, []string{"source"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_attempts_failed_total",
			Help: "Attempts at members that brought no answer, by the error that one would have reported."}, []string{"pool", "code"}),
		fallen: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_fallbacks_total",
			Help: "Requests that went to a fallback, by the model asked for (aliases resolved) and the class: general, contextWindow, contentPolicy, degraded."}, []string{"model", "class"}),
		routes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_http_route_requests_total",
			Help: "Requests that HTTP routes took, by route, pool and class of the status as sent (2xx; 4xx includes clients that left)."}, []string{"route", "pool", "class"}),
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_mirrored_requests_total",
			Help: "Copies of requests for mirrors, by what became of them: sent, failed, no_endpoint, too_large, too_many."}, []string{"pool", "result"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_picks_refused_total",
			Help: "Endpoints that a picker named and that were not members of the pool."}, []string{"pool"}),
		phases:  newPhases(),
		tenants: newTenantCounts(),
		overload: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_overload_refusals_total",
			Help: "Requests refused because too many bytes of request bodies were held."}),
		full: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_connections_full_total",
			Help: "Times that accepting stopped because limits.connections, or half of the open files, was reached."}),
		cut: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_streams_cut_total",
			Help: "Exchanges cut because a drain ran out of time."}),
	}
	if reg != nil {
		reg.MustRegister(in.requests, in.seconds, in.ttft, in.tpot, in.tokens, in.cost, in.unpriced, in.sources, in.attempts, in.fallen, in.routes, in.copies, in.refused, in.phases, in.tenants.requests, in.tenants.tokens, in.tenants.cost, in.overload, in.full, in.cut)
	}
	return in
}

// durationBuckets and firstTokenBuckets are those that the conventions for
// generative AI advise, and further ones for calls that last longer.
func durationBuckets() []float64 {
	return []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36}
}

func firstTokenBuckets() []float64 {
	return []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60}
}

// openBy registers the gauge of exchanges under way.
func (in *Instruments) openBy(f func() float64) {
	if in.reg != nil {
		in.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_requests_open",
			Help: "Requests under way."}, f))
	}
}

// manyModels is from how many models on series are made at the first request.
const manyModels = 500

func (in *Instruments) target(model, pool string, models int) *targetCounts {
	c := &targetCounts{in: in, model: model, pool: pool}
	if models < manyModels {
		c.once.Do(c.make)
	}
	return c
}

func (c *targetCounts) make() {
	in, model, pool := c.in, c.model, c.pool
	c.seconds, c.ttft, c.tpot = in.seconds.WithLabelValues(model, pool), in.ttft.WithLabelValues(model, pool), in.tpot.WithLabelValues(model, pool)
	c.input, c.cached = in.tokens.WithLabelValues(model, pool, "input"), in.tokens.WithLabelValues(model, pool, "cached")
	c.output = in.tokens.WithLabelValues(model, pool, "output")
	c.ok = in.requests.WithLabelValues(model, pool, "200", "")
}

// observe counts one exchange that has ended.
func (in *Instruments) observe(x *exchange) {
	rec := x.record
	in.tenants.observe(rec)
	if x.rule != nil {
		in.routes.WithLabelValues(rec.Route, rec.Pool, strconv.Itoa(rec.Status/100)+"xx").Inc()
	}
	if x.model != nil && rec.Fallback != "" {
		class, _, _ := strings.Cut(rec.Fallback, ":")
		in.fallen.WithLabelValues(x.model.name, class).Inc()
	}
	if x.target == nil || x.target.counts == nil {
		in.requests.WithLabelValues("", "", strconv.Itoa(rec.Status), rec.ErrorClass).Inc()
		return
	}
	c := x.target.counts
	c.once.Do(c.make)
	if rec.Status == 200 && rec.ErrorClass == "" {
		c.ok.Inc()
	} else {
		model := ""
		if x.model != nil {
			model = x.model.name
		}
		in.requests.WithLabelValues(model, x.target.where(), strconv.Itoa(rec.Status), rec.ErrorClass).Inc()
	}
	observe(c.seconds, rec.Total, &rec.Trace)
	if rec.TTFT > 0 {
		observe(c.ttft, rec.TTFT, &rec.Trace)
	}
	if rec.TPOT > 0 {
		observe(c.tpot, rec.TPOT, &rec.Trace)
	}
	in.phases.observe(rec)
	u := &rec.Counts
	c.input.Add(float64(u.Prompt()))
	c.cached.Add(float64(u.CacheRead))
	c.output.Add(float64(u.Completion()))
	if n := u.Written(); n > 0 {
		in.tokens.WithLabelValues(c.model, c.pool, "written").Add(float64(n))
	}
	if u.Reasoning > 0 {
		in.tokens.WithLabelValues(c.model, c.pool, "reasoning").Add(float64(u.Reasoning))
	}
	if n := u.AudioInput + u.AudioOutput; n > 0 {
		in.tokens.WithLabelValues(c.model, c.pool, "audio").Add(float64(n))
	}
	if rec.Cost.Known && rec.Cost.Pico > 0 {
		in.cost.WithLabelValues(c.model, c.pool).Add(float64(rec.Cost.Pico) / float64(config.Dollar))
	}
	if u.Source != llm.Nothing {
		in.sources.WithLabelValues(u.Source.String()).Inc()
	}
}

func (in *Instruments) attemptFailed(pool, code string) {
	in.attempts.WithLabelValues(pool, code).Inc()
}

func (in *Instruments) refusedPick(pool string) { in.refused.WithLabelValues(pool).Inc() }

// forget drops what was counted for HTTP routes that are gone: their names come
// and go with the objects of a cluster.
func (in *Instruments) forget(old, cfg *config.Config) {
	if old == nil {
		return
	}
	stays := map[string]bool{}
	for i := range cfg.HTTPRoutes {
		stays[cfg.HTTPRoutes[i].Name] = true
	}
	for i := range old.HTTPRoutes {
		if name := old.HTTPRoutes[i].Name; !stays[name] {
			in.routes.DeletePartialMatch(prometheus.Labels{"route": name})
		}
	}
}

func (in *Instruments) mirrored(pool, result string) { in.copies.WithLabelValues(pool, result).Inc() }
