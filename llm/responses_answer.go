// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads answers of OpenAI's Responses. A server may tell a thing in
// deltas, in the event that ends it, in the finished item, or in the response at
// the end only: what was told once is not told again.

// responsesEvents reads one answer.
type responsesEvents struct {
	started bool
	items   []responsesSeen // by output index
	calls   int
	usage   answer // of which only the usage is used
	status  string
	reason  string // of an incomplete one
}

// responsesSeen is what has been told of an item.
type responsesSeen struct {
	kind   itemKind
	tool   int
	told   bool // text, reasoning or arguments
	opened bool // a call's start
	ended  bool
	parts  int // of a summary
}

type itemKind uint8

const (
	itemUnknown itemKind = iota
	itemMessage
	itemCall
	itemReasoning
	itemImage
	itemOther
)

// maxItems bounds the items of a response.
const maxItems = 4096

func responsesAnswer(_ Quirks, stream bool) answerReader {
	return newReader(&responsesEvents{}, stream)
}

// responsesEvent is one event, but for the values that are read later.
type responsesEvent struct {
	kind     lit
	index    int
	part     int // summary_index
	delta    lit
	text     lit // text, refusal or arguments
	probs    []byte
	item     jsonedit.Scanner
	response jsonedit.Scanner
	has      struct{ item, response bool }
}

func (r *responsesEvents) event(_, data []byte, to *relay) {
	if string(data) == "[DONE]" {
		return // of servers that mix dialects; the response's end came before
	}
	e, ok := readResponsesEvent(data, len(r.items)-1)
	if !ok {
		to.fail("the server sent an event that is no JSON object")
		return
	}
	if e.index < 0 || e.index >= maxItems {
		to.fail("the server sent too many items")
		return
	}
	switch string(e.kind) {
	case "error", "response.failed", "response.cancelled":
		r.failed(data, to)
		return
	case "keepalive":
		to.emit(&event{kind: evPing})
		return
	}
	if e.has.response {
		r.response(&e.response, data, to)
	}
	switch string(e.kind) {
	case "response.completed", "response.incomplete", "response.done":
		r.finish(to)
	case "response.output_item.added", "response.output_item.done":
		if e.has.item {
			r.item(&e.item, data, e.index, bytes.HasSuffix(e.kind, []byte("done")), to)
		}
	default:
		r.delta(&e, to)
	}
}

// readResponsesEvent reads the members of an event. last is the output index
// where the server leaves it out.
func readResponsesEvent(data []byte, last int) (e responsesEvent, ok bool) {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		return e, false
	}
	e.index = max(last, 0)
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch name := string(key.Of(data)); name {
		case "type":
			t, ok := s.Text()
			if !ok {
				s.Skip()
				continue
			}
			e.kind = t.Of(data)
		case "output_index":
			e.index, _ = count(&s, data, e.index, false)
		case "summary_index":
			e.part, _ = count(&s, data, 0, false)
		case "delta", "text", "refusal", "arguments":
			t, ok := s.Text()
			switch {
			case !ok:
				s.Skip()
			case name == "delta":
				e.delta = t.Of(data)
			default:
				e.text = t.Of(data)
			}
		case "logprobs":
			e.probs = probsOf(&s, data)
		case "item":
			e.item, e.has.item = s, s.Peek() == jsonedit.Object
			s.Skip()
		case "response":
			e.response, e.has.response = s, s.Peek() == jsonedit.Object
			s.Skip()
		default:
			s.Skip()
		}
	}
	return e, s.Finish()
}

// delta reads the events of text, reasoning, refusals and arguments.
func (r *responsesEvents) delta(e *responsesEvent, to *relay) {
	name, isDelta := bytes.CutSuffix(e.kind, []byte(".delta"))
	if !isDelta {
		var done bool
		if name, done = bytes.CutSuffix(e.kind, []byte(".done")); !done {
			return
		}
	}
	kind, is := eventKind(0), itemMessage
	switch string(name) {
	case "response.output_text":
		kind = evText
	case "response.refusal":
		kind = evRefusal
	case "response.reasoning_summary_text", "response.reasoning_text":
		kind, is = evReasoning, itemReasoning
	case "response.function_call_arguments":
		kind, is = evToolArgs, itemCall
	default:
		return
	}
	seen := r.seen(e.index)
	if seen.kind == itemUnknown {
		seen.kind = is
	}
	if seen.kind != is || is == itemCall && !seen.opened || seen.ended {
		return
	}
	text := e.delta
	if !isDelta {
		if text = e.text; seen.told && (is != itemReasoning || seen.parts > e.part) {
			return
		}
	}
	if len(text) == 0 {
		return
	}
	if is == itemReasoning && e.part >= seen.parts {
		if seen.parts > 0 {
			to.emit(&event{kind: evReasoning, text: lit(`\n\n`)})
		}
		seen.parts = e.part + 1
	}
	seen.told = true
	to.emit(&event{kind: kind, tool: seen.tool, text: text, probs: e.probs})
}

// seen is what is known of an item.
func (r *responsesEvents) seen(index int) *responsesSeen {
	for len(r.items) <= index {
		r.items = append(r.items, responsesSeen{})
	}
	return &r.items[index]
}

func (r *responsesEvents) whole(body []byte, to *relay) {
	s := jsonedit.NewScanner(body, 0)
	if s.Peek() != jsonedit.Object {
		to.fail("the server's answer is no JSON object")
		return
	}
	check := s
	check.Skip()
	if !check.Finish() {
		to.fail("the server's answer is no JSON object")
		return
	}
	if !r.response(&s, body, to) {
		return
	}
	switch r.status {
	case "failed", "cancelled":
		r.failed(body, to)
	case "queued", "in_progress":
		to.fail("the server has not finished the response")
	default:
		r.finish(to)
	}
}

// end gives nothing: the last event alone ends a response.
func (r *responsesEvents) end(*relay) {}

func (r *responsesEvents) failed(data []byte, to *relay) {
	err := ReadError(DialectResponses, 0, data)
	if strings.HasPrefix(err.Type, "response") {
		err.Type = faultWords[(&Error{Code: err.Code}).fault()].openAI
	}
	if err.Message == "" || bytes.HasPrefix([]byte(err.Message), []byte("the server")) {
		err.Message = "the server failed to answer"
	}
	to.emit(&event{kind: evError, err: err})
}

// response reads a response object and tells what is new in it. It says no if
// that is an error.
func (r *responsesEvents) response(s *jsonedit.Scanner, data []byte, to *relay) bool {
	s.Object()
	start := event{kind: evStart}
	var output jsonedit.Scanner
	hasOutput, hasUsage, hasError := false, false, false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "id":
			if t, ok := s.Text(); ok {
				start.id = t.Of(data)
			} else {
				s.Skip()
			}
		case "model":
			if t, ok := s.Text(); ok {
				start.name = t.Of(data)
			} else {
				s.Skip()
			}
		case "created_at":
			start.created = timestamp(s, data)
		case "status":
			readText(s, data, &r.status)
		case "incomplete_details":
			details := answer{}
			details.readReason(s, data)
			if details.finish != "" {
				r.reason = details.finish
			}
		case "error":
			hasError = s.Peek() != jsonedit.Null
			s.Skip()
		case "usage":
			hasUsage = s.Peek() == jsonedit.Object
			r.usage.readUsage(s, data)
		case "service_tier":
			readText(s, data, &r.usage.tier)
		case "output":
			output, hasOutput = *s, s.Peek() == jsonedit.Array
			s.Skip()
		default:
			s.Skip()
		}
	}
	if !hasOutput && r.status == "" && !r.started && !hasError {
		to.fail("the server's answer is no response")
		return false
	}
	if hasError && r.status != "failed" && r.status != "completed" && r.status != "incomplete" {
		r.failed(data, to)
		return false
	}
	if !r.started {
		r.started = true
		to.emit(&start)
	}
	if hasOutput && output.Array() {
		for i := 0; output.NextElement(); i++ {
			if output.Peek() != jsonedit.Object || i >= maxItems {
				output.Skip()
				continue
			}
			item := output
			output.Skip()
			r.item(&item, data, i, true, to)
		}
	}
	if hasUsage && r.usage.usage.Told() {
		r.usage.usage.Tier = r.usage.tier
		to.emit(&event{kind: evUsage, usage: r.usage.usage})
	}
	return true
}

// timestamp reads seconds since 1970; some servers send a fraction.
func timestamp(s *jsonedit.Scanner, data []byte) int64 {
	number, ok := s.Number()
	if !ok {
		s.Skip()
		return 0
	}
	whole, _, _ := bytes.Cut(number.Of(data), []byte("."))
	n, _ := jsonedit.Int(whole)
	return int64(n)
}

// finish tells how the response ended.
func (r *responsesEvents) finish(to *relay) {
	if !r.started {
		r.started = true
		to.emit(&event{kind: evStart})
	}
	e := event{kind: evFinish}
	switch {
	case r.reason == "content_filter":
		e.reason = finishFilter
	case r.status == "incomplete":
		e.reason = finishLength
	case r.calls > 0:
		e.reason = finishTools
	}
	word := r.status
	if r.reason != "" {
		word = r.reason
	} else if word == "" {
		word = "completed"
	}
	e.vendor = literal(word)
	to.emit(&e)
	to.emit(&event{kind: evEnd})
}

// item reads an item as it begins or when it is done, and tells what was not told
// before.
func (r *responsesEvents) item(s *jsonedit.Scanner, data []byte, index int, done bool, to *relay) {
	seen := r.seen(index)
	if seen.ended {
		return
	}
	var kind, callID, name, args, secret, result, format lit
	var content, summary, extra jsonedit.Scanner
	var has struct{ content, summary, extra bool }
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		member := string(key.Of(data))
		if t, ok := s.Text(); ok {
			switch member {
			case "type":
				kind = t.Of(data)
			case "call_id":
				callID = t.Of(data)
			case "id":
				if callID == nil {
					callID = t.Of(data) // of servers that have no call_id
				}
			case "name":
				name = t.Of(data)
			case "arguments":
				args = t.Of(data)
			case "encrypted_content":
				secret = t.Of(data)
			case "result":
				result = t.Of(data)
			case "output_format":
				format = t.Of(data)
			}
			continue
		}
		switch member {
		case "content":
			content, has.content = *s, true
		case "summary":
			summary, has.summary = *s, true
		case "extra_content":
			extra, has.extra = *s, true
		}
		s.Skip()
	}
	switch string(kind) {
	case "message":
		seen.kind = itemMessage
		if done && !seen.told && has.content {
			r.contents(&content, data, seen, to)
		}
	case "function_call":
		seen.kind = itemCall
		if !seen.opened && len(name) > 0 {
			seen.opened, seen.tool = true, r.calls
			r.calls++
			e := event{kind: evToolStart, tool: seen.tool, id: callID, name: name}
			if has.extra {
				e.sign = thoughtSignature(&extra, data)
			}
			to.emit(&e)
		}
		if done && seen.opened {
			if !seen.told && len(args) > 0 {
				to.emit(&event{kind: evToolArgs, tool: seen.tool, text: args})
			}
			to.emit(&event{kind: evToolEnd, tool: seen.tool})
		}
	case "image_generation_call":
		seen.kind = itemImage
		if done && len(result) > 0 {
			if format == nil {
				format = lit("png")
			}
			to.emit(&event{kind: evMedia, name: append(lit("image/"), format...), text: result})
		}
	case "reasoning":
		seen.kind = itemReasoning
		if done {
			if !seen.told && has.summary {
				r.contents(&summary, data, seen, to)
			}
			if !seen.told && has.content {
				r.contents(&content, data, seen, to)
			}
			if len(secret) > 0 && seen.told {
				to.emit(&event{kind: evSignature, text: secret})
			} else if len(secret) > 0 {
				to.emit(&event{kind: evRedacted, text: secret})
			}
		}
	default:
		seen.kind = itemOther
	}
	seen.ended = done
}

// contents reads the parts of a message or of what was thought.
func (r *responsesEvents) contents(s *jsonedit.Scanner, data []byte, seen *responsesSeen, to *relay) {
	if !s.Array() {
		return
	}
	for s.NextElement() {
		if !s.Object() {
			s.Skip()
			continue
		}
		var text lit
		var probs []byte
		kind := evText
		if seen.kind == itemReasoning {
			kind = evReasoning
		}
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			name := string(key.Of(data))
			if name == "logprobs" {
				probs = probsOf(s, data)
				continue
			}
			t, ok := s.Text()
			switch {
			case !ok:
				s.Skip()
			case name == "text":
				text = t.Of(data)
			case name == "refusal":
				text, kind = t.Of(data), evRefusal
			}
		}
		if len(text) == 0 {
			continue
		}
		if kind == evReasoning && seen.told {
			to.emit(&event{kind: evReasoning, text: lit(`\n\n`)})
		}
		seen.told = true
		to.emit(&event{kind: kind, text: text, probs: probs})
	}
}
