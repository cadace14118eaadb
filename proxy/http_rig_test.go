// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
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

// httpRig is a real gateway with the pools, listeners and HTTP routes of a
// configuration, on loopback.
type httpRig struct {
	t       testing.TB
	server  *proxy.Server
	reg     *prometheus.Registry
	pools   map[string]*pool.Pool
	backend map[string]proxy.Backend

	mu      sync.Mutex
	records []*usage.Record
}

// newHTTPRig starts a gateway with the configuration text, in which
// {NAME} stands for the addresses of the servers of that name and which may
// leave out admin: off.
func newHTTPRig(t testing.TB, text string, servers map[string][]*httptest.Server) *httpRig {
	t.Helper()
	r := &httpRig{t: t, reg: prometheus.NewRegistry(), pools: map[string]*pool.Pool{}, backend: map[string]proxy.Backend{}}
	r.server = proxy.New(proxy.Options{
		Metrics: proxy.NewInstruments(r.reg),
		Records: func(rec *usage.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.records = append(r.records, rec)
		},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cut := r.server.Drain(ctx); cut != 0 {
			t.Errorf("%d exchanges were still open at the end", cut)
		}
		for name, p := range r.pools {
			for _, m := range p.Snapshot().Members {
				if l := m.Load(); l != (pool.Load{}) {
					t.Errorf("member %s of %s still carries %+v", m.Address(), name, l)
				}
			}
			p.Close()
		}
	})
	r.apply(text, servers)
	return r
}

func parseHTTP(t testing.TB, text string, servers map[string][]*httptest.Server) *config.Config {
	t.Helper()
	for name, list := range servers {
		var addresses []string
		for _, s := range list {
			addresses = append(addresses, `"`+s.Listener.Addr().String()+`"`)
		}
		text = strings.ReplaceAll(text, "{"+name+"}", "["+strings.Join(addresses, ", ")+"]")
	}
	cfg, err := config.Parse("test.yaml", []byte("admin: {address: \"off\"}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (r *httpRig) apply(text string, servers map[string][]*httptest.Server) {
	r.t.Helper()
	cfg := parseHTTP(r.t, text, servers)
	for _, pc := range cfg.Pools {
		if r.pools[pc.Name] != nil {
			continue
		}
		p, err := pool.New(pc, pool.Options{})
		if err != nil {
			r.t.Fatal(err)
		}
		p.Start(context.Background())
		r.pools[pc.Name] = p
		b := proxy.Backend{Pool: p}
		if remote := pc.Picker.Remote; remote != nil {
			c, err := extproc.NewClient(p, *remote, extproc.ClientOptions{Metrics: extproc.NewClientInstruments(prometheus.NewRegistry())})
			if err != nil {
				r.t.Fatal(err)
			}
			c.Start()
			r.t.Cleanup(c.Close)
			b.Picker = c
		} else if !pc.Plain {
			built, _ := epp.Builtin(pc.Picker.Profile)
			profile, err := epp.Compile(built)
			if err != nil {
				r.t.Fatal(err)
			}
			b.Picker = epp.New(p, profile, epp.Options{})
		}
		r.backend[pc.Name] = b
	}
	change, err := r.server.Prepare(cfg, r.backend, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	change.Commit()
}

func (r *httpRig) addr(listener string) string { return r.server.Addresses()[listener] }

func (r *httpRig) record(n int) *usage.Record {
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

// echoed is what an echo server saw.
type echoed struct {
	Server, Method, Host, Path, Query, Body string
	Header                                  http.Header
	Trailer                                 http.Header
}

// echo answers with what it saw. X-Echo-Set: name:value sets an answer's
// header; X-Echo-Status is the answer's status.
func echo(t testing.TB, name string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(echoHandler(name))
	t.Cleanup(s.Close)
	return s
}

func echoHandler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		path, query, _ := strings.Cut(r.RequestURI, "?")
		out, _ := json.Marshal(echoed{name, r.Method, r.Host, path, query, string(body), r.Header, r.Trailer})
		for _, set := range r.Header["X-Echo-Set"] {
			k, v, _ := strings.Cut(set, ":")
			w.Header().Add(k, v)
		}
		w.Header().Set("Content-Type", "application/json")
		if status := r.Header.Get("X-Echo-Status"); status != "" {
			var code int
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
		}
		w.Write(out)
	})
}

// ask sends a request to a listener and returns the answer and what the echo
// server saw, if it was one who answered.
func (r *httpRig) ask(listener, method, host, target string, edit func(*http.Request)) (*http.Response, echoed) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.addr(listener)+"/", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if req.URL, err = url.Parse("http://" + r.addr(listener) + target); err != nil {
		r.t.Fatal(err)
	}
	if host != "" {
		req.Host = host
	}
	if edit != nil {
		edit(req)
	}
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, r.addr(listener))
	}}
	res, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var e echoed
	json.Unmarshal(body, &e)
	res.Body = io.NopCloser(strings.NewReader(string(body)))
	return res, e
}
