// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/otlptest"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/usage"
)

// TestTrace follows one request, which is streamed, retried at its provider with
// another credential, and falls back to a pool, into a collector: the tree of its spans, the names of
// their attributes by the conventions, and that each server was told the span
// that the collector knows.
func TestTrace(t *testing.T) {
	const clientTrace, clientSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	collector := otlptest.Start(t)
	var mu sync.Mutex
	var told []string // traceparent of each attempt at the provider
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		told = append(told, r.Header.Get("Traceparent"))
		mu.Unlock()
		http.Error(w, `{"error": {"message": "later"}}`, http.StatusTooManyRequests)
	}))
	t.Cleanup(down.Close)
	server := sim.New(sim.Config{Model: "llama", Seed: 1})
	address, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close(context.Background()) })
	cfg, err := config.Parse("trace.yaml", fmt.Appendf(nil, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools: [{name: llama, members: {static: [%q]}, engine: vllm}]
providers: [{name: first, baseURL: "%s/v1", credentials: [{name: a, secret: aaa}, {name: b, secret: bbb}]}]
models:
  - name: m
    targets: [{provider: first, model: gpt-x}]
    fallbacks: [{pool: llama, model: llama}]
    retries: {attempts: 3, budget: 10}
telemetry: {otlp: {endpoint: %q}, traces: {sample: 0}}
`, address, down.URL, collector.GRPC))
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(slog.New(slog.NewTextHandler(panics{t}, nil)), "")
	if err := g.reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	closed := sync.OnceFunc(func() { g.close(context.Background()) })
	t.Cleanup(closed)
	url := "http://" + g.proxy.Addresses()["l"] + "/v1/chat/completions"
	ask := func(parent string) {
		t.Helper()
		r, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"model": "m", "stream": true, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Traceparent", parent)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !strings.Contains(string(body), "[DONE]") {
			t.Fatalf("answer %d: %s", res.StatusCode, body)
		}
	}
	ask("00-" + clientTrace + "-" + clientSpan + "-01")
	collector.Wait(t, "spans", func() bool { return len(collector.Spans()) > 0 })

	spans := collector.Spans()
	root := spans[0]
	if got := usage.TraceID(root.TraceId).String(); got != clientTrace || usage.SpanID(root.ParentSpanId).String() != clientSpan {
		t.Errorf("the request is in trace %s below %x", got, root.ParentSpanId)
	}
	var lines, ids []string
	for _, s := range spans {
		if s != root && string(s.ParentSpanId) != string(root.SpanId) {
			t.Errorf("span %s is not below the request", s.Name)
		}
		if s.EndTimeUnixNano < s.StartTimeUnixNano || s.StartTimeUnixNano < root.StartTimeUnixNano || s.EndTimeUnixNano > root.EndTimeUnixNano+1e6 {
			t.Errorf("span %s lies outside of the request", s.Name)
		}
		var names []string
		for _, a := range s.Attributes {
			names = append(names, a.Key)
		}
		for _, e := range s.Events {
			names = append(names, e.Name)
		}
		slices.Sort(names)
		lines = append(lines, fmt.Sprintf("%s %s: %s", s.Name, strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"), strings.Join(slices.Compact(names), " ")))
		ids = append(ids, "00-"+clientTrace+"-"+usage.SpanID(s.SpanId).String()+"-01")
	}
	const failed = "CLIENT: error.type gen_ai.operation.name gen_ai.provider.name gen_ai.request.model gen_ai.request.stream penstock.attempt penstock.server penstock.target"
	want := []string{
		"POST /v1/chat/completions SERVER: client.address client.port http.request.method http.response.status_code penstock.attempts penstock.fallback penstock.listener penstock.model penstock.pick.outcome penstock.request.id penstock.route penstock.time_to_first_token url.path",
		"read INTERNAL: penstock.request.bytes",
		"pick INTERNAL: candidate penstock.pick.endpoint penstock.pick.profile penstock.pick.reason penstock.pool",
		"chat gpt-x " + failed,
		"chat gpt-x " + failed,
		"chat llama CLIENT: gen_ai.operation.name gen_ai.provider.name gen_ai.request.model gen_ai.request.stream gen_ai.response.finish_reasons gen_ai.response.model gen_ai.response.time_to_first_chunk gen_ai.usage.input_tokens gen_ai.usage.output_tokens penstock.attempt penstock.server penstock.target penstock.usage.source server.address server.port",
		"stream INTERNAL: penstock.response.bytes",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("spans are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 2 || told[0] == told[1] || !slices.Contains(ids, told[0]) || !slices.Contains(ids, told[1]) {
		t.Errorf("the provider was told %q; the collector knows %q", told, ids)
	}
	if got := attribute(spans[5], "gen_ai.provider.name") + " " + attribute(spans[3], "gen_ai.provider.name") + " " + attribute(spans[3], "error.type"); got != "vllm openai rate_limit" {
		t.Errorf("who served is %q", got)
	}

	ask("00-" + clientTrace + "-" + clientSpan + "-00")
	closed() // what waits is sent
	if n := len(collector.Spans()); n != len(spans) {
		t.Errorf("%d spans came of a request that is not sampled", n-len(spans))
	}
}

func attribute(s *tracepb.Span, name string) string {
	i := slices.IndexFunc(s.Attributes, func(a *commonpb.KeyValue) bool { return a.Key == name })
	if i < 0 {
		return ""
	}
	return s.Attributes[i].Value.GetStringValue()
}
