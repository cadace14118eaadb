// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/config"
)

// TestSLOs counts requests by three objectives and reads how fast each burns.
func TestSLOs(t *testing.T) {
	list := []config.SLO{
		{Name: "fast", Models: []string{"chat*"}, Objective: config.ObjectiveTTFT, Under: config.Duration(500 * time.Millisecond), Target: .9},
		{Name: "steady", Tenants: []string{"acme/*"}, Objective: config.ObjectiveTPOT, Under: config.Duration(50 * time.Millisecond), Target: .99},
		{Name: "up", Objective: config.ObjectiveErrors, Target: .99},
	}
	reg := prometheus.NewRegistry()
	in := NewSLOInstruments(reg)
	s := NewSLOs(list, nil, in)
	now := time.Unix(1_800_000_000, 0)
	emit := func(ago time.Duration, r Record) {
		r.Time, r.Operation = now.Add(-ago), "chat"
		s.Observe(&r)
	}
	ok := func(ttft, tpot float64) Record {
		return Record{ModelAsked: "chat-1", Routing: Routing{Tenant: "acme/a"}, Status: 200, Timing: Timing{TTFT: ttft, TPOT: tpot}}
	}
	for range 8 {
		emit(time.Minute, ok(.4, .05))
	}
	emit(30*time.Minute, ok(.5, .06))
	emit(2*time.Hour, ok(.6, 0))
	emit(7*time.Hour, ok(9, 9)) // too long ago for burn rates; counted as ever
	emit(0, Record{ModelAsked: "chat-1", Status: 503, ErrorClass: "no_endpoint"})
	emit(0, Record{ModelAsked: "chat-1", Status: 429, ErrorClass: "rate_limit"}) // the client's own
	emit(0, Record{ModelAsked: "chat-1", Status: 499, ErrorClass: "client_closed"})
	emit(0, Record{ModelAsked: "other", Status: 200, Timing: Timing{TTFT: 9}})

	type figures struct{ good, bad int64 }
	want := map[string][3]figures{
		"fast":   {{8, 0}, {9, 0}, {9, 1}},
		"steady": {{8, 0}, {8, 1}, {8, 1}},
		"up":     {{9, 1}, {10, 1}, {11, 1}},
	}
	for _, b := range s.Burns(now) {
		for i, w := range b.Windows {
			if f := want[b.Name][i]; w.Good != f.good || w.Bad != f.bad {
				t.Errorf("%s over %v: %d good, %d bad; want %v", b.Name, w.Span, w.Good, w.Bad, f)
			}
		}
		if rate := b.Windows[0].Rate; b.Name == "up" && math.Abs(rate-10) > 1e-9 { // one of ten, where one of a hundred may be
			t.Errorf("up burns at %v, want 10", rate)
		}
	}
	if n := testutil.ToFloat64(in.requests.WithLabelValues("fast", "bad")); n != 2 {
		t.Errorf("fast has %v bad requests in its metric, want 2", n)
	}

	// One objective changes, one goes: the third one keeps what it has counted.
	list[0].Target = .95
	next := NewSLOs([]config.SLO{list[0], list[2]}, s, in)
	burns := next.Burns(now)
	if len(burns) != 2 || burns[0].Windows[2].Good != 0 || burns[1].Windows[2].Good != 11 {
		t.Errorf("after a change: %+v", burns)
	}
	if n := testutil.CollectAndCount(in.requests); n != 4 {
		t.Errorf("%d series are left, want 4", n)
	}
	if v := testutil.ToFloat64(in.target.WithLabelValues("fast")); v != .95 {
		t.Errorf("the target is told as %v", v)
	}
	(*SLOs)(nil).Observe(&Record{})
}

func BenchmarkSLOs(b *testing.B) {
	s := NewSLOs([]config.SLO{
		{Name: "fast", Models: []string{"chat*"}, Objective: config.ObjectiveTTFT, Under: config.Duration(time.Second), Target: .9},
		{Name: "up", Objective: config.ObjectiveErrors, Target: .99},
	}, nil, NewSLOInstruments(nil))
	rec := &Record{Time: time.Now(), Operation: "chat", ModelAsked: "chat-1", Status: 200, Timing: Timing{TTFT: .4}}
	b.ReportAllocs()
	for b.Loop() {
		s.Observe(rec)
	}
}
