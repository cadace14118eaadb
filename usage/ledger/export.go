// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"
)

// Export asks for rows, oldest first.
type Export struct {
	Query
	Format string // csv or jsonl
}

// ParseExport reads what is asked for in the form of a URL: format=csv since=7d
// until=… where=tenant:acme.
func ParseExport(v url.Values, now time.Time) (Export, error) {
	e := Export{Format: v.Get("format")}
	if e.Format == "" {
		e.Format = "jsonl"
	}
	if e.Format != "csv" && e.Format != "jsonl" {
		return e, fmt.Errorf("format: %q is not known; use csv or jsonl", e.Format)
	}
	rest := url.Values{}
	for name, values := range v {
		switch name {
		case "format":
		case "since", "until", "where":
			rest[name] = values
		default:
			return e, fmt.Errorf("%q is not a parameter; use since, until, where or format", name)
		}
	}
	var err error
	e.Query, err = ParseQuery(rest, now)
	return e, err
}

// page is how many rows are read at a time: a longer read would keep a database
// from cleaning up.
const page = 2000

// exported are the columns of an export, as they are in the view ledger; the first
// three are the place of a row.
func exported() []string {
	cols := []string{"at", "source", "seq", "what", "request", "tenant", "org", "key", "end_user", "asked", "alias", "served", "target",
		"region", "account", "status", "error", "fallback", "attempt", "counted"}
	cols = append(cols, countNames[:]...)
	return append(cols, "cost", "prices", "avoided", "task", "outcome", "ttft", "total")
}

// rowWriter writes rows in one format.
type rowWriter func(values []sql.NullString) error

// export writes the rows that e asks for.
func (s *store) export(ctx context.Context, e Export, w io.Writer) error {
	if err := e.check(); err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 64<<10)
	write, end := jsonRows(b), func() error { return nil }
	if e.Format == "csv" {
		c := csv.NewWriter(b)
		write, end = csvRows(c), func() error { c.Flush(); return c.Error() }
		if err := c.Write(exportNames()); err != nil {
			return err
		}
	}
	after := [3]int64{micro(e.Since), -1, -1}
	for {
		n, err := s.exportPage(ctx, &e, &after, write)
		if err != nil {
			return err
		}
		if n < page {
			break
		}
	}
	if err := end(); err != nil {
		return err
	}
	return b.Flush()
}

// exportPage writes the rows after a place, and moves it.
func (s *store) exportPage(ctx context.Context, e *Export, after *[3]int64, write rowWriter) (n int, err error) {
	var st statement
	cols := exported()
	st.text.WriteString("SELECT ")
	for i, c := range cols {
		switch c {
		case "at", "source", "seq", "request", "task", "attempt", "cost", "avoided", "ttft", "total":
			c = "r." + c
		default:
			if isCount(c) {
				c = "r." + c
			} else {
				c = "n." + c
			}
		}
		if i > 0 {
			st.text.WriteString(", ")
		}
		st.text.WriteString(c)
	}
	st.rows(&e.Query)
	fmt.Fprintf(&st.text, " AND (r.at, r.source, r.seq) > (%s, %s, %s) ORDER BY r.at, r.source, r.seq LIMIT %d", st.arg(after[0]), st.arg(after[1]), st.arg(after[2]), page)
	rows, err := s.db.QueryContext(ctx, st.text.String(), st.args...)
	if err != nil {
		return 0, s.wrap(err)
	}
	defer rows.Close()
	values := make([]sql.NullString, len(cols))
	into := make([]any, len(cols))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return n, s.wrap(err)
		}
		for i := range after {
			after[i], _ = strconv.ParseInt(values[i].String, 10, 64)
		}
		if err := write(values); err != nil {
			return n, err
		}
		n++
	}
	return n, s.wrap(rows.Err())
}

func isCount(column string) bool {
	for _, c := range countNames {
		if c == column {
			return true
		}
	}
	return false
}

// exportNames are the names of what is written: a row's time is text and its
// money US dollars.
func exportNames() []string {
	names := exported()[3:]
	out := []string{"time", "id"}
	for _, n := range names {
		switch n {
		case "cost", "avoided":
			n += "_usd"
		case "ttft", "total":
			n += "_seconds"
		}
		out = append(out, n)
	}
	return out
}

// shownValue is a value of a column as it is written; numbers are texts too.
func shownValue(column string, v sql.NullString) string {
	n, err := strconv.ParseInt(v.String, 10, 64)
	switch {
	case !v.Valid || err != nil:
		return v.String
	case column == "cost" || column == "avoided":
		return Money{n / 1e6, n % 1e6}.String()
	case column == "ttft" || column == "total":
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64)
	}
	return v.String
}

// place are the time of a row, and an id that no other row has.
func place(v []sql.NullString) (at, id string) {
	n, _ := strconv.ParseInt(v[0].String, 10, 64)
	return time.UnixMicro(n).UTC().Format("2006-01-02T15:04:05.000000Z"), v[1].String + "-" + v[2].String
}

func csvRows(w *csv.Writer) rowWriter {
	cols := exported()
	line := make([]string, len(cols)-1)
	return func(v []sql.NullString) error {
		line[0], line[1] = place(v)
		for i := 3; i < len(cols); i++ {
			line[i-1] = harmless(cols[i], shownValue(cols[i], v[i]))
		}
		return w.Write(line)
	}
}

// harmless keeps a spreadsheet from taking a text of a client for a formula.
func harmless(column, s string) string {
	switch column {
	case "end_user", "asked", "request", "task":
		if s != "" && (s[0] == '=' || s[0] == '+' || s[0] == '-' || s[0] == '@' || s[0] == '\t' || s[0] == '\r') {
			return "'" + s
		}
	}
	return s
}

// jsonRows writes objects without what is empty; a cost that is not known is null.
func jsonRows(w *bufio.Writer) rowWriter {
	cols, names := exported(), exportNames()
	return func(v []sql.NullString) error {
		at, id := place(v)
		fmt.Fprintf(w, `{"time":%q,"id":%q`, at, id)
		for i := 3; i < len(cols); i++ {
			text := shownValue(cols[i], v[i])
			switch c := cols[i]; {
			case c == "cost" && !v[i].Valid:
				text = "null"
			case !v[i].Valid || text == "":
				continue
			case isCount(c), c == "ttft", c == "total":
				if text == "0" {
					continue
				}
			case c == "cost", c == "avoided", c == "status", c == "attempt":
			default:
				quoted, err := json.Marshal(text)
				if err != nil {
					return err
				}
				text = string(quoted)
			}
			fmt.Fprintf(w, `,%q:%s`, names[i-1], text)
		}
		_, err := w.WriteString("}\n")
		return err
	}
}

// Export writes rows.
func (r *Reader) Export(ctx context.Context, e Export, w io.Writer) error {
	return r.store.export(ctx, e, w)
}

// Export writes rows, with what was settled before it.
func (l *Ledger) Export(ctx context.Context, e Export, w io.Writer) error {
	l.catchUp(ctx)
	return l.store.Load().export(ctx, e, w)
}
