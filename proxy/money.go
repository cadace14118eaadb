// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/usage"
)

// This file says what a request may cost, before it is sent, and what it has cost.

// Prices are those in force; nil: there is no configuration yet.
func (s *Server) Prices() *usage.Prices {
	if t := s.table.Load(); t != nil {
		return t.prices
	}
	return nil
}

// priceOf is the price of the target for the request; nil: it is not known.
func (x *exchange) priceOf(tg *target) *usage.Price {
	q := tg.query
	q.Model = tg.named(x)
	return x.table.prices.Find(&q, x.record.Time)
}

// reserveCost is the most that the request may cost at any of the targets that may
// serve it, in picodollars, by the estimate of its prompt and the bound on its
// answer. known: each of them has a price; else it is that of those that have.
func (x *exchange) reserveCost() (picodollars int64, known bool) {
	known = true
	most := func(tg *target) {
		cost := x.bid(tg)
		picodollars, known = max(picodollars, cost.Pico), known && cost.Known
	}
	if x.target != nil {
		most(x.target)
	}
	for _, tg := range x.plan.next {
		most(tg)
	}
	for i := range x.plan.chain {
		switch f := &x.plan.chain[i]; {
		case f.target != nil:
			most(f.target)
		case f.model != nil:
			for _, tg := range f.model.targets {
				most(tg)
			}
		}
	}
	return picodollars, known
}

// bid is what the request may cost at tg.
func (x *exchange) bid(tg *target) usage.Cost {
	if x.free() {
		return usage.Free()
	}
	price, terms := x.priceOf(tg), usage.Terms{Tier: x.askedTier(tg), Took: x.longest(tg)}
	if x.op == llm.OpImages {
		c := x.imagesAsked()
		if cost, _ := price.Cost(&c, terms); cost.Known {
			return cost
		}
	}
	c := usage.Counts{Input: x.estimate(tg), Output: x.outputBound(tg), Source: llm.Estimated}
	cost, _ := price.Cost(&c, terms)
	return cost
}

// imagesAsked are the images that the request asks for. A server that makes fewer
// fails, and one that bills images one by one tells no usage.
func (x *exchange) imagesAsked() usage.Counts {
	return usage.Counts{Images: max(x.plan.choices, 1), Source: llm.Estimated}
}

// askedTier is the tier of service that the request asks for at tg, "" where that
// means nothing: a client must not choose the price of a pool.
func (x *exchange) askedTier(tg *target) string {
	if !tg.tiered {
		return ""
	}
	return x.record.ServiceTier
}

// longest is how long an answer of tg takes, for prices by time: what one of a
// hundred took, or else the bound.
func (x *exchange) longest(tg *target) time.Duration {
	total := x.service.timeouts.Total.D()
	if tg.mark == nil {
		return total
	}
	if p99 := tg.spans.longest(); p99 > 0 {
		return min(2*p99, total) // the spans are powers of two
	}
	return total
}

// outputBound is how many tokens the answer has at the most: all choices together.
func (x *exchange) outputBound(tg *target) int {
	if !x.op.Generates() && x.op != llm.OpCompletions {
		return 0
	}
	bound := x.req.MaxTokens
	if most := tg.maxOutput(); most > 0 && (bound == 0 || bound > most) {
		bound = most
	}
	if bound == 0 {
		bound = x.table.cfg.Quota.Output
	}
	return bound * max(x.req.N, 1)
}

// free says that nobody bills the operation.
func (x *exchange) free() bool {
	switch {
	case x.op.Counts(), x.op == llm.OpModels, x.op == llm.OpModerations, x.rule != nil && (x.target == nil || x.target.plain):
		return true
	}
	return false
}

// usedBy is what an attempt has used that brought no answer: what its reader has
// seen; nil: nothing. Where the request was sent in full and nothing came back, the server may
// have worked, and nobody can say how much; it is charged for only if the client
// has left meanwhile, since that is what providers do.
func (x *exchange) usedBy(f *failure) *usage.Used {
	var c usage.Counts
	if f.reader != nil {
		c = f.reader.Usage()
	}
	switch gone := f.class == provider.Canceled || f.reply != nil && f.reply.Status == StatusClientClosed; {
	case c.Told() || c.Completion() > 0:
		c = x.asBounded(c.WithPrompt(x.promptTokens()))
	case !f.sent || f.replied || f.stale:
		return nil
	case gone:
		c = usage.Counts{Input: x.promptTokens(), Source: llm.Partial}
	default:
		c = usage.Counts{Source: llm.Lost}
	}
	if x.free() {
		return nil
	}
	cost, _ := x.cost(&c)
	return &usage.Used{Counts: c, Cost: cost}
}

// asBounded takes what the gateway has counted itself, perhaps in bytes that are
// no answer at all, to what the request let the server make. What the
// server told before an answer broke off is its word.
func (x *exchange) asBounded(c usage.Counts) usage.Counts {
	if c.Source != llm.Estimated && (c.Source != llm.Partial || !c.NoPrompt) || !x.op.Generates() || x.target == nil || len(x.target.overrides) > 0 || len(x.target.chatOverrides) > 0 {
		return c
	}
	most := x.plan.most
	if can := x.target.maxOutput(); can > 0 && (most == 0 || most > can) {
		most = can
	}
	if most *= x.plan.choices; most > 0 && c.Output+c.Reasoning > most {
		c.Reasoning = min(c.Reasoning, most)
		c.Output = most - c.Reasoning
	}
	return c
}

// cost is what c costs at the target. missing is why it is not known.
func (x *exchange) cost(c *usage.Counts) (cost usage.Cost, missing string) {
	if c.Source == llm.Lost {
		return usage.Free(), ""
	}
	t := usage.Terms{Tier: c.Tier, Took: time.Since(x.began)}
	if t.Tier == "" {
		t.Tier = x.askedTier(x.target)
	}
	return x.priceOf(x.target).Cost(c, t)
}

// spend writes into the record what the request has used, and what all attempts
// together cost. A request that used nothing costs nothing.
func (x *exchange) spend() {
	rec := x.record
	rec.Cost, rec.Prices = usage.Free(), x.table.prices.Version()
	if x.free() {
		rec.Counts = usage.Counts{}
	}
	rec.Counts = x.asBounded(rec.Counts)
	var last *usage.Used
	for i := range rec.Tries {
		if u := rec.Tries[i].Used; u != nil {
			rec.Cost, last = rec.Cost.Plus(u.Cost), u
		}
	}
	missing := ""
	silent := x.silent()
	if silent && x.op == llm.OpImages {
		rec.Counts, silent = x.imagesAsked(), false
	}
	if x.target != nil && (silent || rec.Counts.Source != llm.Nothing) {
		var cost usage.Cost
		if cost, missing = x.cost(&rec.Counts); silent && cost.Pico == 0 {
			cost, missing = usage.Cost{}, "the answer does not say what it used"
		}
		rec.Cost = rec.Cost.Plus(cost)
		if n := len(rec.Tries); n > 0 && rec.Tries[n-1].Error == "" {
			rec.Tries[n-1].Used = &usage.Used{Counts: rec.Counts, Cost: cost}
		}
		rec.ServiceTier = cmp.Or(rec.Counts.Tier, x.askedTier(x.target))
	} else if last != nil {
		rec.Counts = last.Counts // nobody has answered
	}
	if !rec.Cost.Known {
		if rec.Unpriced = missing; missing == "" {
			rec.Unpriced = "an attempt has no price"
		}
		x.unpriced()
	}
}

// silent says that a provider has answered and will bill something of which the
// answer says nothing, such as the characters of a text that it spoke. What costs
// something for each request has a cost nevertheless.
func (x *exchange) silent() bool {
	switch x.op {
	case llm.OpSpeech, llm.OpTranscription, llm.OpImages, llm.OpRerank:
	default:
		return false
	}
	c := x.record.Counts
	c.Source, c.Tier, c.NoPrompt = llm.Nothing, "", false
	return c == usage.Counts{} && x.target != nil && x.target.provider != nil && x.record.Status/100 == 2
}

// unpriced tells of a request whose cost is not known, where there are prices.
func (x *exchange) unpriced() {
	if x.table.prices.Empty() || x.target == nil {
		return
	}
	x.server.metrics.unpriced.WithLabelValues(x.modelName(), x.target.where()).Inc()
	if _, told := x.table.unpriced.LoadOrStore(x.target.label, true); !told {
		x.server.log.Warn("a price is not known: list it in prices.table, or limits of money do not see these requests",
			"target", x.target.label, "model", x.record.ModelUsed, "missing", x.record.Unpriced)
	}
}

// modelName is the configured name of the model, for metrics.
func (x *exchange) modelName() string {
	if x.model == nil {
		return ""
	}
	return x.model.name
}

// tooDear says why nothing is sent to tg for its price, "" if it is.
func (x *exchange) tooDear(tg *target) string {
	most := x.model.maxCost
	if x.free() || most == nil && !x.table.prices.Refuses() {
		return ""
	}
	switch cost := x.bid(tg); {
	case !cost.Known:
		return "its price is not known"
	case most != nil && cost.Pico > int64(*most):
		return fmt.Sprintf("the request may cost %s USD, and %s are allowed", cents(cost.Pico), most)
	}
	return ""
}

// cents is an amount for people: six digits of it.
func cents(pico int64) string {
	return strconv.FormatFloat(float64(pico)/float64(config.Dollar), 'g', 6, 64)
}

// estimatedCost is request.cost for conditions.
func (x *exchange) estimatedCost(tg *target) any {
	if tg == nil {
		return types.NewErr("request.cost is of a target, and not of a model")
	}
	cost := x.bid(tg)
	if !cost.Known {
		return types.NewErr("the price of %s is not known", tg.label)
	}
	return float64(cost.Pico) / float64(config.Dollar)
}

// queryOf is how the price of a provider's models is found.
func queryOf(p *config.Provider, quirks string) usage.Query {
	q := usage.Query{Provider: p.Name, Region: p.Region}
	if p.PriceList != "" {
		q.Lists = []string{p.PriceList}
		return q
	}
	switch p.Dialect {
	case config.ProviderOpenAI:
		if u, err := url.Parse(p.BaseURL); err == nil && u.Hostname() == "api.openai.com" {
			q.Lists = []string{"openai"}
		} else if quirks != "" && quirks != "openai" {
			q.Lists = listsOf(quirks)
		}
	case config.ProviderAzure:
		q.Lists = []string{"azure", "azure_ai"}
	case config.ProviderVertex:
		q.Lists = []string{"vertex_ai"}
	default:
		q.Lists = []string{string(p.Dialect)}
	}
	return q
}

// listsOf are the names that LiteLLM's list has for a compatible server.
func listsOf(quirks string) []string {
	switch quirks {
	case "together":
		return []string{"together_ai"}
	case "fireworks":
		return []string{"fireworks_ai"}
	case "nvidia":
		return []string{"nvidia_nim"}
	case "zhipu":
		return []string{"zai"}
	}
	return []string{quirks}
}

// Unpriced are the targets of a configuration that have no price, where there are
// prices.
func Unpriced(cfg *config.Config) (notes []*config.Problem) {
	prices, _, _ := usage.NewPrices(&cfg.Prices)
	if prices.Empty() {
		return nil
	}
	queries := map[string]usage.Query{}
	for i := range cfg.Providers {
		p := &cfg.Providers[i]
		queries[p.Name] = queryOf(p, p.Quirks)
	}
	look := func(path, name, pool, model string) {
		q, ok := queries[name]
		if !ok {
			q = usage.Query{Pool: pool}
		}
		if q.Model = model; strings.Contains(model, "*") || prices.Find(&q, now()) != nil {
			return
		}
		notes = append(notes, &config.Problem{Path: path, What: fmt.Sprintf("the price of %s at %s is not known", model, cmp.Or(name, pool)), Hint: "list it in prices.table"})
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		for j := range m.Targets {
			t := &m.Targets[j]
			look(fmt.Sprintf("models[%d].targets[%d]", i, j), t.Provider, t.Pool, cmp.Or(t.Model, m.Name))
		}
		for j := range m.Fallbacks {
			if f := &m.Fallbacks[j]; f.VirtualModel == "" {
				look(fmt.Sprintf("models[%d].fallbacks[%d]", i, j), f.Provider, f.Pool, cmp.Or(f.Model, m.Name))
			}
		}
	}
	return notes
}
