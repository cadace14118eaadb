// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads answers of Gemini's generateContent. A stream has no last
// event: some models say with every frame that they have finished, so that the
// end of the stream alone tells.

// geminiEvents reads one answer.
type geminiEvents struct {
	started bool
	id      lit
	model   lit
	choices []geminiChoice
	blocked lit    // why the prompt was refused
	probs   []byte // of the candidate that is read
}

type geminiChoice struct {
	seen   bool
	calls  int
	output bool
	reason lit
}

func geminiAnswer(_ Quirks, stream bool) answerReader { return newReader(&geminiEvents{}, stream) }

func (r *geminiEvents) event(_, data []byte, to *relay) {
	s := jsonedit.NewScanner(data, 0)
	if string(data) == "[DONE]" {
		return
	}
	if s.Peek() == jsonedit.Array {
		r.array(data, to)
		return
	}
	if !r.frame(&s, data, to) || !s.Finish() && !to.ended {
		to.fail("the server sent an event that is no JSON object")
	}
}

// whole reads one answer, or a stream in the form of an array.
func (r *geminiEvents) whole(body []byte, to *relay) {
	s := jsonedit.NewScanner(body, 0)
	s.Skip()
	if !s.Finish() {
		to.fail("the server's answer is no JSON object")
		return
	}
	s = jsonedit.NewScanner(body, 0)
	if s.Peek() == jsonedit.Array {
		r.array(body, to)
	} else if !r.frame(&s, body, to) {
		to.fail("the server's answer is no JSON object")
	}
	if r.end(to); !to.ended {
		to.fail("the server's answer has no end")
	}
}

func (r *geminiEvents) array(data []byte, to *relay) {
	s := jsonedit.NewScanner(data, 0)
	s.Array()
	for !to.ended && s.NextElement() {
		if !r.frame(&s, data, to) {
			s.Skip()
		}
	}
}

// end tells how the answer ended, if the server said so for each candidate.
func (r *geminiEvents) end(to *relay) {
	if len(r.choices) == 0 && r.blocked == nil {
		return
	}
	for i := range r.choices {
		if r.choices[i].seen && r.choices[i].reason == nil {
			return
		}
	}
	r.start(to)
	if len(r.choices) == 0 {
		to.emit(&event{kind: evFinish, reason: finishFilter, vendor: r.blocked})
	}
	for i := range r.choices {
		c := &r.choices[i]
		if !c.seen {
			continue
		}
		e := event{kind: evFinish, choice: i, vendor: c.reason, reason: geminiReason(string(c.reason))}
		if e.reason == finishStop && c.calls > 0 {
			e.reason = finishTools
		}
		if e.reason == finishOther && !c.output {
			to.fail("the model ended without an answer: " + c.reason.String())
			return
		}
		to.emit(&e)
	}
	to.emit(&event{kind: evEnd})
}

// geminiReason is why a candidate ended.
func geminiReason(word string) finish {
	switch word {
	case "STOP", "FINISH_REASON_UNSPECIFIED":
		return finishStop
	case "MAX_TOKENS":
		return finishLength
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT",
		"IMAGE_RECITATION", "MODEL_ARMOR":
		return finishFilter
	}
	return finishOther
}

func (r *geminiEvents) start(to *relay) {
	if !r.started {
		r.started = true
		to.emit(&event{kind: evStart, id: r.id, name: r.model})
	}
}

// frame reads a frame of a stream or a whole answer.
func (r *geminiEvents) frame(s *jsonedit.Scanner, data []byte, to *relay) bool {
	if !s.Object() {
		return false
	}
	var candidates jsonedit.Scanner
	var usage Usage
	has := false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "candidates":
			candidates, has = *s, true
			s.Skip()
		case "promptFeedback":
			r.feedback(s, data)
		case "usageMetadata":
			usage = geminiUsage(s, data)
		case "modelVersion":
			keepText(s, data, &r.model, r.started)
		case "responseId":
			keepText(s, data, &r.id, r.started)
		case "error":
			if s.Peek() == jsonedit.Null {
				s.Skip()
				continue
			}
			raw := s.Skip()
			if !s.Failed() {
				to.emit(&event{kind: evError, err: ReadError(DialectGemini, 0, append([]byte(`{"error":`), append(clone(raw.Of(data)), '}')...))})
			}
			return true
		default:
			s.Skip()
		}
	}
	if s.Failed() {
		return false
	}
	if usage.Told() { // before the start, for dialects that tell it there
		to.emit(&event{kind: evUsage, usage: usage})
	}
	r.start(to)
	if has && candidates.Array() {
		for !to.ended && candidates.NextElement() {
			if candidates.Object() {
				r.candidate(&candidates, data, to)
			} else {
				candidates.Skip()
			}
		}
	}
	return true
}

// feedback reads why a prompt was refused.
func (r *geminiEvents) feedback(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		if string(key.Of(data)) == "blockReason" {
			keepText(s, data, &r.blocked, false)
		} else {
			s.Skip()
		}
	}
}

func (r *geminiEvents) candidate(s *jsonedit.Scanner, data []byte, to *relay) {
	index := 0
	r.probs = nil
	var content jsonedit.Scanner
	var reason lit
	has := false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "index":
			index, _ = count(s, data, 0, false)
		case "content":
			content, has = *s, true
			s.Skip()
		case "logprobsResult":
			r.probs = geminiProbs(s, data)
		case "finishReason":
			if t, ok := s.Text(); ok {
				reason = t.Of(data)
			} else {
				s.Skip()
			}
		default:
			s.Skip()
		}
	}
	if index >= maxChoices {
		return
	}
	for len(r.choices) <= index {
		r.choices = append(r.choices, geminiChoice{})
	}
	r.choices[index].seen = true
	if has && content.Object() {
		for {
			key, ok := content.NextMember()
			if !ok {
				break
			}
			if string(key.Of(data)) != "parts" || !content.Array() {
				content.Skip()
				continue
			}
			for content.NextElement() {
				r.part(&content, data, index, to)
			}
		}
	}
	if r.probs != nil { // some come behind the text
		to.emit(&event{kind: evText, choice: index, probs: r.probs})
	}
	if len(reason) > 0 {
		r.choices[index].reason = append(r.choices[index].reason[:0], reason...)
	}
}

func (r *geminiEvents) part(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	if !s.Object() {
		s.Skip()
		return
	}
	var text, sign lit
	var call, medium jsonedit.Scanner
	thought, has, shows := false, false, false
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "text":
			if t, ok := s.Text(); ok {
				text = t.Of(data)
			} else {
				s.Skip()
			}
		case "thought":
			thought = s.Peek() == jsonedit.True
			s.Skip()
		case "thoughtSignature":
			if t, ok := s.Text(); ok {
				sign = t.Of(data)
			} else {
				s.Skip()
			}
		case "functionCall":
			call, has = *s, s.Peek() == jsonedit.Object
			s.Skip()
		case "inlineData":
			medium, shows = *s, s.Peek() == jsonedit.Object
			s.Skip()
		default:
			s.Skip()
		}
	}
	c := &r.choices[index]
	switch {
	case has:
		r.call(&call, data, index, sign, to)
	case shows && !thought: // what was drafted while it thought is not the answer
		r.inline(&medium, data, index, to)
	case len(text) > 0 && thought:
		to.emit(&event{kind: evReasoning, choice: index, text: text})
	case len(text) > 0:
		c.output = true
		to.emit(&event{kind: evText, choice: index, text: text, probs: r.probs})
		r.probs = nil
	}
}

// call reads a call, which comes whole.
func (r *geminiEvents) call(s *jsonedit.Scanner, data []byte, index int, sign lit, to *relay) {
	c := &r.choices[index]
	var name, id lit
	args := []byte("{}")
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch member := string(key.Of(data)); {
		case member == "args" && s.Peek() == jsonedit.Object:
			args = s.Skip().Of(data)
		default:
			t, ok := s.Text()
			switch {
			case !ok:
				s.Skip()
			case member == "name":
				name = t.Of(data)
			case member == "id":
				id = t.Of(data)
			}
		}
	}
	if len(name) == 0 || c.calls >= maxCalls {
		return
	}
	if len(id) == 0 {
		id = literal(fmt.Sprintf("call_%s_%d_%d", r.id.String(), index, c.calls))
	}
	to.emit(&event{kind: evToolStart, choice: index, tool: c.calls, id: id, name: name, sign: sign})
	to.emit(&event{kind: evToolArgs, choice: index, tool: c.calls, text: appendEscape(nil, args)})
	to.emit(&event{kind: evToolEnd, choice: index, tool: c.calls})
	c.calls++
	c.output = true
}
