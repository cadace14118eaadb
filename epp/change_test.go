// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChange(t *testing.T) {
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	e := &Explanation{
		Picked:  []string{"a"},
		Columns: []Column{{Name: "prefix", Weight: 2}, {Name: "queue", Weight: 1}},
		Candidates: []Candidate{
			{Endpoint: "a", Scores: []float64{0.9, 0.1}, Total: 1.9},
			{Endpoint: "b", Scores: []float64{0.4, 0.8}, Total: 1.6},
			{Endpoint: "c", Scores: []float64{0, 1}, Total: 1},
			{Endpoint: "d", RefusedBy: "ready-filter", Why: "it is down"},
		},
	}
	want := &Change{
		Winner: "a", Lead: 0.3,
		Rivals: []Rival{
			{Endpoint: "b", Gap: 0.3, By: []float64{1, -0.7}, Needs: []Need{{"prefix", 0.55, 0.4}}}, // queue would need 1.1
			{Endpoint: "c", Gap: 0.9, By: []float64{1.8, -0.9}, Needs: []Need{{"prefix", 0.45, 0}}}, // queue is full already
			{Endpoint: "d", RefusedBy: "ready-filter", Why: "it is down"},
		},
		Without: []Without{{Column: "prefix", Winner: "c"}},
	}
	if d := cmp.Diff(want, e.Change(), near); d != "" {
		t.Error(d)
	}

	one := &Explanation{Picked: []string{"a"}, Columns: []Column{{Name: "cost", Weight: 1}}, Candidates: []Candidate{
		{Endpoint: "a", Scores: []float64{0.5}, Total: 0.5}, {Endpoint: "b", Scores: []float64{0.5}, Total: 0.5},
	}}
	if d := cmp.Diff(&Change{Winner: "a", Rivals: []Rival{{Endpoint: "b", By: []float64{0}}}}, one.Change(), near); d != "" {
		t.Error("a tie:", d)
	}
	for _, none := range []*Explanation{
		{Picked: []string{"a"}, Remote: &RemotePick{}},
		{Candidates: []Candidate{{Endpoint: "a", RefusedBy: "x"}}},
	} {
		if c := none.Change(); c != nil {
			t.Errorf("%+v has %+v", none, c)
		}
	}
}
