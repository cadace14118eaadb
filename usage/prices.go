// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// Prices is the price table of one configuration. It is immutable; a nil one has
// no price.
type Prices struct {
	version string
	refuse  bool
	lists   []*list // the first that has a price counts
	rows    int
}

// list is one source of prices: the table, or a file.
type list struct {
	exact    map[placed][]*row
	patterns []*row // by place and pattern, the more specific ones first
}

// place is where a model is: a provider or a pool by its name, or a provider by
// the name that LiteLLM has for it.
type place struct {
	kind byte // 'p': provider, 'm': pool, 'l': of LiteLLM's
	name string
}

// placed is a model at a place.
type placed struct {
	place
	model string
}

// row is one price with what it is for.
type row struct {
	place  place
	model  string // or a pattern with one *; "": every model
	region string // or a pattern; "": every region
	price  *Price
}

// Query is whose price is looked for.
type Query struct {
	Provider string   // its name; "": a pool
	Pool     string   //
	Lists    []string // names of the provider in LiteLLM's list
	Model    string   // its name there
	Region   string
}

// NewPrices compiles the prices of a configuration. Problems are those of the
// lists that it names, with positions; notes are about what was left out of them.
func NewPrices(c *config.Prices) (p *Prices, problems, notes config.Problems) {
	p = &Prices{refuse: c.Unknown == config.UnknownRefuse}
	digest := sha256.New()
	if len(c.Table) > 0 {
		l := newList()
		for i := range c.Table {
			fmt.Fprintln(digest, (&config.Config{Prices: config.Prices{Table: c.Table[i : i+1]}}).Encode())
			problems = append(problems, l.table(&c.Table[i], "", fmt.Sprintf("prices.table[%d]", i))...)
		}
		p.add(l)
	}
	for i := range c.Files {
		f := &c.Files[i]
		fmt.Fprintln(digest, f.Format, f.From, f.Text)
		l := newList()
		if f.Format == config.PricesLiteLLM {
			entries, ps, ns := ReadLiteLLM(f.Name(), []byte(f.Text))
			problems, notes = append(problems, ps...), append(notes, ns...)
			for j := range entries {
				l.entry(&entries[j], f.From.Time())
			}
		} else {
			table, err := config.ParsePrices(f.Name(), []byte(f.Text))
			if err != nil {
				problems = append(problems, config.AsProblems(err)...)
			}
			for j := range table {
				row := table[j]
				if row.From == "" {
					row.From = f.From
				}
				for _, q := range l.table(&row, f.Name(), fmt.Sprintf("[%d]", j)) {
					q.File = f.Name()
					problems = append(problems, q)
				}
			}
		}
		p.add(l)
	}
	if p.version = c.Version; p.version == "" && p.rows > 0 {
		p.version = hex.EncodeToString(digest.Sum(nil)[:6])
	}
	return p, problems, notes
}

func newList() *list { return &list{exact: map[placed][]*row{}} }

func (p *Prices) add(l *list) {
	l.sort()
	p.rows += len(l.patterns)
	for _, rows := range l.exact {
		p.rows += len(rows)
	}
	p.lists = append(p.lists, l)
}

// table takes a row of Penstock's form.
func (l *list) table(c *config.Price, file, path string) config.Problems {
	r := &row{place: place{'p', c.Provider}, model: c.Model, region: c.Region}
	if c.Pool != "" {
		r.place = place{'m', c.Pool}
	}
	source := path
	if file != "" {
		source = file + " " + path
	}
	r.price = compile(c, source)
	if other := l.same(r); other != nil {
		return config.Problems{{Path: path, What: "prices the same as " + other.price.Source, Hint: "leave out one of them, or give the newer one another from"}}
	}
	l.put(r)
	return nil
}

// same is a row that prices the same from the same day on.
func (l *list) same(r *row) *row {
	rows := l.patterns
	if r.exact() {
		rows = l.exact[placed{r.place, r.model}]
	}
	for _, other := range rows {
		if other.place == r.place && other.model == r.model && other.region == r.region && other.price.From.Equal(r.price.From) {
			return other
		}
	}
	return nil
}

func (r *row) exact() bool { return r.model != "" && !strings.Contains(r.model, "*") }

func (l *list) put(r *row) {
	if r.exact() {
		key := placed{r.place, r.model}
		l.exact[key] = append(l.exact[key], r)
	} else {
		l.patterns = append(l.patterns, r)
	}
}

// sort puts the more specific rows first, and of equal ones the newer.
func (l *list) sort() {
	order := func(a, b *row) int {
		return cmp.Or(
			cmp.Compare(len(b.model), len(a.model)),
			cmp.Compare(specific(b.region), specific(a.region)),
			b.price.From.Compare(a.price.From),
		)
	}
	slices.SortStableFunc(l.patterns, order)
	for _, rows := range l.exact {
		slices.SortStableFunc(rows, order)
	}
}

// specific says how much a pattern of a region says: an exact one the most.
func specific(pattern string) int {
	if pattern != "" && !strings.Contains(pattern, "*") {
		return 1 << 10
	}
	return len(pattern)
}

// Version names the table in records; "" for one that is empty.
func (p *Prices) Version() string {
	if p == nil {
		return ""
	}
	return p.version
}

// Refuses says that nothing is to be sent where the price is not known.
func (p *Prices) Refuses() bool { return p != nil && p.refuse }

// Empty says that nothing has a price.
func (p *Prices) Empty() bool { return p == nil || p.rows == 0 }

// Find is the price that counts at a time; nil: there is none.
func (p *Prices) Find(q *Query, at time.Time) *Price {
	if p == nil || p.rows == 0 {
		return nil
	}
	own := place{'m', q.Pool}
	if q.Provider != "" {
		own = place{'p', q.Provider}
	}
	for _, l := range p.lists {
		if r := l.find(own, q, at); r != nil {
			return r.price
		}
	}
	return nil
}

// find looks for the place itself, then for the names that LiteLLM may have for it.
func (l *list) find(own place, q *Query, at time.Time) *row {
	if r := l.at(own, q.Model, q, at); r != nil {
		return r
	}
	for model := q.Model; model != ""; model = undated(model) {
		for _, name := range q.Lists {
			if r := l.at(place{'l', name}, model, q, at); r != nil {
				return r
			}
		}
	}
	return nil
}

func (l *list) at(where place, model string, q *Query, at time.Time) *row {
	for _, r := range l.exact[placed{where, model}] {
		if r.counts(q, at) {
			return r
		}
	}
	for _, r := range l.patterns {
		if r.place == where && (r.model == "" || matches(r.model, model)) && r.counts(q, at) {
			return r
		}
	}
	return nil
}

// counts says that the row is for the region and the time.
func (r *row) counts(q *Query, at time.Time) bool {
	return !r.price.From.After(at) && (r.region == "" || matches(r.region, q.Region))
}

// matches says that text is what a pattern with one * at the most is for.
func matches(pattern, text string) bool {
	i := strings.IndexByte(pattern, '*')
	if i < 0 {
		return pattern == text
	}
	return len(text) >= len(pattern)-1 && strings.HasPrefix(text, pattern[:i]) && strings.HasSuffix(text, pattern[i+1:])
}

// undated is a model's name without the date or version at its end, "" if it has
// none: gpt-5-2025-08-07, claude-haiku-4-5-20251001, claude-x@20250514.
func undated(model string) string {
	i := len(model)
	for i > 0 && (model[i-1] >= '0' && model[i-1] <= '9' || model[i-1] == '-') {
		i--
	}
	for ; i < len(model); i++ {
		switch rest := model[i:]; {
		case i == 0:
		case len(rest) == 11 && rest[0] == '-' && rest[1:3] == "20" && rest[5] == '-' && rest[8] == '-':
			return model[:i]
		case len(rest) == 9 && rest[0] == '-' && rest[1:3] == "20" && !strings.Contains(rest[1:], "-"):
			return model[:i]
		case len(rest) == 8 && model[i-1] == '@' && rest[:2] == "20" && !strings.Contains(rest, "-"):
			return model[:i-1]
		}
	}
	return ""
}

// Len is the number of prices.
func (p *Prices) Len() int {
	if p == nil {
		return 0
	}
	return p.rows
}
