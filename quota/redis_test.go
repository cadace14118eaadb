// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/quota"
)

// gateway is a limiter over a Redis, as one gateway has it.
func gateway(t testing.TB, addr string, edit ...func(*config.Quota)) *quota.Limiter {
	t.Helper()
	cfg := config.Quota{
		Store: config.QuotaRedis, Lease: config.Duration(30 * time.Second),
		Redis: &config.Redis{Addresses: []string{addr}, Prefix: "test", Timeout: config.Duration(10 * time.Second), Retry: config.Duration(20 * time.Millisecond)},
	}
	for _, f := range edit {
		f(&cfg)
	}
	store, err := quota.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := quota.NewLimiter(quota.Options{})
	l.Use(store, cfg)
	t.Cleanup(l.Close)
	return l
}

func TestWorkedExampleRedis(t *testing.T) {
	t.Parallel()
	example(t, gateway(t, redistest.Start(t, false).Addr), "acme", func(d time.Duration) { time.Sleep(d) })
}

// TestEveryWindowRedis: each kind of limit counts, refuses and gives back.
func TestEveryWindowRedis(t *testing.T) {
	l := gateway(t, redistest.Start(t, false).Addr)
	everyWindow(t, l)
}

// TestEveryWindow: likewise in memory; a limit counts its own unit (B54).
func TestEveryWindow(t *testing.T) {
	everyWindow(t, quota.NewLimiter(quota.Options{}))
}

func everyWindow(t *testing.T, l *quota.Limiter) {
	for name, limit := range map[string]config.Limit{
		"bucket":   {Tokens: 100, Per: "24h"},
		"sliding":  {Tokens: 100, Per: "24h", Window: config.WindowSliding},
		"calendar": {Tokens: 100, Per: "year", Zone: "Europe/Berlin"},
		"money":    {USD: 100e-9, Per: "24h"},
		"weighted": {Weighted: 100, Per: "24h", Weights: &config.Weights{Input: 1, Output: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			path := []*quota.Node{quota.NewNode("a"+name, nil), quota.NewNode("a"+name+"/b", []config.Limit{limit})}
			ask := func(n int64, want bool) *quota.Reservation {
				t.Helper()
				r, f := enter(t, l, path, quota.Amounts{Requests: 1, Input: n, Picodollars: n * 1000}, want)
				if !want && (f.Wait <= 0 || f.TooLarge) {
					t.Errorf("refusal %+v", f)
				}
				return r
			}
			used := func(want, reserved int64) {
				t.Helper()
				states, err := l.Usage(context.Background(), "a"+name, path)
				if err != nil || len(states) != 1 || states[0].Used != want || states[0].Reserved != reserved {
					t.Errorf("usage %+v, %v; not %d with %d reserved", states, err, want, reserved)
				}
			}
			settle := func(r *quota.Reservation, n int64) {
				r.Settle(&quota.Amounts{Requests: 1, Input: n, Picodollars: n * 1000})
				r.Settle(&quota.Amounts{Requests: 1, Input: 1_000_000}) // counts once
			}
			a, b := ask(60, true), ask(40, true)
			used(100, 100)
			ask(1, false)
			settle(a, 10)
			used(50, 40)
			c := ask(50, true)
			settle(b, 90) // more than was reserved: a debt
			used(150, 50)
			ask(1, false)
			settle(c, 0)
			used(100, 0)
			if _, f := enter(t, l, path, quota.Amounts{Input: 101, Picodollars: 101_000}, false); !f.TooLarge {
				t.Errorf("more than the limit: %+v", f)
			}
		})
	}
	t.Run("concurrency", func(t *testing.T) {
		path := []*quota.Node{quota.NewNode("conc", []config.Limit{{Concurrency: 2}})}
		a, _ := enter(t, l, path, tokens(1, 1), true)
		enter(t, l, path, tokens(1, 1), true)
		enter(t, l, path, tokens(1, 1), false)
		a.Settle(&quota.Amounts{Requests: 1})
		enter(t, l, path, tokens(1, 1), true)
	})
	t.Run("all or none", func(t *testing.T) {
		path := []*quota.Node{quota.NewNode("aon", []config.Limit{{Requests: 100, Per: "24h"}}), quota.NewNode("aon:k", []config.Limit{{Tokens: 10, Per: "24h"}, {Requests: 1, Per: "24h", Mode: config.LimitShadow}})}
		enter(t, l, path, tokens(5, 5), true)
		enter(t, l, path, tokens(1, 0), false)
		states, err := l.Usage(context.Background(), "aon", path)
		if err != nil || states[0].Used != 1 {
			t.Errorf("%+v, %v", states, err)
		}
		r, _ := enter(t, l, path, quota.Amounts{Requests: 1}, true)
		shadows := 0
		r.Warnings(func(quota.State) {}, func(quota.State) { shadows++ })
		if shadows != 1 {
			t.Error("the limit in shadow mode said nothing")
		}
	})
	t.Run("debt", func(t *testing.T) {
		path := []*quota.Node{quota.NewNode("debt", []config.Limit{{Tokens: 100, Per: "24h", Oversize: config.OversizeDebt}})}
		r, _ := enter(t, l, path, tokens(1000, 0), true)
		_, f := enter(t, l, path, tokens(50, 0), false)
		if h := f.Wait.Hours(); h < 227.9 || h > 228.1 {
			t.Errorf("wait %v", f.Wait)
		}
		r.Settle(&quota.Amounts{})
	})
}
