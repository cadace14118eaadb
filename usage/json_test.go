// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/penstock/penstock/llm"
)

// fill sets every field within v at random; a third of them stay as they are.
func fill(r *rand.Rand, v reflect.Value) {
	texts := []string{"plain", "a/b-c_1", `"quoted\"`, "tab\tline\n\r\b\f\x00\x1f\x7f", "<a & b>", "ü€😀", "\u2028\u2029", "bad \xff\xc3 utf", "{}[],:"}
	floats := []float64{.25, 1, 1e-7, -3.5e-9, 1e21, 123456789.125, 1e20, math.Copysign(0, -1), 5e-324, math.MaxFloat64, 1.0 / 3, .000001}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(r.Int64N(4e9), r.Int64N(1e9)).In([]*time.Location{time.UTC, time.FixedZone("", 5400)}[r.IntN(2)])))
		return
	}
	if r.IntN(3) == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 4))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.String:
		v.SetString(texts[r.IntN(len(texts))])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64() >> r.IntN(63))
	case reflect.Uint8:
		v.SetUint(r.Uint64N(7))
	case reflect.Float64:
		v.SetFloat(floats[r.IntN(len(floats))])
	default:
		panic("a field of type " + v.Type().String())
	}
}

// A record is written as encoding/json writes it, whatever is in it.
func TestRecordsAreThoseOfEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 20_000 {
		var rec Record
		v := reflect.ValueOf(&rec).Elem()
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(&rec); err != nil {
			t.Fatal(err)
		}
		got, err := appendRecord([]byte("before"), &rec)
		if err != nil || string(got) != "before"+want.String() {
			t.Fatalf("record %d: %v\n got %s\nwant       %s", i, err, got, want.String())
		}
	}
}

func TestRecordsThatJSONCannotSay(t *testing.T) {
	for _, rec := range []*Record{
		{Timing: Timing{Total: math.NaN()}},
		{Timing: Timing{TTFT: math.Inf(1)}},
		{Time: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if b, err := appendRecord([]byte("before"), rec); err == nil || string(b) != "before" {
			t.Errorf("%+v: %s, %v", rec, b, err)
		}
	}
}

// commonRecord is one of a request that a provider has answered.
func commonRecord() *Record {
	rec := &Record{
		Time: time.Unix(1_790_000_000, 123_456_789).UTC(), RequestID: "req_0123456789abcdef", Listener: "bench", Client: "127.0.0.1:45678", Method: "POST",
		Path: "/v1/chat/completions", ModelAsked: "bench", ModelUsed: "bench-1", Attempts: 1, Status: 200, Finish: "stop",
	}
	rec.Tenant, rec.Key, rec.Provider, rec.Served, rec.Prices = "bench/team/project", "key", "bench", "1", "2026-10"
	rec.Counts = llm.Usage{Input: 470, Output: 200, Source: llm.Reported}
	rec.Cost = Cost{Pico: 1_270_000_000, Known: true}
	rec.Tries = []Attempt{{Target: "bench/bench-1", Seconds: .00123, Used: &Used{rec.Counts, rec.Cost}}}
	rec.TTFT, rec.Total, rec.BytesIn, rec.BytesOut = .00123, .00145, 2048, 1024
	return rec
}

func TestWritingARecordAllocates(t *testing.T) {
	rec, line := commonRecord(), make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { line, _ = appendRecord(line[:0], rec) }); n > 0 {
		t.Errorf("%.1f allocations", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	rec := commonRecord()
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var line []byte
		for b.Loop() {
			line, _ = appendRecord(line[:0], rec)
		}
	})
	b.Run("encoding", func(b *testing.B) {
		b.ReportAllocs()
		var line bytes.Buffer
		enc := json.NewEncoder(&line)
		for b.Loop() {
			line.Reset()
			enc.Encode(rec)
		}
	})
}
