// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/quota"
)

// everyKind is a path with a limit of each kind of window.
func everyKind() []*quota.Node {
	return []*quota.Node{
		quota.NewNode("acme", []config.Limit{{Concurrency: 3}, {Tokens: 1000, Per: "year"}}),
		quota.NewNode("acme:key", []config.Limit{{Tokens: 1000, Per: "24h", Window: config.WindowSliding}, {Tokens: 1000, Per: "240h"}}),
	}
}

// await waits until so much of each limit of path is in use, and reserved.
func await(t *testing.T, l *quota.Limiter, path []*quota.Node, used, reserved [4]int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		states, err := l.Usage(context.Background(), "acme", path)
		right := err == nil
		for i := range states {
			right = right && states[i].Used == used[i] && states[i].Reserved == reserved[i]
		}
		if right {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v; not %v with %v reserved", states, err, used, reserved)
		}
	}
}

// TestStoreLosesEverything: a Redis that comes back empty, or is emptied while it
// runs, gets the reservations again that are open; limits admit no more than what
// is left then, and what ends is settled as ever.
func TestStoreLosesEverything(t *testing.T) {
	for name, lose := range map[string]func(*redistest.Server){
		"restart": func(s *redistest.Server) { s.Kill(); s.Run() },
		"flush":   func(s *redistest.Server) { s.Do("FLUSHALL") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, false)
			quick := func(c *config.Quota) { c.Lease = config.Duration(2 * time.Second) }
			a, b, path := gateway(t, server.Addr, quick), gateway(t, server.Addr, quick), everyKind()
			first, _ := enter(t, a, path, tokens(100, 300), true)
			second, _ := enter(t, b, path, tokens(200, 100), true)
			done, _ := enter(t, b, path, tokens(200, 50), true)
			done.Settle(&quota.Amounts{Requests: 1, Input: 10})
			lose(server)
			await(t, a, path, [4]int64{2, 700, 700, 700}, [4]int64{2, 700, 700, 700}) // what was used is forgotten
			third, _ := enter(t, b, path, tokens(100, 0), true)
			enter(t, a, path, tokens(1, 0), false) // a fourth at a time
			third.Settle(&quota.Amounts{})
			enter(t, a, path, tokens(301, 0), false)
			first.Settle(&quota.Amounts{Requests: 1, Input: 7})
			second.Settle(&quota.Amounts{Requests: 1, Input: 5})
			await(t, b, path, [4]int64{0, 12, 12, 12}, [4]int64{})
		})
	}
}

// TestLossIsSeenBySettling: the first request that ends after a loss makes its
// gateway look at once, long before leases are due.
func TestLossIsSeenBySettling(t *testing.T) {
	server := redistest.Start(t, false)
	l, path := gateway(t, server.Addr, func(c *config.Quota) { c.Lease = config.Duration(time.Hour) }), everyKind()
	first, _ := enter(t, l, path, tokens(100, 0), true)
	second, _ := enter(t, l, path, tokens(200, 0), true)
	server.Do("FLUSHALL")
	first.Settle(&quota.Amounts{Requests: 1, Input: 50})
	await(t, l, path, [4]int64{1, 250, 250, 250}, [4]int64{1, 200, 200, 200})
	second.Settle(&quota.Amounts{Requests: 1, Input: 1})
	await(t, l, path, [4]int64{0, 51, 51, 51}, [4]int64{})
}

// TestFlushedAtWork: requests come and go while the store is emptied again and
// again. Nothing stays reserved, long before leases end.
func TestFlushedAtWork(t *testing.T) {
	server := redistest.Start(t, false)
	quick := func(c *config.Quota) { c.Lease = config.Duration(time.Hour) }
	limiters := []*quota.Limiter{gateway(t, server.Addr, quick), gateway(t, server.Addr, quick)}
	path := []*quota.Node{quota.NewNode("acme", []config.Limit{{Concurrency: 100}, {Tokens: 1 << 40, Per: "year"}, {Requests: 1 << 40, Per: "24h", Window: config.WindowSliding}, {Requests: 1 << 40, Per: "year"}})}
	var over atomic.Bool
	var served atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for !over.Load() {
				r, a := &quota.Reservation{}, tokens(rng.Int64N(100), 50)
				if f := limiters[i%2].Reserve(context.Background(), r, path, [2]string{"m", "m"}, &a); f != nil {
					t.Errorf("%+v", f)
					return
				}
				time.Sleep(time.Duration(rng.Int64N(int64(5 * time.Millisecond))))
				r.Settle(&quota.Amounts{Requests: 1, Input: rng.Int64N(200)})
				served.Add(1)
			}
		})
	}
	for i := range int64(20) {
		for served.Load() < 100*(i+1) && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		server.Do("FLUSHALL")
	}
	over.Store(true)
	all.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		states, err := limiters[0].Usage(context.Background(), "acme", path)
		if err == nil && states[0].Used == 0 && states[1].Reserved == 0 && states[2].Reserved == 0 && states[3].Reserved == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", states, err)
		}
	}
}

// meddled is a store before which something happens when a reservation is taken
// again.
type meddled struct {
	quota.Store
	before func()
}

func (m *meddled) Reserve(ctx context.Context, r *quota.Reservation) (*quota.Refusal, error) {
	if quota.Retakes(r) {
		m.before()
	}
	return m.Store.Reserve(ctx, r)
}

// TestRetakeTooLate: a request that ends while it is taken again leaves nothing
// reserved.
func TestRetakeTooLate(t *testing.T) {
	server := redistest.Start(t, false)
	cfg := config.Quota{
		Store: config.QuotaRedis, Lease: config.Duration(time.Hour),
		Redis: &config.Redis{Addresses: []string{server.Addr}, Prefix: "test", Timeout: config.Duration(10 * time.Second), Retry: config.Duration(20 * time.Millisecond)},
	}
	store, err := quota.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var one quota.Reservation
	taken := make(chan bool)
	var once sync.Once
	l, path := quota.NewLimiter(quota.Options{}), everyKind()
	t.Cleanup(l.Close)
	l.Use(&meddled{store, func() {
		once.Do(func() {
			one.Settle(&quota.Amounts{Requests: 1, Input: 9})
			close(taken)
		})
	}}, cfg)
	may := tokens(100, 0)
	if f := l.Reserve(context.Background(), &one, path, [2]string{"m", "m"}, &may); f != nil {
		t.Fatalf("%+v", f)
	}
	other, _ := enter(t, l, path, may, true)
	server.Do("FLUSHALL")
	other.Settle(&quota.Amounts{Requests: 1, Input: 1}) // it finds out
	select {
	case <-taken:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was taken again")
	}
	await(t, l, path, [4]int64{0, 10, 10, 10}, [4]int64{})
}
