// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

const plenty = 1 << 30

// framed are rows as frames.
func framed(rows ...string) []byte {
	var b []byte
	for _, r := range rows {
		start := len(b)
		b = append(Begin(b), r...)
		Seal(b[start:])
	}
	return b
}

func openSpool(t testing.TB, dir string) *Spool {
	t.Helper()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// takeAll reads and takes what there is.
func takeAll(t testing.TB, s *Spool) (rows []string) {
	t.Helper()
	for {
		g, grows, ok := s.Oldest()
		if !ok || grows && g.Taken == g.End() {
			return rows
		}
		r, err := g.Open()
		if err != nil {
			t.Fatal(err)
		}
		for r.At() != g.End() {
			p, err := r.Next()
			if err != nil {
				t.Fatalf("%s at %+v of %+v: %v", g.Path, r.At(), g, err)
			}
			rows = append(rows, string(p))
		}
		r.Close()
		s.Take(g.End())
	}
}

// Rows that were put by several goroutines, over several segments, are taken once
// and in the order of each goroutine, while others are put.
func TestRowsAreTakenOnce(t *testing.T) {
	s := openSpool(t, t.TempDir())
	const putters, each = 4, 5000
	pad := bytes.Repeat([]byte("x"), 900)
	var slow sync.Mutex // Put is for one
	var wg sync.WaitGroup
	for g := range putters {
		wg.Go(func() {
			for i := range each {
				f := framed(fmt.Sprintf("%d %d %s", g, i, pad))
				if s.TryPut(f, 1, plenty) {
					continue
				}
				slow.Lock()
				err := s.Put(f, 1, plenty)
				slow.Unlock()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var next [putters]int
	total := 0
	for ended := false; ; {
		for _, row := range takeAll(t, s) {
			var g, i int
			if _, err := fmt.Sscanf(row, "%d %d", &g, &i); err != nil || i != next[g] || len(row) < len(pad) {
				t.Fatalf("row %.20q, after %d of its putter", row, next[g])
			}
			next[g]++
			total++
		}
		if ended {
			break
		}
		select {
		case <-done:
			ended = true
		default:
			s.Sync()
		}
	}
	if total != putters*each || s.Waiting() != 0 {
		t.Errorf("%d rows, %d wait", total, s.Waiting())
	}
	if s.next < 2 {
		t.Errorf("all fits %d segment", s.next)
	}
}

// What was put is there for the next process, whether or not this one has ended
// in order; and one that ends within a row has not put it.
func TestFormerProcess(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir)
	for i := range 10 {
		if err := s.Put(framed(strconv.Itoa(i)), 1, plenty); err != nil {
			t.Fatal(err)
		}
	}
	g, _, _ := s.Oldest()
	s.Take(Position{g.Taken.Offset + frameHead + 1, g.Taken.Seq + 1})
	raw, err := os.ReadFile(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	half := framed("half")
	copy(half, make([]byte, 4)) // its length had not been written
	if s.cur.pages != nil {
		copy(raw[g.Size:], half)
	} else {
		raw = append(raw, half...)
	}
	other := t.TempDir() // as if the process had been killed
	if err := os.WriteFile(filepath.Join(other, filepath.Base(g.Path)), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	again := openSpool(t, other)
	if again.Waiting() != 10 {
		t.Errorf("%d rows wait", again.Waiting())
	}
	if err := again.Put(framed("new"), 1, plenty); err != nil {
		t.Fatal(err)
	}
	if rows := takeAll(t, again); fmt.Sprint(rows) != "[0 1 2 3 4 5 6 7 8 9 new]" {
		t.Errorf("rows %q", rows)
	}
	again.Close()
	if left, _ := filepath.Glob(filepath.Join(other, "*.segment")); len(left) > 0 {
		t.Errorf("what was taken has left %v", left)
	}
}

func BenchmarkTryPut(b *testing.B) {
	s := openSpool(b, b.TempDir())
	f := framed(string(make([]byte, 160)))
	b.ReportAllocs()
	for b.Loop() {
		if !s.TryPut(f, 1, plenty) {
			if err := s.Put(f, 1, plenty); err != nil {
				b.Fatal(err)
			}
			g, _, _ := s.Oldest()
			s.Take(g.End())
		}
	}
}

// FuzzSegment makes a segment by a script and reads it: what comes are the rows
// that were written, in order, up to the first place where the reader cannot know
// how to go on. A step is two bytes:
//
//	0 n  a row of n+1 bytes
//	1 n  a row of which the byte n counted from the front is changed afterwards
//	2 n  a frame of which the length's byte n mod 4 is changed
//	3 n  n zeros
//	4 n  the last n bytes are cut
func FuzzSegment(f *testing.F) {
	f.Add([]byte{0, 5, 0, 200, 0, 0})
	f.Add([]byte{0, 5, 1, 7, 0, 3, 3, 9})
	f.Add([]byte{0, 5, 2, 1, 0, 3})
	f.Add([]byte{0, 5, 0, 9, 4, 3})
	f.Add([]byte{0, 5, 3, 2, 0, 9})
	f.Add([]byte{4, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		raw := header(7, 100)
		var want []string // "": a row that is damaged
		var ends []int
		sound := len(raw) // up to there the reader must go
		open := true      // nothing has stopped it
		headed := true    // the header is whole
		for i := 0; i+1 < len(script) && len(raw) < 4*readAhead; i += 2 {
			n := int(script[i+1])
			start := len(raw)
			switch script[i] % 5 {
			case 0, 1, 2:
				size := n + 1
				if script[i]%5 != 0 {
					size = 40
				}
				row := bytes.Repeat([]byte{byte(i) | 1}, size)
				raw = append(raw, framed(string(row))...)
				switch script[i] % 5 {
				case 1:
					raw[start+frameHead+n%size] ^= 0x40
					row = nil
				case 2:
					raw[start+n%4] ^= 0x5a
					open = false
				}
				if open {
					want, ends, sound = append(want, string(row)), append(ends, len(raw)), len(raw)
				}
			case 3:
				raw = append(raw, make([]byte, n)...)
				if n > 0 {
					open = false
				}
			case 4:
				raw = raw[:max(0, len(raw)-n)]
				headed = headed && len(raw) >= segmentHead
				open = open && headed
				for len(ends) > 0 && ends[len(ends)-1] > len(raw) {
					want, ends, open = want[:len(want)-1], ends[:len(ends)-1], false
					sound = segmentHead
					if len(ends) > 0 {
						sound = ends[len(ends)-1]
					}
				}
			}
		}
		d, err := newReader(bytes.NewReader(raw))
		if err != nil {
			if headed {
				t.Errorf("the header is not read: %v", err)
			}
			return
		}
		for i, row := range want {
			got, err := d.Next()
			if row == "" && !errors.Is(err, ErrSum) || row != "" && (err != nil || string(got) != row) {
				t.Fatalf("row %d of %d bytes: %d bytes, %v", i, len(row), len(got), err)
			}
		}
		if at := d.At(); headed && at != (Position{int64(sound), int64(100 + len(want))}) {
			t.Errorf("after %d rows the reader is at %+v and not %d", len(want), at, sound)
		}
		for range len(script) + 2 { // what it makes of the rest, it must come to an end
			if _, err = d.Next(); err != nil && !errors.Is(err, ErrSum) {
				break
			}
		}
		if err == nil || errors.Is(err, ErrSum) || d.At().Offset > int64(len(raw)) {
			t.Errorf("it reads on at %+v of %d: %v", d.At(), len(raw), err)
		}
		if open && sound == len(raw) && err != io.EOF {
			t.Errorf("at the end of a sound segment: %v", err)
		}
	})
}

// FuzzFile opens a spool on whatever is in its directory.
func FuzzFile(f *testing.F) {
	good := append(header(7, 100), framed("one", "two")...)
	f.Add(good)
	f.Add(append(bytes.Clone(good), make([]byte, 40)...))
	f.Add(binary.LittleEndian.AppendUint32(append(bytes.Clone(good), make([]byte, 40)...), 7))
	f.Add(good[:len(good)-1])
	f.Add(make([]byte, 64))
	f.Add([]byte("X"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "000000000003.segment"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openSpool(t, dir)
		waiting, n := s.Waiting(), int64(0)
		if g, _, ok := s.Oldest(); ok {
			r, err := g.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for r.At() != g.End() {
				if _, err := r.Next(); err != nil && !errors.Is(err, ErrSum) {
					t.Fatalf("at %+v of %+v: %v", r.At(), g, err)
				}
				n++
			}
			s.Take(g.End())
		}
		if n != waiting || s.Waiting() != 0 {
			t.Errorf("%d rows of %d, %d wait", n, waiting, s.Waiting())
		}
	})
}
