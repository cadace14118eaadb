// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

func TestStatusOfAPool(t *testing.T) {
	const text = `
listeners: [{name: public, address: "127.0.0.1:0", anonymous: true}]
pools:
  - name: llama
    members: {static: ["127.0.0.1:1", "127.0.0.1:2", {address: "127.0.0.1:3", labels: {tier: fast}}]}
    ejection: {failures: 1, maxPercent: 100}
models: [{name: chat, targets: [{pool: llama}]}]
`
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := pool.New(cfg.Pools[0], pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Lookup("127.0.0.1:1").SetMetrics(&pool.Metrics{At: time.Now(), Has: pool.HasWaiting | pool.HasPrefix, Waiting: 0, Running: 9, PrefixQueries: 4, PrefixHits: 2})
	p.Lookup("127.0.0.1:2").Report(pool.Refused)
	charge := p.Lookup("127.0.0.1:3").Charge(10, 30)
	defer charge.Release()

	zero, two, four := 0.0, 2.0, 4.0
	want := admin.PoolStatus{
		PoolSummary: admin.PoolSummary{Name: "llama", Members: 3, Ready: 2},
		Engine:      "auto", Protocol: "http", Profile: "default", Source: "static", Scraping: 0.1, Requests: 1,
		Status: []admin.MemberStatus{
			{
				Pool: "llama", Address: "127.0.0.1:1", State: "ready", Share: 1,
				// Running is on no page: null, whatever the field holds.
				Metrics: &admin.MemberMetrics{Waiting: &zero, PrefixQueries: &four, PrefixHits: &two},
			},
			{Pool: "llama", Address: "127.0.0.1:2", State: "ejected", Reason: "refused", Share: 0.1},
			{Pool: "llama", Address: "127.0.0.1:3", Labels: map[string]string{"tier": "fast"}, State: "ready", Share: 1, Requests: 1, Queued: 10, Context: 30},
		},
	}
	got := admin.StatusOf(p)
	if m := got.Status[0].Metrics; m != nil {
		m.Age = 0 // of the page, by the clock
	}
	got.Status[1].Until = time.Time{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("StatusOf (-want +got):\n%s", diff)
	}
}
