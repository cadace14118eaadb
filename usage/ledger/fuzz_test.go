// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// sample is a record with an attempt that used tokens in vain.
func sample() *usage.Record {
	r := &usage.Record{Time: time.Unix(1_790_000_000, 0), RequestID: "r1", ModelAsked: "chat", ModelUsed: "gpt", Status: 200, Attempts: 2}
	r.Tenant, r.Key, r.Provider, r.Task, r.Outcome = "acme", "ci", "openai", "build-7", Success
	r.Counts = usage.Counts{Input: 10, CacheRead: 5, Output: 7, AudioInput: 3, Millis: 2, Source: llm.Reported}
	r.Cost = usage.Cost{Pico: 700, Known: true}
	r.Tries = []usage.Attempt{
		{Target: "other/model", Error: "reset", Used: &usage.Used{Counts: usage.Counts{Input: 10, Output: 2, Source: llm.Partial}, Cost: usage.Cost{Pico: 300, Known: true}}},
		{Target: "openai/gpt", Used: &usage.Used{Counts: r.Counts, Cost: usage.Cost{Pico: 400, Known: true}}},
	}
	return r
}

func TestRowsComeBack(t *testing.T) {
	want := rowsOf(nil, sample())
	if len(want) != 2 || want[0].Cost.Pico != 300 || want[1].Cost.Pico != 400 || want[0].Target != "other" || want[0].Counted != Partial {
		t.Fatalf("rows of the sample: %+v", want)
	}
	var b batch
	b.reset(7, 100)
	for i := range want {
		if err := b.add(appendRow(nil, &want[i]), int64(100+i)); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range b.rows {
		got := r.Row
		got.Names = b.names[r.id]
		if diff := cmp.Diff(want[i], got); diff != "" || r.seq != int64(100+i) {
			t.Errorf("row %d, seq %d (-want +got):\n%s", i, r.seq, diff)
		}
	}
}

// Nobody's usage is below zero, and none is absurd.
func TestAbsurdUsageIsBounded(t *testing.T) {
	rec := sample()
	rec.Tries = nil
	rec.Counts = usage.Counts{Input: -5, Output: 1 << 62, Source: llm.Reported}
	rec.Cost.Pico, rec.Total, rec.TTFT = -7, -3, 1e300
	rec.Tenant = "a\x00b\xff" + strings.Repeat("é", 400)
	r := rowsOf(nil, rec)[0]
	if r.Input != 0 || r.Output != maxCount || r.Cost.Pico != 0 || r.Total != 0 || r.TTFT != 1e15 {
		t.Errorf("%+v", r)
	}
	if len(r.Tenant) > maxText || !utf8.ValidString(r.Tenant) || strings.Contains(r.Tenant, "\x00") || !strings.HasPrefix(r.Tenant, "ab�é") {
		t.Errorf("tenant %q", r.Tenant)
	}
}

// FuzzRow reads rows that a disk or somebody else has made.
func FuzzRow(f *testing.F) {
	for _, r := range rowsOf(nil, sample()) {
		b := appendRow(nil, &r)
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	f.Add([]byte{})
	f.Add([]byte{rowForm})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b batch
		b.reset(7, 0)
		if err := b.add(raw, 0); err != nil {
			if b.len() != 0 {
				t.Errorf("a row that is none is kept: %+v", b.rows)
			}
			return
		}
		// What was read is written as it was, so that a ledger can be copied.
		r := b.rows[0].Row
		r.Names = b.names[b.rows[0].id]
		var e entry
		if err := readPayload(appendRow(nil, &r), &e); err != nil {
			t.Fatalf("row %+v does not come back: %v", r, err)
		}
		names, err := readNames(e.names)
		if err != nil || names != r.Names {
			t.Errorf("names %+v come back as %+v, %v", r.Names, names, err)
		}
		e.Names = names
		if e.Row != r {
			t.Errorf("row %+v comes back as %+v", r, e.Row)
		}
	})
}
