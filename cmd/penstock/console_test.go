// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

func TestTraffic(t *testing.T) {
	var tr traffic
	start := time.Unix(1_800_000_000, 0)
	note := func(after time.Duration, status int, ttft float64, pico int64) {
		r := &usage.Record{Status: status, Timing: usage.Timing{TTFT: ttft}}
		r.Counts.Input, r.Counts.CacheRead, r.Counts.Output = 10, 5, 3
		r.Cost = usage.Cost{Pico: pico, Known: pico > 0}
		tr.note(r, start.Add(after))
	}
	for range 9 {
		note(0, 200, 0.1, 1e12)
	}
	note(100*time.Millisecond, 502, 4, 0)
	note(time.Second, 429, 0, 0)
	note(time.Second, 499, 0, 0)
	got := tr.points(start.Add(3*time.Second), 3)
	if len(got) != 3 || got[0].Requests != 10 || got[0].Failed != 1 || got[0].Input != 150 || got[0].Output != 30 || got[0].Cost != 9 ||
		got[1].Refused != 1 || got[1].Left != 1 || got[2].Requests != 0 {
		t.Errorf("points: %+v", got)
	}
	// Classes are a quarter wide.
	if p := got[0]; p.TTFT50 < 0.1/1.25 || p.TTFT50 > 0.1*1.25 || p.TTFT90 > 0.2 {
		t.Errorf("quantiles: %+v", p)
	}
	if sum := tr.minute(start.Add(3*time.Second), 60); sum.requests != 12 || sum.unpriced != 3 || sum.quantile(0.99) < 3 {
		t.Errorf("minute: %+v", sum)
	}
	// Ten minutes later the places are another second's.
	note(trafficSeconds*time.Second, 200, 0, 0)
	if sum := tr.minute(start.Add((trafficSeconds+1)*time.Second), trafficSeconds); sum.requests != 3 {
		t.Errorf("after ten minutes %d are counted, want the last two seconds", sum.requests)
	}
	for _, extreme := range []float64{1e-9, 0.001, 1e9} {
		if c := waitClass(extreme); c < 0 || c >= waitClasses {
			t.Errorf("%v is of class %d", extreme, c)
		}
	}
}

func TestReloadLogIsBounded(t *testing.T) {
	var l reloadLog
	for i := range keptReloads + 5 {
		l.note(admin.ReloadStatus{Took: float64(i), Error: strings.Repeat("é", keptErrorLog)})
	}
	changes := make([]string, keptChanges+7)
	changes[0] = strings.Repeat("x", 2*keptChange)
	l.note(admin.ReloadStatus{Changes: changes})
	all := l.newest()
	if len(all) != keptReloads || len(all[0].Changes) != keptChanges || all[0].More != 7 || len(all[0].Changes[0]) > keptChange+len("…") || all[1].Took != keptReloads+4 {
		t.Errorf("%d are kept, the newest with %d lines and %d more", len(all), len(all[0].Changes), all[0].More)
	}
	if len(all[1].Error) > keptErrorLog+len("…") {
		t.Errorf("an error of %d bytes is kept", len(all[1].Error))
	}
	if text, _ := json.Marshal(all[1]); !strings.Contains(string(text), `"changes":[]`) {
		t.Errorf("%s", text)
	}
}

// TestSearch: who was refused before a target was chosen is found too, and a flood
// of them pushes out nothing else.
func TestSearch(t *testing.T) {
	g := newGateway(slog.New(slog.DiscardHandler), "")
	at := time.Unix(1_800_000_000, 0)
	note := func(id string, status int, change func(r *usage.Record)) {
		at = at.Add(time.Second)
		r := &usage.Record{RequestID: id, Time: at, Status: status}
		change(r)
		g.sinks.take(r)
	}
	served := func(r *usage.Record) {
		r.Tenant, r.Key, r.ModelAsked, r.ModelUsed, r.Total = "acme/search", "ci", "chat", "llama-8b", 2.5
		r.Tries = []usage.Attempt{{Target: "pool/llama-8b"}}
		r.Cost = usage.Cost{Pico: 5e11, Known: true}
	}
	note("served-1", 200, served)
	note("failed-1", 502, func(r *usage.Record) { served(r); r.ErrorClass, r.Total = "upstream", 0.1 })
	for i := range recentRequests + 10 {
		note(fmt.Sprintf("refused-%d", i), 401, func(r *usage.Record) { r.ErrorClass, r.ModelAsked = "invalid_api_key", strings.Repeat("<", 5000) })
	}
	for _, c := range []struct {
		q     admin.RequestQuery
		found int
	}{
		{admin.RequestQuery{}, recentRequests + 2},
		{admin.RequestQuery{ID: "served"}, 1},
		{admin.RequestQuery{Tenant: "acme"}, 2},
		{admin.RequestQuery{Tenant: "acme/search:ci"}, 2},
		{admin.RequestQuery{Tenant: "acm"}, 0},
		{admin.RequestQuery{Model: "llama"}, 2},
		{admin.RequestQuery{Status: "5xx"}, 1},
		{admin.RequestQuery{Status: "ok"}, 1},
		{admin.RequestQuery{Status: "failed"}, recentRequests + 1},
		{admin.RequestQuery{Status: "401"}, recentRequests},
		{admin.RequestQuery{Class: "upstream"}, 1},
		{admin.RequestQuery{Tenant: "acme", Slower: time.Second}, 1},
	} {
		c.q.N = 3
		got := g.search(c.q)
		if got.Found != c.found || len(got.Requests) != min(3, c.found) {
			t.Errorf("%+v: %d found, %d shown, want %d", c.q, got.Found, len(got.Requests), c.found)
		}
	}
	newest := g.search(admin.RequestQuery{N: 1}).Requests[0]
	if newest.ID != fmt.Sprintf("refused-%d", recentRequests+9) || len(newest.Model) > recentText || newest.Cost != nil {
		t.Errorf("newest: %+v", newest)
	}
	if r, is := g.recordOf("served-1").(*usage.Record); !is || r.RequestID != "served-1" {
		t.Error("a record is not found")
	}
	if g.recordOf("refused-0") != nil {
		t.Error("a record is kept beyond the bound, or nil is something")
	}
}

// busy is a gateway with one pool of so many members.
func busy(t testing.TB, members int) *gateway {
	t.Helper()
	g := newGateway(slog.New(slog.DiscardHandler), "")
	list := make([]string, members)
	for i := range list {
		list[i] = fmt.Sprintf("%q", fmt.Sprintf("127.0.0.1:%d", 40000+i))
	}
	cfg, err := config.Parse("x.yaml", []byte(fmt.Sprintf(`
listeners: [{name: public, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools: [{name: llama, members: {static: [%s]}}]
models: [{name: chat, targets: [{pool: llama}]}]
`, strings.Join(list, ", "))))
	if err == nil {
		err = g.reload(cfg, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.close(t.Context()) })
	return g
}

func pick(t testing.TB, g *gateway, id string) {
	res, err := g.pooled("llama").scheduler.Pick(t.Context(), &epp.Request{ID: id, Model: "chat", Prompt: &llm.Prompt{}})
	if err != nil {
		t.Fatal(err)
	}
	res.Done(epp.Outcome{Err: errors.New("not sent")})
}

func TestPickStream(t *testing.T) {
	g := busy(t, 3)
	s := &stream{gateway: g, seen: map[string]uint64{}}
	for i := range 120 {
		pick(t, g, fmt.Sprint("a", i))
	}
	at := time.Now()
	s.look(at)
	if len(s.rows) != streamPicks || s.rows[0].ID != "a119" || s.rows[0].Candidates != 3 {
		t.Fatalf("%d rows, the first %+v", len(s.rows), s.rows[0])
	}
	pick(t, g, "b")
	pick(t, g, "c")
	s.look(at.Add(time.Second))
	got := s.next()
	if len(got.Picks) != streamPicks || got.Picks[0].ID != "c" || got.Picks[1].ID != "b" || got.Picks[2].ID != "a119" || got.Total != 122 || got.PerSecond != 2 {
		t.Errorf("%d rows of %d, %v per second, the first %s, %s, %s", len(got.Picks), got.Total, got.PerSecond, got.Picks[0].ID, got.Picks[1].ID, got.Picks[2].ID)
	}
}

// TestPlay: the playground reaches a listener of this gateway, and what comes back
// cannot be a page.
func TestPlay(t *testing.T) {
	g := busy(t, 1)
	w := httptest.NewRecorder()
	g.play(w, httptest.NewRequest("POST", "/console/play", nil), admin.Play{Listener: "public", Path: "/v1/chat/completions", Body: json.RawMessage(`{"model": "none", "messages": [{"role": "user", "content": "x"}]}`)})
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "model_not_found") || w.Header().Get("X-Request-Id") == "" {
		t.Errorf("an unknown model: %d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	g.play(w, httptest.NewRequest("POST", "/console/play", nil), admin.Play{Listener: "other", Path: "/v1/models"})
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "no such listener") {
		t.Errorf("an unknown listener: %d %s", w.Code, w.Body)
	}
	for in, want := range map[string]string{"0.0.0.0:80": "localhost:80", "[::]:80": "localhost:80", "10.0.0.1:80": "10.0.0.1:80"} {
		if got := dialable(in); got != want {
			t.Errorf("%s is dialled at %s", in, got)
		}
	}
}

// BenchmarkPickStream is what a second of 2,000 picks costs when consoles watch:
// one look, and its JSON. At 3 % of a core it may take 30 ms.
func BenchmarkPickStream(b *testing.B) {
	g := busy(b, 64)
	s := &stream{gateway: g, seen: map[string]uint64{}}
	now := time.Now()
	for b.Loop() {
		b.StopTimer()
		for i := range 2000 {
			pick(b, g, fmt.Sprint(i))
		}
		b.StartTimer()
		now = now.Add(time.Second)
		s.look(now)
		if _, err := json.Marshal(s.next()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOverview is one update of the overview with full rings.
func BenchmarkOverview(b *testing.B) {
	g := busy(b, 64)
	for i := range 3 * recentRequests {
		r := &usage.Record{RequestID: fmt.Sprint(i), Time: time.Now(), Status: 200 + i%2*300, ModelAsked: fmt.Sprint("m", i%20), Timing: usage.Timing{TTFT: 0.2}}
		if i%2 == 0 {
			r.Tries = []usage.Attempt{{Target: "llama/chat"}}
		}
		g.sinks.take(r)
	}
	for b.Loop() {
		if _, err := json.Marshal([]any{g.trafficNow(), g.readiness(), g.reloads.log.newest()}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrafficNote is what the console costs each request.
func BenchmarkTrafficNote(b *testing.B) {
	var tr traffic
	r := &usage.Record{Status: 200, Timing: usage.Timing{TTFT: 0.2}}
	now := time.Now()
	for b.Loop() {
		tr.note(r, now)
	}
}
