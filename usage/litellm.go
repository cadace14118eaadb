// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// This file reads the price list that LiteLLM keeps,
// model_prices_and_context_window.json: an object with an entry for each model,
// amounts in USD for one token.

// Entry is one model of LiteLLM's list.
type Entry struct {
	Key    string // as the list has it
	List   string // name of the provider
	Region string // "": every one
	Model  string // its name at the provider
	price  *Price
}

// The bounds of one list.
const (
	maxEntries = 100_000
	maxListed  = 100 // problems and notes that are told
)

// dearestToken is what one token costs at the most, in picodollars: beyond it the
// unit is another.
const dearestToken = 5_000 * 1_000_000

// ReadLiteLLM reads a list. name stands for the file in positions. What cannot be
// right is a problem; what the list has and the gateway does not bill is a note.
func ReadLiteLLM(name string, text []byte) (entries []Entry, problems, notes config.Problems) {
	r := &liteLLM{name: name, text: text, seen: map[string]int64{}, unknown: map[string]int{}}
	r.dec = json.NewDecoder(bytes.NewReader(text))
	r.dec.UseNumber()
	if err := r.read(); err != nil {
		what := "is no JSON: " + strings.TrimPrefix(err.Error(), "json: ")
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			what = "ends in the middle"
		}
		r.problemAt(r.at(err), "", what, "LiteLLM's list is a JSON object with an entry for each model")
	}
	for _, field := range slices.Sorted(mapKeys(r.unknown)) {
		if len(r.notes) < maxListed {
			r.notes = append(r.notes, &config.Problem{File: name, Path: field, What: fmt.Sprintf("is not billed; %d models have it", r.unknown[field])})
		}
	}
	return r.entries, r.problems, r.notes
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type liteLLM struct {
	name            string
	text            []byte
	dec             *json.Decoder
	entries         []Entry
	seen            map[string]int64 // offsets of keys
	unknown         map[string]int   // costs that are not billed, and how many models have them
	problems, notes config.Problems
	counted         int // lines before the offset
	offset          int64
	lineStart       int64
}

// place is the line and column of an offset. Offsets are asked for in rising
// order, mostly, so that the text is gone through once.
func (r *liteLLM) place(offset int64) (line, col int) {
	offset = min(offset, int64(len(r.text)))
	if offset < r.offset {
		r.counted, r.offset, r.lineStart = 0, 0, 0
	}
	for i := r.offset; i < offset; i++ {
		if r.text[i] == '\n' {
			r.counted, r.lineStart = r.counted+1, i+1
		}
	}
	r.offset = offset
	return r.counted + 1, int(offset-r.lineStart) + 1
}

// at is where an error of the decoder is.
func (r *liteLLM) at(err error) int64 {
	if s, ok := err.(*json.SyntaxError); ok {
		return max(0, s.Offset-1)
	}
	return r.dec.InputOffset()
}

func (r *liteLLM) problemAt(offset int64, path, what, hint string) {
	if len(r.problems) >= maxListed {
		return
	}
	line, col := r.place(offset)
	r.problems = append(r.problems, &config.Problem{File: r.name, Line: line, Col: col, Path: path, What: what, Hint: hint})
}

// start is where the token begins that the decoder has just read: what is between
// it and the one before are spaces, commas and colons.
func (r *liteLLM) start(before int64) int64 {
	for before < int64(len(r.text)) && strings.IndexByte(" \t\r\n,:", r.text[before]) >= 0 {
		before++
	}
	return before
}

// token reads the next token and says where it begins.
func (r *liteLLM) token() (json.Token, int64, error) {
	before := r.dec.InputOffset()
	t, err := r.dec.Token()
	return t, r.start(before), err
}

func (r *liteLLM) read() error {
	t, at, err := r.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		r.problemAt(at, "", "must be an object with an entry for each model", "")
		return nil
	}
	for r.dec.More() {
		t, at, err := r.token()
		if err != nil {
			return err
		}
		key := t.(string)
		if first, ok := r.seen[key]; ok {
			line, _ := r.place(first)
			r.problemAt(at, key, fmt.Sprintf("is given twice; first in line %d", line), "keep one of them")
		}
		r.seen[key] = at
		if len(r.seen) > maxEntries {
			r.problemAt(at, "", fmt.Sprintf("has more than %d models", maxEntries), "")
			return nil
		}
		if err := r.entry(key, at); err != nil {
			return err
		}
	}
	if _, _, err := r.token(); err != nil {
		return err
	}
	if _, at, err := r.token(); err != io.EOF {
		r.problemAt(at, "", "there is something after the list", "")
	}
	return nil
}

// entry reads one model.
func (r *liteLLM) entry(key string, at int64) error {
	t, _, err := r.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		r.problemAt(at, key, "must be an object", "")
		return r.rest(t)
	}
	b := entryOf{reader: r, key: key, steps: map[stepKey]*rates{}}
	fields := map[string]bool{}
	for r.dec.More() {
		t, at, err := r.token()
		if err != nil {
			return err
		}
		field := t.(string)
		if fields[field] {
			r.problemAt(at, key+"."+field, "is given twice", "keep one of them")
		}
		fields[field] = true
		if err := b.field(field); err != nil {
			return err
		}
	}
	if _, _, err := r.token(); err != nil {
		return err
	}
	if key != "sample_spec" {
		b.finish()
	}
	return nil
}

// rest passes what is left of a value that began with t.
func (r *liteLLM) rest(t json.Token) error {
	depth := 0
	for {
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		var err error
		if t, err = r.dec.Token(); err != nil {
			return err
		}
	}
}

// entryOf is one model while it is read.
type entryOf struct {
	reader   *liteLLM
	key      string
	provider string
	mode     string
	steps    map[stepKey]*rates
	image    int64 // input_cost_per_image, + 1
	priced   bool
}

// stepKey is a tier of service and the prompts it is for.
type stepKey struct {
	tier  string
	above int
}

// amounts are the fields that are billed, by their names without suffixes.
func amountOf(field string) (kind, bool) {
	switch field {
	case "input_cost_per_token":
		return kindInput, true
	case "output_cost_per_token":
		return kindOutput, true
	case "output_cost_per_reasoning_token":
		return kindReasoning, true
	case "cache_read_input_token_cost":
		return kindCacheRead, true
	case "cache_creation_input_token_cost":
		return kindCacheWrite, true
	case "cache_creation_input_token_cost_above_1hr":
		return kindCacheWrite1h, true
	case "input_cost_per_audio_token":
		return kindAudioInput, true
	case "output_cost_per_audio_token":
		return kindAudioOutput, true
	case "input_cost_per_image_token":
		return kindImageInput, true
	case "output_cost_per_image_token":
		return kindImageOutput, true
	case "output_cost_per_image":
		return kindImage, true
	case "input_cost_per_query", "search_context_cost_per_query":
		return kindSearch, true
	case "input_cost_per_request":
		return kindRequest, true
	case "input_cost_per_second":
		return kindMilli, true
	}
	return 0, false
}

// suffixes are what may follow the name of a field: a tier of service, and the
// length of the prompts.
var suffixes = regexp.MustCompile(`^(.*?)(?:_above_([0-9]{1,6})k_tokens)?(?:_(priority|flex|batches|fast|ultrafast))?$`)

// field reads the value of a field.
func (b *entryOf) field(field string) error {
	r := b.reader
	t, at, err := r.token()
	if err != nil {
		return err
	}
	if _, ok := t.(json.Delim); ok {
		if field == "search_context_cost_per_query" && t == json.Delim('{') {
			return b.searches()
		}
		return r.rest(t)
	}
	switch field {
	case "litellm_provider":
		b.provider, _ = t.(string)
		return nil
	case "mode":
		b.mode, _ = t.(string)
		return nil
	}
	m := suffixes.FindStringSubmatch(field)
	k, known := amountOf(m[1])
	if !known && field != "input_cost_per_image" {
		if strings.Contains(field, "cost") && t != nil {
			r.unknown[field]++
		}
		return nil
	}
	if t == nil { // not known
		return nil
	}
	pico, ok := b.amount(field, t, at, k < kindRequest && field != "input_cost_per_image")
	if !ok {
		return nil
	}
	if field == "input_cost_per_image" {
		b.image = pico + 1
		return nil
	}
	above, _ := strconv.Atoi(m[2])
	tier := m[3]
	if tier == "batches" {
		tier = "batch"
	}
	b.set(stepKey{tier, above * 1000}, k, pico)
	return nil
}

func (b *entryOf) set(at stepKey, k kind, pico int64) {
	if b.steps[at] == nil {
		fresh := noRates()
		b.steps[at] = &fresh
	}
	if k == kindMilli {
		pico = (pico + 999) / 1000
	}
	b.steps[at][k] = pico
	b.priced = true
}

// amount reads an amount. What no model costs is refused: the unit is another.
func (b *entryOf) amount(field string, t json.Token, at int64, token bool) (pico int64, ok bool) {
	path := b.key + "." + field
	n, isNumber := t.(json.Number)
	if !isNumber {
		b.reader.problemAt(at, path, fmt.Sprintf("must be a number, not %v", t), "USD for one, such as 1.5e-07")
		return 0, false
	}
	u, _, err := config.ParseUSD(n.String())
	switch {
	case err != nil:
		b.reader.problemAt(at, path, err.Error(), "USD for one, such as 1.5e-07")
	case strings.HasPrefix(n.String(), "-"):
		b.reader.problemAt(at, path, "is negative", "")
	case token && int64(u) > dearestToken:
		b.reader.problemAt(at, path, fmt.Sprintf("%s USD for one token is more than any model costs", n), "this may be the price of a million tokens: divide it by 1,000,000")
	case u > 1000*config.Dollar:
		b.reader.problemAt(at, path, fmt.Sprintf("%s USD each is more than anything costs", n), "")
	case u == 0 && strings.Trim(n.String(), "-0.eE+") != "" && !zeroNumber(n.String()):
		b.reader.problemAt(at, path, fmt.Sprintf("%s USD is less than a picodollar (1e-12 USD)", n), "")
	default:
		return int64(u), true
	}
	return 0, false
}

// zeroNumber says that a number of JSON is nothing but zero, 0.0 or 0e5.
func zeroNumber(text string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	return strings.Trim(mantissa, "-0.") == ""
}

// searches reads search_context_cost_per_query: the amount of the middle size
// counts, for answers do not say which it was.
func (b *entryOf) searches() error {
	r := b.reader
	for r.dec.More() {
		t, _, err := r.token()
		if err != nil {
			return err
		}
		name, _ := t.(string)
		t, at, err := r.token()
		if err != nil {
			return err
		}
		if _, ok := t.(json.Delim); ok {
			if err := r.rest(t); err != nil {
				return err
			}
			continue
		}
		if name == "search_context_size_medium" && t != nil {
			if pico, ok := b.amount("search_context_cost_per_query."+name, t, at, false); ok {
				b.set(stepKey{}, kindSearch, pico)
			}
		}
	}
	_, _, err := r.token()
	return err
}

// finish makes the price.
func (b *entryOf) finish() {
	if b.image > 0 && b.mode == "image_generation" {
		if s := b.steps[stepKey{}]; s == nil || s[kindImage] == unset {
			b.set(stepKey{}, kindImage, b.image-1)
		}
	}
	if !b.priced {
		return
	}
	e := Entry{Key: b.key, price: &Price{Source: b.reader.name + " " + b.key, hour: unset}}
	e.List, e.Region, e.Model = placeOf(b.key, b.provider)
	if e.Model == "" {
		return
	}
	e.price.steps = b.stepsOf("", nil)
	base := b.steps[stepKey{}]
	if base == nil {
		none := noRates()
		base = &none
	}
	var tiers []string
	for at := range b.steps {
		if at.tier != "" && !slices.Contains(tiers, at.tier) {
			tiers = append(tiers, at.tier)
		}
	}
	slices.Sort(tiers)
	for _, name := range tiers {
		e.price.tiers = append(e.price.tiers, tier{name, b.stepsOf(name, base)})
	}
	b.reader.entries = append(b.reader.entries, e)
}

func (b *entryOf) stepsOf(name string, below *rates) steps {
	raw := noRates()
	if own := b.steps[stepKey{tier: name}]; own != nil {
		raw = *own
	}
	if below != nil {
		raw = raw.over(below)
	}
	s := steps{base: raw.complete()}
	var lengths []int
	for at := range b.steps {
		if at.tier == name && at.above > 0 {
			lengths = append(lengths, at.above)
		}
	}
	slices.Sort(lengths)
	for _, n := range lengths {
		raw = b.steps[stepKey{name, n}].over(&raw)
		s.above = append(s.above, step{n, raw.complete()})
	}
	return s
}

// regional are the providers whose keys may name a region.
func regional(list string) bool { return list == "bedrock" || list == "azure" || list == "vertex_ai" }

var regionName = regexp.MustCompile(`^(?:us|eu|apac|jp|au|global|[a-z]{2}(?:-[a-z]+)+-?[0-9]+|(?:us|eu)-[a-z]+)$`)

// placeOf takes a key apart. model is empty where it is about something else than
// requests to a model, such as rented capacity.
func placeOf(key, provider string) (list, region, model string) {
	list = familyOf(provider)
	model = key
	if first, rest, ok := strings.Cut(key, "/"); ok && (first == provider || first == list || strings.HasPrefix(provider, first)) {
		list, model = first, rest
		if list == "bedrock_converse" || list == "cohere_chat" {
			list = familyOf(list)
		}
	}
	if !regional(list) {
		return list, "", model
	}
	if first, rest, ok := strings.Cut(model, "/"); ok && regionName.MatchString(first) {
		region, model = first, rest
	}
	if strings.Contains(model, "month-commitment/") {
		return list, region, ""
	}
	return list, region, model
}

// familyOf is the name under which all models of a provider are found.
func familyOf(provider string) string {
	switch {
	case strings.HasPrefix(provider, "vertex_ai"):
		return "vertex_ai"
	case strings.HasPrefix(provider, "bedrock"):
		return "bedrock"
	case provider == "text-completion-openai":
		return "openai"
	case provider == "cohere_chat":
		return "cohere"
	case provider == "azure_text":
		return "azure"
	}
	return provider
}

// entry takes a row of LiteLLM's list.
func (l *list) entry(e *Entry, from time.Time) {
	p := *e.price
	p.From = from
	l.put(&row{place: place{'l', e.List}, model: e.Model, region: e.Region, price: &p})
}
