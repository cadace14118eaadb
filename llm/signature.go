// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
)

// Signatures of thinking are good only at servers of the family that made them,
// and clients send them back with every later turn, perhaps to a server of
// another family. Those that a client of a dialect would not have got from a
// server of that dialect therefore bear the family's name. An unmarked one is
// the client's own family's.

// family is the dialect that stands for those which share signatures; the blocks
// of thinking in chat completions are Anthropic's.
func family(d Dialect) Dialect {
	if d == DialectResponses || d == DialectGemini {
		return d
	}
	return DialectAnthropic
}

// signTags mark signatures of a family, by [family].
var signTags = [...]string{DialectResponses: "responses:", DialectAnthropic: "anthropic:", DialectGemini: "gemini:"}

// tagSign marks a signature on its way to the client.
func tagSign(front, backend Dialect, sign lit) lit {
	from := family(backend)
	if from == family(front) || len(sign) == 0 {
		return sign
	}
	return append(lit(signTags[from]), sign...)
}

// untagSign takes a mark off and tells the family.
func untagSign(front Dialect, sign lit) (lit, Dialect) {
	if front == DialectResponses {
		sign = sign[len(sealOf(sign)):]
	}
	for d, tag := range signTags {
		if tag != "" && bytes.HasPrefix(sign, []byte(tag)) {
			return sign[len(tag):], Dialect(d)
		}
	}
	return sign, family(front)
}

// callSign is the signature of a call as a block of thinking before it, in a
// dialect that has no place for one with the call. Those of calls are Gemini's.
func callSign(sign lit) lit { return append(lit(signTags[DialectGemini]), sign...) }

// takeCallSigns gives calls back what callSign made of their signatures.
func (c *chat) takeCallSigns() {
	to := 0
	for i := range c.turns {
		t := &c.turns[i]
		from, sign := to, lit(nil)
		for _, p := range c.partsOf(t) {
			if held, ok := bytes.CutPrefix(p.sign, []byte(signTags[DialectGemini])); ok && p.kind == partRedacted {
				sign = held
				continue
			}
			if p.kind == partToolCall && p.sign == nil {
				p.sign, sign = sign, nil
			}
			c.parts[to] = p
			to++
		}
		t.from, t.to = from, to
	}
	c.parts = c.parts[:to]
}

// ownSigns leaves those signatures of thinking that the backend can read. What
// is without one then is for the writer to leave out. Servers of chat completions
// take any, for it is not known what stands behind them.
func (c *chat) ownSigns(backend Dialect) {
	if c.dialect == DialectAnthropic {
		c.takeCallSigns()
	}
	for i := range c.parts {
		p := &c.parts[i]
		if p.kind != partThinking && p.kind != partRedacted || p.sign == nil {
			continue
		}
		sign, from := untagSign(c.dialect, p.sign)
		if p.sign = sign; backend != DialectOpenAI && from != family(backend) {
			if p.sign = nil; p.kind == partRedacted {
				p.kind, p.name = partOther, lit("redacted_thinking")
			}
		}
	}
}

// foreignThinking names what withoutForeign takes out, which a server of the
// client's own dialect would refuse.
const foreignThinking = "thinking of another server"

// withoutForeign is a body for a server of the client's dialect without the
// thinking of other servers, with which the client got marked signatures; the
// server's own mark, if it has one, is taken off. The rest keeps its bytes. It
// says whether something was taken out.
func withoutForeign(front Dialect, body []byte, seal string) ([]byte, bool) {
	list, inner := "messages", "content"
	switch front {
	case DialectResponses:
		list, inner = "input", ""
	case DialectGemini:
		list, inner = "contents", "parts"
	case DialectAnthropic:
	default:
		return body, false
	}
	if !mayBeForeign(front, body) {
		return body, false
	}
	t := taking{front: front, seal: seal, body: body}
	s := jsonedit.NewScanner(body, 0)
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		if string(key.Of(body)) != list || s.Peek() != jsonedit.Array {
			s.Skip()
			continue
		}
		if inner == "" {
			t.elements(&s)
			continue
		}
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
				if string(key.Of(body)) == inner && s.Peek() == jsonedit.Array {
					t.elements(&s)
				} else {
					s.Skip()
				}
			}
		}
	}
	if s.Failed() || len(t.edits) == 0 {
		return body, false
	}
	return jsonedit.Apply(body, t.edits...), t.foreign
}

// mayBeForeign says whether a mark occurs anywhere in a body. What begins the
// marks is nine bytes long, and so the same twelve in base64 of either alphabet.
func mayBeForeign(front Dialect, body []byte) bool {
	if front == DialectResponses && bytes.Contains(body, []byte(`"`+sealBegin)) {
		return true
	}
	for d, tag := range signTags {
		if tag == "" || Dialect(d) == front {
			continue
		}
		if front == DialectGemini {
			tag = string(geminiSign(lit(tag)))[:8]
		}
		if bytes.Contains(body, []byte(`"`+tag)) {
			return true
		}
	}
	return false
}

// taking is what takes foreign thinking out of a body.
type taking struct {
	front   Dialect
	seal    string
	body    []byte
	edits   []jsonedit.Edit
	foreign bool
}

// elements adds the edits for the elements of an array.
func (t *taking) elements(s *jsonedit.Scanner) {
	kept, last, pending := false, 0, -1 // where the last element ended; where a taken one began
	s.Array()
	for s.NextElement() {
		s.Peek()
		start := s.Pos()
		if pending >= 0 { // with the comma after it
			t.edits = append(t.edits, jsonedit.Edit{Span: jsonedit.Span{Start: pending, End: start}})
			pending = -1
		}
		element := *s
		s.Skip()
		switch foreign, mark := t.isForeign(&element); {
		case !foreign:
			kept = true
			if mark.Len() > 0 {
				t.edits = append(t.edits, jsonedit.Edit{Span: mark})
			}
		case kept: // with the comma before it
			t.foreign = true
			t.edits = append(t.edits, jsonedit.Edit{Span: jsonedit.Span{Start: last, End: s.Pos()}})
		default:
			t.foreign = true
			pending = start
		}
		last = s.Pos()
	}
	if pending >= 0 {
		t.edits = append(t.edits, jsonedit.Edit{Span: jsonedit.Span{Start: pending, End: last}})
	}
}

// isForeign says that an element is thinking with the mark of another server.
// In one that stays it finds the mark of an account, to be taken off. What is
// encrypted and no reasoning, such as a conversation in short, stays in any case:
// without it the rest would mean something else, so that the server may refuse it.
func (t *taking) isForeign(s *jsonedit.Scanner) (foreign bool, mark jsonedit.Span) {
	if !s.Object() {
		return false, mark
	}
	reasoning := t.front != DialectResponses
	for {
		key, ok := s.NextMember()
		if !ok {
			return foreign && reasoning, mark
		}
		text, ok := s.Text()
		if !ok {
			s.Skip()
			continue
		}
		sign := lit(text.Of(t.body))
		switch string(key.Of(t.body)) {
		case "type":
			reasoning = reasoning || string(sign) == "reasoning"
			continue
		case "thoughtSignature", "thought_signature":
			if t.front != DialectGemini {
				continue
			}
			if sign = clientSign(sign); sign == nil {
				continue
			}
		case "signature", "data":
			if t.front != DialectAnthropic {
				continue
			}
		case "encrypted_content":
			if t.front != DialectResponses {
				continue
			}
			if seal := sealOf(sign); seal != "" {
				foreign = foreign || seal != t.seal
				mark = jsonedit.Span{Start: text.Start, End: text.Start + len(seal)}
			}
		default:
			continue
		}
		if _, from := untagSign(t.front, sign); from != family(t.front) {
			foreign = true
		}
	}
}
