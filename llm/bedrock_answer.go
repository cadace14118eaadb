// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads answers of Bedrock's Converse, whole and as a stream of frames.
// Usage comes after the event that ends the message.

// bedrockEvents reads one answer.
type bedrockEvents struct {
	started bool
	blocks  []bedrockBlock
	calls   int
	answers int // calls of answerTool
	stopped bool
	used    bool
}

// bedrockBlock is what a block of the stream is.
type bedrockBlock struct {
	call   bool
	answer bool // its arguments are the text of the answer
	text   bool // something of it has come
	tool   int
}

func bedrockAnswer(_ Quirks, stream bool) answerReader {
	if stream {
		return &frameReader{reader: &bedrockEvents{}}
	}
	return newReader(&bedrockEvents{}, false)
}

// bedrockStatus are the statuses that stand for exceptions.
var bedrockStatus = map[string]int{
	"validationexception": 400, "accessdeniedexception": 403, "resourcenotfoundexception": 404, "modeltimeoutexception": 408,
	"modelerrorexception": 424, "modelstreamerrorexception": 424, "throttlingexception": 429, "modelnotreadyexception": 429,
	"servicequotaexceededexception": 429, "internalserverexception": 500, "serviceunavailableexception": 503,
}

func (r *bedrockEvents) frame(m *frame, to *relay) {
	switch string(m.message) {
	case "event":
		r.event(m.event, m.payload, to)
	case "exception":
		r.exception(string(m.exception), m.payload, to)
	case "error":
		err := &Error{Status: 500, Type: string(m.code), Message: string(m.text)}
		if err.Message == "" {
			err.Message = "error without a message"
		}
		to.emit(&event{kind: evError, err: err})
	default:
		to.fail("the server sent a frame of an unknown type")
	}
}

// exception ends the answer with the error of a frame.
func (r *bedrockEvents) exception(name string, payload []byte, to *relay) {
	status := bedrockStatus[strings.ToLower(name)]
	if status == 0 {
		status = 500
	}
	err := ReadError(DialectBedrock, status, payload)
	if name != "" {
		err.Type = cut(name, 128)
	}
	to.emit(&event{kind: evError, err: err})
}

func (r *bedrockEvents) event(kind, data []byte, to *relay) {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		to.fail("the server sent an event that is no JSON object")
		return
	}
	r.start(to)
	e := bedrockMembers{}
	e.read(&s, data)
	if !s.Finish() {
		to.fail("the server sent an event that is no JSON object")
		return
	}
	if e.index >= maxCalls {
		to.fail("the server sent too many blocks")
		return
	}
	switch string(kind) {
	case "contentBlockStart":
		if e.has.body {
			r.begin(&e, data, to)
		}
	case "contentBlockDelta":
		if e.has.body {
			r.delta(&e.body, data, r.block(e.index), to)
		}
	case "contentBlockStop":
		r.stop(r.block(e.index), to)
	case "messageStop":
		r.finish(e.reason, to)
	case "metadata":
		if e.usage.Told() {
			to.emit(&event{kind: evUsage, usage: e.usage})
		}
		r.used = true
		if r.stopped {
			to.emit(&event{kind: evEnd})
		}
	}
}

// bedrockMembers are the members of an event, or of a whole answer.
type bedrockMembers struct {
	index  int
	body   jsonedit.Scanner // start or delta
	output jsonedit.Scanner
	reason lit
	usage  Usage
	has    struct{ body, output bool }
}

func (e *bedrockMembers) read(s *jsonedit.Scanner, data []byte) {
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		switch string(key.Of(data)) {
		case "contentBlockIndex":
			e.index, _ = count(s, data, 0, false)
		case "start", "delta":
			e.body, e.has.body = *s, s.Peek() == jsonedit.Object
			s.Skip()
		case "output":
			e.output, e.has.output = *s, s.Peek() == jsonedit.Object
			s.Skip()
		case "stopReason":
			if t, ok := s.Text(); ok {
				e.reason = t.Of(data)
			} else {
				s.Skip()
			}
		case "usage":
			e.usage = bedrockUsage(s, data)
		default:
			s.Skip()
		}
	}
}

func (r *bedrockEvents) start(to *relay) {
	if !r.started {
		r.started = true
		to.emit(&event{kind: evStart})
	}
}

// block is what is known of a block.
func (r *bedrockEvents) block(index int) *bedrockBlock {
	for len(r.blocks) <= index {
		r.blocks = append(r.blocks, bedrockBlock{})
	}
	return &r.blocks[index]
}

// begin reads the start of a block; those of text mostly have none.
func (r *bedrockEvents) begin(e *bedrockMembers, data []byte, to *relay) {
	s := e.body
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if string(key.Of(data)) == "toolUse" && s.Peek() == jsonedit.Object {
			r.call(&s, data, r.block(e.index), to)
		} else {
			s.Skip()
		}
	}
}

// call reads toolUse, of a start or of a whole answer, which has the input too.
func (r *bedrockEvents) call(s *jsonedit.Scanner, data []byte, b *bedrockBlock, to *relay) {
	var id, name lit
	var input []byte
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch member := string(key.Of(data)); {
		case member == "input" && s.Peek() == jsonedit.Object:
			input = s.Skip().Of(data)
		default:
			t, ok := s.Text()
			switch {
			case !ok:
				s.Skip()
			case member == "toolUseId":
				id = t.Of(data)
			case member == "name":
				name = t.Of(data)
			}
		}
	}
	if b.call || len(name) == 0 {
		return
	}
	if b.call = true; string(name) == answerTool {
		b.answer = true
		r.answers++
	} else {
		b.tool = r.calls
		r.calls++
		to.emit(&event{kind: evToolStart, tool: b.tool, id: id, name: name})
	}
	if input != nil {
		r.input(b, appendEscape(nil, input), to)
	}
}

// input tells a piece of the arguments of a call.
func (r *bedrockEvents) input(b *bedrockBlock, text lit, to *relay) {
	if len(text) == 0 {
		return
	}
	kind := evToolArgs
	if b.answer {
		kind = evText
	}
	b.text = true
	to.emit(&event{kind: kind, tool: b.tool, text: text})
}

func (r *bedrockEvents) stop(b *bedrockBlock, to *relay) {
	switch {
	case b.call && b.answer && !b.text:
		r.input(b, lit("{}"), to)
	case b.call && !b.answer:
		to.emit(&event{kind: evToolEnd, tool: b.tool})
	}
}

// delta reads a delta, or a block of a whole answer.
func (r *bedrockEvents) delta(s *jsonedit.Scanner, data []byte, b *bedrockBlock, to *relay) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		switch name := string(key.Of(data)); {
		case name == "text" && s.Peek() == jsonedit.String:
			t, _ := s.Text()
			to.emit(&event{kind: evText, text: t.Of(data)})
		case name == "toolUse" && s.Peek() == jsonedit.Object && b.call:
			r.toolDelta(s, data, b, to)
		case name == "toolUse" && s.Peek() == jsonedit.Object:
			r.call(s, data, b, to)
		case name == "reasoningContent" && s.Peek() == jsonedit.Object:
			r.reasoning(s, data, to)
		case name == "citationsContent" && s.Peek() == jsonedit.Object:
			r.cited(s, data, to)
		default:
			s.Skip()
		}
	}
}

func (r *bedrockEvents) toolDelta(s *jsonedit.Scanner, data []byte, b *bedrockBlock, to *relay) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if t, ok := s.Text(); !ok {
			s.Skip()
		} else if string(key.Of(data)) == "input" {
			r.input(b, t.Of(data), to)
		}
	}
}

// reasoning reads text, signature and redactedContent, which stand in an object
// of their own in whole answers.
func (r *bedrockEvents) reasoning(s *jsonedit.Scanner, data []byte, to *relay) {
	var text, sign, redacted lit
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		name := string(key.Of(data))
		if name == "reasoningText" && s.Peek() == jsonedit.Object {
			r.reasoning(s, data, to)
			continue
		}
		t, ok := s.Text()
		switch {
		case !ok:
			s.Skip()
		case name == "text":
			text = t.Of(data)
		case name == "signature":
			sign = t.Of(data)
		case name == "redactedContent" || name == "data":
			redacted = t.Of(data)
		}
	}
	if len(text) > 0 {
		to.emit(&event{kind: evReasoning, text: text})
	}
	if len(sign) > 0 {
		to.emit(&event{kind: evSignature, text: sign})
	}
	if len(redacted) > 0 {
		to.emit(&event{kind: evRedacted, text: redacted})
	}
}

// cited reads text that has citations.
func (r *bedrockEvents) cited(s *jsonedit.Scanner, data []byte, to *relay) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if string(key.Of(data)) != "content" || !s.Array() {
			s.Skip()
			continue
		}
		for s.NextElement() {
			if !s.Object() {
				s.Skip()
				continue
			}
			for {
				key, ok := s.NextMember()
				if !ok {
					break
				}
				if t, ok := s.Text(); !ok {
					s.Skip()
				} else if string(key.Of(data)) == "text" {
					to.emit(&event{kind: evText, text: t.Of(data)})
				}
			}
		}
	}
}

func (r *bedrockEvents) finish(reason lit, to *relay) {
	if r.stopped {
		return
	}
	r.stopped = true
	e := event{kind: evFinish, vendor: reason}
	switch string(reason) {
	case "end_turn", "":
	case "stop_sequence":
		e.reason = finishSequence
	case "max_tokens":
		e.reason = finishLength
	case "model_context_window_exceeded":
		e.reason = finishContext
	case "tool_use":
		if e.reason = finishTools; r.calls == 0 && r.answers > 0 {
			e.reason = finishStop
		}
	case "guardrail_intervened", "content_filtered":
		e.reason = finishFilter
	case "refusal":
		e.reason = finishRefusal
	default:
		e.reason = finishOther
	}
	to.emit(&e)
}

// end is the end of the stream. Some servers send no usage.
func (r *bedrockEvents) end(to *relay) {
	if r.stopped {
		to.emit(&event{kind: evEnd})
	}
}

func (r *bedrockEvents) whole(body []byte, to *relay) {
	s := jsonedit.NewScanner(body, 0)
	e := bedrockMembers{}
	isObject := s.Object()
	if isObject {
		e.read(&s, body)
	}
	if !isObject || !s.Finish() {
		to.fail("the server's answer is no JSON object")
		return
	}
	if !e.has.output {
		if err := ReadError(DialectBedrock, 0, body); err.Message != "" && !strings.HasPrefix(err.Message, "the server") {
			to.emit(&event{kind: evError, err: err})
			return
		}
		to.fail("the server's answer has no output")
		return
	}
	r.start(to)
	r.output(&e.output, body, to)
	r.finish(e.reason, to)
	if e.usage.Told() {
		to.emit(&event{kind: evUsage, usage: e.usage})
	}
	to.emit(&event{kind: evEnd})
}

// output reads {"message":{"content":[…]}}.
func (r *bedrockEvents) output(s *jsonedit.Scanner, data []byte, to *relay) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		name := string(key.Of(data))
		switch {
		case name == "message" && s.Peek() == jsonedit.Object:
			r.output(s, data, to)
		case name == "content" && s.Array():
			for i := 0; s.NextElement(); i++ {
				if s.Peek() != jsonedit.Object || i >= maxCalls {
					s.Skip()
					continue
				}
				b := r.block(i)
				r.delta(s, data, b, to)
				r.stop(b, to)
			}
		default:
			s.Skip()
		}
	}
}
