// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/provider"
)

const two = "  - {name: p, credentials: [{name: a, secret: k1, weight: 2}, {name: b, secret: k2}], cooldown: {after: 3, for: 5s, max: 1m}}"

const one = "  - {name: p, credentials: [{name: a, secret: k1}], cooldown: {after: 3, for: 5s, max: 1m}}"

func states(p *provider.Provider, model string) string {
	s := p.State(model)
	var out []string
	for _, c := range s.Credentials {
		text := c.Name + " " + c.State
		if c.Reason != "" {
			text += " " + c.Reason
		}
		if !c.Until.IsZero() {
			text += " " + time.Until(c.Until).Round(time.Second).String()
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func wantStates(t *testing.T, p *provider.Provider, model, want string) {
	t.Helper()
	if got := states(p, model); got != want {
		t.Errorf("%s: %s, want %s", model, got, want)
	}
}

func verdict(c provider.Class, wait time.Duration) provider.Verdict {
	return provider.Verdict{Class: c, Wait: wait}
}

func TestPickByWeight(t *testing.T) {
	p := build(t, two, provider.Options{})
	count := map[string]int{}
	for range 9000 {
		c, wait := p.Pick("m", nil, 0)
		if wait != 0 {
			t.Fatal("waits")
		}
		count[c.Name()]++
	}
	if n := count["a"]; n < 5700 || n > 6300 {
		t.Errorf("a got %d of 9000", n)
	}
	// One prompt stays where it is; many spread by weight.
	count = map[string]int{}
	for i := range uint64(3000) {
		c, _ := p.Pick("m", nil, i+1)
		if again, _ := p.Pick("m", nil, i+1); again != c {
			t.Fatal("affinity wavers")
		}
		count[c.Name()]++
	}
	if n := count["a"]; n < 1850 || n > 2150 {
		t.Errorf("a got %d of 3000", n)
	}
	c, _ := p.Pick("m", nil, 7)
	other, _ := p.Pick("m", []*provider.Credential{c}, 7)
	if other == nil || other == c {
		t.Error("a tried credential is picked")
	}
	if none, wait := p.Pick("m", []*provider.Credential{c, other}, 7); none != nil || wait != 0 {
		t.Errorf("all tried: %v %v", none, wait)
	}
}

func TestRateLimitCools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, two, provider.Options{})
		a, _ := p.Pick("m", nil, 0)
		for a.Name() != "a" {
			a, _ = p.Pick("m", nil, 0)
		}
		p.Observe(a, "m", verdict(provider.RateLimit, 20*time.Second), nil, 0)
		wantStates(t, p, "m", "a cooling rate_limit 20s, b ready")
		wantStates(t, p, "other", "a ready, b ready") // limits are by model
		for range 20 {
			if c, _ := p.Pick("m", nil, 0); c.Name() != "b" {
				t.Fatal("a cooling credential is picked")
			}
		}
		// The same news again, from requests of before, neither counts nor extends.
		time.Sleep(time.Second)
		p.Observe(a, "m", verdict(provider.RateLimit, 0), nil, 0)
		wantStates(t, p, "m", "a cooling rate_limit 19s, b ready")
		p.Observe(a, "m", verdict(provider.RateLimit, time.Minute), nil, 0)
		wantStates(t, p, "m", "a cooling rate_limit 1m0s, b ready")

		// All out: the one that is back first, and when.
		b, _ := p.Pick("m", nil, 0)
		p.Observe(b, "m", verdict(provider.RateLimit, 90*time.Second), nil, 0)
		if c, wait := p.Pick("m", nil, 0); c != a || wait != time.Minute {
			t.Errorf("picked %s, wait %v", c.Name(), wait)
		}
		if s := p.State("m"); s.State != "cooling" || time.Until(s.Until) != time.Minute || s.Ready() {
			t.Errorf("state %+v", s)
		}

		// Then one request goes first.
		time.Sleep(time.Minute)
		wantStates(t, p, "m", "a half-open rate_limit, b cooling rate_limit 30s")
		if c, wait := p.Pick("m", nil, 0); c != a || wait != 0 {
			t.Errorf("no probe: %s %v", c.Name(), wait)
		}
		if c, wait := p.Pick("m", nil, 0); c != a || wait != time.Second {
			t.Errorf("a second probe: %s %v", c.Name(), wait)
		}
		wantStates(t, p, "m", "a probing rate_limit, b cooling rate_limit 30s")
		// A 429 would have come by now; the answer may take minutes.
		time.Sleep(2 * time.Second)
		wantStates(t, p, "m", "a ready, b cooling rate_limit 28s")
		p.Observe(a, "m", verdict(provider.OK, 0), nil, time.Second)
		wantStates(t, p, "m", "a ready, b cooling rate_limit 28s")
	})
}

// Without a hint the time out doubles with each further one, up to the bound.
func TestBackoffGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, one, provider.Options{})
		var waits []string
		for range 6 {
			c, _ := p.Pick("m", nil, 0)
			p.Observe(c, "m", verdict(provider.RateLimit, 0), nil, 0)
			wait := time.Until(p.State("m").Until)
			base := wait.Truncate(5 * time.Second)
			if wait-base > base/10+time.Second && base < time.Minute {
				t.Errorf("wait %v", wait)
			}
			waits = append(waits, base.String())
			time.Sleep(wait)
		}
		if got := strings.Join(waits, " "); got != "5s 10s 20s 40s 1m0s 1m0s" {
			t.Error(got)
		}
		c, _ := p.Pick("m", nil, 0)
		p.Observe(c, "m", verdict(provider.OK, 0), nil, 0)
		p.Observe(c, "m", verdict(provider.RateLimit, 0), nil, 0)
		if wait := time.Until(p.State("m").Until); wait > 6*time.Second {
			t.Errorf("after a good answer: %v", wait)
		}
	})
}

func TestCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		p := build(t, one, provider.Options{Metrics: provider.NewInstruments(reg)})
		c, _ := p.Pick("m", nil, 0)
		fail := func(class provider.Class) { p.Observe(c, "m", verdict(class, 0), nil, 0) }

		// Faults of the request never count, and an answer ends a row.
		for range 10 {
			fail(provider.BadRequest)
			fail(provider.ContentPolicy)
			fail(provider.ContextWindow)
			fail(provider.Canceled)
			fail(provider.Deadline)
			fail(provider.Unsupported)
		}
		fail(provider.Server)
		fail(provider.Connect)
		fail(provider.Canceled) // says nothing
		fail(provider.BadRequest)
		fail(provider.Server)
		fail(provider.StreamBroken)
		wantStates(t, p, "m", "a ready")
		fail(provider.Timeout)
		wantStates(t, p, "m", "a cooling timeout 5s")
		for range 50 { // from before
			fail(provider.Server)
		}
		wantStates(t, p, "m", "a cooling timeout 5s")
		if s := p.State("m").Credentials[0]; s.Trips != 1 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		// An answer from before does not bring it back.
		fail(provider.OK)
		wantStates(t, p, "m", "a cooling timeout 5s")

		// The probe fails: out at once, for longer.
		time.Sleep(6 * time.Second)
		p.Pick("m", nil, 0)
		fail(provider.Server)
		if wait := time.Until(p.State("m").Until); wait < 10*time.Second || wait > 11*time.Second {
			t.Errorf("wait %v", wait)
		}
		// A probe whose client leaves says nothing: the next one may go.
		time.Sleep(11 * time.Second)
		p.Pick("m", nil, 0)
		wantStates(t, p, "m", "a probing server")
		fail(provider.Canceled)
		wantStates(t, p, "m", "a half-open server")
		// One that is never reported has a lease.
		p.Pick("m", nil, 0)
		time.Sleep(61 * time.Second)
		wantStates(t, p, "m", "a half-open server")
		p.Pick("m", nil, 0)
		fail(provider.BadRequest) // it works
		wantStates(t, p, "m", "a ready")

		want := `# HELP penstock_provider_cooldowns_total Times that a credential was taken out of use, at a model or at all, by reason.
# TYPE penstock_provider_cooldowns_total counter
penstock_provider_cooldowns_total{credential="a",provider="p",reason="server"} 1
penstock_provider_cooldowns_total{credential="a",provider="p",reason="timeout"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "penstock_provider_cooldowns_total"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Error(problems, err)
		}
		p.Close()
		if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
			t.Errorf("%d series are left, %v", n, err)
		}
	})
}

// B72: an attempt that is reported twice counts once, and what the client has
// done wrong counts as nothing else.
func TestB72FailuresCountOnce(t *testing.T) {
	p := build(t, one, provider.Options{})
	failures := func() int { return p.State("m").Credentials[0].Failures }
	report := func(class provider.Class) {
		c, _ := p.Pick("m", nil, 0)
		at := p.Begin(c, "m")
		at.End(verdict(class, 0), nil, 0)
		at.End(verdict(class, 0), nil, 0)
	}
	for _, c := range []struct {
		class provider.Class
		want  int
	}{{provider.Server, 1}, {provider.StreamBroken, 2}, {provider.Canceled, 2}, {provider.ContentPolicy, 0}, {provider.Server, 1}, {provider.ContextWindow, 0}} {
		if report(c.class); failures() != c.want {
			t.Errorf("after %v: %d failures, want %d", c.class, failures(), c.want)
		}
	}
}

// One request that fails again counts once, and one time more for each ten; it is
// no probe. Where no connection is had the request cannot be the cause.
func TestOneRequestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, one, provider.Options{})
		c, _ := p.Pick("m", nil, 0)
		fail := func(class provider.Class, request uint64) {
			v := verdict(class, 0)
			v.Request = request
			p.Observe(c, "m", v, nil, 0)
		}
		for range 3 {
			fail(provider.Server, 1)
			fail(provider.Reset, 1)
			fail(provider.Timeout, 2)
		}
		wantStates(t, p, "m", "a ready")
		fail(provider.Server, 3)
		wantStates(t, p, "m", "a cooling server 5s")
		time.Sleep(6 * time.Second)
		p.Pick("m", nil, 0)
		fail(provider.Server, 1)
		wantStates(t, p, "m", "a half-open server")
		p.Pick("m", nil, 0)
		fail(provider.OK, 0)
		for range 2 {
			fail(provider.Connect, 1)
		}
		fail(provider.Server, 1)
		wantStates(t, p, "m", "a cooling server 5s")
		time.Sleep(6 * time.Second)
		fail(provider.OK, 0)
		for range 20 {
			fail(provider.Server, 1)
		}
		wantStates(t, p, "m", "a ready")
		fail(provider.Server, 1)
		wantStates(t, p, "m", "a cooling server 5s")
	})
}

func TestAccountsCool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, two, provider.Options{})
		pick := func(name string) *provider.Credential {
			for {
				if c, _ := p.Pick("m", nil, 0); c.Name() == name {
					return c
				}
			}
		}
		a, b := pick("a"), pick("b")
		// An exhausted account is out at every model; what it may not do, at one.
		p.Observe(a, "m", verdict(provider.Quota, 0), nil, 0)
		wantStates(t, p, "other", "a cooling quota 1m0s, b ready")
		p.Observe(b, "m", verdict(provider.Forbidden, 0), nil, 0)
		wantStates(t, p, "m", "a cooling quota 1m0s, b cooling forbidden 1m0s")
		wantStates(t, p, "other", "a cooling quota 1m0s, b ready")
		// A longer hint is believed.
		p.Observe(a, "m", verdict(provider.Quota, 5*time.Minute), nil, 0)
		wantStates(t, p, "m", "a cooling quota 5m0s, b cooling forbidden 1m0s")
		time.Sleep(5 * time.Minute)
		p.Pick("m", []*provider.Credential{b}, 0)
		wantStates(t, p, "other", "a probing quota, b ready")
		p.Observe(a, "m", verdict(provider.OK, 0), nil, 0)
		wantStates(t, p, "other", "a ready, b ready")

		// Where nothing is fit, one that only has to wait comes before one that
		// somebody has to mend, though that is back sooner.
		p.Observe(a, "n", verdict(provider.ModelNotFound, 0), nil, 0)
		p.Observe(b, "n", verdict(provider.RateLimit, 30*time.Second), nil, 0)
		if c, wait := p.Pick("n", nil, 0); c != b || wait != 30*time.Second {
			t.Errorf("picked %s, wait %v", c.Name(), wait)
		}
	})
}

// A rate limit that is used up takes the credential out before a 429 has to.
func TestLimitsAreLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, two, provider.Options{})
		a, _ := p.Pick("m", nil, 0)
		h := http.Header{
			"X-Ratelimit-Limit-Requests": {"100"}, "X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"30s"},
			"X-Ratelimit-Limit-Tokens": {"1000"}, "X-Ratelimit-Remaining-Tokens": {"900"}, "X-Ratelimit-Reset-Tokens": {"1ms"},
		}
		at := p.Begin(a, "m")
		at.Answered(h)
		s := p.State("m")
		var got provider.CredentialState
		for _, c := range s.Credentials {
			if c.Name == a.Name() {
				got = c
			}
		}
		if got.State != "cooling" || got.Requests == nil || got.Requests.Remaining != 0 || got.Requests.Limit != 100 || got.Tokens.Remaining != 900 || got.InFlight != 1 {
			t.Errorf("%+v", got)
		}
		at.End(verdict(provider.OK, 0), h, time.Second)
		at.End(verdict(provider.Server, 0), h, time.Second) // counts no more
		time.Sleep(30 * time.Second)
		if s := p.State("m"); s.InFlight != 0 || s.State != "ready" || s.LatencyMS != 1000 {
			t.Errorf("%+v", s)
		}
		wantStates(t, p, "m", "a ready, b ready")
		if raw, err := json.Marshal(s); err != nil || strings.Contains(string(raw), "k1") {
			t.Errorf("%s %v", raw, err)
		}
	})
}

// The head of a good answer lets the others in; a stream may take minutes.
func TestProbeEndsWithTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := build(t, one, provider.Options{})
		c, _ := p.Pick("m", nil, 0)
		p.Observe(c, "m", verdict(provider.RateLimit, 10*time.Second), nil, 0)
		time.Sleep(10 * time.Second)
		c, _ = p.Pick("m", nil, 0)
		at := p.Begin(c, "m")
		at.Answered(nil)
		wantStates(t, p, "m", "a ready")
		at.End(verdict(provider.StreamBroken, 0), nil, 0)
		wantStates(t, p, "m", "a ready")
		if s := p.State("m").Credentials[0]; s.Failures != 1 || s.Trips != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestHealthIsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := build(t, two, provider.Options{})
		a, _ := old.Pick("m", nil, 0)
		old.Observe(a, "m", verdict(provider.RateLimit, 20*time.Second), nil, 0)
		p := build(t, strings.Replace(two, "weight: 2", "weight: 3", 1), provider.Options{Previous: old})
		if states(p, "m") != states(old, "m") {
			t.Errorf("%s, was %s", states(p, "m"), states(old, "m"))
		}
		p = build(t, strings.NewReplacer("k1", "k3", "k2", "k4").Replace(two), provider.Options{Previous: old})
		wantStates(t, p, "m", "a ready, b ready")
	})
}

// However many names come, what is kept is bounded.
// (B39)
func TestModelsAreBounded(t *testing.T) {
	p := build(t, one, provider.Options{})
	for i := range 5000 {
		c, _ := p.Pick(fmt.Sprint("m", i), nil, 0)
		p.Observe(c, fmt.Sprint("m", i), verdict(provider.OK, 0), nil, 0)
	}
	if n := provider.ModelsKept(p); n > 1025 {
		t.Errorf("%d models are kept", n)
	}
}

func TestConcurrency(t *testing.T) {
	p := build(t, two, provider.Options{Metrics: provider.NewInstruments(prometheus.NewRegistry())})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 500 {
				model := fmt.Sprint("m", r.IntN(3))
				c, _ := p.Pick(model, nil, r.Uint64())
				at := p.Begin(c, model)
				if r.IntN(2) == 0 {
					at.Answered(http.Header{"X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"1ms"}})
				}
				at.End(provider.Verdict{Class: provider.Class(r.IntN(int(provider.Unsupported) + 1)), Wait: time.Duration(r.IntN(3)) * time.Millisecond}, nil, time.Millisecond)
				p.State(model)
			}
		})
	}
	wg.Wait()
	for m := range 3 {
		if s := p.State(fmt.Sprint("m", m)); s.InFlight != 0 {
			t.Errorf("%d in flight", s.InFlight)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	p := build(b, two, provider.Options{})
	b.ReportAllocs()
	for b.Loop() {
		c, _ := p.Pick("m", nil, 7)
		p.Observe(c, "m", verdict(provider.OK, 0), nil, time.Millisecond)
	}
}

// TestManyNames is a client that makes up names of models where a pattern lets
// it: it takes nothing from those who ask for others.
func TestManyNames(t *testing.T) {
	p := build(t, one, provider.Options{})
	ask := func(model string, v provider.Class) {
		c, _ := p.Pick(model, nil, 0)
		p.Begin(c, model).End(verdict(v, 0), nil, 0)
	}
	ask("good", provider.OK)
	for i := range 3000 {
		ask(fmt.Sprintf("made-up-%d", i), provider.ModelNotFound)
	}
	wantStates(t, p, "good", "a ready")
	for i := range 1100 { // models that there are, more than are told apart
		ask(fmt.Sprintf("served-%d", i), provider.OK)
	}
	ask("made-up", provider.ModelNotFound)
	if !p.Ready("another") {
		t.Error("a model that nobody has asked for is out")
	}
}
