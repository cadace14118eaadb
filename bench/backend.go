// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Backend is a server with the least work of its own, so that what stands in
// front of it shows: one constant JSON answer, or a stream of constant chunks,
// and a metrics page of a given size.
type Backend struct {
	AnswerBytes  int           // of a JSON answer, about; 0: 1024
	ChunkBytes   int           // of an event in a stream, about; 0: 160
	Chunks       int           // of a stream; 0: without end
	Interval     time.Duration // between chunks
	MetricsBytes int           // of the metrics page, about; 0: 4096

	answer, chunk, page []byte
	requests, scrapes   atomic.Int64
	chunks              atomic.Int64
}

// Counters are what a [Backend] has served; GET /counters returns them.
type Counters struct {
	Requests int64 `json:"requests"`
	Chunks   int64 `json:"chunks"`
	Scrapes  int64 `json:"scrapes"`
}

// Serve answers on every listener until ctx ends.
func (b *Backend) Serve(ctx context.Context, listeners []net.Listener) error {
	b.build()
	return serve(ctx, http.HandlerFunc(b.handle), listeners)
}

func (b *Backend) build() {
	pad := func(format string, size, least int) []byte {
		size = max(size, least)
		fill := max(size-len(format)+2, 1)
		return []byte(strings.Replace(format, "%s", strings.Repeat("x", fill), 1))
	}
	b.answer = pad(`{"id":"cmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":200,"total_tokens":700}}`, orDefault(b.AnswerBytes, 1024), 64)
	b.chunk = pad(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":"%s"}}]}`+"\n\n", orDefault(b.ChunkBytes, 160), 64)
	b.page = metricsPage(orDefault(b.MetricsBytes, 4096))
}

func orDefault(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}

const streamEnd = `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":500,"completion_tokens":200,"total_tokens":700}}

data: [DONE]

`

func (b *Backend) handle(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/metrics":
		b.scrapes.Add(1)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		w.Write(b.page)
	case r.URL.Path == "/counters":
		json.NewEncoder(w).Encode(Counters{b.requests.Load(), b.chunks.Load(), b.scrapes.Load()})
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusOK)
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		b.requests.Add(1)
		if bytes.Contains(body, []byte(`"stream":true`)) {
			b.stream(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(b.answer)
	}
}

func (b *Backend) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	ticker := time.NewTicker(max(b.Interval, time.Microsecond))
	defer ticker.Stop()
	for n := 0; b.Chunks == 0 || n < b.Chunks; n++ {
		if _, err := w.Write(b.chunk); err != nil || flush() != nil {
			return
		}
		b.chunks.Add(1)
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
	io.WriteString(w, streamEnd)
}

// metricsPage is a page under vLLM's names: the gauges that a picker reads
// amid histograms that it does not.
func metricsPage(size int) []byte {
	var b bytes.Buffer
	const labels = `{engine="0",model_name="bench"}`
	histogram := func(n int) {
		name := fmt.Sprintf("vllm:bench_filler_%d_seconds", n)
		fmt.Fprintf(&b, "# HELP %s Histogram that no picker reads.\n# TYPE %s histogram\n", name, name)
		for i := range 20 {
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=\"%g\",model_name=\"bench\"} %d.0\n", name, float64(i)*0.25, i*37)
		}
		fmt.Fprintf(&b, "%s_sum%s 123.456\n%s_count%s 703.0\n", name, labels, name, labels)
	}
	n := 0
	for ; b.Len() < size/2; n++ {
		histogram(n)
	}
	for _, g := range []struct{ name, kind, value string }{
		{"num_requests_running", "gauge", "3.0"},
		{"num_requests_waiting", "gauge", "0.0"},
		{"kv_cache_usage_perc", "gauge", "0.25"},
		{"prefix_cache_queries_total", "counter", "1000000.0"},
		{"prefix_cache_hits_total", "counter", "500000.0"},
	} {
		fmt.Fprintf(&b, "# HELP vllm:%s What it says.\n# TYPE vllm:%s %s\nvllm:%s%s %s\n", g.name, g.name, g.kind, g.name, labels, g.value)
	}
	fmt.Fprintf(&b, "# HELP vllm:cache_config_info Information of the cache.\n# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"19208\"} 1.0\n")
	for ; b.Len() < size; n++ {
		histogram(n)
	}
	return b.Bytes()
}

// ReverseProxy is the least that a Go program can do in the place of a
// gateway: httputil.ReverseProxy over a fixed list of servers in turn, with
// idle connections enough and a flush after each write.
func ReverseProxy(ctx context.Context, l net.Listener, servers []string) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1024
	transport.DisableCompression = true
	var targets []*url.URL
	for _, s := range servers {
		targets = append(targets, &url.URL{Scheme: "http", Host: s})
	}
	var turn atomic.Uint64
	p := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(targets[turn.Add(1)%uint64(len(targets))])
		},
		Transport: transport, FlushInterval: -1,
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Else the server closes the request's body when the answer begins,
		// while the transport may still be looking for its end, and the stream
		// is cut: about one in a hundred.
		_ = http.NewResponseController(w).EnableFullDuplex()
		p.ServeHTTP(w, r)
	})
	return serve(ctx, h, []net.Listener{l})
}

func serve(ctx context.Context, h http.Handler, listeners []net.Listener) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.Serve(l) }()
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	var first error
	for range listeners {
		if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = err
			s.Close()
		}
	}
	return first
}
