// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Prices are what tokens cost. The gateway has no price list of its own: what is
// not listed has no known price.
type Prices struct {
	// Version names the table in records; empty: a digest of its content.
	Version string `yaml:"version"`
	// Table comes first; a file counts for what it does not price.
	Table []Price     `yaml:"table"`
	Files []PriceFile `yaml:"files"`
	// Unknown is what becomes of a request whose price is not known: allow, or
	// refuse such targets.
	Unknown UnknownPrice `yaml:"unknown" default:"allow" enum:"allow|refuse"`
}

// UnknownPrice is a policy.
type UnknownPrice string

// The policies.
const (
	UnknownAllow  UnknownPrice = "allow"
	UnknownRefuse UnknownPrice = "refuse"
)

// PriceFile is a list of prices. It is read again when it changes.
type PriceFile struct {
	Path   string      `yaml:"path" file:"read"`
	Format PriceFormat `yaml:"format" default:"penstock" enum:"penstock|litellm"`
	From   Date        `yaml:"from"` // the first day on which it counts; empty: always
	Text   string      `yaml:"text"` // the content; read from Path if that is set
}

// Name is what the list is called in messages.
func (f *PriceFile) Name() string {
	if f.Path == "" {
		return "prices"
	}
	return f.Path
}

// PriceFormat is how a list is written.
type PriceFormat string

// The formats.
const (
	PricesPenstock PriceFormat = "penstock" // a list like Prices.Table
	PricesLiteLLM  PriceFormat = "litellm"  // model_prices_and_context_window.json
)

// Price is what one model costs at a provider or on a pool. Of rows that match
// alike the one with the latest From that has come counts.
type Price struct {
	Provider string `yaml:"provider"` // its name; of Provider and Pool one is set
	Pool     string `yaml:"pool"`
	Model    string `yaml:"model"`  // upstream name, or a pattern with one *; empty: every model
	Region   string `yaml:"region"` // of the provider, or a pattern with one *; empty: every region
	From     Date   `yaml:"from"`   // the first day (UTC) on which it counts; empty: always
	Rates    Rates  `yaml:"rates"`
	// Above are the rates of requests whose whole prompt is longer than so many
	// tokens. What one leaves out is as below it.
	Above []RatesAbove `yaml:"above"`
	Tiers []RatesTier  `yaml:"tiers"` // of service: flex, priority, batch
	// GPUHour prices a pool by time instead of tokens: what one hour of a member's
	// accelerators costs, times the share of it that one request takes.
	GPUHour *USD     `yaml:"gpuHour"`
	Share   *float64 `yaml:"share" min:"0" max:"1"` // nil: 1
}

// Rates are prices: of tokens in USD per million, of everything else in USD each.
// nil is not known. The hints say what stands in.
type Rates struct {
	Input        *USD `yaml:"input"`
	CacheRead    *USD `yaml:"cacheRead"`    // else Input
	CacheWrite   *USD `yaml:"cacheWrite"`   // else Input
	CacheWrite1h *USD `yaml:"cacheWrite1h"` // else CacheWrite
	AudioInput   *USD `yaml:"audioInput"`   // else Input
	ImageInput   *USD `yaml:"imageInput"`   // else Input
	Output       *USD `yaml:"output"`
	Reasoning    *USD `yaml:"reasoning"`   // else Output
	AudioOutput  *USD `yaml:"audioOutput"` // else Output
	ImageOutput  *USD `yaml:"imageOutput"` // else Output

	Request *USD `yaml:"perRequest"`
	Image   *USD `yaml:"perImage"`  // made
	Search  *USD `yaml:"perSearch"` // of the web, or unit of a rerank
	Second  *USD `yaml:"perSecond"` // of sound
}

// RatesAbove are the rates of long prompts.
type RatesAbove struct {
	Tokens int   `yaml:"tokens" min:"1" max:"1000000000"`
	Rates  Rates `yaml:"rates"`
}

// RatesTier are the rates of a tier of service. What they leave out is as
// without it.
type RatesTier struct {
	Name  string       `yaml:"name"`
	Rates Rates        `yaml:"rates"`
	Above []RatesAbove `yaml:"above"`
}

// USD is an amount of money in picodollars (1e-12 USD): whole numbers, so that
// nothing is rounded twice.
type USD int64

// Dollar is one USD.
const Dollar USD = 1e12

// String is the amount in USD, exactly.
func (u USD) String() string { return string(u.Append(nil)) }

// Append appends the amount in USD, exactly.
func (u USD) Append(b []byte) []byte {
	n := uint64(u)
	if u < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendUint(b, n/uint64(Dollar), 10)
	part := n % uint64(Dollar)
	if part == 0 {
		return b
	}
	b = append(b, '.')
	for unit := uint64(Dollar) / 10; part > 0; unit /= 10 {
		b = append(b, '0'+byte(part/unit))
		part %= unit
	}
	return b
}

// MarshalText makes JSON and YAML carry the amount.
func (u USD) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// ParseUSD reads an amount of USD: a decimal, which may have an exponent. exact
// says no when a fraction of a picodollar was rounded away.
func ParseUSD(text string) (u USD, exact bool, err error) {
	if len(text) > 64 {
		return 0, false, fmt.Errorf("is no amount of money")
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 && len(text)-i > 5 || strings.ContainsAny(text, "/_xXpP") {
		return 0, false, fmt.Errorf("is no amount of money")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, false, fmt.Errorf("is no amount of money")
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(Dollar)))
	exact = r.IsInt()
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if rest := new(big.Rat).Sub(r, new(big.Rat).SetInt(n)); rest.Cmp(big.NewRat(1, 2)) >= 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return 0, false, fmt.Errorf("is too large")
	}
	return USD(n.Int64()), exact, nil
}

func parseUSD(text string) (USD, *Problem) {
	u, exact, err := ParseUSD(text)
	switch {
	case err != nil:
		return 0, &Problem{What: err.Error(), Hint: "write USD as a decimal, such as 1.25"}
	case !exact:
		return 0, &Problem{What: "is finer than a picodollar (1e-12 USD)"}
	case u < 0:
		return 0, &Problem{What: "is negative"}
	}
	return u, nil
}

// Date is a day, YYYY-MM-DD; it begins at midnight UTC.
type Date string

// Time is when the day begins; the zero time for an empty date.
func (d Date) Time() time.Time {
	t, err := time.Parse(time.DateOnly, string(d))
	if err != nil {
		return time.Time{}
	}
	return t
}

var usdType = reflect.TypeFor[USD]()

// each hands f every rate that is set with its key; token says that it is for a
// million tokens.
func (r *Rates) each(f func(key string, u USD, token bool)) {
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if x := v.Field(i); !x.IsNil() {
			key := v.Type().Field(i).Tag.Get("yaml")
			f(key, x.Elem().Interface().(USD), !strings.HasPrefix(key, "per"))
		}
	}
}

// dearest is what a million tokens of any model cost at the most, and one of
// anything else: beyond it the unit is another.
const (
	dearestMillion = 5_000 * Dollar
	dearestEach    = 1_000 * Dollar
)

func (v *validator) prices() {
	for i := range v.c.Prices.Table {
		v.price(joinIndex("prices.table", i), &v.c.Prices.Table[i])
	}
	for i := range v.c.Prices.Files {
		f, path := &v.c.Prices.Files[i], joinIndex("prices.files", i)
		if f.Path == "" && f.Text == "" {
			v.fail(path, "needs a path or a text", "path: prices.json")
		}
		v.date(path+".from", f.From)
	}
	if p := &v.c.Prices; p.Unknown == UnknownRefuse && len(p.Table) == 0 && len(p.Files) == 0 {
		v.fail("prices.unknown", "is refuse, and there is no price", "list prices in table or files")
	}
}

// price checks a row against the configuration.
func (v *validator) price(path string, p *Price) {
	v.priceAlone(path, p)
	if p.Provider != "" && v.c.provider(p.Provider) == nil {
		v.fail(path+".provider", fmt.Sprintf("there is no provider %q", p.Provider), didYouMean(p.Provider, namesOf(v.c.Providers, func(p *Provider) string { return p.Name })))
	}
	if p.Pool != "" && v.c.pool(p.Pool) == nil {
		v.fail(path+".pool", fmt.Sprintf("there is no pool %q", p.Pool), didYouMean(p.Pool, namesOf(v.c.Pools, func(p *Pool) string { return p.Name })))
	}
}

// priceAlone checks what a row says for itself.
func (v *validator) priceAlone(path string, p *Price) {
	if (p.Provider == "") == (p.Pool == "") {
		v.fail(path, "needs a provider or a pool, and not both", "provider: openai")
	}
	for key, text := range map[string]string{"model": p.Model, "region": p.Region} {
		if strings.Count(text, "*") > 1 {
			v.fail(path+"."+key, fmt.Sprintf("%q has more than one *", text), "")
		}
	}
	v.date(path+".from", p.From)
	set := v.rates(path+".rates", &p.Rates)
	switch {
	case p.GPUHour != nil && p.Pool == "":
		v.fail(path+".gpuHour", "means nothing for a provider", "it prices a pool by time")
	case p.GPUHour != nil && set:
		v.fail(path, "has gpuHour and rates", "price a pool by time or by tokens")
	case p.GPUHour == nil && p.Share != nil:
		v.fail(path+".share", "means nothing without gpuHour", "")
	case p.GPUHour == nil && !set:
		v.fail(path, "has no rates", "rates: {input: 1.25, output: 10} in USD per million tokens; 0 where it costs nothing")
	case p.GPUHour != nil && *p.GPUHour > dearestEach:
		v.fail(path+".gpuHour", fmt.Sprintf("%s USD an hour is no price of an accelerator", p.GPUHour), "write USD per hour, such as 2.5")
	}
	v.above(path+".above", p.Above)
	seen := map[string]string{}
	for i := range p.Tiers {
		t, at := &p.Tiers[i], joinIndex(path+".tiers", i)
		v.name(at, t.Name, seen)
		v.rates(at+".rates", &t.Rates)
		v.above(at+".above", t.Above)
	}
}

func (v *validator) above(path string, list []RatesAbove) {
	for i := range list {
		at := joinIndex(path, i)
		if i > 0 && list[i].Tokens > 0 && list[i].Tokens <= list[i-1].Tokens {
			v.fail(at+".tokens", fmt.Sprintf("is not more than the %d before it", list[i-1].Tokens), "the shorter prompts come first")
		}
		v.rates(at+".rates", &list[i].Rates)
	}
}

// rates checks the amounts and says whether there is one.
func (v *validator) rates(path string, r *Rates) (set bool) {
	r.each(func(key string, u USD, token bool) {
		set = true
		switch {
		case token && u > dearestMillion:
			v.fail(path+"."+key, fmt.Sprintf("%s USD per million tokens is more than any model costs", u), "write USD per million tokens, such as 1.25")
		case !token && u > dearestEach:
			v.fail(path+"."+key, fmt.Sprintf("%s USD each is more than anything costs", u), "write USD")
		case token && u > 0 && u < Dollar/10_000:
			v.fail(path+"."+key, fmt.Sprintf("%s USD per million tokens is less than any model costs", u), "this may be the price of one token: write USD per million tokens, such as 1.25")
		case token && u%1e6 != 0:
			v.fail(path+"."+key, "is finer than a picodollar (1e-12 USD) a token", "six places after the point are enough")
		}
	})
	return set
}

func (v *validator) date(path string, d Date) {
	if d == "" {
		return
	}
	if _, err := time.Parse(time.DateOnly, string(d)); err != nil {
		v.fail(path, fmt.Sprintf("%q is no day", string(d)), "write YYYY-MM-DD, such as 2026-10-01")
	}
}

func (c *Config) provider(name string) *Provider {
	for i := range c.Providers {
		if c.Providers[i].Name == name {
			return &c.Providers[i]
		}
	}
	return nil
}

func (c *Config) pool(name string) *Pool {
	for i := range c.Pools {
		if c.Pools[i].Name == name {
			return &c.Pools[i]
		}
	}
	return nil
}

func namesOf[T any](list []T, name func(*T) string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = name(&list[i])
	}
	return out
}

// ParsePrices reads a file of prices: a YAML list of rows as in [Prices].Table.
// name stands for the file in positions.
func ParsePrices(name string, text []byte) ([]Price, error) {
	root, ps := readTree(name, text)
	if root == nil {
		return nil, ps
	}
	d := newDecoder(name, nil)
	var list []Price
	d.decode(root, reflect.ValueOf(&list).Elem(), scope{})
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	v := validator{c: &Config{}, skip: func(string) bool { return false }}
	v.bounds(reflect.ValueOf(&list).Elem(), "", false)
	for i := range list {
		v.priceAlone(joinIndex("", i), &list[i])
	}
	for _, p := range v.problems {
		p.File = name
		p.Line, p.Col = root.place(p.Path)
	}
	if len(v.problems) > 0 {
		return nil, v.problems
	}
	return list, nil
}

// readPrices reads the files of prices.
func (l *loader) readPrices(c *Config, read func(string) ([]byte, error)) {
	for i := range c.Prices.Files {
		f, path := &c.Prices.Files[i], joinIndex("prices.files", i)
		if f.Path == "" || l.isFaulty(path+".path") {
			continue
		}
		if f.Text != "" {
			l.place([]*Problem{{Path: path, What: "has a path and a text", Hint: "set one of them"}})
			l.faulty = append(l.faulty, path)
			continue
		}
		text, err := read(f.Path)
		if err != nil {
			l.place([]*Problem{{Path: path + ".path", What: "prices cannot be read: " + reason(err), Hint: "a relative path starts at the directory of this file"}})
			l.faulty = append(l.faulty, path)
			continue
		}
		f.Text = string(text)
	}
}
