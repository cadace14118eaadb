// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/quota"
)

// fourNodes are an organisation, a team, a project and a key, with a limit of each
// kind between them.
func fourNodes() []*quota.Node {
	most := 1_000_000_000_000
	return []*quota.Node{
		quota.NewNode("acme", []config.Limit{{USD: 9_000_000, Per: "month"}, {Concurrency: 1_000_000}}),
		quota.NewNode("acme/search", []config.Limit{{Tokens: most, Per: "1m"}}),
		quota.NewNode("acme/search/web", []config.Limit{{Requests: most, Per: "1m", Window: config.WindowSliding}}),
		quota.NewNode("acme/search/web:ci", []config.Limit{{Tokens: most, Per: "1m", Models: []string{"gpt-*", "claude-*"}}, {Requests: most, Per: "1m"}}),
	}
}

func reserveAndSettle(l *quota.Limiter, r *quota.Reservation, path []*quota.Node) bool {
	a := quota.Amounts{Requests: 1, Input: 32_000, Output: 8_000, Picodollars: 1_000_000}
	if f := l.Reserve(context.Background(), r, path, [2]string{"gpt-5", "gpt-5"}, &a); f != nil {
		return false
	}
	a.Output = 500
	r.Settle(&a)
	return true
}

func BenchmarkReserveSettle(b *testing.B) {
	l, path, r := quota.NewLimiter(quota.Options{}), fourNodes(), &quota.Reservation{}
	b.ReportAllocs()
	for b.Loop() {
		if !reserveAndSettle(l, r, path) {
			b.Fatal("refused")
		}
	}
}

// BenchmarkReserveSettle64 is 64 goroutines on one key.
func BenchmarkReserveSettle64(b *testing.B) {
	l, path := quota.NewLimiter(quota.Options{}), fourNodes()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for range 64 {
		all.Go(func() {
			r := &quota.Reservation{}
			for left.Add(-1) >= 0 {
				reserveAndSettle(l, r, path)
			}
		})
	}
	all.Wait()
}

func BenchmarkReserveSettleRedis(b *testing.B) {
	l, path, r := gateway(b, redistest.Start(b, false).Addr), fourNodes(), &quota.Reservation{}
	b.ReportAllocs()
	for b.Loop() {
		if !reserveAndSettle(l, r, path) {
			b.Fatal("refused")
		}
	}
}

func TestAllocations(t *testing.T) {
	l, path, r := quota.NewLimiter(quota.Options{}), fourNodes(), &quota.Reservation{}
	if n := testing.AllocsPerRun(100, func() { reserveAndSettle(l, r, path) }); n > 1 {
		t.Errorf("%v allocations for a reservation and its settlement, at most 1", n)
	}
}
