// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

func compile(t testing.TB, plugins []config.Plugin, refs ...config.PluginRef) *epp.Profile {
	t.Helper()
	p, err := epp.Compile(&config.EndpointPickerConfig{
		Plugins: plugins, SchedulingProfiles: []config.SchedulingProfile{{Name: "test", Plugins: refs}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// warm lets addr alone answer a request with the prompt.
func warm(t testing.TB, s *epp.Scheduler, addr, prompt string) {
	t.Helper()
	r := request(t, prompt)
	r.Subset = []string{addr}
	res := pick(t, s, r)
	if res.Denial != nil {
		t.Fatalf("%s: %s", addr, res.Denial.Detail)
	}
	res.Observer.Head(http.StatusOK, http.Header{})
	res.Done(epp.Outcome{})
}

func row(e *epp.Explanation, endpoint string) epp.Candidate {
	for _, c := range e.Candidates {
		if c.Endpoint == endpoint {
			return c
		}
	}
	return epp.Candidate{}
}

// TestWorkedExample is the published one, through the real scorers from raw
// metrics: weights queue 2, free KV 1, prefix 3; waiting 1, 6, 8, KV .3, .5,
// .8, match 0, .9, 1, and two full members with waiting 0 and 10 that set the
// scale of the queue.
func TestWorkedExample(t *testing.T) {
	p := poolOf(t, nil, config.Member{Address: "a:1"}, config.Member{Address: "b:1"}, config.Member{Address: "c:1"},
		config.Member{Address: "d:1"}, config.Member{Address: "e:1"})
	weight := func(w float64) *float64 { return &w }
	s := epp.New(p, compile(t,
		[]config.Plugin{{Type: "queue-scorer"}, {Type: "kv-cache-utilization-scorer"}, {Type: "prefix-cache-scorer"}},
		config.PluginRef{PluginRef: "queue-scorer", Weight: weight(2)},
		config.PluginRef{PluginRef: "kv-cache-utilization-scorer", Weight: weight(1)},
		config.PluginRef{PluginRef: "prefix-cache-scorer", Weight: weight(3)}), epp.Options{})
	ten := text(1, 10*256)
	warm(t, s, "b:1", ten[:9*256])
	warm(t, s, "c:1", ten)
	for addr, m := range map[string]*pool.Metrics{
		"a:1": page(time.Now(), 1, 0, .3), "b:1": page(time.Now(), 6, 0, .5), "c:1": page(time.Now(), 8, 0, .8),
		"d:1": page(time.Now(), 0, 0, 1), "e:1": page(time.Now(), 10, 0, 1),
	} {
		p.Lookup(addr).SetMetrics(m)
	}
	e := s.Explain(request(t, ten))
	for addr, want := range map[string]float64{"a:1": 2.5, "b:1": 4.0, "c:1": 3.6, "d:1": 2, "e:1": 0} {
		if got := row(e, addr).Total; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s has %v, want %v", addr, got, want)
		}
	}
	if got := pick(t, s, request(t, ten)).Endpoints; !slices.Equal(got, []string{"b:1", "c:1", "a:1"}) {
		t.Errorf("picked %v", got)
	}
}

// TestHerding: 200 simultaneous requests over 8 equal members whose metrics are
// 5 s old; nothing is answered in between.
func TestHerding(t *testing.T) {
	for _, c := range []struct {
		profile string
		shared  bool // one prompt, or one each
	}{
		{"default", false}, {"default", true}, {"expected-cost", false}, {"lmetric", false}, {"llm-d-sticky", false},
		{"least-request", false}, {"least-request", true}, {"round-robin", false}, {"round-robin", true},
	} {
		t.Run(fmt.Sprintf("%s shared=%v", c.profile, c.shared), func(t *testing.T) {
			p := newPool(t, 8)
			for _, m := range p.Snapshot().Members {
				m.SetMetrics(page(time.Now().Add(-5*time.Second), 2, 10, .4))
			}
			s := epp.New(p, builtin(t, c.profile), epp.Options{})
			var wg sync.WaitGroup
			for i := range 200 {
				seed := uint64(i)
				if c.shared {
					seed = 0
				}
				r := request(t, text(seed, 8000))
				wg.Go(func() {
					if res := pick(t, s, r); res.Denial != nil {
						t.Error(res.Denial.Detail)
					}
				})
			}
			wg.Wait()
			low, high, total := int64(math.MaxInt64), int64(0), int64(0)
			for _, m := range p.Snapshot().Members {
				n := m.Load().Requests
				low, high, total = min(low, n), max(high, n), total+n
			}
			if total != 200 || float64(high) > 1.3*float64(low) {
				t.Errorf("%d requests, busiest %d, least busy %d", total, high, low)
			}
		})
	}
}

// TestNeverPicks: whatever the profile and the state of the pool, nobody is
// picked who is not available, not in the subset, tried already, or not a
// member; and a refusal has no endpoint.
func TestNeverPicks(t *testing.T) {
	for _, name := range epp.Builtins() {
		r := rand.New(rand.NewPCG(3, uint64(len(name))))
		clock := newClock()
		all := addresses(12)
		p := poolOf(t, clock.Now, all...)
		s := epp.New(p, builtin(t, name), epp.Options{Now: clock.Now, Seed: 1})
		for range 400 {
			clock.advance(time.Duration(r.IntN(2000)) * time.Millisecond)
			if r.IntN(10) == 0 {
				p.SetMembers(all[:r.IntN(len(all)+1)])
			}
			members := p.Snapshot().Members
			for _, m := range members {
				switch r.IntN(6) {
				case 0:
					m.Report(pool.Refused)
				case 1:
					m.Report(pool.OK)
				case 2:
					m.SetMetrics(page(clock.Now(), r.Float64()*5, r.Float64()*10, r.Float64()))
				}
			}
			q := request(t, text(uint64(r.IntN(5)), r.IntN(5000)))
			for range r.IntN(4) {
				q.Tried = append(q.Tried, all[r.IntN(len(all))].Address)
			}
			if r.IntN(3) == 0 {
				q.Subset = []string{all[r.IntN(len(all))].Address, all[r.IntN(len(all))].Address, "elsewhere:1"}
			}
			res := pick(t, s, q)
			if (res.Denial != nil) != (len(res.Endpoints) == 0) || (res.Denial == nil) != (res.Reason == "picked") {
				t.Fatalf("%s: endpoints %v, denial %v, reason %s", name, res.Endpoints, res.Denial, res.Reason)
			}
			for i, addr := range res.Endpoints {
				m := p.Lookup(addr)
				if m == nil || !m.Available() || slices.Contains(q.Tried, addr) || q.Subset != nil && !slices.Contains(q.Subset, addr) ||
					slices.Contains(res.Endpoints[:i], addr) {
					t.Fatalf("%s picked %v; tried %v, subset %v, member %v", name, res.Endpoints, q.Tried, q.Subset, m)
				}
			}
			if r.IntN(2) == 0 {
				res.Done(epp.Outcome{})
			}
		}
	}
}

// TestSettles: after random exchanges in any order of calls, all at once and
// with members that come and go, every count is zero again.
func TestSettles(t *testing.T) {
	all := addresses(6)
	p := poolOf(t, nil, all...)
	s := epp.New(p, builtin(t, "default"), epp.Options{Explain: 16})
	members := slices.Clone(p.Snapshot().Members)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 9))
			for range 150 {
				res := pick(t, s, request(t, text(uint64(r.IntN(4)), 100+r.IntN(3000))))
				if res.Denial != nil {
					res.Done(epp.Outcome{})
					continue
				}
				done := make(chan struct{})
				if r.IntN(4) == 0 { // the client leaves beside the answer
					go func() { res.Done(epp.Outcome{Err: errors.New("left")}); close(done) }()
				} else {
					close(done)
				}
				for range r.IntN(6) {
					switch r.IntN(4) {
					case 0:
						res.Observer.Attempt(members[r.IntN(len(members))])
					case 1:
						res.Observer.Head(http.StatusOK, http.Header{})
					case 2:
						res.Observer.Chunk([]byte("x"), r.IntN(3))
					case 3:
						res.Observer.End(nil)
					}
				}
				<-done
				res.Done(epp.Outcome{Usage: llm.Usage{Input: 10, Output: r.IntN(50), CacheRead: r.IntN(10), Source: llm.Reported}})
				res.Done(epp.Outcome{})
				res.Observer.Chunk([]byte("late"), 1)
				res.Observer.Attempt(members[0])
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			p.SetMembers(all[:1+i%len(all)])
			s.Explain(request(t, text(1, 1000)))
			s.Recent(4)
			s.Learnt()
		}
	})
	wg.Wait()
	for _, m := range members {
		if load := m.Load(); load != (pool.Load{}) {
			t.Errorf("%s is left with %+v", m.Address(), load)
		}
	}
}

// TestExplainChangesNothing: picks with dry runs in between are those without,
// and a dry run foretells the next pick.
func TestExplainChangesNothing(t *testing.T) {
	run := func(profile string, dry bool) (picked []string) {
		clock := newClock()
		p := poolOf(t, clock.Now, addresses(5)...)
		s := epp.New(p, builtin(t, profile), epp.Options{Now: clock.Now, Seed: 7})
		for i := range 60 {
			r := request(t, text(uint64(i%9), 3000))
			var e *epp.Explanation
			if dry {
				for range 3 {
					e = s.Explain(r)
				}
			}
			res := pick(t, s, r)
			if dry && !slices.Equal(e.Picked, res.Endpoints) {
				t.Errorf("%s: the dry run said %v, the pick %v", profile, e.Picked, res.Endpoints)
			}
			picked = append(picked, strings.Join(res.Endpoints, " "))
		}
		if n := len(s.Recent(1000)); n != 60 {
			t.Errorf("%d picks are kept, want 60", n)
		}
		return picked
	}
	for _, profile := range []string{"default", "random", "round-robin", "llm-d-sticky"} {
		if diff := cmp.Diff(run(profile, false), run(profile, true)); diff != "" {
			t.Errorf("%s (-without +with dry runs):\n%s", profile, diff)
		}
	}
}

// TestExchange follows one exchange: what is charged when.
func TestExchange(t *testing.T) {
	p := newPool(t, 2)
	s := epp.New(p, builtin(t, "default"), epp.Options{})
	body := text(1, 4000) // 1000 tokens, 15 blocks
	res := pick(t, s, request(t, body))
	first, second := p.Lookup(res.Endpoints[0]), p.Lookup(res.Endpoints[1])
	check := func(when string, m *pool.Member, want pool.Load) {
		t.Helper()
		if got := m.Load(); got != want {
			t.Errorf("%s: %s has %+v, want %+v", when, m.Address(), got, want)
		}
	}
	matched := func(m *pool.Member) int { return row(s.Explain(request(t, body)), m.Address()).MatchedTokens }
	check("picked", first, pool.Load{Requests: 1, Queued: 1000, Context: 1000})
	if matched(first) != 960 || matched(second) != 0 {
		t.Errorf("after the pick %d and %d tokens match", matched(first), matched(second))
	}
	res.Observer.Attempt(first)
	check("sent", first, pool.Load{Requests: 1, Queued: 1000, Context: 1000})
	res.Observer.Attempt(second) // the first refused the connection
	check("moved", first, pool.Load{})
	check("moved", second, pool.Load{Requests: 1, Queued: 1000, Context: 1000})
	if matched(first) != 0 || matched(second) != 960 {
		t.Errorf("after the move %d and %d tokens match", matched(first), matched(second))
	}
	res.Observer.Head(http.StatusOK, http.Header{})
	res.Observer.Chunk([]byte("role"), 0)
	check("no token yet", second, pool.Load{Requests: 1, Queued: 1000, Context: 1000})
	res.Observer.Chunk([]byte("a"), 1)
	res.Observer.Chunk([]byte("bc"), 2)
	check("streaming", second, pool.Load{Requests: 1, Context: 1003})
	warmed := pick(t, s, request(t, body))
	if got := warmed.Endpoints[0]; got == second.Address() {
		check("a second, warm", second, pool.Load{Requests: 2, Queued: 40, Context: 2003})
	}
	warmed.Done(epp.Outcome{})
	res.Observer.End(nil)
	res.Done(epp.Outcome{})
	check("settled", second, pool.Load{})
	if matched(second) != 960 {
		t.Errorf("after the end %d tokens match", matched(second))
	}
}

// TestServedElsewhere: another gateway took a member that was not picked, and
// says so when the answer comes. Charge and index follow, and the speed measured
// is of the whole wait.
func TestServedElsewhere(t *testing.T) {
	for _, attempted := range []bool{true, false} {
		clock := newClock()
		p := poolOf(t, clock.Now, addresses(2)...)
		s := epp.New(p, builtin(t, "default"), epp.Options{Now: clock.Now})
		r := request(t, text(1, 4000)) // 1000 tokens
		r.Stream = true
		res := pick(t, s, r)
		first, second := p.Lookup(res.Endpoints[0]), p.Lookup(res.Endpoints[1])
		if attempted {
			res.Observer.Attempt(first)
		}
		clock.advance(2 * time.Second)
		res.Observer.Served(second)
		if first.Load() != (pool.Load{}) || second.Load() != (pool.Load{Requests: 1, Queued: 1000, Context: 1000}) {
			t.Errorf("the picked member has %+v, the one that served %+v", first.Load(), second.Load())
		}
		clock.advance(time.Millisecond)
		res.Observer.Head(http.StatusOK, http.Header{})
		res.Observer.Chunk([]byte("a"), 1)
		res.Done(epp.Outcome{})
		for _, l := range s.Learnt().Members {
			switch {
			case l.Endpoint == first.Address() && l.Samples != 0:
				t.Errorf("%d samples of a member that did not serve", l.Samples)
			case l.Endpoint == second.Address() && (l.SecPerToken < 1e-3 || l.SecPerToken > 2e-3):
				t.Errorf("2s for 1000 tokens were measured as %v s per token", l.SecPerToken)
			}
		}
	}
}

// TestUndialledIsWithdrawn: a pick that was never sent leaves nothing in the
// index, unless another has used it since.
func TestUndialledIsWithdrawn(t *testing.T) {
	p := newPool(t, 1)
	s := epp.New(p, builtin(t, "default"), epp.Options{})
	body := text(1, 4000)
	matched := func() int { return s.Explain(request(t, body)).Candidates[0].MatchedTokens }
	lost := pick(t, s, request(t, body))
	lost.Done(epp.Outcome{Err: errors.New("left")})
	if matched() != 0 {
		t.Errorf("%d tokens match after a pick that was never sent", matched())
	}
	lost = pick(t, s, request(t, body))
	sibling := pick(t, s, request(t, body))
	sibling.Observer.Attempt(p.Snapshot().Members[0])
	lost.Done(epp.Outcome{})
	sibling.Done(epp.Outcome{})
	if matched() != 960 {
		t.Errorf("%d tokens match after a sibling was sent", matched())
	}
}

func TestRefusals(t *testing.T) {
	full := func(t *testing.T) *epp.Profile {
		return compile(t, []config.Plugin{{Type: "concurrency-detector", Parameters: map[string]any{"maxConcurrency": 1}}},
			config.PluginRef{PluginRef: "concurrency-detector"})
	}
	for _, c := range []struct {
		name    string
		members int
		profile func(*testing.T) *epp.Profile
		prepare func(*pool.Pool, *epp.Request)
		reason  string
		status  int
		detail  string
	}{
		{name: "gie#1082 no endpoints is not saturation", members: 0, reason: "no-endpoints", status: 503, detail: "0 of 0 members"},
		{name: "none ready", members: 2, prepare: func(p *pool.Pool, _ *epp.Request) {
			for _, m := range p.Snapshot().Members {
				m.Report(pool.Refused)
			}
		}, reason: "none-ready", status: 503, detail: "10.0.0.1:8000: availability: ejected"},
		{name: "subset", members: 2, prepare: func(_ *pool.Pool, r *epp.Request) { r.Subset = []string{} },
			reason: "subset-empty", status: 503, detail: "10.0.0.2:8000: subset: not in the subset asked for"},
		{name: "tried", members: 1, prepare: func(_ *pool.Pool, r *epp.Request) { r.Tried = []string{"10.0.0.1:8000"} },
			reason: "tried-all", status: 503, detail: "tried: failed this request already"},
		{name: "gie#1082 saturated", members: 2, profile: full, prepare: func(p *pool.Pool, _ *epp.Request) {
			for _, m := range p.Snapshot().Members {
				m.Charge(1, 1)
			}
		}, reason: "saturated", status: 429, detail: "10.0.0.1:8000: concurrency-detector: full: requests in flight 1, bound 1"},
		{name: "filtered", members: 2, profile: func(t *testing.T) *epp.Profile {
			return compile(t, []config.Plugin{{Type: "prefill-filter"}}, config.PluginRef{PluginRef: "prefill-filter"})
		}, reason: "filtered", status: 503, detail: "10.0.0.1:8000: prefill-filter: has no role"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, c.members)
			profile := builtin(t, "default")
			if c.profile != nil {
				profile = c.profile(t)
			}
			s := epp.New(p, profile, epp.Options{})
			r := request(t, "hello")
			if c.prepare != nil {
				c.prepare(p, r)
			}
			res := pick(t, s, r)
			defer res.Done(epp.Outcome{})
			if res.Denial == nil || res.Reason != c.reason || res.Denial.Status != c.status ||
				res.Denial.Header.Get("Retry-After") == "" || !strings.Contains(res.Denial.Detail, c.detail) {
				t.Errorf("reason %s, denial %+v; want %s %d with %q", res.Reason, res.Denial, c.reason, c.status, c.detail)
			}
			if e := s.Recent(1)[0]; e.Reason != c.reason || len(e.Candidates) != c.members || len(e.Picked) != 0 {
				t.Errorf("explained as %+v", e)
			}
		})
	}
}

func TestPickOfNothing(t *testing.T) {
	s := epp.New(newPool(t, 1), builtin(t, "default"), epp.Options{})
	if res := pick(t, s, request(t)); res.Reason != "picked" {
		t.Errorf("a request without a prompt: %s", res.Reason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res, err := s.Pick(ctx, request(t)); res != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("after its client left: %v, %v", res, err)
	}
}

// TestRing: the ring keeps the newest, finds by id, keeps at most 64 rows with
// the picked ones first, and says how many it left out.
func TestRing(t *testing.T) {
	p := newPool(t, 100)
	p.Lookup("10.0.0.100:8000").Report(pool.Refused)
	s := epp.New(p, builtin(t, "default"), epp.Options{Explain: 4})
	for i := range 10 {
		r := request(t, text(uint64(i), 600))
		r.ID = fmt.Sprint("r", i)
		pick(t, s, r)
	}
	var ids []string
	for _, e := range s.Recent(100) {
		ids = append(ids, e.RequestID)
	}
	if diff := cmp.Diff([]string{"r9", "r8", "r7", "r6"}, ids); diff != "" {
		t.Error(diff)
	}
	if s.Find("r2") != nil || s.Find("r7") == nil || len(s.Recent(2)) != 2 {
		t.Error("found r2, or not r7, or not the newest two")
	}
	e := s.Find("r9")
	if len(e.Candidates) != 64 || e.Omitted != 36 || e.Candidates[0].Endpoint != e.Picked[0] || e.Candidates[2].Endpoint != e.Picked[2] {
		t.Errorf("%d rows, %d omitted, picked %v", len(e.Candidates), e.Omitted, e.Picked)
	}
	off := epp.New(p, builtin(t, "default"), epp.Options{Explain: -1})
	pick(t, off, request(t, "x"))
	if off.Recent(5) != nil || off.Find("r") != nil {
		t.Error("kept although switched off")
	}
}

// TestReturningShare: a member that comes back gets about its share of the
// load, under every profile.
func TestReturningShare(t *testing.T) {
	for _, name := range []string{"default", "lmetric", "least-request", "llm-d-sticky", "round-robin", "random"} {
		clock := newClock()
		p := poolOf(t, clock.Now, addresses(4)...)
		s := epp.New(p, builtin(t, name), epp.Options{Now: clock.Now, Seed: 3})
		back := p.Snapshot().Members[0]
		back.Report(pool.Refused)
		for back.State() != pool.Returning {
			clock.advance(100 * time.Millisecond)
		}
		const picks = 400
		for i := range picks {
			pick(t, s, request(t, text(uint64(i), 800)))
		}
		share := back.Share() // of what an equal member would have got
		if got := float64(back.Load().Requests); got > 2.5*share*picks/4 || got == 0 {
			t.Errorf("%s: a member with a share of %.2f got %v of %d", name, share, got, picks)
		}
	}
}

// TestLearnsFromStreams: what the observer sees of the answers teaches the
// scheduler the members' speed, and the cost prices the slow one.
func TestLearnsFromStreams(t *testing.T) {
	clock := newClock()
	p := poolOf(t, clock.Now, addresses(4)...)
	s := epp.New(p, builtin(t, "default"), epp.Options{Now: clock.Now, Seed: 1})
	slow := p.Snapshot().Members[3]
	for i := range 400 {
		m := p.Snapshot().Members[i%4]
		r := request(t, text(uint64(i), 4000))
		r.Subset = []string{m.Address()}
		res := pick(t, s, r)
		res.Observer.Attempt(m)
		factor := time.Duration(1)
		if m == slow {
			factor = 4
		}
		clock.advance(factor * 80 * time.Millisecond)
		res.Observer.Head(http.StatusOK, http.Header{})
		for range 20 {
			res.Observer.Chunk(nil, 1)
			clock.advance(factor * 15 * time.Millisecond)
		}
		res.Done(epp.Outcome{Usage: llm.Usage{Input: 1000, Output: 20, Source: llm.Reported}})
	}
	learnt := s.Learnt()
	for _, m := range learnt.Members {
		if want := m.Endpoint == slow.Address(); (m.Slow > 2) != want || m.Samples != 100 || m.GapMin == 0 {
			t.Errorf("learnt %+v", m)
		}
	}
	if learnt.Output < 20 || learnt.Output > 30 {
		t.Errorf("mean output %v, want near 20", learnt.Output)
	}
	for range 30 {
		if res := pick(t, s, request(t, text(7777, 800))); res.Endpoints[0] == slow.Address() {
			t.Error("an idle slow member is preferred to idle fast ones")
		} else {
			res.Done(epp.Outcome{})
		}
	}
}
