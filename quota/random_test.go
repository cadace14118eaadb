// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/quota"
)

// ofEachUnit are limits that let in 60 requests of 10 input and 5 output tokens.
func ofEachUnit() map[string]config.Limit {
	return map[string]config.Limit{
		"requests":    {Requests: 60, Per: "24h"},
		"input":       {Input: 600, Per: "24h", Window: config.WindowSliding},
		"output":      {Output: 300, Per: "year"},
		"tokens":      {Tokens: 900, Per: "24h"},
		"weighted":    {Weighted: 1500, Per: "month", Zone: "Europe/Berlin", Weights: &config.Weights{Input: 0.5, Cached: 1, CacheWrite: 1, Output: 4, Reasoning: 1}},
		"usd":         {USD: 0.6, Per: "24h"},
		"concurrency": {Concurrency: 60},
	}
}

func fifteen() quota.Amounts {
	return quota.Amounts{Requests: 1, Input: 10, Output: 5, Picodollars: 1e10}
}

// thousand asks 1,000 times at once, by turns at the gateways, and wants exactly
// 60 let in; then half of those end without having used anything, and 30 more are.
func thousand(t *testing.T, gateways []*quota.Limiter, tag string) {
	for unit, limit := range ofEachUnit() {
		t.Run(unit, func(t *testing.T) {
			root := fmt.Sprint(tag, unit)
			path := func() []*quota.Node { // each gateway compiles its own
				return []*quota.Node{quota.NewNode(root, nil), quota.NewNode(root+"/team", []config.Limit{limit}), quota.NewNode(root+"/team:key", []config.Limit{{Requests: 1 << 40, Per: "1m"}})}
			}
			rush := func() (in []*quota.Reservation) {
				var mu sync.Mutex
				var all sync.WaitGroup
				for i := range 1000 {
					all.Go(func() {
						r, a := &quota.Reservation{}, fifteen()
						f := gateways[i%len(gateways)].Reserve(context.Background(), r, path(), [2]string{"m", "m"}, &a)
						switch {
						case f == nil:
							mu.Lock()
							in = append(in, r)
							mu.Unlock()
						case f.Away || f.TooLarge:
							t.Errorf("refusal %+v", f)
						}
					})
				}
				all.Wait()
				return in
			}
			in := rush()
			if len(in) != 60 {
				t.Fatalf("%d were let in", len(in))
			}
			nothing := quota.Amounts{}
			for _, r := range in[:30] {
				r.Settle(&nothing)
			}
			more := rush()
			if len(more) != 30 {
				t.Fatalf("%d more were let in", len(more))
			}
			for _, r := range append(more, in[30:]...) {
				r.Settle(&nothing)
			}
			states, err := gateways[0].Usage(context.Background(), root, path())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range states {
				if s.Reserved != 0 || s.Used != 0 {
					t.Errorf("at the end %+v", s)
				}
			}
		})
	}
}

func TestThousandAtOnce(t *testing.T) {
	thousand(t, []*quota.Limiter{quota.NewLimiter(quota.Options{})}, "")
}

func TestThousandAtOnceRedis(t *testing.T) {
	addr := redistest.Start(t, false).Addr
	slow := func(c *config.Quota) { c.Redis.Timeout = config.Duration(20 * time.Second) } // a busy machine is no failure
	thousand(t, []*quota.Limiter{gateway(t, addr, slow)}, "one")
	thousand(t, []*quota.Limiter{gateway(t, addr, slow), gateway(t, addr, slow), gateway(t, addr, slow)}, "three")
}

// spent is a request as the oracle keeps it.
type spent struct {
	at     time.Time
	amount int64 // reserved, then used
}

// TestRandomSchedules compares every decision of random schedules with what the
// whole history says.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { schedule(t, seed) })
		})
	}
}

func schedule(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	length := time.Duration(1+rng.IntN(5)) * time.Minute
	amount := int64(10 + rng.IntN(1000))
	limits := map[string]config.Limit{
		"bucket":   {Tokens: int(amount), Per: length.String()},
		"sliding":  {Tokens: int(amount), Per: length.String(), Window: config.WindowSliding},
		"calendar": {Tokens: int(amount), Per: "minute"},
	}
	for kind, limit := range limits {
		l := quota.NewLimiter(quota.Options{})
		path := []*quota.Node{quota.NewNode("n", []config.Limit{limit})}
		var history []*spent
		level, at := 0.0, time.Now() // of the bucket
		type open struct {
			r *quota.Reservation
			s *spent
		}
		var opens []open
		for range 1000 {
			if rng.IntN(3) > 0 {
				time.Sleep(time.Duration(rng.Int64N(int64(length) / 20)))
			}
			now := time.Now()
			level = max(0, level-now.Sub(at).Seconds()*float64(amount)/length.Seconds())
			at = now
			if len(opens) > 0 && rng.IntN(2) == 0 { // one ends
				i := rng.IntN(len(opens))
				o := opens[i]
				opens[i] = opens[len(opens)-1]
				opens = opens[:len(opens)-1]
				used := rng.Int64N(2*o.s.amount + 1) // or was more than reserved
				o.r.Settle(&quota.Amounts{Input: used})
				level = max(0, level+float64(used-o.s.amount))
				o.s.amount = used
				continue
			}
			n := 1 + rng.Int64N(amount/2)
			within, wider := int64(0), int64(0) // what counts, and what may count still
			for _, s := range history {
				switch {
				case kind == "sliding" && now.Sub(s.at) < length:
					within += s.amount
					wider += s.amount
				case kind == "sliding" && now.Sub(s.at) <= length+length/60+time.Nanosecond*60:
					wider += s.amount
				case kind == "calendar" && s.at.Truncate(time.Minute).Equal(now.Truncate(time.Minute)):
					within += s.amount
					wider += s.amount
				}
			}
			r, a := &quota.Reservation{}, quota.Amounts{Input: n}
			f := l.Reserve(context.Background(), r, path, [2]string{"m", "m"}, &a)
			var mustRefuse, mustAdmit bool
			if kind == "bucket" {
				mustRefuse, mustAdmit = level+float64(n) > float64(amount)+1, level+float64(n) < float64(amount)-1 // whole tokens flow off
			} else {
				mustRefuse, mustAdmit = within+n > amount, wider+n <= amount
			}
			if f == nil && mustRefuse || f != nil && mustAdmit {
				t.Fatalf("%s of %d per %v: %d with %v/%d/%d in use: refusal %+v", kind, amount, length, n, level, within, wider, f)
			}
			if f == nil {
				s := &spent{now, n}
				history, opens = append(history, s), append(opens, open{r, s})
				level += float64(n)
				continue
			}
			if f.Wait <= 0 || f.Wait > 100*length {
				t.Fatalf("%s: wait %v", kind, f.Wait)
			}
			if rng.IntN(10) == 0 { // whoever waits as long as he is told gets in
				time.Sleep(f.Wait)
				level, at = max(0, level-f.Wait.Seconds()*float64(amount)/length.Seconds()), time.Now()
				if f = l.Reserve(context.Background(), r, path, [2]string{"m", "m"}, &a); f != nil {
					t.Fatalf("%s of %d per %v: after the wait still %+v", kind, amount, length, f)
				}
				s := &spent{time.Now(), n}
				history, opens = append(history, s), append(opens, open{r, s})
				level += float64(n)
			}
		}
		for _, o := range opens {
			o.r.Settle(&quota.Amounts{})
		}
		if states, _ := l.Usage(context.Background(), "n", path); states[0].Reserved != 0 {
			t.Fatalf("%s: %+v is left", kind, states[0])
		}
	}
}

// TestStoreKilledAndBack: three gateways work while Redis is killed and returns,
// and one of them dies. Limits fail closed. In the end nothing is reserved (B55),
// and what is in use is to the token what was used.
func TestStoreKilledAndBack(t *testing.T) {
	server := redistest.Start(t, true)
	quick := func(c *config.Quota) {
		c.Lease = config.Duration(time.Second)
		c.Redis.Timeout = config.Duration(10 * time.Second) // a busy machine is no failure; a dead server is told at once
	}
	path := []*quota.Node{
		quota.NewNode("acme", []config.Limit{{Tokens: 1_000_000, Per: "year"}, {Concurrency: 40}}),
		quota.NewNode("acme:key", []config.Limit{{Requests: 1_000_000, Per: "year"}}),
	}
	var used, requests, away atomic.Int64
	var died, ended atomic.Bool
	work := func(l *quota.Limiter, seed uint64, over *atomic.Bool) {
		rng := rand.New(rand.NewPCG(seed, 2))
		for !over.Load() {
			r, a := &quota.Reservation{}, tokens(rng.Int64N(100), 50)
			ctx, cancel := context.WithCancel(context.Background())
			if rng.IntN(5) == 0 { // the client leaves, perhaps while the store is asked
				time.AfterFunc(time.Duration(rng.Int64N(int64(time.Millisecond))), cancel)
			}
			f := l.Reserve(ctx, r, path, [2]string{"m", "m"}, &a)
			cancel()
			if f != nil {
				if f.Away {
					away.Add(1)
				}
				time.Sleep(time.Millisecond)
				continue
			}
			time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			if over == &died && died.Load() {
				return // with what it holds
			}
			b := quota.Amounts{Requests: 1, Input: rng.Int64N(200)}
			r.Settle(&b)
			used.Add(b.Input)
			requests.Add(1)
		}
	}
	var all, dead sync.WaitGroup
	limiters := []*quota.Limiter{gateway(t, server.Addr, quick), gateway(t, server.Addr, quick), gateway(t, server.Addr, quick)}
	for i := range 30 {
		if i%3 == 2 {
			dead.Go(func() { work(limiters[2], uint64(i), &died) })
		} else {
			all.Go(func() { work(limiters[i%3], uint64(i), &ended) })
		}
	}
	enter(t, limiters[2], path, tokens(500, 500), true) // is never settled
	grows := func(n *atomic.Int64, by int64) {
		t.Helper()
		want := n.Load() + by
		for deadline := time.Now().Add(time.Minute); n.Load() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				ended.Store(true)
				died.Store(true)
				t.Fatalf("%d requests, %d while the store was away: it goes on no further", requests.Load(), away.Load())
			}
		}
	}
	for range 2 {
		grows(&requests, 100)
		server.Kill()
		grows(&away, 100)
		server.Run()
	}
	grows(&requests, 100)
	died.Store(true)
	dead.Wait()
	limiters[2].Die()
	grows(&requests, 100)
	ended.Store(true)
	all.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		states, err := limiters[0].Usage(context.Background(), "acme", path)
		if err == nil && states[0].Reserved == 0 && states[1].Used == 0 && states[2].Reserved == 0 &&
			states[0].Used == used.Load() && states[2].Used == requests.Load() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v; %d tokens and %d requests were used", states, err, used.Load(), requests.Load())
		}
	}
}

// TestFailOpen: while the store is away each of two gateways lets its half in and
// no more; when it is back, all of it is in use, once.
func TestFailOpen(t *testing.T) {
	server := redistest.Start(t, true)
	path := []*quota.Node{quota.NewNode("acme", []config.Limit{{Requests: 100, Per: "year", OnStoreFailure: config.LimitFailOpen, Share: 0.5}})}
	patient := func(c *config.Quota) { c.Redis.Timeout = config.Duration(10 * time.Second) } // a dead server is told at once
	limiters := []*quota.Limiter{gateway(t, server.Addr, patient), gateway(t, server.Addr, patient)}
	before, _ := enter(t, limiters[0], path, quota.Amounts{Requests: 1}, true)
	server.Kill()
	var in []*quota.Reservation
	for i := range 400 {
		r, a := &quota.Reservation{}, quota.Amounts{Requests: 1}
		if f := limiters[i%2].Reserve(context.Background(), r, path, [2]string{"m", "m"}, &a); f == nil {
			in = append(in, r)
		}
	}
	if len(in) != 100 {
		t.Errorf("%d were let in on two halves of 100", len(in))
	}
	one := quota.Amounts{Requests: 1}
	for _, r := range append(in[:40:40], before) {
		r.Settle(&one)
	}
	server.Run()
	want := func(n int64) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			states, err := limiters[0].Usage(context.Background(), "acme", path)
			if err == nil && states[0].Used == n && states[0].Reserved == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v, %v; not %d", states, err, n)
			}
		}
	}
	want(41)
	for _, r := range in[40:] { // they end after the store is back
		r.Settle(&one)
	}
	want(101)
	enter(t, limiters[1], path, quota.Amounts{Requests: 1}, false)
}
