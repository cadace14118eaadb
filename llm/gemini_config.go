// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads what stands beside the contents of a request for Gemini.

func (r *geminiReader) toolList(list string) {
	if !r.array(list) {
		return
	}
	for i := 0; r.element(); i++ {
		if !r.object(at(list, i)) {
			return
		}
		for {
			key, ok := r.next()
			if !ok {
				break
			}
			switch {
			case r.null():
			case camel(key) == "functionDeclarations":
				r.declarations(at(list, i) + "." + key)
			default:
				r.s.Skip()
				r.tools = append(r.tools, tool{kind: toolServer, path: at(list, i), label: key})
			}
		}
	}
}

func (r *geminiReader) declarations(list string) {
	if !r.array(list) {
		return
	}
	for i := 0; r.element(); i++ {
		t := tool{kind: toolFunction}
		if !r.s.Object() {
			r.refuse(at(list, i), "must be an object")
			return
		}
		if r.declaration(&t); r.err != nil {
			r.prefix(at(list, i))
		}
		r.tools = append(r.tools, t)
	}
}

func (r *geminiReader) declaration(t *tool) {
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch known := camel(key); {
		case r.null():
		case known == "name":
			t.name = r.text("name")
		case known == "description":
			t.about = r.text("description")
		case known == "parameters":
			if raw := r.typed(key, jsonedit.Object); r.err == nil {
				t.schema = jsonSchema(raw)
			}
		case known == "parametersJsonSchema":
			t.schema = r.typed(key, jsonedit.Object)
		default:
			r.other("tools.functionDeclarations.", key)
		}
	}
	if len(t.name) == 0 {
		r.refuse("name", "is missing")
	}
}

func (r *geminiReader) toolConfig(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch {
		case r.null():
		case camel(key) == "functionCallingConfig":
			r.callingConfig(name + "." + key)
		default:
			r.other(name+".", key)
		}
	}
}

func (r *geminiReader) callingConfig(name string) {
	if !r.object(name) {
		return
	}
	c := &r.choice
	var allowed []lit
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; {
		case r.null():
		case key == "mode":
			switch r.word(path) {
			case "AUTO", "VALIDATED":
				c.mode = choiceAuto
			case "ANY":
				c.mode = choiceAny
			case "NONE":
				c.mode = choiceNone
			case "MODE_UNSPECIFIED":
			default:
				r.refuse(path, "must be AUTO, ANY, NONE or VALIDATED")
			}
		case camel(key) == "allowedFunctionNames":
			if !r.array(path) {
				return
			}
			for i := 0; r.element(); i++ {
				allowed = append(allowed, r.text(at(path, i)))
			}
		default:
			r.other(name+".", key)
		}
	}
	switch {
	case len(allowed) == 1 && c.mode == choiceAny:
		c.mode, c.name = choiceTool, allowed[0]
	case len(allowed) > 0:
		c.allowed = allowed
	}
	if c.mode != choiceUnset {
		r.set(paramChoice, name, []byte("{}"))
	}
}

// geminiParams are members of generationConfig that need no more than their type.
var geminiParams = map[string]paramKind{
	"maxOutputTokens": paramMaxTokens, "temperature": paramTemperature, "topP": paramTopP, "topK": paramTopK,
	"seed": paramSeed, "presencePenalty": paramPresencePenalty, "frequencyPenalty": paramFrequencyPenalty,
}

func (r *geminiReader) generationConfig(name string) {
	if !r.object(name) {
		return
	}
	for key := range r.members() {
		path, known := name+"."+key, camel(key)
		if kind, ok := geminiParams[known]; ok {
			raw := r.number(path)
			if isPenalty := kind == paramPresencePenalty || kind == paramFrequencyPenalty; !isPenalty || float(raw) != 0 {
				r.set(kind, path, raw)
			}
			continue
		}
		switch known {
		case "candidateCount":
			raw := r.number(path)
			if r.n = max(1, integer(raw)); r.n > 1 {
				r.set(paramN, path, raw)
			}
		case "stopSequences":
			r.stops(path)
		case "responseMimeType":
			r.mimeType(path)
		case "responseSchema":
			if raw := r.typed(path, jsonedit.Object); r.err == nil {
				r.format.schema = jsonSchema(raw)
				r.set(paramFormat, path, []byte("{}"))
			}
		case "responseJsonSchema":
			r.format.schema = r.typed(path, jsonedit.Object)
			r.set(paramFormat, path, []byte("{}"))
		case "responseModalities":
			r.modalities(path)
		case "thinkingConfig":
			r.thinkingConfig(path)
		case "responseLogprobs":
			if raw := r.boolean(path); truth(raw) {
				r.set(paramLogprobs, path, raw)
			}
		case "logprobs":
			r.set(paramTopLogprobs, path, r.number(path))
		default:
			r.other(name+".", key)
		}
	}
	if r.format.schema != nil {
		r.format.kind = formatSchema
	}
	r.topAlone()
}

func (r *geminiReader) mimeType(path string) {
	switch word := r.word(path); word {
	case "text/plain", "":
	case "application/json":
		r.format.kind = formatJSON
		r.set(paramFormat, path, []byte("{}"))
	default:
		r.ignore(path, nil)
	}
}

// modalities reads what the answer may hold, in the words of chat completions.
func (r *geminiReader) modalities(path string) {
	if !r.array(path) {
		return
	}
	list := []byte("[")
	for i := 0; r.element(); i++ {
		word := strings.ToLower(r.word(at(path, i)))
		list = jsonedit.AppendString(appendComma(list), word)
	}
	if list = append(list, ']'); !inert(paramModalities, list) && len(list) > len("[]") {
		r.set(paramModalities, path, list)
	}
}

func (r *geminiReader) thinkingConfig(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch path, known := name+"."+key, camel(key); {
		case r.null():
		case known == "thinkingBudget":
			raw := r.number(path)
			switch n := integer(raw); {
			case string(raw) == "0":
				r.reasoning.off = true
			case n < 0:
				r.reasoning.adaptive = true
			default:
				r.reasoning.budget = n
			}
			r.set(paramReasoning, path, raw)
		case known == "thinkingLevel":
			word := strings.ToLower(r.word(path))
			switch word {
			case "minimal", "low", "medium", "high":
				r.reasoning.effort = word
				r.set(paramReasoning, path, []byte("{}"))
			case "thinking_level_unspecified":
			default:
				r.refuse(path, "must be MINIMAL, LOW, MEDIUM or HIGH")
			}
		case known == "includeThoughts":
			r.boolean(path) // thoughts come marked as such, wherever there are any
		default:
			r.other(name+".", key)
		}
	}
}
