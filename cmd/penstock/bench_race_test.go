// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/sim"
)

// race runs a policy on a workload; the clock is virtual, so the result is the
// same on every machine.
func race(t *testing.T, policy, workload string, seed uint64) *bench.Result {
	t.Helper()
	choose, err := racePolicy(policy)
	if err != nil {
		t.Fatal(err)
	}
	w, err := benchWorkload(workload)
	if err != nil {
		t.Fatal(err)
	}
	return bench.Run{Policy: policy, New: choose, Workload: w, Preset: sim.Qwen32B(), Load: 1, Seed: seed}.Do()
}

// spread is the busiest server's share over the least busy one's.
func spread(assigned []int) float64 {
	return float64(slices.Max(assigned)) / max(float64(slices.Min(assigned)), 0.1)
}

const evenEnough = 1.3

// TestBurstSpreads: 200 requests at one moment over 8 equal members whose
// metrics are 5 s old. Nothing is scraped between two picks, so only the
// gateway's own counts can keep them apart.
func TestBurstSpreads(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		r := race(t, "default", "burst200", seed)
		if r.Offered != 200 || r.Answered != 200 {
			t.Fatalf("seed %d: %d of %d answered, want 200 of 200", seed, r.Answered, r.Offered)
		}
		if s := spread(r.Assigned); s > evenEnough {
			t.Errorf("seed %d: busiest over least busy is %.2f, want at most %.1f: %v", seed, s, evenEnough, r.Assigned)
		}
		// Where prompts differ by a factor of 80, work is what has to be even.
		r = race(t, "default", "burst200-mixed", seed)
		if s := spread(r.AssignedTokens); s > evenEnough {
			t.Errorf("seed %d, mixed: busiest over least busy is %.2f in tokens, want at most %.1f: %v", seed, s, evenEnough, r.AssignedTokens)
		}
	}
}

// TestBurstNeedsOwnCounts: the bound means something, since policies without
// counts of their own break it.
func TestBurstNeedsOwnCounts(t *testing.T) {
	for _, policy := range []string{"ref-random", "ref-least-queue"} {
		if r := race(t, policy, "burst200", 1); spread(r.Assigned) <= evenEnough {
			t.Errorf("%s: busiest over least busy is %.2f: the test cannot fail", policy, spread(r.Assigned))
		}
	}
}

// tailVerdict compares a policy with round robin on the same sessions: 80 % of
// the requests on one hot prefix, the rest on a long tail that comes back.
type tailVerdict struct {
	hits   float64 // tokens of the tail found cached, over round robin's
	ttft   float64 // p90, over round robin's
	excess float64 // of the longest waiting line over twice the median + 2
}

func (v tailVerdict) good() bool { return v.hits >= 2 && v.ttft <= 0.5 && v.excess <= 0 }

func hotTail(t *testing.T, policy string, seed uint64) tailVerdict {
	t.Helper()
	base := race(t, "ref-round-robin", "hot-tail", seed)
	r := race(t, policy, "hot-tail", seed)
	if r.Answered != r.Offered {
		t.Fatalf("seed %d: %d of %d answered", seed, r.Answered, r.Offered)
	}
	return tailVerdict{
		hits:   float64(r.Classes["tail"].HitTokens) / float64(base.Classes["tail"].HitTokens),
		ttft:   r.TTFT.P90 / base.TTFT.P90,
		excess: r.QueueExcess,
	}
}

func TestHotPrefixAndColdTail(t *testing.T) {
	for seed := uint64(1); seed <= 2; seed++ {
		v := hotTail(t, "default", seed)
		t.Logf("seed %d: %+v", seed, v)
		if !v.good() {
			t.Errorf("seed %d: %+v, want hits of the tail >= 2 x, TTFT p90 <= 0.5 x round robin's, no line above twice the median + 2", seed, v)
		}
	}
}

// TestHotPrefixNeedsAffinity: what spreads without looking fails it.
func TestHotPrefixNeedsAffinity(t *testing.T) {
	for _, policy := range []string{"round-robin", "least-request"} {
		if v := hotTail(t, policy, 1); v.good() {
			t.Errorf("%s passes with %+v: the test cannot fail", policy, v)
		}
	}
}

// TestRaceIsDeterministic: equal runs of the real scheduler give equal results.
func TestRaceIsDeterministic(t *testing.T) {
	a, b := race(t, "default", "burst200", 7), race(t, "default", "burst200", 7)
	if a.TTFT != b.TTFT || !slices.Equal(a.Assigned, b.Assigned) {
		t.Errorf("two equal runs differ: %v %v, %v %v", a.TTFT, b.TTFT, a.Assigned, b.Assigned)
	}
}
