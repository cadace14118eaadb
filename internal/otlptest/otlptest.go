// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlptest is an OpenTelemetry collector for tests: it keeps what it is
// sent, over gRPC and over HTTP.
package otlptest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // which senders use
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Collector keeps what came.
type Collector struct {
	GRPC string // endpoints
	HTTP string

	// Answer is asked before anything is kept; an error is the answer. Set it
	// before the first request. HTTP answers 503 in its place.
	Answer func() error

	mu       sync.Mutex
	spans    []*tracepb.ResourceSpans
	logs     []*logspb.ResourceLogs
	metrics  []*metricspb.ResourceMetrics
	headers  []map[string]string // of each request, one value per name
	requests int
}

// Start runs a collector until the test ends.
func Start(t testing.TB) *Collector {
	c := &Collector{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	coltrace.RegisterTraceServiceServer(s, traces{c: c})
	collogs.RegisterLogsServiceServer(s, logs{c: c})
	colmetrics.RegisterMetricsServiceServer(s, measures{c: c})
	go s.Serve(l)
	t.Cleanup(s.Stop)
	h := httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(h.Close)
	c.GRPC, c.HTTP = "http://"+l.Addr().String(), h.URL
	return c
}

// Spans are those that came, in the order in which they did.
func (c *Collector) Spans() (out []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.spans {
		for _, s := range r.ScopeSpans {
			out = append(out, s.Spans...)
		}
	}
	return out
}

// Resources are those of the spans.
func (c *Collector) Resources() []*tracepb.ResourceSpans {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tracepb.ResourceSpans(nil), c.spans...)
}

// Logs are the log records that came.
func (c *Collector) Logs() (out []*logspb.LogRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.logs {
		for _, s := range r.ScopeLogs {
			out = append(out, s.LogRecords...)
		}
	}
	return out
}

// Metrics are those of the last report, by name.
func (c *Collector) Metrics() map[string]*metricspb.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]*metricspb.Metric{}
	for _, r := range c.metrics {
		for _, s := range r.ScopeMetrics {
			for _, m := range s.Metrics {
				out[m.Name] = m
			}
		}
	}
	return out
}

// Headers are those of the first request that was kept.
func (c *Collector) Headers() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.headers) == 0 {
		return nil
	}
	return c.headers[0]
}

// Requests is how many came, refused ones included.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// Wait waits until what holds, or fails the test after ten seconds.
func (c *Collector) Wait(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the collector has waited ten seconds for %s", what)
		}
	}
}

// take keeps m.
func (c *Collector) take(m proto.Message, headers map[string]string) error {
	c.mu.Lock()
	c.requests++
	c.mu.Unlock()
	if c.Answer != nil {
		if err := c.Answer(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, headers)
	switch m := m.(type) {
	case *coltrace.ExportTraceServiceRequest:
		c.spans = append(c.spans, m.ResourceSpans...)
	case *collogs.ExportLogsServiceRequest:
		c.logs = append(c.logs, m.ResourceLogs...)
	case *colmetrics.ExportMetricsServiceRequest:
		c.metrics = m.ResourceMetrics
	}
	return nil
}

func (c *Collector) serve(w http.ResponseWriter, r *http.Request) {
	var m, answer proto.Message
	switch r.URL.Path {
	case "/v1/traces":
		m, answer = &coltrace.ExportTraceServiceRequest{}, &coltrace.ExportTraceServiceResponse{}
	case "/v1/logs":
		m, answer = &collogs.ExportLogsServiceRequest{}, &collogs.ExportLogsServiceResponse{}
	case "/v1/metrics":
		m, answer = &colmetrics.ExportMetricsServiceRequest{}, &colmetrics.ExportMetricsServiceResponse{}
	default:
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "this is no protobuf", http.StatusBadRequest)
		return
	}
	headers := map[string]string{}
	for name := range r.Header {
		headers[http.CanonicalHeaderKey(name)] = r.Header.Get(name)
	}
	if err := c.take(m, headers); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	out, _ := proto.Marshal(answer)
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.Write(out)
}

func headersOf(ctx context.Context) map[string]string {
	out := map[string]string{}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		out[http.CanonicalHeaderKey(name)] = values[0]
	}
	return out
}

type traces struct {
	coltrace.UnimplementedTraceServiceServer
	c *Collector
}

func (t traces) Export(ctx context.Context, m *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	return &coltrace.ExportTraceServiceResponse{}, t.c.take(m, headersOf(ctx))
}

type logs struct {
	collogs.UnimplementedLogsServiceServer
	c *Collector
}

func (l logs) Export(ctx context.Context, m *collogs.ExportLogsServiceRequest) (*collogs.ExportLogsServiceResponse, error) {
	return &collogs.ExportLogsServiceResponse{}, l.c.take(m, headersOf(ctx))
}

type measures struct {
	colmetrics.UnimplementedMetricsServiceServer
	c *Collector
}

func (s measures) Export(ctx context.Context, m *colmetrics.ExportMetricsServiceRequest) (*colmetrics.ExportMetricsServiceResponse, error) {
	return &colmetrics.ExportMetricsServiceResponse{}, s.c.take(m, headersOf(ctx))
}
