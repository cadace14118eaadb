// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/otlptest"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/otlp"
)

func telemetry(endpoint, protocol string) config.Telemetry {
	return config.Telemetry{
		OTLP:     config.OTLP{Endpoint: endpoint, Protocol: protocol, Timeout: config.Duration(5 * time.Second), Headers: map[string]config.Secret{"X-Token": "tea"}},
		Resource: map[string]string{"deployment.environment.name": "test"}, Buffer: 64, Records: true,
	}
}

func open(t *testing.T, cfg config.Telemetry, o otlp.Options) *otlp.Exporter {
	t.Helper()
	e, err := otlp.Open(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func record(id string, sampled bool) *usage.Record {
	r := &usage.Record{
		Time: time.Now(), RequestID: id, Client: "192.0.2.1:4711", Method: "POST", Path: "/v1/chat/completions", Operation: "chat", ModelAsked: "chat",
		ModelUsed: "gpt-x", Status: 200, Stream: true, Attempts: 2, Finish: "stop",
		Timing: usage.Timing{Read: .001, TTFT: .3, Total: 1},
		Trace:  usage.ReadTrace("", "", 1, true),
	}
	r.Trace.Sampled = sampled
	r.Counts = usage.Counts{Input: 5, CacheRead: 3, Output: 2, Reasoning: 1, Source: llm.Reported}
	r.Cost = usage.Cost{Pico: 2_000_000_000, Known: true}
	r.Tries = []usage.Attempt{
		{Target: "llama", Server: "10.0.0.1:8000", System: "vllm", Error: "server", At: .002, Seconds: .1},
		{Target: "openai/gpt-x", Server: "main", System: "openai", At: .11, Seconds: .19},
	}
	return r
}

// TestSignals sends over both protocols, and looks at what comes.
func TestSignals(t *testing.T) {
	for _, protocol := range []string{"grpc", "http"} {
		t.Run(protocol, func(t *testing.T) {
			c := otlptest.Start(t)
			endpoint := c.GRPC
			if protocol == "http" {
				endpoint = c.HTTP
			}
			reg := prometheus.NewRegistry()
			seconds := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "penstock_x_seconds", Help: "X.", Buckets: []float64{1, 2}})
			count := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_y_total", Help: "Y."}, []string{"a"})
			reg.MustRegister(seconds, count)
			seconds.Observe(.5)
			seconds.Observe(1.5)
			seconds.Observe(9)
			count.WithLabelValues("b").Add(4)
			cfg := telemetry(endpoint, protocol)
			cfg.Metrics.Interval = config.Duration(20 * time.Millisecond)
			e := open(t, cfg, otlp.Options{Gather: reg, Version: "v1", Picks: func(id string) []otlp.Pick {
				return []otlp.Pick{{At: time.Now(), Took: time.Millisecond, Pool: "llama", Picked: "10.0.0.1:8000", Candidates: []otlp.Candidate{
					{Endpoint: "10.0.0.1:8000", Score: 2, Scores: map[string]float64{"queue-scorer": 1}}, {Endpoint: "10.0.0.2:8000", RefusedBy: "role"},
				}}}
			}})
			rec := record("one", true)
			e.Emit(rec)
			e.Emit(record("two", false))
			c.Wait(t, "two log records and a trace", func() bool { return len(c.Logs()) == 2 && len(c.Spans()) > 0 })
			c.Wait(t, "metrics", func() bool { return len(c.Metrics()) > 0 })

			if got := c.Headers()["X-Token"]; got != "tea" {
				t.Errorf("the header of the credential is %q", got)
			}
			if got := tree(c.Spans(), rec.Trace.Span[:]); got != want {
				t.Errorf("spans are\n%s\nwant\n%s", got, want)
			}
			resource := fmt.Sprint(c.Resources()[0].Resource.Attributes)
			for _, part := range []string{"service.name", "penstock", "deployment.environment.name", "service.version"} {
				if !strings.Contains(resource, part) {
					t.Errorf("the resource has no %s: %s", part, resource)
				}
			}
			var back usage.Record
			l := c.Logs()[0]
			if err := json.Unmarshal([]byte(l.Body.GetStringValue()), &back); err != nil || back.RequestID != "one" || string(l.TraceId) != string(rec.Trace.ID[:]) || l.Flags != 1 {
				t.Errorf("log record is %v, %v", l, err)
			}
			h := c.Metrics()["penstock_x_seconds"]
			if p := h.GetHistogram().GetDataPoints(); len(p) != 1 || fmt.Sprint(p[0].BucketCounts) != "[1 1 1]" || fmt.Sprint(p[0].ExplicitBounds) != "[1 2]" || p[0].GetSum() != 11 || h.Unit != "s" {
				t.Errorf("histogram is %v", h)
			}
			if y := c.Metrics()["penstock_y_total"].GetSum(); y == nil || !y.IsMonotonic || y.DataPoints[0].GetAsDouble() != 4 || y.DataPoints[0].Attributes[0].Key != "a" {
				t.Errorf("counter is %v", y)
			}
		})
	}
}

const want = `POST /v1/chat/completions SERVER
  read INTERNAL
  pick INTERNAL candidates: 10.0.0.1:8000 10.0.0.2:8000
  chat gpt-x CLIENT vllm 10.0.0.1:8000 error server
  chat gpt-x CLIENT openai main input 8 output 3
  stream INTERNAL
`

// tree is the spans below parent, as lines.
func tree(spans []*tracepb.Span, root []byte) string {
	var b strings.Builder
	for _, s := range spans {
		if string(s.SpanId) != string(root) && string(s.ParentSpanId) != string(root) {
			fmt.Fprintf(&b, "a stranger: %s\n", s.Name)
			continue
		}
		if string(s.SpanId) != string(root) {
			b.WriteString("  ")
		}
		fmt.Fprintf(&b, "%s %s", s.Name, strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
		if len(s.Events) > 0 {
			b.WriteString(" candidates:")
		}
		for _, e := range s.Events {
			b.WriteString(" " + e.Attributes[0].Value.GetStringValue())
		}
		for _, a := range s.Attributes {
			switch a.Key {
			case "gen_ai.provider.name", "penstock.server":
				b.WriteString(" " + a.Value.GetStringValue())
			case "error.type":
				b.WriteString(" error " + a.Value.GetStringValue())
			case "gen_ai.usage.input_tokens":
				fmt.Fprintf(&b, " input %d", a.Value.GetIntValue())
			case "gen_ai.usage.output_tokens":
				fmt.Fprintf(&b, " output %d", a.Value.GetIntValue())
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestConventions: the names of the conventions, by version, and what they count.
func TestConventions(t *testing.T) {
	latest := []string{
		"gen_ai.client.inference.duration s", "gen_ai.client.inference.operation.input_tokens {token}", "gen_ai.client.inference.operation.output_tokens {token}",
		"gen_ai.client.inference.time_to_first_chunk s", "gen_ai.client.inference.usage.cache_read.input_tokens {token}",
		"gen_ai.client.inference.usage.input_tokens {token}", "gen_ai.client.inference.usage.output_tokens {token}", "gen_ai.client.inference.usage.reasoning.output_tokens {token}",
	}
	old := []string{"gen_ai.client.operation.duration s", "gen_ai.client.operation.time_to_first_chunk s", "gen_ai.client.token.usage {token}"}
	server := []string{"gen_ai.server.request.duration s", "gen_ai.server.time_to_first_token s"}
	for which, want := range map[string][]string{
		"off": nil, "old": slices.Concat(old, server), "latest": slices.Concat(latest, server), "both": slices.Concat(latest, old, server),
	} {
		c := otlptest.Start(t)
		cfg := telemetry(c.GRPC, "grpc")
		cfg.Records, cfg.Metrics = false, config.OTLPMetrics{Interval: config.Duration(10 * time.Millisecond), GenAI: which}
		reg := prometheus.NewRegistry()
		reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_own_total", Help: "Own."}))
		want = append(slices.Clone(want), "penstock_own_total ")
		e := open(t, cfg, otlp.Options{Gather: reg})
		e.Emit(record("one", false))
		c.Wait(t, fmt.Sprintf("%s: %d metrics", which, len(want)), func() bool { return len(c.Metrics()) >= len(want) })
		var got []string
		for name, m := range c.Metrics() {
			got = append(got, name+" "+m.Unit)
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s: metrics are\n%s\nwant\n%s", which, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if which != "latest" {
			continue
		}
		if n := len(c.Metrics()["gen_ai.client.inference.duration"].GetHistogram().DataPoints); n != 2 {
			t.Errorf("%d series of calls, want one per attempt", n)
		}
		if v := c.Metrics()["gen_ai.client.inference.usage.input_tokens"].GetSum().DataPoints[0].GetAsDouble(); v != 8 {
			t.Errorf("%v tokens of input are counted, want 8", v)
		}
	}
}

// TestManyModels: names that clients choose do not grow the metrics without bound.
func TestManyModels(t *testing.T) {
	c := otlptest.Start(t)
	cfg := telemetry(c.GRPC, "grpc")
	cfg.Records, cfg.Metrics = false, config.OTLPMetrics{Interval: config.Duration(100 * time.Millisecond), GenAI: "latest"}
	e := open(t, cfg, otlp.Options{})
	for i := range 3000 {
		r := record("x", false)
		r.Tries = r.Tries[1:]
		r.Tries[0].Target = fmt.Sprint("openai/m-", i)
		e.Emit(r)
	}
	c.Wait(t, "metrics", func() bool {
		m := c.Metrics()["gen_ai.server.request.duration"]
		return m != nil && len(m.GetHistogram().DataPoints) > 1000
	})
	if n := len(c.Metrics()["gen_ai.server.request.duration"].GetHistogram().DataPoints); n != 1001 {
		t.Errorf("%d series, want 1,000 and other", n)
	}
}

// TestCollectorAway: what cannot be sent is lost and counted, Emit does not wait,
// and what comes later is sent.
func TestCollectorAway(t *testing.T) {
	c := otlptest.Start(t)
	var away atomic.Bool
	away.Store(true)
	c.Answer = func() error {
		if away.Load() {
			return status.Error(codes.PermissionDenied, "no")
		}
		return nil
	}
	reg := prometheus.NewRegistry()
	cfg := telemetry(c.GRPC, "grpc")
	cfg.Records = false
	e := open(t, cfg, otlp.Options{Metrics: otlp.NewInstruments(reg)})
	e.Emit(record("lost", true))
	c.Wait(t, "a request", func() bool { return c.Requests() > 0 })
	c.Wait(t, "the loss", func() bool { return value(t, reg, "penstock_otlp_dropped_total", "send") == 1 })
	away.Store(false)
	e.Emit(record("kept", true))
	c.Wait(t, "spans", func() bool { return len(c.Spans()) > 0 })
	if n := value(t, reg, "penstock_otlp_sent_total", "traces"); n != 1 {
		t.Errorf("%v traces are counted as sent", n)
	}
}

// TestAgain: a collector that asks for patience gets the same once more.
func TestAgain(t *testing.T) {
	for _, protocol := range []string{"grpc", "http"} {
		c := otlptest.Start(t)
		var n atomic.Int32
		c.Answer = func() error {
			if n.Add(1) == 1 {
				return status.Error(codes.Unavailable, "later")
			}
			return nil
		}
		endpoint := c.GRPC
		if protocol == "http" {
			endpoint = c.HTTP
		}
		reg := prometheus.NewRegistry()
		e := open(t, telemetry(endpoint, protocol), otlp.Options{Metrics: otlp.NewInstruments(reg)})
		e.Emit(record("one", true))
		c.Wait(t, "spans", func() bool { return len(c.Spans()) > 0 })
		if n := value(t, reg, "penstock_otlp_dropped_total", "send"); n != 0 {
			t.Errorf("%s: %v are counted as lost", protocol, n)
		}
	}
}

// TestFull: more than the buffer holds is dropped and counted, and closing does
// not wait for a collector that hangs.
func TestFull(t *testing.T) {
	c := otlptest.Start(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	c.Answer = func() error { <-hang; return errors.New("hung") }
	reg := prometheus.NewRegistry()
	cfg := telemetry(c.GRPC, "grpc")
	cfg.Records, cfg.OTLP.Timeout, cfg.Buffer = false, config.Duration(time.Minute), 16
	e := open(t, cfg, otlp.Options{Metrics: otlp.NewInstruments(reg)})
	e.Emit(record("first", true))
	c.Wait(t, "a request that hangs", func() bool { return c.Requests() > 0 })
	for i := range 20 {
		e.Emit(record(fmt.Sprint(i), true))
	}
	if n := value(t, reg, "penstock_otlp_dropped_total", "full"); n != 4 {
		t.Errorf("%v are counted as dropped, want 4", n)
	}
}

// TestOff: nothing is sent for requests that are not sampled, and a nil exporter
// takes everything.
func TestOff(t *testing.T) {
	e, err := otlp.Open(config.Telemetry{}, otlp.Options{})
	if e != nil || err != nil {
		t.Fatalf("without an endpoint: %v, %v", e, err)
	}
	e.Emit(record("nobody", true))
	e.Close()

	c := otlptest.Start(t)
	cfg := telemetry(c.GRPC, "grpc")
	cfg.Records = false
	on := open(t, cfg, otlp.Options{})
	on.Emit(record("quiet", false))
	on.Close()
	if n := c.Requests(); n != 0 {
		t.Errorf("%d requests were made for what is not sampled", n)
	}
}

func value(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && m.Label[0].GetValue() == label {
				return m.Counter.GetValue()
			}
		}
	}
	t.Fatalf("there is no %s of %s", name, label)
	return 0
}

// BenchmarkEmit is what a request that is not sampled costs its goroutine: alone,
// and with the metrics of the conventions.
func BenchmarkEmit(b *testing.B) {
	for name, m := range map[string]config.OTLPMetrics{"bare": {}, "conventions": {Interval: config.Duration(time.Hour), GenAI: config.GenAILatest}} {
		b.Run(name, func(b *testing.B) {
			cfg := config.Telemetry{OTLP: config.OTLP{Endpoint: "http://127.0.0.1:1", Protocol: "grpc", Timeout: config.Duration(time.Second)}, Metrics: m, Buffer: 16}
			e, err := otlp.Open(cfg, otlp.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			rec := record("x", false)
			b.ReportAllocs()
			for b.Loop() {
				e.Emit(rec)
			}
		})
	}
}

// BenchmarkSpans is what a sampled trace of three attempts' worth costs the
// sender, network apart.
func BenchmarkSpans(b *testing.B) {
	rec := record("x", true)
	picks := []otlp.Pick{{At: rec.Time, Took: time.Millisecond, Pool: "llama", Candidates: make([]otlp.Candidate, 8)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := proto.Marshal(&tracepb.ScopeSpans{Spans: otlp.Spans(rec, picks)}); err != nil {
			b.Fatal(err)
		}
	}
}
