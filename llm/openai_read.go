// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads requests for chat completions.

type openAIReader struct {
	requestReader
	legacy int // calls of the older form so far, which have no ids
}

func readOpenAI(c *chat, body []byte, depth int) *Error {
	r := &openAIReader{requestReader: *newRequestReader(c, body, depth)}
	r.object("body")
	for {
		name, ok := r.next()
		if !ok {
			break
		}
		if !r.null() {
			r.member(name)
		}
	}
	return r.err
}

// openAIParams are members that need no more than their type.
var openAIParams = map[string]struct {
	kind paramKind
	is   jsonedit.Kind
}{
	"temperature":       {paramTemperature, jsonedit.Number},
	"top_p":             {paramTopP, jsonedit.Number},
	"top_k":             {paramTopK, jsonedit.Number},
	"seed":              {paramSeed, jsonedit.Number},
	"presence_penalty":  {paramPresencePenalty, jsonedit.Number},
	"frequency_penalty": {paramFrequencyPenalty, jsonedit.Number},
	"top_logprobs":      {paramTopLogprobs, jsonedit.Number},
	"logit_bias":        {paramLogitBias, jsonedit.Object},
	"logprobs":          {paramLogprobs, jsonedit.True},
	"store":             {paramStore, jsonedit.True},
	"user":              {paramUser, jsonedit.String},
	"service_tier":      {paramTier, jsonedit.String},
	"verbosity":         {paramVerbosity, jsonedit.String},
	"prompt_cache_key":  {paramCacheKey, jsonedit.String},
	"metadata":          {paramMetadata, jsonedit.Object},
	"modalities":        {paramModalities, jsonedit.Array},
	"cache_control":     {paramCache, jsonedit.Object},
}

func (r *openAIReader) member(name string) {
	if p, ok := openAIParams[name]; ok {
		var raw []byte
		if p.is == jsonedit.True {
			raw = r.boolean(name)
		} else {
			raw = r.typed(name, p.is)
		}
		if r.err != nil || inert(p.kind, raw) {
			return
		}
		r.set(p.kind, name, raw)
		return
	}
	switch name {
	case "model", "stream", "stream_options":
		r.s.Skip()
	case "messages":
		r.messages()
	case "max_tokens", "max_completion_tokens":
		r.set(paramMaxTokens, name, r.number(name))
	case "n":
		raw := r.number(name)
		if r.n = max(1, integer(raw)); r.n > 1 {
			r.set(paramN, name, raw)
		}
	case "stop":
		r.stops(name)
	case "tools":
		r.toolList()
	case "functions":
		r.chat.legacy, r.choice.single = true, true // such an answer has one call
		r.functions()
	case "tool_choice", "function_call":
		r.toolChoice(name)
	case "parallel_tool_calls":
		raw := r.boolean(name)
		if r.choice.single = !truth(raw); r.choice.single {
			r.set(paramParallel, name, raw)
		}
	case "response_format":
		r.responseFormat(name)
	case "reasoning_effort":
		r.effort(name)
	case "thinking":
		r.thinking(name)
	case "safety_identifier":
		if raw := r.typed(name, jsonedit.String); r.params[paramUser].raw == nil {
			r.set(paramUser, name, raw)
		}
	default:
		r.other("", name)
	}
}

// inert says that a value asks for what is done anyway, as if it were not there.
func inert(k paramKind, raw []byte) bool {
	switch k {
	case paramLogprobs, paramStore:
		return !truth(raw)
	case paramPresencePenalty, paramFrequencyPenalty, paramTopLogprobs, paramTopK:
		return float(raw) == 0
	case paramModalities:
		return string(raw) == `["text"]`
	}
	return false
}

func (r *requestReader) stops(name string) {
	if t, ok := r.s.Text(); ok {
		r.stop = append(r.stop, t.Of(r.body))
	} else if r.array(name) {
		for i := 0; r.element(); i++ {
			r.stop = append(r.stop, r.text(at(name, i)))
		}
	}
	if len(r.stop) > 0 {
		r.set(paramStop, name, []byte("[]"))
	}
}

func (r *requestReader) effort(name string) {
	raw := r.typed(name, jsonedit.String)
	if r.err != nil {
		return
	}
	word := lit(raw[1 : len(raw)-1]).String()
	switch word {
	case "none", "minimal", "low", "medium", "high", "xhigh", "max":
	default:
		r.refuse(name, "must be none, minimal, low, medium, high, xhigh or max")
	}
	r.reasoning.effort, r.reasoning.off = word, word == "none"
	r.set(paramReasoning, name, raw)
}

// thinking reads Anthropic's member, which clients of other dialects send too.
func (r *requestReader) thinking(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; key {
		case "type":
			switch r.word(path) {
			case "disabled":
				r.reasoning.off = true
			case "enabled":
			case "adaptive":
				r.reasoning.adaptive = true
			default:
				r.refuse(path, "must be enabled, disabled or adaptive")
			}
		case "budget_tokens":
			if raw := r.number(path); r.err == nil {
				if r.reasoning.budget = integer(raw); r.reasoning.budget <= 0 {
					r.refuse(path, "must be a positive integer")
				}
			}
		default:
			r.other(name+".", key)
		}
	}
	r.set(paramReasoning, name, []byte("{}"))
}

func (r *openAIReader) responseFormat(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; key {
		case "type":
			switch r.word(path) {
			case "text":
			case "json_object":
				r.format.kind = formatJSON
			case "json_schema":
				r.format.kind = formatSchema
			default:
				r.refuse(path, "must be text, json_object or json_schema")
			}
		case "json_schema":
			r.schema(path)
		default:
			r.other(name+".", key)
		}
	}
	if r.format.kind == formatSchema && r.format.schema == nil {
		r.refuse(name+".json_schema.schema", "is missing")
	}
	if r.format.kind != formatText {
		r.set(paramFormat, name, []byte("{}"))
	}
}

// schema reads the description of JSON output.
func (r *requestReader) schema(name string) {
	if r.null() || !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		if r.null() {
			continue
		}
		switch path := name + "." + key; key {
		case "name":
			r.format.name = r.text(path)
		case "description":
			r.format.about = r.text(path)
		case "schema":
			r.format.schema = r.typed(path, jsonedit.Object)
		case "strict":
			r.format.strict = r.boolean(path)
		default:
			r.other(name+".", key)
		}
	}
}

func (r *openAIReader) toolList() {
	if !r.array("tools") {
		return
	}
	for i := 0; r.element(); i++ {
		t := tool{kind: toolFunction, index: i}
		if !r.s.Object() {
			r.refuse(t.where(), "must be an object")
			return
		}
		r.tool(&t)
		if r.err != nil {
			r.prefix(t.where())
		}
		r.tools = append(r.tools, t)
	}
}

func (r *openAIReader) tool(t *tool) {
	found := false
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch key {
		case "type":
			switch label := r.text("type"); string(label) {
			case "function":
			case "custom":
				t.kind = toolCustom
			default:
				t.kind, t.label = toolServer, label.String()
			}
		case "function", "custom":
			found = true
			if !r.object(key) {
				return
			}
			if r.function(t); r.err != nil {
				r.prefix(key)
			}
		case "cache_control":
			t.cache = r.raw()
		default:
			r.other("tools.", key)
		}
	}
	if t.kind == toolFunction && !found {
		r.refuse("function", "is missing")
	}
}

// functions reads the older form of tools.
func (r *openAIReader) functions() {
	if !r.array("functions") {
		return
	}
	for i := 0; r.element(); i++ {
		t := tool{kind: toolFunction, path: at("functions", i)}
		if !r.s.Object() {
			r.refuse(t.where(), "must be an object")
			return
		}
		if r.function(&t); r.err != nil {
			r.prefix(t.where())
		}
		r.tools = append(r.tools, t)
	}
}

// function reads what is said of one function, in an object that is entered.
func (r *requestReader) function(t *tool) {
	for key := range r.members() {
		switch key {
		case "name":
			t.name = r.text("name")
		case "description":
			t.about = r.text("description")
		case "parameters":
			t.schema = r.typed("parameters", jsonedit.Object)
		case "strict":
			t.strict = r.boolean("strict")
		default:
			r.other("tools.function.", key)
		}
	}
	if len(t.name) == 0 {
		r.refuse("name", "is missing")
	}
}

func (r *openAIReader) toolChoice(name string) {
	c := &r.choice
	r.set(paramChoice, name, []byte("{}"))
	if r.s.Peek() == jsonedit.String {
		switch r.word(name) {
		case "auto":
			c.mode = choiceAuto
		case "none":
			c.mode = choiceNone
		case "required", "any":
			c.mode = choiceAny
		default:
			r.refuse(name, "must be auto, none, required or an object")
		}
		return
	}
	if !r.object(name) {
		return
	}
	c.mode = choiceTool
	kind := "function"
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
		case "function", "custom":
			c.name = r.named(path)
		case "allowed_tools":
			r.allowedTools(path)
		default:
			r.other(name+".", key)
		}
	}
	switch {
	case kind != "function" && kind != "allowed_tools":
		r.refuse(name+".type", "must be function or allowed_tools")
	case kind == "function" && len(c.name) == 0:
		r.refuse(name, "must name a function")
	}
}

// named reads the name in an object of a function.
func (r *requestReader) named(path string) (name lit) {
	if !r.object(path) {
		return nil
	}
	for {
		key, ok := r.next()
		if !ok {
			return name
		}
		if key == "name" {
			name = r.text(path + ".name")
		} else {
			r.s.Skip()
		}
	}
}

func (r *openAIReader) allowedTools(path string) {
	c := &r.choice
	if c.mode = choiceAuto; !r.object(path) {
		return
	}
	c.allowed = []lit{}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch key {
		case "mode":
			if r.word(path+".mode") == "required" {
				c.mode = choiceAny
			}
		case "tools":
			if !r.array(path + ".tools") {
				return
			}
			for i := 0; r.element(); i++ {
				r.allowedTool(at(path+".tools", i))
			}
		default:
			r.s.Skip()
		}
	}
}

func (r *openAIReader) allowedTool(path string) {
	if !r.object(path) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch key {
		case "function":
			r.choice.allowed = append(r.choice.allowed, r.named(path+".function"))
		case "name":
			r.choice.allowed = append(r.choice.allowed, r.text(path+".name"))
		default:
			r.s.Skip()
		}
	}
}

// legacyID is the id that stands for a call of the older form.
func (r *openAIReader) legacyID() lit { return lit(fmt.Sprintf("call_%d", r.legacy)) }
