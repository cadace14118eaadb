// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads the events of Anthropic's and Gemini's streams, and of those
// that carry images and sound, for a Tap.

// messages reads an event of Anthropic's Messages.
func (c *chunk) messages(t *Tap, data []byte) {
	var f anthropicFrame
	if c.valid = f.read(data); !c.valid {
		return
	}
	a := &t.found
	switch string(f.kind.Of(data)) {
	case "message_start":
		if f.hasMessage {
			c.messageStart(t, &f.message, data)
		}
	case "content_block_start":
		if f.hasBlock && blockCounts(&f.block, data) {
			a.tokens++
		}
	case "content_block_delta":
		if f.hasDelta && deltaCounts(&f.delta, data) {
			a.tokens++
		}
	case "message_delta":
		if f.hasUsage {
			t.messageUsage(&f.usage, data)
		}
		if f.hasDelta {
			member(&f.delta, data, "stop_reason", &a.finish)
		}
	case "message_stop":
		a.finished = true
	case "error":
		c.failed = true
		a.fail(ReadError(DialectAnthropic, 0, data).Message)
	}
}

func (t *Tap) messageUsage(s *jsonedit.Scanner, data []byte) {
	if t.merged.merge(s, data); t.merged.whole() {
		t.found.usage = t.merged.usage()
	}
}

// messageStart reads the message that begins a stream.
func (c *chunk) messageStart(t *Tap, s *jsonedit.Scanner, data []byte) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		switch string(key.Of(data)) {
		case "model":
			if name := t.found.readModel(s, data); name.Start > 0 {
				c.model = name.Quoted()
			}
		case "usage":
			t.messageUsage(s, data)
		default:
			s.Skip()
		}
	}
}

// blockCounts says whether the beginning of a block is output in itself.
func blockCounts(s *jsonedit.Scanner, data []byte) bool {
	counts := false
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return counts
		}
		t, ok := s.Text()
		if !ok {
			s.Skip()
			continue
		}
		switch string(key.Of(data)) {
		case "name", "text", "thinking", "data":
			counts = counts || t.Len() > 0
		}
	}
}

// deltaCounts says whether a delta is output: text, thought or arguments.
func deltaCounts(s *jsonedit.Scanner, data []byte) bool {
	counts := false
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return counts
		}
		t, ok := s.Text()
		if !ok {
			s.Skip()
			continue
		}
		switch string(key.Of(data)) {
		case "text", "thinking", "partial_json":
			counts = counts || t.Len() > 0
		}
	}
}

// member reads a string out of an object; one that is no string is passed over.
func member(s *jsonedit.Scanner, data []byte, name string, to *string) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if string(key.Of(data)) == name {
			readText(s, data, to)
		} else {
			s.Skip()
		}
	}
}

// generate reads a frame of Gemini's. Each may have usage, which is that of all
// of the answer so far. No frame says that it is the last: the answer is over
// when a candidate says why it ended.
func (c *chunk) generate(t *Tap, data []byte) {
	s := jsonedit.NewScanner(data, 0)
	if !s.Object() {
		return
	}
	a := &t.found
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "modelVersion":
			if name := a.readModel(&s, data); name.Start > 0 {
				c.model = name.Quoted()
			}
		case "usageMetadata":
			a.readGeminiUsage(&s, data)
		case "candidates":
			c.candidates(a, &s, data)
		case "promptFeedback":
			if s.Peek() != jsonedit.Object {
				s.Skip()
				continue
			}
			before := a.finish
			if member(&s, data, "blockReason", &a.finish); a.finish != before {
				a.finished = true
			}
		case "error":
			c.failed = s.Peek() != jsonedit.Null
			a.readError(&s, data)
		default:
			s.Skip()
		}
	}
	c.valid = s.Finish()
}

func (c *chunk) candidates(a *answer, s *jsonedit.Scanner, data []byte) {
	if !s.Array() {
		s.Skip()
		return
	}
	for first := true; s.NextElement(); first = false {
		if !s.Object() {
			s.Skip()
			continue
		}
		content := false
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			switch name := string(key.Of(data)); {
			case name == "content" && s.Peek() == jsonedit.Object:
				content = partsCount(s, data) || content
			case name == "finishReason" && first:
				if t, ok := readText(s, data, &a.finish); ok && t.Len() > 0 {
					a.finished = true
				}
			default:
				s.Skip()
			}
		}
		if content {
			a.tokens++
		}
	}
}

// partsCount says whether a content of Gemini's has output in its parts.
func partsCount(s *jsonedit.Scanner, data []byte) bool {
	counts := false
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return counts
		}
		if string(key.Of(data)) != "parts" || !s.Array() {
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
				switch string(key.Of(data)) {
				case "text", "functionCall", "inlineData", "executableCode", "codeExecutionResult":
					counts = filled(s) || counts
				default:
					s.Skip()
				}
			}
		}
	}
}

// readGeminiUsage reads usageMetadata, of which each one is of all of the answer
// so far.
func (a *answer) readGeminiUsage(s *jsonedit.Scanner, data []byte) {
	if u := geminiUsage(s, data); u.Told() {
		a.usage = u
	}
}

// mediaEvent acts on the type of an event of the streams of images, speech and
// transcription, which end with one that has usage.
func (c *chunk) mediaEvent(a *answer, kind []byte) {
	switch {
	case bytes.HasSuffix(kind, []byte(".delta")), bytes.HasSuffix(kind, []byte(".partial_image")):
		a.tokens++
	case bytes.HasSuffix(kind, []byte(".completed")), bytes.HasSuffix(kind, []byte(".done")):
		a.finished = true
	}
}

// readMeta reads Cohere's meta of a rerank: tokens are the real ones, and what is
// billed are search units.
func (a *answer) readMeta(s *jsonedit.Scanner, data []byte) {
	var t tally
	if !s.Object() {
		return
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch name := string(key.Of(data)); {
		case name == "tokens" && s.Peek() == jsonedit.Object:
			t.readOpenAI(s, data)
		case name == "billed_units" && s.Peek() == jsonedit.Object:
			t.readUnits(s, data)
		default:
			s.Skip()
		}
	}
	if t.whole() || t.total.told {
		a.usage = t.usage()
	}
}

func (t *tally) readUnits(s *jsonedit.Scanner, data []byte) {
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if string(key.Of(data)) == "search_units" {
			t.units.read(s, data)
		} else {
			s.Skip()
		}
	}
}
