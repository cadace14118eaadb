// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/extproc/extproctest"
)

// On an HTTP route to model servers every request meets the picker, with body
// or without and whatever the filters; its edits are carried out both ways, the
// server that it names is the one asked, and it hears who served. The client's
// body, host and path go on as they are.
func TestHTTPRoutePicker(t *testing.T) {
	noLeaks(t)
	servers := []*httptest.Server{echo(t, "0"), echo(t, "1"), echo(t, "2")}
	want := servers[1].Listener.Addr().String()
	picker := extproctest.Start(t, func(s *extproctest.Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		if err := s.Pick(want, want, extproctest.Field{Name: "x-picked", Value: fmt.Sprintf("%s %d", s.Header[":path"], len(s.Body))}); err != nil {
			return err
		}
		if len(s.Body) > 0 {
			if err := s.BodyBack(s.Body); err != nil {
				return err
			}
		}
		return s.Rest(extproctest.Field{Name: "x-served", Value: want})
	}, nil)
	r := newHTTPRig(t, fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: m, members: {static: {m}}, metrics: {off: true}, picker: {remote: {address: %q, timeout: 10s, health: {off: true}}}}]
httpRoutes:
  - name: r
    parents: [{listener: l}]
    rules:
      - {matches: [{path: {value: /edited}}], filters: {requestHeaders: {set: [{name: X-Set, value: s}]}, responseHeaders: {set: [{name: X-Out, value: o}]}, rewrite: {path: {prefix: /v1}, host: h2.example}}, backends: [{pool: m}]}
      - {backends: [{pool: m}]}
`, picker.Address), map[string][]*httptest.Server{"m": servers})
	streams := int64(0)
	for _, c := range []struct{ method, path, kind, body, sentPath, picked string }{
		{"GET", "/any?x=1", "", "", "/any", "[/any?x=1] 0"},
		{"POST", "/v1/chat/completions", "application/json", hello, "/v1/chat/completions", "[/v1/chat/completions] 60"},
		{"POST", "/other", "text/plain", "not json", "/other", "[/other] 8"},
		{"DELETE", "/edited/x", "", "", "/v1/x", "[/v1/x] 0"},
		{"POST", "/edited/completions", "application/json", `{"model":"m","prompt":"x"}`, "/v1/completions", "[/v1/completions] 26"},
	} {
		res, e := r.ask("l", c.method, "h.example:80", c.path, func(q *http.Request) {
			q.Header.Set("Authorization", "Bearer secret")
			if c.body != "" {
				q.Header.Set("Content-Type", c.kind)
				q.Body, q.ContentLength = io.NopCloser(strings.NewReader(c.body)), int64(len(c.body))
			}
		})
		streams++
		host := "h.example:80"
		if strings.HasPrefix(c.path, "/edited") {
			host = "h2.example"
			if e.Header.Get("X-Set") != "s" || res.Header.Get("X-Out") != "o" {
				t.Errorf("%s: the route's edits are missing", c.path)
			}
		}
		if res.StatusCode != 200 || e.Server != "1" || e.Method != c.method || e.Path != c.sentPath || e.Body != c.body || e.Host != host {
			t.Errorf("%s: %d, server heard %+v", c.path, res.StatusCode, e)
		}
		if got := e.Header.Get("X-Picked"); got != c.picked || res.Header.Get("X-Served") != want {
			t.Errorf("%s: picked %q, want %q; served %q", c.path, got, c.picked, res.Header.Get("X-Served"))
		}
		if e.Header.Get("Authorization") != "" || e.Header.Get("X-Gateway-Destination-Endpoint") != "" {
			t.Errorf("%s: server heard %v", c.path, e.Header)
		}
		if got := picker.Streams.Load(); got != streams {
			t.Errorf("%s: the picker was asked %d times of %d", c.path, got, streams)
		}
	}
	rec := r.record(1)
	if rec.Route != "r" || rec.Pool != "m" || rec.Served != want || rec.Picked != want || rec.ModelAsked != "m" {
		t.Errorf("record %+v", rec)
	}
	// Administration of the servers is not for clients, however it is spelt.
	for _, path := range []string{"/metrics", "/edited/load_lora_adapter", "/x/%2e%2e/metrics", "/sleep/x", "/%6detrics", "/METRICS", "//metrics"} {
		if res, e := r.ask("l", "POST", "h", path, nil); res.StatusCode != 404 {
			t.Errorf("%s: %d, server heard %s", path, res.StatusCode, e.Path)
		}
	}
	// What steers an engine is refused wherever it is read.
	if res, _ := r.ask("l", "POST", "h", "/other", func(q *http.Request) {
		q.Body = io.NopCloser(strings.NewReader(`{"model":"m","kv_transfer_params":{}}`))
	}); res.StatusCode != 400 {
		t.Errorf("engine field: %d", res.StatusCode)
	}
	picker.Become(extproctest.Refuses(429, "full"))
	if res, _ := r.ask("l", "GET", "h", "/any", nil); res.StatusCode != 429 {
		t.Errorf("refusal: %d", res.StatusCode)
	}
	picker.Become(extproctest.Good("192.0.2.1:9"))
	if res, e := r.ask("l", "GET", "h", "/any", nil); res.StatusCode != 200 || e.Server == "" {
		t.Errorf("a stranger was named: %d from %q", res.StatusCode, e.Server)
	}
}

// A picker in this process: usage is read from the answer, streams pass, and
// one member that dies is replaced.
func TestHTTPRouteScheduler(t *testing.T) {
	noLeaks(t)
	s := model(t, streams(chunk("m", "hi"), finish, usageEv, doneMark))
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: m, members: {static: {m}}, metrics: {off: true}, picker: {profile: round-robin}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: m}]}]}]
`, map[string][]*httptest.Server{"m": {nobody(t), s}})
	for i := range 4 {
		res, _ := r.ask("l", "POST", "h", "/v1/chat/completions", func(q *http.Request) {
			q.Header.Set("Content-Type", "application/json")
			q.Body, q.ContentLength = io.NopCloser(strings.NewReader(helloStream)), int64(len(helloStream))
		})
		b, _ := io.ReadAll(res.Body)
		if res.StatusCode != 200 || !strings.HasSuffix(string(b), doneMark) {
			t.Fatalf("%d %s", res.StatusCode, b)
		}
		rec := r.record(i)
		if !rec.Stream || rec.Counts.Output != 2 || rec.Counts.Prompt() != 9 || rec.Finish != "stop" || rec.ErrorClass != "" {
			t.Errorf("record %+v", rec)
		}
	}
}

// Servers that go close the connections that the gateway has kept, and refuse
// others, before the gateway knows that they are no members any more. A request
// of a model finds another all the same, by whatever method; what names no model
// may have done something, and is not sent twice.
func TestHTTPRouteServersGo(t *testing.T) {
	noLeaks(t)
	var going [3]atomic.Bool
	var servers []*httptest.Server
	for i := range going {
		answer := echoHandler(fmt.Sprint(i))
		s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if going[i].Load() {
				io.Copy(io.Discard, r.Body)
				c, _, _ := http.NewResponseController(w).Hijack()
				c.Close()
				return
			}
			answer.ServeHTTP(w, r)
		}))
		servers = append(servers, s)
	}
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: m, members: {static: {m}}, metrics: {off: true}, picker: {profile: round-robin}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: m}]}]}]
`, map[string][]*httptest.Server{"m": servers})
	ask := func(path, kind, body string) int {
		res, _ := r.ask("l", "POST", "h", path, func(q *http.Request) {
			q.Header.Set("Content-Type", kind)
			q.Body, q.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		})
		return res.StatusCode
	}
	for range 6 { // leaves a connection to each
		if status := ask("/v1/chat/completions", "application/json", hello); status != 200 {
			t.Fatalf("before: %d", status)
		}
	}
	for i := range 2 {
		going[i].Store(true)
		servers[i].Listener.Close()
	}
	for i := range 3 { // each is the first choice of one of them
		if status := ask("/v1/chat/completions", "application/json", hello); status != 200 {
			t.Errorf("request %d while two of three servers go: %d, want 200", i, status)
		}
	}

	going[2].Store(true)
	servers[2].Listener.Close()
	if status := ask("/other", "text/plain", "not json"); status == 200 {
		t.Errorf("what nobody could answer: %d", status)
	}
}

// Where routes of models and HTTP routes share a listener, the paths of the API
// are exact paths of the former: an HTTP route for everything leaves them, one
// for the very path, or of a more exact host, takes them.
func TestHTTPRoutesLeaveModelsTheirPaths(t *testing.T) {
	noLeaks(t)
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools:
  - {name: m, members: {static: {m}}, metrics: {off: true}}
  - {name: web, plain: true, members: {static: {web}}}
models: [{name: a, targets: [{pool: m}]}]
routes: [{name: base, listeners: [l]}, {name: inner, listeners: [l], hosts: ["*.in.example"], pathPrefix: /ai}]
httpRoutes:
  - name: all
    parents: [{listener: l}]
    rules:
      - {matches: [{path: {type: exact, value: /v1/embeddings}}], backends: [{pool: web}]}
      - {backends: [{pool: web}]}
  - {name: host, parents: [{listener: l, hosts: [own.example, x.in.example]}], rules: [{backends: [{pool: web}]}]}
`, map[string][]*httptest.Server{"m": {echo(t, "model")}, "web": {echo(t, "web")}})
	for _, c := range []struct{ host, path, served string }{
		{"h.example", "/", "web"},
		{"h.example", "/v1", "web"},
		{"h.example", "/v1/other", "web"},
		{"h.example", "/v1/chat/completions", "model"},
		{"h.example", "/v1//chat/./completions", "model"},
		{"h.example", "/v1/chat/completions/x", "web"},
		{"h.example", "/v1/rerank", "model"},
		{"h.example", "/v1/embeddings", "web"},
		{"own.example", "/v1/chat/completions", "web"},
		{"y.in.example", "/ai/v1/chat/completions", "model"},
		{"x.in.example", "/ai/v1/chat/completions", "web"},
		{"h.example", "/ai/v1/chat/completions", "web"},
	} {
		_, e := r.ask("l", "POST", c.host, c.path, func(q *http.Request) {
			q.Header.Set("Content-Type", "application/json")
			q.Body = io.NopCloser(strings.NewReader(`{"model":"a","messages":[{"role":"user","content":"x"}]}`))
		})
		if e.Server != c.served {
			t.Errorf("%s%s was served by %q, want %q", c.host, c.path, e.Server, c.served)
		}
	}
	for path, want := range map[string]string{"/v1/models": "", "/v1/models/a": "", "/v1/modelsx": "web"} {
		if res, e := r.ask("l", "GET", "h.example", path, nil); res.StatusCode != http.StatusOK || e.Server != want {
			t.Errorf("GET %s: %d by %q, want %q", path, res.StatusCode, e.Server, want)
		}
	}
}
