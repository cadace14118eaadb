// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// What a row is of.
const (
	OfRequest = "request" // one per request, with what the attempt that answered used
	OfAttempt = "attempt" // an attempt that another followed, if it used tokens
	OfOutcome = "outcome" // how a task went, told later than its requests
)

// How the counts of a row came about; "" when nothing was used.
const (
	Reported  = "reported"  // by the server
	Estimated = "estimated" // by the gateway
	Partial   = "partial"   // by both: the answer broke off
	Lost      = "lost"      // nothing is known of what was used
)

// Row is one line of the ledger.
type Row struct {
	Names
	At      int64  // when it was settled, Unix microseconds
	Request string // id
	Task    string
	Attempt int64 // of an attempt, its number; of a request, how many were made
	Counts
	Cost    Amount
	Avoided Amount // what a cached answer has saved
	TTFT    int64  // microseconds; 0: none
	Total   int64  // microseconds
}

// Names are what many rows have in common. The database keeps each combination
// once, so a row is numbers.
type Names struct {
	What     string
	Tenant   string
	Org      string // outermost tenant
	Key      string // its name
	User     string // the end user that the client named
	Asked    string // model
	Alias    string // that it stood for
	Served   string // model, as the server names it
	Target   string // provider or pool
	Region   string
	Account  string // at a provider, or the member of a pool
	Error    string // class
	Fallback string
	Counted  string
	Prices   string // version of the table
	Outcome  string // of the task: success, failure
	Status   int64
}

// Counts are what was used by kind, each counted once: no kind is part of
// another. All are tokens but the last four.
type Counts struct {
	Input, CachedRead, Write5m, Write1h, Output, Reasoning int64
	AudioIn, ImageIn, AudioOut, ImageOut                   int64
	Images, Searches, Units, Millis                        int64 // made; of the web; of a rerank; of sound
}

// all are the counts in the order of the columns.
func (c *Counts) all() [len(countNames)]*int64 {
	return [...]*int64{&c.Input, &c.CachedRead, &c.Write5m, &c.Write1h, &c.Output, &c.Reasoning,
		&c.AudioIn, &c.ImageIn, &c.AudioOut, &c.ImageOut, &c.Images, &c.Searches, &c.Units, &c.Millis}
}

// common says that none but the first commonCounts are there.
func (c *Counts) common() bool {
	all := c.all()
	for _, n := range all[commonCounts:] {
		if *n != 0 {
			return false
		}
	}
	return true
}

// countNames are the columns of Counts.
var countNames = [...]string{"input", "cached_read", "cached_write_5m", "cached_write_1h", "output", "reasoning",
	"audio_in", "image_in", "audio_out", "image_out", "images", "searches", "units", "millis"}

// commonCounts are how many of them most rows have; the others default to 0.
const commonCounts = 6

// Amount is money in picodollars (1e-12 USD), or unknown, which is not 0.
type Amount struct {
	Pico  int64
	Known bool
}

// Bounds of what a client or a server may put into a row.
const (
	maxText  = 256
	maxCount = 1 << 40 // of one kind in one row; more is a server's mistake
)

// rowsOf appends the rows of a record to rows: that of the request, with what the
// attempt that answered has used, and before it one per other attempt that has
// used something. The sum over all rows is what was used and spent.
func rowsOf(rows []Row, rec *usage.Record) []Row {
	r := Row{
		Names: Names{
			What: OfRequest, Tenant: rec.Tenant, Key: rec.Key, Asked: rec.ModelAsked, Alias: rec.Alias, Served: rec.ModelUsed,
			Target: rec.Provider, Account: rec.Served, Error: rec.ErrorClass, Fallback: rec.Fallback, Prices: rec.Prices,
			Status: int64(rec.Status), Outcome: rec.Outcome, User: rec.User,
		},
		At:      rec.Time.Add(time.Duration(rec.Total * float64(time.Second))).UnixMicro(),
		Request: rec.RequestID, Task: rec.Task, Attempt: int64(rec.Attempts),
		TTFT: micros(rec.TTFT), Total: micros(rec.Total),
	}
	if r.Target == "" {
		r.Target = rec.Pool
	}
	r.Org, _, _ = strings.Cut(r.Tenant, "/")
	r.use(&rec.Counts, rec.Cost)
	if rec.Avoided != nil {
		r.Avoided = Amount(*rec.Avoided)
	}
	answered := len(rec.Tries) == 0
	for i := range rec.Tries {
		t := &rec.Tries[i]
		if i == len(rec.Tries)-1 && t.Error == "" {
			answered = true
			if t.Used != nil && !rec.Cost.Known {
				r.Cost = Amount(t.Used.Cost)
			}
			continue
		}
		if t.Used == nil {
			continue
		}
		a := Row{Names: r.Names, At: r.At, Request: r.Request, Task: r.Task, Attempt: int64(i + 1), Total: micros(t.Seconds)}
		a.What, a.Error, a.Outcome, a.Account = OfAttempt, t.Error, "", ""
		a.Target, a.Served, _ = strings.Cut(t.Target, "/")
		a.use(&t.Used.Counts, t.Used.Cost)
		if rec.Cost.Known {
			r.Cost.Pico -= a.Cost.Pico
		}
		a.clean()
		rows = append(rows, a)
	}
	if !answered { // what was used is in the rows of the attempts
		r.Counts, r.Counted = Counts{}, ""
		if !rec.Cost.Known {
			r.Cost = Amount{Known: true}
		}
	}
	r.clean()
	return append(rows, r)
}

// use notes what was used.
func (r *Row) use(c *usage.Counts, cost usage.Cost) {
	r.Cost = Amount(cost)
	if c.Source == llm.Nothing {
		return
	}
	r.Counted = c.Source.String()
	r.Counts = Counts{
		Input: int64(c.Input), CachedRead: int64(c.CacheRead), Write5m: int64(c.CacheWrite), Write1h: int64(c.CacheWrite1h),
		Output: int64(c.Output), Reasoning: int64(c.Reasoning),
		AudioIn: int64(c.AudioInput), ImageIn: int64(c.ImageInput), AudioOut: int64(c.AudioOutput), ImageOut: int64(c.ImageOutput),
		Images: int64(c.Images), Searches: int64(c.Searches), Units: int64(c.Units), Millis: int64(c.Millis),
	}
}

func micros(seconds float64) int64 {
	if !(seconds > 0) {
		return 0
	}
	return int64(min(seconds, 1e9) * 1e6)
}

// clean bounds what a row may hold: texts that both databases take, and no
// count or amount below zero.
func (r *Row) clean() {
	for _, s := range r.Names.texts() {
		*s = cleanText(*s)
	}
	r.Request, r.Task = cleanText(r.Request), cleanText(r.Task)
	for _, n := range r.Counts.all() {
		*n = min(max(*n, 0), maxCount)
	}
	r.Cost.Pico, r.Avoided.Pico = max(r.Cost.Pico, 0), max(r.Avoided.Pico, 0)
	r.Attempt = max(r.Attempt, 0)
}

// texts are the fields of Names in the order of the columns.
func (n *Names) texts() [len(nameColumns)]*string {
	return [...]*string{&n.What, &n.Tenant, &n.Org, &n.Key, &n.User, &n.Asked, &n.Alias, &n.Served, &n.Target,
		&n.Region, &n.Account, &n.Error, &n.Fallback, &n.Counted, &n.Prices, &n.Outcome}
}

// nameColumns are the columns of the texts of Names; status follows them.
var nameColumns = [...]string{"what", "tenant", "org", "key", "end_user", "asked", "alias", "served", "target",
	"region", "account", "error", "fallback", "counted", "prices", "outcome"}

func cleanText(s string) string {
	plain := len(s) <= maxText
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] >= ' ' && s[i] < utf8.RuneSelf
	}
	if plain {
		return s
	}
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "�")
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s[:min(len(s), maxText+1)])
		s = s[:min(len(s), maxText+1)-n]
	}
	return s
}
