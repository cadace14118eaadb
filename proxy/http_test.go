// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const plainText = `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, members: {static: {a}}}, {name: b, plain: true, members: {static: {b}}}]
httpRoutes:
  - name: one
    parents: [{listener: l, hosts: [one.example]}]
    rules:
      - {matches: [{path: {value: /b}}], backends: [{pool: b}]}
      - {name: rest, backends: [{pool: a}]}
`

// A plain backend hears the request as the client sent it, less what is of the
// hop and what would steer servers; and the client hears the answer.
func TestPlainPassThrough(t *testing.T) {
	noLeaks(t)
	a, b := echo(t, "a"), echo(t, "b")
	r := newHTTPRig(t, plainText, map[string][]*httptest.Server{"a": {a}, "b": {b}})
	res, e := r.ask("l", "PATCH", "one.example:81", "/x%20y/%7Ez//k?q=1&q=2;3", func(q *http.Request) {
		q.Header.Set("Authorization", "Bearer x")
		q.Header.Set("Cookie", "a=b")
		q.Header.Set("Accept-Encoding", "br")
		q.Header.Set("Connection", "X-Hop")
		q.Header.Set("X-Hop", "1")
		q.Header.Set("X-Gateway-Destination-Endpoint", "10.0.0.1:1")
		q.Header.Set("X_Gateway_Destination_Endpoint", "10.0.0.1:1")
		q.Header.Set("X-Forwarded-For", "1.2.3.4")
		q.Header["X-Echo-Set"] = []string{"Set-Cookie:s=1", "Server:mine", "Etag:v", "Keep-Alive:7"}
		q.Body, q.ContentLength = io.NopCloser(strings.NewReader("hello")), -1
	})
	if res.StatusCode != 200 || e.Server != "a" {
		t.Fatalf("%d from %q", res.StatusCode, e.Server)
	}
	if e.Method != "PATCH" || e.Host != "one.example:81" || e.Path != "/x%20y/%7Ez//k" || e.Query != "q=1&q=2;3" || e.Body != "hello" {
		t.Errorf("backend heard %+v", e)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer x", "Cookie": "a=b", "Accept-Encoding": "br", "X-Hop": "", "X-Gateway-Destination-Endpoint": "",
		"X_gateway_destination_endpoint": "", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "one.example:81", "X-Forwarded-Proto": "http",
	} {
		if got := e.Header.Get(name); got != want && strings.Join(e.Header[name], ",") != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if res.Header.Get("Set-Cookie") != "s=1" || res.Header.Get("Server") != "mine" || res.Header.Get("Etag") != "v" || res.Header.Get("Keep-Alive") != "" {
		t.Errorf("client heard %v", res.Header)
	}
	if res.Header.Get("X-Request-Id") == "" || res.Header.Get("X-Request-Id") != e.Header.Get("X-Request-Id") {
		t.Error("no request id, or two of them")
	}
	rec := r.record(0)
	if rec.Route != "one" || rec.Rule != "rest" || rec.Pool != "a" || rec.Served != a.Listener.Addr().String() || rec.BytesIn != 5 || rec.Status != 200 {
		t.Errorf("record %+v", rec)
	}
	if _, e := r.ask("l", "GET", "one.example", "/b/c", nil); e.Server != "b" {
		t.Errorf("/b/c went to %q", e.Server)
	}
	if _, e := r.ask("l", "GET", "one.example", "/bc", nil); e.Server != "a" {
		t.Errorf("/bc went to %q", e.Server)
	}
	if res, _ := r.ask("l", "GET", "two.example", "/", nil); res.StatusCode != 404 {
		t.Errorf("another host: %d", res.StatusCode)
	}
	if res, _ := r.ask("l", "HEAD", "two.example", "/", nil); res.StatusCode != 404 || res.Header.Get("Content-Type") != "" {
		t.Errorf("HEAD of another host: %d, %v", res.StatusCode, res.Header)
	}
	if res, _ := r.ask("l", "HEAD", "one.example", "/", nil); res.StatusCode != 200 || res.ContentLength <= 0 {
		t.Errorf("HEAD: %d, length %d", res.StatusCode, res.ContentLength)
	}
	if res, e := r.ask("l", "OPTIONS", "one.example", "/", nil); res.StatusCode != 200 || e.Method != "OPTIONS" {
		t.Errorf("OPTIONS: %d %s", res.StatusCode, e.Method)
	}
}

// A connection of HTTP/1.1 is used again after an upload, unless the upload was
// chunked: then it cannot be told whether a length came beside it. Series of a
// route that is gone are gone.
func TestConnectionIsUsedAgain(t *testing.T) {
	noLeaks(t)
	a, b := echo(t, "a"), echo(t, "b")
	servers := map[string][]*httptest.Server{"a": {a}, "b": {b}}
	r := newHTTPRig(t, plainText, servers)
	c, err := net.Dial("tcp", r.addr("l"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	in := bufio.NewReader(c)
	ask := func(text string) *http.Response {
		t.Helper()
		io.WriteString(c, text)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		return res
	}
	for _, body := range []string{"hello", strings.Repeat("x", 40<<10)} {
		if res := ask(fmt.Sprintf("POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: %d\r\n\r\n%s", len(body), body)); res.Close || res.StatusCode != 200 {
			t.Errorf("%s, close %v", res.Status, res.Close)
		}
	}
	if res := ask("POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"); !res.Close || res.StatusCode != 200 {
		t.Errorf("%s, close %v", res.Status, res.Close)
	}
	count := func() int {
		r.record(2)
		families, _ := r.reg.Gather()
		for _, f := range families {
			if f.GetName() == "penstock_http_route_requests_total" {
				return len(f.GetMetric())
			}
		}
		return 0
	}
	if n := count(); n != 1 {
		t.Errorf("%d series", n)
	}
	r.apply(strings.Replace(plainText, "name: one", "name: two", 1), servers)
	if n := count(); n != 0 {
		t.Errorf("%d series of a route that is gone", n)
	}
}

// A route that leads back to the gateway itself ends after a few turns.
func TestHTTPRouteInACircle(t *testing.T) {
	noLeaks(t)
	text := func(pool, backend string) string {
		return fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: %[1]s, plain: true, members: {static: [%[2]q]}}]
httpRoutes:
  - name: r
    parents: [{listener: l}]
    rules:
      - {backends: [{pool: %[1]s}]}
`, pool, backend)
	}
	r := newHTTPRig(t, text("other", "127.0.0.1:1"), nil)
	r.apply(text("self", r.addr("l")), nil)
	res, _ := r.ask("l", "GET", "h.example", "/x", nil)
	if res.StatusCode != http.StatusLoopDetected {
		t.Errorf("the answer is %d", res.StatusCode)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := len(r.records)
		r.mu.Unlock()
		if n == 9 {
			break
		}
		if n > 9 || time.Now().After(end) {
			t.Fatalf("%d turns", n)
		}
	}
}
