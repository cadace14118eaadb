// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"strings"
)

// This file writes requests for Gemini's generateContent.

// maxGeminiStop is how many stop sequences Gemini takes.
const maxGeminiStop = 5

// foreignSign stands for the signature of a call that another model made, where
// one must be. Gemini documents it for that.
const foreignSign = "skip_thought_signature_validator"

type geminiWriter struct {
	*requestWriter
	wantsSigns bool // calls without a signature are refused
	byLevel    bool // thinking is said as a level, not in tokens
	always     bool // the model always thinks
}

func writeGemini(w *requestWriter) {
	g := geminiWriter{requestWriter: w}
	model := strings.ToLower(w.backend.Model)
	g.wantsSigns = strings.Contains(model, "gemini-") && !strings.Contains(model, "gemini-1") && !strings.Contains(model, "gemini-2")
	g.byLevel, g.always = g.wantsSigns, strings.Contains(model, "pro")
	w.out = append(w.out, '{')
	g.system()
	w.member("contents")
	w.out = append(w.out, '[')
	var calls []*part // of the last turn of the model
	for i := 0; i < len(w.turns) && w.err == nil; {
		if w.turns[i].role == roleSystem {
			i++
			continue
		}
		end := i
		for end < len(w.turns) && (w.turns[end].role == w.turns[i].role || w.turns[end].role == roleSystem) {
			end++
		}
		if w.turns[i].role == roleAssistant {
			calls = g.model(w.turns[i:end])
		} else {
			g.user(w.turns[i:end], calls)
			calls = nil
		}
		i = end
	}
	w.some()
	w.out = append(w.out, ']')
	g.toolList()
	g.toolConfig()
	g.generationConfig()
	w.out = append(w.out, '}')
}

// system writes what all turns of the system say, in order.
func (g *geminiWriter) system() {
	first := true
	for i := range g.turns {
		t := &g.turns[i]
		if t.name != nil {
			g.drop("messages.name")
		}
		if t.role != roleSystem {
			continue
		}
		parts := g.partsOf(t)
		for j := range parts {
			if len(parts[j].text) == 0 {
				continue
			}
			if first {
				g.out = append(appendMember(g.out, "systemInstruction"), `{"parts":[`...)
				first = false
			}
			g.part(&parts[j])
		}
	}
	if !first {
		g.out = append(g.out, ']', '}')
	}
}

// begin opens a content.
func (g *geminiWriter) begin(role string) {
	g.open()
	g.quoted("role", lit(role))
	g.member("parts")
	g.out = append(g.out, '[')
}

// model writes a run of the assistant's turns and gives its calls.
func (g *geminiWriter) model(turns []turn) (calls []*part) {
	start := len(g.out)
	g.begin("model")
	empty := len(g.out)
	for i := range turns {
		if turns[i].role != roleAssistant {
			continue
		}
		parts := g.partsOf(&turns[i])
		for j := range parts {
			p := &parts[j]
			if p.kind == partToolCall {
				sign := p.sign
				if sign == nil && len(calls) == 0 && g.wantsSigns {
					sign = lit(foreignSign)
				}
				calls = append(calls, p)
				g.call(p, sign)
			} else {
				g.part(p)
			}
		}
	}
	if len(g.out) == empty {
		g.out = g.out[:start]
		return nil
	}
	g.out = append(g.out, ']', '}')
	return calls
}

func (g *geminiWriter) call(p *part, sign lit) {
	g.open()
	g.out = append(g.out, `"functionCall":{`...)
	g.quoted("name", p.name)
	g.raw("args", p.args)
	g.out = append(g.out, '}')
	if sign != nil {
		g.quoted("thoughtSignature", sign)
	}
	g.out = append(g.out, '}')
	g.cached(p)
}

func (g *geminiWriter) cached(p *part) {
	if p.cache != nil {
		g.drop("cache_control")
	}
}

// user writes a run of the user's turns. What tools answered comes first, in the
// order of the calls: the server tells two calls of one function apart by it.
func (g *geminiWriter) user(turns []turn, calls []*part) {
	g.begin("user")
	empty := len(g.out)
	var results []*part
	for i := range turns {
		if turns[i].role != roleUser {
			continue
		}
		parts := g.partsOf(&turns[i])
		for j := range parts {
			if parts[j].kind == partToolResult {
				results = append(results, &parts[j])
			}
		}
	}
	var media []*part // of what tools answered: comes after all of that
	for _, call := range calls {
		for _, p := range results {
			if bytes.Equal(p.id, call.id) {
				media = g.result(p, call.name, media)
			}
		}
	}
	for _, p := range results {
		if !answersOne(p, calls) {
			name := g.nameOfCall(p)
			if len(name) == 0 {
				g.refuse(cannot(g.path(p.place), "answers no call in the conversation"))
			}
			media = g.result(p, name, media)
		}
	}
	for _, p := range media {
		g.part(p)
	}
	for i := range turns {
		if turns[i].role != roleUser {
			continue
		}
		parts := g.partsOf(&turns[i])
		for j := range parts {
			if parts[j].kind != partToolResult {
				g.part(&parts[j])
			}
		}
	}
	if len(g.out) == empty {
		g.out = append(g.out, `{"text":" "}`...) // the server refuses none, and empty ones
	}
	g.out = append(g.out, ']', '}')
}

func answersOne(p *part, calls []*part) bool {
	for _, call := range calls {
		if bytes.Equal(p.id, call.id) {
			return true
		}
	}
	return false
}

// nameOfCall is the name of the function whose answer a part is.
func (w *requestWriter) nameOfCall(p *part) lit {
	for i := range w.parts {
		if q := &w.parts[i]; q.kind == partToolCall && bytes.Equal(q.id, p.id) {
			return q.name
		}
	}
	return p.name
}

// result writes what a tool answered and adds its media to those to come.
func (g *geminiWriter) result(p *part, name lit, media []*part) []*part {
	g.open()
	g.out = append(g.out, `"functionResponse":{`...)
	g.quoted("name", name)
	inner := g.partsOfResult(p)
	text := lit(nil)
	if len(inner) == 1 && inner[0].kind == partText {
		text = inner[0].text
	}
	g.member("response")
	if object := []byte(text.String()); !p.isError && isObject(object) {
		g.out = append(g.out, object...)
	} else {
		member := "output"
		if p.isError {
			member = "error"
		}
		plain := *p
		plain.isError = false
		g.out = append(appendMember(append(g.out, '{'), member), '"')
		g.out = append(g.resultText(g.out, &plain), '"', '}')
	}
	g.out = append(g.out, '}', '}')
	g.cached(p)
	for i := range inner {
		if kind := inner[i].kind; kind == partText {
			g.cached(&inner[i])
		} else if kind != partOther {
			media = append(media, &inner[i])
		}
	}
	return media
}

// part writes a part of a content.
func (g *geminiWriter) part(p *part) {
	g.cached(p)
	switch p.kind {
	case partText, partRefusal:
		if len(p.text) > 0 {
			g.open()
			g.quoted("text", p.text)
			g.out = append(g.out, '}')
		}
	case partThinking, partRedacted:
		g.drop("messages.thinking")
	case partOther:
		g.other(p)
	case partImage, partAudio, partFile:
		g.medium(p)
	default:
		g.refuse(cannot(g.path(p.place), "has no place here for this server"))
	}
}

func (g *geminiWriter) medium(p *part) {
	g.unnamed(p)
	if p.text != nil {
		g.open()
		g.quoted("text", p.text)
		g.out = append(g.out, '}')
		return
	}
	stored := p.id
	if p.data == nil && isGeminiFile(p.url) {
		stored = p.url
	}
	switch {
	case p.data == nil && (isStored(stored) || isGeminiFile(stored)):
		g.open()
		g.out = append(g.out, `"fileData":{`...)
		media := p.media
		if media == "" && isStored(stored) {
			if media = mediaOfName(stored.String()); p.kind == partImage && !strings.HasPrefix(media, "image/") {
				media = "image/jpeg"
			}
		}
		if media != "" {
			g.quoted("mimeType", literal(media))
		}
		g.quoted("fileUri", stored)
		g.out = append(g.out, '}', '}')
		return
	case p.data == nil && p.url == nil:
		g.refuse(cannot(g.path(p.place), "is a file of another provider; send its data"))
		return
	case p.data == nil && !g.fetch(p):
		return
	}
	g.open()
	g.out = append(g.out, `"inlineData":{`...)
	g.quoted("mimeType", literal(p.media))
	g.quoted("data", p.data)
	g.out = append(g.out, '}', '}')
}

func (g *geminiWriter) toolList() {
	before := len(g.out)
	g.out = append(appendMember(g.out, "tools"), `[{"functionDeclarations":[`...)
	empty := len(g.out)
	for i := range g.tools {
		t := &g.tools[i]
		if t.cache != nil {
			g.drop("cache_control")
		}
		if t.kind != toolFunction {
			g.notTool(t)
			continue
		}
		if truth(t.strict) {
			g.drop("tools.strict")
		}
		g.open()
		g.quoted("name", t.name)
		if len(t.about) > 0 {
			g.quoted("description", t.about)
		}
		switch {
		case t.schema == nil || isEmptySchema(t.schema):
		case inSubset(t.schema):
			g.raw("parameters", t.schema)
		default:
			g.raw("parametersJsonSchema", t.schema)
		}
		g.out = append(g.out, '}')
	}
	if len(g.out) == empty {
		g.out = g.out[:before]
		return
	}
	g.out = append(g.out, "]}]"...)
}

func (g *geminiWriter) toolConfig() {
	c := &g.choice
	g.take(paramChoice)
	if g.functions() == 0 || c.mode == choiceUnset {
		return
	}
	g.out = append(appendMember(g.out, "toolConfig"), `{"functionCallingConfig":{`...)
	allowed := c.allowed
	switch c.mode {
	case choiceNone:
		g.quoted("mode", lit("NONE"))
	case choiceAny:
		g.quoted("mode", lit("ANY"))
	case choiceTool:
		g.quoted("mode", lit("ANY"))
		allowed = []lit{c.name}
	case choiceAuto:
		if allowed == nil {
			g.quoted("mode", lit("AUTO"))
		} else {
			g.quoted("mode", lit("VALIDATED")) // AUTO takes no names
		}
	}
	if allowed != nil && c.mode != choiceNone {
		g.member("allowedFunctionNames")
		g.out = append(g.out, '[')
		for _, name := range allowed {
			g.out = appendLit(appendComma(g.out), name)
		}
		g.out = append(g.out, ']')
	}
	g.out = append(g.out, '}', '}')
}

func (g *geminiWriter) generationConfig() {
	before := len(g.out)
	g.out = append(appendMember(g.out, "generationConfig"), '{')
	empty := len(g.out)
	g.take(paramMaxTokens)
	if g.maxTokens > 0 {
		g.raw("maxOutputTokens", appendInt(nil, g.maxTokens))
	}
	g.pass(paramTemperature, "temperature")
	g.pass(paramTopP, "topP")
	g.pass(paramTopK, "topK")
	g.pass(paramSeed, "seed")
	g.pass(paramPresencePenalty, "presencePenalty")
	g.pass(paramFrequencyPenalty, "frequencyPenalty")
	if g.take(paramLogprobs) != nil {
		g.raw("responseLogprobs", []byte("true"))
		g.pass(paramTopLogprobs, "logprobs")
	}
	g.take(paramN)
	if g.n > 1 {
		g.raw("candidateCount", appendInt(nil, g.n))
	}
	if list := g.chat.params[paramModalities].raw; list != nil && !bytes.Contains(list, []byte{'\\'}) {
		g.take(paramModalities)
		g.raw("responseModalities", bytes.ToUpper(list))
	}
	g.stops()
	g.responseFormat()
	g.thinking()
	if len(g.out) == empty {
		g.out = g.out[:before]
		return
	}
	g.out = append(g.out, '}')
}

func (g *geminiWriter) stops() {
	g.take(paramStop)
	list := g.stop
	if len(list) > maxGeminiStop {
		list = list[:maxGeminiStop]
		g.drop(g.nameOf(paramStop) + "[5:]")
	}
	if len(list) == 0 {
		return
	}
	g.member("stopSequences")
	g.out = append(g.out, '[')
	for _, s := range list {
		g.out = appendLit(appendComma(g.out), s)
	}
	g.out = append(g.out, ']')
}

func (g *geminiWriter) responseFormat() {
	g.take(paramFormat)
	f := &g.format
	if f.kind == formatText {
		return
	}
	g.quoted("responseMimeType", lit("application/json"))
	if f.kind != formatSchema {
		return
	}
	if inSubset(f.schema) && !isEmptySchema(f.schema) {
		g.raw("responseSchema", f.schema)
	} else {
		g.raw("responseJsonSchema", f.schema)
	}
}

// thinking writes how much the model is to think. What it thought is then asked
// for too, as it comes unasked from servers of other dialects.
func (g *geminiWriter) thinking() {
	g.take(paramReasoning)
	r := &g.reasoning
	budget := r.tokens()
	if !r.off && !r.adaptive && budget == 0 {
		return
	}
	g.out = append(appendMember(g.out, "thinkingConfig"), '{')
	switch {
	case r.off && !g.byLevel && g.always:
		g.raw("thinkingBudget", []byte("128")) // the least it takes
	case r.off && !g.byLevel:
		g.raw("thinkingBudget", []byte("0"))
	case g.byLevel:
		word := r.word()
		switch {
		case word == "xhigh" || word == "max":
			word = "high"
		case word == "none" || word == "minimal":
			if word = "minimal"; g.always {
				word = "low" // the least it takes
			}
		}
		if word != "" {
			g.quoted("thinkingLevel", lit(word))
		}
	case budget == 0:
		g.raw("thinkingBudget", []byte("-1"))
	default:
		g.raw("thinkingBudget", appendInt(nil, budget))
	}
	if !r.off {
		g.raw("includeThoughts", []byte("true"))
	}
	g.out = append(g.out, '}')
}
