// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

// Bugs and complaints of other schedulers, each held by a test. More of them
// are in testdata (gie#495, gie#1082, llm-d-router#2274).

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// affine are the built-ins that prefer warm members.
var affine = []string{"default", "lmetric", "llm-d-sticky", "llm-d-blend"}

// pages gives every member the same page.
func pages(p *pool.Pool, at time.Time) {
	for _, m := range p.Snapshot().Members {
		m.SetMetrics(page(at, 0, 1, .1))
	}
}

func firstOf(t *testing.T, s *epp.Scheduler, r *epp.Request) string {
	t.Helper()
	res := pick(t, s, r)
	defer res.Done(epp.Outcome{})
	if res.Denial != nil {
		t.Fatal(res.Denial.Detail)
	}
	return res.Endpoints[0]
}

// llm-d-router#2825: per-endpoint state leaks when endpoints churn.
func TestRegressionChurnLeaksNothing(t *testing.T) {
	all := addresses(20)
	p := poolOf(t, nil, all[:5]...)
	reg := prometheus.NewRegistry()
	s := epp.New(p, builtin(t, "default"), epp.Options{Metrics: epp.NewInstruments(reg)})
	for round := range 40 {
		p.SetMembers(all[round%15 : round%15+5])
		warm(t, s, p.Snapshot().Members[round%5].Address(), text(uint64(round), 4000))
	}
	p.SetMembers(all[19:])
	warm(t, s, all[19].Address, text(99, 2560))
	if n := len(s.Learnt().Members); n != 1 {
		t.Errorf("state of %d members is kept, want 1", n)
	}
	if got := gauge(t, reg, "penstock_pool_prefix_index_blocks"); got != 10 {
		t.Errorf("the index holds %v blocks, want the 10 of the one member", got)
	}
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// llm-d-router#2853: a restarted engine keeps its old blocks in the index.
func TestRegressionRestartForgets(t *testing.T) {
	p := newPool(t, 2)
	s := epp.New(p, builtin(t, "default"), epp.Options{})
	body := text(1, 4000)
	m := p.Snapshot().Members[0]
	counters := func(queries float64) {
		m.SetMetrics(&pool.Metrics{At: time.Now(), Has: pool.HasPrefix, PrefixQueries: queries, PrefixHits: queries / 2})
	}
	counters(1000)
	warm(t, s, m.Address(), body)
	if got := row(s.Explain(request(t, body)), m.Address()).MatchedTokens; got != 960 {
		t.Fatalf("%d tokens match before the restart", got)
	}
	counters(10)
	if got := row(s.Explain(request(t, body)), m.Address()).MatchedTokens; got != 0 {
		t.Errorf("%d tokens match after the restart", got)
	}
	warm(t, s, m.Address(), body)
	if got := row(s.Explain(request(t, body)), m.Address()).MatchedTokens; got != 960 {
		t.Errorf("%d tokens match once it is warm again", got)
	}
}

// sglang#14532, sglang#14305: a miss goes to the smallest cache, whatever its
// load.
func TestRegressionMissGoesToLeastLoad(t *testing.T) {
	for _, name := range []string{"default", "lmetric", "llm-d-sticky"} {
		p := newPool(t, 4)
		s := epp.New(p, builtin(t, name), epp.Options{})
		members := p.Snapshot().Members
		for i, m := range members[:3] { // members[3] is idle and has the fullest cache
			m.Charge(20000*(i+1), 20000*(i+1))
		}
		for i := range 20 {
			warm(t, s, members[3].Address(), text(uint64(100+i), 4000))
		}
		if got := firstOf(t, s, request(t, text(1, 4000))); got != members[3].Address() {
			t.Errorf("%s sends a miss to %s", name, got)
		}
	}
}

// sglang#32195: under imbalance all affinity is dropped, and the hit rate
// collapses. A warm member with moderate load keeps its prompts although
// another member is far busier than a third.
func TestRegressionImbalanceKeepsAffinity(t *testing.T) {
	for _, name := range affine {
		p := newPool(t, 4)
		pages(p, time.Now())
		s := epp.New(p, builtin(t, name), epp.Options{})
		members := p.Snapshot().Members
		body := text(1, 40000)
		warm(t, s, members[1].Address(), body)
		members[1].Charge(100, 1000)
		for range 40 {
			members[0].Charge(0, 1000)
		}
		for range 5 {
			if got := firstOf(t, s, request(t, body)); got != members[1].Address() {
				t.Errorf("%s sends a warm prompt to %s", name, got)
			}
		}
	}
}

// sglang#15473: equal members are not all the first of the list.
func TestRegressionTiesAreRandom(t *testing.T) {
	for _, name := range []string{"default", "lmetric", "llm-d-sticky", "llm-d-blend", "least-request", "random"} {
		p := newPool(t, 4)
		s := epp.New(p, builtin(t, name), epp.Options{Seed: 5})
		picked := map[string]int{}
		for range 200 {
			picked[firstOf(t, s, request(t))]++
		}
		for _, m := range p.Snapshot().Members {
			if n := picked[m.Address()]; n < 25 || n > 75 {
				t.Errorf("%s picked %s %d times of 200", name, m.Address(), n)
			}
		}
	}
}

// ai-dynamo/dynamo#11646: affinity pins to a dead worker. Found in llm-d: a
// killed endpoint keeps its share of the traffic.
func TestRegressionDeadMemberLosesItsPrompts(t *testing.T) {
	for _, name := range affine {
		p := newPool(t, 3)
		pages(p, time.Now())
		s := epp.New(p, builtin(t, name), epp.Options{})
		body := text(1, 8000)
		dead := p.Snapshot().Members[0]
		warm(t, s, dead.Address(), body)
		r := request(t, body)
		r.Tried = []string{dead.Address()} // the exchange that found out
		if got := firstOf(t, s, r); got == dead.Address() {
			t.Errorf("%s picks a member that has just failed the request", name)
		}
		dead.Report(pool.Refused)
		for range 5 {
			if got := firstOf(t, s, request(t, body)); got == dead.Address() {
				t.Errorf("%s picks a dead member", name)
			}
		}
	}
}

// dynamo 1.4: requests that run longer than five minutes lose their accounting.
func TestRegressionLongRequestsStayCounted(t *testing.T) {
	clock := newClock()
	p := poolOf(t, clock.Now, addresses(2)...)
	s := epp.New(p, builtin(t, "default"), epp.Options{Now: clock.Now})
	res := pick(t, s, request(t, text(1, 4000)))
	m := p.Lookup(res.Endpoints[0])
	res.Observer.Attempt(m)
	clock.advance(3 * time.Hour)
	res.Observer.Chunk(nil, 1)
	pick(t, s, request(t)).Done(epp.Outcome{})
	if got := m.Load(); got != (pool.Load{Requests: 1, Context: 1001}) {
		t.Errorf("after three hours the member has %+v", got)
	}
	res.Done(epp.Outcome{})
}

// aibrix#842: prefix-only policies time out under skew. One hot prefix does not
// pile up on one member.
func TestRegressionHotPrefixSpreads(t *testing.T) {
	for _, name := range []string{"default", "lmetric"} {
		p := newPool(t, 8)
		s := epp.New(p, builtin(t, name), epp.Options{})
		body := text(1, 16000)
		for i := range 300 {
			res := pick(t, s, request(t, body+text(uint64(i+10), 1000)))
			res.Observer.Attempt(p.Lookup(res.Endpoints[0]))
			res.Observer.Chunk(nil, 1)
		}
		high := int64(0)
		for _, m := range p.Snapshot().Members {
			high = max(high, m.Load().Requests)
		}
		if high > 2*300/8 {
			t.Errorf("%s has %d of 300 requests of a hot prefix on one of 8 members", name, high)
		}
	}
}

// llm-d#2148: in-flight tokens are charged for the full prompt although most of
// it is cached.
func TestRegressionChargesUncachedOnly(t *testing.T) {
	p := newPool(t, 1)
	s := epp.New(p, builtin(t, "default"), epp.Options{})
	m := p.Snapshot().Members[0]
	warm(t, s, m.Address(), text(1, 2560))
	res := pick(t, s, request(t, text(1, 2560)+text(2, 400)))
	if got := m.Load(); got != (pool.Load{Requests: 1, Queued: 100, Context: 740}) {
		t.Errorf("charged %+v", got)
	}
	res.Done(epp.Outcome{})
}

// ai-dynamo/dynamo#4429, production-stack#687: the index grows without bound.
// It keeps to what the member reports, and follows when that changes.
func TestRegressionIndexIsBounded(t *testing.T) {
	p := newPool(t, 1)
	reg := prometheus.NewRegistry()
	s := epp.New(p, builtin(t, "default"), epp.Options{Metrics: epp.NewInstruments(reg)})
	m := p.Snapshot().Members[0]
	report := func(blocks int) {
		m.SetMetrics(&pool.Metrics{At: time.Now(), Has: pool.HasCacheConfig, BlockSize: 16, NumBlocks: blocks})
	}
	report(400) // 6400 tokens are 100 of ours
	for i := range 50 {
		warm(t, s, m.Address(), text(uint64(i), 2560))
	}
	if got := gauge(t, reg, "penstock_pool_prefix_index_blocks"); got != 100 {
		t.Errorf("%v blocks for a cache of 100", got)
	}
	report(40)
	s.Explain(request(t))
	if got := gauge(t, reg, "penstock_pool_prefix_index_blocks"); got != 10 {
		t.Errorf("%v blocks for a cache of 10", got)
	}
}

// Seen with hashing engines (seed unset): predicted hits that never come. A
// member that has reported cached tokens and then reports none is not believed
// warm any more, until it reports some.
func TestRegressionBrokenPredictions(t *testing.T) {
	p := newPool(t, 1)
	s := epp.New(p, builtin(t, "default"), epp.Options{})
	body := text(1, 2560)
	serve := func(cached int) {
		res := pick(t, s, request(t, body))
		res.Observer.Attempt(p.Snapshot().Members[0])
		res.Observer.Head(http.StatusOK, http.Header{})
		res.Done(epp.Outcome{Usage: llm.Usage{Input: 640 - cached, Output: 5, CacheRead: cached, Source: llm.Reported}})
	}
	matched := func() int { return s.Explain(request(t, body)).Candidates[0].MatchedTokens }
	for range 300 {
		serve(0) // never reports any: an engine without the option
	}
	if matched() != 640 {
		t.Errorf("a member that never reports cached tokens matches %d", matched())
	}
	serve(600)
	for range 200 {
		serve(0)
	}
	if matched() != 0 || !s.Learnt().Members[0].Distrusted {
		t.Errorf("a member that reports none of 640 tokens matches %d", matched())
	}
	serve(600)
	if matched() != 640 {
		t.Errorf("once it reports some again it matches %d", matched())
	}
}

// llm-d#1189: a choice that looked made and was not. What a pick decided is in
// its metrics, under lint.
func TestInstruments(t *testing.T) {
	reg := prometheus.NewRegistry()
	in := epp.NewInstruments(reg)
	p := poolOf(t, nil, config.Member{Address: "a:1"})
	s := epp.New(p, builtin(t, "default"), epp.Options{Metrics: in})
	for range 3 {
		res := pick(t, s, request(t, text(1, 2560)))
		res.Observer.Attempt(p.Snapshot().Members[0])
		res.Done(epp.Outcome{Usage: llm.Usage{Input: 540, CacheRead: 100, Source: llm.Reported}})
	}
	p.SetMembers(nil)
	pick(t, s, request(t)).Done(epp.Outcome{Err: errors.New("refused")})
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	for name, want := range map[string]float64{
		"penstock_pool_predicted_cached_tokens_total": 1280, "penstock_pool_reported_cached_tokens_total": 300,
	} {
		if got := counter(t, reg, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if a, b := counter(t, reg, "penstock_pool_picks_total", "picked"), counter(t, reg, "penstock_pool_picks_total", "no-endpoints"); a != 3 || b != 1 {
		t.Errorf("%v picked, %v refused", a, b)
	}
	s.Close()
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Errorf("%d series are left after Close (%v)", n, err)
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, outcome string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			match := outcome == ""
			for _, l := range m.Label {
				match = match || l.GetName() == "outcome" && l.GetValue() == outcome
			}
			if f.GetName() == name && match {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
