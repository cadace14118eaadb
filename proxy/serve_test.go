// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
)

func TestAnswerCarriesTheNameThatWasAskedFor(t *testing.T) {
	noLeaks(t)
	var got atomic.Value
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got.Store(string(b))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	res, body := r.post(hello)
	if res.StatusCode != 200 || body != strings.Replace(answer, "up-m", "m", 1) {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	if want := strings.Replace(hello, `"m"`, `"up-m"`, 1); got.Load() != want {
		t.Errorf("upstream got %s, want %s", got.Load(), want)
	}
	if res.Header.Get("X-Model-Used") != "up-m" || res.Header.Get("X-Request-Id") == "" || res.Header.Get("X-Penstock-Endpoint") != "" {
		t.Errorf("headers %v", res.Header)
	}
	rec := r.record(0)
	if rec.ModelAsked != "m" || rec.ModelUsed != "up-m" || rec.Status != 200 || rec.Attempts != 1 || rec.Counts.Input != 9 ||
		rec.Counts.Output != 2 || !rec.Counts.Reported() || rec.Finish != "stop" || rec.Picked != rec.Served || rec.ErrorClass != "" {
		t.Errorf("record %+v", rec)
	}
}

// B01: usage is asked for though the client has not, who does not see it.
func TestStreamUsageIsAskedForAndTakenOut(t *testing.T) {
	noLeaks(t)
	var got atomic.Value
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got.Store(string(b))
		streams(chunk("up-m", "a"), chunk("up-m", "b"), finish, usageEv, doneMark)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	res, body := r.post(helloStream)
	want := chunk("m", "a") + chunk("m", "b") + strings.Replace(finish, "up-m", "m", 1) + doneMark
	if res.StatusCode != 200 || body != want {
		t.Errorf("got %d\n%s\nwant\n%s", res.StatusCode, body, want)
	}
	if s := got.Load().(string); !strings.Contains(s, `"include_usage":true`) {
		t.Errorf("usage was not asked for: %s", s)
	}
	rec := r.record(0)
	if rec.Counts.Prompt() != 9 || rec.Counts.CacheRead != 4 || rec.Counts.Output != 2 || rec.TTFT <= 0 || !rec.Stream {
		t.Errorf("record %+v", rec)
	}
}

// The same exchange over every mode must give the same bytes.
func TestEveryModeGivesTheSameBytes(t *testing.T) {
	for _, down := range []string{"http1", "h2c"} {
		for _, up := range []string{"http", "h2c"} {
			t.Run(down+" to "+up, func(t *testing.T) {
				noLeaks(t)
				h := func(w http.ResponseWriter, r *http.Request) {
					if want := map[string]int{"http": 1, "h2c": 2}[up]; r.ProtoMajor != want {
						t.Errorf("upstream speaks HTTP/%d", r.ProtoMajor)
					}
					b, _ := io.ReadAll(r.Body)
					w.Header().Set("Trailer", "X-Sum")
					if bytes.Contains(b, []byte(`"stream":true`)) {
						streams(chunk("up-m", "Grüße"), finish, doneMark)(w, r)
					} else {
						answers(200, answer)(w, r)
					}
					w.Header().Set("X-Sum", "12")
				}
				s := httptest.NewUnstartedServer(http.HandlerFunc(h))
				s.Config.Protocols = new(http.Protocols)
				s.Config.Protocols.SetHTTP1(true)
				s.Config.Protocols.SetUnencryptedHTTP2(true)
				s.Start()
				t.Cleanup(s.Close)
				r := newRig(t, []*httptest.Server{s}, func(y string) string {
					return strings.Replace(y, "metrics:", "protocol: "+up+"\n    metrics:", 1)
				})
				tr := &http.Transport{Protocols: new(http.Protocols)}
				tr.Protocols.SetHTTP1(down == "http1")
				tr.Protocols.SetUnencryptedHTTP2(down == "h2c")
				defer tr.CloseIdleConnections()
				for body, want := range map[string]string{
					hello:       strings.Replace(answer, "up-m", "m", 1),
					helloStream: chunk("m", "Grüße") + strings.Replace(finish, "up-m", "m", 1) + doneMark,
				} {
					res, err := (&http.Client{Transport: tr}).Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || string(b) != want {
						t.Errorf("got %q (%v), want %q", b, err, want)
					}
					if res.Trailer.Get("X-Sum") != "12" {
						t.Errorf("trailer %v", res.Trailer)
					}
				}
			})
		}
	}
}

// B40, B41: what a client proves himself with goes to no server.
func TestRequestHeadersAreCleaned(t *testing.T) {
	var got atomic.Pointer[http.Header]
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		got.Store(&h)
		answers(200, answer)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	req, _ := http.NewRequest("POST", r.url+"/v1/chat/completions?key=secret&a=b", strings.NewReader(hello))
	for name, value := range map[string]string{
		"Authorization": "Bearer k", "Cookie": "c=1", "X-Gateway-Destination-Endpoint": "10.0.0.1:1",
		"x-prefiller-host-port": "10.0.0.1:1", "X_Prefiller_Host_Port": "10.0.0.1:1", "X-Request-Id": "abc-1",
		"X-Forwarded-For": "6.6.6.6", "Connection": "X-Secret", "X-Secret": "1", "X-App": "keep", "Accept-Encoding": "gzip",
	} {
		req.Header[name] = []string{value}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	h := *got.Load()
	for _, name := range []string{"Authorization", "Cookie", "X-Gateway-Destination-Endpoint", "X-Prefiller-Host-Port", "X_prefiller_host_port", "X_Prefiller_Host_Port", "X-Secret", "Accept-Encoding"} {
		if v := h[name]; v != nil {
			t.Errorf("%s reached the server: %v", name, v)
		}
	}
	if h.Get("X-App") != "keep" || h.Get("X-Request-Id") != "abc-1" || h.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("headers %v", h)
	}
	if res.Header.Get("X-Request-Id") != "abc-1" {
		t.Errorf("the request id was not kept: %v", res.Header)
	}
}

func TestCompressedBody(t *testing.T) {
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Encoding") != "" || !strings.Contains(string(b), "up-m") {
			t.Errorf("upstream got %v %q", r.Header, b)
		}
		answers(200, answer)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	io.WriteString(zw, hello)
	zw.Close()
	for enc, want := range map[string]int{"gzip": 200, "lzma": 415} {
		req, _ := http.NewRequest("POST", r.url+"/v1/chat/completions", bytes.NewReader(z.Bytes()))
		req.Header.Set("Content-Encoding", enc)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", enc, res.StatusCode, want)
		}
	}
}

// A member that refuses, resets before its first byte, or answers 503 is
// replaced by another; the client sees one whole answer.
func TestNextMemberBeforeTheFirstByte(t *testing.T) {
	reset := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, _ := w.(http.Hijacker).Hijack()
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	headThenReset := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, bad := range map[string]http.HandlerFunc{
		"reset": reset, "head then reset": headThenReset, "503": answers(503, `{"error":{"message":"loading"}}`), "refused": nil,
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			good := model(t, streams(chunk("up-m", "a"), finish, doneMark))
			var broken *httptest.Server
			if bad == nil {
				broken = httptest.NewServer(nil)
				broken.Close()
			} else {
				broken = model(t, bad)
			}
			r := newRig(t, []*httptest.Server{good, broken}, nil)
			retried := 0
			for i := range 4 {
				res, body := r.post(helloStream)
				if res.StatusCode != 200 || !strings.HasSuffix(body, doneMark) {
					t.Fatalf("request %d: %d %s", i, res.StatusCode, body)
				}
				rec := r.record(i)
				if rec.Attempts == 2 {
					retried++
				}
				if rec.Served != strings.TrimPrefix(good.URL, "http://") {
					t.Errorf("served by %s", rec.Served)
				}
			}
			if retried == 0 {
				t.Error("the broken member was never tried: the test proves nothing")
			}
		})
	}
}

// A prompt that crashes servers reaches two of them and no more.
func TestAtMostOneFurtherMemberGetsAWholeRequest(t *testing.T) {
	var hits atomic.Int32
	crash := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		hits.Add(1)
		panic(http.ErrAbortHandler)
	}
	var servers []*httptest.Server
	for range 5 {
		servers = append(servers, model(t, crash))
	}
	r := newRig(t, servers, func(y string) string { return y + "retries: {attempts: 5}\n" })
	res, body := r.post(hello)
	if res.StatusCode != 502 || hits.Load() != 2 {
		t.Errorf("%d servers were hit; answer %d %s", hits.Load(), res.StatusCode, body)
	}
}

func TestBreakInMidStreamIsToldInTheStream(t *testing.T) {
	noLeaks(t)
	for name, end := range map[string]func(){"abort": func() { panic(http.ErrAbortHandler) }, "clean end without mark": func() {}} {
		t.Run(name, func(t *testing.T) {
			s := model(t, func(w http.ResponseWriter, r *http.Request) {
				streams(chunk("up-m", "a"))(w, r)
				end()
			})
			r := newRig(t, []*httptest.Server{s}, nil)
			res, body := r.post(helloStream)
			if res.StatusCode != 200 || !strings.HasPrefix(body, chunk("m", "a")+`data: {"error":`) || strings.Contains(body, "[DONE]") {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
			if !strings.Contains(body, "\n!") {
				t.Error("the message ended as if it were whole")
			}
			if rec := r.record(0); rec.ErrorClass == "" || rec.Status != 200 || rec.Attempts != 1 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// B14, B15: whoever leaves takes the work with him, before the first token too.
func TestClientLeavesCancelsUpstream(t *testing.T) {
	for _, phase := range []string{"prefill", "decode"} {
		t.Run(phase, func(t *testing.T) {
			noLeaks(t)
			gone, here := make(chan struct{}), make(chan struct{})
			s := model(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if phase == "decode" {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, chunk("up-m", "a"))
					w.(http.Flusher).Flush()
				}
				close(here)
				<-r.Context().Done()
				close(gone)
			})
			r := newRig(t, []*httptest.Server{s}, nil)
			ctx, cancel := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(helloStream))
			done := make(chan struct{})
			go func() {
				defer close(done)
				if res, err := http.DefaultClient.Do(req); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-here
			if phase == "decode" {
				time.Sleep(20 * time.Millisecond) // let the chunk pass
			}
			cancel()
			<-done
			select {
			case <-gone:
			case <-time.After(time.Second):
				t.Error("the model server still works after a second")
			}
			if rec := r.record(0); rec.Status != 499 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// B67, B68: each phase has a time of its own; one that runs out in a stream is told in it.
func TestPhaseTimeouts(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	stall := func(w http.ResponseWriter, r *http.Request) {
		streams(chunk("up-m", "a"))(w, r)
		<-r.Context().Done()
	}
	trickle := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			streams(chunk("up-m", "a"))(w, r)
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, c := range []struct {
		name, timeouts string
		server         http.HandlerFunc
		status         int
		in             string
	}{
		{"first token", "{firstToken: 100ms}", hang, 504, "sent nothing in time"},
		{"idle", "{idle: 100ms}", stall, 200, "stopped sending"},
		{"total", "{total: 300ms, idle: 200ms, connect: 100ms}", trickle, 200, "took longer than allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			r := newRig(t, []*httptest.Server{model(t, c.server)}, func(y string) string { return y + "timeouts: " + c.timeouts + "\n" })
			res, body := r.post(helloStream)
			if res.StatusCode != c.status || !strings.Contains(body, c.in) || strings.Contains(body, "[DONE]") {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
}

func TestDebugHeadersOnlyWhenAskedFor(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string {
		return strings.Replace(y, "anonymous: true", "anonymous: true, debugHeaders: true", 1)
	})
	res, _ := r.post(hello)
	if res.Header.Get("X-Penstock-Endpoint") == "" || res.Header.Get("X-Penstock-Pick") != "picked" {
		t.Errorf("headers %v", res.Header)
	}
}

func TestModels(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string {
		return y + "  - {name: a/b, alias: m}\n  - {name: hidden, alias: m}\nroutes: [{name: r, models: [m, 'a/*']}]\n"
	})
	for path, want := range map[string]string{"/v1/models": `"a/b"`, "/v1/models/a/b": `"a/b"`} {
		res, err := http.Get(r.url + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(b), want) || strings.Contains(string(b), "hidden") {
			t.Errorf("%s: %d %s", path, res.StatusCode, b)
		}
	}
	if res, body := r.post(strings.Replace(hello, `"m"`, `"hidden"`, 1)); res.StatusCode != 404 {
		t.Errorf("a model outside the route: %d %s", res.StatusCode, body)
	}
}

func TestRoutesByHostAndPrefix(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string {
		return y + `routes:
  - {name: wild, hosts: ["*.example.com"]}
  - {name: exact, hosts: [a.example.com], pathPrefix: /team}
`
	})
	for _, c := range []struct {
		host, path string
		status     int
		route      string
	}{
		{"b.example.com", "/v1/chat/completions", 200, "wild"},
		{"a.example.com:80", "/team/v1/chat/completions", 200, "exact"},
		{"a.example.com", "/teamx/v1/chat/completions", 404, ""},
		{"example.com", "/v1/chat/completions", 404, ""},
	} {
		req, _ := http.NewRequest("POST", r.url+c.path, strings.NewReader(hello))
		req.Host = c.host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s%s: %d, want %d", c.host, c.path, res.StatusCode, c.status)
		}
	}
}

func TestUpgrade(t *testing.T) {
	echo := model(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			t.Errorf("headers %v", r.Header)
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(101)
		c, rw, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		line, _ := rw.ReadString('\n')
		fmt.Fprintf(c, "echo %s", line)
	})
	r := newRig(t, []*httptest.Server{echo}, func(y string) string {
		return strings.Replace(y, "anonymous: true", "anonymous: true, upgradePaths: [/v1/realtime]", 1)
	})
	dial := func(path string) (*http.Response, net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", path)
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		return res, c, br
	}
	res, c, br := dial("/v1/realtime?model=m")
	defer c.Close()
	if res.StatusCode != 101 {
		t.Fatalf("status %d", res.StatusCode)
	}
	io.WriteString(c, "hi\n")
	if line, err := br.ReadString('\n'); line != "echo hi\n" {
		t.Errorf("got %q %v", line, err)
	}
	res, c2, _ := dial("/v1/chat/completions")
	defer c2.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 400 || !strings.Contains(string(body), "websocket") {
		t.Errorf("upgrade where none is allowed: %d %s", res.StatusCode, body)
	}
}

func TestDrainWaitsThenCuts(t *testing.T) {
	release := make(chan struct{})
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		streams(chunk("up-m", "a"))(w, r)
		select {
		case <-release:
			streams(finish, doneMark)(w, r)
		case <-r.Context().Done():
		}
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	bodies := make(chan string, 2)
	for range 2 {
		go func() { _, b := r.post(helloStream); bodies <- b }()
	}
	for r.server.Open() < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	go func() { time.Sleep(100 * time.Millisecond); release <- struct{}{} }()
	ctx, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	if cut := r.server.Drain(ctx); cut != 1 {
		t.Errorf("cut %d streams, want 1", cut)
	}
	whole, broken := 0, 0
	for range 2 {
		switch b := <-bodies; {
		case strings.HasSuffix(b, doneMark):
			whole++
		case strings.Contains(b, "shutting down"):
			broken++
		}
	}
	if whole != 1 || broken != 1 {
		t.Errorf("%d whole, %d told of the cut", whole, broken)
	}
}

func TestReloadLosesNoStream(t *testing.T) {
	noLeaks(t)
	release := make(chan struct{})
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		streams(chunk("up-m", "a"))(w, r)
		<-release
		streams(finish, doneMark)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	old := r.server.Addresses()["l"]
	r.cfg.Listeners[0].Address = old // a listener on port 0 has no address to keep
	r.apply(r.cfg)
	body := make(chan string, 1)
	go func() { _, b := r.post(helloStream); body <- b }()
	for r.server.Open() < 1 {
		time.Sleep(5 * time.Millisecond)
	}
	for i := range 5 {
		next := *r.cfg
		next.Limits.Streams = 200 + i // a change that needs a new server on the same socket
		next.Listeners = []config.Listener{r.cfg.Listeners[0]}
		r.apply(&next)
		if res, err := http.Get("http://" + old + "/v1/models"); err != nil {
			t.Errorf("reload %d: %v", i, err)
		} else {
			res.Body.Close()
		}
	}
	close(release)
	if b := <-body; !strings.HasSuffix(b, doneMark) {
		t.Errorf("the stream did not survive: %s", b)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Without pools[].paths a pool serves the default ones.
func TestDefaultPathsAreServed(t *testing.T) {
	s := model(t, answers(200, `{"tokens":[1]}`))
	r := newRig(t, []*httptest.Server{s}, nil)
	if res, body := r.postTo("/tokenize", `{"model":"m","prompt":"x"}`); res.StatusCode != 200 {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	r = newRig(t, []*httptest.Server{s}, func(y string) string { return strings.Replace(y, "    metrics:", "    paths: []\n    metrics:", 1) })
	if res, body := r.postTo("/tokenize", `{"model":"m","prompt":"x"}`); res.StatusCode != 404 {
		t.Errorf("with an empty list: %d %s", res.StatusCode, body)
	}
}
