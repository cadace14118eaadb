// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"context"
	"encoding/binary"
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
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/usage"
)

// The tests in this file are of failures that other gateways had, as far as they
// are no cases of text (docs/known-failures.md).

// breaks is a picker that panics, or whose observer does.
type breaks struct {
	epp.Picker
	at     string
	chunks int
}

func (b *breaks) Pick(ctx context.Context, r *epp.Request) (*epp.Result, error) {
	b.panics("pick")
	res, err := b.Picker.Pick(ctx, r)
	if err == nil {
		res.Observer = b
	}
	return res, err
}

func (b *breaks) panics(at string) {
	if b.at == at {
		panic("a fault of the gateway at " + at)
	}
}

func (b *breaks) Attempt(*pool.Member)  {}
func (b *breaks) Served(*pool.Member)   {}
func (b *breaks) Head(int, http.Header) { b.panics("head") }
func (b *breaks) Chunk([]byte, int) {
	if b.chunks++; b.chunks == 2 {
		b.panics("chunk")
	}
}
func (b *breaks) End(http.Header) { b.panics("end") }

// A fault of the gateway itself ends the client's request at once: with 500 as
// long as nothing was sent, and later so that what came is broken for all to see.
func TestB20FaultsOfTheGatewayEndTheRequest(t *testing.T) {
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		streams(chunk("up-m", "a"))(w, r)
		time.Sleep(50 * time.Millisecond) // apart from the first
		streams(chunk("up-m", "b"))(w, r)
		<-r.Context().Done() // a client that is not told waits for ever
	})
	for at, want := range map[string]string{"pick": "500 {", "head": "500 {", "chunk": "200 " + chunk("m", "a") + "\n\ndata: {\"error\":{\"message\":\"the gateway failed"} {
		t.Run(at, func(t *testing.T) {
			noLeaks(t)
			r := newRig(t, []*httptest.Server{s}, nil)
			r.backend["p"] = proxy.Backend{Pool: r.pool, Picker: &breaks{Picker: r.backend["p"].Picker, at: at}}
			r.apply(r.cfg)
			res, body := r.post(helloStream)
			if got := fmt.Sprint(res.StatusCode, " ", body); !strings.HasPrefix(got, want) || !strings.Contains(got, "the gateway failed") || want[0] == '2' && !strings.HasSuffix(got, "!unexpected EOF") {
				t.Errorf("got %q, want %q", got, want)
			}
			if rec := r.record(0); rec.ErrorClass != "internal_error" {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Each event reaches the client before the server sends the next one, passed on,
// edited or translated, and nothing on the way is told to wait.
func TestB34EventsAreNotHeldBack(t *testing.T) {
	for name, c := range map[string]struct{ config, path, body string }{
		"member":     {"pools: [{name: p, members: {static: [%q]}, metrics: {off: true}}]\nmodels: [{name: m, targets: [{pool: p}]}]\n", "/v1/chat/completions", helloStream},
		"edited":     {"pools: [{name: p, members: {static: [%q]}, metrics: {off: true}}]\nmodels: [{name: m, targets: [{pool: p, model: up-m}]}]\n", "/v1/chat/completions", helloStream},
		"provider":   {"providers: [{name: p, baseURL: \"http://%s\", credentials: [{secret: s}]}]\nmodels: [{name: m, targets: [{provider: p, model: up-m}]}]\n", "/v1/chat/completions", helloStream},
		"translated": {"providers: [{name: p, baseURL: \"http://%s\", credentials: [{secret: s}]}]\nmodels: [{name: m, targets: [{provider: p, model: up-m}]}]\n", "/v1/messages", strings.Replace(helloStream, `"stream"`, `"max_tokens":9,"stream"`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			next := make(chan struct{})
			s := model(t, func(w http.ResponseWriter, r *http.Request) {
				streams()(w, r)
				for i := range 5 {
					streams(chunk("up-m", fmt.Sprint("word", i)))(w, r)
					select {
					case <-next:
					case <-r.Context().Done():
						return
					}
				}
				streams(finish, doneMark)(w, r)
			})
			url := gatewayOf(t, fmt.Sprintf(c.config, s.Listener.Addr().String()))
			res, err := http.Post(url+c.path, "application/json", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if h := res.Header; h.Get("Cache-Control") != "no-cache" || h.Get("X-Accel-Buffering") != "no" || h.Get("Content-Length") != "" {
				t.Errorf("headers %v", h)
			}
			stuck := time.AfterFunc(10*time.Second, func() { res.Body.Close() })
			defer stuck.Stop()
			lines, seen := bufio.NewScanner(res.Body), 0
			for lines.Scan() {
				if strings.Contains(lines.Text(), fmt.Sprint("word", seen)) {
					seen++
					next <- struct{}{}
				}
			}
			if seen != 5 {
				t.Errorf("%d events came", seen)
			}
		})
	}
}

// gatewayOf is the URL of a gateway with a configuration that has no listeners.
func gatewayOf(t testing.TB, text string) string {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte("listeners: [{name: l, address: \"127.0.0.1:0\", anonymous: true}]\nadmin: {address: \"off\"}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	server := proxy.New(proxy.Options{Records: func(*usage.Record) {}})
	backends, providers := map[string]proxy.Backend{}, map[string]*provider.Provider{}
	for _, pc := range cfg.Pools {
		p, err := pool.New(pc, pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.Start(context.Background())
		t.Cleanup(p.Close)
		picker, _ := epp.Builtin("round-robin")
		profile, err := epp.Compile(picker)
		if err != nil {
			t.Fatal(err)
		}
		backends[pc.Name] = proxy.Backend{Pool: p, Picker: epp.New(p, profile, epp.Options{})}
	}
	for _, pc := range cfg.Providers {
		p, err := provider.New(pc, provider.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		providers[pc.Name] = p
	}
	change, err := server.Prepare(cfg, backends, providers)
	if err != nil {
		t.Fatal(err)
	}
	change.Commit()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		server.Drain(ctx)
	})
	return "http://" + server.Addresses()["l"]
}

// A server that lets go of an HTTP/2 connection with GOAWAY has not looked at
// the request that was just sent: another connection gets it, and the member is
// not blamed.
func TestB73GoAway(t *testing.T) {
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var served, refused atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go http2Server(c, &served, &refused)
		}
	}()
	s := &httptest.Server{URL: "http://" + l.Addr().String()}
	r := newRig(t, []*httptest.Server{s}, func(y string) string {
		return strings.Replace(y, "metrics: {off: true}", "metrics: {off: true}\n    protocol: h2c\n    ejection: {failures: 1, maxPercent: 100}", 1)
	})
	for i := range 6 {
		if res, body := r.post(hello); res.StatusCode != 200 {
			t.Errorf("request %d: %d %s", i, res.StatusCode, body)
		}
	}
	if served.Load() != 6 || refused.Load() == 0 {
		t.Errorf("%d served, %d refused", served.Load(), refused.Load())
	}
}

// http2Server answers the first request of a connection and sends GOAWAY when
// the second one comes, which it does not look at.
func http2Server(c net.Conn, served, refused *atomic.Int32) {
	const data, headers, settings, ping, goAway = 0, 1, 4, 6, 7
	defer c.Close()
	in := bufio.NewReader(c)
	if _, err := in.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		return
	}
	frame := func(kind, flags byte, stream uint32, payload string) {
		head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
		head = binary.BigEndian.AppendUint32(append(head, flags), stream)
		io.WriteString(c, string(head)+payload)
	}
	frame(settings, 0, 0, "")
	for {
		var head [9]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[:])>>8)
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		kind, flags, stream := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		switch {
		case kind == settings && flags == 0:
			frame(settings, 1, 0, "")
		case kind == ping && flags == 0:
			frame(ping, 1, 0, string(payload))
		case kind == headers && stream > 1:
			refused.Add(1)
			frame(goAway, 0, 0, "\x00\x00\x00\x01\x00\x00\x00\x00")
			return
		case (kind == headers || kind == data) && flags&1 != 0: // the end of the request
			served.Add(1)
			const contentType = "\x0f\x10\x10application/json"
			frame(headers, 4, stream, "\x88"+contentType)
			frame(data, 1, stream, answer)
		}
	}
}
