// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// Answer is what a query came to: groups, most expensive first, and all of them
// together.
type Answer struct {
	By     []string  `json:"by"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Groups []Sum     `json:"groups"`
	Total  Sum       `json:"total"`
	Tasks  *Tasks    `json:"tasks,omitempty"`  // of sums by task
	Cursor string    `json:"cursor,omitempty"` // of the next groups; "": these are the last
}

// ParseQuery reads a query in the form of a URL: by=tenant,model since=7d
// until=2026-01-31 top=10 order=cost where=tenant:acme cursor=….
func ParseQuery(v url.Values, now time.Time) (Query, error) {
	q := Query{Since: now.Add(-7 * 24 * time.Hour), Until: now, Order: v.Get("order")}
	var err error
	for name := range v {
		switch name {
		case "by", "since", "until", "top", "order", "where", "cursor":
		default:
			return q, fmt.Errorf("%q is not a parameter; use by, since, until, top, order, where or cursor", name)
		}
	}
	if by := v.Get("by"); by != "" {
		q.By = strings.Split(by, ",")
	}
	if s := v.Get("since"); s != "" {
		if q.Since, err = ParseTime(s, now); err != nil {
			return q, fmt.Errorf("since: %w", err)
		}
	}
	if s := v.Get("until"); s != "" {
		if q.Until, err = ParseTime(s, now); err != nil {
			return q, fmt.Errorf("until: %w", err)
		}
	}
	if s := v.Get("top"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > MostGroups {
			return q, fmt.Errorf("top: must be a number from 1 to %d", MostGroups)
		}
	}
	for _, w := range v["where"] {
		d, value, ok := strings.Cut(w, ":")
		if !ok {
			return q, fmt.Errorf("where: %q is not of the form DIMENSION:VALUE", w)
		}
		q.Where = append(q.Where, Filter{d, value})
	}
	if s := v.Get("cursor"); s != "" {
		if err := q.resume(s); err != nil {
			return q, err
		}
	}
	return q, q.check()
}

// ParseTime reads a time, or how long ago it was: 7d, 36h, 2026-01-31,
// 2026-01-31T12:00:00Z.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 100_000 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, s); err == nil {
			return t, nil
		}
	}
	return now, fmt.Errorf("%q is not a time; write 7d, 24h, 2026-01-31 or 2026-01-31T12:00:00Z", s)
}

// cursor says where the next groups begin, of the same time.
func (q *Query) cursor(next int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d.%d", q.Since.UnixMicro(), q.Until.UnixMicro(), next))
}

func (q *Query) resume(cursor string) error {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.Split(string(raw), ".")
	if err != nil || len(parts) != 3 {
		return fmt.Errorf("cursor: is not one of this address; ask again without it")
	}
	var n [3]int64
	for i := range parts {
		if n[i], err = strconv.ParseInt(parts[i], 10, 64); err != nil || n[i] < 0 {
			return fmt.Errorf("cursor: is not one of this address; ask again without it")
		}
	}
	q.Since, q.Until, q.Offset = time.UnixMicro(n[0]).UTC(), time.UnixMicro(n[1]).UTC(), int(min(n[2], 1<<30))
	return nil
}

// answer answers q whole.
func (s *store) answer(ctx context.Context, q Query) (*Answer, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	a := &Answer{By: append([]string{}, q.By...), Since: q.Since.UTC(), Until: q.Until.UTC()}
	more := q
	more.Limit++
	var err error
	if a.Groups, err = s.sum(ctx, more); err != nil {
		return nil, err
	}
	if len(a.Groups) > q.Limit {
		a.Groups = a.Groups[:q.Limit]
		a.Cursor = q.cursor(q.Offset + q.Limit)
	}
	all := q
	all.By, all.Limit, all.Offset, all.tasks = nil, 1, 0, q.byTask()
	total, err := s.sum(ctx, all)
	if err != nil {
		return nil, err
	}
	if len(total) > 0 {
		a.Total = total[0]
	}
	a.Total.Key, a.Total.Outcome = []string{}, ""
	if q.byTask() {
		if a.Tasks, err = s.tasks(ctx, &q); err != nil {
			return nil, err
		}
	}
	if a.Groups == nil {
		a.Groups = []Sum{}
	}
	return a, nil
}

// Reader reads a ledger, whether or not a gateway writes to it.
type Reader struct{ store *store }

// OpenReader opens the database of cfg.
func OpenReader(ctx context.Context, cfg config.Ledger) (*Reader, error) {
	if cfg.Kind() == config.LedgerOff {
		return nil, fmt.Errorf("the ledger is off in this configuration; give it a path or a dsn (ledger)")
	}
	st, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	if err := st.migrate(ctx); err != nil {
		st.close()
		return nil, err
	}
	return &Reader{st}, nil
}

// Close ends the reader.
func (r *Reader) Close() { r.store.close() }

// Answer answers q.
func (r *Reader) Answer(ctx context.Context, q Query) (*Answer, error) { return r.store.answer(ctx, q) }

// Answer answers q, with what was settled before it.
func (l *Ledger) Answer(ctx context.Context, q Query) (*Answer, error) {
	l.catchUp(ctx)
	return l.store.Load().answer(ctx, q)
}

// catchUp waits for rows on their way; what the database does not take now is
// missing in an answer, and the log and metrics tell.
func (l *Ledger) catchUp(ctx context.Context) {
	flush, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	_ = l.Flush(flush)
}
