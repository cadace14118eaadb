// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/sim"
)

// 500 concurrent streams while members die and return and the configuration
// is reloaded 20 times: every stream ends whole or says in the stream that it
// broke, and afterwards nothing is left of any of them.
func TestStreamsSurviveMembersAndReloads(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	const members, streams, reloads = 6, 500, 20
	fleet := make([]*sim.Server, members)
	addrs := make([]string, members)
	start := func(i int) {
		addr := addrs[i]
		if addr == "" {
			addr = "127.0.0.1:0"
		}
		fleet[i] = sim.New(sim.Config{Name: fmt.Sprint("s", i), Model: "up", Preset: chaosPreset(), Seed: uint64(i)})
		var err error
		for range 50 { // the port of the one that died may take a moment
			var bound string
			if bound, err = fleet[i].Listen(addr); err == nil {
				if addrs[i] == "" {
					addrs[i] = bound // written before anybody else reads it
				}
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("server %d: %v", i, err)
	}
	kill := func(i int) { // at once: no answer is allowed to end
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		fleet[i].Close(gone)
	}
	for i := range fleet {
		start(i)
	}
	file := filepath.Join(t.TempDir(), "members.yaml")
	write := func(list []string) {
		text := ""
		for _, a := range list {
			text += "- " + a + "\n"
		}
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Error(err)
		}
	}
	write(addrs)
	g := newGateway(slog.New(slog.NewTextHandler(panics{t}, &slog.HandlerOptions{Level: slog.LevelDebug})), "")
	address := "127.0.0.1:0"
	reload := func(n int) {
		profile := []string{"default", "round-robin", "llm-d-blend"}[n%3]
		cfg, err := config.Parse("chaos.yaml", fmt.Appendf(nil, `
listeners: [{name: l, address: %q, anonymous: true}]
admin: {address: "off"}
pools: [{name: p, members: {file: %q}, picker: {profile: %s}, ejection: {base: 200ms, slowReturn: 1s}}]
models: [{name: m, targets: [{pool: p, model: up}]}]
limits: {streams: %d}
`, address, file, profile, 1000+n%2))
		if err == nil {
			err = g.reload(cfg, nil)
		}
		if err != nil {
			t.Errorf("reload %d: %v", n, err)
		}
	}
	reload(0)
	address = g.proxy.Addresses()["l"]

	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() { // members die and return, one at a time
		for i := 0; ; i = (i + 1) % members {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
			kill(i)
			time.Sleep(100 * time.Millisecond)
			start(i)
		}
	})
	wg.Go(func() { // the set changes
		for i := 0; ; i++ {
			select {
			case <-stop:
				write(addrs)
				return
			case <-time.After(400 * time.Millisecond):
				write(append([]string{}, append(addrs[:i%members:i%members], addrs[i%members+1:]...)...))
			}
		}
	})
	load := &bench.Load{
		URL: "http://" + address, Model: "m", Seed: 1, Stream: true, Concurrency: streams, Requests: 3000, Duration: 60 * time.Second,
		Workload: bench.Workload{Name: "chaos", Rate: 100, Window: time.Minute, Sources: []bench.Source{{
			Class: "c", Share: 1, Groups: 20, Shared: bench.Length{Min: 200, Max: 400}, Own: bench.Length{Min: 20, Max: 60}, Output: bench.Length{Min: 10, Max: 80},
		}}},
	}
	done := make(chan *bench.LoadResult)
	go func() { done <- load.Do(context.Background()) }()
	for n := range reloads {
		time.Sleep(150 * time.Millisecond)
		reload(n + 1)
	}
	result := <-done
	close(stop)
	wg.Wait()

	t.Logf("%d requests, %d whole, failures %v; for example %q", result.Requests, result.Succeeded, result.Failures, result.Examples)
	if result.Untruthful > 0 {
		t.Errorf("%d answers hid how they ended: %v (%s)", result.Untruthful, result.Failures, result.Example)
	}
	if result.Failures[bench.FailConnect]+result.Failures[bench.FailReset]+result.Failures[bench.FailTimeout] > 0 {
		t.Errorf("the gateway itself refused or dropped connections: %v (%s)", result.Failures, result.Example)
	}
	if result.Succeeded < result.Requests/2 {
		t.Errorf("only %d of %d requests succeeded: %v", result.Succeeded, result.Requests, result.Failures)
	}
	waitFor(t, "open exchanges", func() bool { return g.proxy.Open() == 0 })
	p := g.pooled("p").pool
	for _, m := range p.Snapshot().Members {
		if l := m.Load(); l != (pool.Load{}) {
			t.Errorf("member %s still carries %+v", m.Address(), l)
		}
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if cut := g.close(end); cut != 0 {
		t.Errorf("%d streams were cut at the end", cut)
	}
	for _, s := range fleet {
		s.Close(end)
	}
	waitFor(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
}

// chaosPreset answers in a few hundred milliseconds with 80 sequences at once.
func chaosPreset() sim.Preset {
	p := sim.Tiny()
	p.MaxSequences, p.NumBlocks = 256, 16384
	return p
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	if len(stacks) > 20000 {
		stacks = stacks[:20000]
	}
	t.Errorf("%s did not settle\n%s", what, strings.TrimSpace(stacks))
}

// panics fails the test when the gateway logs one.
type panics struct{ t *testing.T }

func (p panics) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("panic")) {
		p.t.Errorf("%s", b)
	}
	return len(b), nil
}
