// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// turn is a request to a provider for tokens, whatever shape it came in.
type turn struct {
	model    string
	messages []message
	prompts  []tokens // in place of messages
	tools    []function
	choice   string // auto | none | required | a tool's name after "="
	single   bool   // no parallel calls
	bounds   bounds
	bounded  bool // the client gave bounds.most
	n        int
	seed     *int64
	thinking bool
	schema   json.RawMessage // of the answer; nil: text
	stream   bool
	marked   bool // only what a cache mark covers is cached, as the shape has it

	usageChunk, continuousUsage bool // OpenAI: the usage at the end, and in every chunk
}

// message is one of a conversation. Roles: system, user, assistant, tool.
type message struct {
	role   string
	blocks []block
}

// block is a part of a message.
type block struct {
	kind string // text | image | audio | file | call | result | reasoning
	text string // of text, result and reasoning; the arguments of a call; the data or URL of an image
	id   string // of a call and of its result
	name string // of a call
	mark bool   // a cache mark follows it
}

// part is a piece of an answer, made of tokens.
type part struct {
	kind      string // text | call | reasoning | refusal
	pieces    []string
	id, name  string
	signature string // of reasoning, and of a call where the shape signs them
}

func (p *part) text() string { return strings.Join(p.pieces, "") }

// answer is one choice.
type answer struct {
	parts  []part
	finish string // stop | length | calls | filter | refusal | odd
	stop   string // the stop string that ended it, "" if none
	silent int    // tokens that are generated and not shown
}

func (a *answer) count() (all, reasoning int) {
	all = a.silent
	for _, p := range a.parts {
		all += len(p.pieces)
		if p.kind == "reasoning" {
			reasoning += len(p.pieces)
		}
	}
	return all, reasoning
}

// imageTokens is what an image counts, whatever its size.
const imageTokens = 256

// render is the chat template, as [renderChat] has it; marks are the numbers of
// tokens before each cache mark.
func (t *turn) render() (all tokens, marks []int) {
	for _, f := range t.tools {
		all = all.segment("<|tool|>" + f.Name)
		all = all.segment(string(f.Parameters))
		if f.mark {
			marks = append(marks, all.count())
		}
	}
	for _, m := range t.messages {
		all = all.segment("<|" + m.role + "|>")
		for _, b := range m.blocks {
			switch b.kind {
			case "image", "audio", "file":
				id := fmt.Sprintf("%016x", HashText(0, b.text))
				all = append(all, strings.Repeat(id, imageTokens*bytesPerToken/len(id))...)
			case "reasoning": // earlier thoughts are not read again
			default:
				all = all.segment(b.text)
				all = all.segment(b.name)
			}
			if b.mark {
				marks = append(marks, all.count())
			}
		}
	}
	return all.segment(assistantTurn), marks
}

func (t *turn) countKind(kind string) (n int) {
	for _, m := range t.messages {
		for _, b := range m.blocks {
			if b.kind == kind {
				n++
			}
		}
	}
	return n
}

// last is the text of the last message if it has the role.
func (t *turn) last(role string) string {
	if len(t.messages) == 0 || t.messages[len(t.messages)-1].role != role {
		return ""
	}
	var text []string
	for _, b := range t.messages[len(t.messages)-1].blocks {
		if b.kind == "text" || b.kind == "result" {
			text = append(text, b.text)
		}
	}
	return strings.Join(text, "\n")
}

// maker makes answers: the one source of content behind every shape. What the
// last message says steers it: "use tools" calls tools, "please refuse" gets a
// refusal, "say: X" gets X, "think" gets reasoning where the model can.
type maker struct {
	seed   uint64
	secret sealer
}

// answers makes the n answers to a turn. The id tells apart the calls.
func (k *maker) answers(t *turn, prompt tokens, id string, signCalls bool) []answer {
	seed := k.seed
	if t.seed != nil {
		seed = mix(uint64(*t.seed))
	}
	seed ^= HashText(0, []byte(prompt))
	all := make([]answer, max(1, t.n))
	for i := range all {
		all[i] = k.answer(t, mix(seed+uint64(i)), fmt.Sprintf("%s%d", id, i), signCalls)
	}
	return all
}

func (k *maker) answer(t *turn, seed uint64, id string, signCalls bool) answer {
	a := answer{finish: "stop"}
	asked := t.last("user")
	most := cmp.Or(t.bounds.most, math.MaxInt32)
	if t.thinking {
		thought := compose(mix(seed^1), bounds{most: min(24, max(1, most)), least: 24, ignoreEOS: true})
		a.parts = append(a.parts, part{kind: "reasoning", pieces: thought.pieces})
	}
	said := output{finish: "stop"}
	calls := t.calls(asked)
	switch {
	case strings.Contains(asked, "please refuse"):
		a.parts = append(a.parts, part{kind: "refusal", pieces: split("I cannot help with that.")})
		a.finish = "refusal"
	case len(calls) > 0:
		a.finish = "calls"
		for i, f := range calls {
			p := part{kind: "call", id: fmt.Sprintf("%s_%d", id, i), name: f.Name, pieces: split(instance(f.Parameters))}
			if signCalls && i == 0 && t.thinking {
				p.signature = k.secret.sign(p.name)
			}
			a.parts = append(a.parts, p)
		}
	case t.schema != nil:
		said.pieces = split(instance(t.schema))
	default:
		said = k.say(t, asked, seed)
	}
	if len(said.pieces) > 0 {
		a.parts = append(a.parts, part{kind: "text", pieces: said.pieces})
		a.finish, a.stop = said.finish, said.stop
	}
	a.bound(most)
	for i := range a.parts {
		if p := &a.parts[i]; p.kind == "reasoning" {
			p.signature = k.secret.sign(p.text())
		}
	}
	return a
}

// say is an answer in words: about the results of tools or the images if there
// are any, what "say:" asks for, or syllables.
func (k *maker) say(t *turn, asked string, seed uint64) output {
	var lead string
	if r := t.last("tool"); r != "" {
		lead = "The tools say: " + truncate(r, 200) + ". "
	} else if i := strings.Index(asked, "say: "); i >= 0 {
		out := output{pieces: split(asked[i+len("say: "):]), finish: "stop"}
		return out.stopAt(t.bounds.stop)
	} else if n := t.countKind("image"); n > 0 {
		lead = fmt.Sprintf("I see %d images. ", n)
	}
	b := t.bounds
	b.most = cmp.Or(b.most, math.MaxInt32)
	out := compose(seed, b)
	if lead != "" && !b.ignoreEOS {
		out.pieces = slices.Concat(split(lead), out.pieces)
		out = out.stopAt(b.stop)
	}
	return out
}

// truncate is the beginning of a text, never ending inside of a character.
func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// bound cuts the answer after so many tokens.
func (a *answer) bound(most int) {
	for i := range a.parts {
		p := &a.parts[i]
		if len(p.pieces) > most {
			p.pieces = p.pieces[:most]
			a.parts, a.finish = a.parts[:i+1], "length"
			if most == 0 {
				a.parts = a.parts[:i]
			}
			return
		}
		most -= len(p.pieces)
	}
}

// calls are the tools that the answer calls: those that the choice or the
// request forces, those that the last message of the user names, or the first
// two when it says "use tools".
func (t *turn) calls(asked string) []function {
	if name, ok := strings.CutPrefix(t.choice, "="); ok {
		i := slices.IndexFunc(t.tools, func(f function) bool { return f.Name == name })
		if i < 0 {
			return nil
		}
		return t.tools[i : i+1]
	}
	if len(t.tools) == 0 || t.choice == "none" {
		return nil
	}
	var named []function
	for _, f := range t.tools {
		if f.Name != "" && strings.Contains(asked, f.Name) {
			named = append(named, f)
		}
	}
	most := 2
	if t.single {
		most = 1
	}
	switch {
	case len(named) > 0:
	case t.choice == "required" || strings.Contains(asked, "use tools"):
		named = t.tools
	}
	return named[:min(most, len(named))]
}

// instance is a value of a JSON schema with its required properties, all
// properties if none is required, in sorted order.
func instance(schema json.RawMessage) string {
	var root struct {
		Defs        map[string]json.RawMessage `json:"$defs"`
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	_ = json.Unmarshal(schema, &root) // what is no schema has no definitions
	defs := root.Defs
	if defs == nil {
		defs = root.Definitions
	}
	left := mostValues
	v := value(schema, defs, 0, &left)
	if v == nil {
		v = map[string]any{}
	}
	return string(encode(v))
}

// Bounds of values of schemas that contain themselves.
const (
	mostDepth  = 8
	mostValues = 1000
)

// value is a value of a schema; left is how many more there may be.
func value(schema json.RawMessage, defs map[string]json.RawMessage, depth int, left *int) any {
	if *left--; *left < 0 {
		return nil
	}
	var s struct {
		Type       json.RawMessage            `json:"type"`
		Enum       []json.RawMessage          `json:"enum"`
		Const      json.RawMessage            `json:"const"`
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
		Items      json.RawMessage            `json:"items"`
		MinItems   int                        `json:"minItems"`
		Minimum    *float64                   `json:"minimum"`
		AnyOf      []json.RawMessage          `json:"anyOf"`
		OneOf      []json.RawMessage          `json:"oneOf"`
		Ref        string                     `json:"$ref"`
	}
	if json.Unmarshal(schema, &s) != nil || depth > mostDepth {
		return nil
	}
	var kinds stringList
	if len(s.Type) > 0 {
		_ = kinds.UnmarshalJSON(s.Type)
	}
	kind := ""
	if len(kinds) > 0 {
		kind = strings.ToLower(kinds[0]) // Gemini writes OBJECT
	}
	switch {
	case s.Ref != "":
		return value(defs[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]], defs, depth+1, left)
	case len(s.Const) > 0:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AnyOf) > 0:
		return value(s.AnyOf[0], defs, depth+1, left)
	case len(s.OneOf) > 0:
		return value(s.OneOf[0], defs, depth+1, left)
	}
	switch kind {
	case "integer", "number":
		if s.Minimum != nil && *s.Minimum > 7 {
			return math.Ceil(*s.Minimum)
		}
		return 7
	case "boolean":
		return true
	case "null":
		return nil
	case "array":
		items := make([]any, min(max(s.MinItems, 1), 16))
		for i := range items {
			items[i] = value(s.Items, defs, depth+1, left)
		}
		if s.Items == nil {
			items = items[:0]
		}
		return items
	case "string":
		return "kot mel"
	}
	if kind != "object" && s.Properties == nil {
		if depth == 0 {
			return map[string]any{}
		}
		return "kot mel"
	}
	names := s.Required
	if len(names) == 0 {
		for name := range s.Properties {
			names = append(names, name)
		}
	}
	values := make(map[string]any, len(names))
	for _, name := range names {
		values[name] = value(s.Properties[name], defs, depth+1, left)
	}
	return values
}
