// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

func TestRotaGivesEachMemberItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, workers = 100 * time.Millisecond, 16
		var addrs []string
		for i := range 100 {
			addrs = append(addrs, fmt.Sprintf("10.0.0.%d:80", i))
		}
		p := newPool(t, config.Pool{}, pool.Options{}, addrs...)
		var mu sync.Mutex
		turns, busy := map[string]int{}, map[string]bool{}
		starts := map[time.Time]int{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			p.RunRota(ctx, interval, workers, func(m *pool.Member) time.Duration {
				mu.Lock()
				if busy[m.Address()] {
					t.Errorf("%s has two turns at once", m.Address())
				}
				busy[m.Address()] = true
				turns[m.Address()]++
				starts[time.Now()]++
				if len(busy) > workers {
					t.Errorf("%d turns at once", len(busy))
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				delete(busy, m.Address())
				mu.Unlock()
				return interval
			})
		})
		time.Sleep(11 * time.Second) // a hundred turns of interval and job
		mu.Lock()
		for a, n := range turns {
			if n < 90 || n > 105 {
				t.Errorf("%s had %d turns, want about 100", a, n)
			}
		}
		if len(turns) != 100 {
			t.Errorf("%d members had turns", len(turns))
		}
		if most := float64(len(starts)); most > 11*16/0.1*1.1 {
			t.Errorf("it woke %v times", most)
		}
		clear(turns)
		mu.Unlock()

		p.SetMembers(members("10.0.0.1:80", "10.0.1.1:80"))
		time.Sleep(time.Second)
		mu.Lock()
		if len(turns) > 40 || turns["10.0.1.1:80"] < 7 || turns["10.0.0.1:80"] < 7 {
			t.Errorf("after the change: %v", turns)
		}
		clear(turns)
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		if len(turns) != 2 {
			t.Errorf("members that left still have turns: %v", turns)
		}
		mu.Unlock()
		cancel()
		running.Wait()
	})
}
