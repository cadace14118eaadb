// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Query asks for sums.
type Query struct {
	By           []string // dimensions; see Dimensions
	Since, Until time.Time
	Where        []Filter
	Order        string // cost (the default), requests, tokens, or key: by the dimensions
	Limit        int    // groups; 0: DefaultLimit
	Offset       int
	tasks        bool // only rows of tasks
}

// Filter keeps the rows whose dimension has the value.
type Filter struct{ Dimension, Value string }

// The bounds of an answer.
const (
	DefaultLimit = 100
	MostGroups   = 10_000
	mostBy       = 4
)

// Dimensions are what sums may be taken by, in the order in which they are told.
func Dimensions() []string {
	return []string{"tenant", "org", "key", "user", "model", "alias", "served", "provider", "region", "account", "status", "error", "fallback", "counted", "task", "day", "hour"}
}

// dimension is the expression of one.
func dimension(name string) (string, bool) {
	switch name {
	case "tenant", "org", "key", "alias", "served", "region", "account", "error", "fallback", "counted", "status":
		return "n." + name, true
	case "user":
		return "n.end_user", true
	case "model":
		return "n.asked", true
	case "provider":
		return "n.target", true
	case "task":
		return "coalesce(r.task, '')", true
	case "day":
		return "r.at / 86400000000", true
	case "hour":
		return "r.at / 3600000000", true
	}
	return "", false
}

// Sum is what a group came to.
type Sum struct {
	Key       []string `json:"key"` // a value per dimension
	Requests  int64    `json:"requests"`
	Failed    int64    `json:"failed"`    // of them: refused, or without a whole answer
	Retries   int64    `json:"retries"`   // attempts after the first
	Fallbacks int64    `json:"fallbacks"` // requests that a fallback served, or was to serve
	Tokens    Tokens   `json:"tokens"`
	Cost      Money    `json:"cost"`     // of the rows whose cost is known
	Unpriced  int64    `json:"unpriced"` // rows whose cost is not: the cost is at least what it says
	Avoided   Money    `json:"avoided"`
	Estimated int64    `json:"estimated"`         // rows that the gateway counted
	Partial   int64    `json:"partial"`           // rows of answers that broke off
	Lost      int64    `json:"lost"`              // rows of which nothing is known
	Outcome   string   `json:"outcome,omitempty"` // of a task
	went      int64    // the same as a number
}

// Tokens are Counts for an answer.
type Tokens struct {
	Input      int64 `json:"input"`
	CachedRead int64 `json:"cachedRead"`
	Write5m    int64 `json:"cachedWrite5m"`
	Write1h    int64 `json:"cachedWrite1h"`
	Output     int64 `json:"output"`
	Reasoning  int64 `json:"reasoning"`
	AudioIn    int64 `json:"audioIn"`
	ImageIn    int64 `json:"imageIn"`
	AudioOut   int64 `json:"audioOut"`
	ImageOut   int64 `json:"imageOut"`
	Images     int64 `json:"images"`   // made
	Searches   int64 `json:"searches"` // of the web
	Units      int64 `json:"units"`    // of reranks
	Millis     int64 `json:"millis"`   // of sound
}

// all are the counts in the order of the columns.
func (t *Tokens) all() [len(countNames)]*int64 { return (*Counts)(t).all() }

// Money is a sum in US dollars. It is exact, and may be more than picodollars in
// 64 bits can say: Micro + Pico·1e-6 in millionths.
type Money struct{ Micro, Pico int64 }

// String has all the digits that are not zero, and at least two.
func (m Money) String() string {
	n := new(big.Int).Mul(big.NewInt(m.Micro), big.NewInt(1e6))
	n.Add(n, big.NewInt(m.Pico))
	whole, part := new(big.Int).QuoRem(n, big.NewInt(1e12), new(big.Int))
	text := strings.TrimRight(fmt.Sprintf("%012d", part), "0")
	for len(text) < 2 {
		text += "0"
	}
	return whole.String() + "." + text
}

// over is a share of m, cut to whole picodollars.
func (m Money) over(n int64) Money {
	all := new(big.Int).Mul(big.NewInt(m.Micro), big.NewInt(1e6))
	all.Add(all, big.NewInt(m.Pico))
	micro, pico := new(big.Int).QuoRem(all.Quo(all, big.NewInt(n)), big.NewInt(1e6), new(big.Int))
	return Money{micro.Int64(), pico.Int64()}
}

// Zero says that it is nothing.
func (m Money) Zero() bool { return m.Micro == 0 && m.Pico == 0 }

// Dollars is about m.
func (m Money) Dollars() float64 { return float64(m.Micro)/1e6 + float64(m.Pico)/1e12 }

// Plus is the sum.
func (m Money) Plus(o Money) Money { return Money{m.Micro + o.Micro, m.Pico + o.Pico} }

// MarshalText is String.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *Money) UnmarshalText(b []byte) error {
	whole, part, _ := strings.Cut(string(b), ".")
	if len(part) > 12 {
		return fmt.Errorf("%q is not an amount", b)
	}
	w, err := strconv.ParseInt(whole, 10, 64)
	p, err2 := strconv.ParseInt((part + "000000000000")[:12], 10, 64)
	if err != nil || err2 != nil || w < 0 || p < 0 || w > 1e12 {
		return fmt.Errorf("%q is not an amount", b)
	}
	*m = Money{w*1e6 + p/1e6, p % 1e6}
	return nil
}

// sums are the columns of a Sum after its key.
func sums() string {
	cols := []string{
		"sum(CASE WHEN n.what = 'request' THEN 1 ELSE 0 END)",
		"sum(CASE WHEN n.what = 'request' AND (n.error <> '' OR n.status >= 400) THEN 1 ELSE 0 END)",
		"sum(CASE WHEN n.what = 'request' AND r.attempt > 1 THEN r.attempt - 1 ELSE 0 END)",
		"sum(CASE WHEN n.what = 'request' AND n.fallback <> '' THEN 1 ELSE 0 END)",
	}
	for _, c := range countNames {
		cols = append(cols, "sum(r."+c+")")
	}
	cols = append(cols,
		"coalesce(sum(r.cost / 1000000), 0)", "coalesce(sum(r.cost % 1000000), 0)",
		"sum(CASE WHEN r.cost IS NULL THEN 1 ELSE 0 END)",
		"coalesce(sum(r.avoided / 1000000), 0)", "coalesce(sum(r.avoided % 1000000), 0)",
		"sum(CASE WHEN n.counted = 'estimated' THEN 1 ELSE 0 END)",
		"sum(CASE WHEN n.counted = 'partial' THEN 1 ELSE 0 END)",
		"sum(CASE WHEN n.counted = 'lost' THEN 1 ELSE 0 END)", lastOutcome)
	for i, c := range cols {
		cols[i] = "CAST(" + c + " AS BIGINT)"
	}
	return strings.Join(cols, ", ")
}

// into are the places for the columns of sums.
func (s *Sum) into() []any {
	v := []any{&s.Requests, &s.Failed, &s.Retries, &s.Fallbacks}
	for _, n := range s.Tokens.all() {
		v = append(v, n)
	}
	return append(v, &s.Cost.Micro, &s.Cost.Pico, &s.Unpriced, &s.Avoided.Micro, &s.Avoided.Pico, &s.Estimated, &s.Partial, &s.Lost, &s.went)
}

// check says what is wrong with q, and sets what was left out.
func (q *Query) check() error {
	if len(q.By) > mostBy {
		return fmt.Errorf("sums are by at most %d dimensions", mostBy)
	}
	for i, name := range q.By {
		if _, ok := dimension(name); !ok {
			return fmt.Errorf("%q is not a dimension; use %s", name, strings.Join(Dimensions(), ", "))
		}
		if slices.Contains(q.By[:i], name) {
			return fmt.Errorf("%q is named twice", name)
		}
	}
	for _, f := range q.Where {
		if _, ok := dimension(f.Dimension); !ok {
			return fmt.Errorf("%q is not a dimension; use %s", f.Dimension, strings.Join(Dimensions(), ", "))
		}
	}
	switch q.Order {
	case "":
		q.Order = "cost"
	case "cost", "requests", "tokens", "key":
	default:
		return fmt.Errorf("%q is no order; use cost, requests, tokens or key", q.Order)
	}
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	q.Limit = min(q.Limit, MostGroups+1)
	if q.Until.IsZero() {
		q.Until = time.Now().Add(time.Minute)
	}
	if !q.Since.Before(q.Until) {
		return fmt.Errorf("since is not before until")
	}
	return nil
}

// statement is a query in the making.
type statement struct {
	text strings.Builder
	args []any
}

func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return "$" + strconv.Itoa(len(s.args))
}

// where writes the rows that the sums of q are of.
func (s *statement) where(q *Query) {
	s.rows(q)
	if q.byTask() {
		s.text.WriteString(" AND r.task IS NOT NULL")
	}
	if !q.outcomes() {
		s.text.WriteString(" AND n.what <> 'outcome'")
	}
}

// rows writes all rows of the time and the filters of q.
func (s *statement) rows(q *Query) {
	fmt.Fprintf(&s.text, " FROM ledger_rows r JOIN ledger_names n ON n.id = r.names WHERE r.at >= %s AND r.at < %s", s.arg(micro(q.Since)), s.arg(micro(q.Until)))
	for _, f := range q.Where {
		e, _ := dimension(f.Dimension)
		switch f.Dimension {
		case "status", "day", "hour":
			e = "CAST(" + e + " AS TEXT)"
		}
		fmt.Fprintf(&s.text, " AND %s = %s", e, s.arg(f.Value))
	}
}

// micro is t in microseconds since 1970; nothing is older.
func micro(t time.Time) int64 {
	if t.Year() < 1970 {
		return 0
	}
	return t.UnixMicro()
}

// sum answers q.
func (s *store) sum(ctx context.Context, q Query) ([]Sum, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	var st statement
	st.text.WriteString("SELECT ")
	keys := make([]string, len(q.By))
	for i, name := range q.By {
		e, _ := dimension(name)
		keys[i] = e
		st.text.WriteString(e + ", ")
	}
	st.text.WriteString(sums())
	st.where(&q)
	list := ""
	for i := range keys {
		list += ", " + strconv.Itoa(i+1)
	}
	if len(keys) > 0 {
		st.text.WriteString(" GROUP BY " + list[2:])
	} else {
		st.text.WriteString(" HAVING count(*) > 0")
	}
	order := map[string]string{
		"cost":     "coalesce(sum(r.cost / 1000000), 0) DESC, coalesce(sum(r.cost % 1000000), 0) DESC, sum(r.input + r.cached_read + r.output) DESC",
		"requests": "sum(CASE WHEN n.what = 'request' THEN 1 ELSE 0 END) DESC",
		"tokens":   "sum(r.input + r.cached_read + r.cached_write_5m + r.cached_write_1h + r.output + r.reasoning) DESC",
	}[q.Order]
	if order != "" || list != "" {
		st.text.WriteString(" ORDER BY " + strings.TrimPrefix(order+list, ", "))
	}
	fmt.Fprintf(&st.text, " LIMIT %s OFFSET %s", st.arg(q.Limit), st.arg(q.Offset))
	rows, err := s.db.QueryContext(ctx, st.text.String(), st.args...)
	if err != nil {
		return nil, s.wrap(err)
	}
	defer rows.Close()
	var out []Sum
	for rows.Next() {
		g := Sum{Key: make([]string, len(q.By))}
		into := make([]any, 0, 32)
		for i := range g.Key {
			into = append(into, &g.Key[i])
		}
		if err := rows.Scan(append(into, g.into()...)...); err != nil {
			return nil, s.wrap(err)
		}
		for i, name := range q.By {
			g.Key[i] = shown(name, g.Key[i])
		}
		if q.byTask() {
			g.Outcome = [...]string{"", Success, Failure}[min(g.went, 2)]
		}
		out = append(out, g)
	}
	return out, s.wrap(rows.Err())
}

// shown makes times of the numbers of days and hours.
func shown(dimension, value string) string {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return value
	}
	switch dimension {
	case "day":
		return time.Unix(n*86400, 0).UTC().Format(time.DateOnly)
	case "hour":
		return time.Unix(n*3600, 0).UTC().Format("2006-01-02T15:00Z")
	}
	return value
}
