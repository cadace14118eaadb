// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
)

func one(t *testing.T, c config.Limit) *Limit {
	t.Helper()
	return NewNode("n", []config.Limit{c}).Limits()[0]
}

// TestPeriods: periods of the calendar begin where the zone has them, also where
// days have 23 or 25 hours and hours begin at half past.
func TestPeriods(t *testing.T) {
	for _, c := range []struct{ word, zone, at, start, end string }{
		{"minute", "", "2026-11-30T23:59:59Z", "2026-11-30T23:59:00Z", "2026-12-01T00:00:00Z"},
		{"hour", "Asia/Kolkata", "2026-11-30T10:10:00Z", "2026-11-30T09:30:00Z", "2026-11-30T10:30:00Z"},
		{"day", "Europe/Berlin", "2026-11-30T23:30:00Z", "2026-11-30T23:00:00Z", "2026-12-01T23:00:00Z"},
		{"day", "Europe/Berlin", "2026-03-29T10:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"day", "Europe/Berlin", "2026-10-25T10:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25
		{"week", "", "2026-11-29T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},             // a Sunday
		{"week", "", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"},
		{"month", "America/New_York", "2026-12-01T04:00:00Z", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"},
		{"year", "", "2026-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		l := one(t, config.Limit{Requests: 1, Per: c.word, Zone: c.zone})
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		p := l.periodAt(at)
		start, end := time.Unix(p.start, 0).UTC().Format(time.RFC3339), time.Unix(p.end, 0).UTC().Format(time.RFC3339)
		if start != c.start || end != c.end || p.previous >= p.start || p.next <= p.end {
			t.Errorf("%s in %s at %s: from %s to %s, not %s to %s (%+v)", c.word, c.zone, c.at, start, end, c.start, c.end, p)
		}
	}
}

// TestClocksThatJump: a clock that is set back gives no budget anew, and one that
// was ahead does not keep it from ending.
func TestClocksThatJump(t *testing.T) {
	l := one(t, config.Limit{Requests: 10, Per: "day"})
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	c := &counter{}
	at := func(wall time.Time) *counter {
		c.roll(l, l.amount, instant{mono: 1, wall: wall})
		return c
	}
	at(noon).add(l, 8)
	if at(noon.AddDate(0, 0, -1)); c.used != 8 {
		t.Errorf("a day back: %d in use", c.used)
	}
	if at(noon); c.used != 0 { // it is a new day, as far as the clock can tell
		t.Errorf("and forth: %d in use", c.used)
	}
	at(noon.AddDate(1, 0, 0)).add(l, 5)
	if at(noon); c.used != 5 {
		t.Errorf("after a year ahead: %d in use", c.used)
	}
	if at(noon.AddDate(0, 0, 1)); c.used != 0 {
		t.Errorf("the day after: %d in use", c.used)
	}
	b := one(t, config.Limit{Requests: 10, Per: "1m"})
	d := &counter{at: 1000}
	d.add(b, 8)
	d.roll(b, b.amount, instant{mono: 500})
	if d.used != 8 || d.at != 1000 {
		t.Errorf("%+v", d)
	}
	d.roll(b, b.amount, instant{mono: math.MaxInt64})
	if d.used != 0 {
		t.Errorf("after 292 years: %+v", d)
	}
}

// TestAbsurdAmounts: whatever a provider claims, no amount is negative or wraps.
func TestAbsurdAmounts(t *testing.T) {
	all := []config.Limit{
		{Requests: 1, Per: "1m"}, {Input: 1, Per: "1m"}, {Output: 1, Per: "1m"}, {Tokens: 1, Per: "1m"}, {USD: 1, Per: "1m"}, {Concurrency: 1},
		{Weighted: 1, Per: "1m", Weights: &config.Weights{Input: 1000, Cached: 0.001, CacheWrite: 1000, Output: 1000, Reasoning: 1000}},
	}
	values := []int64{math.MinInt64, -1, 0, 1, most, math.MaxInt64}
	for i := range all {
		l := one(t, all[i])
		for _, in := range values {
			for _, out := range values {
				a := Amounts{Requests: in, Input: in, Cached: out, CacheWrite: in, Output: out, Reasoning: in, Picodollars: out}
				n := l.of(&a)
				if n < 0 || n > most {
					t.Fatalf("%s of %+v: %d", l, a, n)
				}
				c := &counter{used: most, reserved: 5, slots: make([]int64, slots+1)}
				c.settle(l, 5, n, 0)
				if c.used < 0 || c.used > most || c.reserved < 0 {
					t.Fatalf("%s: %+v", l, c)
				}
			}
		}
	}
	l := one(t, config.Limit{USD: 1, Per: "1m"})
	for n, want := range map[int64]int64{499: 0, 500: 1, 1499: 1, 1500: 2, math.MaxInt64: math.MaxInt64/pico + 1} {
		if got := l.of(&Amounts{Picodollars: n}); got != min(want, most) {
			t.Errorf("%d picodollars are %d, not %d", n, got, want)
		}
	}
}
