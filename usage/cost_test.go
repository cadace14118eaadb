// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// table compiles rows of prices.table, as YAML.
func table(t testing.TB, yaml string) *usage.Prices {
	t.Helper()
	rows, err := config.ParsePrices("prices.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return compiled(t, config.Prices{Table: rows})
}

func liteLLM(t testing.TB, text string) *usage.Prices {
	t.Helper()
	return compiled(t, config.Prices{Files: []config.PriceFile{{Path: "list.json", Format: config.PricesLiteLLM, Text: text}}})
}

func compiled(t testing.TB, c config.Prices) *usage.Prices {
	t.Helper()
	p, problems, _ := usage.NewPrices(&c)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return p
}

var today = time.Date(2026, 10, 15, 12, 0, 0, 0, time.UTC)

// costs prices c and gives the amount in USD, or why there is none.
func costs(p *usage.Prices, q usage.Query, c usage.Counts, terms usage.Terms) string {
	cost, missing := p.Find(&q, today).Cost(&c, terms)
	if missing != "" {
		return missing
	}
	return cost.String()
}

// TestCost prices counts by hand-reckoned amounts. (B26: what is missing is taken
// for a rate that is known, never for nothing.)
func TestCost(t *testing.T) {
	p := table(t, `
- {provider: a, model: plain, rates: {input: 1.25, output: 10}}
- provider: a
  model: full
  rates: {input: 3, cacheRead: 0.3, cacheWrite: 3.75, cacheWrite1h: 6, output: 15, reasoning: 20, audioInput: 40, audioOutput: 80, perRequest: 0.005, perSearch: 0.01}
  above: [{tokens: 200000, rates: {input: 6, cacheRead: 0.6, cacheWrite: 7.5, output: 22.5}}]
  tiers: [{name: priority, rates: {input: 6, output: 30}}, {name: batch, rates: {input: 1.5, output: 7.5}}]
- {provider: a, model: images, rates: {perImage: 0.04}}
- {provider: a, model: sound, rates: {perSecond: 0.0001}}
- {provider: a, model: free, rates: {input: 0, output: 0}}
- {pool: own, gpuHour: 3.6, share: 0.5}
`)
	for _, c := range []struct {
		model, want string
		counts      usage.Counts
		terms       usage.Terms
	}{
		{"plain", "0.0225", usage.Counts{Input: 10_000, Output: 1000}, usage.Terms{}},
		{"plain", "0.00000125", usage.Counts{Input: 1}, usage.Terms{}},
		{"plain", "0.01375", usage.Counts{Input: 1000, CacheRead: 10_000}, usage.Terms{}},
		{"plain", "0.01", usage.Counts{Reasoning: 1000}, usage.Terms{}},
		{"plain", "0", usage.Counts{}, usage.Terms{}},
		{"plain", "0.0225", usage.Counts{Input: 10_000, Output: 1000}, usage.Terms{Tier: "default"}},
		{"plain", "no rates for the service tier flex", usage.Counts{Input: 10_000}, usage.Terms{Tier: "flex"}},
		{"full", "0.115", usage.Counts{Input: 1000, CacheRead: 10_000, CacheWrite: 4000, CacheWrite1h: 5000, Output: 1000, Reasoning: 2000, AudioInput: 100}, usage.Terms{}},
		{"full", "0.605", usage.Counts{Input: 200_000}, usage.Terms{}},
		{"full", "1.205006", usage.Counts{Input: 200_001}, usage.Terms{}},
		{"full", "0.155", usage.Counts{Input: 50_000, CacheRead: 0}, usage.Terms{}},
		{"full", "0.320", usage.Counts{Input: 50_000, CacheRead: 0, Output: 500}, usage.Terms{Tier: "Priority"}},
		{"full", "0.0875", usage.Counts{Input: 50_000, Output: 1000}, usage.Terms{Tier: "batch"}},
		{"full", "0.025", usage.Counts{Searches: 2}, usage.Terms{}},
		{"images", "0.08", usage.Counts{Images: 2}, usage.Terms{}},
		{"images", "no rate for input tokens", usage.Counts{Images: 2, Input: 1}, usage.Terms{}},
		{"sound", "0.00605", usage.Counts{Millis: 60_500}, usage.Terms{}},
		{"plain", "no rate for images", usage.Counts{Images: 1}, usage.Terms{}},
		{"free", "0", usage.Counts{Input: 5000, Output: 1}, usage.Terms{}},
		{"absent", "no price", usage.Counts{Input: 1}, usage.Terms{}},
	} {
		want := strings.TrimSuffix(c.want, "0")
		if c.want == "0" || !strings.Contains(c.want, ".") {
			want = c.want
		}
		if got := costs(p, usage.Query{Provider: "a", Model: c.model}, c.counts, c.terms); got != want {
			t.Errorf("%s %+v %+v: %s, want %s", c.model, c.counts, c.terms, got, want)
		}
	}
	if got := costs(p, usage.Query{Pool: "own", Model: "llama"}, usage.Counts{Input: 5}, usage.Terms{Took: 10 * time.Second}); got != "0.005" {
		t.Errorf("ten seconds of half a member at 3.60 USD an hour: %s", got)
	}
}

// TestOneRequestInEachConventionCostsTheSame: cached tokens are neither priced
// twice, nor left out. (B23, B24)
func TestOneRequestInEachConventionCostsTheSame(t *testing.T) {
	p := table(t, `[{provider: a, rates: {input: 3, cacheRead: 0.3, cacheWrite: 3.75, output: 15}}]`)
	for op, answer := range map[llm.Op]string{
		llm.OpChat:      `{"usage":{"prompt_tokens":100000,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":90000,"cache_write_tokens":1000}}}`,
		llm.OpResponses: `{"usage":{"input_tokens":100000,"output_tokens":20,"input_tokens_details":{"cached_tokens":90000,"cache_write_tokens":1000}}}`,
		llm.OpMessages:  `{"usage":{"input_tokens":9000,"cache_read_input_tokens":90000,"cache_creation_input_tokens":1000,"output_tokens":20}}`,
	} {
		tap := llm.NewTap(llm.TapOptions{Op: op})
		tap.Feed([]byte(answer))
		tap.Close()
		if got := costs(p, usage.Query{Provider: "a", Model: "m"}, tap.Usage(), usage.Terms{}); got != "0.05805" {
			t.Errorf("%v: %s USD", op, got)
		}
	}
}

// TestOwnPricesCostWhatListedOnesDo: prices of one's own and those of a list go
// through the same arithmetic. (B25)
func TestOwnPricesCostWhatListedOnesDo(t *testing.T) {
	own := table(t, `
- provider: a
  model: m
  rates: {input: 3, cacheRead: 0.3, cacheWrite: 3.75, cacheWrite1h: 6, output: 15, reasoning: 16, audioInput: 10}
  above: [{tokens: 200000, rates: {input: 6, output: 22.5}}]
  tiers: [{name: priority, rates: {input: 6}}]`)
	list := liteLLM(t, `{"m": {"litellm_provider": "x", "mode": "chat", "input_cost_per_token": 3e-06, "cache_read_input_token_cost": 3e-07,
		"cache_creation_input_token_cost": 3.75e-06, "cache_creation_input_token_cost_above_1hr": 0.000006, "output_cost_per_token": 1.5e-05,
		"output_cost_per_reasoning_token": 1.6e-05, "input_cost_per_audio_token": 1e-5, "input_cost_per_token_above_200k_tokens": 6e-6,
		"output_cost_per_token_above_200k_tokens": 2.25e-05, "input_cost_per_token_priority": 6e-06}}`)
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		c := usage.Counts{
			Input: r.IntN(150_000), CacheRead: r.IntN(150_000), CacheWrite: r.IntN(1000), CacheWrite1h: r.IntN(1000),
			Output: r.IntN(10_000), Reasoning: r.IntN(1000), AudioInput: r.IntN(100),
		}
		terms := usage.Terms{Tier: []string{"", "priority"}[r.IntN(2)]}
		a := costs(own, usage.Query{Provider: "a", Model: "m"}, c, terms)
		b := costs(list, usage.Query{Provider: "a", Lists: []string{"x"}, Model: "m"}, c, terms)
		if a != b || strings.HasPrefix(a, "no ") {
			t.Fatalf("%+v %+v: own %s, listed %s", c, terms, a, b)
		}
	}
}

// TestCostIsExact compares with rational numbers, and saturates where an int64
// would overflow.
func TestCostIsExact(t *testing.T) {
	p := table(t, `[{provider: a, rates: {input: 0.123457, output: 4999.999999}}]`)
	q := usage.Query{Provider: "a", Model: "m"}
	price := p.Find(&q, today)
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		c := usage.Counts{Input: r.IntN(100_000_000), Output: r.IntN(100_000_000)}
		got, _ := price.Cost(&c, usage.Terms{})
		want := new(big.Rat).Add(
			new(big.Rat).Mul(big.NewRat(123457, 1), big.NewRat(int64(c.Input), 1)),
			new(big.Rat).Mul(big.NewRat(4999999999, 1), big.NewRat(int64(c.Output), 1)))
		if new(big.Rat).SetInt64(got.Pico).Cmp(want) != 0 {
			t.Fatalf("%+v: %d, want %s", c, got.Pico, want)
		}
	}
	for _, c := range []usage.Counts{{Output: math.MaxInt}, {Input: math.MaxInt, Output: math.MaxInt}} {
		if got, _ := price.Cost(&c, usage.Terms{}); !got.Known || got.Pico != math.MaxInt64 {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if sum := (usage.Cost{Pico: math.MaxInt64, Known: true}).Plus(usage.Cost{Pico: 5, Known: true}); sum.Pico != math.MaxInt64 {
		t.Errorf("sum %+v", sum)
	}
}

// TestCostAsJSON: exact digits, and null for what is not known.
func TestCostAsJSON(t *testing.T) {
	for want, c := range map[string]usage.Cost{
		"null": {}, "0": usage.Free(), "0.000000000001": {Pico: 1, Known: true}, "9223372.036854775807": {Pico: math.MaxInt64, Known: true}, "12.5": {Pico: 12.5e12, Known: true},
	} {
		raw, err := json.Marshal(c)
		if err != nil || string(raw) != want {
			t.Errorf("%+v: %s, %v; want %s", c, raw, err, want)
		}
		var back usage.Cost
		if err := json.Unmarshal(raw, &back); err != nil || back != c {
			t.Errorf("%s: read back as %+v, %v", raw, back, err)
		}
	}
}

func TestFind(t *testing.T) {
	p := table(t, `
- {provider: a, rates: {input: 1}}
- {provider: a, model: gpt-*, rates: {input: 2}}
- {provider: a, model: gpt-5*, rates: {input: 3}}
- {provider: a, model: gpt-5, rates: {input: 4}}
- {provider: a, model: gpt-5, from: 2026-10-01, rates: {input: 5}}
- {provider: a, model: gpt-5, from: 2026-11-01, rates: {input: 6}}
- {provider: a, model: gpt-5, region: eu-*, rates: {input: 7}}
- {provider: a, model: gpt-5, region: eu-west-1, from: 2026-09-01, rates: {input: 8}}
- {pool: a, rates: {input: 9}}
`)
	for want, q := range map[string]usage.Query{
		"1": {Provider: "a", Model: "x"}, "2": {Provider: "a", Model: "gpt-4"}, "3": {Provider: "a", Model: "gpt-5-mini"}, "5": {Provider: "a", Model: "gpt-5", Region: "us"},
		"7": {Provider: "a", Model: "gpt-5", Region: "eu-north-1"}, "8": {Provider: "a", Model: "gpt-5", Region: "eu-west-1"}, "9": {Pool: "a", Model: "gpt-5"},
		"no price": {Provider: "b", Model: "gpt-5"},
	} {
		if got := costs(p, q, usage.Counts{Input: 1_000_000}, usage.Terms{}); got != want {
			t.Errorf("%+v: %s, want %s", q, got, want)
		}
	}
	q := usage.Query{Provider: "a", Model: "gpt-5"}
	for want, at := range map[int64]string{4_000_000: "2026-09-30T23:59:59Z", 5_000_000: "2026-10-01T00:00:00Z", 6_000_000: "2026-11-01T00:00:00Z"} {
		when, _ := time.Parse(time.RFC3339, at)
		if got, _ := p.Find(&q, when).Cost(&usage.Counts{Input: 1}, usage.Terms{}); got.Pico != want {
			t.Errorf("%s: %d, want %d", at, got.Pico, want)
		}
	}
}

// TestFindListed: the names of LiteLLM's list, its regions, and models with a date.
func TestFindListed(t *testing.T) {
	p := liteLLM(t, `{
		"gpt-5": {"litellm_provider": "openai", "input_cost_per_token": 1e-06},
		"gpt-5-2025-01-01": {"litellm_provider": "openai", "input_cost_per_token": 2e-06},
		"azure/eu/gpt-5": {"litellm_provider": "azure", "input_cost_per_token": 3e-06},
		"azure/gpt-5": {"litellm_provider": "azure", "input_cost_per_token": 4e-06},
		"bedrock/us-east-1/anthropic.claude-x-v1:0": {"litellm_provider": "bedrock", "input_cost_per_token": 5e-06},
		"anthropic.claude-x-v1:0": {"litellm_provider": "bedrock_converse", "input_cost_per_token": 6e-06},
		"bedrock/us-east-1/1-month-commitment/anthropic.claude-x-v1:0": {"litellm_provider": "bedrock", "input_cost_per_second": 0.1},
		"openrouter/openai/gpt-5": {"litellm_provider": "openrouter", "input_cost_per_token": 7e-06},
		"claude-y": {"litellm_provider": "vertex_ai-anthropic_models", "input_cost_per_token": 8e-06},
		"vertex_ai/gemini-z": {"litellm_provider": "vertex_ai-language-models", "input_cost_per_token": 9e-06}
	}`)
	for _, c := range []struct{ list, region, model, want string }{
		{"openai", "", "gpt-5", "1"}, {"openai", "", "gpt-5-2025-01-01", "2"}, {"openai", "", "gpt-5-2026-02-02", "1"}, {"openai", "", "gpt-5-20260202", "1"},
		{"openai", "", "gpt-5-mini", "no price"}, {"openai", "", "gpt-5-2025", "no price"},
		{"azure", "eu", "gpt-5", "3"}, {"azure", "us", "gpt-5", "4"},
		{"bedrock", "us-east-1", "anthropic.claude-x-v1:0", "5"}, {"bedrock", "eu-west-1", "anthropic.claude-x-v1:0", "6"},
		{"openrouter", "", "openai/gpt-5", "7"}, {"vertex_ai", "global", "claude-y", "8"}, {"vertex_ai", "", "claude-y@20260101", "8"}, {"vertex_ai", "", "gemini-z", "9"},
		{"groq", "", "gpt-5", "no price"},
	} {
		q := usage.Query{Provider: "p", Lists: []string{c.list}, Region: c.region, Model: c.model}
		if got := costs(p, q, usage.Counts{Input: 1_000_000}, usage.Terms{}); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestTableBeforeFiles: what an operator writes himself comes before a list, and a
// list before the next.
func TestTableBeforeFiles(t *testing.T) {
	rows, _ := config.ParsePrices("t", []byte(`[{provider: a, model: m, rates: {input: 1}}]`))
	file := func(path, price string, models ...string) config.PriceFile {
		var entries []string
		for _, m := range models {
			entries = append(entries, fmt.Sprintf(`%q:{"litellm_provider":"x","input_cost_per_token":%s}`, m, price))
		}
		return config.PriceFile{Path: path, Format: config.PricesLiteLLM, Text: "{" + strings.Join(entries, ",") + "}"}
	}
	p := compiled(t, config.Prices{Table: rows, Files: []config.PriceFile{file("one", "2e-06", "m", "n"), file("two", "3e-06", "m", "n", "o")}})
	for model, want := range map[string]string{"m": "1", "n": "2", "o": "3", "p": "no price"} {
		if got := costs(p, usage.Query{Provider: "a", Lists: []string{"x"}, Model: model}, usage.Counts{Input: 1_000_000}, usage.Terms{}); got != want {
			t.Errorf("%s: %s, want %s", model, got, want)
		}
	}
	other := compiled(t, config.Prices{Table: rows, Files: []config.PriceFile{file("one", "2e-06", "m", "n"), file("two", "4e-06", "m", "n", "o")}})
	if p.Version() == other.Version() || p.Version() == "" {
		t.Errorf("versions %q and %q", p.Version(), other.Version())
	}
	if named := compiled(t, config.Prices{Version: "october", Table: rows}); named.Version() != "october" {
		t.Errorf("version %q", named.Version())
	}
}

// TestBadLists: each fault is told with its place, and nothing of the list counts
// as zero. (B11: amounts that no model costs are of another unit.)
func TestBadLists(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                       `l:1:1: must be an object with an entry for each model`,
		`{"m": 5}`:                 `l:1:2: m: must be an object`,
		"{\"m\": {},\n \"m\": {}}": `l:2:2: m: is given twice; first in line 1; keep one of them`,
		`{"m": {"input_cost_per_token": 1.25, "litellm_provider": "x"}}`:      `l:1:32: m.input_cost_per_token: 1.25 USD for one token is more than any model costs; this may be the price of a million tokens: divide it by 1,000,000`,
		`{"m": {"input_cost_per_token": "1e-6"}}`:                             `l:1:32: m.input_cost_per_token: must be a number, not 1e-6; USD for one, such as 1.5e-07`,
		`{"m": {"input_cost_per_token": -1e-6}}`:                              `l:1:32: m.input_cost_per_token: is negative`,
		`{"m": {"input_cost_per_token": 1e-14}}`:                              `l:1:32: m.input_cost_per_token: 1e-14 USD is less than a picodollar (1e-12 USD)`,
		`{"m": {"input_cost_per_token": 1e-6, "input_cost_per_token": 2e-6}}`: `l:1:38: m.input_cost_per_token: is given twice; keep one of them`,
		`{"m": {"input_cost_per_token": 1e999999}}`:                           `l:1:32: m.input_cost_per_token: is no amount of money; USD for one, such as 1.5e-07`,
		`{"m": {"output_cost_per_image": 40000}}`:                             `l:1:33: m.output_cost_per_image: 40000 USD each is more than anything costs`,
		`{"m": {`: `l:1:8: ends in the middle; LiteLLM's list is a JSON object with an entry for each model`,
		`{} {}`:   `l:1:4: there is something after the list`,
	} {
		entries, problems, _ := usage.ReadLiteLLM("l", []byte(text))
		if len(problems) != 1 || problems[0].Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, problems, want)
		}
		if strings.Contains(text, "input_cost_per_token\": -") && len(entries) > 0 {
			t.Errorf("%s: %d entries", text, len(entries))
		}
	}
	_, _, notes := usage.ReadLiteLLM("l", []byte(`{"sample_spec": {"input_cost_per_token": 0}, "m": {"input_cost_per_token": 1e-6, "file_search_cost_per_1k_calls": 0.0025, "tpm": 5}}`))
	if len(notes) != 1 || notes[0].Path != "file_search_cost_per_1k_calls" {
		t.Errorf("notes %v", notes)
	}
	_, problems, _ := usage.NewPrices(&config.Prices{Table: []config.Price{
		{Provider: "a", Model: "m", Rates: config.Rates{Input: new(config.USD)}}, {Provider: "a", Model: "m", Rates: config.Rates{Input: new(config.USD)}},
	}})
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "prices.table[1]: prices the same as prices.table[0]") {
		t.Errorf("problems %v", problems)
	}
}

func TestDoubts(t *testing.T) {
	p := table(t, `
- {provider: a, model: cache, rates: {input: 1, cacheRead: 2, output: 3}}
- {provider: a, model: swapped, rates: {input: 10, output: 1}}
- {provider: a, model: free, rates: {input: 0, output: 0}}
- {provider: a, model: long, rates: {input: 2, output: 3}, above: [{tokens: 100, rates: {input: 1}}]}
- {provider: a, model: dear, rates: {input: 101, output: 300}}
- {provider: a, model: fine, rates: {input: 1, output: 3}}
`)
	got := map[string]string{}
	for _, n := range p.Doubts() {
		got[n.Path] = n.What
	}
	if diff := cmp.Diff(map[string]string{
		"prices.table[0]": "cached input costs more than input", "prices.table[1]": "input costs more than output", "prices.table[2]": "a provider that costs nothing",
		"prices.table[3]": "long prompts cost less than short ones", "prices.table[4]": "input costs more than 100 USD per million tokens",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// TestCostAllocatesNothing is the budget of what runs for each request.
func TestCostAllocatesNothing(t *testing.T) {
	p, q := manyPrices(t), usage.Query{Provider: "a", Lists: []string{"openai"}, Region: "eu", Model: "model-500-2026-01-01"}
	c := usage.Counts{Input: 1000, CacheRead: 5000, Output: 300, Reasoning: 20}
	if n := testing.AllocsPerRun(100, func() {
		if cost, _ := p.Find(&q, today).Cost(&c, usage.Terms{}); !cost.Known {
			t.Fatal("no price")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func manyPrices(t testing.TB) *usage.Prices {
	var b strings.Builder
	b.WriteString("{")
	for i := range 3000 {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `"model-%d":{"litellm_provider":"openai","input_cost_per_token":1e-06,"output_cost_per_token":1e-05,"input_cost_per_token_above_200k_tokens":2e-06}`, i)
	}
	b.WriteString("}")
	return liteLLM(t, b.String())
}

// BenchmarkCost finds a price among 3,000 and reckons with it.
func BenchmarkCost(b *testing.B) {
	p, q := manyPrices(b), usage.Query{Provider: "a", Lists: []string{"openai"}, Region: "eu", Model: "model-500-2026-01-01"}
	c := usage.Counts{Input: 1000, CacheRead: 5000, Output: 300, Reasoning: 20}
	b.ReportAllocs()
	for b.Loop() {
		p.Find(&q, today).Cost(&c, usage.Terms{})
	}
}

// FuzzPriceList: no list brings the reader down, and nothing that it accepts has a
// negative price.
func FuzzPriceList(f *testing.F) {
	f.Add([]byte(`{"sample_spec": {}, "m": {"litellm_provider": "x", "input_cost_per_token": 1e-06, "search_context_cost_per_query": {"search_context_size_medium": 0.01}}}`))
	f.Add([]byte(`{"bedrock/us-east-1/m": {"litellm_provider": "bedrock", "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 1.2e-5, "input_cost_per_token_batches": 1}}`))
	f.Add([]byte(`{"m": {"input_cost_per_token": [1, {"a": 2}]`))
	f.Add([]byte("- {provider: a, rates: {input: 1.25}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, format := range []config.PriceFormat{config.PricesLiteLLM, config.PricesPenstock} {
			p, problems, _ := usage.NewPrices(&config.Prices{Files: []config.PriceFile{{Path: "f", Format: format, Text: string(text)}}})
			for _, q := range problems {
				if q.File == "" || q.What == "" {
					t.Errorf("a problem without a place: %+v", q)
				}
			}
			for _, row := range p.List() {
				for name, rate := range row.Rates {
					if strings.HasPrefix(rate, "-") {
						t.Errorf("%s: %s is %s", row.Model, name, rate)
					}
				}
			}
		}
	})
}
