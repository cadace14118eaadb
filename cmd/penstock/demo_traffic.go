// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/config"
)

// This file is what the demo does after the race: traffic of two tenants, one of
// which spends more than it may, and a pool that nobody serves, so that the
// console has something to tell.

const (
	demoRate  = 6
	demoBatch = 200 // requests of one load, whose results are kept meanwhile

	demoModels = "models:\n  - name: demo\n    targets: [{pool: demo, model: " + demoModel + "}]\n"

	searchKey, shopKey = "demo-key-of-search", "demo-key-of-shop"
)

// afterwards is the rest of the configuration. No server listens on port 1.
func afterwards() string {
	return fmt.Sprintf(`
  - name: spare
    members: {static: ["127.0.0.1:1"]}
    engine: vllm
%[1]s  - name: demo-spare
    targets: [{pool: spare, model: %[2]s}]
  - name: chat
    alias: demo
prices:
  table:
    - {pool: demo, rates: {input: 0.2, cacheRead: 0.02, output: 0.8}}
tenants:
  - {name: demo}
  - name: search
    limits: [{requests: 2000, per: 1m}, {usd: 20, per: day}, {concurrency: 50}]
    keys: [{name: web, hash: %[3]q}]
  - name: shop
    limits: [{usd: 0.02, per: 10m}, {tokens: 2000000, per: 1m}]
    keys: [{name: bot, hash: %[4]q}]
`, demoModels, demoModel, digestOf(searchKey), digestOf(shopKey))
}

func digestOf(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

// goOn serves with a little traffic until ctx ends.
func (d *demo) goOn(ctx context.Context) error {
	if d.rate <= 0 {
		<-ctx.Done()
		return nil
	}
	cfg, err := config.Parse("demo.yaml", []byte(d.configuration("default", afterwards())))
	if err == nil {
		err = d.gateway.reload(cfg, nil)
	}
	if err != nil {
		return err
	}
	var wait sync.WaitGroup
	for i, key := range []string{searchKey, shopKey} {
		wait.Go(func() {
			for seed := uint64(2 + i); ctx.Err() == nil; seed += 2 {
				load := &bench.Load{
					URL: "http://" + d.proxy, Model: []string{"demo", "chat"}[i], Workload: demoWorkload(), Seed: seed, Stream: true, Rate: d.rate / 2,
					Requests: demoBatch, Header: http.Header{"Authorization": {"Bearer " + key}}, Grace: time.Second,
				}
				load.Do(ctx)
			}
		})
	}
	wait.Wait()
	return nil
}
