// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/usage"
)

// This file is what the web console shows beside the rest of package admin.

func (g *gateway) console() *admin.Console {
	s := &stream{gateway: g, seen: map[string]uint64{}}
	return &admin.Console{
		Metrics: g.consoleMetrics,
		Now:     g.trafficNow,
		Traffic: func() []admin.TrafficPoint { return g.traffic.points(time.Now(), trafficSeconds) },
		Reloads: g.reloads.log.newest,
		Stream:  s.next, HasLedger: func() bool { return g.ledger.Load() != nil },
		Search: g.search,
		Record: g.recordOf,
		Play:   g.play,
	}
}

const (
	keptReloads  = 10
	keptChanges  = 200     // lines of one
	keptChange   = 1 << 10 // bytes of a line
	keptErrorLog = 8 << 10
)

// reloadLog is the newest changes of the configuration.
type reloadLog struct {
	mu  sync.Mutex
	all []admin.ReloadStatus // newest first
}

func (l *reloadLog) note(r admin.ReloadStatus) {
	if n := len(r.Changes); n > keptChanges {
		r.Changes, r.More = r.Changes[:keptChanges], n-keptChanges
	}
	lines := make([]string, len(r.Changes)) // never nil, so that JSON has a list
	for i, line := range r.Changes {
		lines[i] = clip(line, keptChange)
	}
	r.Changes, r.Error = lines, clip(r.Error, keptErrorLog)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append([]admin.ReloadStatus{r}, l.all[:min(len(l.all), keptReloads-1)]...)
}

func (l *reloadLog) newest() []admin.ReloadStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

const streamPicks = 50 // that are kept to be shown

// stream is the newest picks of all pools. Only what is new since the last look is
// formatted, so that it costs the same however many picks there are.
type stream struct {
	gateway *gateway
	mu      sync.Mutex
	at      time.Time
	seen    map[string]uint64 // picks of a pool at that time
	rates   []admin.PickRate
	rows    []admin.PickRow
}

// next looks at most ten times a second; between that it answers as before.
func (s *stream) next() admin.PickStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.at) >= time.Second/10 {
		s.look(now)
	}
	out := admin.PickStream{Pools: s.rates, Picks: s.rows}
	for _, r := range s.rates {
		out.Total += r.Total
		out.PerSecond += r.PerSecond
	}
	return out
}

func (s *stream) look(now time.Time) {
	passed := now.Sub(s.at).Seconds()
	seen, rates, rows := map[string]uint64{}, []admin.PickRate{}, []admin.PickRow{}
	for _, name := range s.gateway.poolNames() {
		p := s.gateway.pooled(name)
		if p == nil || p.explainer() == nil {
			continue
		}
		total, before := p.explainer().Picked(), s.seen[name]
		if before > total { // another pool of that name
			before = 0
		}
		seen[name] = total
		rate := admin.PickRate{Pool: name, Total: total}
		if !s.at.IsZero() && passed < 10 {
			rate.PerSecond = float64(total-before) / passed
		}
		rates = append(rates, rate)
		for _, e := range p.explainer().Recent(int(min(total-before, streamPicks))) {
			rows = append(rows, pickRow(e))
		}
	}
	slices.SortStableFunc(rows, func(a, b admin.PickRow) int { return b.At.Compare(a.At) })
	for _, r := range s.rows {
		if r.Reason == "" { // a picker elsewhere had not decided
			if p := s.gateway.pooled(r.Pool); p != nil && p.remote != nil {
				if e := p.remote.Find(r.ID); e != nil {
					r = pickRow(e)
				}
			}
		}
		rows = append(rows, r)
	}
	s.at, s.seen, s.rates, s.rows = now, seen, rates, rows[:min(len(rows), streamPicks)]
}

func pickRow(e *epp.Explanation) admin.PickRow {
	r := admin.PickRow{
		ID: e.RequestID, At: e.At, Took: e.Took.Seconds(), Pool: e.Pool, Profile: e.Profile, Model: e.Model, Reason: e.Reason,
		To: e.SentTo(), Candidates: len(e.Candidates) + e.Omitted, Prompt: e.PromptTokens,
	}
	if e.Remote != nil {
		r.Profile = "remote"
	}
	best, next := -1.0, -1.0
	for i := range e.Candidates {
		c := &e.Candidates[i]
		switch {
		case c.RefusedBy != "":
			r.Refused++
		case c.Endpoint == r.To:
			best, r.Cached = c.Total, c.MatchedTokens
		default:
			next = max(next, c.Total)
		}
	}
	if best >= 0 && next >= 0 {
		r.Lead = best - next
	}
	return r
}

// records are those that are kept, newest first.
func (g *gateway) newestRecords() []*usage.Record {
	all := append(g.recent.newest(), g.refused.newest()...)
	slices.SortStableFunc(all, func(a, b *usage.Record) int { return b.Time.Compare(a.Time) })
	return all
}

func (g *gateway) search(q admin.RequestQuery) admin.RequestList {
	all := g.newestRecords()
	out := admin.RequestList{Kept: len(all), Requests: []admin.RequestRow{}}
	for _, r := range all {
		if matches(r, &q) {
			if out.Found++; out.Found <= q.N {
				out.Requests = append(out.Requests, requestRow(r))
			}
		}
	}
	return out
}

func matches(r *usage.Record, q *admin.RequestQuery) bool {
	switch {
	case !strings.HasPrefix(r.RequestID, q.ID),
		q.Tenant != "" && q.Tenant != r.Tenant && q.Tenant != r.Tenant+":"+r.Key && !strings.HasPrefix(r.Tenant, q.Tenant+"/"),
		q.Model != "" && !strings.Contains(r.ModelAsked, q.Model) && !strings.Contains(r.ModelUsed, q.Model),
		q.Class != "" && q.Class != r.ErrorClass,
		r.Total < q.Slower.Seconds():
		return false
	}
	switch q.Status {
	case "":
		return true
	case "ok":
		return r.Status < 400
	case "failed":
		return r.Status >= 400
	case "4xx", "5xx":
		return r.Status/100 == int(q.Status[0]-'0')
	}
	return q.Status == statusText(r.Status)
}

func statusText(n int) string {
	return string([]byte{byte('0' + n/100%10), byte('0' + n/10%10), byte('0' + n%10)})
}

func requestRow(r *usage.Record) admin.RequestRow {
	row := admin.RequestRow{
		ID: r.RequestID, At: r.Time, Tenant: r.Tenant, Key: r.Key, Path: r.Path, Model: r.ModelAsked,
		Target: cmp.Or(r.Pool, r.Provider), Served: r.Served, Status: r.Status, Class: r.ErrorClass, Attempts: r.Attempts,
		TTFT: r.TTFT, Total: r.Total, Input: inputOf(r), Output: r.Counts.Output + r.Counts.Reasoning,
	}
	if r.Cost.Known {
		usd := usdOf(r)
		row.Cost = &usd
	}
	return row
}

func inputOf(r *usage.Record) int {
	return r.Counts.Input + r.Counts.CacheRead + r.Counts.CacheWrite + r.Counts.CacheWrite1h
}

// usdOf is for a screen: a float is near enough.
func usdOf(r *usage.Record) float64 { return float64(r.Cost.Pico) / 1e12 }

// recordOf is the record of a request, nil when it is not kept.
func (g *gateway) recordOf(id string) any {
	if r := cmp.Or(g.recent.find(id), g.refused.find(id)); r != nil {
		return r
	}
	return nil
}

const (
	playTime  = 10 * time.Minute
	playWrite = 30 * time.Second // a browser that takes nothing for so long is let go
)

// play sends a request of the playground to the listener as any client would, and
// passes on what comes back.
func (g *gateway) play(w http.ResponseWriter, r *http.Request, p admin.Play) {
	refuse := func(status int, message string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, `{"error": {"message": "`+message+`"}}`)
	}
	ready := g.readiness()
	i := slices.IndexFunc(ready.Listeners, func(l admin.ListenerStatus) bool {
		return l.Up && !strings.HasPrefix(l.Name, "picker:") && (p.Listener == "" || l.Name == p.Listener)
	})
	if i < 0 {
		refuse(http.StatusNotFound, "there is no such listener")
		return
	}
	l := ready.Listeners[i]
	scheme := "http://"
	if l.TLS {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, scheme+dialable(l.Address)+p.Path, bytes.NewReader(p.Body))
	if err != nil {
		refuse(http.StatusBadRequest, "the path cannot be read")
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if p.Key != "" {
		req.Header.Set("Authorization", "Bearer "+p.Key)
	}
	client := &http.Client{Timeout: playTime, Transport: &http.Transport{
		DisableKeepAlives: true,
		// It is this very process at its own address, whatever names its certificate has.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		g.log.Warn("the playground cannot reach the listener", "listener", l.Name, "error", err)
		refuse(http.StatusBadGateway, "the listener cannot be reached; the log has the reason")
		return
	}
	defer res.Body.Close()
	// No other type: what a model writes must not be shown as a page of this origin.
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind != "text/event-stream" && kind != "application/json" {
		kind = "application/octet-stream"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Request-Id", res.Header.Get("X-Request-Id"))
	w.WriteHeader(res.StatusCode)
	out, piece := http.NewResponseController(w), make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(piece)
		if n > 0 {
			out.SetWriteDeadline(time.Now().Add(playWrite))
			if _, gone := w.Write(piece[:n]); gone != nil || out.Flush() != nil {
				break
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that it does not look whole
		}
	}
	out.SetWriteDeadline(time.Time{}) // the connection may serve on
}

// dialable is a bound address as this process can call it.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return address
}
