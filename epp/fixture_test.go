// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// clock is virtual time.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// newPool is a pool of n members 10.0.0.1:8000, 10.0.0.2:8000, … that scrapes
// nothing; tests say what its members report.
func newPool(t testing.TB, n int) *pool.Pool {
	t.Helper()
	return poolOf(t, nil, addresses(n)...)
}

func addresses(n int) []config.Member {
	var members []config.Member
	for i := range n {
		members = append(members, config.Member{Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)})
	}
	return members
}

func poolOf(t testing.TB, now func() time.Time, members ...config.Member) *pool.Pool {
	t.Helper()
	p, err := pool.New(config.Pool{
		Name: "p", Protocol: config.HTTP, Engine: config.VLLM,
		Members: config.Members{Static: members},
		Metrics: config.Metrics{Off: true, Path: "/metrics", Stale: config.Duration(2 * time.Second)},
	}, pool.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func builtin(t testing.TB, name string) *epp.Profile {
	t.Helper()
	cfg, ok := epp.Builtin(name)
	if !ok {
		t.Fatalf("no built-in profile %q", name)
	}
	profile, err := epp.Compile(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return profile
}

// prompt reads a completions request with the prompts.
func prompt(t testing.TB, prompts ...string) *llm.Prompt {
	t.Helper()
	if len(prompts) == 0 {
		return nil
	}
	body := map[string]any{"model": "m", "prompt": prompts}
	if len(prompts) == 1 {
		body["prompt"] = prompts[0]
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, problem := llm.Read(llm.OpCompletions, "application/json", raw, llm.Limits{})
	if problem != nil {
		t.Fatal(problem)
	}
	return &r.Prompt
}

// text is n bytes that no other seed begins with.
func text(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return string(b)
}

func request(t testing.TB, prompts ...string) *epp.Request {
	return &epp.Request{ID: "r", Op: llm.OpCompletions, Model: "m", Prompt: prompt(t, prompts...), Stream: true}
}

func pick(t testing.TB, s *epp.Scheduler, r *epp.Request) *epp.Result {
	t.Helper()
	res, err := s.Pick(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// page is a metrics page with all signals.
func page(at time.Time, waiting, running, kv float64) *pool.Metrics {
	return &pool.Metrics{
		At: at, Has: pool.HasWaiting | pool.HasRunning | pool.HasKVUsage | pool.HasCacheConfig,
		Waiting: waiting, Running: running, KVUsage: kv, BlockSize: 16, NumBlocks: 20000,
	}
}
