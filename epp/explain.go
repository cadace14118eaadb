// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/pool"
)

// Explanation is one decision as a table: a row per candidate.
type Explanation struct {
	RequestID    string        `json:"requestId"`
	At           time.Time     `json:"at"`
	Took         time.Duration `json:"tookNs"`
	Pool         string        `json:"pool"`
	Profile      string        `json:"profile"`
	Model        string        `json:"model"`           // as the server knows it
	Asked        string        `json:"asked,omitempty"` // as the client named it
	PromptTokens int           `json:"promptTokens"`    // estimated
	Reason       string        `json:"reason"`
	Picked       []string      `json:"picked"`
	DryRun       bool          `json:"dryRun,omitempty"`
	Columns      []Column      `json:"columns"`
	Candidates   []Candidate   `json:"candidates"` // best first; the refused last
	Omitted      int           `json:"omitted,omitempty"`
	Remote       *RemotePick   `json:"remote,omitempty"` // a picker elsewhere decided: no columns, no candidates
}

// RemotePick is what passed between the gateway and a picker elsewhere. Times
// count from [Explanation].At; 0: it did not happen.
type RemotePick struct {
	Picker       string          `json:"picker"`            // as configured
	Replica      string          `json:"replica,omitempty"` // the address asked last
	Asked        time.Duration   `json:"askedNs,omitempty"`
	Answered     time.Duration   `json:"answeredNs,omitempty"`
	Failed       time.Duration   `json:"failedNs,omitempty"`
	Failure      string          `json:"failure,omitempty"`    // it did not decide
	Status       int             `json:"status,omitempty"`     // it refused
	NotMembers   []string        `json:"notMembers,omitempty"` // of those that it named
	BodyReplaced bool            `json:"bodyReplaced,omitempty"`
	HeaderEdits  int             `json:"headerEdits,omitempty"`
	Attempts     []RemoteAttempt `json:"attempts,omitempty"`
	Served       string          `json:"served,omitempty"`
	ServedAt     time.Duration   `json:"servedNs,omitempty"`
}

// RemoteAttempt is one member that the request was sent to.
type RemoteAttempt struct {
	Endpoint string        `json:"endpoint"`
	At       time.Duration `json:"atNs"`
}

// SentTo is the member that the request went to as far as is known, or would
// go to; "": nobody.
func (e *Explanation) SentTo() string {
	switch r := e.Remote; {
	case r != nil && r.Served != "":
		return r.Served
	case r != nil && len(r.Attempts) > 0:
		return r.Attempts[len(r.Attempts)-1].Endpoint
	case len(e.Picked) > 0:
		return e.Picked[0]
	}
	return ""
}

// Column is one scorer of the table.
type Column struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"`
}

// Candidate is one row.
type Candidate struct {
	Endpoint      string    `json:"endpoint"`
	State         string    `json:"state"`
	RefusedBy     string    `json:"refusedBy,omitempty"` // filter
	Why           string    `json:"why,omitempty"`       // of the refusal, or what a scorer had to do without
	Scores        []float64 `json:"scores,omitempty"`    // per column, 0..1 before the weight
	Total         float64   `json:"total"`
	MatchedTokens int       `json:"matchedTokens"` // of the prompt, by the prefix index
	Requests      int64     `json:"requests"`      // in flight, own count
	Queued        int64     `json:"queuedTokens"`
	Waiting       float64   `json:"waiting"` // scraped; meaningful only when Metrics is fresh or stale
	Running       float64   `json:"running"`
	KVUsage       float64   `json:"kvUsage"`
	Metrics       string    `json:"metrics"`           // fresh, stale, unknown
	Missing       []string  `json:"missing,omitempty"` // of waiting, running, kvUsage: not on the page
}

// ring keeps the newest picks. Its storage is reused: a row is 200 bytes and
// eight per scorer, a pick has at most 64 rows, so 1024 picks take at most 15
// MiB with three scorers, and 2.5 MiB in a pool of ten.
type ring struct {
	records []record
	next    atomic.Uint64 // number of the next pick
}

const defaultRing = 1024

func newRing(n int) *ring {
	switch {
	case n == 0:
		n = defaultRing
	case n < 0:
		n = 0
	}
	return &ring{records: make([]record, n)}
}

// record is one pick, unformatted. It points at nothing that belongs to a
// member but its address.
type record struct {
	mu      sync.Mutex
	number  uint64 // of the pick, from 1; 0: empty
	id      string
	model   string
	asked   string
	reason  string
	at      time.Time
	took    time.Duration
	profile *Profile
	tokens  int
	picked  []string
	members int
	rows    []row
	scores  []float64 // one slice of columns per ranked row
}

type row struct {
	address, refusedBy    string
	rank                  place
	why                   why
	state                 pool.State
	metrics               freshness
	has                   pool.Signals
	fell                  uint32
	matched               int32
	requests, queued      int64
	total                 float64
	waiting, running, use float64
}

type freshness uint8

const (
	unknown freshness = iota
	fresh
	stale
)

func (f freshness) String() string { return [...]string{"unknown", "fresh", "stale"}[f] }

// keep records a pick.
func (r *ring) keep(v *view, p *Profile, res *Result, took time.Duration) {
	if len(r.records) == 0 {
		return
	}
	number := r.next.Add(1)
	rec := &r.records[(number-1)%uint64(len(r.records))]
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.number > number { // overtaken by a whole round
		return
	}
	rec.number = number
	rec.fill(v, p, res, took)
}

func (rec *record) fill(v *view, p *Profile, res *Result, took time.Duration) {
	rec.id, rec.model, rec.asked, rec.reason = v.r.ID, v.r.Model, v.r.Asked, res.Reason
	rec.at, rec.took, rec.profile, rec.tokens = v.now, took, p, v.tokens
	rec.picked, rec.members = append(rec.picked[:0], res.Endpoints...), len(v.all)
	rec.rows, rec.scores = rec.rows[:0], rec.scores[:0]
	n := len(v.all)
	if room := min(n, explained); cap(rec.rows) < room {
		rec.rows = make([]row, 0, room)
		rec.scores = make([]float64, 0, room*len(p.scorers))
	}
	for _, at := range v.ranked {
		rec.add(&v.all[at.i])
		rec.rows[len(rec.rows)-1].rank = at
		for k := range p.scorers {
			rec.scores = append(rec.scores, v.scores[k*n+int(at.i)])
		}
	}
	for i := 0; i < n && len(rec.rows) < explained; i++ {
		if v.all[i].refusedBy != "" {
			rec.add(&v.all[i])
		}
	}
}

func (rec *record) add(c *candidate) {
	w := row{
		address: c.t.address, refusedBy: c.refusedBy, why: c.why, state: c.state, fell: c.fell,
		matched: int32(c.matched), requests: c.load.Requests, queued: c.load.Queued, total: c.total,
	}
	if c.page != nil {
		w.metrics, w.has, w.waiting, w.running, w.use = fresh, c.page.Has, c.page.Waiting, c.page.Running, c.page.KVUsage
		if c.stale {
			w.metrics = stale
		}
	}
	rec.rows = append(rec.rows, w)
}

// explanation formats a record.
func (rec *record) explanation(poolName string) *Explanation {
	e := &Explanation{
		RequestID: rec.id, At: rec.at, Took: rec.took, Pool: poolName, Profile: rec.profile.name, Model: rec.model, Asked: rec.asked,
		PromptTokens: rec.tokens, Reason: rec.reason, Picked: slices.Clone(rec.picked),
		Columns: slices.Clone(rec.profile.columns), Omitted: rec.members - len(rec.rows),
	}
	columns := len(e.Columns)
	for _, i := range rec.order() {
		w := &rec.rows[i]
		c := Candidate{
			Endpoint: w.address, State: w.state.String(), RefusedBy: w.refusedBy, Why: w.why.String(), Total: w.total,
			MatchedTokens: int(w.matched), Requests: w.requests, Queued: w.queued,
			Waiting: w.waiting, Running: w.running, KVUsage: w.use, Metrics: w.metrics.String(),
		}
		if w.metrics != unknown {
			c.Missing = missing(w.has)
		}
		if w.refusedBy == "" {
			c.Scores = slices.Clone(rec.scores[i*columns : (i+1)*columns])
			c.Why = fellText(e.Columns, w.fell)
		}
		e.Candidates = append(e.Candidates, c)
	}
	return e
}

// order is that of the rows for a reader: best first, the refused last.
func (rec *record) order() []int {
	order := make([]int, len(rec.rows))
	ranked := 0
	for i := range order {
		order[i] = i
		if rec.rows[i].refusedBy == "" {
			ranked++ // the refused were added after all of these
		}
	}
	slices.SortFunc(order[:ranked], func(a, b int) int {
		switch x, y := rec.rows[a].rank, rec.rows[b].rank; {
		case x.before(y):
			return -1
		case y.before(x):
			return 1
		}
		return 0
	})
	return order
}

// The gauges of a row by their names in JSON.
const (
	gaugeWaiting = "waiting"
	gaugeRunning = "running"
	gaugeKV      = "kvUsage"
)

func missing(has pool.Signals) (names []string) {
	for _, g := range []struct {
		signal pool.Signals
		name   string
	}{{pool.HasWaiting, gaugeWaiting}, {pool.HasRunning, gaugeRunning}, {pool.HasKVUsage, gaugeKV}} {
		if has&g.signal == 0 {
			names = append(names, g.name)
		}
	}
	return names
}

// fellText names the scorers that had no metric of a candidate.
func fellText(columns []Column, fell uint32) string {
	if fell == 0 {
		return ""
	}
	var names []string
	for k, c := range columns {
		if fell&(1<<k) != 0 {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ") + ": no metric, own requests in flight used"
}

// Picked is how many picks there were.
func (s *Scheduler) Picked() uint64 { return s.ring.next.Load() }

// Recent returns the newest explanations first, at most n.
func (s *Scheduler) Recent(n int) []*Explanation {
	var out []*Explanation
	s.ring.newest(func(rec *record) bool {
		if len(out) < n {
			out = append(out, rec.explanation(s.pool.Config().Name))
		}
		return len(out) < n
	})
	return out
}

// Find returns the newest explanation of a request that is still kept, or nil.
func (s *Scheduler) Find(requestID string) *Explanation {
	var found *Explanation
	s.ring.newest(func(rec *record) bool {
		if rec.id != requestID {
			return true
		}
		found = rec.explanation(s.pool.Config().Name)
		return false
	})
	return found
}

// newest goes through the records, newest first, each under its lock, until
// yield returns false.
func (r *ring) newest(yield func(*record) bool) {
	next := r.next.Load()
	for k := range uint64(len(r.records)) {
		if k >= next {
			return
		}
		if number := next - k; !r.visit(number, yield) {
			return
		}
	}
}

func (r *ring) visit(number uint64, yield func(*record) bool) bool {
	rec := &r.records[(number-1)%uint64(len(r.records))]
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.number != number || yield(rec)
}

// Table writes the decision for a reader: two lines of facts and a row per
// candidate. Scores are 0 to 1 before their weight; TOTAL is the weighted sum.
func (e *Explanation) Table(w io.Writer) error {
	var b strings.Builder
	e.head(&b)
	if e.Remote != nil {
		e.Remote.write(&b)
		_, err := io.WriteString(w, b.String())
		return err
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(t, "MEMBER\tSTATE\tIN FLIGHT\tQUEUED\tWAITING\tRUNNING\tKV\tCACHED")
	for _, c := range e.Columns {
		fmt.Fprintf(t, "\t%s ×%s", c.Name, number(c.Weight))
	}
	fmt.Fprint(t, "\tTOTAL\tREMARK\n")
	for i := range e.Candidates {
		e.Candidates[i].write(t, len(e.Columns))
	}
	t.Flush() // into memory: no error
	if e.Omitted > 0 {
		fmt.Fprintf(&b, "… and %d more\n", e.Omitted)
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func (e *Explanation) head(b *strings.Builder) {
	what := "request " + e.RequestID
	if e.DryRun {
		what = "dry run"
	}
	how := "profile " + e.Profile
	if e.Remote != nil {
		how = "picker " + e.Remote.Picker
	}
	fmt.Fprintf(b, "%s  pool %s  %s  model %s", what, e.Pool, how, cmp.Or(e.Model, "-"))
	if e.Asked != "" && e.Asked != e.Model {
		fmt.Fprintf(b, " (asked for as %s)", e.Asked)
	}
	fmt.Fprintf(b, "  prompt about %d tokens\n", e.PromptTokens)
	switch len(e.Picked) {
	case 0:
		fmt.Fprintf(b, "nobody was picked: %s", e.Reason)
	case 1:
		fmt.Fprintf(b, "%s: %s", e.Reason, e.Picked[0])
	default:
		fmt.Fprintf(b, "%s: %s, if that fails %s", e.Reason, e.Picked[0], strings.Join(e.Picked[1:], ", "))
	}
	if !e.At.IsZero() {
		fmt.Fprintf(b, "  at %s", e.At.Local().Format("2006-01-02 15:04:05.000"))
	}
	if e.Took > 0 {
		fmt.Fprintf(b, "  in %s", Rounded(e.Took))
	}
	b.WriteString("\n\n")
}

func (c *Candidate) write(w io.Writer, columns int) {
	state, remark, total := c.State, c.Why, fmt.Sprintf("%.3f", c.Total)
	if c.Metrics != fresh.String() && c.Metrics != "" {
		state += ", metrics " + c.Metrics
	}
	if c.RefusedBy != "" {
		remark, total = "refused by "+c.RefusedBy+": "+c.Why, "-"
	}
	fmt.Fprintf(w, "%s\t%s\t%d\t%d", c.Endpoint, state, c.Requests, c.Queued)
	for _, g := range []struct {
		name, text string
	}{{gaugeWaiting, number(c.Waiting)}, {gaugeRunning, number(c.Running)}, {gaugeKV, fmt.Sprintf("%.0f%%", 100*c.KVUsage)}} {
		if c.Metrics == unknown.String() || slices.Contains(c.Missing, g.name) {
			g.text = "-"
		}
		fmt.Fprint(w, "\t", g.text)
	}
	fmt.Fprintf(w, "\t%d", c.MatchedTokens)
	for k := range columns {
		score := "-"
		if k < len(c.Scores) {
			score = fmt.Sprintf("%.3f", c.Scores[k])
		}
		fmt.Fprint(w, "\t", score)
	}
	fmt.Fprintf(w, "\t%s\t%s\n", total, remark)
}

// Rounded is d to four digits, for a reader.
func Rounded(d time.Duration) time.Duration {
	step := time.Duration(100)
	for d/step >= 10_000 {
		step *= 10
	}
	return d.Round(step)
}

// write tells what passed, a line each, with times.
func (p *RemotePick) write(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	line := func(at time.Duration, what, detail string) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", Rounded(at), what, detail)
	}
	if p.Replica != "" {
		line(p.Asked, "asked", p.Replica)
	}
	switch {
	case p.Failure != "":
		line(p.Failed, "failed", p.Failure)
	case p.Status != 0:
		line(p.Answered, "refused", fmt.Sprintf("the request, status %d", p.Status))
	case p.Answered > 0:
		detail := fmt.Sprintf("%d header edits", p.HeaderEdits)
		if p.BodyReplaced {
			detail += ", another body"
		}
		line(p.Answered, "answered", detail)
	}
	for _, endpoint := range p.NotMembers {
		line(p.Answered, "refused", endpoint+": not a member of the pool")
	}
	for _, a := range p.Attempts {
		line(a.At, "sent to", a.Endpoint)
	}
	if p.Served != "" {
		line(p.ServedAt, "served by", p.Served)
	}
	t.Flush() // into memory: no error
}
