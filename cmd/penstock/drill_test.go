// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/usage"
)

// TestFaultDrill has 100 users ask a model whose first provider is limited, then
// down, then slow, then breaks its streams, while a second one stands by. Nobody
// notices but for what had already been shown to him; no request makes more
// attempts than it may; the first provider is used again when it is well; and
// the record of each request says what happened.
func TestFaultDrill(t *testing.T) {
	const users = 100
	first := sim.NewProvider(sim.ProviderConfig{Name: "first", TTFT: 5 * time.Millisecond, ITL: time.Millisecond, Seed: 1})
	second := sim.NewProvider(sim.ProviderConfig{Name: "second", TTFT: 5 * time.Millisecond, ITL: time.Millisecond, Seed: 2})
	var addresses []string
	for _, p := range []*sim.Provider{first, second} {
		address, err := p.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, address)
		t.Cleanup(func() { p.Close(context.Background()) })
	}
	file := filepath.Join(t.TempDir(), "records.jsonl")
	cfg, err := config.Parse("drill.yaml", fmt.Appendf(nil, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
records: {path: %q, buffer: 100000}
providers:
  - {name: first, baseURL: "http://%s/v1", quirks: none, cooldown: {for: 200ms, max: 400ms}}
  - {name: second, baseURL: "http://%s/v1", quirks: none}
models:
  - name: m
    targets: [{provider: first, model: gpt-sim}]
    fallbacks: [{provider: second, model: gpt-sim}]
    timeouts: {firstToken: 5s}
    retries: {attempts: 3, budget: 10}
`, file, addresses[0], addresses[1]))
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(slog.New(slog.NewTextHandler(panics{t}, nil)), "")
	if err := g.reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	url := "http://" + g.proxy.Addresses()["l"] + "/v1/chat/completions"

	t.Logf("%-28s %9s %7s %7s %9s %9s", "phase", "requests", "whole", "broken", "first", "fallback")
	for _, phase := range []struct {
		name   string
		faults sim.Faults
		broken bool // streams may break after their first output
		served string
	}{
		{name: "well", served: "first"},
		{name: "rate limited", faults: sim.Faults{Status: 429, RetryAfter: 1}, served: "second"},
		{name: "well again", served: "first"},
		{name: "down", faults: sim.Faults{Crash: sim.Duration(time.Second)}, served: "second"},
		{name: "well again", served: "first"},
		{name: "slow", faults: sim.Faults{ProviderFaults: sim.ProviderFaults{Stall: "headers"}}, served: "second"},
		{name: "well again", served: "first"},
		{name: "broken before the output", faults: sim.Faults{ProviderFaults: sim.ProviderFaults{Cut: "preamble"}}, served: "second"},
		{name: "well again", served: "first"},
		{name: "broken in mid-stream", faults: sim.Faults{ProviderFaults: sim.ProviderFaults{Cut: "output", After: 2}}, broken: true, served: "second"},
		{name: "well again", served: "first"},
	} {
		if err := first.SetFaults(phase.faults); err != nil {
			t.Fatalf("%s: %v", phase.name, err)
		}
		d := &drill{url: url}
		if phase.served == "first" { // wait until one request is served there again
			began := time.Now()
			for d.first.Load() == 0 && time.Since(began) < 10*time.Second {
				d.ask(t)
				time.Sleep(20 * time.Millisecond)
			}
			if d.first.Load() == 0 {
				t.Errorf("%s: the first provider was not used again", phase.name)
			}
			if phase.name != "well" {
				t.Logf("%-28s the first provider serves again %d ms after it is well", "", time.Since(began).Milliseconds())
			}
			d = &drill{url: url}
		}
		var wg sync.WaitGroup
		for range users {
			wg.Go(func() {
				for range 3 {
					d.ask(t)
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		t.Logf("%-28s %9d %7d %7d %9d %9d", phase.name, d.asked.Load(), d.whole.Load(), d.broken.Load(), d.first.Load(), d.second.Load())
		switch asked := d.asked.Load(); {
		case d.whole.Load()+d.broken.Load() != asked:
			t.Errorf("%s: %d of %d requests came to nothing: %v", phase.name, asked-d.whole.Load()-d.broken.Load(), asked, d.example.Load())
		case !phase.broken && d.broken.Load() > 0:
			t.Errorf("%s: %d streams broke", phase.name, d.broken.Load())
		case phase.served == "second" && d.second.Load() == 0, phase.served == "first" && d.first.Load() < asked*9/10:
			t.Errorf("%s: %d by the first provider, %d by the second", phase.name, d.first.Load(), d.second.Load())
		}
	}
	if err := first.SetFaults(sim.Faults{}); err != nil {
		t.Fatal(err)
	}
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if cut := g.close(end); cut != 0 {
		t.Errorf("%d exchanges were still open", cut)
	}
	calls := count(t, file)
	if made := first.Stats().Attempts + second.Stats().Attempts; made > calls {
		t.Errorf("the providers had %d requests, the records tell of %d attempts", made, calls)
	}
}

// drill is what the users of one phase have seen.
type drill struct {
	url                                 string
	asked, whole, broken, first, second atomic.Int64
	example                             atomic.Value
}

func (d *drill) ask(t *testing.T) {
	d.asked.Add(1)
	res, err := http.Post(d.url, "application/json", strings.NewReader(`{"model":"m","stream":true,"max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	text := string(body)
	switch res.Header.Get("X-Penstock-Target") {
	case "first/gpt-sim":
		d.first.Add(1)
	case "second/gpt-sim":
		d.second.Add(1)
	}
	ended := strings.Contains(text, "data: [DONE]")
	switch {
	case res.StatusCode == 200 && err == nil && ended && !strings.Contains(text, `"error"`):
		d.whole.Add(1)
	case res.StatusCode == 200 && !ended && strings.Contains(text, `"error"`) && strings.Contains(text, `"content"`):
		d.broken.Add(1) // and says so
	default:
		d.example.Store(fmt.Sprintf("%d %v %s", res.StatusCode, err, text))
	}
}

// count reads the records: each must say what became of every attempt.
func count(t *testing.T, file string) (attempts int64) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var r usage.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		attempts += int64(r.Attempts)
		if r.Attempts > 3 || len(r.Tries) != r.Attempts {
			t.Errorf("record of %d attempts tells of %d: %s", r.Attempts, len(r.Tries), line)
		}
		for i, try := range r.Tries {
			if try.Error != "" {
				classes[try.Error]++
			} else if i < len(r.Tries)-1 {
				t.Errorf("a further attempt without a reason: %s", line)
			}
		}
		if len(r.Tries) > 1 && r.Fallback == "" && r.Tries[0].Target != r.Tries[len(r.Tries)-1].Target {
			t.Errorf("no reason for the fallback: %s", line)
		}
	}
	t.Logf("attempts that failed, by class: %v", classes)
	return attempts
}
