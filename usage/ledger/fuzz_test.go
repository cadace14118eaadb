// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"io"
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

// segmentOf is a segment with the rows of records.
func segmentOf(records ...*usage.Record) []byte {
	b := header(7, 100)
	for _, rec := range records {
		for _, r := range rowsOf(nil, rec) {
			b = appendFrame(b, &r)
		}
	}
	return b
}

func TestRowsComeBack(t *testing.T) {
	want := rowsOf(nil, sample())
	if len(want) != 2 || want[0].Cost.Pico != 300 || want[1].Cost.Pico != 400 || want[0].Target != "other" || want[0].Counted != Partial {
		t.Fatalf("rows of the sample: %+v", want)
	}
	d, err := newReader(bytes.NewReader(segmentOf(sample())))
	if err != nil {
		t.Fatal(err)
	}
	var b batch
	b.reset(d.source, d.seq)
	for range want {
		p, err := d.next()
		if err == nil {
			err = b.add(p, d.seq-1)
		}
		if err != nil {
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
	if _, err := d.next(); err != io.EOF {
		t.Errorf("after the last row: %v", err)
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

// FuzzSegment reads segments that a crash, a disk or somebody else has made.
func FuzzSegment(f *testing.F) {
	good := segmentOf(sample(), sample())
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(good[:segmentHead])
	f.Add([]byte{})
	torn := bytes.Clone(good)
	torn[segmentHead+20] ^= 0x40
	f.Add(torn)
	f.Add(append(bytes.Clone(good), make([]byte, 64)...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := newReader(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var b batch
		b.reset(d.source, d.seq)
		for {
			p, err := d.next()
			if errors.Is(err, errSum) {
				continue
			}
			if err != nil {
				break
			}
			_ = b.add(p, d.seq-1)
		}
		if d.offset > int64(len(raw)) || d.seq < d.first {
			t.Errorf("read to %d of %d, row %d from %d", d.offset, len(raw), d.seq, d.first)
		}
		for i := range b.rows {
			// What was read is written as it was, so that a ledger can be copied.
			r := b.rows[i].Row
			r.Names = b.names[b.rows[i].id]
			var e entry
			if err := readPayload(appendFrame(nil, &r)[frameHead:], &e); err != nil || e.Row != (func() Row { c := r; c.Names = Names{}; return c }()) {
				t.Errorf("row %+v does not come back: %+v, %v", r, e.Row, err)
			}
		}
	})
}
