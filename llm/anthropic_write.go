// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file writes requests for Anthropic's Messages.

// minThinking is the least budget that Anthropic takes, in tokens.
const minThinking = 1024

type anthropicWriter struct {
	*requestWriter
	thinks bool
}

func writeAnthropic(w *requestWriter) {
	a := anthropicWriter{requestWriter: w}
	w.out = append(w.out, '{')
	w.quoted("model", literal(w.backend.Model))
	a.bounds()
	a.system()
	w.member("messages")
	w.out = append(w.out, '[')
	for i := 0; i < len(w.turns) && w.err == nil; {
		if w.turns[i].role == roleSystem {
			i++
			continue
		}
		// A run of the same role is one message; what the system says within
		// stands beside the messages.
		end := i
		for end < len(w.turns) && (w.turns[end].role == w.turns[i].role || w.turns[end].role == roleSystem) {
			end++
		}
		a.message(w.turns[i:end])
		i = end
	}
	if w.out[len(w.out)-1] == '[' {
		w.refuse(cannot("messages", "must have one of the user for this server"))
	}
	w.out = append(w.out, ']')
	a.toolList()
	a.toolChoice()
	a.params()
	w.out = append(w.out, '}')
}

// bounds writes max_tokens and thinking, which depend on each other.
func (a *anthropicWriter) bounds() {
	a.take(paramMaxTokens)
	a.take(paramReasoning)
	most, r := a.maxTokens, &a.reasoning
	budget := r.tokens()
	if most == 0 {
		if most = a.backend.MaxOutput; most == 0 {
			most = defaultMaxOutput + budget
		}
	}
	a.raw("max_tokens", appendInt(nil, most))
	switch {
	case r.off || budget == 0 && !r.adaptive:
		return
	case a.lostThinking():
		// The server refuses calls that no thinking came before.
		a.drop(a.nameOf(paramReasoning))
		return
	case r.adaptive:
		a.raw("thinking", []byte(`{"type":"adaptive"}`))
		a.thinks = true
		return
	}
	if r.budget > 0 {
		budget = min(budget, most-1) // the client's own number
	} else {
		budget = min(budget, most-most/4) // leaves room for an answer
	}
	if budget < minThinking {
		a.drop(a.nameOf(paramReasoning))
		return
	}
	a.thinks = true
	a.out = append(appendMember(a.out, "thinking"), `{"type":"enabled"`...)
	a.raw("budget_tokens", appendInt(nil, budget))
	a.out = append(a.out, '}')
}

// lostThinking says that the last answer called tools and has lost what was
// thought before, or its signature.
func (a *anthropicWriter) lostThinking() bool {
	for i := len(a.turns) - 1; i >= 0; i-- {
		t := &a.turns[i]
		if t.role != roleAssistant {
			continue
		}
		calls, thought := false, false
		for _, p := range a.partsOf(t) {
			calls = calls || p.kind == partToolCall
			thought = thought || p.kind == partRedacted || p.kind == partThinking && len(p.sign) > 0
		}
		return calls && !thought
	}
	return false
}

// system writes what all turns of the system say, in order.
func (a *anthropicWriter) system() {
	var blocks []*part
	marked := false
	for i := range a.turns {
		if a.turns[i].role != roleSystem {
			continue
		}
		if a.turns[i].name != nil {
			a.drop("messages.name")
		}
		parts := a.partsOf(&a.turns[i])
		for j := range parts {
			if p := &parts[j]; !p.text.blank() {
				blocks = append(blocks, p)
				marked = marked || p.cache != nil
			}
		}
	}
	if a.format.kind == formatJSON && !a.answersInJSON() {
		// No server of this dialect has a mode for JSON without a schema, and one
		// that thinks may not be told to call.
		blocks = append(blocks, &part{kind: partText, text: lit("Answer with one JSON object and nothing else.")})
	}
	switch {
	case len(blocks) == 0:
	case len(blocks) == 1 && !marked:
		a.quoted("system", blocks[0].text)
	default:
		a.member("system")
		a.out = append(a.out, '[')
		for _, p := range blocks {
			a.text(p)
		}
		a.out = append(a.out, ']')
	}
}

// message writes a run of turns of one role. What tools answered comes first.
func (a *anthropicWriter) message(turns []turn) {
	start := len(a.out)
	a.open()
	who := lit("user")
	if turns[0].role == roleAssistant {
		who = lit("assistant")
	}
	a.quoted("role", who)
	a.member("content")
	if p := a.only(turns); p != nil {
		a.out = append(appendLit(a.out, p.text), '}')
		return
	}
	a.out = append(a.out, '[')
	empty := len(a.out)
	for _, results := range [...]bool{true, false} {
		for i := range turns {
			if turns[i].role == roleSystem {
				continue
			}
			parts := a.partsOf(&turns[i])
			for j := range parts {
				if (parts[j].kind == partToolResult) == results {
					a.part(&parts[j])
				}
			}
		}
	}
	for i := range turns {
		if turns[i].name != nil {
			a.drop("messages.name")
		}
	}
	if len(a.out) > empty {
		a.out = append(a.out, ']', '}')
		return
	}
	if a.out = a.out[:start]; turns[0].role == roleUser {
		a.refuse(cannot(a.path(place{"content", int32(turns[0].place), -1, -1}), "must not be empty for this server"))
	}
}

// only is the one part of a message that is text and nothing else, or nil.
func (a *anthropicWriter) only(turns []turn) *part {
	if len(turns) != 1 || turns[0].name != nil {
		return nil
	}
	parts := a.partsOf(&turns[0])
	if len(parts) != 1 || parts[0].kind != partText || parts[0].cache != nil || parts[0].text.blank() {
		return nil
	}
	return &parts[0]
}

func (a *anthropicWriter) text(p *part) {
	a.open()
	a.out = append(a.out, `"type":"text"`...)
	a.quoted("text", p.text)
	a.shut(p)
}

// shut ends a block with its mark for the cache.
func (a *anthropicWriter) shut(p *part) {
	if p.cache != nil {
		a.raw("cache_control", p.cache)
	}
	a.out = append(a.out, '}')
}

// part writes a block.
func (a *anthropicWriter) part(p *part) {
	switch p.kind {
	case partText, partRefusal:
		if !p.text.blank() { // the server refuses such blocks
			a.text(p)
		}
	case partThinking:
		if len(p.sign) == 0 {
			a.drop("messages.thinking")
			return
		}
		a.out = appendThinking(a.out, false, p.text, p.sign)
	case partRedacted:
		a.out = appendThinking(a.out, true, nil, p.sign)
	case partToolCall:
		a.open()
		a.out = append(a.out, `"type":"tool_use"`...)
		a.quoted("id", anthropicID(p.id))
		a.quoted("name", p.name)
		a.raw("input", p.args)
		a.shut(p)
	case partToolResult:
		a.result(p)
	case partImage:
		a.image(p)
	case partFile:
		a.file(p)
	case partOther:
		a.other(p)
	default:
		a.refuse(cannot(a.path(p.place), "cannot be sent to this server: it takes no audio"))
	}
}

// anthropicID is an id of a call with no characters but those that the server
// takes.
func anthropicID(id lit) lit {
	fits := func(c byte) bool { return c-'0' <= 9 || c|0x20-'a' <= 'z'-'a' || c == '_' || c == '-' }
	for i := range id {
		if !fits(id[i]) {
			out := append(lit{}, id...)
			for j := i; j < len(out); j++ {
				if !fits(out[j]) {
					out[j] = '_'
				}
			}
			return out
		}
	}
	return id
}

func (a *anthropicWriter) result(p *part) {
	a.open()
	a.out = append(a.out, `"type":"tool_result"`...)
	a.quoted("tool_use_id", anthropicID(p.id))
	inner := a.partsOfResult(p)
	switch {
	case len(inner) == 0:
	case len(inner) == 1 && inner[0].kind == partText && inner[0].cache == nil:
		a.quoted("content", inner[0].text)
	default:
		a.member("content")
		a.out = append(a.out, '[')
		for i := range inner {
			a.part(&inner[i])
		}
		a.out = append(a.out, ']')
	}
	if p.isError {
		a.raw("is_error", []byte("true"))
	}
	a.shut(p)
}

func (a *anthropicWriter) image(p *part) {
	a.open()
	a.out = append(a.out, `"type":"image","source":{`...)
	switch {
	case p.data != nil:
		switch p.media {
		case "image/jpeg", "image/png", "image/gif", "image/webp":
		case "image/jpg":
			p.media = "image/jpeg"
		default:
			a.refuse(cannot(a.path(p.place), "must be a JPEG, PNG, GIF or WebP image for this server"))
		}
		a.base64(p)
	case p.url != nil:
		a.out = append(a.out, `"type":"url"`...)
		a.quoted("url", p.url)
	default:
		a.refuse(cannot(a.path(p.place), "is a file of another provider; send its data or a URL"))
	}
	a.out = append(a.out, '}')
	a.shut(p)
}

func (a *anthropicWriter) base64(p *part) {
	a.out = append(a.out, `"type":"base64"`...)
	a.quoted("media_type", literal(p.media))
	a.quoted("data", p.data)
}

func (a *anthropicWriter) file(p *part) {
	a.open()
	a.out = append(a.out, `"type":"document","source":{`...)
	text := p.text
	if text == nil && p.data != nil && bytes.HasPrefix([]byte(p.media), []byte("text/")) {
		raw, err := base64.StdEncoding.DecodeString(p.data.String())
		if err != nil || !utf8.Valid(raw) {
			a.refuse(cannot(a.path(p.place), "is not UTF-8 text in base64"))
			return
		}
		quoted := jsonedit.AppendString(nil, string(raw))
		text = quoted[1 : len(quoted)-1]
	}
	switch {
	case text != nil:
		a.out = append(a.out, `"type":"text","media_type":"text/plain"`...)
		a.quoted("data", text)
	case p.data != nil && p.media == "application/pdf":
		a.base64(p)
	case p.data != nil, p.url != nil && p.media != "" && p.media != "application/pdf":
		a.refuse(cannot(a.path(p.place), "must be a PDF or text for this server"))
	case p.url != nil:
		a.out = append(a.out, `"type":"url"`...)
		a.quoted("url", p.url)
	default:
		a.refuse(cannot(a.path(p.place), "is a file of another provider; send its data"))
	}
	a.out = append(a.out, '}')
	if len(p.name) > 0 {
		a.quoted("title", p.name)
	}
	a.shut(p)
}

func (a *anthropicWriter) toolList() {
	before := len(a.out)
	a.member("tools")
	a.out = append(a.out, '[')
	empty := len(a.out)
	for i := range a.tools {
		t := &a.tools[i]
		if t.kind != toolFunction {
			a.notTool(t)
			continue
		}
		if !a.choice.allows(t.name) {
			continue
		}
		a.tool(t)
	}
	if a.answersInJSON() {
		a.tool(a.answerTool())
	}
	if len(a.out) == empty {
		a.out = a.out[:before]
		return
	}
	a.out = append(a.out, ']')
}

func (a *anthropicWriter) tool(t *tool) {
	a.open()
	a.quoted("name", t.name)
	if len(t.about) > 0 {
		a.quoted("description", t.about)
	}
	schema := t.schema
	if schema == nil {
		schema = []byte(`{"type":"object","properties":{}}`)
	}
	a.raw("input_schema", schema)
	if truth(t.strict) {
		a.raw("strict", t.strict)
	}
	if t.cache != nil {
		a.raw("cache_control", t.cache)
	}
	a.out = append(a.out, '}')
}

// allows says that the model may call a function.
func (c *choice) allows(name lit) bool {
	if c.allowed == nil {
		return true
	}
	for _, n := range c.allowed {
		if bytes.Equal(n, name) {
			return true
		}
	}
	return false
}

func (a *anthropicWriter) toolChoice() {
	a.take(paramChoice)
	a.take(paramParallel)
	c := &a.choice
	mode, name, single := c.mode, c.name, c.single
	if answers := a.answersInJSON(); answers && mode != choiceTool {
		if mode, name = choiceAny, nil; c.mode == choiceNone || a.functions() == 0 {
			mode, name, single = choiceTool, lit(answerTool), true
		}
	} else if !answers && (a.functions() == 0 || mode == choiceUnset && !c.single) {
		return
	}
	if a.thinks && (mode == choiceAny || mode == choiceTool) {
		// A server that thinks may not be told to call.
		if c.mode == choiceAny || c.mode == choiceTool {
			a.drop(a.nameOf(paramChoice))
		}
		mode = choiceAuto
	}
	a.out = append(appendMember(a.out, "tool_choice"), '{')
	switch mode {
	case choiceNone:
		a.quoted("type", lit("none"))
	case choiceAny:
		a.quoted("type", lit("any"))
	case choiceTool:
		a.quoted("type", lit("tool"))
		a.quoted("name", name)
	default:
		a.quoted("type", lit("auto"))
	}
	if single && mode != choiceNone {
		a.raw("disable_parallel_tool_use", []byte("true"))
	}
	a.out = append(a.out, '}')
}

func (a *anthropicWriter) params() {
	if a.n > 1 {
		a.refuse(cannot(a.nameOf(paramN), "must be 1 for this server"))
	}
	a.sampling()
	a.take(paramStop)
	first := true
	for _, s := range a.stop {
		if s.blank() { // the server refuses those
			a.drop(a.nameOf(paramStop))
			continue
		}
		if first {
			a.member("stop_sequences")
			a.out = append(a.out, '[')
			first = false
		}
		a.out = appendLit(appendComma(a.out), s)
	}
	if !first {
		a.out = append(a.out, ']')
	}
	if user := a.take(paramUser); user != nil {
		a.out = append(appendMember(a.out, "metadata"), `{"user_id":`...)
		a.out = append(append(a.out, user...), '}')
	}
	switch string(a.chat.params[paramTier].raw) {
	case `"auto"`:
		a.take(paramTier)
		a.quoted("service_tier", lit("auto"))
	case `"default"`:
		a.take(paramTier)
		a.quoted("service_tier", lit("standard_only"))
	}
	a.pass(paramCache, "cache_control")
	a.outputConfig()
	if a.stream {
		a.raw("stream", []byte("true"))
	}
}

// sampling writes what the server takes, which is less while it thinks.
func (a *anthropicWriter) sampling() {
	temperature, topP, topK := a.take(paramTemperature), a.take(paramTopP), a.take(paramTopK)
	switch {
	case temperature == nil:
	case a.thinks:
		if float(temperature) != 1 {
			a.drop(a.nameOf(paramTemperature))
		}
	case float(temperature) > 1:
		a.drop(a.nameOf(paramTemperature))
		a.raw("temperature", []byte("1"))
	default:
		a.raw("temperature", temperature)
	}
	switch {
	case topP == nil || temperature != nil && float(topP) == 1:
		// Newer models refuse both; all of the mass is what there is anyway.
	case a.thinks && float(topP) < 0.95:
		a.drop(a.nameOf(paramTopP))
	default:
		a.raw("top_p", topP)
	}
	switch {
	case topK == nil:
	case a.thinks:
		a.drop(a.nameOf(paramTopK))
	default:
		a.raw("top_k", topK)
	}
}

func (a *anthropicWriter) outputConfig() {
	a.take(paramFormat)
	effort := a.reasoning.adaptive && a.thinks && a.reasoning.effort != ""
	native := a.format.kind == formatSchema && !a.answersInJSON()
	if !native && !effort {
		return
	}
	a.out = append(appendMember(a.out, "output_config"), '{')
	if effort {
		a.quoted("effort", lit(a.reasoning.effort))
	}
	if native {
		a.out = append(appendMember(a.out, "format"), `{"type":"json_schema"`...)
		a.raw("schema", a.format.schema)
		a.out = append(a.out, '}')
	}
	a.out = append(a.out, '}')
}

// answersInJSON says that the answer is to come as a call, whose arguments are
// JSON: the server's own mode is of newer models, and for closed schemas only.
func (a *anthropicWriter) answersInJSON() bool {
	switch a.format.kind {
	case formatJSON:
		return !a.thinks
	case formatSchema:
		return bytes.Contains(a.format.schema, []byte(`"object"`)) && (!hasFormats(a.backend.Model) || !closedSchema(a.format.schema))
	}
	return false
}

// withoutFormats are parts of the names of models that have no mode for JSON.
var withoutFormats = [...]string{
	"claude-2", "claude-instant", "claude-3", "claude-opus-4-0", "claude-opus-4-2", "claude-opus-4@", "claude-sonnet-4-0", "claude-sonnet-4-2", "claude-sonnet-4@",
}

func hasFormats(model string) bool {
	for _, part := range withoutFormats {
		if strings.Contains(model, part) {
			return false
		}
	}
	return strings.Contains(model, "claude") // of other servers with this API nothing is known
}

// closedSchema says that the server's own mode takes a schema: each object of it
// allows no members but those that it names, and nothing has bounds. A schema of
// which that is not sure is none.
func closedSchema(schema []byte) bool {
	var compact bytes.Buffer
	if json.Compact(&compact, schema) != nil {
		return false
	}
	s := compact.Bytes()
	for _, word := range [...]string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems", "uniqueItems", "pattern", "patternProperties", "$dynamicRef"} {
		if bytes.Contains(s, []byte(`"`+word+`":`)) {
			return false
		}
	}
	return bytes.Count(s, []byte(`"object"`)) == bytes.Count(s, []byte(`"additionalProperties":false`))
}
