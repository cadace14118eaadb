// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "github.com/penstock/penstock/internal/jsonedit"

// This file reads answers of Anthropic's Messages.

// anthropicEvents reads one answer.
type anthropicEvents struct {
	blocks  []anthropicOpen // by the server's index
	calls   int             // tools called so far
	answers int             // calls of answerTool
	usage   anthropicUsage
	started bool
	said    bool // why it ended
}

// anthropicOpen is a block of the answer.
type anthropicOpen struct {
	kind eventKind // evToolStart, evText, evReasoning; 0: passed over
	tool int

	answer bool // its arguments are the text of the answer
	told   bool // some of them
}

func anthropicAnswer(_ Quirks, stream bool) answerReader {
	return newReader(&anthropicEvents{}, stream)
}

// anthropicFrame is what one event holds. The scanners stand at the values of
// those members that are there.
type anthropicFrame struct {
	kind                        jsonedit.Text
	index                       int
	message, block, delta       jsonedit.Scanner
	usage                       jsonedit.Scanner
	hasMessage, hasBlock        bool
	hasDelta, hasUsage, hasFail bool
}

// read reads an event. It says no if that is no JSON object.
func (f *anthropicFrame) read(data []byte) bool {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		return false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "type":
			if f.kind, ok = s.Text(); !ok {
				s.Skip()
			}
		case "index":
			if n, ok := s.Number(); ok {
				f.index, _ = jsonedit.Int(n.Of(data))
			} else {
				s.Skip()
			}
		case "message":
			f.message, f.hasMessage = s, s.Peek() == jsonedit.Object
			s.Skip()
		case "content_block":
			f.block, f.hasBlock = s, s.Peek() == jsonedit.Object
			s.Skip()
		case "delta":
			f.delta, f.hasDelta = s, s.Peek() == jsonedit.Object
			s.Skip()
		case "usage":
			f.usage, f.hasUsage = s, s.Peek() == jsonedit.Object
			s.Skip()
		case "error":
			f.hasFail = s.Peek() != jsonedit.Null
			s.Skip()
		default:
			s.Skip()
		}
	}
	return s.Finish()
}

func (r *anthropicEvents) event(kind, data []byte, to *relay) {
	var f anthropicFrame
	if !f.read(data) {
		if string(kind) == "error" {
			to.emit(&event{kind: evError, err: ReadError(DialectAnthropic, 0, data)})
			return
		}
		to.fail("the server sent an event that is no JSON object")
		return
	}
	switch string(f.kind.Of(data)) {
	case "content_block_delta":
		if f.hasDelta {
			r.delta(&f.delta, data, f.index, to)
		}
	case "message_start":
		if f.hasMessage {
			r.message(&f.message, data, false, to)
		}
	case "content_block_start":
		switch {
		case f.index < 0 || f.index >= maxCalls:
			to.fail("the server's answer has too many blocks")
		case f.hasBlock:
			r.block(&f.block, data, f.index, to)
		}
	case "content_block_stop":
		if f.index >= 0 && f.index < len(r.blocks) {
			r.stop(f.index, to)
		}
	case "message_delta":
		if f.hasUsage {
			r.usage.merge(&f.usage, data)
			to.emit(&event{kind: evUsage, usage: r.usage.usage()})
		}
		if f.hasDelta {
			r.ending(&f.delta, data, to)
		}
	case "message_stop":
		r.begin(to)
		r.finish(nil, nil, to)
		to.emit(&event{kind: evEnd})
	case "ping":
		to.emit(&event{kind: evPing})
	case "error":
		to.emit(&event{kind: evError, err: ReadError(DialectAnthropic, 0, data)})
	default:
		if f.hasFail {
			to.emit(&event{kind: evError, err: ReadError(DialectAnthropic, 0, data)})
		}
	}
}

// end comes without message_stop: the answer was cut off.
func (r *anthropicEvents) end(*relay) {}

func (r *anthropicEvents) begin(to *relay) {
	if !r.started {
		r.started = true
		to.emit(&event{kind: evStart})
	}
}

// message reads a message: what begins a stream, or a whole answer.
func (r *anthropicEvents) message(s *jsonedit.Scanner, data []byte, whole bool, to *relay) bool {
	var id, model, reason, stop jsonedit.Text
	var content jsonedit.Scanner
	has, hasUsage, failed := false, false, false
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		into := (*jsonedit.Text)(nil)
		switch string(key.Of(data)) {
		case "id":
			into = &id
		case "model":
			into = &model
		case "stop_reason":
			into = &reason
		case "stop_sequence":
			into = &stop
		case "content":
			content, has = *s, s.Peek() == jsonedit.Array
		case "usage":
			hasUsage = true
			r.usage.merge(s, data)
			continue
		case "error":
			failed = s.Peek() != jsonedit.Null
		}
		if t, ok := s.Text(); !ok {
			s.Skip()
		} else if into != nil {
			*into = t
		}
	}
	if s.Failed() {
		return false
	}
	if failed && whole {
		to.emit(&event{kind: evError, err: ReadError(DialectAnthropic, 0, data)})
		return true
	}
	if !r.started {
		r.started = true
		to.emit(&event{kind: evStart, id: id.Of(data), name: model.Of(data)})
	}
	if has {
		content.Array()
		for i := 0; content.NextElement(); i++ {
			if i >= maxCalls {
				to.fail("the server's answer has too many blocks")
				return true
			}
			if content.Peek() != jsonedit.Object {
				content.Skip()
				continue
			}
			r.block(&content, data, i, to)
			r.stop(i, to)
		}
	}
	if hasUsage {
		to.emit(&event{kind: evUsage, usage: r.usage.usage()})
	}
	if reason.Len() > 0 {
		r.finish(reason.Of(data), stop.Of(data), to)
	}
	return true
}

func (r *anthropicEvents) whole(body []byte, to *relay) {
	s := jsonedit.NewScanner(body, 0)
	if s.Peek() != jsonedit.Object || !r.message(&s, body, true, to) || !s.Finish() {
		to.fail("the server's answer is no JSON object")
		return
	}
	r.finish(nil, nil, to)
	to.emit(&event{kind: evEnd})
}

// block reads the beginning of a block, which may hold all of it.
func (r *anthropicEvents) block(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	var kind, text, thinking, sign, id, name, redacted jsonedit.Text
	var input jsonedit.Span
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		into := (*jsonedit.Text)(nil)
		switch string(key.Of(data)) {
		case "type":
			into = &kind
		case "text":
			into = &text
		case "thinking":
			into = &thinking
		case "signature":
			into = &sign
		case "data":
			into = &redacted
		case "id":
			into = &id
		case "name":
			into = &name
		case "input":
			input = s.Skip()
			continue
		}
		if t, ok := s.Text(); !ok {
			s.Skip()
		} else if into != nil {
			*into = t
		}
	}
	if s.Failed() {
		return
	}
	for len(r.blocks) <= index {
		r.blocks = append(r.blocks, anthropicOpen{})
	}
	b := &r.blocks[index]
	*b = anthropicOpen{}
	r.begin(to)
	switch string(kind.Of(data)) {
	case "text":
		b.kind = evText
		to.emit(&event{kind: evText, text: text.Of(data)})
	case "thinking":
		b.kind = evReasoning
		to.emit(&event{kind: evReasoning, text: thinking.Of(data)})
		if sign.Len() > 0 {
			to.emit(&event{kind: evSignature, text: sign.Of(data)})
		}
	case "redacted_thinking":
		to.emit(&event{kind: evRedacted, text: redacted.Of(data)})
	case "tool_use":
		if b.kind, b.tool = evToolStart, r.calls; string(name.Of(data)) == answerTool {
			b.answer = true
			r.answers++
			if raw := input.Of(data); len(raw) > 2 && isObject(raw) && !emptyObject(raw) {
				b.told = true
				to.emit(&event{kind: evText, text: appendEscape(nil, raw)})
			}
			return
		}
		r.calls++
		to.emit(&event{kind: evToolStart, tool: b.tool, id: id.Of(data), name: name.Of(data)})
		if raw := input.Of(data); len(raw) > 2 && isObject(raw) && !emptyObject(raw) {
			to.emit(&event{kind: evToolArgs, tool: b.tool, text: appendEscape(nil, raw)})
		}
	}
}

// emptyObject says that an object has no member.
func emptyObject(raw []byte) bool {
	s := jsonedit.NewScanner(raw, 1)
	s.Object()
	_, some := s.NextMember()
	return !some
}

func (r *anthropicEvents) stop(index int, to *relay) {
	b := &r.blocks[index]
	switch {
	case b.kind != evToolStart:
		return
	case b.answer && !b.told:
		to.emit(&event{kind: evText, text: lit("{}")})
	case !b.answer:
		to.emit(&event{kind: evToolEnd, tool: b.tool})
	}
	b.kind = 0
}

func (r *anthropicEvents) delta(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	e := event{}
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		kind := eventKind(0)
		switch string(key.Of(data)) {
		case "text":
			kind = evText
		case "thinking":
			kind = evReasoning
		case "signature":
			kind = evSignature
		case "partial_json":
			kind = evToolArgs
		}
		if t, ok := s.Text(); !ok {
			s.Skip()
		} else if kind != 0 && t.Len() > 0 {
			e.kind, e.text = kind, t.Of(data)
		}
	}
	if e.kind == 0 {
		return
	}
	r.begin(to)
	if e.kind == evToolArgs {
		if index < 0 || index >= len(r.blocks) || r.blocks[index].kind != evToolStart {
			return // of a tool that the server runs
		}
		if b := &r.blocks[index]; b.answer {
			e.kind, b.told = evText, true
		} else {
			e.tool = b.tool
		}
	}
	to.emit(&e)
}

// ending reads why the answer ends.
func (r *anthropicEvents) ending(s *jsonedit.Scanner, data []byte, to *relay) {
	var reason, stop jsonedit.Text
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		into := (*jsonedit.Text)(nil)
		switch string(key.Of(data)) {
		case "stop_reason":
			into = &reason
		case "stop_sequence":
			into = &stop
		}
		if t, ok := s.Text(); !ok {
			s.Skip()
		} else if into != nil {
			*into = t
		}
	}
	if reason.Len() > 0 {
		r.begin(to)
		r.finish(reason.Of(data), stop.Of(data), to)
	}
}

// finish tells why the answer ends, once.
func (r *anthropicEvents) finish(reason, stop lit, to *relay) {
	if r.said {
		return
	}
	r.said = true
	e := event{kind: evFinish, vendor: reason, text: stop}
	switch string(reason) {
	case "", "end_turn":
	case "max_tokens":
		e.reason = finishLength
	case "stop_sequence":
		e.reason = finishSequence
	case "tool_use":
		if e.reason = finishTools; r.calls == 0 && r.answers > 0 {
			e.reason = finishStop
		}
	case "pause_turn":
		e.reason = finishPause
	case "refusal":
		e.reason = finishRefusal
	case "model_context_window_exceeded":
		e.reason = finishContext
	default:
		e.reason = finishOther
	}
	to.emit(&e)
}
