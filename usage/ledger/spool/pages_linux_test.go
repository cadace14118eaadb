// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"fmt"
	"testing"
)

// Only Linux has segments in pages.

// A page that the disk does not bring is an error and not the end of the process;
// the row goes to the next segment.
func TestLostPages(t *testing.T) {
	s := openSpool(t, t.TempDir())
	if err := s.Put(framed("first"), 1, plenty); err != nil {
		t.Fatal(err)
	}
	if s.cur.pages == nil {
		t.Fatal("the segment has no pages")
	}
	g := s.last()
	if err := s.cur.f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if s.TryPut(framed("lost"), 1, plenty) {
		t.Error("a row is put where there is no file")
	}
	if err := s.Put(framed("second"), 1, plenty); err != nil {
		t.Fatal(err)
	}
	if s.last() == g {
		t.Error("the segment is still in use")
	}
	s.Take(g.End())
	if rows := takeAll(t, s); fmt.Sprint(rows) != "[second]" {
		t.Errorf("rows %q", rows)
	}
}

// TryPut allocates nothing.
func TestTryPutAllocates(t *testing.T) {
	s := openSpool(t, t.TempDir())
	f := framed("a row")
	if err := s.Put(f, 1, plenty); err != nil {
		t.Fatal(err)
	}
	if s.cur.pages == nil {
		t.Fatal("the segment has no pages")
	}
	if n := testing.AllocsPerRun(1000, func() { s.TryPut(f, 1, plenty) }); n > 0 {
		t.Errorf("%.1f allocations", n)
	}
}
