// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// This file writes requests for chat completions.

const (
	maxStop = 4  // stop sequences that chat completions take
	maxUser = 64 // bytes of user; a hash stands for a longer one
)

func writeOpenAI(w *requestWriter) {
	q := &w.backend.Quirks
	w.out = append(w.out, '{')
	w.quoted("model", literal(w.backend.Model))
	w.member("messages")
	w.out = append(w.out, '[')
	o := openAIWriter{requestWriter: w, q: q}
	for i := 0; i < len(w.turns) && w.err == nil; {
		if w.turns[i].role != roleUser {
			o.turn(&w.turns[i])
			i++
			continue
		}
		end := i
		for end < len(w.turns) && w.turns[end].role == roleUser {
			end++
		}
		o.userTurns(w.turns[i:end])
		i = end
	}
	w.out = append(w.out, ']')
	o.toolList()
	o.params()
	if w.stream {
		w.raw("stream", []byte("true"))
		if !q.NoStreamOptions {
			w.raw("stream_options", []byte(`{"include_usage":true}`))
		}
	}
	w.out = append(w.out, '}')
}

type openAIWriter struct {
	*requestWriter
	q *Quirks
}

// turn writes a message of the system or the assistant.
func (o *openAIWriter) turn(t *turn) {
	o.open()
	parts := o.partsOf(t)
	if t.role == roleSystem {
		o.quoted("role", lit("system"))
		o.systemText(parts)
		o.name(t)
		o.out = append(o.out, '}')
		return
	}
	o.quoted("role", lit("assistant"))
	o.thinking(parts)
	text, calls := 0, 0
	for i := range parts {
		switch parts[i].kind {
		case partText, partRefusal:
			text++
		case partToolCall:
			calls++
		case partOther:
			o.other(&parts[i])
		}
	}
	switch {
	case text > 0:
		o.joined("content", parts, "")
	case calls > 0:
		o.raw("content", []byte("null"))
	default:
		o.quoted("content", nil)
	}
	if calls > 0 {
		o.member("tool_calls")
		o.out = append(o.out, '[')
		for i := range parts {
			if p := &parts[i]; p.kind == partToolCall {
				o.call(p)
			}
		}
		o.out = append(o.out, ']')
	}
	o.name(t)
	o.out = append(o.out, '}')
}

func (o *openAIWriter) name(t *turn) {
	if t.name != nil && !o.q.NoNames {
		o.quoted("name", t.name)
	} else if t.name != nil {
		o.drop("messages.name")
	}
}

func (o *openAIWriter) call(p *part) {
	o.open()
	o.quoted("id", o.q.callID(p.id))
	o.out = append(o.out, `,"type":"function","function":{`...)
	o.quoted("name", p.name)
	o.member("arguments")
	o.out = appendEscaped(o.out, p.args)
	o.out = append(o.out, '}')
	if p.sign != nil {
		o.out = append(o.out, `,"extra_content":{"google":{`...)
		o.quoted("thought_signature", p.sign)
		o.out = append(o.out, "}}"...)
	}
	o.out = append(o.out, '}')
	o.cached(p)
}

// other leaves out a part that only the front's dialect has.
func (w *requestWriter) other(p *part) { w.drop("messages.content." + p.name.String()) }

// cached notes that the mark of a prefix to be cached is lost.
func (o *openAIWriter) cached(p *part) {
	if p.cache != nil && !o.q.CacheControl {
		o.drop("cache_control")
	}
}

// systemText writes the parts of a system message, joined by a blank line.
func (o *openAIWriter) systemText(parts []part) {
	if o.q.CacheControl {
		for i := range parts {
			if parts[i].cache != nil {
				o.member("content")
				o.list(parts)
				return
			}
		}
	}
	o.joined("content", parts, `\n\n`)
}

// joined writes the texts of parts as one string, with separator (escaped)
// between them.
func (o *openAIWriter) joined(name string, parts []part, separator string) {
	o.member(name)
	o.out = append(o.out, '"')
	first := true
	for i := range parts {
		p := &parts[i]
		if p.kind != partText && p.kind != partRefusal {
			continue
		}
		if !first {
			o.out = append(o.out, separator...)
		}
		first = false
		o.out = append(o.out, p.text...)
		o.cached(p)
	}
	o.out = append(o.out, '"')
}

// thinking writes what the assistant thought, for servers that want it back.
func (o *openAIWriter) thinking(parts []part) {
	first, blocks := true, false
	for i := range parts {
		switch p := &parts[i]; p.kind {
		case partThinking:
			blocks = blocks || p.sign != nil
			first = false
		case partRedacted:
			blocks, first = true, false
		}
	}
	if first {
		return
	}
	if !o.q.Reasoning {
		o.drop("thinking")
		return
	}
	o.member("reasoning_content")
	o.out = append(o.out, '"')
	for i := range parts {
		if parts[i].kind == partThinking {
			o.out = append(o.out, parts[i].text...)
		}
	}
	o.out = append(o.out, '"')
	if !blocks {
		return
	}
	o.member("thinking_blocks")
	o.out = append(o.out, '[')
	for i := range parts {
		if p := &parts[i]; p.kind == partThinking || p.kind == partRedacted {
			o.out = appendThinking(o.out, p.kind == partRedacted, p.text, p.sign)
		}
	}
	o.out = append(o.out, ']')
}

// appendThinking appends a block of thinking in Anthropic's form, which is that
// of thinking_blocks too.
func appendThinking(b []byte, redacted bool, text, sign lit) []byte {
	b = append(appendComma(b), '{')
	if redacted {
		b = append(b, `"type":"redacted_thinking"`...)
		return append(appendText(b, "data", sign), '}')
	}
	b = append(b, `"type":"thinking"`...)
	b = appendText(b, "thinking", text)
	return append(appendText(b, "signature", sign), '}')
}

// userTurns writes a run of the user's messages: first all that tools answered,
// each a message, then what else the turns hold. Images that tools answered
// with go with the latter, for a tool's message has text only.
func (o *openAIWriter) userTurns(turns []turn) {
	images := []*part(nil)
	for i := range turns {
		parts := o.partsOf(&turns[i])
		for j := range parts {
			if parts[j].kind == partToolResult {
				images = o.result(&parts[j], images)
			}
		}
	}
	for i := range turns {
		t := &turns[i]
		parts := o.partsOf(t)
		rest := parts
		for len(rest) > 0 && rest[0].kind == partToolResult {
			rest = rest[1:]
		}
		if len(parts) == 0 {
			o.refuse(cannot(o.path(place{"content", int32(t.place), -1, -1}), "must not be empty for this server"))
		}
		if len(rest) == 0 && (len(images) == 0 || i < len(turns)-1) {
			continue
		}
		o.open()
		o.quoted("role", lit("user"))
		o.member("content")
		if len(images) == 0 && len(rest) == 1 && rest[0].kind == partText && (rest[0].cache == nil || !o.q.CacheControl) {
			o.cached(&rest[0])
			o.out = appendLit(o.out, rest[0].text)
		} else {
			o.out = append(o.out, '[')
			for _, p := range images {
				o.part(p)
			}
			for j := range rest {
				switch rest[j].kind {
				case partToolResult:
				case partOther:
					o.other(&rest[j])
				default:
					o.part(&rest[j])
				}
			}
			o.out = append(o.out, ']')
			images = nil
		}
		o.name(t)
		o.out = append(o.out, '}')
	}
}

// result writes what a tool answered and adds its images to those to come.
func (o *openAIWriter) result(p *part, images []*part) []*part {
	o.open()
	o.quoted("role", lit("tool"))
	o.quoted("tool_call_id", o.q.callID(p.id))
	o.member("content")
	o.out = append(o.out, '"')
	if p.isError {
		o.out = append(o.out, "Error: "...)
	}
	inner, first := o.partsOfResult(p), true
	for i := range inner {
		switch q := &inner[i]; q.kind {
		case partText:
			if !first {
				o.out = append(o.out, `\n`...)
			}
			first = false
			o.out = append(o.out, q.text...)
			o.cached(q)
		case partOther:
			o.other(q)
		default:
			images = append(images, q)
		}
	}
	if first && len(inner) > 0 {
		o.out = append(o.out, "(see the next message)"...)
	}
	o.out = append(o.out, '"', '}')
	o.cached(p)
	return images
}

// list writes parts as an array.
func (o *openAIWriter) list(parts []part) {
	o.out = append(o.out, '[')
	for i := range parts {
		o.part(&parts[i])
	}
	o.out = append(o.out, ']')
}

// part writes a part of a user's message.
func (o *openAIWriter) part(p *part) {
	o.open()
	switch p.kind {
	case partText, partRefusal:
		o.out = append(o.out, `"type":"text"`...)
		o.quoted("text", p.text)
	case partImage:
		o.out = append(o.out, `"type":"image_url","image_url":{`...)
		switch {
		case p.data != nil:
			o.dataURL("url", p)
		case p.url != nil:
			o.quoted("url", p.url)
		default:
			o.refuse(cannot(o.path(p.place), "is a file of another provider"))
		}
		o.out = append(o.out, '}')
	case partAudio:
		o.out = append(o.out, `"type":"input_audio","input_audio":{`...)
		o.quoted("data", p.data)
		o.quoted("format", literal(audioFormat(p.media)))
		o.out = append(o.out, '}')
	case partFile:
		o.file(p)
	default:
		o.refuse(cannot(o.path(p.place), "has no place in a user's message for this server"))
	}
	if p.cache != nil && o.q.CacheControl {
		o.raw("cache_control", p.cache)
	}
	o.cached(p)
	o.out = append(o.out, '}')
}

func (o *openAIWriter) file(p *part) {
	switch {
	case p.text != nil:
		o.out = append(o.out, `"type":"text"`...)
		o.quoted("text", p.text)
	case isVideo(p):
		o.refuse(cannot(o.path(p.place), "is a video, which this server does not take"))
	case p.data != nil:
		o.out = append(o.out, `"type":"file","file":{`...)
		name := p.name
		if len(name) == 0 {
			name = lit("document.pdf")
		}
		o.quoted("filename", name)
		o.dataURL("file_data", p)
		o.out = append(o.out, '}')
	default:
		o.refuse(cannot(o.path(p.place), "is a file that only its own provider can read; send its data"))
	}
}

func isVideo(p *part) bool { return strings.HasPrefix(p.media, "video/") }

func (o *openAIWriter) dataURL(name string, p *part) {
	o.member(name)
	o.out = append(o.out, `"data:`...)
	o.out = append(o.out, literal(p.media)...)
	o.out = append(o.out, ";base64,"...)
	o.out = append(o.out, p.data...)
	o.out = append(o.out, '"')
}

// audioFormat is the name of a format for its media type.
func audioFormat(media string) string {
	switch media {
	case "audio/mpeg":
		return "mp3"
	case "audio/x-wav", "audio/wave":
		return "wav"
	}
	if len(media) > len("audio/") {
		return media[len("audio/"):]
	}
	return media
}

func (o *openAIWriter) toolList() {
	if len(o.tools) == 0 {
		return
	}
	before := len(o.out)
	o.member("tools")
	o.out = append(o.out, '[')
	empty := len(o.out)
	for i := range o.tools {
		t := &o.tools[i]
		if t.kind != toolFunction {
			o.notTool(t)
			continue
		}
		o.open()
		o.out = append(o.out, `"type":"function","function":{`...)
		o.quoted("name", t.name)
		if t.about != nil {
			o.quoted("description", t.about)
		}
		if t.schema != nil {
			o.raw("parameters", t.schema)
		}
		if t.strict != nil {
			o.raw("strict", t.strict)
		}
		o.out = append(o.out, '}')
		if t.cache != nil && o.q.CacheControl {
			o.raw("cache_control", t.cache)
		} else if t.cache != nil {
			o.drop("cache_control")
		}
		o.out = append(o.out, '}')
	}
	if len(o.out) == empty {
		o.out = o.out[:before]
		return
	}
	o.out = append(o.out, ']')
}

// notTool refuses a tool that takes text, and leaves out those that only another
// provider runs.
func (w *requestWriter) notTool(t *tool) {
	if t.kind == toolCustom {
		w.refuse(cannot(t.where(), "is a custom tool, which this server does not know"))
		return
	}
	w.drop("tools." + t.label)
}

// functions counts the tools that any server knows.
func (c *chat) functions() (n int) {
	for i := range c.tools {
		if c.tools[i].kind == toolFunction {
			n++
		}
	}
	return n
}

func (o *openAIWriter) params() {
	o.toolChoice()
	for _, p := range [...]struct {
		kind paramKind
		name string
	}{
		{paramTemperature, "temperature"}, {paramTopP, "top_p"}, {paramPresencePenalty, "presence_penalty"},
		{paramFrequencyPenalty, "frequency_penalty"}, {paramVerbosity, "verbosity"},
		{paramMetadata, "metadata"}, {paramStore, "store"}, {paramCacheKey, "prompt_cache_key"},
		{paramModalities, "modalities"}, {paramTier, "service_tier"},
	} {
		if !o.q.refuses(p.name) {
			o.pass(p.kind, p.name)
		}
	}
	if user := o.take(paramUser); len(user) > maxUser+2 {
		hash := fmt.Sprintf("user_%016x", xxhash.Sum64(user))
		o.quoted("user", lit(hash))
	} else if user != nil {
		o.raw("user", user)
	}
	if !o.q.NoLogprobs {
		o.pass(paramLogitBias, "logit_bias")
		o.pass(paramLogprobs, "logprobs")
		o.pass(paramTopLogprobs, "top_logprobs")
	}
	if o.q.RandomSeed {
		o.pass(paramSeed, "random_seed")
	} else {
		o.pass(paramSeed, "seed")
	}
	if o.q.TopK {
		o.pass(paramTopK, "top_k")
	}
	if o.n > 1 {
		if o.q.NoN {
			o.refuse(cannot(o.nameOf(paramN), "must be 1 for this server"))
		}
		o.take(paramN)
		o.raw("n", strconv.AppendInt(nil, int64(o.n), 10))
	}
	o.take(paramMaxTokens)
	if o.maxTokens > 0 {
		o.raw(o.q.bound(), strconv.AppendInt(nil, int64(o.maxTokens), 10))
	}
	o.stops()
	word := o.reasoning.word()
	says := word != "" && (word != "none" || o.reasoning.effort == "none")
	if !says || !o.q.NoEffort {
		o.take(paramReasoning)
	}
	if says && !o.q.NoEffort {
		o.quoted("reasoning_effort", lit(word))
	}
	o.responseFormat()
}

// nameOf is the client's name of a member.
func (w *requestWriter) nameOf(k paramKind) string { return w.chat.params[k].name }

func (o *openAIWriter) stops() {
	o.take(paramStop)
	if len(o.stop) == 0 {
		return
	}
	list := o.stop
	if len(list) > maxStop {
		list = list[:maxStop]
		o.drop(fmt.Sprintf("%s[%d:]", o.nameOf(paramStop), maxStop))
	}
	o.member("stop")
	o.out = append(o.out, '[')
	for _, s := range list {
		o.out = appendLit(appendComma(o.out), s)
	}
	o.out = append(o.out, ']')
}

func (o *openAIWriter) toolChoice() {
	c := &o.choice
	o.take(paramChoice)
	o.take(paramParallel)
	if o.functions() == 0 {
		return
	}
	switch c.mode {
	case choiceAuto, choiceNone, choiceAny:
		word := map[choiceMode]string{choiceAuto: "auto", choiceNone: "none", choiceAny: "required"}[c.mode]
		if c.mode == choiceAny && o.q.RequiredAny {
			word = "any"
		}
		if c.allowed == nil {
			o.quoted("tool_choice", lit(word))
			break
		}
		o.out = append(appendMember(o.out, "tool_choice"), `{"type":"allowed_tools","allowed_tools":{`...)
		o.quoted("mode", lit(word))
		o.member("tools")
		o.out = append(o.out, '[')
		for _, name := range c.allowed {
			o.open()
			o.out = append(o.out, `"type":"function","function":{`...)
			o.quoted("name", name)
			o.out = append(o.out, "}}"...)
		}
		o.out = append(o.out, "]}}"...)
	case choiceTool:
		o.out = append(appendMember(o.out, "tool_choice"), `{"type":"function","function":{`...)
		o.quoted("name", c.name)
		o.out = append(o.out, "}}"...)
	}
	if c.single {
		o.raw("parallel_tool_calls", []byte("false"))
	}
}

func (o *openAIWriter) responseFormat() {
	f := &o.format
	switch o.take(paramFormat); f.kind {
	case formatJSON:
		o.raw("response_format", []byte(`{"type":"json_object"}`))
	case formatSchema:
		o.out = append(appendMember(o.out, "response_format"), `{"type":"json_schema","json_schema":{`...)
		name := f.name
		if len(name) == 0 {
			name = lit("response")
		}
		o.quoted("name", name)
		if f.about != nil {
			o.quoted("description", f.about)
		}
		o.raw("schema", f.schema)
		if f.strict != nil {
			o.raw("strict", f.strict)
		}
		o.out = append(o.out, "}}"...)
	}
}

// appendEscaped appends the JSON text b as a string literal.
func appendEscaped(dst, b []byte) []byte {
	return append(appendEscape(append(dst, '"'), b), '"')
}

// appendEscape appends valid JSON text as the text of a string literal: what
// must be escaped in it are quotes, backslashes and white space.
func appendEscape(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	from := 0
	for i, c := range b {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, b[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(dst, b[from:]...)
}
