// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads answers of chat completions. Every member is optional: servers
// send chunks without choices, choices without a delta, and empty ids.

// openAIEvents reads one answer.
type openAIEvents struct {
	q       Quirks
	started bool
	id      lit
	model   lit
	created int64
	choices []openAIChoice
	usage   answer // of which only the usage is used
	probs   []byte // of the choice that is read
}

type openAIChoice struct {
	calls    []openAICall
	last     int // the call that the last delta belonged to
	refused  bool
	finished bool
}

type openAICall struct {
	index   int // the server's; -1: none
	id      string
	started bool
	held    []byte // arguments that came before the name
	args    []byte // all of them, where a server repeats them
}

const (
	maxCalls = 4096    // of one choice
	maxHeld  = 1 << 20 // bytes of arguments that come before the name of a call
)

func openAIAnswer(q Quirks, stream bool) answerReader { return newReader(&openAIEvents{q: q}, stream) }

func (r *openAIEvents) event(kind, data []byte, to *relay) {
	if string(data) == "[DONE]" {
		r.finishAll(to)
		to.emit(&event{kind: evEnd})
		return
	}
	if !r.object(data, to) {
		if string(kind) == "error" {
			to.emit(&event{kind: evError, err: ReadError(DialectOpenAI, 0, data)})
			return
		}
		to.fail("the server sent an event that is no JSON object")
	} else if string(kind) == "error" {
		to.emit(&event{kind: evError, err: ReadError(DialectOpenAI, 0, data)})
	}
}

func (r *openAIEvents) whole(body []byte, to *relay) {
	if !r.object(body, to) {
		to.fail("the server's answer is no JSON object")
		return
	}
	r.finishAll(to)
	to.emit(&event{kind: evEnd})
}

func (r *openAIEvents) end(to *relay) {
	if len(r.choices) == 0 {
		return
	}
	for i := range r.choices {
		if !r.choices[i].finished {
			return
		}
	}
	to.emit(&event{kind: evEnd})
}

// finishAll ends the choices of which the server did not say why they ended.
func (r *openAIEvents) finishAll(to *relay) {
	if !r.started {
		r.start(to)
	}
	for i := range r.choices {
		r.finish(i, nil, to)
	}
}

// object reads a chunk or a whole answer.
func (r *openAIEvents) object(data []byte, to *relay) bool {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		return false
	}
	var late jsonedit.Scanner // at the choices, if they came before what begins the answer
	waits, hasError, hasUsage := false, false, false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "id":
			keepText(&s, data, &r.id, r.started)
		case "model":
			keepText(&s, data, &r.model, r.started)
		case "created":
			if n, ok := s.Number(); ok {
				created, _ := jsonedit.Int(n.Of(data))
				r.created = int64(created)
			} else {
				s.Skip()
			}
		case "choices":
			if r.started {
				r.list(&s, data, to)
			} else {
				late, waits = s, true
				s.Skip()
			}
		case "usage":
			hasUsage = s.Peek() == jsonedit.Object
			r.usage.readUsage(&s, data)
		case "service_tier":
			readText(&s, data, &r.usage.tier)
		case "x_groq":
			hasUsage = r.groq(&s, data) || hasUsage
		case "error":
			hasError = s.Peek() != jsonedit.Null
			s.Skip()
		default:
			s.Skip()
		}
	}
	if !s.Finish() {
		return false
	}
	if hasError {
		to.emit(&event{kind: evError, err: ReadError(DialectOpenAI, 0, data)})
		return true
	}
	if waits {
		if len(r.id) > 0 || len(r.model) > 0 {
			r.start(to)
		}
		r.list(&late, data, to)
	}
	if hasUsage && r.usage.usage.Told() {
		r.usage.usage.Tier = r.usage.tier
		to.emit(&event{kind: evUsage, usage: r.usage.usage})
	}
	return true
}

// keepText keeps a string, unless it is empty or known already.
func keepText(s *jsonedit.Scanner, data []byte, to *lit, known bool) {
	t, ok := s.Text()
	switch {
	case !ok:
		s.Skip()
	case t.Len() > 0 && !known:
		*to = append((*to)[:0], t.Of(data)...)
	}
}

// groq reads the usage that Groq sends in a member of its own.
func (r *openAIEvents) groq(s *jsonedit.Scanner, data []byte) (found bool) {
	if !s.Object() {
		s.Skip()
		return false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return found
		}
		if string(key.Of(data)) == "usage" && s.Peek() == jsonedit.Object {
			r.usage.readUsage(s, data)
			found = true
		} else {
			s.Skip()
		}
	}
}

// tell gives an event of a choice. Servers send chunks that hold nothing before
// they know their names, so the answer begins here at the latest.
func (r *openAIEvents) tell(to *relay, e *event) {
	if !r.started {
		r.start(to)
	}
	to.emit(e)
}

func (r *openAIEvents) start(to *relay) {
	r.started = true
	to.emit(&event{kind: evStart, id: r.id, name: r.model, created: r.created})
}

func (r *openAIEvents) list(s *jsonedit.Scanner, data []byte, to *relay) {
	if !s.Array() {
		s.Skip()
		return
	}
	for s.NextElement() {
		if s.Object() {
			r.choice(s, data, to)
		} else {
			s.Skip()
		}
	}
}

func (r *openAIEvents) choice(s *jsonedit.Scanner, data []byte, to *relay) {
	index := 0
	r.probs = nil
	var delta jsonedit.Scanner
	var reason jsonedit.Text
	has := false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "index":
			if n, ok := s.Number(); ok {
				index, _ = jsonedit.Int(n.Of(data))
			} else {
				s.Skip()
			}
		case "delta", "message":
			if s.Peek() == jsonedit.Object {
				delta, has = *s, true
			}
			s.Skip()
		case "logprobs":
			r.probs = chatProbs(s, data)
		case "finish_reason":
			if reason, ok = s.Text(); !ok {
				s.Skip()
			}
		default:
			s.Skip()
		}
	}
	if index < 0 || index >= maxChoices || s.Failed() {
		return
	}
	for len(r.choices) <= index {
		r.choices = append(r.choices, openAIChoice{})
	}
	if has {
		r.delta(&delta, data, index, to)
	}
	if reason.Len() > 0 {
		r.finish(index, reason.Of(data), to)
	}
}

// delta reads a delta or a message. What is thought comes before what is said,
// and that before the calls, in whatever order they stand.
func (r *openAIEvents) delta(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	s.Object()
	var thought, refusal jsonedit.Text
	var content, calls, function, blocks, images jsonedit.Scanner
	var is struct{ content, calls, function, blocks, images bool }
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "content":
			content, is.content = *s, true
			s.Skip()
		case "reasoning_content", "reasoning":
			if t, ok := s.Text(); !ok {
				s.Skip()
			} else if t.Len() > 0 {
				thought = t
			}
		case "refusal":
			if refusal, ok = s.Text(); !ok {
				s.Skip()
			}
		case "tool_calls":
			calls, is.calls = *s, true
			s.Skip()
		case "function_call":
			function, is.function = *s, true
			s.Skip()
		case "thinking_blocks":
			blocks, is.blocks = *s, s.Peek() == jsonedit.Array
			s.Skip()
		case "images":
			images, is.images = *s, s.Peek() == jsonedit.Array
			s.Skip()
		default:
			s.Skip()
		}
	}
	if thought.Len() > 0 {
		r.tell(to, &event{kind: evReasoning, choice: index, text: thought.Of(data)})
	}
	if is.blocks {
		r.thinking(&blocks, data, index, to)
	}
	if is.content {
		r.content(&content, data, index, to)
	}
	if refusal.Len() > 0 {
		r.choices[index].refused = true
		r.tell(to, &event{kind: evRefusal, choice: index, text: refusal.Of(data)})
	}
	if is.images {
		r.images(&images, data, index, to)
	}
	if is.calls && calls.Array() {
		for calls.NextElement() {
			r.call(&calls, data, index, to)
		}
	}
	if is.function && function.Peek() == jsonedit.Object {
		call := openAICall{index: 0, id: "call_0"}
		r.called(&function, data, index, &call, nil, to)
	}
}

// content reads text, or parts, as some servers send them.
func (r *openAIEvents) content(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	if t, ok := s.Text(); ok {
		if t.Len() > 0 || r.probs != nil {
			r.tell(to, &event{kind: evText, choice: index, text: t.Of(data), probs: r.probs})
		}
		return
	}
	if s.Array() {
		for s.NextElement() {
			r.part(s, data, index, evText, to)
		}
	}
}

// part reads {"type":"text","text":"…"}, or Mistral's {"type":"thinking",
// "thinking":[…]}, which holds parts of its own.
func (r *openAIEvents) part(s *jsonedit.Scanner, data []byte, index int, kind eventKind, to *relay) {
	for key := range s.Members() {
		switch name := string(key.Of(data)); {
		case name == "thinking" && kind == evText && s.Array():
			for s.NextElement() {
				r.part(s, data, index, evReasoning, to)
			}
		case name == "text" || name == "thinking":
			k := kind
			if name == "thinking" {
				k = evReasoning
			}
			if t, ok := s.Text(); !ok {
				s.Skip()
			} else if t.Len() > 0 {
				r.tell(to, &event{kind: k, choice: index, text: t.Of(data)})
			}
		default:
			s.Skip()
		}
	}
}

// thinking reads the signatures of what was thought; the text has come as
// reasoning_content before.
func (r *openAIEvents) thinking(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	s.Array()
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
			kind := evSignature
			switch string(key.Of(data)) {
			case "data":
				kind = evRedacted
				fallthrough
			case "signature":
				if t, ok := s.Text(); !ok {
					s.Skip()
				} else if t.Len() > 0 {
					r.tell(to, &event{kind: kind, choice: index, text: t.Of(data)})
				}
			default:
				s.Skip()
			}
		}
	}
}

// call reads one delta of a call. Servers leave the index out, or give all calls
// the same, and leave the id out of later deltas, or send it empty.
func (r *openAIEvents) call(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	if !s.Object() {
		s.Skip()
		return
	}
	delta := openAICall{index: -1}
	var function, extra jsonedit.Scanner
	has, hasExtra := false, false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "index":
			if n, ok := s.Number(); ok {
				delta.index, _ = jsonedit.Int(n.Of(data))
			} else {
				s.Skip()
			}
		case "id":
			readText(s, data, &delta.id)
		case "function":
			function, has = *s, s.Peek() == jsonedit.Object
			s.Skip()
		case "extra_content":
			extra, hasExtra = *s, true
			s.Skip()
		default:
			s.Skip()
		}
	}
	if has && !s.Failed() {
		var sign lit
		if hasExtra {
			sign = thoughtSignature(&extra, data)
		}
		r.called(&function, data, index, &delta, sign, to)
	}
}

// thoughtSignature reads {"google":{"thought_signature":"…"}}.
func thoughtSignature(s *jsonedit.Scanner, data []byte) (sign lit) {
	if !s.Object() {
		return nil
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return sign
		}
		if string(key.Of(data)) != "google" || !s.Object() {
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
			} else if string(key.Of(data)) == "thought_signature" {
				sign = t.Of(data)
			}
		}
	}
}

// called reads the function of a delta and tells what is new.
func (r *openAIEvents) called(s *jsonedit.Scanner, data []byte, index int, delta *openAICall, sign lit, to *relay) {
	var name, args lit
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "name":
			if t, ok := s.Text(); ok {
				name = t.Of(data)
			} else {
				s.Skip()
			}
		case "arguments":
			if t, ok := s.Text(); ok {
				args = t.Of(data)
			} else if raw := s.Skip(); raw.Len() > 0 && data[raw.Start] == '{' {
				args = appendEscape(nil, raw.Of(data))
			}
		default:
			s.Skip()
		}
	}
	c := &r.choices[index]
	at := c.find(delta, name)
	if at < 0 {
		to.fail("the server called too many tools")
		return
	}
	call := &c.calls[at]
	c.last = at
	if !call.started && len(name) > 0 {
		call.started = true
		if call.id == "" {
			call.id = newCallID(fmt.Sprintf("%s %s %d %d", to.context.RequestID, r.id, index, at))
		}
		r.tell(to, &event{kind: evToolStart, choice: index, tool: at, id: literal(call.id), name: name, sign: sign})
		if len(call.held) > 0 {
			r.tell(to, &event{kind: evToolArgs, choice: index, tool: at, text: call.held})
			call.held = nil
		}
	}
	if len(args) == 0 {
		return
	}
	if r.q.RepeatedArgs {
		if len(call.args) > 0 && string(call.args) == string(args) {
			return
		}
		if len(call.args) < maxThought {
			call.args = append(call.args, args...)
		}
	}
	if !call.started {
		if call.held = append(call.held, args...); len(call.held) > maxHeld {
			to.fail("the server sent arguments of a call without its name")
		}
		return
	}
	r.tell(to, &event{kind: evToolArgs, choice: index, tool: at, text: args})
}

// find is the call that a delta belongs to, or a new one; -1: too many.
func (c *openAIChoice) find(delta *openAICall, name lit) int {
	for i := len(c.calls) - 1; i >= 0; i-- {
		call := &c.calls[i]
		switch {
		case delta.index >= 0 && call.index != delta.index:
		case delta.index < 0 && delta.id == "" && (i != c.last || len(name) > 0 && call.started):
		case delta.id != "" && call.id != "" && delta.id != call.id && (delta.index < 0 || len(name) > 0 && call.started):
		case delta.id != "" && call.id == "" && delta.index < 0:
		default:
			if call.id == "" {
				call.id = delta.id
			}
			return i
		}
	}
	if len(c.calls) == maxCalls {
		return -1
	}
	c.calls = append(c.calls, openAICall{index: delta.index, id: delta.id})
	return len(c.calls) - 1
}

// finish tells why a choice ended, once. A server that called tools may say stop.
func (r *openAIEvents) finish(index int, reason lit, to *relay) {
	c := &r.choices[index]
	if c.finished {
		return
	}
	c.finished = true
	e := event{kind: evFinish, choice: index, vendor: reason}
	switch string(reason) {
	case "", "stop", "eos", "stop_sequence":
	case "length", "model_length":
		e.reason = finishLength
	case "tool_calls", "function_call":
		e.reason = finishTools
	case "content_filter":
		e.reason = finishFilter
	case "error", "insufficient_system_resource": // OpenRouter, DeepSeek
		to.fail("the server broke off: " + reason.String())
		return
	default:
		e.reason = finishOther
	}
	switch {
	case e.reason == finishStop && len(c.calls) > 0:
		e.reason = finishTools
	case e.reason == finishStop && c.refused:
		e.reason = finishRefusal
	}
	r.tell(to, &e)
}
