// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/usage"
	"github.com/prometheus/client_golang/prometheus"
)

// rig is a real gateway in front of scripted model servers, on loopback.
type rig struct {
	t       testing.TB
	server  *proxy.Server
	pool    *pool.Pool
	cfg     *config.Config
	url     string
	reg     *prometheus.Registry
	backend map[string]proxy.Backend
	picks   *epp.Instruments
	remote  *extproc.Client // nil: a picker of this process

	mu      sync.Mutex
	records []*usage.Record
}

// newRig starts a gateway with one pool "p" of the given servers, picked by
// profile round-robin, and the model "m" served as "up-m". edit may change
// the configuration text; it must still parse.
func newRig(t testing.TB, servers []*httptest.Server, edit func(yaml string) string) *rig {
	t.Helper()
	var members []string
	for _, s := range servers {
		members = append(members, strings.TrimPrefix(strings.TrimPrefix(s.URL, "http://"), "https://"))
	}
	text := fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools:
  - name: p
    members: {static: ["%s"]}
    metrics: {off: true}
    picker: {profile: round-robin}
models:
  - name: m
    targets: [{pool: p, model: up-m}]
`, strings.Join(members, `", "`))
	if edit != nil {
		text = edit(text)
	}
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cfg: cfg, reg: prometheus.NewRegistry()}
	r.picks = epp.NewInstruments(r.reg)
	r.server = proxy.New(proxy.Options{
		Metrics: proxy.NewInstruments(r.reg),
		Records: func(rec *usage.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.records = append(r.records, rec)
		},
	})
	pc := cfg.Pools[0]
	if r.pool, err = pool.New(pc, pool.Options{}); err != nil {
		t.Fatal(err)
	}
	r.pool.Start(context.Background())
	r.backend = map[string]proxy.Backend{"p": {Pool: r.pool, Picker: r.picker(pc)}}
	r.apply(cfg)
	r.url = "http://" + r.server.Addresses()["l"]
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cut := r.server.Drain(ctx); cut != 0 {
			t.Errorf("%d exchanges were still open at the end", cut)
		}
		r.idle()
		r.pool.Close()
	})
	return r
}

// picker is the one that pc asks for.
func (r *rig) picker(pc config.Pool) epp.Picker {
	r.t.Helper()
	if remote := pc.Picker.Remote; remote != nil {
		c, err := extproc.NewClient(r.pool, *remote, extproc.ClientOptions{Metrics: extproc.NewClientInstruments(r.reg), Picks: r.picks})
		if err != nil {
			r.t.Fatal(err)
		}
		c.Start()
		r.t.Cleanup(c.Close)
		r.remote = c
		return c
	}
	picker, ok := epp.Builtin(pc.Picker.Profile)
	if !ok {
		r.t.Fatalf("no profile %s", pc.Picker.Profile)
	}
	profile, err := epp.Compile(picker)
	if err != nil {
		r.t.Fatal(err)
	}
	return epp.New(r.pool, profile, epp.Options{})
}

func (r *rig) apply(cfg *config.Config) {
	r.t.Helper()
	change, err := r.server.Prepare(cfg, r.backend, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	change.Commit()
}

// idle checks that nothing is counted on any member any more.
func (r *rig) idle() {
	r.t.Helper()
	for _, m := range r.pool.Snapshot().Members {
		if l := m.Load(); l != (pool.Load{}) {
			r.t.Errorf("member %s still carries %+v", m.Address(), l)
		}
	}
}

// record waits for record number n (from 0).
func (r *rig) record(n int) *usage.Record {
	r.t.Helper()
	for range 500 {
		r.mu.Lock()
		if len(r.records) > n {
			defer r.mu.Unlock()
			return r.records[n]
		}
		r.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("record %d did not come", n)
	return nil
}

// post sends a body to /v1/chat/completions with a client of its own.
func (r *rig) post(body string) (*http.Response, string) {
	r.t.Helper()
	return r.postTo("/v1/chat/completions", body)
}

func (r *rig) postTo(path, body string) (*http.Response, string) {
	r.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Post(r.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		b = append(b, ("\n!" + err.Error())...)
	}
	return res, string(b)
}

// raw writes bytes to the listener and returns all that comes back until the
// gateway closes or the deadline passes.
func (r *rig) raw(text string) string {
	r.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

const hello = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
const helloStream = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`

// chunk is one event of a chat stream.
func chunk(model, content string) string {
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":%q,"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`+"\n\n", model, content)
}

const (
	finish   = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"up-m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageEv  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"up-m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	doneMark = "data: [DONE]\n\n"
	answer   = `{"id":"c","object":"chat.completion","created":1,"model":"up-m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`
)

// model is a scripted server: f answers every request.
func model(t testing.TB, f http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s
}

// streams answers with the events given, flushing each.
func streams(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, e := range events {
			io.WriteString(w, e)
			w.(http.Flusher).Flush()
		}
	}
}

func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// noLeaks fails the test if it leaves goroutines behind.
func noLeaks(t testing.TB) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 100 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		buf := make([]byte, 1<<20)
		t.Errorf("goroutines: %d before, %d after\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
	})
}
