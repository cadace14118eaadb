// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"slices"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file translates counts of tokens, and reads the answers that come whole and
// hold no words: counts, and embeddings (embed.go).

// countedRequest is the request that a body of Gemini's countTokens holds, or the
// body itself, which may be one.
func countedRequest(body []byte) []byte {
	s := jsonedit.NewScanner(body, 0)
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return body
		}
		object := s.Peek() == jsonedit.Object
		if value := s.Skip(); object && camel(key.Value(body)) == "generateContentRequest" {
			return value.Of(body)
		}
	}
}

// countBody makes of a request for an answer the one that counts its tokens. What
// the servers' counting calls have no place for does not count.
func countBody(b Backend, body []byte) []byte {
	switch b.Dialect {
	case DialectAnthropic:
		return onlyMembers(body, "model", "messages", "system", "tools", "tool_choice", "thinking")
	case DialectResponses:
		return onlyMembers(body, "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text")
	case DialectBedrock:
		out := append([]byte(`{"input":{"converse":`), onlyMembers(body, "messages", "system", "toolConfig", "additionalModelRequestFields")...)
		return append(out, "}}"...)
	}
	out := appendText([]byte(`{"generateContentRequest":{`), "model", literal(collected(b.Model)))
	out = append(append(out, ','), body[1:]...) // there are always contents
	return append(out, '}')
}

// onlyMembers is an object without the members that are not named.
func onlyMembers(body []byte, names ...string) []byte {
	out := append(make([]byte, 0, len(body)), '{')
	s := jsonedit.NewScanner(body, 0)
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			return append(out, '}')
		}
		if value := s.Skip(); slices.Contains(names, key.Value(body)) {
			out = append(appendMember(out, key.Value(body)), value.Of(body)...)
		}
	}
}

// CountAnswer is the answer to a request to count, of an operation that does.
func CountAnswer(op Op, tokens int) []byte {
	name := "totalTokens"
	if op == OpCountTokens {
		name = "input_tokens"
	}
	return append(appendInt(appendMember([]byte{'{'}, name), tokens), '}')
}

// converted is an answer that is read whole and then written in the client's
// dialect.
type converted struct {
	t      *Translation
	o      AnswerOptions
	body   []byte
	found  answer
	closed bool
}

func (c *converted) Feed(in []byte) []byte {
	switch {
	case c.closed:
	case len(c.body)+len(in) > c.o.MaxBody:
		return c.fail(UpstreamFailed("the server's answer is over the limit"))
	default:
		c.body = append(c.body, in...)
	}
	return nil
}

func (c *converted) Close() []byte {
	if c.closed || len(c.body) == 0 {
		return nil
	}
	s := jsonedit.NewScanner(c.body, 0)
	if s.Skip(); !s.Finish() {
		return nil // broken off: not finished
	}
	var out []byte
	what := "count of tokens"
	if c.t.Op.Counts() {
		out = c.count()
	} else {
		out = c.embeddings()
		what = "embeddings"
	}
	switch {
	case out != nil:
		c.closed, c.found.finished = true, true
		return out
	case c.found.failed != "":
		return c.fail(ReadError(c.t.dialect, 0, c.body))
	}
	return c.fail(UpstreamFailed("the server's answer has no " + what + " as asked for"))
}

// Fail ends the answer with an error of the gateway's own.
func (c *converted) Fail(err *Error) []byte { return c.fail(err) }

func (c *converted) fail(err *Error) []byte {
	if c.closed {
		return nil
	}
	c.closed, c.body = true, nil
	c.found.failed = "" // what the body said is in err
	c.found.fail(err.Message)
	return err.Body(c.t.Op, c.o.RequestID)
}

func (c *converted) MidEvent() bool { return false }
func (c *converted) Tokens() int    { return 0 }
func (c *converted) Usage() Usage {
	return c.found.usage.ended(c.Tokens(), c.found.finished && c.found.failed == "", false)
}
func (c *converted) Finished() bool       { return c.found.finished }
func (c *converted) Failed() string       { return c.found.failed }
func (c *converted) FinishReason() string { return "" }
func (c *converted) ServedModel() string  { return c.found.served }

// count reads a count of any dialect; nil: there is none.
func (c *converted) count() []byte {
	tokens, ok := 0, false
	s := jsonedit.NewScanner(c.body, 0)
	s.Object()
	for {
		key, more := s.NextMember()
		if !more {
			break
		}
		switch string(key.Of(c.body)) {
		case "input_tokens", "totalTokens", "inputTokens":
			tokens, ok = count(&s, c.body, tokens, ok)
		case "error":
			c.found.readError(&s, c.body)
		default:
			s.Skip()
		}
	}
	if !ok {
		return nil
	}
	return CountAnswer(c.t.Op, tokens)
}
