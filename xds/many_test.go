// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

func TestManyClients(t *testing.T) { manyClients(t, 40) }

// BenchmarkManyClients is for a fleet; both ends run in this process.
func BenchmarkManyClients(b *testing.B) {
	for b.Loop() {
		manyClients(b, 500)
	}
}

// manyClients has gateways of one Gateway come at once, get everything, lose
// the controller and come back.
func manyClients(t testing.TB, n int) {
	c := newController(t, func(o *xds.ServerOptions) { o.Log = nil })
	publish := func() {
		c.server.SetMembers(gw, "a", fleet(50, "10.9.9.9:1"))
		c.server.Publish(gw, configOf("a"))
	}
	publish()
	start := time.Now()
	clients := make([]*gateway, n)
	for i := range clients {
		g := &gateway{target: &target{}, t: t, token: t.TempDir() + "/token"}
		write(t, g.token, fmt.Sprintf("%s/prod/penstock-public/pod-%d", xds.Audience, i))
		o := c.options4("p", g)
		o.Log = nil
		g.run(o)
		clients[i] = g
	}
	all := func(what string, ok func(g *gateway) bool) {
		t.Helper()
		eventually(t, what, func() bool { return !slices.ContainsFunc(clients, func(g *gateway) bool { return !ok(g) }) })
		t.Logf("%s: %s", what, time.Since(start).Round(time.Millisecond))
		start = time.Now()
	}
	all("first configuration", func(g *gateway) bool { return g.has("a") })
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	t.Logf("both ends of %d clients: %d MiB of heap and stacks, %d goroutines", n, (mem.HeapAlloc+mem.StackInuse)>>20, runtime.NumGoroutine())
	start = time.Now()
	c.server.SetMembers(gw, "a", fleet(50, "10.9.9.8:1"))
	all("a change of members", func(g *gateway) bool {
		_, m, _, _ := g.view()
		return m["a"][49].Address == "10.9.9.8:1"
	})
	c.stop()
	c.start()
	c.server.Lead(true)
	publish()
	all("back after a restart", func(g *gateway) bool { _, m, _, _ := g.view(); return m["a"][49].Address == "10.9.9.9:1" })
	calls := c.reviewer.calls.Load()
	if calls != int64(n) {
		t.Errorf("%d certificates for %d clients", calls, n)
	}
	if s := c.server.Status(gw); len(s.Clients) != n {
		t.Errorf("%d clients in the status", len(s.Clients))
	}
	var stops sync.WaitGroup
	for _, g := range clients {
		stops.Go(g.stop)
	}
	stops.Wait()
}

// BenchmarkPropagation is from SetMembers to the pool of a gateway: at rest,
// and while members change 300 times a second.
func BenchmarkPropagation(b *testing.B) {
	for _, x := range []struct {
		name    string
		members int
		every   time.Duration
	}{
		{"rest/members=10", 10, 60 * time.Millisecond},
		{"rest/members=500", 500, 60 * time.Millisecond},
		{"churn=300/members=100", 100, time.Second / 300},
	} {
		b.Run(x.name, func(b *testing.B) {
			c := newController(b, func(o *xds.ServerOptions) { o.Log = nil })
			c.server.SetMembers(gw, "a", fleet(x.members, "h:1"))
			c.server.Publish(gw, configOf("a"))
			g := c.gateway(gw, "p")
			eventually(b, "configuration", func() bool { return g.has("a") })
			var mu sync.Mutex
			at := map[string]time.Time{} // of changes not seen yet
			var order []string
			var took []time.Duration
			g.mu.Lock()
			g.changed = func(_ string, list []config.Member) {
				now := time.Now()
				mu.Lock()
				defer mu.Unlock()
				last := list[len(list)-1].Address
				i := slices.Index(order, last)
				for _, seen := range order[:i+1] { // those that it covers too
					took = append(took, now.Sub(at[seen]))
					delete(at, seen)
				}
				order = order[i+1:]
			}
			g.mu.Unlock()
			tick := time.NewTicker(x.every)
			defer tick.Stop()
			i := 0
			for b.Loop() {
				<-tick.C
				i++
				last := fmt.Sprintf("h%d:1", i)
				list := fleet(x.members, last)
				mu.Lock()
				at[last] = time.Now()
				order = append(order, last)
				mu.Unlock()
				c.server.SetMembers(gw, "a", list)
			}
			eventually(b, "the last", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 0 })
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
