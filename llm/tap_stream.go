// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
	"github.com/penstock/penstock/internal/sse"
)

func (t *Tap) feedStream(in []byte) {
	if t.sse.Feed(in) == 1 && !t.dropped {
		t.pass(in[:1])
	}
	for {
		e, ok := t.sse.Next()
		if !ok {
			return
		}
		t.event(&e)
	}
}

func (t *Tap) closeStream() {
	if e, ok := t.sse.Close(); ok {
		t.event(&e)
	}
}

// pass puts bytes into the output, where there is one.
func (t *Tap) pass(b []byte) {
	if t.edits {
		t.out = append(t.out, b...)
	}
}

// event reads one event and passes it on, edited or not.
func (t *Tap) event(e *sse.Event) {
	t.dropped = false
	if !e.HasData || e.Over {
		t.pass(e.Raw)
		return
	}
	data := bytes.TrimSpace(e.Data)
	if len(data) == 0 {
		t.pass(e.Raw)
		return
	}
	if string(data) == "[DONE]" {
		t.found.finished = true
		t.pass(e.Raw)
		return
	}
	c := t.read(e)
	if string(e.Type) == "error" && !c.failed {
		t.found.fail(c.message(e.Data))
	}
	switch {
	case !c.valid:
		t.pass(e.Raw)
	case t.drop && c.usage && c.noChoices:
		t.dropped = true
	case t.renames(&c, e.Data):
		t.pass(e.Raw[:e.RawOffset(c.model.Start)])
		t.pass(t.model)
		t.pass(e.Raw[e.RawOffset(c.model.End-1)+1:])
	default:
		t.pass(e.Raw)
	}
}

// renames says that the model name in the chunk is to be replaced.
func (t *Tap) renames(c *chunk, data []byte) bool {
	return t.model != nil && c.model.Len() > 0 && !bytes.Equal(c.model.Of(data), t.model)
}

// read reads the data of an event.
func (t *Tap) read(e *sse.Event) (c chunk) {
	before := t.found
	switch t.op {
	case OpMessages:
		c.messages(t, e.Data)
	case OpGenerate:
		c.generate(t, e.Data)
	default:
		c.read(t, e.Data)
	}
	if !c.valid {
		t.found.finish = before.finish // half an event is no end
	}
	if t.found.finish != before.finish || t.found.served != before.served {
		t.pattern.before = t.pattern.before[:0] // its events would set them back
	}
	plain := c.valid && !c.usage && !c.failed && !c.noChoices && t.found.finish == before.finish && len(e.Type) == 0
	if plain && t.found.tokens == before.tokens+1 && (t.op == OpChat || t.op == OpCompletions) {
		t.learn(e, &c)
	}
	return c
}

// chunk is what one event holds.
type chunk struct {
	valid     bool
	model     jsonedit.Span // the literal to edit
	usage     bool          // there is a usage object
	noChoices bool          // choices is there and empty
	failed    bool          // there is an error
	text      jsonedit.Text // the message member
}

// message is the text of an error event that has no error member.
func (c *chunk) message(data []byte) string {
	if c.text.Len() > 0 {
		return c.text.Value(data)
	}
	return string(data[:min(len(data), maxFailed)])
}

// read reads the data of an event. Data that is not a JSON object tells
// nothing.
func (c *chunk) read(t *Tap, data []byte) {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		return
	}
	a := &t.found
	var kind jsonedit.Text
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "model":
			if name := a.readModel(&s, data); name.Start > 0 {
				c.model = name.Quoted()
			}
		case "choices":
			c.choices(a, &s, data)
		case "usage":
			c.usage = s.Peek() == jsonedit.Object
			a.readUsage(&s, data)
		case "service_tier":
			readText(&s, data, &a.tier)
		case "error":
			c.failed = s.Peek() != jsonedit.Null
			a.readError(&s, data)
		case "type":
			if kind, ok = s.Text(); !ok {
				s.Skip()
			}
		case "message":
			if c.text, ok = s.Text(); !ok {
				s.Skip()
			}
		case "response":
			if t.op == OpResponses {
				c.response(a, &s, data)
			} else {
				s.Skip()
			}
		default:
			s.Skip()
		}
	}
	c.valid = s.Finish()
	switch {
	case !c.valid:
	case t.op == OpResponses:
		c.responsesEvent(a, kind.Of(data), data)
	case t.op >= OpImages:
		c.mediaEvent(a, kind.Of(data))
	}
}

// responsesEvent acts on the type of an event of the Responses API. Only the
// last event has usage; there is no [DONE].
func (c *chunk) responsesEvent(a *answer, kind, data []byte) {
	switch string(kind) {
	case "response.completed", "response.incomplete":
		a.finished = true
	case "response.failed", "response.cancelled":
		a.finished = true
		a.fail("the response ended as " + string(kind[len("response."):]))
	case "error":
		if !c.failed {
			c.failed = true
			a.fail(c.message(data))
		}
	default:
		if bytes.HasSuffix(kind, []byte(".delta")) {
			a.tokens++
		}
	}
}

// response reads the response object inside an event of the Responses API.
func (c *chunk) response(a *answer, s *jsonedit.Scanner, data []byte) {
	if !s.Object() {
		s.Skip()
		return
	}
	incomplete := false
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		switch string(key.Of(data)) {
		case "model":
			if name := a.readModel(s, data); name.Start > 0 {
				c.model = name.Quoted()
			}
		case "usage":
			a.readUsage(s, data)
		case "service_tier":
			readText(s, data, &a.tier)
		case "error":
			a.readError(s, data)
		case "status":
			if incomplete {
				s.Skip()
			} else {
				a.readStatus(s, data)
			}
		case "incomplete_details":
			incomplete = s.Peek() == jsonedit.Object
			a.readReason(s, data)
		default:
			s.Skip()
		}
	}
}

// choices counts the choices that carry content.
func (c *chunk) choices(a *answer, s *jsonedit.Scanner, data []byte) {
	if !s.Array() {
		s.Skip()
		return
	}
	c.noChoices = true
	for s.NextElement() {
		c.noChoices = false
		if !s.Object() {
			s.Skip()
			continue
		}
		content, first := false, true
		var finish jsonedit.Text
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			switch string(key.Of(data)) {
			case "delta":
				content = delta(s, data) || content
			case "text":
				content = filled(s) || content
			case "index":
				if index, ok := s.Number(); ok {
					first = string(index.Of(data)) == "0"
				} else {
					s.Skip()
				}
			case "finish_reason":
				if finish, ok = s.Text(); !ok {
					s.Skip()
				}
			default:
				s.Skip()
			}
		}
		if content {
			a.tokens++
		}
		if first && finish.Len() > 0 && string(finish.Of(data)) != a.finish {
			a.finish = finish.Value(data)
		}
	}
}

// delta says whether a delta carries output: text, reasoning or a call.
func delta(s *jsonedit.Scanner, data []byte) bool {
	if !s.Object() {
		s.Skip()
		return false
	}
	content := false
	for {
		key, ok := s.NextMember()
		if !ok {
			return content
		}
		switch string(key.Of(data)) {
		case "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", "audio":
			content = filled(s) || content
		default:
			s.Skip()
		}
	}
}

// filled passes a value and says whether there is something in it.
func filled(s *jsonedit.Scanner) bool {
	switch s.Peek() {
	case jsonedit.String:
		t, _ := s.Text()
		return t.Len() > 0
	case jsonedit.Array:
		s.Array()
		some := false
		for s.NextElement() {
			some = true
			s.Skip()
		}
		return some
	case jsonedit.Object:
		s.Skip()
		return true
	}
	s.Skip()
	return false
}
