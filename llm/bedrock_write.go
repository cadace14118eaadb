// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// This file writes requests for Bedrock's Converse. The model is in the path.

// answerTool is the function whose arguments are the answer where JSON is asked
// for: Converse has no mode for that with all models, nor have Messages. Its calls
// are read as text.
const answerTool = "answer_as_json"

type bedrockWriter struct {
	*requestWriter
	claude bool
	thinks bool
	files  int // so far, for their names
}

func writeBedrock(w *requestWriter) {
	b := bedrockWriter{requestWriter: w}
	model := strings.ToLower(w.backend.Model)
	b.claude = strings.Contains(model, "anthropic") || strings.Contains(model, "claude")
	w.out = append(w.out, '{')
	b.system()
	w.member("messages")
	w.out = append(w.out, '[')
	for i := 0; i < len(w.turns) && w.err == nil; {
		if b.passed(&w.turns[i]) {
			i++
			continue
		}
		role, end := w.turns[i].role, i
		for end < len(w.turns) && (w.turns[end].role == role || b.passed(&w.turns[end])) {
			end++
		}
		b.message(w.turns[i:end], role)
		i = end
	}
	w.some()
	w.out = append(w.out, ']')
	b.inference()
	b.toolConfig()
	b.additional()
	b.one()
	w.out = append(w.out, '}')
}

// passed says that a turn has no message: the system's have a place of their own,
// and the server refuses blank texts and messages without content.
func (b *bedrockWriter) passed(t *turn) bool {
	if t.role != roleAssistant {
		return t.role == roleSystem
	}
	for _, p := range b.partsOf(t) {
		switch p.kind {
		case partText, partRefusal:
			if !p.text.blank() {
				return false
			}
		case partThinking, partRedacted:
			if len(p.sign) > 0 {
				return false
			}
			b.drop("messages.thinking")
		case partOther:
			b.other(&p)
		default:
			return false
		}
	}
	return true
}

func (b *bedrockWriter) system() {
	first := true
	for i := range b.turns {
		t := &b.turns[i]
		if t.name != nil {
			b.drop("messages.name")
		}
		if t.role != roleSystem {
			continue
		}
		parts := b.partsOf(t)
		for j := range parts {
			if parts[j].text.blank() {
				continue
			}
			if first {
				b.member("system")
				b.out = append(b.out, '[')
				first = false
			}
			b.part(&parts[j])
		}
	}
	if !first {
		b.out = append(b.out, ']')
	}
}

// message writes a run of turns of one role. What tools answered comes first.
func (b *bedrockWriter) message(turns []turn, who role) {
	b.open()
	if who == roleAssistant {
		b.quoted("role", lit("assistant"))
	} else {
		b.quoted("role", lit("user"))
	}
	b.member("content")
	b.out = append(b.out, '[')
	empty := len(b.out)
	for _, results := range [...]bool{true, false} {
		for i := range turns {
			if turns[i].role != who {
				continue
			}
			parts := b.partsOf(&turns[i])
			for j := range parts {
				if (parts[j].kind == partToolResult) == results {
					b.part(&parts[j])
				}
			}
		}
	}
	if len(b.out) == empty {
		b.refuse(cannot(b.path(place{"content", int32(turns[0].place), -1, -1}), "must not be empty for this server"))
	}
	b.out = append(b.out, ']', '}')
}

// part writes a block, and the mark after it that the prefix is to be cached.
func (b *bedrockWriter) part(p *part) {
	before := len(b.out)
	switch p.kind {
	case partText, partRefusal:
		if !p.text.blank() {
			b.text(p.text)
		}
	case partThinking, partRedacted:
		b.thought(p)
	case partToolCall:
		b.open()
		b.out = append(b.out, `"toolUse":{`...)
		b.quoted("toolUseId", bedrockID(p.id))
		b.quoted("name", p.name)
		b.raw("input", p.args)
		b.out = append(b.out, '}', '}')
	case partToolResult:
		b.result(p)
	case partImage:
		b.image(p)
	case partFile:
		b.file(p)
	case partOther:
		b.other(p)
	default:
		b.refuse(cannot(b.path(p.place), "cannot be sent to this server: it takes no audio"))
	}
	if p.cache != nil && len(b.out) > before {
		b.cachePoint(p.cache)
	}
}

func (b *bedrockWriter) text(l lit) {
	b.open()
	b.quoted("text", l)
	b.out = append(b.out, '}')
}

// cachePoint writes the mark for what comes before it.
func (b *bedrockWriter) cachePoint(cache []byte) {
	b.open()
	b.out = append(b.out, `"cachePoint":{"type":"default"`...)
	if bytes.Contains(cache, []byte(`"1h"`)) {
		b.quoted("ttl", lit("1h"))
	}
	b.out = append(b.out, '}', '}')
}

// thought writes what the server can read of what was thought.
func (b *bedrockWriter) thought(p *part) {
	if len(p.sign) == 0 {
		b.drop("messages.thinking")
		return
	}
	b.open()
	b.out = append(b.out, `"reasoningContent":{`...)
	if p.kind == partRedacted {
		b.quoted("redactedContent", p.sign)
	} else {
		b.out = append(b.out, `"reasoningText":{`...)
		b.quoted("text", p.text)
		b.quoted("signature", p.sign)
		b.out = append(b.out, '}')
	}
	b.out = append(b.out, '}', '}')
}

// maxBedrockID is how long an id of a call may be, in bytes.
const maxBedrockID = 64

// bedrockID is an id of a call as the server takes it. The same id always comes
// out the same, so that a call and its result still meet.
func bedrockID(id lit) lit {
	out := anthropicID(id)
	if len(out) <= maxBedrockID {
		return out
	}
	const hex = "0123456789abcdef"
	short := append(lit{}, out[:maxBedrockID-16]...)
	for hash, i := xxhash.Sum64(id), 0; i < 16; i++ {
		short = append(short, hex[hash>>(4*i)&15])
	}
	return short
}

func (b *bedrockWriter) result(p *part) {
	b.open()
	b.out = append(b.out, `"toolResult":{`...)
	b.quoted("toolUseId", bedrockID(p.id))
	b.member("content")
	b.out = append(b.out, '[')
	empty := len(b.out)
	inner := b.partsOfResult(p)
	for i := range inner {
		q := &inner[i]
		if q.cache != nil {
			b.drop("cache_control") // has no place inside a result
			plain := *q
			plain.cache = nil
			q = &plain
		}
		b.part(q)
	}
	if len(b.out) == empty {
		b.out = append(b.out, `{"json":{}}`...) // the server refuses none, and blank text
	}
	b.out = append(b.out, ']')
	if p.isError {
		b.quoted("status", lit("error"))
	}
	b.out = append(b.out, '}', '}')
}

func (b *bedrockWriter) image(p *part) {
	switch {
	case p.data == nil && p.url == nil:
		b.refuse(cannot(b.path(p.place), "is a file of another provider; send its data"))
		return
	case p.data == nil && !b.fetch(p):
		return
	}
	format := strings.TrimPrefix(p.media, "image/")
	switch format {
	case "jpeg", "png", "gif", "webp":
	case "jpg":
		format = "jpeg"
	default:
		b.refuse(cannot(b.path(p.place), "must be a JPEG, PNG, GIF or WebP image for this server"))
	}
	b.open()
	b.out = append(b.out, `"image":{`...)
	b.quoted("format", literal(format))
	b.source(p.data)
	b.out = append(b.out, '}', '}')
}

func (b *bedrockWriter) source(data lit) {
	b.out = append(appendMember(b.out, "source"), '{')
	b.quoted("bytes", data)
	b.out = append(b.out, '}')
}

// documentFormats are the formats of documents by their media types.
var documentFormats = map[string]string{
	"application/pdf": "pdf", "text/csv": "csv", "application/msword": "doc", "application/vnd.ms-excel": "xls",
	"application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
	"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet":       "xlsx",
	"text/html": "html", "text/plain": "txt", "text/markdown": "md",
}

func (b *bedrockWriter) file(p *part) {
	data, format := p.data, documentFormats[p.media]
	switch {
	case p.text != nil:
		data, format = base64.StdEncoding.AppendEncode(nil, []byte(p.text.String())), "txt"
	case data == nil && p.url == nil:
		b.refuse(cannot(b.path(p.place), "is a file of another provider; send its data"))
		return
	case data == nil:
		if !b.fetch(p) {
			return
		}
		data, format = p.data, documentFormats[p.media]
	}
	if format == "" && strings.HasPrefix(p.media, "text/") {
		format = "txt"
	}
	if format == "" {
		b.refuse(cannot(b.path(p.place), "is a document of a type that this server does not take"))
	}
	b.files++
	b.open()
	b.out = append(b.out, `"document":{`...)
	b.quoted("format", literal(format))
	b.quoted("name", literal(documentName(p.name.String(), b.files)))
	b.source(data)
	b.out = append(b.out, '}', '}')
}

// documentName is a name with no characters but those that the server takes.
// Names must differ.
func documentName(name string, n int) string {
	out := make([]byte, 0, 64)
	for i := 0; i < len(name) && len(out) < 48; i++ {
		switch c := name[i]; {
		case c-'0' <= 9 || c|0x20-'a' <= 'z'-'a' || c == '-':
			out = append(out, c)
		case len(out) > 0 && out[len(out)-1] != ' ':
			out = append(out, ' ')
		}
	}
	if len(out) == 0 {
		out = append(out, "document"...)
	}
	if out[len(out)-1] != ' ' {
		out = append(out, ' ')
	}
	return string(appendInt(out, n))
}

// inference writes the bounds and what shapes the answer. Thinking depends on
// them.
func (b *bedrockWriter) inference() {
	b.take(paramMaxTokens)
	most, budget := b.maxTokens, b.budget()
	if most == 0 {
		if most = b.backend.MaxOutput; most == 0 && budget > 0 {
			most = defaultMaxOutput + budget
		}
	}
	if budget >= most {
		budget = most - most/4
	}
	if b.thinks = b.reasoning.adaptive && b.claude || budget >= minThinking; !b.thinks && b.reasoning.tokens() > 0 && !b.reasoning.off {
		b.drop(b.nameOf(paramReasoning))
	}
	b.reasoning.budget = budget
	before := len(b.out)
	b.out = append(appendMember(b.out, "inferenceConfig"), '{')
	empty := len(b.out)
	if most > 0 {
		b.raw("maxTokens", appendInt(nil, most))
	}
	b.sampling()
	b.take(paramStop)
	first := true
	for _, s := range b.stop {
		if s.blank() {
			b.drop(b.nameOf(paramStop))
			continue
		}
		if first {
			b.member("stopSequences")
			b.out = append(b.out, '[')
			first = false
		}
		b.out = appendLit(appendComma(b.out), s)
	}
	if !first {
		b.out = append(b.out, ']')
	}
	if len(b.out) == empty {
		b.out = b.out[:before]
		return
	}
	b.out = append(b.out, '}')
}

// budget is what the model may think, in tokens; 0: nothing is said of it, or the
// server would refuse it.
func (b *bedrockWriter) budget() int {
	b.take(paramReasoning)
	r := &b.reasoning
	if !b.claude && (r.tokens() > 0 || r.adaptive) || r.adaptive && b.lostThinking() {
		b.drop(b.nameOf(paramReasoning))
		r.adaptive = false
		return 0
	}
	if r.off || r.adaptive || b.lostThinking() {
		return 0
	}
	return r.tokens()
}

// sampling writes what the server takes, which is less while it thinks.
func (b *bedrockWriter) sampling() {
	temperature, topP := b.take(paramTemperature), b.take(paramTopP)
	switch {
	case temperature == nil:
	case b.thinks:
		if float(temperature) != 1 {
			b.drop(b.nameOf(paramTemperature))
		}
	case float(temperature) > 1:
		b.drop(b.nameOf(paramTemperature))
		b.raw("temperature", []byte("1"))
	default:
		b.raw("temperature", temperature)
	}
	switch {
	case topP == nil || b.claude && temperature != nil && float(topP) == 1:
		// Newer models refuse both; all of the mass is what there is anyway.
	case b.thinks && float(topP) < 0.95:
		b.drop(b.nameOf(paramTopP))
	default:
		b.raw("topP", topP)
	}
}

// additional writes what only models of one maker have.
func (b *bedrockWriter) additional() {
	topK := b.chat.params[paramTopK].raw
	if topK != nil && b.claude && !b.thinks {
		b.take(paramTopK)
	} else {
		topK = nil
	}
	if topK == nil && !b.thinks {
		return
	}
	b.out = append(appendMember(b.out, "additionalModelRequestFields"), '{')
	if topK != nil {
		b.raw("top_k", topK)
	}
	switch {
	case b.thinks && b.reasoning.adaptive:
		b.raw("thinking", []byte(`{"type":"adaptive"}`))
		if b.reasoning.effort != "" {
			b.out = append(appendMember(b.out, "output_config"), '{')
			b.quoted("effort", literal(b.reasoning.effort))
			b.out = append(b.out, '}')
		}
	case b.thinks:
		b.out = append(appendMember(b.out, "thinking"), `{"type":"enabled"`...)
		b.raw("budget_tokens", appendInt(nil, b.reasoning.budget))
		b.out = append(b.out, '}')
	}
	b.out = append(b.out, '}')
}

// lostThinking is that of Anthropic's writer: the models are the same.
func (b *bedrockWriter) lostThinking() bool {
	a := anthropicWriter{requestWriter: b.requestWriter}
	return a.lostThinking()
}

// toolConfig writes the tools. The conversation may not have calls without them,
// and there is no word for not calling any.
func (b *bedrockWriter) toolConfig() {
	b.take(paramChoice)
	b.take(paramFormat)
	c := &b.choice
	history := false
	for i := range b.parts {
		history = history || b.parts[i].kind == partToolCall || b.parts[i].kind == partToolResult
	}
	answers := b.answersInJSON()
	before := len(b.out)
	b.out = append(appendMember(b.out, "toolConfig"), `{"tools":[`...)
	empty := len(b.out)
	for i := range b.tools {
		t := &b.tools[i]
		if t.kind != toolFunction {
			b.notTool(t)
		} else if (c.mode != choiceNone || history) && c.allows(t.name) {
			b.tool(t)
		}
	}
	if len(b.out) == empty && history {
		b.toolsOfHistory()
	}
	functions := len(b.out) > empty
	if answers {
		b.tool(b.answerTool())
	}
	if len(b.out) == empty {
		b.out = b.out[:before]
		return
	}
	b.out = append(b.out, ']')
	b.toolChoice(functions, answers)
	b.out = append(b.out, '}')
}

// answerTool is the function for an answer in JSON.
func (w *requestWriter) answerTool() *tool {
	schema := w.format.schema
	if schema == nil {
		schema = []byte(`{"type":"object","additionalProperties":true}`)
	}
	return &tool{name: lit(answerTool), about: lit("Give the answer to the user, in the form asked for. Answer in no other way."), schema: schema}
}

func (b *bedrockWriter) toolChoice(functions, answers bool) {
	c := &b.choice
	mode, name := c.mode, c.name
	switch {
	case mode == choiceNone && answers:
		mode, name = choiceTool, lit(answerTool)
	case mode == choiceNone:
		b.drop(b.nameOf(paramChoice))
		return
	case answers && mode != choiceTool && functions:
		mode = choiceAny
	case answers && mode != choiceTool:
		mode, name = choiceTool, lit(answerTool)
	}
	if b.thinks && (mode == choiceAny || mode == choiceTool) {
		// A server that thinks may not be told to call.
		if c.mode == choiceAny || c.mode == choiceTool {
			b.drop(b.nameOf(paramChoice))
		}
		mode = choiceAuto
	}
	switch mode {
	case choiceAuto:
		b.raw("toolChoice", []byte(`{"auto":{}}`))
	case choiceAny:
		b.raw("toolChoice", []byte(`{"any":{}}`))
	case choiceTool:
		b.out = append(appendMember(b.out, "toolChoice"), `{"tool":{`...)
		b.quoted("name", name)
		b.out = append(b.out, '}', '}')
	}
}

// answersInJSON says that the answer is to come as a call.
func (b *bedrockWriter) answersInJSON() bool {
	switch b.format.kind {
	case formatText:
		return false
	case formatSchema:
		if bytes.Contains(b.format.schema, []byte(`"object"`)) {
			return true
		}
		b.drop(b.nameOf(paramFormat)) // arguments are always an object
		return false
	}
	return true
}

func (b *bedrockWriter) tool(t *tool) {
	if truth(t.strict) {
		b.drop("tools.strict")
	}
	b.open()
	b.out = append(b.out, `"toolSpec":{`...)
	b.quoted("name", t.name)
	if !t.about.blank() {
		b.quoted("description", t.about)
	}
	schema := t.schema
	if schema == nil {
		schema = []byte(emptySchema)
	}
	b.out = append(appendMember(b.out, "inputSchema"), '{')
	b.raw("json", schema)
	b.out = append(b.out, "}}}"...)
	if t.cache != nil {
		b.cachePoint(t.cache)
	}
}

// toolsOfHistory writes the functions that were called before, for requests that
// have calls and no tools.
func (b *bedrockWriter) toolsOfHistory() {
	for i := range b.parts {
		p := &b.parts[i]
		known := p.kind != partToolCall
		for j := 0; j < i && !known; j++ {
			known = b.parts[j].kind == partToolCall && bytes.Equal(b.parts[j].name, p.name)
		}
		if !known {
			b.tool(&tool{name: p.name})
		}
	}
}
