// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads requests for OpenAI's Responses. What only a server that keeps
// responses could do is refused by its name.

type responsesReader struct {
	requestReader
	system lit             // instructions
	echoed map[string]bool // members in echo
}

func readResponses(c *chat, body []byte, depth int) *Error {
	r := &responsesReader{requestReader: *newRequestReader(c, body, depth), echoed: map[string]bool{}}
	c.echo = make([]byte, 0, min(len(body), 2<<10)+128)
	r.object("body")
	var input saved // the instructions come first, wherever they stand
	for {
		name, ok := r.next()
		if !ok {
			break
		}
		start := spanStart(saved{s: r.s})
		switch {
		case r.null():
			continue
		case name == "input":
			input = r.save()
		default:
			r.member(name)
		}
		if repeated[name] && r.err == nil && !r.echoed[name] {
			r.echoed[name] = true
			c.echo = appendLine(appendMember(c.echo, name), bytes.TrimSpace(body[start:r.s.Pos()]))
		}
	}
	for _, m := range responsesDefaults {
		if !r.echoed[m.Name] {
			c.echo = append(appendMember(c.echo, m.Name), m.Value...)
		}
	}
	if r.system != nil {
		r.begin(roleSystem, -1)
		r.add(part{kind: partText, text: r.system, place: place{"instructions", -1, -1, -1}})
	}
	if input.is && r.err == nil {
		r.back(input)
		r.input()
	}
	r.topAlone()
	if len(r.turns) == 0 {
		r.refuse("input", "has nothing for the model")
	}
	return r.err
}

// repeated are the members that a response repeats of its request.
var repeated = map[string]bool{
	"instructions": true, "max_output_tokens": true, "max_tool_calls": true, "metadata": true, "parallel_tool_calls": true,
	"prompt_cache_key": true, "reasoning": true, "safety_identifier": true, "service_tier": true, "store": true, "temperature": true,
	"text": true, "tool_choice": true, "tools": true, "top_logprobs": true, "top_p": true, "truncation": true, "user": true,
}

// responsesDefaults are what a response repeats where the request has nothing.
var responsesDefaults = [...]Member{
	{"instructions", []byte("null")}, {"metadata", []byte("{}")}, {"parallel_tool_calls", []byte("true")}, {"temperature", []byte("null")},
	{"tool_choice", []byte(`"auto"`)}, {"tools", []byte("[]")}, {"top_p", []byte("null")},
}

// responsesParams are members that need no more than their type.
var responsesParams = map[string]struct {
	kind paramKind
	is   jsonedit.Kind
}{
	"temperature":       {paramTemperature, jsonedit.Number},
	"top_p":             {paramTopP, jsonedit.Number},
	"presence_penalty":  {paramPresencePenalty, jsonedit.Number},
	"frequency_penalty": {paramFrequencyPenalty, jsonedit.Number},
	"top_logprobs":      {paramTopLogprobs, jsonedit.Number},
	"max_output_tokens": {paramMaxTokens, jsonedit.Number},
	"user":              {paramUser, jsonedit.String},
	"service_tier":      {paramTier, jsonedit.String},
	"prompt_cache_key":  {paramCacheKey, jsonedit.String},
	"metadata":          {paramMetadata, jsonedit.Object},
}

func (r *responsesReader) member(name string) {
	if p, ok := responsesParams[name]; ok {
		raw := r.typed(name, p.is)
		if isPenalty := p.kind == paramPresencePenalty || p.kind == paramFrequencyPenalty; !isPenalty || float(raw) != 0 {
			r.set(p.kind, name, raw)
		}
		return
	}
	switch name {
	case "model", "stream", "stream_options":
		r.s.Skip()
	case "instructions":
		if r.s.Peek() == jsonedit.Array {
			r.refuse(name, "must be a string")
			return
		}
		r.system = r.text(name)
	case "previous_response_id", "conversation", "prompt":
		r.s.Skip()
		r.stored(name)
	case "background":
		if truth(r.boolean(name)) {
			r.stored(name)
		}
	case "store":
		if raw := r.boolean(name); truth(raw) {
			r.set(paramStore, name, raw)
		}
	case "tools":
		r.toolList()
	case "tool_choice":
		r.toolChoice(name)
	case "parallel_tool_calls":
		raw := r.boolean(name)
		if r.choice.single = !truth(raw); r.choice.single {
			r.set(paramParallel, name, raw)
		}
	case "text":
		r.textOptions(name)
	case "reasoning":
		r.reasoningOptions(name)
	case "include":
		r.include(name)
	case "truncation":
		if raw := r.typed(name, jsonedit.String); string(raw) != `"disabled"` {
			r.ignore(name, raw)
		}
	case "safety_identifier":
		if raw := r.typed(name, jsonedit.String); r.params[paramUser].raw == nil {
			r.set(paramUser, name, raw)
		}
	default:
		r.other("", name)
	}
}

// stored refuses what needs a store of responses at the server.
func (r *requestReader) stored(path string) {
	if r.err == nil {
		r.err = cannot(path, "needs a server that keeps responses, which this model's does not")
		r.err.Code = "unsupported_parameter"
	}
}

// include reads what the answer is to hold besides; encrypted reasoning it has
// wherever the server gives it.
func (r *responsesReader) include(name string) {
	if !r.array(name) {
		return
	}
	for i := 0; r.element(); i++ {
		switch t := r.text(at(name, i)); string(t) {
		case "reasoning.encrypted_content", "":
		case "message.output_text.logprobs":
			r.set(paramLogprobs, name, []byte("true"))
		default:
			r.ignore(name, t)
		}
	}
}

func (r *responsesReader) textOptions(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch path := name + "." + key; {
		case r.null():
		case key == "verbosity":
			r.set(paramVerbosity, path, r.typed(path, jsonedit.String))
		case key == "format":
			r.textFormat(path)
		default:
			r.other(name+".", key)
		}
	}
}

func (r *responsesReader) textFormat(name string) {
	if !r.object(name) {
		return
	}
	f := &r.format
	for key := range r.members() {
		switch path := name + "." + key; key {
		case "type":
			switch r.word(path) {
			case "text":
			case "json_object":
				f.kind = formatJSON
			case "json_schema":
				f.kind = formatSchema
			default:
				r.refuse(path, "must be text, json_object or json_schema")
			}
		case "name":
			f.name = r.text(path)
		case "description":
			f.about = r.text(path)
		case "schema":
			f.schema = r.typed(path, jsonedit.Object)
		case "strict":
			f.strict = r.boolean(path)
		default:
			r.other(name+".", key)
		}
	}
	if f.kind == formatSchema && f.schema == nil {
		r.refuse(name+".schema", "is missing")
	}
	if f.kind != formatText {
		r.set(paramFormat, name, []byte("{}"))
	}
}

func (r *responsesReader) reasoningOptions(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch path := name + "." + key; {
		case r.null():
		case key == "effort":
			r.effort(path)
		default:
			r.other(name+".", key)
		}
	}
}

func (r *responsesReader) toolList() {
	if !r.array("tools") {
		return
	}
	for i := 0; r.element(); i++ {
		t := tool{kind: toolFunction, index: i}
		if !r.s.Object() {
			r.refuse(t.where(), "must be an object")
			return
		}
		if r.tool(&t); r.err != nil {
			r.prefix(t.where())
			return
		}
		switch t.label {
		case "function":
		case "custom":
			t.kind = toolCustom
		default:
			r.err = cannot(t.where(), "is the tool "+t.label+", which this model's server does not run")
		}
		r.tools = append(r.tools, t)
	}
}

// tool reads what is said of one tool; label is its type.
func (r *responsesReader) tool(t *tool) {
	for key := range r.members() {
		switch key {
		case "type":
			if label := r.text("type"); string(label) == "function" {
				t.label = "function"
			} else {
				t.label = label.String()
			}
		case "name":
			t.name = r.text("name")
		case "description":
			t.about = r.text("description")
		case "parameters":
			t.schema = r.typed("parameters", jsonedit.Object)
		case "strict":
			t.strict = r.boolean("strict")
		case "cache_control":
			t.cache = r.raw()
		default:
			if t.label == "function" {
				r.other("tools.", key)
			} else {
				r.s.Skip()
			}
		}
	}
	switch {
	case t.label == "":
		r.refuse("type", "is missing")
	case t.label == "function" && len(t.name) == 0:
		r.refuse("name", "is missing")
	}
}

func (r *responsesReader) toolChoice(name string) {
	c := &r.choice
	r.set(paramChoice, name, []byte("{}"))
	if r.s.Peek() == jsonedit.String {
		if c.mode = choiceWord(r.word(name)); c.mode == choiceUnset {
			r.refuse(name, "must be auto, none, required or an object")
		}
		return
	}
	if !r.object(name) {
		return
	}
	kind, mode := "", ""
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; key {
		case "type":
			kind = r.word(path)
		case "name":
			c.name = r.text(path)
		case "mode":
			mode = r.word(path)
		case "tools":
			if !r.array(path) {
				return
			}
			c.allowed = []lit{}
			for i := 0; r.element(); i++ {
				c.allowed = append(c.allowed, r.named(at(path, i)))
			}
		default:
			r.other(name+".", key)
		}
	}
	switch {
	case kind == "function" && len(c.name) > 0:
		c.mode = choiceTool
	case kind == "function":
		r.refuse(name+".name", "is missing")
	case kind == "allowed_tools":
		if c.mode = choiceAuto; mode == "required" {
			c.mode = choiceAny
		}
	default:
		r.refuse(name+".type", "must be function or allowed_tools for this model's server")
	}
}

// choiceWord is the mode of choosing that OpenAI has a word for.
func choiceWord(word string) choiceMode {
	switch word {
	case "auto":
		return choiceAuto
	case "none":
		return choiceNone
	case "required":
		return choiceAny
	}
	return choiceUnset
}
