// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlp sends what a gateway knows of its requests to an OpenTelemetry
// collector: records of requests as spans and as log records, and the metrics of
// a Prometheus registry.
//
// A trace is a view of the record: spans are made when the request has ended, by
// a goroutine of this package, with the ids that servers were told at the time.
// So a request that is not sampled costs nothing here. Names are those of the
// semantic conventions for generative AI, version [Conventions].
//
// Left to others: which requests are sampled (package usage), what a record holds
// (package proxy). Start reading at [Exporter.Emit].
//
// Always true: Emit never blocks; at most Buffer records wait; what is lost is
// counted, with the reason.
package otlp

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
)

// Conventions is the version of the semantic conventions for generative AI
// (https://github.com/open-telemetry/semantic-conventions-genai) that names follow.
const Conventions = "1.42.0"

const schemaURL = "https://opentelemetry.io/schemas/gen-ai/" + Conventions

// Options are what an Exporter needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments        // shared by exporters that follow each other; nil: none
	TLS     *tls.Config         // of an https endpoint; nil: the system's authorities
	Gather  prometheus.Gatherer // whose metrics are sent; nil: none
	Version string              // of the program
	// Picks are the decisions of the pickers for a request that are still known.
	Picks func(requestID string) []Pick
}

// Pick is one decision of a picker, for the span of it.
type Pick struct {
	At         time.Time
	Took       time.Duration
	Pool       string
	Profile    string
	Reason     string
	Picked     string // the first choice
	Candidates []Candidate
}

// Candidate is one member that was looked at.
type Candidate struct {
	Endpoint, RefusedBy string
	Score               float64
	Scores              map[string]float64 // by scorer, before the weight
}

// The bounds of a batch.
const (
	mostRecords = 512             // of one request to the collector
	batchTime   = time.Second     // that a record waits at most
	closeTime   = 5 * time.Second // for what waits when the exporter ends
)

// Exporter sends to one collector. A nil Exporter drops everything silently: it is
// off.
type Exporter struct {
	cfg      config.Telemetry
	log      *slog.Logger
	metrics  *Instruments
	resource *resourcepb.Resource
	picks    func(string) []Pick
	gather   prometheus.Gatherers
	genAI    *genAI // nil: off
	client   *client

	mu     sync.RWMutex // held for reading over a send, for writing over close(queue)
	closed bool
	queue  chan *usage.Record
	done   chan struct{} // the goroutine of records has ended
	ctx    context.Context
	end    context.CancelFunc
	ticker sync.WaitGroup // of metrics
	fault  string         // of the last request; the sender's own, under sending
	sends  sync.Mutex
}

// Open starts the exporter that cfg asks for; nil when there is no collector. One
// that is away is no error.
func Open(cfg config.Telemetry, o Options) (*Exporter, error) {
	if cfg.Off() {
		return nil, nil
	}
	c, err := dial(&cfg.OTLP, o.TLS)
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp: %w", err)
	}
	e := &Exporter{
		cfg: cfg, log: o.Log, metrics: o.Metrics, picks: o.Picks, client: c, resource: resource(cfg.Resource, o.Version),
		queue: make(chan *usage.Record, max(cfg.Buffer, 1)), done: make(chan struct{}),
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.metrics == nil {
		e.metrics = NewInstruments(nil)
	}
	if e.picks == nil {
		e.picks = func(string) []Pick { return nil }
	}
	e.ctx, e.end = context.WithCancel(context.Background())
	if cfg.Metrics.Interval > 0 {
		if o.Gather != nil {
			e.gather = append(e.gather, o.Gather)
		}
		if e.genAI = newGenAI(cfg.Metrics.GenAI); e.genAI != nil {
			e.gather = append(e.gather, e.genAI.reg)
		}
		e.ticker.Go(e.report)
	}
	go e.run()
	return e, nil
}

// resource says who sends.
func resource(more map[string]string, version string) *resourcepb.Resource {
	host, _ := os.Hostname()
	all := map[string]string{"service.name": "penstock", "service.version": version, "service.instance.id": fmt.Sprintf("%s/%d", host, os.Getpid()), "host.name": host}
	for k, v := range more {
		all[k] = v
	}
	r := &resourcepb.Resource{}
	for k, v := range all {
		if v != "" {
			r.Attributes = append(r.Attributes, text(k, v))
		}
	}
	slices.SortFunc(r.Attributes, func(a, b *commonpb.KeyValue) int { return compare(a.Key, b.Key) })
	return r
}

// Emit hands rec over if it is to be sent; it must not change afterwards. It never
// blocks: what there is no room for is dropped and counted.
func (e *Exporter) Emit(rec *usage.Record) {
	if e == nil {
		return
	}
	e.genAI.observe(rec)
	if !rec.Trace.Sampled && !e.cfg.Records {
		return
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		e.metrics.drop(dropClosed, 1)
		return
	}
	select {
	case e.queue <- rec:
	default:
		e.metrics.drop(dropFull, 1)
	}
}

// run brings records to the collector, in batches.
func (e *Exporter) run() {
	defer close(e.done)
	var batch []*usage.Record
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	for open := true; open; {
		var rec *usage.Record
		select {
		case rec, open = <-e.queue:
			if open {
				batch = append(batch, rec)
			}
			if open && len(batch) < mostRecords {
				continue
			}
		case <-timer.C:
		}
		e.flush(batch)
		clear(batch)
		batch = batch[:0]
		timer.Reset(batchTime)
	}
}

// flush sends what a batch is made of.
func (e *Exporter) flush(batch []*usage.Record) {
	var spans []*tracepb.Span
	var logs []*logspb.LogRecord
	traces := 0
	for _, rec := range batch {
		if rec.Trace.Sampled {
			spans = append(spans, spansOf(rec, e.picks(rec.RequestID))...)
			traces++
		}
		if e.cfg.Records {
			logs = append(logs, logOf(rec))
		}
	}
	scope := &commonpb.InstrumentationScope{Name: "github.com/penstock/penstock"}
	if len(spans) > 0 {
		e.send(signalTraces, traces, func(ctx context.Context) (int64, error) {
			return e.client.traces(ctx, []*tracepb.ResourceSpans{{
				Resource: e.resource, SchemaUrl: schemaURL,
				ScopeSpans: []*tracepb.ScopeSpans{{Scope: scope, Spans: spans, SchemaUrl: schemaURL}},
			}})
		})
	}
	if len(logs) > 0 {
		e.send(signalLogs, len(logs), func(ctx context.Context) (int64, error) {
			return e.client.logs(ctx, []*logspb.ResourceLogs{{
				Resource: e.resource, SchemaUrl: schemaURL,
				ScopeLogs: []*logspb.ScopeLogs{{Scope: scope, LogRecords: logs, SchemaUrl: schemaURL}},
			}})
		})
	}
}

// send makes one request to the collector, again while the collector asks for it
// and the time is not over. What fails is lost: new records matter more than old
// ones, and memory stays bounded.
func (e *Exporter) send(signal string, n int, export func(context.Context) (refused int64, err error)) {
	e.sends.Lock()
	defer e.sends.Unlock()
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.OTLP.Timeout.D())
	defer cancel()
	refused, err := export(ctx)
	for pause := 100 * time.Millisecond; err != nil && again(err) && sleep(ctx, pause); pause *= 2 {
		refused, err = export(ctx)
	}
	switch {
	case err != nil:
		e.metrics.failed(signal)
		if signal != signalMetrics {
			e.metrics.drop(dropSend, n)
		}
	case refused > 0 && signal != signalMetrics:
		e.metrics.drop(dropRefused, min(n, int(refused)))
		n = max(0, n-int(refused))
	}
	if err == nil {
		e.metrics.sent.WithLabelValues(signal).Add(float64(n))
	}
	e.tell(err)
}

// sleep waits, and says no if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// tell logs an error when it differs from the last one.
func (e *Exporter) tell(err error) {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault == e.fault {
		return
	}
	e.fault = fault
	if err != nil {
		e.log.Error("the OpenTelemetry collector takes nothing; what is sent to it is lost", "endpoint", e.cfg.OTLP.Endpoint, "error", fault)
	} else {
		e.log.Info("the OpenTelemetry collector takes what is sent again", "endpoint", e.cfg.OTLP.Endpoint)
	}
}

// report sends the metrics at the interval.
func (e *Exporter) report() {
	start := time.Now()
	tick := time.NewTicker(e.cfg.Metrics.Interval.D())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.sendMetrics(start)
		case <-e.ctx.Done():
			return
		}
	}
}

// Close takes no more records and sends those that wait, within five seconds.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.queue)
	}
	e.mu.Unlock()
	select {
	case <-e.done:
	case <-time.After(closeTime):
		e.metrics.drop(dropClosed, len(e.queue))
	}
	e.end()
	<-e.done
	e.ticker.Wait()
	e.client.close()
}

// Instruments count what became of what was to be sent.
type Instruments struct {
	sent    *prometheus.CounterVec
	dropped *prometheus.CounterVec
	errors  *prometheus.CounterVec
}

const (
	signalTraces  = "traces"
	signalLogs    = "records"
	signalMetrics = "metrics"

	dropFull    = "full"
	dropSend    = "send"
	dropRefused = "refused"
	dropClosed  = "closed"
)

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_otlp_sent_total",
			Help: "What an OpenTelemetry collector took, by signal: traces (of requests), records, metrics (reports)."}, []string{"signal"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_otlp_dropped_total",
			Help: "Records that no collector got, by reason: full (telemetry.buffer), send (it failed), refused (the collector said so), closed."}, []string{"reason"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_otlp_errors_total",
			Help: "Requests to the collector that failed, by signal."}, []string{"signal"}),
	}
	for _, s := range []string{signalTraces, signalLogs, signalMetrics} {
		in.sent.WithLabelValues(s)
		in.errors.WithLabelValues(s)
	}
	for _, r := range []string{dropFull, dropSend, dropRefused, dropClosed} {
		in.dropped.WithLabelValues(r)
	}
	if reg != nil {
		reg.MustRegister(in.sent, in.dropped, in.errors)
	}
	return in
}

func (in *Instruments) drop(reason string, n int) {
	if n > 0 {
		in.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

func (in *Instruments) failed(signal string) { in.errors.WithLabelValues(signal).Inc() }
