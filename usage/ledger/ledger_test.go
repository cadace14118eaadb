// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/ledger"
)

// settings are those of a ledger in a directory of its own.
func settings(t testing.TB) config.Ledger {
	t.Helper()
	return config.Ledger{
		Path: filepath.Join(t.TempDir(), "ledger.db"), SpoolSize: 1 << 30, Interval: config.Duration(time.Second), Buffer: 65536,
		Retention: config.Duration(90 * 24 * time.Hour), TaskHeader: "x-penstock-task",
	}
}

func open(t testing.TB, cfg config.Ledger) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(cfg, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// record is that of a request of tenant for model.
func record(i int, tenant, model string) *usage.Record {
	r := &usage.Record{Time: time.Now(), RequestID: fmt.Sprintf("request-%d", i), ModelAsked: model, ModelUsed: model, Status: 200, Attempts: 1}
	r.Tenant, r.Key, r.Provider, r.Served = tenant, "ci", "openai", "openai/main"
	r.Counts = usage.Counts{Input: 600, CacheRead: 400, Output: 50, Reasoning: 20, Source: llm.Reported}
	return r
}

func sum(t testing.TB, l interface {
	Answer(ctx context.Context, q ledger.Query) (*ledger.Answer, error)
}, by ...string) *ledger.Answer {
	t.Helper()
	a, err := l.Answer(t.Context(), ledger.Query{By: by, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRowsAreSummed(t *testing.T) {
	cfg := settings(t)
	l := open(t, cfg)
	for i := range 10 {
		l.Append(record(i, "acme", "large"))
		l.Append(record(i, "other", "small"))
	}
	refused := &usage.Record{Spending: usage.Spending{Cost: usage.Free()}, Time: time.Now(), RequestID: "refused", Status: 401, ErrorClass: "invalid_api_key"}
	l.Append(refused)
	a := sum(t, l, "tenant", "model")
	if len(a.Groups) != 3 || a.Total.Requests != 21 || a.Total.Failed != 1 {
		t.Fatalf("groups: %+v", a)
	}
	want := ledger.Tokens{Input: 6000, CachedRead: 4000, Output: 500, Reasoning: 200}
	for _, g := range a.Groups[:2] {
		if g.Tokens != want || g.Requests != 10 || g.Unpriced != 10 {
			t.Errorf("group %v: %+v", g.Key, g)
		}
	}
	if g := a.Groups[2]; g.Unpriced != 0 || !g.Cost.Zero() {
		t.Errorf("a refused request has no cost: %+v", g)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cfg.SpoolDir(), "*.segment"))
	if err != nil || len(left) > 0 {
		t.Errorf("a spool whose rows are in the database has %v (%v)", left, err)
	}
	r, err := ledger.OpenReader(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b := sum(t, r, "tenant", "model"); b.Total.Requests != 21 {
		t.Errorf("another process sees %+v", b.Total)
	}
}
