// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// Members come and go, fail and are reconfigured while requests charge them:
// afterwards every load is zero, and all along a snapshot agrees with itself.
func TestChurnUnderLoad(t *testing.T) {
	const n = 6
	var addrs []string
	for i := range n {
		e := newEngine(t, nil, (*httptest.Server).Start)
		e.vllm(i, 1)
		addrs = append(addrs, e.address())
	}
	reg := prometheus.NewPedanticRegistry()
	cfg := config.Pool{Metrics: config.Metrics{Interval: 2 * ms}, Probe: &config.Probe{Interval: 3 * ms},
		Ejection: config.Ejection{Base: 5 * ms, Max: 20 * ms, SlowReturn: 5 * ms}}
	p := newPool(t, cfg, pool.Options{Metrics: pool.NewInstruments(reg)}, addrs...)
	p.Start(t.Context())

	var work sync.WaitGroup
	stop := make(chan struct{})
	loop := func(f func(r *rand.Rand)) {
		seed := rand.Uint64()
		work.Go(func() {
			for r := rand.New(rand.NewPCG(1, seed)); ; {
				select {
				case <-stop:
					return
				default:
					f(r)
				}
			}
		})
	}
	var mu sync.Mutex
	used := map[*pool.Member]bool{}
	for range 4 {
		loop(func(r *rand.Rand) {
			s := p.Snapshot()
			for i, m := range s.Members {
				if i > 0 && s.Members[i-1].Address() >= m.Address() {
					t.Error("a snapshot is out of order")
				}
			}
			if len(s.Members) == 0 {
				return
			}
			m := s.Members[r.IntN(len(s.Members))]
			mu.Lock()
			used[m] = true
			mu.Unlock()
			c := m.Charge(r.IntN(100), 100)
			if share := m.Share(); share < 0.1 || share > 1 {
				t.Errorf("share is %v", share)
			}
			c.FirstToken()
			c.Output(r.IntN(5))
			m.Report(pool.Outcome(r.IntN(5)))
			c.Release()
		})
	}
	loop(func(r *rand.Rand) {
		list := members(addrs...)
		r.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
		p.SetMembers(list[:r.IntN(n+1)])
	})
	for i := range 20 {
		next := p.Config()
		next.Members.Static = members(addrs[i%n:]...)
		next.Metrics.Off = i%5 == 4
		if next.Probe = cfg.Probe; i%3 == 2 {
			next.Probe = nil
		}
		commit, err := p.Prepare(next)
		if err != nil {
			t.Fatal(err)
		}
		commit()
		p.Status()
		if _, err := reg.Gather(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	work.Wait()
	p.Close()
	for m := range used {
		if m.Load() != (pool.Load{}) {
			t.Errorf("%s is left with %+v", m.Address(), m.Load())
		}
	}
}
