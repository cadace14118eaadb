// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// This file serves the web console: its files, what they ask for beside the rest
// of the interface, and the playground.

//go:embed console
var consoleFiles embed.FS

// Console is what the web console shows beside the rest.
type Console struct {
	Metrics *ConsoleInstruments
	// Now is the state of traffic; Traffic is its history, oldest first.
	Now     func() TrafficNow
	Traffic func() []TrafficPoint
	// Reloads are the newest changes of the configuration, newest first.
	Reloads func() []ReloadStatus
	// Stream is the newest picks with how many there were.
	Stream func() PickStream
	// HasLedger says that Options.Usage has something to go by.
	HasLedger func() bool
	// Search finds records of the newest requests; Record is one as it is written,
	// nil when it is not kept.
	Search func(q RequestQuery) RequestList
	Record func(id string) any
	// Play sends a request of the playground to a listener of this gateway and
	// writes what comes back.
	Play func(w http.ResponseWriter, r *http.Request, p Play)
}

// TrafficPoint is what ended in one second.
type TrafficPoint struct {
	At       int64   `json:"at"` // Unix seconds
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`  // status 500 and above
	Refused  int     `json:"refused"` // 400 to 498
	Left     int     `json:"left"`    // 499: the client left
	Input    int     `json:"input"`   // tokens
	Output   int     `json:"output"`
	Cost     float64 `json:"cost"` // USD
	TTFT50   float64 `json:"ttft50"`
	TTFT90   float64 `json:"ttft90"` // seconds; 0: no request had a first token
}

// TrafficNow is the last minute, and what is of interest beside it.
type TrafficNow struct {
	Minute   TrafficPoint   `json:"minute"` // sums over Seconds
	Seconds  int            `json:"seconds"`
	Unpriced int            `json:"unpriced"` // requests of the minute whose cost is not known
	Open     int            `json:"open"`     // requests under way
	Newest   []TrafficPoint `json:"newest"`
	Errors   []ErrorCount   `json:"errors"`
	Models   []ModelCount   `json:"models"`
}

// ErrorCount is one class of failures among the newest requests.
type ErrorCount struct {
	Class string    `json:"class"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
	ID    string    `json:"requestId"` // of the last
	Text  string    `json:"text"`
}

// ModelCount is one model among the newest requests.
type ModelCount struct {
	Model    string  `json:"model"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	TTFT50   float64 `json:"ttft50"`
	Output   int     `json:"output"`
	Cost     float64 `json:"cost"`
}

// ReloadStatus is one change of the configuration, or one that was refused.
type ReloadStatus struct {
	At      time.Time `json:"at"`
	Error   string    `json:"error,omitempty"` // empty: it is in force
	Took    float64   `json:"tookSeconds"`
	First   bool      `json:"first,omitempty"`
	Changes []string  `json:"changes"` // a line each, without secrets
	More    int       `json:"more,omitempty"`
}

// PickStream is the newest picks.
type PickStream struct {
	Total     uint64     `json:"total"` // since the start, of the pools that are there
	PerSecond float64    `json:"perSecond"`
	Pools     []PickRate `json:"pools"`
	Picks     []PickRow  `json:"picks"` // newest first
}

// PickRate is how often a pool is asked.
type PickRate struct {
	Pool      string  `json:"pool"`
	Total     uint64  `json:"total"`
	PerSecond float64 `json:"perSecond"`
}

// PickRow is one pick in a line.
type PickRow struct {
	ID         string    `json:"requestId"`
	At         time.Time `json:"at"`
	Took       float64   `json:"tookSeconds"`
	Pool       string    `json:"pool"`
	Profile    string    `json:"profile"`
	Model      string    `json:"model"`
	Reason     string    `json:"reason"`
	To         string    `json:"to"`
	Candidates int       `json:"candidates"`
	Refused    int       `json:"refused"`
	Lead       float64   `json:"lead"`          // of the total over the next best
	Cached     int       `json:"matchedTokens"` // of the one picked
	Prompt     int       `json:"promptTokens"`
}

// RequestQuery selects records. A zero field selects all.
type RequestQuery struct {
	ID     string // begins with
	Tenant string // the tenant, or TENANT:KEY
	Model  string // as asked or as used, or a part of it
	Status string // 404, 4xx, failed (400 and above), ok
	Class  string // of errors
	Slower time.Duration
	N      int
}

// RequestList is what was found, newest first.
type RequestList struct {
	Kept     int          `json:"kept"`  // records that were looked at
	Found    int          `json:"found"` // of which so many match
	Requests []RequestRow `json:"requests"`
}

// RequestRow is one request in a line.
type RequestRow struct {
	ID       string    `json:"requestId"`
	At       time.Time `json:"at"`
	Tenant   string    `json:"tenant"`
	Key      string    `json:"key"`
	Path     string    `json:"path"`
	Model    string    `json:"model"`
	Target   string    `json:"target"`
	Served   string    `json:"served"`
	Status   int       `json:"status"`
	Class    string    `json:"errorClass,omitempty"`
	Attempts int       `json:"attempts"`
	TTFT     float64   `json:"ttftSeconds"`
	Total    float64   `json:"totalSeconds"`
	Input    int       `json:"input"`
	Output   int       `json:"output"`
	Cost     *float64  `json:"costUSD"` // null: not known
}

// Play is a request of the playground.
type Play struct {
	Listener string          `json:"listener"` // name; empty: the first
	Path     string          `json:"path"`
	Key      string          `json:"key"` // secret; empty: none is sent
	Body     json.RawMessage `json:"body"`
}

// ConsoleInstruments count what becomes of consoles. nil counts nothing.
type ConsoleInstruments struct {
	clients prometheus.Gauge
	drops   *prometheus.CounterVec
	skips   prometheus.Counter
	signIns *prometheus.CounterVec
}

// NewConsoleInstruments registers them.
func NewConsoleInstruments(reg prometheus.Registerer) *ConsoleInstruments {
	in := &ConsoleInstruments{
		clients: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_console_clients", Help: "Consoles that watch."}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_console_clients_dropped_total",
			Help: "Consoles that were let go: slow (took no bytes for seconds) or full (too many watch)."}, []string{"reason"}),
		skips: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_console_updates_skipped_total",
			Help: "Updates that a console was too slow for; it got a newer one."}),
		signIns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_console_sign_ins_total",
			Help: "Tries to sign in at the console: ok, wrong or throttled."}, []string{"result"}),
	}
	reg.MustRegister(in.clients, in.drops, in.skips, in.signIns)
	return in
}

func (in *ConsoleInstruments) watching(n int) {
	if in != nil {
		in.clients.Set(float64(n))
	}
}

func (in *ConsoleInstruments) dropped(reason string) {
	if in != nil {
		in.drops.WithLabelValues(reason).Inc()
	}
}

func (in *ConsoleInstruments) skipped() {
	if in != nil {
		in.skips.Inc()
	}
}

func (in *ConsoleInstruments) signIn(result string) {
	if in != nil {
		in.signIns.WithLabelValues(result).Inc()
	}
}

const (
	consolePath = "/console/"
	// consolePolicy: nothing but what this address serves, in no frame.
	consolePolicy  = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	shownMembers   = 200 // of one pool, in what is live
	shownLimits    = 200 // nodes
	defaultFound   = 100
	maxFound       = 500
	maxPlay        = 1 << 20
	maxQueryLength = 256
)

// console registers the console.
func (s *server) console() {
	c := s.Console
	s.live = newHub(s.liveTopics(), c.Metrics)
	files, err := fs.Sub(consoleFiles, "console")
	if err != nil {
		panic(err) // it is embedded
	}
	static := http.StripPrefix(consolePath, http.FileServerFS(files))
	s.handleAs(Nobody, http.MethodGet, consolePath, "the console, for a browser", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", consolePolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache") // a new binary may have new files
		static.ServeHTTP(w, r)
	})
	s.mux.HandleFunc("GET /console/session", s.whoami)
	s.mux.HandleFunc("POST /console/session", s.signIn)
	s.mux.HandleFunc("DELETE /console/session", s.signOut)
	s.get("/console/events", "what changes, as server-sent events; ?topics=overview,pools,…", s.events)
	s.get("/console/traffic", "the traffic of the last minutes by the second", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, c.Traffic())
	})
	s.get("/console/requests", "records of the newest requests; ?id=&tenant=&model=&status=5xx&class=&slower=2s&n=100", s.search)
	s.get("/console/requests/{id}", "the record of one request", s.record)
	s.handleAs(Operator, http.MethodPost, "/console/play", "", s.play)
}

// liveTopics are what can be watched.
func (s *server) liveTopics() map[string]func(ctx context.Context) any {
	c := s.Console
	return map[string]func(ctx context.Context) any{
		"overview": func(context.Context) any {
			return map[string]any{"now": c.Now(), "ready": s.Ready(), "reloads": c.Reloads(), "picks": c.Stream().Pools}
		},
		"pools": func(context.Context) any { return shown(s.Pools()) },
		"picks": func(context.Context) any { return c.Stream() },
		"models": func(context.Context) any {
			return map[string]any{"models": s.Models(), "targets": s.Targets()}
		},
		"tenants": func(ctx context.Context) any {
			page, err := s.Limits(ctx, "", "", shownLimits)
			if err != nil {
				return map[string]any{"error": err.Error()}
			}
			return map[string]any{"limits": page.Limits, "next": page.Next, "ledger": c.HasLedger()}
		},
		"requests": func(context.Context) any { return c.Search(RequestQuery{N: defaultPicks}) },
	}
}

// shown is pools with a bounded number of members each, those that are not ready
// before the others.
func shown(pools []PoolStatus) []PoolStatus {
	for i := range pools {
		p := &pools[i]
		if len(p.Status) <= shownMembers {
			continue
		}
		var first, rest []MemberStatus
		for _, m := range p.Status {
			if m.State == "ready" {
				rest = append(rest, m)
			} else {
				first = append(first, m)
			}
		}
		p.Status = append(first, rest...)[:shownMembers]
	}
	return list(pools)
}

func (s *server) search(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	find := RequestQuery{ID: q.Get("id"), Tenant: q.Get("tenant"), Model: q.Get("model"), Status: q.Get("status"), Class: q.Get("class"), N: defaultFound}
	for name, values := range q {
		if len(values[0]) > maxQueryLength {
			writeError(w, http.StatusBadRequest, quote(name)+" is too long", fmt.Sprintf("at most %d bytes", maxQueryLength))
			return
		}
	}
	var err error
	if text := q.Get("n"); text != "" {
		if find.N, err = strconv.Atoi(text); err != nil || find.N < 1 || find.N > maxFound {
			writeError(w, http.StatusBadRequest, "n is "+quote(text), fmt.Sprintf("a number from 1 to %d", maxFound))
			return
		}
	}
	if text := q.Get("slower"); text != "" {
		if find.Slower, err = time.ParseDuration(text); err != nil || find.Slower < 0 {
			writeError(w, http.StatusBadRequest, "slower is "+quote(text), "a time such as 1.5s or 300ms")
			return
		}
	}
	writeJSON(w, http.StatusOK, s.Console.Search(find))
}

func (s *server) record(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if v := s.Console.Record(id); v != nil {
		writeJSON(w, http.StatusOK, v)
		return
	}
	writeError(w, http.StatusNotFound, "nothing is kept of request "+quote(id), "only the newest are kept; the file of records and the ledger have the rest")
}

// play has a request sent. The secret of a key passes through and is kept nowhere.
func (s *server) play(w http.ResponseWriter, r *http.Request) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPlay))
	dec.DisallowUnknownFields()
	var p Play
	if err := dec.Decode(&p); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			writeError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), "")
			return
		}
		writeError(w, http.StatusBadRequest, "the body cannot be read: "+err.Error(), "")
		return
	}
	if !strings.HasPrefix(p.Path, "/v1/") && !strings.HasPrefix(p.Path, "/v1beta/") {
		writeError(w, http.StatusBadRequest, "path is "+quote(p.Path), "a path of a model API, such as /v1/chat/completions")
		return
	}
	s.Console.Play(w, r, p)
}

// wantsPage says that a browser asks for a page.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }
