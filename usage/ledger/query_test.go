// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/ledger"
)

// fill writes the rows of a small company.
func fill(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	begin := time.Now().Add(-30 * time.Minute)
	add := func(tenant, model, task string, pico int64, change func(r *usage.Record)) {
		r := record(0, tenant, model)
		r.Time, r.Task, r.Cost = begin, task, usage.Cost{Pico: pico, Known: pico >= 0}
		begin = begin.Add(time.Second)
		if change != nil {
			change(r)
		}
		l.Append(r)
	}
	add("acme/search", "large", "t1", 2_000_000_000_000, nil)
	add("acme/search", "large", "t1", 1_000_000_000_001, func(r *usage.Record) { r.Attempts, r.Fallback, r.Outcome = 3, "general: overloaded", "failure" })
	add("acme/ads", "small", "t1", 500, func(r *usage.Record) { r.Outcome = "success" }) // another tenant's t1
	add("acme/ads", "small", "t2", -1, func(r *usage.Record) { r.Outcome = "success" })
	add("acme/ads", "small", "", 7, func(r *usage.Record) { r.Counts.Source = llm.Estimated })
	add("other", "small", "", 0, func(r *usage.Record) {
		r.Status, r.ErrorClass, r.Counts, r.Cost = 429, "rate_limit", usage.Counts{}, usage.Free()
	})
	if err := l.SetOutcome("acme/search", "t1", ledger.Success); err != nil { // the last word
		t.Fatal(err)
	}
}

func TestSums(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		l := open(t, cfg)
		fill(t, l)
		short := func(a *ledger.Answer) (out []string) {
			for _, g := range a.Groups {
				out = append(out, strings.Join(g.Key, " ")+" "+g.Cost.String()+" "+strings.Repeat("?", int(g.Unpriced))+g.Outcome)
			}
			return out
		}
		a := sum(t, l, "tenant", "model")
		if diff := cmp.Diff([]string{"acme/search large 3.000000000001 ", "acme/ads small 0.000000000507 ?", "other small 0.00 "}, short(a)); diff != "" {
			t.Errorf("by tenant and model (-want +got):\n%s", diff)
		}
		if a.Total.Requests != 6 || a.Total.Failed != 1 || a.Total.Retries != 2 || a.Total.Fallbacks != 1 || a.Total.Estimated != 1 || a.Total.Unpriced != 1 {
			t.Errorf("total: %+v", a.Total)
		}
		a = sum(t, l, "tenant", "task")
		if diff := cmp.Diff([]string{"acme/search t1 3.000000000001 success", "acme/ads t1 0.0000000005 success", "acme/ads t2 0.00 ?success"}, short(a)); diff != "" {
			t.Errorf("by task (-want +got):\n%s", diff)
		}
		if n := a.Tasks; n == nil || n.Tasks != 3 || n.Succeeded != 3 || n.PerSuccess.String() != "1.000000000167" || n.Unpriced != 1 {
			t.Errorf("tasks: %+v", a.Tasks)
		}
		for _, by := range ledger.Dimensions() {
			if a := sum(t, l, by); len(a.Groups) == 0 {
				t.Errorf("nothing by %s", by)
			}
		}
		// Pages of two, by the cursor.
		v := url.Values{"by": {"tenant"}, "since": {"1h"}, "top": {"2"}, "where": {"org:acme"}, "order": {"key"}}
		var pages [][]string
		for range 3 {
			q, err := ledger.ParseQuery(v, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.Answer(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			var page []string
			for _, g := range a.Groups {
				page = append(page, g.Key[0])
			}
			if pages = append(pages, page); a.Cursor == "" {
				break
			}
			v.Set("cursor", a.Cursor)
		}
		if diff := cmp.Diff([][]string{{"acme/ads", "acme/search"}}, pages); diff != "" {
			t.Errorf("pages (-want +got):\n%s", diff)
		}
		v = url.Values{"by": {"tenant"}, "top": {"1"}, "order": {"key"}}
		seen := ""
		for range 4 {
			q, err := ledger.ParseQuery(v, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.Answer(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			seen += a.Groups[0].Key[0] + " "
			if a.Cursor == "" {
				break
			}
			v.Set("cursor", a.Cursor)
		}
		if seen != "acme/ads acme/search other " {
			t.Errorf("one at a time: %s", seen)
		}
	})
}

// Sums of money that 64 bits of picodollars cannot hold are exact.
func TestMuchMoney(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		l := open(t, cfg)
		for i := range 5 {
			r := record(i, "acme", "m")
			r.Cost = usage.Cost{Pico: math.MaxInt64, Known: true}
			l.Append(r)
		}
		if got := sum(t, l).Total.Cost.String(); got != "46116860.184273879035" {
			t.Errorf("cost %s", got)
		}
	})
}

func TestExport(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		l := open(t, cfg)
		fill(t, l)
		odd := record(9, "acme", `=cmd|"x"`)
		l.Append(odd)
		e := ledger.Export{Format: "csv", Query: ledger.Query{Since: time.Now().Add(-time.Hour)}}
		var text strings.Builder
		if err := l.Export(t.Context(), e, &text); err != nil {
			t.Fatal(err)
		}
		lines, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
		if err != nil || len(lines) != 9 { // with a head and an outcome
			t.Fatalf("%d lines, %v:\n%s", len(lines), err, text.String())
		}
		if !strings.Contains(text.String(), `"'=cmd|""x"""`) {
			t.Errorf("a spreadsheet would run the model's name:\n%s", text.String())
		}
		e.Format = "jsonl"
		text.Reset()
		if err := l.Export(t.Context(), e, &text); err != nil {
			t.Fatal(err)
		}
		rows := 0
		for s := bufio.NewScanner(strings.NewReader(text.String())); s.Scan(); rows++ {
			var row map[string]any
			if err := json.Unmarshal(s.Bytes(), &row); err != nil {
				t.Fatalf("%s: %v", s.Bytes(), err)
			}
			if rows == 1 && (row["cost_usd"] != 1.000000000001 || row["fallback"] != "general: overloaded" || row["input"] != 600.0) {
				t.Errorf("row: %s", s.Bytes())
			}
			if cost, there := row["cost_usd"]; rows == 3 && (!there || cost != nil) {
				t.Errorf("a cost that is not known: %s", s.Bytes())
			}
		}
		if rows != 8 {
			t.Errorf("%d rows", rows)
		}
	})
}

func TestBadQueries(t *testing.T) {
	for _, c := range []struct{ query, want string }{
		{"by=colour", `"colour" is not a dimension`},
		{"by=tenant,tenant", "named twice"},
		{"by=tenant,key,model,day,hour", "at most 4"},
		{"since=yesterday", `"yesterday" is not a time; write 7d`},
		{"since=1d&until=2d", "since is not before until"},
		{"top=0", "a number from 1"},
		{"where=tenant", "not of the form"},
		{"where=colour:red", "not a dimension"},
		{"order=up", "is no order"},
		{"cursor=!", "cursor"},
		{"limit=3", `"limit" is not a parameter`},
	} {
		v, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.ParseQuery(v, time.Now()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.query, err)
		}
	}
	if _, err := ledger.ParseExport(url.Values{"format": {"xml"}}, time.Now()); err == nil {
		t.Error("xml is exported")
	}
	l := open(t, settings(t))
	for _, err := range []error{l.SetOutcome("a", "", "success"), l.SetOutcome("a", "t", "perhaps"), l.SetOutcome("a", strings.Repeat("t", 300), "success")} {
		if err == nil {
			t.Error("a bad outcome is taken")
		}
	}
}

// Old rows go, with the names that only they had.
func TestRetention(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		l := open(t, cfg)
		for i := range 10 {
			r := record(i, "acme", "m")
			r.Time = time.Now().Add(-time.Duration(i*20) * 24 * time.Hour)
			l.Append(r)
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		n, err := l.PruneBefore(t.Context(), time.Now().Add(-90*24*time.Hour))
		if err != nil || n != 5 {
			t.Errorf("%d rows deleted, %v", n, err)
		}
		a, err := l.Answer(t.Context(), ledger.Query{Until: time.Now()})
		if err != nil || a.Total.Requests != 5 {
			t.Errorf("%+v %v", a, err)
		}
	})
}
