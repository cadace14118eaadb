// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/jsonedit"
)

func scan(data string, depth int) error {
	s := jsonedit.NewScanner([]byte(data), depth)
	s.Skip()
	s.Finish()
	return s.Err()
}

func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                     "0: unexpected end of the text",
		`{"a":1,}`:             "7: a member name should be here",
		`[1,]`:                 "3: a value should begin here",
		`[1 2]`:                "3: a comma or a closing bracket should be here",
		`{"a" 1}`:              "5: a colon should be here",
		`NaN`:                  "0: a value should begin here",
		`nul`:                  "0: not a literal",
		`01`:                   "0: not a number",
		`-`:                    "0: not a number",
		`1.e3`:                 "0: not a number",
		"\"a\nb\"":             "2: control character in a string",
		`"abc`:                 "0: unfinished string",
		`"\x"`:                 "1: invalid escape",
		`"\u12g4"`:             "1: invalid escape",
		`"\ud800\u0041"`:       "1: unpaired surrogate",
		`"\udc00"`:             "1: unpaired surrogate",
		"\"abcdefgh\xff\"":     "9: invalid UTF-8",
		"\"\xed\xa0\x80\"":     "1: invalid UTF-8",
		"\"\xc0\xaf\"":         "1: invalid UTF-8",
		"\"\xf4\x90\x80\x80\"": "1: invalid UTF-8",
		`{} x`:                 "3: text after the value",
		`[[[1]]]`:              "2: nested too deep",
	} {
		err := scan(text, 2)
		if err == nil || err.Error() != "invalid JSON at byte "+want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestWalk reads what it knows and skips the rest.
func TestWalk(t *testing.T) {
	data := []byte(` { "skip" : {"a":[1,{}]}, "list" : [ "x" , -1.5 , [ ] ] , "n":7 } `)
	s := jsonedit.NewScanner(data, 0)
	var got []string
	note := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
	if s.Array() || !s.Object() {
		t.Fatal("not an object")
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch name := key.Value(data); name {
		case "list":
			for s.Array(); s.NextElement(); {
				if text, ok := s.Text(); ok {
					note("text %s", text.Of(data))
				} else if number, ok := s.Number(); ok {
					note("number %s", number.Of(data))
				} else {
					note("%d %s", s.Peek(), s.Skip().Of(data))
				}
			}
		default:
			note("%s %s", name, s.Skip().Of(data))
		}
	}
	if !s.Finish() || s.Failed() || s.Err() != nil {
		t.Fatal(s.Err())
	}
	want := []string{`skip {"a":[1,{}]}`, "text x", "number -1.5", fmt.Sprintf("%d [ ]", jsonedit.Array), "n 7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEndOfRun(t *testing.T) {
	for _, text := range []string{"", `"`, `\`, "abcdefgh", `abcdefg"hij`, "0123456789\x00\xff#!]\\", `0123456789012345678"\`} {
		for i := range len(text) + 1 {
			want := len(text)
			if j := strings.IndexAny(text[i:], `"\`); j >= 0 {
				want = i + j
			}
			if got := jsonedit.EndOfRun([]byte(text), i); got != want {
				t.Errorf("%q from %d: %d, want %d", text, i, got, want)
			}
		}
	}
}

func TestTextSizeAndValue(t *testing.T) {
	for _, want := range []string{"", "plain text of more than sixteen bytes", "a\n\"b\"\\ü€😀", "\x00\x1f\x7f/"} {
		for _, literal := range literals(t, want) {
			s := jsonedit.NewScanner([]byte(literal), 0)
			text, ok := s.Text()
			if !ok || !s.Finish() {
				t.Fatalf("%s: %v", literal, s.Err())
			}
			if got := text.Value([]byte(literal)); got != want || text.Size != len(want) {
				t.Errorf("%s: %q, size %d; want %q, %d", literal, got, text.Size, want, len(want))
			}
			if got := text.Quoted().Of([]byte(literal)); string(got) != literal {
				t.Errorf("quoted %s, want %s", got, literal)
			}
		}
	}
}

// literals are several ways to write s.
func literals(t *testing.T, s string) []string {
	t.Helper()
	std, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var units strings.Builder
	units.WriteByte('"')
	for _, r := range s {
		if r > 0xffff {
			r -= 0x10000
			fmt.Fprintf(&units, `\u%04x\u%04X`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		} else {
			fmt.Fprintf(&units, `\u%04x`, r)
		}
	}
	units.WriteByte('"')
	return []string{string(std), string(jsonedit.AppendString(nil, s)), units.String()}
}

func TestUnescapeStopsWhenFull(t *testing.T) {
	literal := []byte(`ab\ncd\u20acef`)
	var got []byte
	for rest := literal; len(rest) > 0; {
		var piece []byte
		piece, rest = jsonedit.Unescape(make([]byte, 0, 4), rest)
		if len(piece) == 0 || cap(piece) != 4 {
			t.Fatalf("piece %q of capacity %d", piece, cap(piece))
		}
		got = append(got, piece...)
	}
	if string(got) != "ab\ncd€ef" {
		t.Errorf("%q", got)
	}
}

func TestApplyAndInsert(t *testing.T) {
	data := []byte(`{"a":1, "o" : { } , "p":{"q":2 } }`)
	find := func(s string) jsonedit.Span {
		i := bytes.Index(data, []byte(s))
		return jsonedit.Span{Start: i, End: i + len(s)}
	}
	got := jsonedit.Apply(data,
		jsonedit.Edit{Span: find("1"), Text: []byte(`"one"`)},
		jsonedit.Insert(data, find("{ }"), `"x":true`),
		jsonedit.Insert(data, find(`{"q":2 }`), `"y":0`),
		jsonedit.Insert(data, jsonedit.Span{Start: 0, End: len(data)}, `"z":[]`),
	)
	want := `{"a":"one", "o" : { "x":true} , "p":{"q":2 ,"y":0} ,"z":[]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if len(got) != cap(got) && cap(got)-len(got) > 16 {
		t.Errorf("length %d, capacity %d", len(got), cap(got))
	}
}

func TestInt(t *testing.T) {
	for text, want := range map[string]int{"0": 0, "-3": -3, "2147483648": 1 << 31, "999999999999999999": 999999999999999999} {
		if got, ok := jsonedit.Int([]byte(text)); !ok || got != want {
			t.Errorf("%s: %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "-", "1.0", "1e3", "9999999999999999999"} {
		if got, ok := jsonedit.Int([]byte(text)); ok {
			t.Errorf("%s: %d", text, got)
		}
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	data := chat(2000, "Grüße\n")
	if n := testing.AllocsPerRun(100, func() {
		s := jsonedit.NewScanner(data, 0)
		s.Skip()
		if !s.Finish() {
			t.Fatal(s.Err())
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNaturals(t *testing.T) {
	for text, want := range map[string]int{
		`[0]`: 1, `[ 1 , 20,3 ]`: 3, "[1,\n2]x": 2,
		`[]`: -1, `[1,]`: -1, `[01]`: -1, `[-1]`: -1, `[1.0]`: -1, `[1e1]`: -1, `[101]`: -1, `["1"]`: -1, `[1`: -1, `[1 2]`: -1,
		`[18446744073709551617]`: -1,
	} {
		s := jsonedit.NewScanner([]byte(text), 0)
		n, ok := s.Naturals(100)
		if !ok {
			n = -1
		}
		if n != want || ok && s.Pos() != strings.Index(text, "]")+1 || !ok && s.Pos() != 0 {
			t.Errorf("%s: %d, at %d", text, n, s.Pos())
		}
	}
}

// A fault is found wherever it stands in the words that are read at a time.
func TestNaturalsAtAnyOffset(t *testing.T) {
	for element, good := range map[string]bool{
		"0": true, "7": true, "1234567": true, "12345678": true, "2147483647": true, "  12": true, "\n5": true, "5\n": true, "5 ": true,
		"": false, " ": false, "00": false, "01": false, "007": false, "-1": false, "1.5": false, "1e3": false, "1E3": false, "+1": false,
		"2147483648": false, "99999999999999999999": false, "1 2": false, "1\t": false, "\r1": false, "[1]": false, "{}": false,
		`"1"`: false, "null": false, "1;": false, "/": false, ":": false, "1$": false, "1(": false, "1$2": false, "1(2": false, "\x00": false, "1\x80": false,
		"\xb0": false, "\xac": false, "1\x0c": false,
	} {
		for _, comma := range []string{",", ", ", ",  "} {
			for before := range 20 {
				for after := range 12 {
					text := "[" + strings.Repeat("1", before%7+1) + comma + strings.Repeat("23"+comma, before) + element + strings.Repeat(comma+"456", after) + "]"
					s := jsonedit.NewScanner([]byte(text), 0)
					n, ok := s.Naturals(math.MaxInt32)
					if ok != good || ok && (n != 2+before+after || s.Pos() != len(text)) {
						t.Fatalf("%q: %d, %v, at %d", text, n, ok, s.Pos())
					}
				}
			}
		}
	}
}

// natural is an integer from 0 as JSON writes it.
var natural = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

// naturals is what Naturals must find at the beginning of b, by encoding/json.
// Of white space it knows what writers put between numbers: no tab, no CR.
func naturals(b []byte, limit int64) (list []int64, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(b))
	var raw []json.RawMessage
	if dec.Decode(&raw) != nil || len(raw) == 0 {
		return nil, false
	}
	array := bytes.TrimLeft(b[:dec.InputOffset()], " \n\r\t")
	if bytes.ContainsAny(array, "\r\t") {
		return nil, false
	}
	for _, r := range raw {
		n, err := strconv.ParseInt(string(r), 10, 64)
		if !natural.Match(r) || err != nil || n > limit {
			return nil, false
		}
		list = append(list, n)
	}
	return list, true
}

// FuzzNaturals holds the list of numbers against encoding/json, and what is
// appended against what was written.
func FuzzNaturals(f *testing.F) {
	for _, s := range []string{
		"[1]", "[]", "[0,00]", "[1, 2,3 ,\n4]", "[12345,678,9999999,10000000,2147483647,2147483648]", "[1234567,12345678,123456789]",
		"[1,,2]", "[1,2", "[1,\t2]", "[1,-2]", "[1,2.0]", "[1,2]]", "[1,\"2\"]", "[1234567]", "[123456789012345678901234567890]", "[1,2\xff]", "[/1,:2]",
		"[151643, 8948, 198, 0, 0, 7, 151645, 198, 1,  2,   3]", "[15164,89480,19800,00,15164,1]", "[15164,89480,19800,10,15164,1", "[1515,8948,198,151645198,198, 1]",
		"[1,2,3,4,5,6,7,8,9,10,11,12,13,14e1,15,16,17]", " [10,11,12 ,13,14,15,16,17,18,19]", "[10,11,12,[13],14,15,16]", "[\n  10,\n  11,\n  12,\n  13\n]",
	} {
		f.Add([]byte(s), uint8(9))
	}
	f.Fuzz(func(t *testing.T, b []byte, room uint8) {
		for _, limit := range []int{100, 9999999, math.MaxInt32} {
			want, good := naturals(b, int64(limit))
			s := jsonedit.NewScanner(b, 4)
			n, ok := s.Naturals(limit)
			if ok != good || n != len(want) && ok {
				t.Fatalf("%q to %d: %d numbers, %v; want %d, %v", b, limit, n, ok, len(want), good)
			}
			if !ok {
				if s.Pos() > 0 && len(bytes.TrimLeft(b[:s.Pos()], " \n\r\t")) > 0 {
					t.Fatalf("%q: refused, and yet read to %d", b, s.Pos())
				}
				continue
			}
			array := b[:s.Pos()]
			buf := make([]byte, 3, 4+int(room))
			for i := 0; cap(buf) >= 7; { // else there is room for none
				buf, array = jsonedit.AppendNaturals(buf[:3], array)
				for p := buf[3:]; len(p) >= 4; p = p[4:] {
					if got := binary.LittleEndian.Uint32(p); i >= len(want) || int64(got) != want[i] {
						t.Fatalf("%q: number %d is %d", b, i, got)
					}
					i++
				}
				if len(array) == 0 {
					if i != len(want) {
						t.Fatalf("%q: %d of %d numbers", b, i, len(want))
					}
					break
				}
			}
		}
	})
}

// FuzzScan holds the scanner against encoding/json, which accepts more in two
// points only: bytes that are not UTF-8, and unpaired surrogates.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e+3,true,false,null,"x\n\u00e9\ud83d\ude00"]}`, `[]`, ` {} `, `"\ud800"`, "\"\xff\"", `{"a":1,"a":2}`,
		`[1,]`, `01`, `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa€aa"`, `{"":{"":{"":[[[]]]}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := jsonedit.NewScanner(data, 0)
		s.Skip()
		ok := s.Finish()
		valid := json.Valid(data)
		quick := jsonedit.NewScanner(data, 0)
		if n, yes := quick.Naturals(1 << 31); yes {
			var ids []uint64
			if err := json.NewDecoder(bytes.NewReader(data)).Decode(&ids); err != nil || len(ids) != n {
				t.Fatalf("%d natural numbers, encoding/json has %d (%v)", n, len(ids), err)
			}
		}
		if ok && (!valid || !utf8.Valid(data)) {
			t.Fatalf("accepted, but encoding/json: %v, UTF-8: %v", valid, utf8.Valid(data))
		}
		if !ok && valid && utf8.Valid(data) {
			reason := s.Err().(*jsonedit.SyntaxError).Reason
			if reason != "unpaired surrogate" && reason != "nested too deep" {
				t.Fatalf("refused: %v", s.Err())
			}
		}
	})
}

// FuzzJSONEdit inserts a member and replaces a value, and compares with the
// same done by encoding/json.
func FuzzJSONEdit(f *testing.F) {
	f.Add([]byte(`{"model":"a","x":1}`), "new")
	f.Add([]byte(`{ }`), "quote\" \\ \x01 ü")
	f.Add([]byte(` {"a": {"b":[1,2]} ,"model" : {"c":3}} `), "m")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		s := jsonedit.NewScanner(data, 0)
		s.Peek()
		object := jsonedit.Span{Start: s.Pos()}
		if !s.Object() {
			return
		}
		var model jsonedit.Span
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			value := s.Skip()
			if key.Value(data) == "model" {
				model = value // the last one, as encoding/json has it
			}
		}
		object.End = s.Pos()
		if !s.Finish() {
			return
		}
		quoted := jsonedit.AppendString(nil, name)
		var edits []jsonedit.Edit
		if model.Len() > 0 {
			edits = append(edits, jsonedit.Edit{Span: model, Text: quoted})
		}
		edits = append(edits, jsonedit.Insert(data, object, `"added":`+string(quoted)))
		got := jsonedit.Apply(data, edits...)

		var before, after map[string]json.RawMessage
		if err := json.Unmarshal(data, &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		before["added"] = quoted
		if model.Len() > 0 {
			before["model"] = quoted
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatal(diff)
		}
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != strings.ToValidUTF8(name, "\ufffd") && utf8.ValidString(name) {
			t.Fatalf("%q became %q (%v)", name, back, err)
		}
	})
}

// chat is a chat body with about size bytes of text made of unit.
func chat(size int, unit string) []byte {
	text, _ := json.Marshal(strings.Repeat(unit, size/len(unit)))
	return []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":` + string(text) + `}]}`)
}

func BenchmarkScan(b *testing.B) {
	for name, unit := range map[string]string{
		"ascii":   "The quick brown fox jumps over the lazy dog. ",
		"escapes": "func f() {\n\treturn \"a quoted string in some code\"\n}\n",
		"german":  "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ",
		"cjk":     "いろはにほへとちりぬるを",
	} {
		data := chat(400_000, unit)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				s := jsonedit.NewScanner(data, 0)
				s.Skip()
				if !s.Finish() {
					b.Fatal(s.Err())
				}
			}
		})
	}
}
