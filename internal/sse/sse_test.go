// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sse_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/sse"
)

type event struct{ Type, Data string }

// read feeds the inputs and returns the events with data, and all raw bytes.
func read(limit int, inputs ...string) (events []event, raw string) {
	s := sse.Scanner{Limit: limit}
	var out []byte
	take := func(e sse.Event) {
		out = append(out, e.Raw...)
		if e.HasData {
			events = append(events, event{string(e.Type), string(e.Data)})
			for i, c := range e.Data {
				if c != '\n' && e.Raw[e.RawOffset(i)] != c {
					panic("RawOffset is wrong")
				}
			}
		}
	}
	for _, in := range inputs {
		n := s.Feed([]byte(in))
		out = append(out, in[:n]...)
		for {
			e, ok := s.Next()
			if !ok {
				break
			}
			take(e)
		}
	}
	if e, ok := s.Close(); ok {
		take(e)
	}
	return events, string(out)
}

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []event
	}{
		{"line feeds", "data: a\n\ndata: b\n\n", []event{{"", "a"}, {"", "b"}}},
		{"CR LF", "event: x\r\ndata: a\r\n\r\n", []event{{"x", "a"}}},
		{"CR", "event: x\rdata: a\r\rdata: b\r\r", []event{{"x", "a"}, {"", "b"}}},
		{"byte order mark", "\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\n", []event{{"", "a"}}},
		{"comments", ": keep-alive\n\n: ping\ndata: a\n\n", []event{{"", "a"}}},
		{"several data lines", "data: a\ndata:b\nevent: t\ndata\n\n", []event{{"t", "a\nb\n"}}},
		{"one space only", "data:  a\ndata\n\n", []event{{"", " a\n"}}},
		{"no space", "data:[DONE]\n\n", []event{{"", "[DONE]"}}},
		{"unknown fields", "id: 1\nretry: 3\nfoo: x\ndata2: y\ndata: a\n\n", []event{{"", "a"}}},
		{"unfinished", "data: a\n\ndata: b", []event{{"", "a"}, {"", "b"}}},
		{"unfinished line", "data: a\r", []event{{"", "a"}}},
		{"empty lines", "\n\n\r\n\ndata: a\n\n\n", []event{{"", "a"}}},
		{"empty data", "data:\n\n", []event{{"", ""}}},
		{"mixed ends", "data: a\r\ndata: b\n\r\n", []event{{"", "a\nb"}}},
	} {
		got, raw := read(0, c.in)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if raw != c.in {
			t.Errorf("%s: raw %q", c.name, raw)
		}
		for i := range len(c.in) + 1 {
			split, raw := read(0, c.in[:i], c.in[i:])
			if diff := cmp.Diff(got, split); diff != "" || raw != c.in {
				t.Errorf("%s split at %d: raw %q\n%s", c.name, i, raw, diff)
			}
		}
	}
}

func TestEventOverTheLimitPasses(t *testing.T) {
	in := "data: a\n\ndata: " + strings.Repeat("x", 40) + "\r\ndata: y\r\n\r\ndata: b\n\n"
	want := []event{{"", "a"}, {"", "b"}}
	for i := range len(in) {
		for _, j := range []int{i, min(i+1, len(in)), min(i+7, len(in))} {
			got, raw := read(32, in[:i], in[i:j], in[j:])
			if diff := cmp.Diff(want, got); diff != "" || raw != in {
				t.Fatalf("split at %d, %d: raw %q\n%s", i, j, raw, diff)
			}
		}
	}
}

func TestWholeEventIsNotCopied(t *testing.T) {
	in := []byte("data: a\n\n")
	var s sse.Scanner
	s.Feed(in)
	e, ok := s.Next()
	if !ok || &e.Raw[0] != &in[0] || &e.Data[0] != &in[6] {
		t.Error("the event is a copy")
	}
	if n := testing.AllocsPerRun(100, func() {
		s.Feed(in)
		s.Next()
		if _, ok := s.Next(); ok {
			t.Fatal("two events")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzSSE holds every split against the whole, and the whole against a plain
// reading of the rules.
func FuzzSSE(f *testing.F) {
	f.Add([]byte("data: a\n\nevent: b\r\ndata: c\r\n\r\n"), uint16(3), uint16(9))
	f.Add([]byte("\xEF\xBB\xBFdata: a\rdata: b\r\r\n: x\n"), uint16(1), uint16(2))
	f.Add([]byte("data\ndata:x\n\ndata: unfinished"), uint16(0), uint16(30))
	f.Add([]byte("\r\r\n\n\r"), uint16(1), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, a, b uint16) {
		want, raw := read(0, string(in))
		if raw != string(in) {
			t.Fatalf("raw %q of %q", raw, in)
		}
		if diff := cmp.Diff(plainly(in), want); diff != "" {
			t.Fatalf("%q (-plain +got):\n%s", in, diff)
		}
		i := int(a) % (len(in) + 1)
		j := i + int(b)%(len(in)-i+1)
		for _, limit := range []int{0, 8} {
			got, raw := read(limit, string(in[:i]), string(in[i:j]), string(in[j:]))
			whole, _ := read(limit, string(in))
			if diff := cmp.Diff(whole, got); diff != "" || raw != string(in) {
				t.Fatalf("%q at %d, %d, limit %d: raw %q\n%s", in, i, j, limit, raw, diff)
			}
		}
	})
}

// plainly reads a whole stream the slow way.
func plainly(in []byte) (events []event) {
	in = bytes.TrimPrefix(in, []byte("\xEF\xBB\xBF"))
	text := strings.ReplaceAll(strings.ReplaceAll(string(in), "\r\n", "\n"), "\r", "\n")
	var e event
	has := false
	flush := func() {
		if has {
			e.Data = strings.TrimSuffix(e.Data, "\n")
			events = append(events, e)
		}
		e, has = event{}, false
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			flush()
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "data":
			has = true
			e.Data += value + "\n"
		case "event":
			e.Type = value
		}
	}
	flush()
	return events
}
