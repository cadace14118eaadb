// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/usage"
)

// simulated is a provider that counts for itself.
func simulated(t testing.TB, cfg sim.ProviderConfig) (*sim.Provider, string) {
	t.Helper()
	p := sim.NewProvider(cfg)
	addr, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		p.Close(ctx)
	})
	return p, "http://" + addr
}

// limited is one gateway in front of providers, with tenant acme's key
// sk-client-1, and what its records say.
type limited struct {
	url     string
	cfg     *config.Config
	limiter *quota.Limiter
	server  *proxy.Server
	records func() []*usage.Record
}

func newLimited(t testing.TB, text string) *limited {
	t.Helper()
	text = strings.ReplaceAll(text, "$KEY", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("sk-client-1"))))
	cfg, err := config.Parse("limits.yaml", []byte("listeners: [{name: l, address: \"127.0.0.1:0\"}]\nadmin: {address: \"off\"}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	store, err := quota.Open(cfg.Quota)
	if err != nil {
		t.Fatal(err)
	}
	g := &limited{cfg: cfg, limiter: quota.NewLimiter(quota.Options{})}
	g.limiter.Use(store, cfg.Quota)
	t.Cleanup(g.limiter.Close)
	var mu sync.Mutex
	var records []*usage.Record
	g.records = func() []*usage.Record {
		mu.Lock()
		defer mu.Unlock()
		return append([]*usage.Record(nil), records...)
	}
	server := proxy.New(proxy.Options{Limits: g.limiter, Records: func(r *usage.Record) {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, r)
	}})
	providers := map[string]*provider.Provider{}
	for _, pc := range cfg.Providers {
		if providers[pc.Name], err = provider.New(pc, provider.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(providers[pc.Name].Close)
	}
	change, err := server.Prepare(cfg, nil, providers)
	if err != nil {
		t.Fatal(err)
	}
	change.Commit()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cut := server.Drain(ctx); cut != 0 {
			t.Errorf("%d exchanges were still open", cut)
		}
	})
	g.server, g.url = server, "http://"+server.Addresses()["l"]
	return g
}

// use is how the limits of tenant acme stand.
func (g *limited) use(t testing.TB) []quota.State {
	t.Helper()
	states, err := g.limiter.Usage(context.Background(), "acme", []*quota.Node{quota.NewNode("acme", g.cfg.Tenants[0].Limits)})
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func (g *limited) ask(ctx context.Context, body string) (status int, text string, header http.Header, err error) {
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer sk-client-1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), res.Header, err
}

// TestLimitsUnderLoad: three gateways over one Redis, in front of a provider that
// counts for itself. Never more are under way than the limit says; what is in use
// afterwards is, to the token, what the provider has counted, streams included
// (B51), and all gateways together have one limit (B53); when clients vanish and
// answers are cut, nothing stays reserved (B77).
func TestLimitsUnderLoad(t *testing.T) {
	redis := redistest.Start(t, false)
	own, url := simulated(t, sim.ProviderConfig{TTFT: 5 * time.Millisecond, ITL: 100 * time.Microsecond})
	text := fmt.Sprintf(`
quota: {store: redis, redis: {addresses: ["%s"], timeout: 20s}}
providers: [{name: p, baseURL: "%s/v1", credentials: [{secret: sk-provider}]}]
models: [{name: gpt-sim, targets: [{provider: p}], retries: {attempts: 1}}]
tenants:
  - name: acme
    limits: [{concurrency: 8}, {tokens: 1000000000, per: year}, {requests: 1000000, per: year}]
    keys: [{name: ci, hash: "$KEY"}]
`, redis.Addr, url)
	gateways := []*limited{newLimited(t, text), newLimited(t, text), newLimited(t, text)}
	var served, refused atomic.Int64
	rush := func(n int, f func(i int, g *limited, body string)) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				body := fmt.Sprintf(`{"model":"gpt-sim","max_tokens":%d,"stream":%v,"messages":[{"role":"user","content":"request %d %s"}]}`, 1+i%40, i%2 == 0, i, strings.Repeat("word ", i%90))
				f(i, gateways[i%3], body)
			})
		}
		all.Wait()
	}
	most, watching, watched := int64(0), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-watching:
				return
			case <-time.After(3 * time.Millisecond):
				most = max(most, own.Stats().InFlight)
			}
		}
	}()
	rush(160, func(_ int, g *limited, body string) {
		for {
			status, text, header, err := g.ask(context.Background(), body)
			switch {
			case err == nil && status == 200:
				served.Add(1)
				return
			case err == nil && status == 429 && strings.Contains(text, "acme: 8 requests at a time") && header.Get("Retry-After") == "1":
				refused.Add(1)
				time.Sleep(25 * time.Millisecond)
			default:
				t.Errorf("%d %s %v", status, text, err)
				return
			}
		}
	})
	close(watching)
	<-watched
	stats := own.Stats()
	states := gateways[0].use(t)
	if want := stats.PromptTokens + stats.OutputTokens; states[1].Used != want || states[1].Reserved != 0 {
		t.Errorf("in use %+v; the provider has counted %d tokens", states[1], want)
	}
	if states[0].Used != 0 || states[2].Used != 160 || states[2].Reserved != 0 || stats.Completed != 160 {
		t.Errorf("in use %+v and %+v; the provider has completed %d", states[0], states[2], stats.Completed)
	}
	if most > 8 || refused.Load() == 0 {
		t.Errorf("%d requests were under way at a time, %d refused", most, refused.Load())
	}
	// Now clients vanish and answers are cut.
	own.SetFaults(sim.Faults{Rate: 0.3, CutAfter: 3})
	rush(200, func(i int, g *limited, body string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%25+1)*time.Millisecond)
		defer cancel()
		g.ask(ctx, body)
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		states = gateways[0].use(t)
		if states[0].Used == 0 && states[1].Reserved == 0 && states[2].Reserved == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v is left", states)
		}
	}
}

// TestCredentialLimits: a credential whose limits have no room is passed over, then
// its target; only when nobody is left is the client refused.
func TestCredentialLimits(t *testing.T) {
	first, a := simulated(t, sim.ProviderConfig{Name: "a", TTFT: time.Millisecond, ITL: time.Microsecond})
	second, b := simulated(t, sim.ProviderConfig{Name: "b", TTFT: time.Millisecond, ITL: time.Microsecond})
	g := newLimited(t, fmt.Sprintf(`
providers:
  - name: a
    baseURL: "%s/v1"
    credentials:
      - {name: one, secret: sk-one, limits: [{requests: 1, per: 24h}]}
      - {name: two, secret: sk-two, limits: [{requests: 2, per: 12h}]}
  - {name: b, baseURL: "%s/v1", credentials: [{secret: sk-b, limits: [{tokens: 1000, per: 24h}]}]}
models: [{name: gpt-sim, targets: [{provider: a}], fallbacks: [{provider: b}]}]
tenants: [{name: acme, keys: [{name: ci, hash: "$KEY"}]}]
`, a, b))
	const body = `{"model":"gpt-sim","max_tokens":600,"messages":[{"role":"user","content":"hello"}]}`
	for i := range 4 {
		if status, text, _, err := g.ask(context.Background(), body); err != nil || status != 200 {
			t.Fatalf("request %d: %d %s %v", i, status, text, err)
		}
	}
	if x, y := first.Stats().Completed, second.Stats().Completed; x != 3 || y != 1 {
		t.Errorf("a had %d, b %d", x, y)
	}
	// b reserves 600 tokens and uses fewer; those of the answer stay.
	status, text, header, err := 200, "", http.Header(nil), error(nil)
	for i := 0; i < 200 && status == 200; i++ {
		status, text, header, err = g.ask(context.Background(), body)
	}
	if err != nil || status != 429 || !strings.Contains(text, "provider_limit") || header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, text, header)
	}
	if records := g.records(); records[len(records)-1].Attempts != 0 {
		t.Errorf("record %+v", records[len(records)-1])
	}
	for _, c := range first.Stats().Calls {
		if want := map[string]int64{sim.CredentialHash("sk-one"): 1, sim.CredentialHash("sk-two"): 2}[c.Credential]; c.Attempts != want {
			t.Errorf("a credential of a had %d attempts, not %d", c.Attempts, want)
		}
	}
}
