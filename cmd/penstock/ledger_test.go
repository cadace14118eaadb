// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/usage/ledger"
)

// tally is what one side says that a request used at one provider.
type tally struct{ prompt, cached, output int64 }

// TestLedgerAgreesWithProviders sends random requests through a gateway while
// clients leave and providers cut, stall and refuse at random. Where a provider
// reported usage, the ledger has exactly what the provider counted itself, per
// request and kind; other rows are marked, and are off by no more than what was in
// flight.
func TestLedgerAgreesWithProviders(t *testing.T) {
	const requests, most = 240, 24 // tokens of an answer
	var providers []*sim.Provider
	var addresses []string
	for i, name := range []string{"first", "second"} {
		p := sim.NewProvider(sim.ProviderConfig{Name: name, TTFT: 2 * time.Millisecond, ITL: time.Millisecond, Seed: uint64(i)})
		address, err := p.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close(context.Background()) })
		providers, addresses = append(providers, p), append(addresses, address)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	if err := providers[0].SetFaults(sim.Faults{ProviderFaults: sim.ProviderFaults{Script: troubles(rng, 2*requests)}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg, err := config.Parse("ledger.yaml", fmt.Appendf(nil, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
ledger: {path: %q, interval: 50ms}
records: {path: %q}
providers:
  - {name: first, baseURL: "http://%s/v1", quirks: none, cooldown: {after: 1000, for: 1ms, max: 2ms}}
  - {name: second, baseURL: "http://%s/v1", quirks: none}
models:
  - name: m
    targets: [{provider: first, model: gpt-sim}]
    fallbacks: [{provider: second, model: gpt-sim}]
    retries: {attempts: 3, budget: 10}
`, filepath.Join(dir, "ledger.db"), filepath.Join(dir, "records.jsonl"), addresses[0], addresses[1]))
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(slog.New(slog.NewTextHandler(panics{t}, nil)), "")
	if err := g.reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	url := "http://" + g.proxy.Addresses()["l"] + "/v1/chat/completions"
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()

	type ask struct {
		id, body string
		leave    time.Duration // 0: to the end
	}
	asks := make(chan ask)
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			for a := range asks {
				ctx, cancel := context.WithCancel(context.Background())
				if a.leave > 0 {
					ctx, cancel = context.WithTimeout(context.Background(), a.leave)
				}
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(a.body))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-Request-Id", a.id)
				r.Header.Set("X-Penstock-Task", "task-"+a.id[len(a.id)-1:])
				if res, err := client.Do(r); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				cancel()
			}
		})
	}
	prompt := strings.Repeat("A long beginning that a cache may know. ", 200)
	for i := range requests {
		a := ask{id: "ask-" + strconv.Itoa(i), body: fmt.Sprintf(`{"model":"m","stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`,
			rng.IntN(2) == 0, 4+rng.IntN(most-4), prompt[:rng.IntN(len(prompt))]+strconv.Itoa(i))}
		if rng.IntN(4) == 0 {
			a.leave = time.Duration(1+rng.IntN(20)) * time.Millisecond
		}
		asks <- a
	}
	close(asks)
	clients.Wait()
	for began := time.Now(); g.proxy.Open() > 0 && time.Since(began) < 10*time.Second; {
		time.Sleep(5 * time.Millisecond)
	}

	truth := map[string]tally{}
	for _, p := range providers {
		for began := time.Now(); p.Stats().InFlight > 0 && time.Since(began) < 10*time.Second; {
			time.Sleep(5 * time.Millisecond)
		}
		for _, r := range p.Stats().Records {
			key := r.RequestID + " " + map[*sim.Provider]string{providers[0]: "first", providers[1]: "second"}[p]
			a := truth[key]
			truth[key] = tally{a.prompt + int64(r.PromptTokens), a.cached + int64(r.CachedTokens), a.output + int64(r.OutputTokens)}
		}
	}
	var out bytes.Buffer
	l := g.ledger.Load()
	if err := l.Export(t.Context(), ledger.Export{Format: "csv", Query: ledger.Query{Since: time.Now().Add(-time.Hour)}}, &out); err != nil {
		t.Fatal(err)
	}
	g.close(context.Background())
	records, err := os.ReadFile(filepath.Join(dir, "records.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	agree(t, &out, truth, bytes.Count(records, []byte("\n")), requests, most)
}

// agree compares the rows of a ledger with what providers have counted. came is how
// many requests the gateway saw: some clients have left before that.
func agree(t *testing.T, out io.Reader, truth map[string]tally, came, requests int, most int64) {
	t.Helper()
	lines, err := csv.NewReader(out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	whole, marks, told := map[string]tally{}, map[string]int{}, map[string]string{}
	number := func(row []string, names ...string) (n int64) {
		for _, name := range names {
			v, err := strconv.ParseInt(row[column[name]], 10, 64)
			if err != nil || v < 0 {
				t.Errorf("%s is %q", name, row[column[name]])
			}
			n += v
		}
		return n
	}
	seen := 0
	for _, row := range lines[1:] {
		if row[column["what"]] == ledger.OfRequest {
			seen++
		}
		mark := row[column["counted"]]
		marks[mark]++
		key := row[column["request"]] + " " + row[column["target"]]
		a := whole[key]
		cached := number(row, "cached_read")
		whole[key] = tally{a.prompt + number(row, "input") + cached, a.cached + cached, a.output + number(row, "output", "reasoning")}
		if told[key] == "" || told[key] == ledger.Reported {
			told[key] = mark
		}
	}
	t.Logf("rows by how they were counted: %v", marks)
	if seen != came || came < requests*3/4 {
		t.Errorf("%d requests are in the ledger, %d came, %d were sent", seen, came, requests)
	}
	if marks[ledger.Reported] < requests/3 {
		t.Errorf("only %d rows were reported: this proves little", marks[ledger.Reported])
	}
	for key, got := range whole {
		want, served := truth[key]
		switch {
		case told[key] == ledger.Reported && got != want:
			t.Errorf("%s: the ledger has %+v, the provider %+v", key, got, want)
		case told[key] != "" && served && got.output > want.output+most:
			t.Errorf("%s (%s): the ledger has %d tokens of output, the provider %d", key, told[key], got.output, want.output)
		}
	}
}

// troubles are what the next n requests meet.
func troubles(rng *rand.Rand, n int) []sim.Faults {
	var script []sim.Faults
	for range n { // in turn, whoever comes
		f := sim.Faults{}
		switch rng.IntN(8) {
		case 0:
			f.ProviderFaults = sim.ProviderFaults{Cut: "output", After: 1 + rng.IntN(8)}
		case 1:
			f.ProviderFaults = sim.ProviderFaults{Cut: "preamble"}
		case 2:
			f.Status = 503
		case 3:
			f.ProviderFaults = sim.ProviderFaults{Error: "overloaded", ErrorEvent: "output", After: 3}
		}
		script = append(script, f)
	}
	return script
}
