// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// clock is virtual time.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time        { return c.t }
func (c *clock) pass(d time.Duration)  { c.t = c.t.Add(d) }
func (c *clock) options() pool.Options { return pool.Options{Now: c.now} }
func times(n int, f func(pool.Outcome)) func(pool.Outcome) {
	return func(o pool.Outcome) {
		for range n {
			f(o)
		}
	}
}

func wantState(t *testing.T, m *pool.Member, want pool.State) {
	t.Helper()
	if got := m.State(); got != want {
		t.Fatalf("state is %s, want %s", got, want)
	}
	if got := m.Available(); got != (want == pool.Ready || want == pool.Returning) {
		t.Fatalf("%s, available %v", want, got)
	}
}

func TestRefusedEjectsAtOnceAndReturnsSlowly(t *testing.T) {
	c := newClock()
	m := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80").Lookup("10.0.0.1:80")
	m.Report(pool.Refused)
	wantState(t, m, pool.Ejected)
	c.pass(2*time.Second - 1)
	wantState(t, m, pool.Ejected)
	c.pass(1)
	wantState(t, m, pool.Returning)
	for _, want := range []float64{0.1, 0.325, 0.55, 0.775} {
		if got := m.Share(); math.Abs(got-want) > 1e-9 {
			t.Fatalf("share is %v, want %v", got, want)
		}
		c.pass(2500 * time.Millisecond)
	}
	wantState(t, m, pool.Ready)
	if m.Share() != 1 {
		t.Errorf("share is %v when ready", m.Share())
	}
}

func TestTimeOutDoublesUntilTheMemberHasReturned(t *testing.T) {
	c := newClock()
	m := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80").Lookup("10.0.0.1:80")
	refusedFor := func() (d time.Duration) {
		times(50, m.Report)(pool.Refused) // a burst is one ejection
		for ; m.State() == pool.Ejected; d += time.Second {
			c.pass(time.Second)
		}
		return d
	}
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		if got := refusedFor(); got != want*time.Second {
			t.Fatalf("out for %v, want %v", got, want*time.Second)
		}
	}
	c.pass(10 * time.Second)
	wantState(t, m, pool.Ready)
	if got := refusedFor(); got != 2*time.Second {
		t.Errorf("out for %v after a full return, want 2s", got)
	}
}

func TestConsecutiveFailuresEject(t *testing.T) {
	for _, o := range []pool.Outcome{pool.Reset, pool.ServerError, pool.TimedOut} {
		t.Run(o.String(), func(t *testing.T) {
			c := newClock()
			m := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80", "10.0.0.2:80").Lookup("10.0.0.1:80")
			m.Report(o)
			m.Report(o)
			m.Report(pool.OK)
			m.Report(o)
			m.Report(o)
			wantState(t, m, pool.Ready)
			m.Report(o)
			wantState(t, m, pool.Ejected)
			c.pass(2 * time.Second)
			wantState(t, m, pool.Returning)
			m.Report(o) // on trial
			wantState(t, m, pool.Ejected)
			c.pass(4 * time.Second)
			wantState(t, m, pool.Returning)
			m.Report(pool.OK)
			m.Report(o)
			wantState(t, m, pool.Returning)
		})
	}
}

// sglang#25811: client errors opened the circuit breaker for every worker.
// The caller reports 4xx as OK; any number of them ejects nobody.
func TestSGLang25811ClientErrorsNeverEject(t *testing.T) {
	m := newPool(t, config.Pool{}, pool.Options{}, "10.0.0.1:80").Lookup("10.0.0.1:80")
	times(1000, m.Report)(pool.OK)
	wantState(t, m, pool.Ready)
}

func TestMaxPercentBoundsEjectionShortOfRefused(t *testing.T) {
	c := newClock()
	p := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
	all := p.Snapshot().Members
	for _, m := range all {
		times(10, m.Report)(pool.ServerError)
	}
	if got := available(p); got != 2 {
		t.Errorf("%d available, want half of four", got)
	}
	for _, m := range all {
		m.Report(pool.Refused)
	}
	if got := available(p); got != 0 {
		t.Errorf("%d available though every member refuses", got)
	}
	c.pass(2 * time.Second) // then each gets a trial
	if got := available(p); got != 4 {
		t.Errorf("%d available after the time out", got)
	}
}

func TestSingleMemberIsNotEjectedByItsAnswers(t *testing.T) {
	p := newPool(t, config.Pool{}, pool.Options{}, "10.0.0.1:80")
	times(10, p.Lookup("10.0.0.1:80").Report)(pool.ServerError)
	wantState(t, p.Lookup("10.0.0.1:80"), pool.Ready)
}

func available(p *pool.Pool) (n int) {
	for _, m := range p.Snapshot().Members {
		if m.Available() {
			n++
		}
	}
	return n
}

// Scheduling fact 4 (a dead endpoint kept its share of traffic for as long as
// discovery listed it) and AMD-AGI/Infera#82 (failure memory per request).
func TestInfera82FailureIsRememberedAcrossRequests(t *testing.T) {
	p := newPool(t, config.Pool{}, newClock().options(), "10.0.0.1:80", "10.0.0.2:80")
	before := p.Snapshot()
	before.Members[0].Report(pool.Refused)
	for _, m := range p.Snapshot().Members {
		if m.Available() != (m.Address() == "10.0.0.2:80") {
			t.Errorf("%s is %s", m.Address(), m.State())
		}
	}
	if p.Snapshot().Version == before.Version {
		t.Error("the version did not move with the ejection")
	}
}

// The version of the snapshot follows states that change by time alone.
func TestVersionMovesWhenAMemberReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, config.Pool{Metrics: config.Metrics{Off: true}}, pool.Options{}, "10.0.0.1:80")
		p.Start(t.Context())
		synctest.Wait()
		m := p.Snapshot().Members[0]
		versions := []uint64{p.Snapshot().Version}
		see := func() {
			synctest.Wait()
			versions = append(versions, p.Snapshot().Version)
		}
		m.Report(pool.Refused)
		see()
		time.Sleep(2 * time.Second)
		see() // returning
		time.Sleep(10 * time.Second)
		see() // ready
		for i, v := range versions {
			if v != versions[0]+uint64(i) {
				t.Fatalf("versions %v, want one more at each change", versions)
			}
		}
		p.Close()
	})
}

// A server that was refused and then accepted is another process.
func TestRefusedThenAcceptedIsANewEpoch(t *testing.T) {
	c := newClock()
	m := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80").Lookup("10.0.0.1:80")
	m.SetMetrics(&pool.Metrics{Has: pool.HasPrefix, PrefixQueries: 500, PrefixHits: 100})
	m.Report(pool.OK)
	m.Report(pool.Refused)
	m.Report(pool.OK) // a stream from before ends well while the server drains
	if m.Epoch() != 0 {
		t.Fatal("an old stream's end counts as a restart")
	}
	c.pass(2 * time.Second)
	m.Report(pool.OK)
	if m.Epoch() != 1 {
		t.Fatalf("epoch is %d, want 1", m.Epoch())
	}
	// Its counters begin anew: the same restart, not a second one.
	m.SetMetrics(&pool.Metrics{Has: pool.HasPrefix, PrefixQueries: 5, PrefixHits: 1})
	if m.Epoch() != 1 {
		t.Errorf("epoch is %d after the first page of the new process, want 1", m.Epoch())
	}
}

// llm-d-router#2853: a restarted engine kept its old blocks in the index.
func TestRouter2853CounterRunningBackwardsIsANewEpoch(t *testing.T) {
	m := newPool(t, config.Pool{}, pool.Options{}, "10.0.0.1:80").Lookup("10.0.0.1:80")
	for i, step := range []struct {
		has           pool.Signals
		queries, hits float64
		epoch         uint64
	}{
		{pool.HasPrefix, 100, 50, 0},
		{pool.HasPrefix, 100, 50, 0},
		{pool.HasPrefix, 200, 90, 0},
		{pool.HasWaiting, 0, 0, 0}, // missing is not zero
		{pool.HasPrefix, 30, 0, 1},
		{pool.HasPrefix, 40, 0, 1},
		{pool.HasPrefix, 0, 0, 2},
	} {
		m.SetMetrics(&pool.Metrics{Has: step.has, PrefixQueries: step.queries, PrefixHits: step.hits})
		if m.Epoch() != step.epoch {
			t.Fatalf("step %d: epoch is %d, want %d", i, m.Epoch(), step.epoch)
		}
	}
}

func TestUnknownStaleAndMissingAreThreeStates(t *testing.T) {
	c := newClock()
	m := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80").Lookup("10.0.0.1:80")
	if m.Metrics() != nil || m.Stale() {
		t.Error("a member never scraped is unknown, which is neither known nor stale")
	}
	m.SetMetrics(&pool.Metrics{At: c.now(), Has: pool.HasRunning})
	if m.Metrics().Has&pool.HasWaiting != 0 || m.Stale() {
		t.Error("a fresh page without a signal is not stale, the signal is missing")
	}
	c.pass(2 * time.Second)
	if m.Stale() {
		t.Error("stale at the bound")
	}
	c.pass(1)
	if !m.Stale() || m.Metrics() == nil {
		t.Error("not stale past the bound, or the page is gone")
	}
}

func BenchmarkReportOK(b *testing.B) {
	m := newPool(b, config.Pool{}, pool.Options{}, "10.0.0.1:80").Lookup("10.0.0.1:80")
	b.ReportAllocs()
	for b.Loop() {
		m.Report(pool.OK)
	}
}

// llm-d-router#926: one line in the log, however many pages and members; and
// one more when the signal has been back in between.
func TestRouter926MissingSignalIsLoggedOnce(t *testing.T) {
	log := &logText{}
	p := newPool(t, config.Pool{}, pool.Options{Log: log.logger()}, "10.0.0.1:80", "10.0.0.2:80")
	show := func(has pool.Signals) {
		for _, m := range p.Snapshot().Members {
			m.SetMetrics(&pool.Metrics{Has: has})
		}
	}
	all := pool.HasWaiting | pool.HasKVUsage
	show(all)
	for range 5 {
		show(pool.HasWaiting)
	}
	if n := log.count("lacks a signal"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	p.SetMembers(nil) // whoever lacked it is gone
	p.SetMembers(members("10.0.0.3:80"))
	show(all)
	show(pool.HasWaiting)
	if n := log.count("lacks a signal"); n != 2 {
		t.Errorf("%d lines after the second loss, want 2", n)
	}
}
