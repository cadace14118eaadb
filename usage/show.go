// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/config"
)

// Listed is a price as people read it: amounts in USD, of tokens per million, and
// what a rate that is not known is taken for filled in.
type Listed struct {
	Place   string            `json:"place"` // provider NAME, pool NAME, or litellm NAME
	Model   string            `json:"model"` // "": every one
	Region  string            `json:"region,omitempty"`
	From    string            `json:"from,omitempty"` // a day
	Tier    string            `json:"tier,omitempty"`
	Above   int               `json:"above,omitempty"` // tokens of the prompt
	Rates   map[string]string `json:"rates,omitempty"`
	GPUHour string            `json:"gpuHour,omitempty"` // with the share
	Source  string            `json:"source"`
}

// rateNames are the keys of the rates, as in config.Rates.
func rateNames() [kinds]string {
	return [kinds]string{
		"input", "cacheRead", "cacheWrite", "cacheWrite1h", "audioInput", "imageInput", "output", "reasoning", "audioOutput", "imageOutput",
		"perRequest", "perImage", "perSearch", "perSecond",
	}
}

// String is the place for people.
func (p place) String() string {
	switch p.kind {
	case 'p':
		return "provider " + p.name
	case 'm':
		return "pool " + p.name
	}
	return "litellm " + p.name
}

// List is every price, in the order of the lists, each sorted by place and model.
func (p *Prices) List() (out []Listed) {
	if p == nil {
		return nil
	}
	for _, l := range p.lists {
		rows := slices.Clone(l.patterns)
		for _, more := range l.exact {
			rows = append(rows, more...)
		}
		slices.SortStableFunc(rows, func(a, b *row) int {
			return cmp.Or(strings.Compare(a.place.String(), b.place.String()), strings.Compare(a.model, b.model), strings.Compare(a.region, b.region), a.price.From.Compare(b.price.From))
		})
		for _, r := range rows {
			out = append(out, r.listed()...)
		}
	}
	return out
}

func (r *row) listed() (out []Listed) {
	base := Listed{Place: r.place.String(), Model: r.model, Region: r.region, Source: r.price.Source}
	if !r.price.From.IsZero() {
		base.From = r.price.From.Format("2006-01-02")
	}
	if r.price.hour != unset {
		base.GPUHour = config.USD(r.price.hour).String()
		return []Listed{base}
	}
	all := func(name string, s *steps) {
		one := base
		one.Tier, one.Rates = name, s.base.shown()
		out = append(out, one)
		for _, a := range s.above {
			one.Above, one.Rates = a.tokens, a.rates.shown()
			out = append(out, one)
		}
	}
	all("", &r.price.steps)
	for i := range r.price.tiers {
		all(r.price.tiers[i].name, &r.price.tiers[i].steps)
	}
	return out
}

// shown are the rates by their keys, without those that are not known and a fee per
// request that there is not.
func (r *rates) shown() map[string]string {
	m := map[string]string{}
	for k, name := range rateNames() {
		v := r[k]
		if v == unset || kind(k) == kindRequest && v == 0 {
			continue
		}
		scale := int64(1)
		switch {
		case kind(k) < kindRequest:
			scale = 1_000_000
		case kind(k) == kindMilli:
			scale = 1000
		}
		if v > math.MaxInt64/scale {
			m[name] = strconv.FormatFloat(float64(v)/1e12*float64(scale), 'g', -1, 64)
			continue
		}
		m[name] = config.USD(v * scale).String()
	}
	return m
}

// Doubts are what may not be meant in prices that are valid.
func (p *Prices) Doubts() (notes config.Problems) {
	if p == nil {
		return nil
	}
	for _, l := range p.lists {
		rows := slices.Clone(l.patterns)
		for _, more := range l.exact {
			rows = append(rows, more...)
		}
		slices.SortFunc(rows, func(a, b *row) int { return strings.Compare(a.price.Source, b.price.Source) })
		for _, r := range rows {
			if len(notes) >= maxListed {
				return notes
			}
			if what := r.doubt(); what != "" {
				n := &config.Problem{Path: r.price.Source, What: what}
				if file, path, ok := strings.Cut(r.price.Source, " "); ok {
					n.File, n.Path = file, path
				}
				notes = append(notes, n)
			}
		}
	}
	return notes
}

// doubt says what is odd about a row.
func (r *row) doubt() string {
	if r.price.hour != unset {
		return ""
	}
	b := &r.price.base
	switch {
	case b[kindInput] > 0 && b[kindCacheRead] > b[kindInput]:
		return "cached input costs more than input"
	case b[kindOutput] > 0 && b[kindInput] > b[kindOutput]:
		return "input costs more than output"
	case b[kindInput] > 100*1_000_000 && b[kindOutput] > 0:
		return "input costs more than 100 USD per million tokens"
	case r.place.kind == 'p' && b[kindInput] == 0 && b[kindOutput] == 0:
		return "a provider that costs nothing"
	}
	for _, a := range r.price.above {
		if a.rates[kindInput] < b[kindInput] || a.rates[kindOutput] < b[kindOutput] {
			return "long prompts cost less than short ones"
		}
	}
	return ""
}
