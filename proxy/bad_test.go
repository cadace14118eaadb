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
	"sync/atomic"
	"testing"
	"time"
)

// Bad input over a raw connection: a clear error or a clean close, and
// nothing upstream is called.
func TestBadInput(t *testing.T) {
	var calls atomic.Int32
	s := model(t, func(w http.ResponseWriter, r *http.Request) { calls.Add(1); answers(200, answer)(w, r) })
	r := newRig(t, []*httptest.Server{s}, func(y string) string {
		return y + "limits: {body: 4KiB, headers: 8KiB, uploadIdle: 300ms, headerTimeout: 500ms}\n"
	})
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	for _, c := range []struct{ name, send, want, in string }{
		{"traversal to administration", post("/v1/chat/../../metrics", hello), "404", "unknown_url"},
		{"encoded traversal", post("/v1/%2e%2e/metrics", hello), "404", ""},
		{"engine administration", post("/v1/load_lora_adapter", hello), "404", "unknown_url"},
		{"method", "GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "405", "POST"},
		{"CONNECT", "CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: 10.0.0.1:22\r\nConnection: close\r\n\r\n", "40", ""},
		{"no model", post("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`), "400", `"param":"model"`},
		{"unknown model", post("/v1/chat/completions", strings.Replace(hello, `"m"`, `"x"`, 1)), "404", "model_not_found"},
		{"twice", post("/v1/chat/completions", `{"model":"m","\u006dodel":"x","messages":[]}`), "400", "model"},
		{"engine control", post("/v1/chat/completions", `{"model":"m","kv_transfer_params":{},"messages":[]}`), "400", "kv_transfer_params"},
		{"not JSON", post("/v1/chat/completions", `{"model":"m"`), "400", "invalid_request_error"},
		{"not UTF-8", post("/v1/chat/completions", "{\"model\":\"m\xff\",\"messages\":[]}"), "400", "UTF-8"},
		{"too large", post("/v1/chat/completions", strings.Repeat("x", 5000)), "413", "4096"},
		{"too large, chunked", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1400\r\n" + strings.Repeat("x", 0x1400) + "\r\n0\r\n\r\n", "413", "4096"},
		{"header with a space", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA b: c\r\nContent-Length: 0\r\n\r\n", "400", ""},
		{"NUL in a value", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\nContent-Length: 0\r\n\r\n", "400", ""},
		{"bare CR in a value", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: b\rc\r\nContent-Length: 0\r\n\r\n", "400", ""},
		{"two lengths", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400", ""},
		{"headers too long", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 20000) + "\r\n\r\n", "431", ""},
		{"refused upload that stalls", "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "404", ""},
		{"headers without end", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: a\r\n", "", ""},
		{"upload that stalls", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "408", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.raw(c.send)
			if c.want != "" && !strings.HasPrefix(got, "HTTP/1.1 "+c.want) || !strings.Contains(got, c.in) {
				t.Errorf("got %q, want %s with %q", got, c.want, c.in)
			}
		})
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("the model server was called %d times", n)
	}
	if res, body := r.post(hello); res.StatusCode != 200 {
		t.Errorf("afterwards: %d %s", res.StatusCode, body)
	}
}

// Both framings at once: the body is read as chunked, framed anew, and the
// connection ends after the answer (RFC 9112 §6.1), so nothing can hide in it.
func TestLengthAndChunkedTogether(t *testing.T) {
	var bodies atomic.Value
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies.Store(fmt.Sprint(string(b), r.TransferEncoding, r.ContentLength == int64(len(b))))
		answers(200, answer)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	smuggled := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
	got := r.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n%s", len(hello), hello, smuggled))
	if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "Connection: close") {
		t.Errorf("got %q", got)
	}
	if want := strings.Replace(hello, `"m"`, `"up-m"`, 1) + "[] true"; bodies.Load() != want {
		t.Errorf("upstream got %v", bodies.Load())
	}
}

func TestAbsoluteFormIsRoutedByPathAlone(t *testing.T) {
	s := model(t, answers(200, answer))
	r := newRig(t, []*httptest.Server{s}, nil)
	got := r.raw(fmt.Sprintf("POST http://10.9.9.9:1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello))
	if !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("got %q", got)
	}
	if rec := r.record(0); rec.Served != strings.TrimPrefix(s.URL, "http://") {
		t.Errorf("served by %s", rec.Served)
	}
}

// A model server that misbehaves harms its own request only.
func TestBadServers(t *testing.T) {
	lines := func(text string, n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			c, rw, _ := w.(http.Hijacker).Hijack()
			defer c.Close()
			for range n {
				if _, err := rw.WriteString(text); err != nil {
					return
				}
			}
			rw.Flush()
		}
	}
	for _, c := range []struct {
		name   string
		server http.HandlerFunc
		status int
	}{
		{"not HTTP", lines("hello\r\n", 3), 502},
		{"headers without end", lines("A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n", 1), 502},
		{"endless headers", lines("HTTP/1.1 200 OK\r\nA: "+strings.Repeat("b", 1000)+"\r\n", 1000), 502},
		{"answers before the upload", func(w http.ResponseWriter, r *http.Request) { answers(400, `{"error":{"message":"no"}}`)(w, r) }, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			r := newRig(t, []*httptest.Server{model(t, c.server)}, func(y string) string { return y + "retries: {attempts: 1}\n" })
			if res, body := r.post(hello); res.StatusCode != c.status {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
}

// An event that never ends passes without being held in memory whole.
// (B39)
func TestEndlessEvent(t *testing.T) {
	noLeaks(t)
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		streams("data: ")(w, r)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 32<<10)); err != nil {
				return
			}
		}
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(helloStream), helloStream)
	n, _ := io.CopyN(io.Discard, bufio.NewReader(c), 40<<20)
	if n < 40<<20 {
		t.Errorf("only %d bytes came", n)
	}
}

// A connection that was dialled ahead is served when it is used at last; the
// time for a header counts from its first byte.
func TestSilentConnectionIsKept(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string { return y + "limits: {headerTimeout: 200ms, keepAlive: 1s}\n" })
	for _, c := range []struct {
		name, first string
		wait        time.Duration
		then, want  string
	}{
		{"silent at first", "", 500 * time.Millisecond, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200"},
		{"silent for too long", "", 1300 * time.Millisecond, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", ""},
		{"a header that takes too long", "GET /v1/models HTTP/1.1\r\n", 500 * time.Millisecond, "Host: x\r\nConnection: close\r\n\r\n", ""},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(3 * time.Second))
		io.WriteString(conn, c.first)
		time.Sleep(c.wait)
		io.WriteString(conn, c.then)
		got, _ := io.ReadAll(conn)
		if (c.want == "") != (len(got) == 0) || !strings.HasPrefix(string(got), c.want) {
			t.Errorf("%s: got %q", c.name, got)
		}
		conn.Close()
	}
}

// Clients that only sit there take no more connections than there may be; when
// one leaves, the next is served.
func TestConnectionsAreBounded(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string { return y + "limits: {connections: 3}\n" })
	var idle []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	time.Sleep(200 * time.Millisecond) // let them be accepted
	answered := make(chan int, 1)
	go func() { res, _ := r.post(hello); answered <- res.StatusCode }()
	select {
	case <-answered:
		t.Error("a fourth connection was accepted")
	case <-time.After(300 * time.Millisecond):
	}
	idle[0].Close()
	if status := <-answered; status != 200 {
		t.Errorf("status %d", status)
	}
}

// What a member says to the gateway alone does not reach the client.
func TestMemberRefusesTheGateway(t *testing.T) {
	for _, status := range []int{301, 401, 407} {
		s := model(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://10.0.0.1/")
			answers(status, `{"error":{"message":"who are you"}}`)(w, r)
		})
		r := newRig(t, []*httptest.Server{s}, nil)
		if res, body := r.post(hello); res.StatusCode != 502 || res.Header.Get("Location") != "" || strings.Contains(body, "who are you") {
			t.Errorf("%d: got %d %v %s", status, res.StatusCode, res.Header, body)
		}
	}
}

// A client that takes no bytes is cut; the model server is let go.
func TestClientThatDoesNotRead(t *testing.T) {
	gone := make(chan struct{})
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for r.Context().Err() == nil {
			streams(strings.Repeat(chunk("up-m", strings.Repeat("a", 1000)), 20))(w, r)
		}
	})
	r := newRig(t, []*httptest.Server{s}, func(y string) string { return y + "limits: {writeIdle: 300ms}\n" })
	c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(helloStream), helloStream)
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the model server still works")
	}
	if rec := r.record(0); rec.ErrorClass != "client_slow" {
		t.Errorf("record %+v", rec)
	}
}
