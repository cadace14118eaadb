// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// oneBackend is a gateway whose every request goes to the plain pool a.
func oneBackend(t testing.TB, protocol, rule string, s ...*httptest.Server) *httpRig {
	t.Helper()
	text := fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, protocol: %s, members: {static: {a}}%s}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: a}]%s}]}]
`, protocol, map[bool]string{true: ", tls: {insecureSkipVerify: true}"}[protocol == "https"], rule)
	return newHTTPRig(t, text, map[string][]*httptest.Server{"a": s})
}

// serverFor serves h in a pool's protocol.
func serverFor(t testing.TB, protocol string, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	switch protocol {
	case "h2c":
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	case "https":
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetHTTP2(true)
		s.EnableHTTP2 = true
		s.StartTLS()
	default:
		s.Config.Protocols.SetHTTP1(true)
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// clientFor speaks HTTP/1.1 or HTTP/2 in the clear.
func clientFor(t testing.TB, h2 bool) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// everyHop runs f for each protocol of the client and of the backend.
func everyHop(t *testing.T, f func(t *testing.T, h2 bool, protocol string)) {
	for _, h2 := range []bool{false, true} {
		for _, protocol := range []string{"http", "h2c", "https"} {
			t.Run(fmt.Sprintf("%s to %s", map[bool]string{false: "http", true: "h2c"}[h2], protocol), func(t *testing.T) {
				f(t, h2, protocol)
			})
		}
	}
}

// What the client sends reaches the backend before it sends more, and back:
// neither direction waits for the other to end. Trailers follow both ways.
func TestStreamsBothWays(t *testing.T) {
	everyHop(t, func(t *testing.T, h2 bool, protocol string) {
		noLeaks(t)
		s := serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctl := http.NewResponseController(w)
			if r.ProtoMajor == 1 {
				ctl.EnableFullDuplex()
			}
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(200)
			ctl.Flush()
			in := bufio.NewReader(r.Body)
			n := 0
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					break
				}
				n++
				io.WriteString(w, "echo "+line)
				ctl.Flush()
			}
			w.Header().Set("X-Sum", fmt.Sprintf("%d %s", n, r.Trailer.Get("X-End")))
		}))
		r := oneBackend(t, protocol, "", s)
		body, feed := io.Pipe()
		req, _ := http.NewRequest("POST", "http://"+r.addr("l")+"/", body)
		req.Trailer = http.Header{"X-End": nil}
		res, err := clientFor(t, h2).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		out := bufio.NewReader(res.Body)
		for i := range 20 {
			fmt.Fprintf(feed, "line %d\n", i)
			line, err := out.ReadString('\n')
			if want := fmt.Sprintf("echo line %d\n", i); line != want || err != nil {
				t.Fatalf("%q %v, want %q", line, err, want)
			}
		}
		req.Trailer.Set("X-End", "done")
		feed.Close()
		if rest, err := io.ReadAll(out); len(rest) > 0 || err != nil {
			t.Errorf("rest %q %v", rest, err)
		}
		if got := res.Trailer.Get("X-Sum"); got != "20 done" {
			t.Errorf("trailer %q", got)
		}
		if rec := r.record(0); rec.Status != 200 || rec.ErrorClass != "" || rec.BytesIn == 0 || rec.BytesOut == 0 {
			t.Errorf("record %+v", rec)
		}
	})
}

// An upload of 20 MB goes through in the memory of a few buffers, also where
// the backend stops taking it for a while.
func TestUploadIsNotBuffered(t *testing.T) {
	const size = 20 << 20
	everyHop(t, func(t *testing.T, h2 bool, protocol string) {
		took, resume := make(chan struct{}), make(chan struct{})
		s := serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, 8<<20)
			took <- struct{}{}
			<-resume
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n+8<<20, err)
		}))
		r := oneBackend(t, protocol, "", s)
		var before, during runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		req, _ := http.NewRequest("PUT", "http://"+r.addr("l")+"/", io.LimitReader(zeros{}, size))
		req.ContentLength = size
		done := make(chan string)
		go func() {
			res, err := clientFor(t, h2).RoundTrip(req)
			if err != nil {
				done <- err.Error()
				return
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			done <- fmt.Sprint(res.StatusCode, " ", string(b))
		}()
		<-took
		runtime.GC()
		runtime.ReadMemStats(&during)
		// Client, gateway and backend are one process; HTTP/2 windows count too.
		if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
			t.Errorf("the heap has grown by %d bytes in the upload", grown)
		}
		close(resume)
		if got, want := <-done, fmt.Sprintf("200 %d <nil>", size); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if rec := r.record(0); rec.BytesIn != size {
			t.Errorf("record says %d bytes", rec.BytesIn)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A backend may answer before it has read the request, and may never read the
// rest. The client gets the whole answer, and what it sent is never taken for
// another request.
func TestEarlyAnswer(t *testing.T) {
	everyHop(t, func(t *testing.T, h2 bool, protocol string) {
		noLeaks(t)
		s := serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 1 {
				http.NewResponseController(w).EnableFullDuplex()
				w.Header().Set("Connection", "close")
			}
			w.WriteHeader(413)
			io.WriteString(w, "too much")
		}))
		r := oneBackend(t, protocol, "", s)
		body, feed := io.Pipe()
		defer feed.Close()
		go io.WriteString(feed, "GET /other HTTP/1.1\r\nHost: h\r\n\r\n")
		req, _ := http.NewRequest("POST", "http://"+r.addr("l")+"/", body)
		req.ContentLength = 1 << 20
		res, err := clientFor(t, h2).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); res.StatusCode != 413 || string(b) != "too much" || err != nil {
			t.Errorf("%d %q %v", res.StatusCode, b, err)
		}
		r.record(0)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.records) != 1 || r.records[0].Path != "/" {
			t.Errorf("%d requests were served", len(r.records))
		}
	})
}

// A client that leaves takes its request at the backend with it, in the upload
// and in the wait for the answer.
func TestClientLeaves(t *testing.T) {
	for _, upload := range []bool{false, true} {
		t.Run(fmt.Sprintf("upload %v", upload), func(t *testing.T) {
			everyHop(t, func(t *testing.T, h2 bool, protocol string) {
				noLeaks(t)
				began, ended := make(chan struct{}), make(chan struct{})
				s := serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(began)
					if upload {
						io.Copy(io.Discard, r.Body)
					} else {
						<-r.Context().Done()
					}
					close(ended)
				}))
				r := oneBackend(t, protocol, "", s)
				ctx, cancel := context.WithCancel(context.Background())
				var body io.Reader
				pipe, feed := io.Pipe()
				if upload {
					go feed.Write([]byte("some"))
					body = pipe
				}
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+r.addr("l")+"/", body)
				go func() { <-began; cancel(); feed.CloseWithError(context.Canceled) }()
				if _, err := clientFor(t, h2).RoundTrip(req); err == nil {
					t.Error("an answer came")
				}
				select {
				case <-ended:
				case <-time.After(5 * time.Second):
					t.Fatal("the backend still serves the request")
				}
				if rec := r.record(0); rec.Status != 499 {
					t.Errorf("status %d, class %s", rec.Status, rec.ErrorClass)
				}
			})
		})
	}
}

// A backend that dies in its answer leaves the client with an answer that is
// broken for all to see.
func TestBackendDiesInAnswer(t *testing.T) {
	for _, framing := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		for _, h2 := range []bool{false, true} {
			noLeaks(t)
			s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, _, _ := http.NewResponseController(w).Hijack()
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s\r\n\r\n5\r\nhello\r\n", framing)
				c.Close()
			}))
			r := oneBackend(t, "http", "", s)
			req, _ := http.NewRequest("GET", "http://"+r.addr("l")+"/", nil)
			res, err := clientFor(t, h2).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil || !strings.Contains(string(b), "hello") {
				t.Errorf("%s, HTTP/2 %v: read %q, %v", framing, h2, b, err)
			}
			if rec := r.record(0); rec.ErrorClass != "upstream_failed" || rec.Status != 200 {
				t.Errorf("record %+v", rec)
			}
		}
	}
}

// 1xx answers pass, the client's wait for 100 ends when the backend takes the
// body, and a request that no backend gets does not make the client send it.
func TestInformational(t *testing.T) {
	s := serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, string(b), r.Header.Get("Expect"))
	}))
	for _, h2 := range []bool{false, true} {
		r := oneBackend(t, "http", "", s)
		var hints []string
		var asked atomic.Bool
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == http.StatusEarlyHints {
				hints = append(hints, h.Get("Link"))
			}
			return nil
		}, Got100Continue: func() { asked.Store(true) }}
		tr := clientFor(t, h2)
		tr.ExpectContinueTimeout = 5 * time.Second
		req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "POST", "http://"+r.addr("l")+"/", strings.NewReader("body"))
		req.Header.Set("Expect", "100-continue")
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != "body" || len(hints) != 1 || res.Header.Get("Link") != "" {
			t.Errorf("HTTP/2 %v: %q, hints %q, Link %q", h2, b, hints, res.Header.Get("Link"))
		}
		if !asked.Load() && !h2 {
			t.Error("no 100 came")
		}
		r.apply(strings.ReplaceAll(oneText, "BACKENDS", ""), map[string][]*httptest.Server{"a": {s}})
		asked.Store(false)
		req, _ = http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "POST", "http://"+r.addr("l")+"/", strings.NewReader("body"))
		req.Header.Set("Expect", "100-continue")
		if res, err = tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 500 || asked.Load() {
			t.Errorf("HTTP/2 %v: %d, asked for the body: %v", h2, res.StatusCode, asked.Load())
		}
	}
}

const oneText = `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, members: {static: {a}}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [BACKENDS]}]}]
`

// A change of protocol passes to plain backends, in the clear and over TLS;
// bytes then go both ways until one side ends.
func TestUpgradePasses(t *testing.T) {
	for _, protocol := range []string{"http", "https", "h2c"} {
		noLeaks(t)
		s := serverFor(t, protocol, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Key") != "k" {
				http.Error(w, "no upgrade", 400)
				return
			}
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\n")
			io.Copy(c, rw)
		}))
		r := oneBackend(t, protocol, "", s)
		c, err := net.Dial("tcp", r.addr("l"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n")
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if protocol == "h2c" {
			if res.StatusCode != 400 {
				t.Errorf("h2c: %s", res.Status)
			}
			continue
		}
		if res.StatusCode != 101 || res.Header.Get("Sec-Websocket-Accept") != "a" || res.Header.Get("Upgrade") != "websocket" {
			t.Fatalf("%s: %s %v", protocol, res.Status, res.Header)
		}
		for _, word := range []string{"hello", "again"} {
			io.WriteString(c, word)
			buf := make([]byte, len(word))
			if _, err := io.ReadFull(in, buf); err != nil || string(buf) != word {
				t.Fatalf("%s: %q %v", protocol, buf, err)
			}
		}
		c.Close()
		if rec := r.record(0); rec.Status != 101 || rec.BytesOut != 10 {
			t.Errorf("record %+v", rec)
		}
	}
}

// A client that claims more than it sends is at fault, not the backend.
func TestUploadBreaksOff(t *testing.T) {
	noLeaks(t)
	s := echo(t, "a")
	r := oneBackend(t, "http", "", s)
	c, err := net.Dial("tcp", r.addr("l"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nshort")
	c.(*net.TCPConn).CloseWrite()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && res.StatusCode != 400 && res.StatusCode != 499 {
		t.Errorf("status %d", res.StatusCode)
	} else if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if rec := r.record(0); rec.Status != 400 && rec.Status != 499 {
		t.Errorf("record %+v", rec)
	}
	if _, e := r.ask("l", "GET", "", "/", nil); e.Server != "a" {
		t.Error("the backend was held to be at fault")
	}
}
