// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

func TestInstruments(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	o := newClock().options()
	o.Metrics = pool.NewInstruments(reg)
	cfg := config.Pool{Metrics: config.Metrics{Interval: config.Duration(time.Hour)}}
	// The members' pages are set by hand; nobody listens at port 1.
	p := newPool(t, cfg, o, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
	all := p.Snapshot().Members
	for _, m := range all {
		m.SetMetrics(&pool.Metrics{At: o.Now(), Has: pool.HasWaiting | pool.HasKVUsage, Waiting: 2, KVUsage: 0.5})
	}
	all[1].SetMetrics(&pool.Metrics{At: o.Now(), Has: pool.HasWaiting, Waiting: 4})
	all[2].SetMetrics(nil)
	charge := all[0].Charge(30, 40)
	defer charge.Release()
	off := p.Config()
	off.Metrics.Off = true
	commit, err := p.Prepare(off)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	p.Start(t.Context())
	all[2].Report(pool.Refused)
	want := `
# HELP penstock_pool_ejections_total Members taken out by passive health, by reason.
# TYPE penstock_pool_ejections_total counter
penstock_pool_ejections_total{pool="p",reason="refused"} 1
penstock_pool_ejections_total{pool="p",reason="reset"} 0
penstock_pool_ejections_total{pool="p",reason="server_error"} 0
penstock_pool_ejections_total{pool="p",reason="timed_out"} 0
# HELP penstock_pool_member_in_flight Requests that this gateway has open at the member.
# TYPE penstock_pool_member_in_flight gauge
penstock_pool_member_in_flight{endpoint="127.0.0.1:1",pool="p"} 1
penstock_pool_member_in_flight{endpoint="127.0.0.1:2",pool="p"} 0
penstock_pool_member_in_flight{endpoint="127.0.0.1:3",pool="p"} 0
# HELP penstock_pool_member_kv_usage Part of the member's KV cache in use, 0 to 1; absent while unknown, stale or missing.
# TYPE penstock_pool_member_kv_usage gauge
penstock_pool_member_kv_usage{endpoint="127.0.0.1:1",pool="p"} 0.5
# HELP penstock_pool_member_queued_tokens Uncached prompt tokens sent to the member whose answers have not begun.
# TYPE penstock_pool_member_queued_tokens gauge
penstock_pool_member_queued_tokens{endpoint="127.0.0.1:1",pool="p"} 30
penstock_pool_member_queued_tokens{endpoint="127.0.0.1:2",pool="p"} 0
penstock_pool_member_queued_tokens{endpoint="127.0.0.1:3",pool="p"} 0
# HELP penstock_pool_member_waiting Requests in the member's queue by its own count; absent while unknown, stale or missing.
# TYPE penstock_pool_member_waiting gauge
penstock_pool_member_waiting{endpoint="127.0.0.1:1",pool="p"} 2
penstock_pool_member_waiting{endpoint="127.0.0.1:2",pool="p"} 4
# HELP penstock_pool_members Members by state.
# TYPE penstock_pool_members gauge
penstock_pool_members{pool="p",state="down"} 0
penstock_pool_members{pool="p",state="ejected"} 1
penstock_pool_members{pool="p",state="ready"} 2
penstock_pool_members{pool="p",state="returning"} 0
# HELP penstock_pool_metric_missing Members whose metrics page lacks a signal that it had or should have.
# TYPE penstock_pool_metric_missing gauge
penstock_pool_metric_missing{pool="p",signal="cache_config"} 0
penstock_pool_metric_missing{pool="p",signal="kv_usage"} 1
penstock_pool_metric_missing{pool="p",signal="lora"} 0
penstock_pool_metric_missing{pool="p",signal="prefix"} 0
penstock_pool_metric_missing{pool="p",signal="running"} 0
penstock_pool_metric_missing{pool="p",signal="waiting"} 0
`
	names := []string{"penstock_pool_ejections_total", "penstock_pool_member_in_flight", "penstock_pool_member_kv_usage",
		"penstock_pool_member_queued_tokens", "penstock_pool_member_waiting", "penstock_pool_members", "penstock_pool_metric_missing"}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	p.SetMembers(members("127.0.0.1:2"))
	if n, err := testutil.GatherAndCount(reg, "penstock_pool_member_in_flight"); n != 1 || err != nil {
		t.Errorf("%d series for one member (%v)", n, err)
	}
	p.Close()
	families, err := reg.Gather()
	if err != nil || len(families) != 0 {
		t.Errorf("a closed pool leaves %v (%v)", families, err)
	}
}

func TestStatusIsJSON(t *testing.T) {
	c := newClock()
	p := newPool(t, config.Pool{}, c.options(), "10.0.0.1:80", "10.0.0.2:80")
	p.SetMembers([]config.Member{{Address: "10.0.0.1:80", Labels: map[string]string{"role": "decode"}}, {Address: "10.0.0.2:80"}})
	a, b := p.Snapshot().Members[0], p.Snapshot().Members[1]
	a.SetMetrics(&pool.Metrics{At: c.now(), Has: pool.HasWaiting | pool.HasLoRA, LoRA: pool.LoRA{Running: []string{"sql"}, Max: 2}})
	b.Report(pool.Refused)
	defer a.Charge(1, 2).Release()
	c.pass(time.Second)
	got, err := json.MarshalIndent(p.Status().Members, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want := `[
 {
  "address": "10.0.0.1:80",
  "labels": {
   "role": "decode"
  },
  "state": "ready",
  "share": 1,
  "epoch": 0,
  "load": {
   "requests": 1,
   "queued": 1,
   "context": 2
  },
  "knowledge": "fresh",
  "ageSeconds": 1,
  "metrics": {
   "waiting": 0,
   "lora": {
    "running": [
     "sql"
    ],
    "waiting": null,
    "max": 2
   }
  }
 },
 {
  "address": "10.0.0.2:80",
  "state": "ejected",
  "share": 0.1,
  "reason": "refused",
  "until": "2026-11-30T12:00:02Z",
  "epoch": 0,
  "load": {
   "requests": 0,
   "queued": 0,
   "context": 0
  },
  "knowledge": "unknown"
 }
]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
