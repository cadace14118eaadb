// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "strconv"

// This file writes answers of chat completions, whole and as a stream.

// openAIStream writes chunks.
type openAIStream struct {
	o       *answerContext
	head    []byte // of a chunk, up to the index of the choice
	tail    []byte // after the choice
	choices []openAIOut
	usage   Usage
}

// openAIOut is what has gone out of one choice.
type openAIOut struct {
	begun   bool
	images  int
	empty   []bool // for each call: no arguments yet
	thought []byte // the reasoning that is not signed yet
}

// maxThought bounds what is kept of reasoning to go with its signature, in bytes.
const maxThought = 4 << 20

func newOpenAIStream(o *answerContext) answerWriter { return &openAIStream{o: o} }

func (w *openAIStream) write(out []byte, e *event) []byte {
	switch e.kind {
	case evStart:
		w.start(e)
		return out
	case evUsage:
		w.usage = e.usage
		return out
	case evPing:
		return append(out, ": ping\n\n"...)
	case evError:
		return append(out, e.err.StreamError(OpChat, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	if w.head == nil {
		w.start(&event{})
	}
	for len(w.choices) <= e.choice {
		w.choices = append(w.choices, openAIOut{})
	}
	c := &w.choices[e.choice]
	if !c.begun {
		c.begun = true
		out = append(w.open(out, e.choice), `"role":"assistant","content":""`...)
		out = w.shut(out, "null")
	}
	switch e.kind {
	case evText:
		return w.delta(out, e, `"content":"`)
	case evReasoning:
		if len(c.thought) < maxThought {
			c.thought = append(c.thought, e.text...)
		}
		return w.delta(out, e, `"reasoning_content":"`)
	case evRefusal:
		return w.delta(out, e, `"refusal":"`)
	case evMedia:
		if isSound(e.name) {
			return w.shut(appendSound(append(w.open(out, e.choice), `"audio":`...), w.o, e.text), "null")
		}
		out = appendImage(append(w.open(out, e.choice), `"images":[`...), e.name, e.text, e.id, c.images)
		c.images++
		return w.shut(append(out, ']'), "null")
	case evSignature, evRedacted:
		out = append(w.open(out, e.choice), `"thinking_blocks":[`...)
		out = appendThinking(out, e.kind == evRedacted, c.thought, e.text)
		if e.kind == evSignature {
			c.thought = c.thought[:0]
		}
		return w.shut(append(out, ']'), "null")
	case evToolStart:
		for len(c.empty) <= e.tool {
			c.empty = append(c.empty, false)
		}
		c.empty[e.tool] = true
		if w.o.legacy {
			if e.tool > 0 {
				return out // this form has one call
			}
			out = append(w.open(out, e.choice), `"function_call":{`...)
			out = append(appendText(out, "name", e.name), `,"arguments":""}`...)
			return w.shut(out, "null")
		}
		out = w.openCall(out, e)
		out = appendText(out, "id", e.id)
		out = append(out, `,"type":"function","function":{`...)
		out = append(appendText(out, "name", e.name), `,"arguments":""}`...)
		return w.shutCall(out, e.sign)
	case evToolArgs:
		if e.tool < len(c.empty) && len(e.text) > 0 {
			c.empty[e.tool] = false
		}
		return w.args(out, e.choice, e.tool, e.text)
	case evToolEnd:
		return w.fill(out, e.choice, e.tool)
	case evFinish:
		for tool := range c.empty {
			out = w.fill(out, e.choice, tool)
		}
		return w.shut(w.open(out, e.choice), `"`+openAIFinish(e.reason, w.o.legacy)+`"`)
	}
	return out
}

// fill gives a call that ended without arguments an empty object.
func (w *openAIStream) fill(out []byte, choice, tool int) []byte {
	c := &w.choices[choice]
	if tool >= len(c.empty) || !c.empty[tool] {
		return out
	}
	c.empty[tool] = false
	return w.args(out, choice, tool, lit("{}"))
}

func (w *openAIStream) args(out []byte, choice, tool int, text lit) []byte {
	if w.o.legacy {
		if tool > 0 {
			return out
		}
		out = append(w.open(out, choice), `"function_call":{`...)
		return w.shut(append(appendText(out, "arguments", text), '}'), "null")
	}
	out = w.openCall(out, &event{choice: choice, tool: tool})
	out = append(out, `,"function":{"arguments":"`...)
	out = append(out, text...)
	return w.shutCall(append(out, `"}`...), nil)
}

func (w *openAIStream) openCall(out []byte, e *event) []byte {
	out = append(w.open(out, e.choice), `"tool_calls":[{"index":`...)
	return strconv.AppendInt(out, int64(e.tool), 10)
}

func (w *openAIStream) shutCall(out []byte, sign lit) []byte {
	if sign != nil {
		out = append(out, `,"extra_content":{"google":{`...)
		out = append(appendText(out, "thought_signature", sign), "}}"...)
	}
	return w.shut(append(out, "}]"...), "null")
}

// start makes what all chunks have in common.
func (w *openAIStream) start(e *event) {
	b := append(w.head[:0], "data: {"...)
	b = openAIHead(b, w.o, e.id, e.name, e.created, "chat.completion.chunk")
	w.head = append(b, `,"choices":[`...)
	if w.tail = []byte("}]"); w.o.IncludeUsage {
		w.tail = append(w.tail, `,"usage":null`...)
	}
	w.tail = append(w.tail, "}\n\n"...)
}

// openAIHead appends the members that chunks and whole answers have in common.
func openAIHead(b []byte, o *answerContext, id, model lit, created int64, object string) []byte {
	if len(id) == 0 {
		id = literal("chatcmpl-" + o.RequestID)
	}
	b = appendText(b, "id", id)
	b = appendText(b, "object", lit(object))
	if created == 0 {
		created = o.Created
	}
	b = strconv.AppendInt(appendMember(b, "created"), created, 10)
	if o.Model != "" {
		model = literal(o.Model)
	}
	return appendText(b, "model", model)
}

// open begins a chunk of one choice, up to the inside of its delta.
func (w *openAIStream) open(out []byte, choice int) []byte {
	out = append(append(out, w.head...), `{"index":`...)
	out = strconv.AppendInt(out, int64(choice), 10)
	return append(out, `,"delta":{`...)
}

// shut ends a chunk; finish is JSON.
func (w *openAIStream) shut(out []byte, finish string) []byte {
	out = append(append(out, `},"finish_reason":`...), finish...)
	return append(out, w.tail...)
}

// delta writes a chunk of one string.
func (w *openAIStream) delta(out []byte, e *event, member string) []byte {
	out = append(w.open(out, e.choice), member...)
	out = append(append(out, e.text...), '"')
	if e.probs != nil {
		out = appendChatProbs(append(out, `},"logprobs":`...), e.probs)
		return append(append(out, `,"finish_reason":null`...), w.tail...)
	}
	return w.shut(out, "null")
}

func (w *openAIStream) end(out []byte) []byte {
	if w.o.IncludeUsage && w.usage.Told() {
		if w.head == nil {
			w.start(&event{})
		}
		out = append(append(out, w.head...), `],"usage":`...)
		out = append(appendOpenAIUsage(out, &w.usage), "}\n\n"...)
	}
	return append(out, "data: [DONE]\n\n"...)
}

// openAIFinish is the word for why a choice ended.
func openAIFinish(f finish, legacy bool) string {
	switch f {
	case finishLength, finishContext:
		return "length"
	case finishTools:
		if legacy {
			return "function_call"
		}
		return "tool_calls"
	case finishFilter, finishRefusal:
		return "content_filter"
	}
	return "stop"
}

func appendOpenAIUsage(b []byte, u *Usage) []byte {
	number := func(name string, n int) { b = strconv.AppendInt(append(b, name...), int64(n), 10) }
	number(`{"prompt_tokens":`, u.Prompt())
	number(`,"completion_tokens":`, u.Completion())
	number(`,"total_tokens":`, u.Prompt()+u.Completion())
	number(`,"prompt_tokens_details":{"cached_tokens":`, u.CacheRead)
	if u.Written() > 0 {
		number(`,"cache_write_tokens":`, u.Written())
	}
	if u.AudioInput > 0 {
		number(`,"audio_tokens":`, u.AudioInput)
	}
	number(`},"completion_tokens_details":{"reasoning_tokens":`, u.Reasoning)
	if u.AudioOutput > 0 {
		number(`,"audio_tokens":`, u.AudioOutput)
	}
	return append(b, "}}"...)
}

// openAIWhole writes a whole answer.
type openAIWhole struct {
	o *answerContext
	g gathered
}

func newOpenAIWhole(o *answerContext) answerWriter { return &openAIWhole{o: o} }

func (w *openAIWhole) write(out []byte, e *event) []byte {
	switch e.kind {
	case evError:
		return append(out, e.err.Body(OpChat, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	w.g.take(e)
	return out
}

func (w *openAIWhole) end(out []byte) []byte {
	g := &w.g
	out = openAIHead(append(out, '{'), w.o, g.id, g.model, g.created, "chat.completion")
	out = append(out, `,"choices":[`...)
	for i := range g.choices {
		c := &g.choices[i]
		out = append(appendComma(out), `{"index":`...)
		out = strconv.AppendInt(out, int64(i), 10)
		out = append(out, `,"message":{"role":"assistant"`...)
		out = openAIMessage(out, w.o, c)
		out = append(out, `},"logprobs":`...)
		if probs := c.probs(); probs != nil {
			out = appendChatProbs(out, probs)
		} else {
			out = append(out, "null"...)
		}
		out = append(out, `,"finish_reason":"`...)
		out = append(append(out, openAIFinish(c.reason, w.o.legacy)...), `"}`...)
	}
	out = append(out, ']')
	if g.usage.Told() {
		out = appendOpenAIUsage(append(out, `,"usage":`...), &g.usage)
	}
	return append(out, '}', '\n')
}

// openAIMessage appends the members of a message after its role.
func openAIMessage(out []byte, o *answerContext, c *gatheredChoice) []byte {
	legacy := o.legacy
	out = joinBlocks(append(out, `,"content":`...), c, evText)
	out = joinBlocks(append(out, `,"refusal":`...), c, evRefusal)
	signed := c.has(evRedacted)
	if c.has(evReasoning) {
		out = joinBlocks(append(out, `,"reasoning_content":`...), c, evReasoning)
		for i := range c.blocks {
			signed = signed || c.blocks[i].kind == evReasoning && c.blocks[i].sign != nil
		}
	}
	if signed {
		out = append(out, `,"thinking_blocks":[`...)
		for i := range c.blocks {
			if b := &c.blocks[i]; b.kind == evRedacted || b.kind == evReasoning && b.sign != nil {
				out = appendThinking(out, b.kind == evRedacted, b.text, b.sign)
			}
		}
		out = append(out, ']')
	}
	if c.has(evMedia) {
		out = appendMediaOf(out, o, c)
	}
	if !c.has(evToolStart) {
		return out
	}
	if !legacy {
		out = append(out, `,"tool_calls":[`...)
	}
	for i := range c.blocks {
		b := &c.blocks[i]
		if b.kind != evToolStart {
			continue
		}
		args := b.text
		if len(args) == 0 {
			args = lit("{}")
		}
		if legacy { // this form has one call
			out = append(out, `,"function_call":{`...)
			return append(appendText(appendText(out, "name", b.name), "arguments", args), '}')
		}
		out = appendText(append(appendComma(out), '{'), "id", b.id)
		out = append(out, `,"type":"function","function":{`...)
		out = append(appendText(appendText(out, "name", b.name), "arguments", args), '}')
		if b.sign != nil {
			out = append(out, `,"extra_content":{"google":{`...)
			out = append(appendText(out, "thought_signature", b.sign), "}}"...)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

// joinBlocks appends the text of all blocks of a kind as one string, or null.
func joinBlocks(out []byte, c *gatheredChoice, kind eventKind) []byte {
	if !c.has(kind) {
		return append(out, "null"...)
	}
	out = append(out, '"')
	for i := range c.blocks {
		if c.blocks[i].kind == kind {
			out = append(out, c.blocks[i].text...)
		}
	}
	return append(out, '"')
}
