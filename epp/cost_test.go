// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// server is the model of a server that learning assumes: seconds per prefill
// token, and what a decoding step costs.
type server struct{ perToken, step, perLoad float64 }

func (s server) ttft(at sample) time.Duration {
	work := at.queued + at.uncached + 1.5*(s.step+s.perLoad*at.decode)/s.perToken
	return time.Duration(work * s.perToken * float64(time.Second))
}

func (s server) gap(load float64) time.Duration {
	return time.Duration((s.step + s.perLoad*load) * float64(time.Second))
}

// learn runs a fleet of servers under random load and returns it.
func learn(servers []server, rounds int) (*fleet, []*speed) {
	r := rand.New(rand.NewPCG(1, 2))
	f := newFleet()
	var speeds []*speed
	for range servers {
		speeds = append(speeds, f.join())
	}
	for range rounds {
		for i, s := range servers {
			load := r.Float64() * 40
			f.firstToken(speeds[i], s.ttft(sample{uncached: 2000, queued: r.Float64() * 4000, decode: load}),
				sample{uncached: 2000, queued: 2000, decode: load})
			f.tokenGap(speeds[i], s.gap(load), load)
		}
	}
	return f, speeds
}

func TestLearnEqualFleet(t *testing.T) {
	s := server{perToken: 55e-6, step: 14e-3, perLoad: 60e-6}
	f, speeds := learn([]server{s, s, s, s, s, s, s, s}, 600)
	for i, sp := range speeds {
		if got := sp.slow.Load(); got != 1 {
			t.Errorf("member %d of an equal fleet has slow %v", i, got)
		}
	}
	truth := s.perLoad / s.perToken
	if k := f.kappa.Load(); k < truth/3 || k > truth*3 {
		t.Errorf("kappa %v, truth %v", k, truth)
	}
	if truth := s.step / s.perToken; f.fixed < truth/1.5 || f.fixed > truth*1.5 {
		t.Errorf("fixed %v, truth %v", f.fixed, truth)
	}
}

func TestLearnSlowMember(t *testing.T) {
	fast := server{perToken: 55e-6, step: 14e-3, perLoad: 60e-6}
	slow := server{perToken: 275e-6, step: 70e-3, perLoad: 300e-6}
	_, speeds := learn([]server{fast, fast, fast, fast, slow}, 600)
	for i, sp := range speeds[:4] {
		if got := sp.slow.Load(); got != 1 {
			t.Errorf("fast member %d has slow %v", i, got)
		}
	}
	if got := speeds[4].slow.Load(); got < 3 || got > 6 {
		t.Errorf("the member that is five times slower has slow %v", got)
	}
}

func TestLearnGuards(t *testing.T) {
	t.Run("one sample moves nothing", func(t *testing.T) {
		f, speeds := learn([]server{{55e-6, 14e-3, 60e-6}, {55e-6, 14e-3, 60e-6}, {55e-6, 14e-3, 60e-6}}, 300)
		before := speeds[0].median
		f.firstToken(speeds[0], time.Hour, sample{uncached: 1})
		if after := speeds[0].median; after > before*medianStep*1.0001 {
			t.Errorf("median went from %v to %v by one sample", before, after)
		}
	})
	t.Run("a fleet that falls apart counts as equal", func(t *testing.T) {
		// Two fast, two slow and nobody near the middle: all are outside the band.
		fast, slow := server{20e-6, 5e-3, 20e-6}, server{320e-6, 80e-3, 320e-6}
		_, speeds := learn([]server{fast, fast, slow, slow}, 300)
		for i, sp := range speeds {
			if got := sp.slow.Load(); got != 1 {
				t.Errorf("member %d has slow %v", i, got)
			}
		}
	})
	t.Run("bounds", func(t *testing.T) {
		for ratio, want := range map[float64]float64{0: 1, 1.39: 1, 0.72: 1, 2: 2, 100: slowClamp, 0.001: 1.0 / slowClamp} {
			if got := slowOf(ratio, 1000); math.Abs(got-want) > 1e-9 {
				t.Errorf("slow of ratio %v is %v, want %v", ratio, got, want)
			}
		}
		if got := slowOf(4, 1); got > slowBand {
			t.Errorf("one sample of ratio 4 gives slow %v", got)
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		f := newFleet()
		s := f.join()
		f.firstToken(s, -1, sample{})
		f.tokenGap(s, 0, 100)
		f.ended(-5)
		if s.median != 0 || s.gap != 0 || f.output.Load() != startOutput {
			t.Errorf("learnt from nothing: %v %v %v", s.median, s.gap, f.output.Load())
		}
	})
}

// TestCost checks the formula by hand: two members, one warm and busy.
func TestCost(t *testing.T) {
	k := constants{kappa: 0.5, output: 300}
	warm := &candidate{price: 100, requests: 4, queued: 500, context: 8000, slow: 1}
	cold := &candidate{price: 2000, slow: 2}
	// 100*(1+2) + 500 + 2*0.5*300*(4 + (8000+4*300/4)/1000) = 300+500+300*12.3
	if got := costOf(warm, 2, k); math.Abs(got-4490) > 1e-6 {
		t.Errorf("warm costs %v", got)
	}
	if got := costOf(cold, 2, k); got != 2*2000*3 {
		t.Errorf("cold costs %v", got)
	}
}
