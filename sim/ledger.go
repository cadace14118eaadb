// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"sync"
	"time"
)

// Stats is a server's own count of what it served: the truth that a test
// compares the gateway's records with.
type Stats struct {
	Requests     int64            `json:"requests"` // that reached generation
	InFlight     int64            `json:"inFlight"`
	Completed    int64            `json:"completed"`
	Aborted      int64            `json:"aborted"` // the client left, or a fault cut the answer
	Failed       int64            `json:"failed"`
	PromptTokens int64            `json:"promptTokens"`
	CachedTokens int64            `json:"cachedTokens"`
	OutputTokens int64            `json:"outputTokens"`
	Paths        map[string]int64 `json:"paths"`   // requests by path, refused ones and scrapes too
	Records      []Record         `json:"records"` // of ended requests, oldest first, the last 4096

	// Of a provider: all requests that arrived, by credential and model, and
	// the headers of the newest.
	Attempts  int64   `json:"attempts,omitzero"`
	Cancelled int64   `json:"cancelled,omitzero"` // the client left before the end, in whatever state
	Calls     []Calls `json:"calls,omitempty"`
	Seen      []Seen  `json:"seen,omitempty"`
}

// Record is one request.
type Record struct {
	RequestID    string   `json:"requestId,omitempty"` // the x-request-id header
	Path         string   `json:"path"`
	Model        string   `json:"model"`
	Stream       bool     `json:"stream"`
	Choices      int      `json:"choices"`
	PromptTokens int      `json:"promptTokens"`
	CachedTokens int      `json:"cachedTokens"`
	OutputTokens int      `json:"outputTokens"`
	Aborted      bool     `json:"aborted"`
	Error        string   `json:"error,omitempty"`
	TTFT         Duration `json:"ttft"` // 0: no token
	Total        Duration `json:"total"`
}

const (
	keptRecords = 4096
	keptPaths   = 256 // further ones count as "other"
)

// ledger collects Stats.
type ledger struct {
	mu    sync.Mutex
	stats Stats
	next  int // place of the next record once the ring is full
}

func (l *ledger) path(p string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats.Paths == nil {
		l.stats.Paths = map[string]int64{}
	}
	if _, known := l.stats.Paths[p]; !known && len(l.stats.Paths) >= keptPaths {
		p = "other"
	}
	l.stats.Paths[p]++
}

func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Requests++
	l.stats.InFlight++
}

func (l *ledger) end(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.stats
	s.InFlight--
	switch {
	case r.Aborted:
		s.Aborted++
	case r.Error != "":
		s.Failed++
	default:
		s.Completed++
	}
	s.PromptTokens += int64(r.PromptTokens)
	s.CachedTokens += int64(r.CachedTokens)
	s.OutputTokens += int64(r.OutputTokens)
	if len(s.Records) < keptRecords {
		s.Records = append(s.Records, r)
		return
	}
	s.Records[l.next] = r
	l.next = (l.next + 1) % keptRecords
}

// read copies the stats with the newest records, at most last of them.
func (l *ledger) read(last int) Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Paths = make(map[string]int64, len(l.stats.Paths))
	for k, v := range l.stats.Paths {
		s.Paths[k] = v
	}
	s.Records = slices.Concat(l.stats.Records[l.next:], l.stats.Records[:l.next])
	s.Records = s.Records[max(0, len(s.Records)-last):]
	return s
}

// record is what a job was.
func (j *job) record(g *generation, err error) Record {
	n := j.counts()
	r := Record{
		Model: g.model, Stream: g.stream, Choices: len(j.choices),
		PromptTokens: n.prompt, CachedTokens: n.cached, OutputTokens: n.output,
		Total: Duration(time.Since(j.arrival)),
	}
	if g.silent {
		r.OutputTokens = 0
	}
	if err != nil {
		r.Error = err.Error()
	}
	for _, c := range j.choices {
		p := c.now()
		r.Aborted = r.Aborted || p.aborted
		if !p.first.IsZero() && (r.TTFT == 0 || Duration(p.first.Sub(j.arrival)) < r.TTFT) {
			r.TTFT = Duration(p.first.Sub(j.arrival))
		}
	}
	return r
}
