// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// nobody is an address that refuses connections.
func nobody(t testing.TB) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(nil)
	s.Close()
	return s
}

// flaky answers status for the first failures and then what it was sent.
func flaky(t testing.TB, protocol string, status, failures int) (*httptest.Server, *atomic.Int64) {
	var asked atomic.Int64
	return serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if asked.Add(1) <= int64(failures) {
			w.WriteHeader(status)
			return
		}
		fmt.Fprintf(w, "%d bytes", len(b))
	})), &asked
}

// A retry follows the statuses that the rule names, as often as it says, and
// sends the body again whole; the last answer is the client's. Without a rule
// there is none.
func TestRetry(t *testing.T) {
	for _, protocol := range []string{"http", "h2c", "https"} {
		for _, c := range []struct {
			rule             string
			status, failures int
			body             int
			want, asked      int
		}{
			{"", 503, 1, 10, 503, 1},
			{", retry: {codes: [500], attempts: 3, backoff: 1ms}", 500, 2, 10, 200, 3},
			{", retry: {codes: [500], attempts: 3, backoff: 1ms}", 500, 2, 0, 200, 3},
			{", retry: {codes: [500], attempts: 3, backoff: 1ms}", 500, 4, 10, 500, 4},
			{", retry: {codes: [500], attempts: 3}", 503, 2, 10, 503, 1},
			{", retry: {codes: [500, 502, 503, 504], attempts: 2, backoff: 1ms}", 504, 1, 600 << 10, 200, 2},
			{", retry: {codes: [500], attempts: 3}", 500, 2, 2 << 20, 500, 1}, // not kept
			{", retry: {codes: [500], attempts: 0}", 500, 1, 10, 500, 1},
		} {
			noLeaks(t)
			s, asked := flaky(t, protocol, c.status, c.failures)
			r := oneBackend(t, protocol, c.rule, s)
			res, _ := r.ask("l", "POST", "", "/", func(q *http.Request) {
				if c.body > 0 {
					q.Body, q.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", c.body))), -1
				}
			})
			b, _ := io.ReadAll(res.Body)
			if res.StatusCode != c.want || int(asked.Load()) != c.asked || c.want == 200 && string(b) != fmt.Sprintf("%d bytes", c.body) {
				t.Errorf("%s %+v: %d %q after %d", protocol, c, res.StatusCode, b, asked.Load())
			}
		}
	}
}

// A connection that cannot be made costs nothing: the next member gets the
// request, body and all. When all refuse the answer is 503.
func TestConnectionsRefused(t *testing.T) {
	for _, protocol := range []string{"http", "h2c", "https"} {
		noLeaks(t)
		s, asked := flaky(t, protocol, 0, 0)
		r := oneBackend(t, protocol, "", nobody(t), s, nobody(t))
		for i := range 6 {
			res, _ := r.ask("l", "POST", "", "/", func(q *http.Request) {
				q.Body, q.ContentLength = io.NopCloser(strings.NewReader("hello")), -1
			})
			if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(b) != "5 bytes" || int(asked.Load()) != i+1 {
				t.Errorf("%s: %d %q", protocol, res.StatusCode, b)
			}
		}
		r = oneBackend(t, protocol, "", nobody(t), nobody(t))
		for range 2 { // refused, and then known to be out
			if res, _ := r.ask("l", "POST", "", "/", func(q *http.Request) { q.Body = io.NopCloser(strings.NewReader("hello")) }); res.StatusCode != 503 {
				t.Errorf("%s: %d", protocol, res.StatusCode)
			}
		}
	}
}

// A kept connection that the backend has closed is replaced, unless that could
// carry out a request twice.
func TestStaleConnection(t *testing.T) {
	noLeaks(t)
	var asked atomic.Int64
	s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if asked.Add(1)%2 == 0 { // the second request on the connection
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
			return
		}
		io.WriteString(w, "ok")
	}))
	r := oneBackend(t, "http", "", s)
	for _, c := range []struct {
		method string
		want   int
	}{{"GET", 200}, {"GET", 200}, {"DELETE", 200}, {"POST", 502}} {
		asked.Store(asked.Load() + asked.Load()%2)
		if res, _ := r.ask("l", "GET", "", "/", nil); res.StatusCode != 200 { // leaves a connection
			t.Fatalf("first: %d", res.StatusCode)
		}
		if res, _ := r.ask("l", c.method, "", "/", nil); res.StatusCode != c.want {
			t.Errorf("%s on a stale connection: %d, want %d", c.method, res.StatusCode, c.want)
		}
	}
}

// The bounds of a rule end a request with 504; one attempt's bound is not the
// request's.
func TestHTTPTimeouts(t *testing.T) {
	noLeaks(t)
	release := make(chan struct{})
	defer close(release)
	s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/half" {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	for _, rule := range []string{", timeouts: {request: 50ms}", ", timeouts: {backend: 50ms}", ", timeouts: {request: 50ms}, retry: {codes: [500], attempts: 5, backoff: 1ms}"} {
		r := oneBackend(t, "http", rule, s)
		if res, _ := r.ask("l", "GET", "", "/", nil); res.StatusCode != 504 {
			t.Errorf("%s: %d", rule, res.StatusCode)
		}
		if res, _ := r.ask("l", "POST", "", "/", func(q *http.Request) { q.Header.Set("Content-Type", "application/grpc") }); res.Header.Get("Grpc-Status") != "4" {
			t.Errorf("%s: %s %v", rule, res.Status, res.Header)
		}
		res, err := (&http.Client{Transport: clientFor(t, false)}).Get("http://" + r.addr("l") + "/half")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: an answer that was cut looks whole", rule)
		}
		res.Body.Close()
	}
}

// The time of one attempt is over and the rule retries on 504: the request's
// time lets another follow.
func TestBackendTimeoutRetried(t *testing.T) {
	var asked atomic.Int64
	s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, "ok")
	}))
	r := oneBackend(t, "http", ", timeouts: {request: 20s, backend: 100ms}, retry: {codes: [504], attempts: 1, backoff: 1ms}", s)
	if res, _ := r.ask("l", "GET", "", "/", nil); res.StatusCode != 200 || asked.Load() != 2 {
		t.Errorf("%d after %d", res.StatusCode, asked.Load())
	}
}

// Copies go to every mirror, with the body and the edits of the rule; the share
// is kept; neither a mirror that is slow nor one that is not there is felt.
func TestMirrors(t *testing.T) {
	noLeaks(t)
	type copied struct{ who, method, path, host, body, header string }
	var mu sync.Mutex
	seen := map[string]int{}
	got := make(chan copied, 1000)
	release := make(chan struct{})
	mirror := func(who string, slow bool) *httptest.Server {
		return serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			mu.Lock()
			seen[who]++
			mu.Unlock()
			got <- copied{who, r.Method, r.RequestURI, r.Host, string(b), r.Header.Get("X-Set")}
			if slow {
				<-release
			}
		}))
	}
	a := echo(t, "a")
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, members: {static: {a}}}, {name: b, plain: true, members: {static: {b}}}, {name: c, plain: true, members: {static: {c}}}, {name: d, plain: true, members: {static: {d}}}]
httpRoutes:
  - name: r
    parents: [{listener: l}]
    rules:
      - matches: [{path: {value: /all}}]
        filters: {mirrors: [{pool: b}, {pool: c}, {pool: d}], requestHeaders: {set: [{name: X-Set, value: s}]}, rewrite: {path: {prefix: /new}}}
        backends: [{pool: a}]
      - {matches: [{path: {value: /half}}], filters: {mirrors: [{pool: b, numerator: 1, denominator: 2}]}, backends: [{pool: a}]}
`, map[string][]*httptest.Server{"a": {a}, "b": {mirror("b", false)}, "c": {mirror("c", true)}, "d": {nobody(t)}})
	defer close(release)
	next := func() copied {
		t.Helper()
		select {
		case c := <-got:
			return c
		case <-time.After(5 * time.Second):
			t.Fatal("no copy came")
			return copied{}
		}
	}
	for _, body := range []string{"", "hello", strings.Repeat("x", 300<<10)} {
		res, e := r.ask("l", "PUT", "h.example", "/all/x?q", func(q *http.Request) {
			if body != "" {
				q.Body, q.ContentLength = io.NopCloser(strings.NewReader(body)), -1
			}
		})
		if res.StatusCode != 200 || e.Body != body || e.Path != "/new/x" {
			t.Fatalf("%d %q", res.StatusCode, e.Path)
		}
		who := map[string]bool{}
		for range 2 {
			c := next()
			who[c.who] = true
			c.who = ""
			if want := (copied{"", "PUT", "/new/x?q", "h.example", body, "s"}); c != want {
				t.Errorf("copy %+v", c)
			}
		}
		if !who["b"] || !who["c"] {
			t.Errorf("copies went to %v", who)
		}
	}
	// More than is kept: the request passes, the copy does not.
	if res, e := r.ask("l", "PUT", "", "/half/big", func(q *http.Request) {
		q.Body, q.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 2<<20)), -1
	}); res.StatusCode != 200 || len(e.Body) != 2<<20 {
		t.Errorf("%d, %d bytes", res.StatusCode, len(e.Body))
	}
	mu.Lock()
	before := seen["b"]
	mu.Unlock()
	const n = 400
	for range n {
		if res, _ := r.ask("l", "GET", "", "/half", nil); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
	}
	for range 500 {
		mu.Lock()
		copies := seen["b"] - before
		mu.Unlock()
		if copies > n*35/100 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	if copies := seen["b"] - before; copies < n*35/100 || copies > n*65/100 {
		t.Errorf("%d of %d requests were copied", copies, n)
	}
}

// Requests are spread by weight; a backend that cannot be had, or is empty,
// fails its share alone.
func TestWeights(t *testing.T) {
	a, b := echo(t, "a"), echo(t, "b")
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, members: {static: {a}}}, {name: b, plain: true, members: {static: {b}}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: a, weight: 5}, {pool: b, weight: 3}, {status: 500, weight: 2}]}]}]
`, map[string][]*httptest.Server{"a": {a}, "b": {b}})
	count := map[string]int{}
	const n = 600
	for range n {
		res, e := r.ask("l", "GET", "", "/", nil)
		count[fmt.Sprint(res.StatusCode, e.Server)]++
	}
	for key, share := range map[string]float64{"200 a": .5, "200 b": .3, "500 ": .2} {
		key = strings.Replace(key, " ", "", 1)
		if got := float64(count[strings.TrimSpace(key)]) / n; got < share-.08 || got > share+.08 {
			t.Errorf("%s: %.2f, want %.2f (%v)", key, got, share, count)
		}
	}
}

// A client of HTTP/1.0, a request without a Host, a connection that is used
// again: nothing special.
func TestOldClients(t *testing.T) {
	a := echo(t, "a")
	r := newHTTPRig(t, strings.ReplaceAll(oneText, "BACKENDS", "{pool: a}"), map[string][]*httptest.Server{"a": {a}})
	c, err := net.Dial("tcp", r.addr("l"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(c, "GET /old HTTP/1.0\r\n\r\n")
	b, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(b), "HTTP/1.0 200") || !strings.Contains(string(b), `"Path":"/old"`) {
		t.Errorf("%s", b)
	}
}
