// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/extproc/extproctest"
)

// shownTo keeps what one session of a script has seen.
type shownTo struct {
	mu             sync.Mutex
	served, answer string
	header         map[string][]string
	ended          bool
}

// watched is Good that notes what it is shown, and edits the answer's head.
func (k *shownTo) watched(list string, fields ...extproctest.Field) extproctest.Script {
	return func(s *extproctest.Session) error {
		if err := s.RequestPhase(list, list); err != nil {
			return err
		}
		for {
			m, err := s.Next()
			if err != nil {
				return nil
			}
			k.mu.Lock()
			k.served, k.answer, k.header = s.Served, string(s.Answer), s.Header
			k.ended = m.Kind == "response-body" && m.End
			k.mu.Unlock()
			if m.Kind == "response-headers" {
				if err := s.HeadBack(fields...); err != nil {
					return err
				}
			}
		}
	}
}

// The response phase by its three modes: what the picker is shown, in order,
// and what its edits do.
func TestResponsePhase(t *testing.T) {
	stream := chunk("up-m", "hi") + finish + usageEv + doneMark
	digest := "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4},\"total_tokens\":11}}\n\ndata: [DONE]\n\n"
	for _, c := range []struct {
		mode   string
		wait   string // for edits of the head
		heard  string
		served bool
		answer string
	}{
		{"off", "10s", "request-headers request-body-end", false, ""},
		{"headers", "10s", "request-headers request-body-end response-headers response-body-end", true, digest},
		{"headers", "0s", "request-headers request-body-end response-headers response-body-end", true, digest},
		{"full", "10s", "", true, stream},
	} {
		t.Run(c.mode+" "+c.wait, func(t *testing.T) {
			k := &shownTo{}
			r := newRemoteRig(t, 2, "response: {mode: "+c.mode+", headTimeout: "+c.wait+"}", func(e []string) extproctest.Script {
				return k.watched(e[1], extproctest.Field{Name: "x-from-picker", Value: "yes"}, extproctest.Field{Name: "content-length", Value: "3"})
			})
			res, body := r.post(helloStream)
			if res.StatusCode != 200 || !strings.HasSuffix(body, doneMark) {
				t.Fatalf("%d %q", res.StatusCode, body)
			}
			if got := res.Header.Get("X-From-Picker"); (got == "yes") != (c.served && c.wait != "0s") {
				t.Errorf("the picker's edit of the head: %q", got)
			}
			r.settled()
			heard := strings.Join(r.picker.Heard(), " ")
			if c.heard != "" && heard != c.heard {
				t.Errorf("heard %q, want %q", heard, c.heard)
			}
			if c.mode == "full" && (!strings.HasPrefix(heard, "request-headers request-body-end response-headers response-body") || !strings.HasSuffix(heard, "response-body-end")) {
				t.Errorf("heard %q", heard)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if c.served && (k.served != r.endpoints()[1] || !k.ended) {
				t.Errorf("served %q, want %q; ended %v", k.served, r.endpoints()[1], k.ended)
			}
			if k.answer != c.answer {
				t.Errorf("shown %q, want %q", k.answer, c.answer)
			}
		})
	}
}

// A picker is shown the request as it will be sent, without credentials.
func TestPickerIsShownNoCredentials(t *testing.T) {
	k := &shownTo{}
	r := newRemoteRig(t, 1, "", func(e []string) extproctest.Script { return k.watched(e[0]) })
	q, _ := http.NewRequest("POST", r.url+"/v1/chat/completions", strings.NewReader(hello))
	q.Header.Set("Authorization", "Bearer secret")
	q.Header.Set("X-Api-Key", "secret")
	q.Header.Set("X-Gateway-Destination-Endpoint", stranger)
	q.Header.Set("X-Gateway-Inference-Objective", "batch")
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	r.settled()
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, values := range k.header {
		if strings.Contains(strings.Join(values, ""), "secret") || strings.HasPrefix(name, "x-gateway-destination") {
			t.Errorf("shown %s: %v", name, values)
		}
		if name != strings.ToLower(name) {
			t.Errorf("%s is not in lower case", name)
		}
	}
	for name, want := range map[string]string{":method": "POST", ":path": "/v1/chat/completions", ":scheme": "http", "x-gateway-inference-objective": "batch"} {
		if got := strings.Join(k.header[name], ","); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if len(k.header["x-request-id"]) != 1 || len(k.header[":authority"]) != 1 {
		t.Errorf("header %v", k.header)
	}
}

// A retry goes down the list; when that is used up the picker is asked again,
// for one of the members that have not failed.
func TestRetryContinuesTheList(t *testing.T) {
	var subsets []string
	r := newRemoteRig(t, 3, "", func(e []string) extproctest.Script {
		return func(s *extproctest.Session) error {
			if err := s.Request(); err != nil {
				return err
			}
			subsets = append(subsets, strings.Join(s.Subset, ","))
			list := e[0] + "," + e[1]
			if len(subsets) > 1 {
				list = e[2]
			}
			if err := s.Pick(list, list); err != nil {
				return err
			}
			if err := s.BodyBack(s.Body); err != nil {
				return err
			}
			return s.Rest()
		}
	})
	r.servers[0].Close()
	r.servers[1].Close()
	res, body := r.post(hello)
	if res.StatusCode != 200 || res.Header.Get("X-Server") != "2" {
		t.Fatalf("%d, server %s: %s", res.StatusCode, res.Header.Get("X-Server"), body)
	}
	if rec := r.record(0); rec.Attempts != 3 || rec.Served != r.endpoints()[2] {
		t.Errorf("record %+v", rec)
	}
	r.settled()
	if len(subsets) != 2 || subsets[0] != "" || subsets[1] != r.endpoints()[2] {
		t.Errorf("subset hints %q", subsets)
	}
}

// A late refusal is passed on while nothing has been sent, and breaks the
// answer after that.
func TestEviction(t *testing.T) {
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprint("begun ", begun), func(t *testing.T) {
			when := make(chan struct{})
			var reached sync.WaitGroup
			reached.Add(1)
			s := model(t, func(w http.ResponseWriter, q *http.Request) {
				io.Copy(io.Discard, q.Body)
				if begun {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, chunk("up-m", "hi"))
					w.(http.Flusher).Flush()
				}
				reached.Done()
				<-q.Context().Done()
			})
			address := strings.TrimPrefix(s.URL, "http://")
			p := extproctest.Start(t, extproctest.Evicts(address, when, 429, "out"), nil)
			g := newRig(t, []*httptest.Server{s}, func(y string) string {
				return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q}}", p.Address), 1)
			})
			var res *http.Response
			var body string
			var done sync.WaitGroup
			done.Go(func() { res, body = g.post(helloStream) })
			reached.Wait()
			if begun {
				time.Sleep(50 * time.Millisecond) // until the head is with the client
			}
			close(when)
			done.Wait()
			if !begun && (res.StatusCode != 429 || body != "out" || res.Header.Get("X-Llm-D-Request-Dropped-Reason") != "evicted") {
				t.Errorf("%d %q %v", res.StatusCode, body, res.Header)
			}
			if begun && (res.StatusCode != 200 || !strings.Contains(body, "hi") || strings.Contains(body, "[DONE]") || !strings.Contains(body, "\n!")) {
				t.Errorf("%d %q", res.StatusCode, body)
			}
		})
	}
}

// A client that leaves ends the picker's stream, while it waits and later.
func TestClientLeavesEndsThePick(t *testing.T) {
	for _, script := range []string{"waiting", "streaming"} {
		t.Run(script, func(t *testing.T) {
			r := newRemoteRig(t, 1, "timeout: 1m", func(e []string) extproctest.Script {
				if script == "waiting" {
					return extproctest.Silent
				}
				return extproctest.Good(e[0])
			})
			if script == "streaming" {
				r.servers[0].Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					io.Copy(io.Discard, q.Body)
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, chunk("up-m", "hi"))
					w.(http.Flusher).Flush()
					<-q.Context().Done()
				})
			}
			ctx, leave := context.WithCancel(context.Background())
			q, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(helloStream))
			var done sync.WaitGroup
			done.Go(func() {
				if res, err := http.DefaultClient.Do(q); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			})
			for r.picker.Open.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(20 * time.Millisecond)
			leave()
			done.Wait()
			r.settled()
			if rec := r.record(0); rec.Status != 499 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Picks that wait are limited; those over the limit count as a failure.
func TestMaxPending(t *testing.T) {
	r := newRemoteRig(t, 1, "timeout: 1m, maxPending: 2, failureMode: FailOpen", func([]string) extproctest.Script { return extproctest.Silent })
	ctx, leave := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() {
			q, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(hello))
			if res, err := http.DefaultClient.Do(q); err == nil {
				res.Body.Close()
			}
		})
	}
	for r.metric("penstock_picker_pending p") != "2" {
		time.Sleep(time.Millisecond)
	}
	if res, body := r.post(hello); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if got := r.metric("penstock_picker_failures_total p busy"); got != "1" {
		t.Errorf("busy %s", got)
	}
	leave()
	waiting.Wait()
	r.settled()
}

// A copy for a picker that does not read delays nobody.
func TestSlowPickerDelaysNobody(t *testing.T) {
	event := chunk("up-m", strings.Repeat("x", 4000))
	const events = 2000 // 8 MB, far over all buffers
	s := model(t, func(w http.ResponseWriter, q *http.Request) {
		io.Copy(io.Discard, q.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range events {
			io.WriteString(w, event)
		}
		io.WriteString(w, finish+doneMark)
	})
	r := newRemoteRig(t, 1, "", func([]string) extproctest.Script {
		return extproctest.SlowReader(strings.TrimPrefix(s.URL, "http://"), time.Hour)
	})
	g := newRig(t, []*httptest.Server{s}, func(y string) string {
		return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q, response: {mode: full, headTimeout: 10ms, buffer: 64KiB}}}", r.picker.Address), 1)
	})
	res, body := g.post(helloStream)
	if res.StatusCode != 200 || strings.Count(body, "xxx") == 0 || !strings.HasSuffix(body, doneMark) {
		t.Errorf("%d, %d bytes", res.StatusCode, len(body))
	}
	if got := (&remoteRig{rig: g}).metric("penstock_picker_copies_ended_total p"); got != "1" {
		t.Errorf("copies ended early: %s, want 1", got)
	}
}

// What cannot be a picker at all: nobody there, another protocol, another
// security.
func TestUnreachablePickers(t *testing.T) {
	web := model(t, answers(200, "a web page"))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, _ := net.Listen("tcp", "127.0.0.1:0")
	gone.Close()
	plain := extproctest.Start(t, extproctest.Good("x"), nil)
	for name, c := range map[string]struct{ address, tls string }{
		"nobody":           {gone.Addr().String(), ""},
		"a web server":     {strings.TrimPrefix(web.URL, "http://"), ""},
		"says nothing":     {silent.Addr().String(), ""},
		"plaintext to TLS": {plain.Address, "tls: {insecureSkipVerify: true}, "},
		"no such host":     {"no-such-host.invalid:9002", ""},
	} {
		for mode, want := range map[string]int{"FailOpen": 200, "FailClose": 503} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				s := model(t, answers(200, answer))
				g := newRig(t, []*httptest.Server{s}, func(y string) string {
					return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q, %stimeout: 500ms, failureMode: %s, health: {interval: 50ms, timeout: 40ms}}}", c.address, c.tls, mode), 1)
				})
				res, body := g.post(hello)
				if res.StatusCode != want && !(want == 503 && res.StatusCode == 504) {
					t.Errorf("%d %s", res.StatusCode, body)
				}
			})
		}
	}
}

// The trace of a pick tells what was asked, answered, refused and served.
func TestRemotePickIsExplained(t *testing.T) {
	r := newRemoteRig(t, 2, "", func(e []string) extproctest.Script { return extproctest.Good(stranger + "," + e[1]) })
	res, _ := r.post(hello)
	if res.StatusCode != 200 {
		t.Fatal(res.StatusCode)
	}
	r.settled()
	c := r.backend["p"].Picker.(*extproc.Client)
	e := c.Find(r.record(0).RequestID)
	if e == nil {
		t.Fatal("no trace")
	}
	var text strings.Builder
	if err := e.Table(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"picker " + r.picker.Address, "picked: " + r.endpoints()[1], "asked", "answered",
		"refused  " + stranger + ": not a member", "sent to", "served by  " + r.endpoints()[1],
	} {
		if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the explanation lacks %q:\n%s", want, text.String())
		}
	}
}

// Under FailOpen no request fails because its picker dies, whenever that is.
func TestPickerIsKilledAgainAndAgain(t *testing.T) {
	const streamsAtOnce, kills = 200, 100
	s := model(t, func(w http.ResponseWriter, q *http.Request) {
		io.Copy(io.Discard, q.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 5 {
			io.WriteString(w, chunk("up-m", "hi"))
			w.(http.Flusher).Flush()
			time.Sleep(60 * time.Millisecond) // or the load would be all that the machine does
		}
		io.WriteString(w, finish+doneMark)
	})
	member := strings.TrimPrefix(s.URL, "http://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	var picked atomic.Int64
	script := func(q *extproctest.Session) error {
		picked.Add(1)
		return extproctest.Good(member)(q)
	}
	p := extproctest.Serve(t, l, script, nil)
	g := newRig(t, []*httptest.Server{s}, func(y string) string {
		return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q, failureMode: FailOpen, response: {mode: full}, health: {interval: 1s, timeout: 1s}}}", address), 1) +
			"timeouts: {connect: 1m}\n" // 200 connections at once on a busy machine: a model server that is out would be another story
	})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streamsAtOnce}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var stop atomic.Bool
	var requests, failed atomic.Int64
	var load sync.WaitGroup
	for range streamsAtOnce {
		load.Go(func() {
			for !stop.Load() {
				res, err := client.Post(g.url+"/v1/chat/completions", "application/json", strings.NewReader(helloStream))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				requests.Add(1)
				if err != nil || res.StatusCode != 200 || !strings.HasSuffix(string(body), doneMark) {
					failed.Add(1)
					t.Errorf("%d, %v: %.200s", res.StatusCode, err, body)
					return
				}
			}
		})
	}
	for range kills {
		if t.Failed() {
			break
		}
		before := picked.Load()
		for end := time.Now().Add(time.Minute); picked.Load() < before+10 && time.Now().Before(end) && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		p.Stop()
		// A connection that is being made from the same port may be in the way.
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if l, err = net.Listen("tcp", address); err == nil {
				break
			}
			if time.Now().After(end) {
				stop.Store(true)
				load.Wait()
				t.Fatal(err)
			}
		}
		p = extproctest.Serve(t, l, script, nil)
	}
	stop.Store(true)
	load.Wait()
	t.Logf("%d requests, %d failed, %d asked the picker", requests.Load(), failed.Load(), picked.Load())
	if picked.Load() < kills*10 {
		t.Errorf("the picker was asked %d times: this shows nothing", picked.Load())
	}
}

// A picker behind TLS: believed by its authority, by explicit carelessness, or
// not at all; and a new authority in the file is taken over.
func TestRemotePickerTLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir, "picker")
	otherFile, _ := certificate(t, dir, "other")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s := model(t, answers(200, answer))
	member := strings.TrimPrefix(s.URL, "http://")
	p := extproctest.Start(t, extproctest.Good(member), &pair)
	sum := sha256.Sum256(pair.Leaf.RawSubjectPublicKeyInfo)
	pin := base64.StdEncoding.EncodeToString(sum[:])
	other := base64.StdEncoding.EncodeToString(make([]byte, sha256.Size))
	gatewayWith := func(text string) *rig {
		return newRig(t, []*httptest.Server{s}, func(y string) string {
			return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q, %s, refresh: 100ms, health: {interval: 100ms, timeout: 100ms}}}", p.Address, text), 1)
		})
	}
	for text, want := range map[string]int{
		fmt.Sprintf("tls: {ca: %q}", certFile):                    200,
		fmt.Sprintf("tls: {ca: %q}", otherFile):                   503,
		"tls: {insecureSkipVerify: true}":                         200,
		"tls: {}":                                                 503,
		fmt.Sprintf("tls: {ca: %q, serverName: wrong}", certFile): 503,
		"timeout: 1s":                                             503, // plaintext

		fmt.Sprintf("tls: {insecureSkipVerify: true, pins: [%q, %q]}", other, pin): 200,
		fmt.Sprintf("tls: {insecureSkipVerify: true, pins: [%q]}", other):          503,
		fmt.Sprintf("tls: {ca: %q, pins: [%q]}", certFile, pin):                    200,
		fmt.Sprintf("tls: {ca: %q, pins: [%q]}", certFile, other):                  503,
		fmt.Sprintf("tls: {ca: %q, pins: [%q]}", otherFile, pin):                   503,
	} {
		g := gatewayWith(text)
		status := 0
		for range 100 { // health checks may not have been made yet
			res, _ := g.post(hello)
			if status = res.StatusCode; status == want {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if status != want {
			t.Errorf("%s: %d, want %d", text, status, want)
		}
	}
	ca := filepath.Join(dir, "ca.pem")
	copyFile(t, otherFile, ca)
	g := gatewayWith(fmt.Sprintf("tls: {ca: %q}", ca))
	if res, _ := g.post(hello); res.StatusCode != 503 {
		t.Errorf("another authority: %d", res.StatusCode)
	}
	copyFile(t, certFile, ca)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if res, body := g.post(hello); res.StatusCode == 200 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the new authority is not taken over: %d %s", res.StatusCode, body)
		}
	}
}
