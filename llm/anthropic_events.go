// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file writes answers of Anthropic's Messages, whole and as a stream.

// anthropicStream writes events. Its blocks follow one another, so what comes
// for another block while the arguments of a call are incomplete has to wait.
type anthropicStream struct {
	o       *answerContext
	begun   bool
	index   int       // of the next block
	open    eventKind // of the open block; 0: none
	tool    int       // the call that the open block is
	args    jsonTrack // of the open call
	waiting []waitingBlock
	size    int // bytes of those
	usage   Usage
	reason  finish
	stop    lit
}

// waitingBlock is a block that another keeps waiting.
type waitingBlock struct {
	kind  eventKind
	tool  int
	id    lit
	name  lit
	text  lit
	ended bool
}

// maxWaiting bounds what waits, in bytes.
const maxWaiting = 16 << 20

func newAnthropicStream(o *answerContext) answerWriter { return &anthropicStream{o: o} }

func (w *anthropicStream) write(out []byte, e *event) []byte {
	switch e.kind {
	case evPing:
		return append(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
	case evError:
		return append(out, e.err.StreamError(OpMessages, w.o.RequestID)...)
	case evUsage:
		w.usage = e.usage
		return out
	case evStart:
		return w.start(out, e.id, e.name)
	}
	if e.choice > 0 {
		return out // this dialect has one choice
	}
	if !w.begun {
		out = w.start(out, nil, nil)
	}
	switch e.kind {
	case evFinish:
		w.reason, w.stop = e.reason, clone(e.text)
		return out
	case evEnd:
		return w.end(out)
	}
	return w.content(out, e)
}

// content writes an event of a block, or keeps it until its turn.
func (w *anthropicStream) content(out []byte, e *event) []byte {
	mine := w.open == evToolStart && (e.kind == evToolArgs || e.kind == evToolEnd) && e.tool == w.tool
	if w.open == evToolStart && !mine && (len(w.waiting) > 0 || !w.args.complete()) {
		w.wait(e)
		if w.size += len(e.text); w.size < maxWaiting {
			return out
		}
		// So much will not come to its turn: better broken than without end.
		for len(w.waiting) > 0 {
			out = w.next(out)
		}
		return out
	}
	out = w.now(out, e)
	for w.open == 0 && len(w.waiting) > 0 || w.open == evToolStart && w.args.complete() && len(w.waiting) > 0 {
		out = w.next(out)
	}
	return out
}

// wait keeps an event for later.
func (w *anthropicStream) wait(e *event) {
	kind := e.kind
	if kind == evRefusal {
		kind = evText
	}
	last := len(w.waiting) - 1
	switch kind {
	case evToolArgs, evToolEnd:
		for i := last; i >= 0; i-- {
			if b := &w.waiting[i]; b.kind == evToolStart && b.tool == e.tool {
				b.text = append(b.text, e.text...)
				b.ended = b.ended || kind == evToolEnd
				return
			}
		}
	case evText, evReasoning:
		if last < 0 || w.waiting[last].kind != kind {
			w.waiting = append(w.waiting, waitingBlock{kind: kind})
			last++
		}
		w.waiting[last].text = append(w.waiting[last].text, e.text...)
	default:
		w.waiting = append(w.waiting, waitingBlock{kind: kind, tool: e.tool, id: clone(e.id), name: clone(e.name), text: clone(e.text)})
	}
}

// next writes the block that has waited longest.
func (w *anthropicStream) next(out []byte) []byte {
	b := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.size -= len(b.text)
	e := event{kind: b.kind, tool: b.tool, id: b.id, name: b.name, text: b.text}
	out = w.now(out, &e)
	if b.kind == evToolStart {
		if len(b.text) > 0 {
			out = w.now(out, &event{kind: evToolArgs, tool: b.tool, text: b.text})
		}
		if b.ended {
			out = w.now(out, &event{kind: evToolEnd, tool: b.tool})
		}
	}
	return out
}

// now writes an event, whose turn it is.
func (w *anthropicStream) now(out []byte, e *event) []byte {
	switch e.kind {
	case evText, evRefusal:
		if w.open != evText {
			out = w.begin(w.shut(out), evText)
			out = append(out, `{"type":"text","text":""}}`...)
			out = append(out, "\n\n"...)
		}
		return w.delta(out, `"text_delta","text":"`, e.text)
	case evReasoning:
		if w.open != evReasoning {
			out = w.begin(w.shut(out), evReasoning)
			out = append(out, `{"type":"thinking","thinking":"","signature":""}}`...)
			out = append(out, "\n\n"...)
		}
		return w.delta(out, `"thinking_delta","thinking":"`, e.text)
	case evSignature:
		if w.open != evReasoning {
			out = w.begin(w.shut(out), evReasoning)
			out = append(out, `{"type":"thinking","thinking":"","signature":""}}`...)
			out = append(out, "\n\n"...)
		}
		return w.shut(w.delta(out, `"signature_delta","signature":"`, e.text))
	case evRedacted:
		out = w.begin(w.shut(out), evRedacted)
		out = append(appendText(append(out, `{"type":"redacted_thinking"`...), "data", e.text), "}}\n\n"...)
		return w.shut(out)
	case evToolStart:
		out = w.begin(w.shut(out), evToolStart)
		w.tool, w.args = e.tool, jsonTrack{}
		out = appendText(append(out, `{"type":"tool_use"`...), "id", anthropicID(e.id))
		out = appendText(out, "name", e.name)
		return append(out, `,"input":{}}}`+"\n\n"...)
	case evToolArgs:
		if w.open != evToolStart || w.tool != e.tool || len(e.text) == 0 {
			return out // of a call whose block is over
		}
		w.args.feed(e.text)
		return w.delta(out, `"input_json_delta","partial_json":"`, e.text)
	case evToolEnd:
		if w.open == evToolStart && w.tool == e.tool {
			return w.shut(out)
		}
	}
	return out
}

func (w *anthropicStream) start(out []byte, id, model lit) []byte {
	w.begun = true
	out = append(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{"...)
	out = anthropicHead(out, w.o, id, model)
	out = append(out, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	return append(appendAnthropicUsage(out, &w.usage), "}}\n\n"...)
}

// anthropicHead appends the members that begin a message.
func anthropicHead(b []byte, o *answerContext, id, model lit) []byte {
	const prefix = "msg_"
	switch {
	case len(id) == 0:
		id = literal(prefix + o.RequestID)
	case !bytes.HasPrefix(id, []byte(prefix)):
		rest := bytes.TrimPrefix(id, []byte("chatcmpl-"))
		id = append(lit(prefix), rest...)
	}
	b = append(appendText(b, "id", id), `,"type":"message","role":"assistant"`...)
	if o.Model != "" {
		model = literal(o.Model)
	}
	return appendText(b, "model", model)
}

// begin opens a block, up to what describes it.
func (w *anthropicStream) begin(out []byte, kind eventKind) []byte {
	w.open = kind
	out = append(out, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	return append(appendInt(out, w.index), `,"content_block":`...)
}

func (w *anthropicStream) delta(out []byte, head string, text lit) []byte {
	out = append(out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	out = append(append(appendInt(out, w.index), `,"delta":{"type":`...), head...)
	return append(append(out, text...), "\"}}\n\n"...)
}

// shut ends the open block, if there is one.
func (w *anthropicStream) shut(out []byte) []byte {
	if w.open == 0 {
		return out
	}
	w.open = 0
	out = append(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	out = append(appendInt(out, w.index), "}\n\n"...)
	w.index++
	return out
}

func (w *anthropicStream) end(out []byte) []byte {
	for len(w.waiting) > 0 {
		out = w.next(out)
	}
	out = w.shut(out)
	out = append(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	out = append(appendAnthropicStop(out, w.reason, w.stop), `},"usage":`...)
	out = append(appendAnthropicUsage(out, &w.usage), "}\n\n"...)
	return append(out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

func appendAnthropicStop(b []byte, f finish, stop lit) []byte {
	b = appendText(b, "stop_reason", lit(anthropicFinish(f)))
	if len(stop) > 0 {
		return appendText(b, "stop_sequence", stop)
	}
	return append(b, `,"stop_sequence":null`...)
}

// anthropicFinish is the word for why an answer ended.
func anthropicFinish(f finish) string {
	switch f {
	case finishSequence:
		return "stop_sequence"
	case finishLength:
		return "max_tokens"
	case finishTools:
		return "tool_use"
	case finishFilter, finishRefusal:
		return "refusal"
	case finishPause:
		return "pause_turn"
	case finishContext:
		return "model_context_window_exceeded"
	}
	return "end_turn"
}

func appendAnthropicUsage(b []byte, u *Usage) []byte {
	b = appendInt(append(b, `{"input_tokens":`...), u.Prompt()-u.CacheRead-u.Written())
	b = appendInt(append(b, `,"cache_creation_input_tokens":`...), u.Written())
	b = appendInt(append(b, `,"cache_read_input_tokens":`...), u.CacheRead)
	if u.CacheWrite1h > 0 {
		b = appendInt(append(b, `,"cache_creation":{"ephemeral_5m_input_tokens":`...), u.CacheWrite)
		b = append(appendInt(append(b, `,"ephemeral_1h_input_tokens":`...), u.CacheWrite1h), '}')
	}
	b = appendInt(append(b, `,"output_tokens":`...), u.Completion())
	return append(b, '}')
}

// jsonTrack follows JSON text that comes in pieces, each the text of a literal,
// to tell when a value is complete.
type jsonTrack struct {
	depth    int
	inString bool
	escaped  bool
	begun    bool
}

func (t *jsonTrack) complete() bool { return t.begun && t.depth <= 0 }

func (t *jsonTrack) feed(piece lit) {
	var buf [256]byte
	for rest := []byte(piece); len(rest) > 0; {
		before := len(rest)
		text, left := jsonedit.Unescape(buf[:0], rest)
		if rest = left; len(rest) == before {
			return
		}
		for _, c := range text {
			switch {
			case t.escaped:
				t.escaped = false
			case t.inString:
				t.escaped = c == '\\'
				t.inString = c != '"'
			case c == '"':
				t.inString = true
			case c == '{' || c == '[':
				t.depth++
				t.begun = true
			case c == '}' || c == ']':
				t.depth--
			}
		}
	}
}

// anthropicWhole writes a whole answer.
type anthropicWhole struct {
	o *answerContext
	g gathered
}

func newAnthropicWhole(o *answerContext) answerWriter { return &anthropicWhole{o: o} }

func (w *anthropicWhole) write(out []byte, e *event) []byte {
	switch e.kind {
	case evError:
		return append(out, e.err.Body(OpMessages, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	w.g.take(e)
	return out
}

func (w *anthropicWhole) end(out []byte) []byte {
	g := &w.g
	whole := len(out)
	out = anthropicHead(append(out, '{'), w.o, g.id, g.model)
	out = append(out, `,"content":[`...)
	c := gatheredChoice{}
	if len(g.choices) > 0 {
		c = g.choices[0]
	}
	for i := range c.blocks {
		b := &c.blocks[i]
		switch b.kind {
		case evText, evRefusal:
			out = append(appendComma(out), `{"type":"text"`...)
			out = append(appendText(out, "text", b.text), '}')
		case evReasoning, evRedacted:
			out = appendThinking(out, b.kind == evRedacted, b.text, b.sign)
		case evToolStart:
			args, ok := b.arguments()
			if !ok {
				w.o.fault = "the server called a tool with arguments that are no JSON object"
				return append(out[:whole], UpstreamFailed(w.o.fault).Body(OpMessages, w.o.RequestID)...)
			}
			out = append(appendComma(out), `{"type":"tool_use"`...)
			out = appendText(appendText(out, "id", anthropicID(b.id)), "name", b.name)
			out = append(append(append(out, `,"input":`...), args...), '}')
		}
	}
	out = append(out, ']')
	out = appendAnthropicStop(out, c.reason, c.stop)
	out = appendAnthropicUsage(append(out, `,"usage":`...), &g.usage)
	return append(out, '}', '\n')
}
