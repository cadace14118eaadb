// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// engine is a server whose page changes.
type engine struct {
	*httptest.Server
	page    atomic.Value // string
	handler atomic.Value // func(w, r); instead of the page
	served  atomic.Int64
	conns   atomic.Int64 // ever
	open    atomic.Int64 // now
}

func newEngine(t *testing.T, l net.Listener, start func(*httptest.Server)) *engine {
	e := &engine{}
	e.page.Store("")
	e.handler.Store((func(http.ResponseWriter, *http.Request))(nil))
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.served.Add(1)
		if h := e.handler.Load().(func(http.ResponseWriter, *http.Request)); h != nil {
			h(w, r)
			return
		}
		io.WriteString(w, e.page.Load().(string))
	}))
	if l != nil {
		e.Listener.Close()
		e.Listener = l
	}
	e.Config.ConnState = func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			e.conns.Add(1)
			e.open.Add(1)
		case http.StateClosed:
			e.open.Add(-1)
		}
	}
	start(e.Server)
	t.Cleanup(e.Close)
	return e
}

func (e *engine) address() string { return e.Listener.Addr().String() }

// vllm shows a page with these numbers.
func (e *engine) vllm(waiting, queries int) {
	e.page.Store(fmt.Sprintf("vllm:num_requests_waiting{engine=\"0\"} %d\nvllm:prefix_cache_queries_total{} %d\nvllm:prefix_cache_hits_total 1\n", waiting, queries))
}

const ms = config.Duration(time.Millisecond)

// scraped starts a pool of one member that is scraped every few milliseconds.
func scraped(t *testing.T, cfg config.Pool, o pool.Options, addr string) (*pool.Pool, *pool.Member) {
	t.Helper()
	if cfg.Metrics.Interval == 0 {
		cfg.Metrics.Interval = 5 * ms
	}
	if cfg.Metrics.Timeout == 0 {
		cfg.Metrics.Timeout = 20 * config.Duration(time.Second) // a busy machine is not what is tested
	}
	p := newPool(t, cfg, o, addr)
	p.Start(t.Context())
	return p, p.Lookup(addr)
}

func waiting(m *pool.Member) float64 {
	if x := m.Metrics(); x != nil {
		return x.Waiting
	}
	return -1
}

func TestScrapeFollowsThePage(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.vllm(3, 10)
	_, m := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 3 })
	first := m.Metrics()
	e.vllm(5, 20)
	eventually(t, "next page", func() bool { return waiting(m) == 5 })
	if first.Waiting != 3 || !m.Metrics().At.After(first.At) {
		t.Error("an earlier page changed, or time did not advance")
	}
	if m.Epoch() != 0 || e.conns.Load() != 1 {
		t.Errorf("epoch %d, %d connections; want 0 and one kept", m.Epoch(), e.conns.Load())
	}
	e.vllm(5, 7)
	eventually(t, "the counter that ran backwards is a restart", func() bool { return m.Epoch() == 1 })
	served := e.served.Load()
	eventually(t, "more scrapes", func() bool { return e.served.Load() > served+3 })
	if m.Epoch() != 1 {
		t.Errorf("one restart is epoch %d", m.Epoch())
	}
}

func TestProcessStartTimeIsARestart(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	text := "process_start_time_seconds 1.7643e+09\nvllm:num_requests_waiting 1\nvllm:prompt_tokens_total 100\n"
	e.page.Store(text)
	_, m := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	e.page.Store(strings.Replace(text, "1.7643", "1.7644", 1))
	eventually(t, "new start is a restart", func() bool { return m.Epoch() == 1 })
	e.page.Store(strings.Replace(text, "1.7643", "1.7644", 1)[:60])
	e.page.Store(strings.Replace(strings.Replace(text, "1.7643", "1.7644", 1), " 100", " 99", 1))
	eventually(t, "fewer prompt tokens are a restart", func() bool { return m.Epoch() == 2 })
}

func TestProtocols(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	for _, c := range []struct {
		name  string
		cfg   config.Pool
		start func(*httptest.Server)
		major int
	}{
		{"http", config.Pool{}, (*httptest.Server).Start, 1},
		{"h2c", config.Pool{Protocol: config.H2C}, func(s *httptest.Server) {
			s.Config.Protocols = &http.Protocols{}
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
		}, 2},
		{"https by http/1.1", config.Pool{Protocol: config.HTTPS, TLS: &config.ClientTLS{CA: ca}}, (*httptest.Server).StartTLS, 1},
		{"https by http/2", config.Pool{Protocol: config.HTTPS, TLS: &config.ClientTLS{CA: ca, ServerName: "example.com"}}, func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.StartTLS()
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, nil, c.start)
			var major atomic.Int64
			e.handler.Store(func(w http.ResponseWriter, r *http.Request) {
				major.Store(int64(r.ProtoMajor))
				fmt.Fprintln(w, "vllm:num_requests_waiting 4")
			})
			if cert := e.Certificate(); cert != nil {
				block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
				if err := os.WriteFile(ca, block, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, m := scraped(t, c.cfg, pool.Options{}, e.address())
			eventually(t, "ten pages", func() bool { return waiting(m) == 4 && e.served.Load() > 10 })
			if int(major.Load()) != c.major || e.conns.Load() != 1 {
				t.Errorf("HTTP/%d over %d connections, want HTTP/%d over one", major.Load(), e.conns.Load(), c.major)
			}
		})
	}
}

// What a scrape may come to besides a page. None of it ejects, none of it
// advances the time of the last good page.
func TestScrapeThatYieldsNothing(t *testing.T) {
	for result, handler := range map[string]func(http.ResponseWriter, *http.Request){
		"status": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
		"empty":  func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>hello</html>") },
		"too_large": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "vllm:num_requests_waiting 9\n")
			for range 9 << 10 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		},
		"broken": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "vllm:num_requests_waiting 9\n")
			panic(http.ErrAbortHandler)
		},
		"timeout": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(result, func(t *testing.T) {
			e := newEngine(t, nil, (*httptest.Server).Start)
			e.vllm(1, 1)
			limit := 10 * config.Duration(time.Second)
			if result == "timeout" {
				limit = 200 * ms
			}
			p, m := scraped(t, config.Pool{Metrics: config.Metrics{Timeout: limit}}, pool.Options{}, e.address())
			eventually(t, "first page", func() bool { return waiting(m) == 1 })
			e.handler.Store(handler)
			eventually(t, "scrapes fail with "+result, func() bool { return p.Status().Members[0].ScrapeResult == result })
			good := *m.Metrics()
			served := e.served.Load()
			eventually(t, "and go on", func() bool { return e.served.Load() > served+2 })
			if !m.Metrics().At.Equal(good.At) || m.State() != pool.Ready || p.Status().Members[0].ScrapeError == "" {
				t.Errorf("after %s: page of %v (last good %v), %s", result, m.Metrics().At, good.At, m.State())
			}
			e.handler.Store((func(http.ResponseWriter, *http.Request))(nil))
			e.vllm(2, 2)
			eventually(t, "it recovers", func() bool { return waiting(m) == 2 && p.Status().Members[0].ScrapeResult == "" })
		})
	}
}

func TestServerThatClosesEachConnection(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.Config.SetKeepAlivesEnabled(false)
	e.vllm(1, 1)
	p, _ := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "ten pages", func() bool { return e.served.Load() > 10 })
	if r := p.Status().Members[0].ScrapeResult; r != "" {
		t.Errorf("result %s", r)
	}
}

// A kept connection that the server closed between two scrapes costs no page.
func TestServerThatClosesIdleConnections(t *testing.T) {
	e := newEngine(t, nil, func(s *httptest.Server) {
		s.Config.IdleTimeout = time.Millisecond
		s.Start()
	})
	e.vllm(1, 1)
	log := &logText{}
	p, m := scraped(t, config.Pool{}, pool.Options{Log: log.logger()}, e.address())
	eventually(t, "ten pages", func() bool { return e.served.Load() > 10 })
	if s := p.Status().Members[0]; s.ScrapeResult != "" || m.State() != pool.Ready || m.Epoch() != 0 {
		t.Errorf("%+v", s)
	}
}

// Where the members of a batch have lost their connections, each gets a new one
// in a turn of its own: a dial may take its whole time.
func TestConnectionsLostInABatch(t *testing.T) {
	var addrs []string
	var engines []*engine
	for range 8 {
		e := newEngine(t, nil, func(s *httptest.Server) {
			s.Config.IdleTimeout = time.Millisecond
			s.Start()
		})
		e.vllm(1, 1)
		engines, addrs = append(engines, e), append(addrs, e.address())
	}
	p := newPool(t, config.Pool{}, pool.Options{}, addrs...)
	if !pool.AskInBatch(t.Context(), p.Lookup(addrs[0])) || engines[0].conns.Load() > 0 {
		t.Error("others had to wait for a dial")
	}
	q := newPool(t, config.Pool{Metrics: config.Metrics{Interval: 10 * ms, Timeout: 20 * config.Duration(time.Second)}}, pool.Options{}, addrs...)
	q.Start(t.Context())
	for i, e := range engines {
		eventually(t, "ten pages", func() bool { return e.served.Load() > 10 })
		if s := q.Status().Members[i]; s.ScrapeResult != "" {
			t.Errorf("%+v", s)
		}
	}
}

// A server that goes away and comes back: out at the refused dial of the
// scraper, no client needed; back at the first accepted one; a new epoch.
func TestRestartedServerComesBackByItself(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.vllm(1, 500)
	addr := e.address()
	_, m := scraped(t, config.Pool{Ejection: config.Ejection{Base: config.Duration(time.Hour)}}, pool.Options{}, addr)
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	e.Close()
	eventually(t, "ejected", func() bool { return m.State() == pool.Ejected })
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	again := newEngine(t, l, (*httptest.Server).Start)
	again.vllm(2, 3)
	eventually(t, "returning long before its time out ends", func() bool { return m.State() == pool.Returning })
	eventually(t, "its page is read", func() bool { return waiting(m) == 2 })
	if m.Epoch() != 1 {
		t.Errorf("epoch is %d, want 1", m.Epoch())
	}
}

// A draining server refuses new connections and serves old ones: pages over
// the kept connection are no proof that it is back.
func TestDrainingServerStaysOut(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, l, (*httptest.Server).Start)
	e.vllm(1, 1)
	p, m := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	l.Close() // the kept connection lives on
	served := e.served.Load()
	eventually(t, "old connection serves", func() bool { return e.served.Load() > served+2 })
	wantState(t, m, pool.Ready)
	m.Report(pool.Refused)
	eventually(t, "the scraper dials anew", func() bool { return p.Status().Members[0].ScrapeResult == "refused" })
	wantState(t, m, pool.Ejected)
}

// gie#495: one missing family froze all metrics of the pod.
// ai-dynamo/dynamo#1232: the block size of the first worker held for all.
func TestGIE495MissingFamilyDoesNotFreezeTheRest(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	full := "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n" +
		"vllm:prefix_cache_queries_total 5\nvllm:prefix_cache_hits_total 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\"} 1\n"
	e.page.Store(full)
	log := &logText{}
	p, m := scraped(t, config.Pool{Engine: config.VLLM}, pool.Options{Log: log.logger()}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	if s := p.Status().Members[0]; len(s.Missing) != 0 {
		t.Errorf("missing on a full page: %v", s.Missing) // gie#2900: LoRA is optional
	}
	e.page.Store(strings.NewReplacer("kv_cache_usage_perc", "kv_cache_use", "waiting 1", "waiting 7").Replace(full))
	eventually(t, "the rest goes on", func() bool { return waiting(m) == 7 })
	if x := m.Metrics(); x.Has&pool.HasKVUsage != 0 || x.Has&pool.HasRunning == 0 {
		t.Errorf("has %s", x.Has)
	}
	served := e.served.Load()
	eventually(t, "more scrapes", func() bool { return e.served.Load() > served+5 })
	if n := log.count("lacks a signal"); n != 1 {
		t.Errorf("the renamed metric is %d times in the log, want once", n)
	}
	e.page.Store(full)
	eventually(t, "it is back", func() bool { return len(p.Status().Members[0].Missing) == 0 })
}

func TestDynamo1232BlockSizeIsPerMember(t *testing.T) {
	a, b := newEngine(t, nil, (*httptest.Server).Start), newEngine(t, nil, (*httptest.Server).Start)
	a.page.Store("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\"} 1\n")
	b.page.Store("sglang:cache_config_info{page_size=\"64\",num_pages=\"5\"} 1\n")
	p := newPool(t, config.Pool{Metrics: config.Metrics{Interval: 5 * ms}}, pool.Options{}, a.address(), b.address())
	p.Start(t.Context())
	size := func(e *engine) int {
		if x := p.Lookup(e.address()).Metrics(); x != nil {
			return x.BlockSize
		}
		return 0
	}
	eventually(t, "both sizes", func() bool { return size(a) == 16 && size(b) == 64 })
}

func TestExpectedSignalThatNeverCameIsReported(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.vllm(1, 1)
	log := &logText{}
	p, m := scraped(t, config.Pool{Engine: config.VLLM}, pool.Options{Log: log.logger()}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	eventually(t, "report", func() bool {
		return strings.Join(p.Status().Members[0].Missing, " ") == "running kv_usage cache_config"
	})
	auto, m := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	if missing := auto.Status().Members[0].Missing; len(missing) != 0 {
		t.Errorf("engine auto expects %v", missing)
	}
}

// llm-d-router#2825: state of endpoints leaked when they churned.
func TestRouter2825ChurnLeavesNothing(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.vllm(1, 1)
	p, _ := scraped(t, config.Pool{}, pool.Options{}, e.address())
	for range 20 {
		p.SetMembers(nil)
		p.SetMembers(members(e.address()))
		m := p.Lookup(e.address())
		eventually(t, "page", func() bool { return waiting(m) == 1 })
	}
	p.SetMembers(nil)
	eventually(t, "every connection is closed", func() bool { return e.open.Load() == 0 })
}

func TestScrapingIsReconfigured(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	e.handler.Store(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/other" {
			fmt.Fprintln(w, "vllm:num_requests_waiting 2")
			return
		}
		fmt.Fprintln(w, "vllm:num_requests_waiting 1")
	})
	p, m := scraped(t, config.Pool{}, pool.Options{}, e.address())
	eventually(t, "first page", func() bool { return waiting(m) == 1 })
	cfg := p.Config()
	cfg.Metrics.Path = "/other"
	commit, err := p.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	eventually(t, "other page", func() bool { return waiting(m) == 2 })
}

func TestProbe(t *testing.T) {
	e := newEngine(t, nil, (*httptest.Server).Start)
	var status atomic.Int64
	status.Store(200)
	e.handler.Store(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(int(status.Load())) })
	p := newPool(t, config.Pool{Metrics: config.Metrics{Off: true}, Probe: &config.Probe{Interval: 5 * ms}}, pool.Options{}, e.address())
	p.Start(t.Context())
	m := p.Lookup(e.address())
	eventually(t, "probes", func() bool { return e.served.Load() > 3 })
	wantState(t, m, pool.Ready)
	status.Store(503)
	eventually(t, "down", func() bool { return m.State() == pool.Down })
	m.Report(pool.OK)
	wantState(t, m, pool.Down)
	status.Store(204)
	eventually(t, "returning", func() bool { return m.State() == pool.Returning })
	status.Store(500)
	eventually(t, "down again", func() bool { return m.State() == pool.Down })
	cfg := p.Config()
	cfg.Probe = nil
	commit, err := p.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	wantState(t, m, pool.Ready)
}
