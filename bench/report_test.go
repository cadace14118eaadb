// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/bench"
)

func TestTable(t *testing.T) {
	table := bench.Table{Title: "t", Head: []string{"name", "µs"}, Rows: [][]string{{"a", "1.5"}, {"longer", "12"}}}
	for _, c := range []struct {
		format bench.Format
		want   string
	}{
		{bench.Text, "t\nname     µs\na       1.5\nlonger   12\n\n"},
		{bench.Markdown, "### t\n\n| name   |  µs |\n|---|---|\n| a      | 1.5 |\n| longer |  12 |\n\n"},
	} {
		var b strings.Builder
		if err := table.Write(&b, c.format); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, b.String()); diff != "" {
			t.Errorf("%s:\n%s", c.format, diff)
		}
	}
	if _, err := bench.ParseFormat("yaml"); err == nil {
		t.Error("yaml is taken for a format")
	}
}

func TestRaceReport(t *testing.T) {
	result := func(policy, workload string, seed uint64, good int) *bench.Result {
		return &bench.Result{Policy: policy, Workload: workload, Load: 0.9, Seed: seed, Offered: 100, Answered: 100, Good: good}
	}
	r := bench.RaceReport{Preset: "p", Seeds: []uint64{1, 2}, Results: []*bench.Result{
		result("x", "w1", 1, 80), result("x", "w1", 2, 100), result("x", "w2", 1, 50), result("x", "w2", 2, 50),
	}}
	var b strings.Builder
	if err := r.Write(&b, bench.Text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seeds 1,2", "goodput %, load 0.9\npolicy  mean    w1    w2\nx       70.0  90.0  50.0\n", "w1, load 0.9\n", " 80..100 "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := r.Write(&b, bench.JSON); err != nil {
		t.Fatal(err)
	}
	var back bench.RaceReport
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
}

func TestSystemReportKnowsItsVerdict(t *testing.T) {
	r := bench.SystemReport{Figures: []bench.Figure{{Measure: "m", Proxy: "p", Value: 2, Unit: "us", Budget: "<= 3 us"}}}
	if r.Over() {
		t.Error("over, with a figure in its budget")
	}
	r.Figures = append(r.Figures, bench.Figure{Measure: "n", Proxy: "p", Value: 4, Unit: "us", Budget: "<= 3 us", Over: true})
	var b strings.Builder
	if err := r.Write(&b, bench.Text); err != nil {
		t.Fatal(err)
	}
	if !r.Over() || !strings.Contains(b.String(), "FAIL") || !strings.Contains(b.String(), "pass") {
		t.Errorf("over %t:\n%s", r.Over(), b.String())
	}
}
