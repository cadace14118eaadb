// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/sim"
)

// TestEngineSteps runs scripts of calls and prints one line per step.
func TestEngineSteps(t *testing.T) {
	golden.Run(t, "testdata/engine/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var out strings.Builder
		run := script{t: t, out: &out}
		for line := range strings.Lines(c.File(t, "script")) {
			if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(line, "#") {
				run.do(f[0], f[1:])
			}
		}
		return map[string]string{"steps": out.String()}
	})
}

// script is the state of one run: the engine, the time and what was printed.
type script struct {
	t      *testing.T
	out    *strings.Builder
	preset sim.Preset
	engine *sim.Engine
	now    time.Duration
}

func (s *script) do(verb string, args []string) {
	named := map[string]string{}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		named[k] = v
	}
	number := func(key string) int {
		n, err := strconv.Atoi(named[key])
		if err != nil {
			s.t.Fatalf("%s %v: %s: %v", verb, args, key, err)
		}
		return n
	}
	switch verb {
	case "engine":
		// A step is 10 ms, plus 1 ms per prefill token and decoding sequence.
		s.preset = sim.Preset{
			A: 10 * time.Millisecond, B: time.Millisecond, C: time.Millisecond, BlockSize: 4,
			NumBlocks: number("blocks"), MaxBatchedTokens: number("budget"), MaxSequences: number("seqs"),
			MaxWaiting: number("waiting"), MaxLoRAs: number("loras"), LoRALoad: 100 * time.Millisecond,
		}
		s.engine = sim.NewEngine(s.preset)
	case "submit":
		r := &sim.Request{
			ID: uint64(number("id")), PromptTokens: number("prompt"), OutputTokens: number("out"),
			Adapter: named["adapter"], Blocks: letters(named["content"]),
		}
		if err := s.engine.Check(r); err != nil {
			fmt.Fprintf(s.out, "refused %d: %v\n", r.ID, err)
		}
		s.engine.Submit(s.now, r)
	case "abort":
		s.engine.Abort(uint64(number("id")))
	case "reset":
		s.engine.Reset()
	case "step":
		s.step()
	case "run":
		for !s.engine.Idle() {
			s.step()
		}
	default:
		s.t.Fatalf("unknown verb %s", verb)
	}
}

// letters makes a chain in which each letter is the content of one block.
func letters(text string) (chain []uint64) {
	h := uint64(0)
	for _, c := range text {
		h = sim.ChainHash(h, uint64(c))
		chain = append(chain, h)
	}
	return chain
}

func (s *script) step() {
	end, events := s.engine.Step(s.now)
	g := s.engine.Gauges()
	fmt.Fprintf(s.out, "%v..%v", s.now, end)
	for _, e := range events {
		fmt.Fprintf(s.out, " %s", describe(e))
	}
	fmt.Fprintf(s.out, " | waiting %d running %d blocks %.0f", g.Waiting, g.Running, g.KVUsage*float64(s.preset.NumBlocks))
	if s.preset.MaxLoRAs > 0 {
		fmt.Fprintf(s.out, " adapters %v waiting %v", g.RunningAdapters, g.WaitingAdapters)
	}
	fmt.Fprintln(s.out)
	s.now = end
}

func describe(e sim.Event) string {
	switch e.Kind {
	case sim.FirstToken:
		return fmt.Sprintf("first:%d(cached %d)", e.ID, e.Cached)
	case sim.Token:
		return fmt.Sprintf("token:%d(%d)", e.ID, e.Tokens)
	case sim.Finished:
		return fmt.Sprintf("finished:%d(%d, cached %d, prefilled %d)", e.ID, e.Tokens, e.Cached, e.Prefills)
	case sim.Preempted:
		return fmt.Sprintf("preempted:%d(%d)", e.ID, e.Tokens)
	}
	return "unknown"
}

// drive submits seeded random work, checks what must hold after every step,
// and returns the log of all events.
func drive(t *testing.T, seed uint64, aborts bool) []string {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	p := sim.Preset{
		A: time.Millisecond, B: time.Microsecond, C: time.Microsecond, D: time.Microsecond, E: time.Microsecond,
		BlockSize: 4, NumBlocks: 40, MaxBatchedTokens: 32, MaxSequences: 6, MaxWaiting: 20, MaxLoRAs: 2,
		LoRALoad: time.Millisecond,
	}
	e := sim.NewEngine(p)
	var log []string
	var now time.Duration
	want := map[uint64]int{} // output tokens still expected
	last := map[uint64]int{}
	for i := range 600 {
		if i < 400 && rng.IntN(2) == 0 {
			r := &sim.Request{
				ID: uint64(i + 1), PromptTokens: 1 + rng.IntN(60), OutputTokens: 1 + rng.IntN(40),
				Adapter: []string{"", "", "x", "y", "z"}[rng.IntN(5)],
			}
			group := 'a' + rune(rng.IntN(3))
			r.Blocks = letters(strings.Repeat(string(group), r.PromptTokens/4))
			if e.Submit(now, r) {
				want[r.ID] = r.OutputTokens
			} else if err := e.Check(r); err == nil {
				t.Fatalf("request %d refused without a reason", r.ID)
			}
		}
		if aborts && rng.IntN(10) == 0 {
			id := uint64(1 + rng.IntN(i+1))
			e.Abort(id)
			delete(want, id)
		}
		now = check(t, e, p, now, want, last, &log)
	}
	for i := 0; !e.Idle(); i++ {
		if i > 100_000 {
			t.Fatal("the engine does not come to an end")
		}
		now = check(t, e, p, now, want, last, &log)
	}
	if len(want) != 0 {
		t.Errorf("not finished: %v", want)
	}
	if g := e.Gauges(); g.KVUsage != 0 || g.Running != 0 || g.Waiting != 0 {
		t.Errorf("idle engine says %+v", g)
	}
	return log
}

// check runs a step and compares what it says with what must hold.
func check(t *testing.T, e *sim.Engine, p sim.Preset, now time.Duration, want, last map[uint64]int, log *[]string) time.Duration {
	t.Helper()
	end, events := e.Step(now)
	for _, ev := range events {
		*log = append(*log, fmt.Sprint(end, " ", describe(ev)))
		if _, ok := want[ev.ID]; !ok {
			t.Fatalf("event %s of a sequence that is gone", describe(ev))
		}
		if ev.Kind == sim.Preempted {
			continue
		}
		if ev.Tokens != last[ev.ID]+1 {
			t.Fatalf("%s after %d tokens", describe(ev), last[ev.ID])
		}
		last[ev.ID] = ev.Tokens
		if ev.Kind == sim.Finished {
			if ev.Tokens != want[ev.ID] {
				t.Fatalf("%s, want %d tokens", describe(ev), want[ev.ID])
			}
			delete(want, ev.ID)
		}
	}
	if err := sim.Audit(e); err != nil {
		t.Fatalf("at %v: %v", end, err)
	}
	if g := e.Gauges(); g.Running > p.MaxSequences || len(g.RunningAdapters) > p.MaxLoRAs {
		t.Fatalf("over a bound: %+v", g)
	}
	return end
}

func TestEngineInvariants(t *testing.T) {
	for seed := range uint64(12) {
		log := drive(t, seed, seed%2 == 1)
		if diff := cmp.Diff(log, drive(t, seed, seed%2 == 1)); diff != "" {
			t.Fatalf("seed %d: two runs differ:\n%s", seed, diff)
		}
		if seed == 0 && !strings.Contains(strings.Join(log, "\n"), "preempted") {
			t.Error("the load never preempts, so the test proves too little")
		}
	}
}

func TestEngineRefuses(t *testing.T) {
	p := sim.Tiny()
	p.NumBlocks, p.MaxWaiting, p.MaxLoRAs = 4, 1, 0 // 64 tokens
	tests := []struct {
		name string
		r    sim.Request
		want error
	}{
		{"fits exactly", sim.Request{ID: 1, PromptTokens: 60, OutputTokens: 5}, nil},
		{"one too long", sim.Request{ID: 1, PromptTokens: 60, OutputTokens: 6}, sim.ErrTooLong},
		{"no prompt", sim.Request{ID: 1, OutputTokens: 6}, sim.ErrInvalid},
		{"no output", sim.Request{ID: 1, PromptTokens: 6}, sim.ErrInvalid},
		{"adapter without slots", sim.Request{ID: 1, PromptTokens: 6, OutputTokens: 1, Adapter: "x"}, sim.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := sim.NewEngine(p)
			if err := e.Check(&tt.r); !errors.Is(err, tt.want) {
				t.Errorf("Check: %v, want %v", err, tt.want)
			}
			if ok := e.Submit(0, &tt.r); ok != (tt.want == nil) {
				t.Errorf("Submit: %v", ok)
			}
		})
	}
	e := sim.NewEngine(p)
	e.Submit(0, &sim.Request{ID: 1, PromptTokens: 6, OutputTokens: 1})
	if err := e.Check(&sim.Request{ID: 2, PromptTokens: 6, OutputTokens: 1}); !errors.Is(err, sim.ErrQueueFull) {
		t.Errorf("second in a queue of one: %v", err)
	}
}

// TestEngineFollowUp is a second turn that finds the prompt and the output of
// the first in the cache.
func TestEngineFollowUp(t *testing.T) {
	e := sim.NewEngine(sim.Tiny())
	first := &sim.Request{ID: 1, Blocks: letters("abc"), PromptTokens: 3*16 + 5, OutputTokens: 40}
	chain := first.Chain(16) // 93 tokens: 5 full blocks, 92 of them computed
	if len(chain) != 5 {
		t.Fatalf("chain of %d blocks, want 5", len(chain))
	}
	e.Submit(0, first)
	var now time.Duration
	for !e.Idle() {
		now, _ = e.Step(now)
	}
	blocks := append(chain, sim.ChainHash(chain[4], 'd'))
	e.Submit(now, &sim.Request{ID: 2, Blocks: blocks, PromptTokens: 6 * 16, OutputTokens: 1})
	_, events := e.Step(now)
	want := []sim.Event{{ID: 2, Kind: sim.Finished, Tokens: 1, Cached: 5 * 16, Prefills: 16}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
}

// TestPresetCalibration measures the presets with the engine itself against
// the figures in their comments.
func TestPresetCalibration(t *testing.T) {
	within := func(t *testing.T, what string, got, low, high float64) {
		t.Helper()
		t.Logf("%-40s %10.2f", what, got)
		if got < low || got > high {
			t.Errorf("%s: %.2f, want %.2f to %.2f", what, got, low, high)
		}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

	q := sim.Qwen32B()
	within(t, "qwen32b KV tokens", float64(q.NumBlocks*q.BlockSize), 307_328, 307_328)
	within(t, "qwen32b peak prefill tok/s", 8192/cold(q, 8192).Seconds(), 15_750, 16_050)
	within(t, "qwen32b 10k cold TTFT ms", ms(cold(q, 10_000)), 640, 660)
	within(t, "qwen32b 100k cold TTFT s", cold(q, 100_000).Seconds(), 13.0, 13.4)
	within(t, "qwen32b ITL ms, 1 x 4k", ms(between(q, 1, 4000)), 14, 14.5)
	within(t, "qwen32b ITL ms, 40 x 4k", ms(between(q, 40, 4000)), 24.5, 26)
	within(t, "qwen32b-slow 10k cold TTFT s", cold(sim.Qwen32BSlow(), 10_000).Seconds(), 3.6, 4.4)
	l := sim.Llama8B()
	within(t, "llama8b peak prefill tok/s", 8192/cold(l, 8192).Seconds(), 22_500, 23_500)
	within(t, "llama8b ITL ms, 1 x 4k", ms(between(l, 1, 4000)), 8.5, 9)
	within(t, "llama8b ITL ms, 40 x 4k", ms(between(l, 40, 4000)), 17, 18.5)
}

// cold is the time to the first token of a prompt on an idle engine.
func cold(p sim.Preset, tokens int) (now time.Duration) {
	e := sim.NewEngine(p)
	e.Submit(0, &sim.Request{ID: 1, PromptTokens: tokens, OutputTokens: 1})
	for !e.Idle() {
		now, _ = e.Step(now)
	}
	return now
}

// between is the time of a step that only decodes n sequences.
func between(p sim.Preset, n, tokens int) time.Duration {
	e := sim.NewEngine(p)
	for i := range n {
		e.Submit(0, &sim.Request{ID: uint64(i + 1), PromptTokens: tokens, OutputTokens: 1000})
	}
	var now time.Duration
	for range n * (tokens/p.MaxBatchedTokens + 2) {
		now, _ = e.Step(now)
	}
	end, _ := e.Step(now)
	return end - now
}

func TestLookupPreset(t *testing.T) {
	for _, name := range []string{"qwen32b", "qwen32b-slow", "llama8b", "tiny"} {
		if p, err := sim.LookupPreset(name); err != nil || p.Name != name {
			t.Errorf("%s: %q, %v", name, p.Name, err)
		}
	}
	if _, err := sim.LookupPreset("gpt"); err == nil || !strings.Contains(err.Error(), "tiny") {
		t.Errorf("unknown preset: %v; want an error that lists those there are", err)
	}
}

// TestEngineAllocations holds that a step which only decodes allocates next to
// nothing: now and then a longer list of hashes.
func TestEngineAllocations(t *testing.T) {
	e := sim.NewEngine(sim.Qwen32B())
	for i := range 40 {
		e.Submit(0, &sim.Request{ID: uint64(i + 1), PromptTokens: 100, OutputTokens: 2000})
	}
	var now time.Duration
	step := func() { now, _ = e.Step(now) }
	step()
	step()
	if n := testing.AllocsPerRun(1000, step); n > 2 {
		t.Errorf("%.1f allocations per step", n)
	}
}

// BenchmarkEngine runs 1000 requests of about 3000 tokens with shared prefixes.
func BenchmarkEngine(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		e := sim.NewEngine(sim.Qwen32B())
		var now time.Duration
		for i := range 1000 {
			chain := make([]uint64, 0, 190)
			h := uint64(0)
			for j := range 190 {
				content := uint64(j) | uint64(i%50)<<32
				if j > 120 {
					content = uint64(j) | uint64(i)<<32
				}
				h = sim.ChainHash(h, content)
				chain = append(chain, h)
			}
			e.Submit(now, &sim.Request{ID: uint64(i + 1), Blocks: chain, PromptTokens: 3045, OutputTokens: 250})
			if i%4 == 0 {
				now, _ = e.Step(now)
			}
		}
		for !e.Idle() {
			now, _ = e.Step(now)
		}
	}
}
