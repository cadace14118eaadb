// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// kind is what is billed.
type kind uint8

const (
	kindInput kind = iota
	kindCacheRead
	kindCacheWrite
	kindCacheWrite1h
	kindAudioInput
	kindImageInput
	kindOutput
	kindReasoning
	kindAudioOutput
	kindImageOutput
	kindRequest
	kindImage
	kindSearch
	kindMilli // thousandths of a second of sound
	kinds
)

// String is the kind as messages have it.
func (k kind) String() string {
	return [kinds]string{
		"input tokens", "cached input", "cache writes", "cache writes for an hour", "audio input", "image input", "output tokens",
		"reasoning", "audio output", "image output", "requests", "images", "searches", "seconds of sound",
	}[k]
}

// unset is a rate that is not known.
const unset = -1

// rates are picodollars for one of each kind; unset: not known.
type rates [kinds]int64

func noRates() (r rates) {
	for i := range r {
		r[i] = unset
	}
	return r
}

// over is r with what it leaves out taken from below.
func (r rates) over(below *rates) rates {
	for i := range r {
		if r[i] == unset {
			r[i] = below[i]
		}
	}
	return r
}

// complete lets one rate stand in for another that is not known: never a lower one
// on purpose, and never zero.
func (r rates) complete() rates {
	for _, c := range [...]struct{ kind, by kind }{
		{kindCacheRead, kindInput}, {kindCacheWrite, kindInput}, {kindCacheWrite1h, kindCacheWrite}, {kindAudioInput, kindInput}, {kindImageInput, kindInput},
		{kindReasoning, kindOutput}, {kindAudioOutput, kindOutput}, {kindImageOutput, kindOutput},
	} {
		if r[c.kind] == unset {
			r[c.kind] = r[c.by]
		}
	}
	if r[kindRequest] == unset {
		r[kindRequest] = 0 // there is no such fee
	}
	return r
}

// steps are the rates by the length of the prompt.
type steps struct {
	base  rates
	above []step // shorter prompts first
}

type step struct {
	tokens int
	rates  rates
}

// of are the rates of a prompt of so many tokens.
func (s *steps) of(prompt int) *rates {
	r := &s.base
	for i := range s.above {
		if prompt <= s.above[i].tokens {
			break
		}
		r = &s.above[i].rates
	}
	return r
}

// tier is the rates of a tier of service.
type tier struct {
	name string
	steps
}

// Price is what one model costs at one place. It is immutable.
type Price struct {
	From   time.Time // when it began to count
	Source string    // where it is written
	steps
	tiers []tier
	// hour prices time instead of tokens: picodollars for an hour of a request;
	// unset: it does not.
	hour int64
}

// Terms are what of a request decides its rates besides the counts.
type Terms struct {
	Tier string        // of service; "": the ordinary one
	Took time.Duration // that a member worked, for prices by time
}

// standard are the names of the tier that needs no rates of its own. A tier of
// another name is not priced by them.
func standard(tier string) bool {
	switch tier {
	case "", "auto", "default", "standard", "standard_only", "on_demand":
		return true
	}
	return false
}

// at are the steps of a tier of service; nil: it has no rates.
func (p *Price) at(name string) *steps {
	for i := range p.tiers {
		if strings.EqualFold(p.tiers[i].name, name) {
			return &p.tiers[i].steps
		}
	}
	if standard(name) {
		return &p.steps
	}
	return nil
}

// Cost is what c costs. missing says what has no rate, and then nothing is known
// of the cost, whatever else has one.
func (p *Price) Cost(c *Counts, t Terms) (cost Cost, missing string) {
	if p == nil {
		return Cost{}, "no price"
	}
	if p.hour != unset {
		return Cost{Pico: overTime(p.hour, t.Took), Known: true}, ""
	}
	s := p.at(t.Tier)
	if s == nil {
		return Cost{}, "no rates for the service tier " + t.Tier
	}
	r := s.of(c.Prompt())
	total := r[kindRequest]
	for k, n := range [kinds]int{
		kindInput: c.Input, kindCacheRead: c.CacheRead, kindCacheWrite: c.CacheWrite, kindCacheWrite1h: c.CacheWrite1h,
		kindAudioInput: c.AudioInput, kindImageInput: c.ImageInput,
		kindOutput: c.Output, kindReasoning: c.Reasoning, kindAudioOutput: c.AudioOutput, kindImageOutput: c.ImageOutput,
		kindImage: c.Images, kindSearch: addInt(c.Searches, c.Units), kindMilli: c.Millis,
	} {
		if n == 0 {
			continue
		}
		if r[k] == unset {
			return Cost{}, "no rate for " + kind(k).String()
		}
		total = addSaturated(total, timesSaturated(r[k], n))
	}
	return Cost{Pico: total, Known: true}, ""
}

func addInt(a, b int) int {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxInt
}

// addSaturated adds what is not negative.
func addSaturated(a, b int64) int64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxInt64
}

// timesSaturated multiplies what is not negative.
func timesSaturated(rate int64, n int) int64 {
	high, low := bits.Mul64(uint64(rate), uint64(max(n, 0)))
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}

// overTime is the price of d at so much an hour, rounded up to a picodollar.
func overTime(hour int64, d time.Duration) int64 {
	high, low := bits.Mul64(uint64(hour), uint64(max(d, 0)))
	if high >= uint64(time.Hour) {
		return math.MaxInt64
	}
	n, rest := bits.Div64(high, low, uint64(time.Hour))
	if rest > 0 {
		n++
	}
	return int64(min(n, math.MaxInt64))
}

// compile makes the price of a row.
func compile(row *config.Price, source string) *Price {
	p := &Price{From: row.From.Time(), Source: source, hour: unset}
	if row.GPUHour != nil {
		share := 1.0
		if row.Share != nil {
			share = *row.Share
		}
		p.hour = int64(math.Ceil(float64(*row.GPUHour) * share))
	}
	p.steps = stepsOf(&row.Rates, row.Above, nil)
	for i := range row.Tiers {
		t := &row.Tiers[i]
		p.tiers = append(p.tiers, tier{t.Name, stepsOf(&t.Rates, t.Above, &row.Rates)})
	}
	return p
}

// stepsOf compiles rates and those of long prompts; below are what they leave out.
func stepsOf(base *config.Rates, above []config.RatesAbove, below *config.Rates) steps {
	raw := ratesOf(base)
	if below != nil {
		under := ratesOf(below)
		raw = raw.over(&under)
	}
	s := steps{base: raw.complete()}
	for i := range above {
		raw = ratesOf(&above[i].Rates).over(&raw)
		s.above = append(s.above, step{above[i].Tokens, raw.complete()})
	}
	return s
}

// ratesOf are the rates for one: of tokens the row has those of a million.
func ratesOf(c *config.Rates) rates {
	r := noRates()
	for k, u := range [kinds]*config.USD{
		kindInput: c.Input, kindCacheRead: c.CacheRead, kindCacheWrite: c.CacheWrite, kindCacheWrite1h: c.CacheWrite1h,
		kindAudioInput: c.AudioInput, kindImageInput: c.ImageInput,
		kindOutput: c.Output, kindReasoning: c.Reasoning, kindAudioOutput: c.AudioOutput, kindImageOutput: c.ImageOutput,
		kindRequest: c.Request, kindImage: c.Image, kindSearch: c.Search, kindMilli: c.Second,
	} {
		if u == nil {
			continue
		}
		switch r[k] = int64(*u); {
		case kind(k) < kindRequest:
			r[k] /= 1e6
		case kind(k) == kindMilli:
			r[k] = (r[k] + 999) / 1000
		}
	}
	return r
}
