// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/sim"
)

// short is a workload cut down to some seconds.
func short(t testing.TB, name string, window time.Duration) bench.Workload {
	t.Helper()
	w, ok := bench.WorkloadNamed(name)
	if !ok {
		t.Fatalf("no workload %s", name)
	}
	w.Warmup, w.Window = window/10, window
	return w
}

func run(t testing.TB, policy string, w bench.Workload, load float64) *bench.Result {
	t.Helper()
	choose, ok := bench.References()[policy]
	if !ok {
		t.Fatalf("no policy %s", policy)
	}
	return bench.Run{Policy: policy, New: choose, Workload: w, Preset: sim.Qwen32B(), Load: load, Seed: 1}.Do()
}

// strict fails the test when the race breaks the contract of a Chooser.
type strict struct {
	bench.Chooser
	t      *testing.T
	picked map[uint64]int // tokens so far
	down   map[int]bool
}

func (s *strict) Pick(now time.Duration, r *bench.Request) int {
	if _, ok := s.picked[r.ID]; ok {
		s.t.Errorf("request %d is picked again before it is settled", r.ID)
	}
	n := s.Chooser.Pick(now, r)
	if n >= 0 {
		s.picked[r.ID] = 0
	}
	return n
}

func (s *strict) Output(now time.Duration, r *bench.Request, tokens int) {
	before, ok := s.picked[r.ID]
	if !ok || tokens <= before {
		s.t.Errorf("request %d has %d tokens after %d (picked: %t)", r.ID, tokens, before, ok)
	}
	s.picked[r.ID] = tokens
	s.Chooser.Output(now, r, tokens)
}

func (s *strict) Done(now time.Duration, r *bench.Request, e bench.Ending) {
	if _, ok := s.picked[r.ID]; !ok {
		s.t.Errorf("request %d is settled twice", r.ID)
	}
	delete(s.picked, r.ID)
	s.Chooser.Done(now, r, e)
}

func (s *strict) Health(now time.Duration, server int, up bool) {
	if s.down[server] == !up {
		s.t.Errorf("server %d is up=%t again", server, up)
	}
	s.down[server] = !up
	s.Chooser.Health(now, server, up)
}

func TestRaceKeepsTheContract(t *testing.T) {
	for _, name := range []string{"9-faults", "7-bursts", "2-chat"} {
		for policy, choose := range bench.References() {
			w := short(t, name, 40*time.Second)
			if name == "9-faults" {
				w.Faults[1].Down = 10 * time.Second
			}
			var made []*strict
			r := bench.Run{Policy: policy, Workload: w, Preset: sim.Qwen32B(), Load: 0.5, Seed: 1, Gateways: 2, New: func(f bench.Fleet) bench.Chooser {
				s := &strict{Chooser: choose(f), t: t, picked: map[uint64]int{}, down: map[int]bool{}}
				made = append(made, s)
				return s
			}}.Do()
			if len(made) != 2 {
				t.Fatalf("%d choosers for two gateways", len(made))
			}
			for _, s := range made {
				if len(s.picked) > 0 {
					t.Errorf("%s, %s: %d picks are never settled", name, policy, len(s.picked))
				}
			}
			if r.Offered == 0 || r.Offered != r.Answered+r.GaveUp+r.Refused+r.Broken {
				t.Errorf("%s, %s: offered %d is not answered %d + gave up %d + refused %d + broken %d", name, policy, r.Offered, r.Answered, r.GaveUp, r.Refused, r.Broken)
			}
		}
	}
}

func TestRaceRepeats(t *testing.T) {
	w := short(t, "9-faults", 40*time.Second)
	a, b := run(t, "ref-p2c", w, 0.6), run(t, "ref-p2c", w, 0.6)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

func TestDeadServerBreaksOnlyWhatHasBegun(t *testing.T) {
	w := short(t, "4-unique", 60*time.Second)
	if r := run(t, "ref-least-inflight", w, 0.6); r.Answered != r.Offered {
		t.Fatalf("without faults %d of %d answered", r.Answered, r.Offered)
	}
	w.Faults = []bench.Fault{{Server: 3, At: 0.5, Down: 10 * time.Second}}
	r := run(t, "ref-least-inflight", w, 0.6)
	if r.Broken == 0 || r.Refused != 0 || r.GaveUp != 0 {
		t.Errorf("broken %d, refused %d, gave up %d; want some, none and none", r.Broken, r.Refused, r.GaveUp)
	}
	if r.Assigned[3] == 0 || r.Assigned[3] >= r.Assigned[4] {
		t.Errorf("the dead server got %d requests, another one %d", r.Assigned[3], r.Assigned[4])
	}
}

func TestSlowServerIsSlow(t *testing.T) {
	w := short(t, "4-unique", 60*time.Second)
	fast := run(t, "ref-round-robin", w, 0.4)
	w.Slow = []float64{4, 4, 4, 4, 4, 4, 4, 4}
	if slow := run(t, "ref-round-robin", w, 0.4); slow.TPOT.P50 < 3*fast.TPOT.P50 {
		t.Errorf("TPOT p50 is %g on servers 4 x slow, %g on others", slow.TPOT.P50, fast.TPOT.P50)
	}
}

func TestImpatience(t *testing.T) {
	w := short(t, "4-unique", 100*time.Second)
	r := run(t, "ref-least-inflight", w, 8)
	if r.GaveUp == 0 || r.TTFT.P99 != 60 {
		t.Errorf("at 8 times the capacity %d gave up and TTFT p99 is %g s; want some and 60 s", r.GaveUp, r.TTFT.P99)
	}
}

// TestAffinityPays: where prefixes come back, the policy that looks at them
// wins by the engines' own count; where they do not, nothing hits.
func TestAffinityPays(t *testing.T) {
	w := short(t, "1-b2b", 150*time.Second)
	w.Warmup = 50 * time.Second
	blind, warm := run(t, "ref-round-robin", w, 0.7), run(t, "ref-lmetric", w, 0.7)
	if warm.HitRate() < 2*blind.HitRate() || warm.TTFT.P90 > blind.TTFT.P90/2 {
		t.Errorf("hit rate %.2f and TTFT p90 %.2f with affinity, %.2f and %.2f without", warm.HitRate(), warm.TTFT.P90, blind.HitRate(), blind.TTFT.P90)
	}
	if r := run(t, "ref-lmetric", short(t, "4-unique", 30*time.Second), 0.5); r.HitTokens != 0 {
		t.Errorf("%d tokens hit without reuse", r.HitTokens)
	}
}

func TestSeries(t *testing.T) {
	w := short(t, "4-unique", 10*time.Second)
	var s bench.Series
	for seed := range uint64(4) {
		s.Runs = append(s.Runs, bench.Run{Policy: "ref-random", New: bench.References()["ref-random"], Workload: w, Preset: sim.Qwen32B(), Load: 0.5, Seed: seed})
	}
	s.Workers = 2
	calls := 0
	s.Progress = func(done int, _ *bench.Result) {
		if calls++; done != calls {
			t.Errorf("progress %d at call %d", done, calls)
		}
	}
	results, err := s.Do(context.Background())
	if err != nil || calls != 4 {
		t.Fatalf("%d calls of progress, %v", calls, err)
	}
	for i, r := range results {
		if r.Seed != uint64(i) {
			t.Errorf("result %d is of seed %d", i, r.Seed)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Do(ctx); err == nil {
		t.Error("no error after the context ended")
	}
}

func TestCapacityIsFound(t *testing.T) {
	w := short(t, "4-unique", 60*time.Second)
	c := bench.Capacities{
		Runs:  []bench.Run{{Policy: "ref-least-inflight", New: bench.References()["ref-least-inflight"], Workload: w, Preset: sim.Qwen32B()}},
		Seeds: []uint64{1}, Low: 0.2, High: 3, Steps: 5,
	}
	got, err := c.Do(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	at := got[0].Load
	if good := run(t, "ref-least-inflight", w, at).Goodput(); good < 0.9 {
		t.Errorf("at the capacity %.2f goodput is %.2f", at, good)
	}
	if good := run(t, "ref-least-inflight", w, at+(3-0.2)/32*1.001).Goodput(); good >= 0.9 {
		t.Errorf("beyond the capacity %.2f goodput is %.2f still", at, good)
	}
}

func BenchmarkRace(b *testing.B) {
	w := short(b, "2-chat", 60*time.Second)
	b.ReportAllocs()
	for b.Loop() {
		r := run(b, "ref-least-inflight", w, 0.8)
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(r.Offered), "us/request")
	}
}
