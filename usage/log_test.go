// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// counters reads the counters of reg as "name" or "name reason".
func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if v := m.GetCounter().GetValue(); v != 0 {
				got[name] = v
			}
		}
	}
	return got
}

func ids(t *testing.T, text string) []string {
	t.Helper()
	var got []string
	for line := range strings.Lines(text) {
		var r usage.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got = append(got, r.RequestID)
	}
	return got
}

func open(t *testing.T, cfg config.Records, o usage.Options) *usage.Log {
	t.Helper()
	l, err := usage.Open(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRecordsAreJSONLinesInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	// A crash has cut the last line: the next record must not be glued to it.
	if err := os.WriteFile(path, []byte(`{"requestId":"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	l := open(t, config.Records{Path: path, Buffer: 100}, usage.Options{Metrics: usage.NewInstruments(reg)})
	var want []string
	for i := range 100 {
		l.Emit(&usage.Record{RequestID: strconv.Itoa(i), Error: "<a & b>", Spending: usage.Spending{Counts: llm.Usage{Input: 1, CacheRead: 2, Output: i, Source: llm.Reported}}})
		want = append(want, strconv.Itoa(i))
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	if first != `{"requestId":"cut` {
		t.Errorf("the cut line became %q", first)
	}
	if diff := cmp.Diff(want, ids(t, rest)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if !strings.Contains(rest, `"error":"<a & b>"`) || !strings.Contains(rest, `"tokens":{"input":1,"cacheRead":2,"output":99,"source":"reported"},"costUSD":null`) {
		t.Errorf("the last record lacks its error or tokens: %s", rest[len(rest)-300:])
	}
	if diff := cmp.Diff(map[string]float64{"penstock_records_written_total": 100}, counters(t, reg)); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestRecordsOff(t *testing.T) {
	for _, path := range []string{"", "off"} {
		l := open(t, config.Records{Path: path}, usage.Options{})
		if l != nil {
			t.Errorf("path %q opens a log", path)
		}
		l.Emit(&usage.Record{})
		if err := errors.Join(l.Reopen(), l.Close(t.Context())); err != nil {
			t.Errorf("path %q: %v", path, err)
		}
	}
	_, err := usage.Open(config.Records{Path: filepath.Join(t.TempDir(), "no", "folder")}, usage.Options{})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open in a folder that does not exist: %v", err)
	}
}

// gate is a sink that hangs until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	buf  bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

// B39: what waits for a slow sink is bounded.
func TestSlowSinkNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		reg := prometheus.NewRegistry()
		l := open(t, config.Records{Path: "stdout", Buffer: 4}, usage.Options{Metrics: usage.NewInstruments(reg), Stdout: g})
		l.Emit(&usage.Record{RequestID: "hangs"})
		synctest.Wait() // the writer has taken it and hangs in Write
		for i := range 10 {
			l.Emit(&usage.Record{RequestID: strconv.Itoa(i)})
		}
		close(g.open)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		l.Emit(&usage.Record{RequestID: "late"})
		if diff := cmp.Diff([]string{"hangs", "0", "1", "2", "3"}, ids(t, g.buf.String())); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		want := map[string]float64{
			"penstock_records_written_total":        5,
			"penstock_records_dropped_total full":   6,
			"penstock_records_dropped_total closed": 1,
		}
		if diff := cmp.Diff(want, counters(t, reg)); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		reg := prometheus.NewRegistry()
		l := open(t, config.Records{Path: "stdout", Buffer: 4}, usage.Options{Metrics: usage.NewInstruments(reg), Stdout: g})
		l.Emit(&usage.Record{})
		synctest.Wait()
		l.Emit(&usage.Record{})
		l.Emit(&usage.Record{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := l.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 records not written") {
			t.Errorf("Close of a hanging sink: %v", err)
		}
		close(g.open) // synctest fails the test if the writer stays behind
		synctest.Wait()
		want := map[string]float64{"penstock_records_written_total": 1, "penstock_records_dropped_total closed": 2}
		if diff := cmp.Diff(want, counters(t, reg)); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

// failing fails its first writes, the first one after half a line.
type failing struct {
	fail int
	buf  bytes.Buffer
}

func (f *failing) Write(p []byte) (int, error) {
	if f.fail == 0 {
		return f.buf.Write(p)
	}
	f.fail--
	if f.buf.Len() == 0 {
		n, _ := f.buf.Write(p[:len(p)/2])
		return n, errors.New("disk on fire")
	}
	return 0, errors.New("disk on fire")
}

func TestFailingSinkIsCountedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The third record meets two failures: its new line and itself.
		f := &failing{fail: 5}
		var lines bytes.Buffer
		reg := prometheus.NewRegistry()
		l := open(t, config.Records{Path: "stdout", Buffer: 4}, usage.Options{
			Metrics: usage.NewInstruments(reg), Stdout: f,
			Log: slog.New(slog.NewTextHandler(&lines, nil)),
		})
		for i := range 5 {
			l.Emit(&usage.Record{RequestID: strconv.Itoa(i)})
			synctest.Wait()
		}
		l.Emit(&usage.Record{RequestID: "nan", Timing: usage.Timing{TTFT: math.NaN()}})
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_, whole, _ := strings.Cut(f.buf.String(), "\n")
		if diff := cmp.Diff([]string{"3", "4"}, ids(t, whole)); diff != "" {
			t.Errorf("records after the failure (-want +got):\n%s", diff)
		}
		want := map[string]float64{
			"penstock_records_written_total":       2,
			"penstock_records_dropped_total write": 4,
			"penstock_record_write_errors_total":   4,
		}
		if diff := cmp.Diff(want, counters(t, reg)); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
		if n := strings.Count(lines.String(), "disk on fire"); n != 1 {
			t.Errorf("the failure is logged %d times:\n%s", n, lines.String())
		}
		if n := strings.Count(lines.String(), "written again"); n != 1 {
			t.Errorf("the recovery is logged %d times:\n%s", n, lines.String())
		}
	})
}

func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no /dev/full here")
	}
	reg := prometheus.NewRegistry()
	l := open(t, config.Records{Path: "/dev/full", Buffer: 10}, usage.Options{Metrics: usage.NewInstruments(reg)})
	for range 10 {
		l.Emit(&usage.Record{})
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := counters(t, reg)
	if got["penstock_records_dropped_total write"] != 10 || got["penstock_record_write_errors_total"] == 0 {
		t.Errorf("counters: %v", got)
	}
}

func TestReopenFollowsARename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	l := open(t, config.Records{Path: path}, usage.Options{})
	waitFor := func(name, id string) {
		t.Helper()
		for range 30_000 { // a bound on a hang, about 30 s
			text, _ := os.ReadFile(name)
			if strings.Contains(string(text), `"requestId":"`+id+`"`) {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatalf("%s never holds record %s", name, id)
	}
	l.Emit(&usage.Record{RequestID: "before"})
	waitFor(path, "before")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Reopen(), l.Reopen()); err != nil {
		t.Fatal(err)
	}
	l.Emit(&usage.Record{RequestID: "after"})
	waitFor(path, "after")
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path + ".1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"before"}, ids(t, string(old))); diff != "" {
		t.Errorf("the renamed file (-want +got):\n%s", diff)
	}
}

func TestConcurrentEmitAndClose(t *testing.T) {
	const writers, each = 8, 500
	var out bytes.Buffer
	reg := prometheus.NewRegistry()
	l := open(t, config.Records{Path: "stdout", Buffer: 64}, usage.Options{Metrics: usage.NewInstruments(reg), Stdout: &out})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				l.Emit(&usage.Record{RequestID: fmt.Sprint(w, ":", i)})
			}
		})
	}
	wg.Go(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	got := counters(t, reg)
	sum := 0.0
	for _, n := range got {
		sum += n
	}
	if lines := float64(len(ids(t, out.String()))); lines != got["penstock_records_written_total"] || sum != writers*each {
		t.Errorf("%v lines; %v records counted of %d: %v", lines, sum, writers*each, got)
	}
}

func TestEmitAllocatesNothing(t *testing.T) {
	l := open(t, config.Records{Path: "stdout", Buffer: 1 << 16}, usage.Options{Stdout: io.Discard})
	defer l.Close(context.Background())
	r := &usage.Record{RequestID: "r", Time: time.Now()}
	// The writer runs beside it and allocates a little per record (its time is
	// made into text); the request's own part must stay at nothing.
	if n := testing.AllocsPerRun(1000, func() { l.Emit(r) }); n > 2 {
		t.Errorf("Emit and its share of the writer make %v allocations, at most 2", n)
	}
}

func BenchmarkEmit(b *testing.B) {
	l, err := usage.Open(config.Records{Path: "stdout", Buffer: 8192}, usage.Options{Stdout: io.Discard, Metrics: usage.NewInstruments(prometheus.NewRegistry())})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	r := &usage.Record{RequestID: "0123456789abcdef", Time: time.Now(), Listener: "public", Client: "10.0.0.1:1234", Method: "POST", Path: "/v1/chat/completions", ModelAsked: "chat", ModelUsed: "llama", Pool: "llama", Picking: usage.Picking{Picked: "10.0.0.2:8000", Served: "10.0.0.2:8000", PickOutcome: "picked"}, Attempts: 1, Status: 200, Finish: "stop", Timing: usage.Timing{TTFT: .1234, TPOT: .0123, Total: 1.5}}
	b.ReportAllocs()
	for b.Loop() {
		l.Emit(r)
	}
}
