// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads the values that streams and JSON bodies share. Answers are
// read leniently: a member of another type is passed over.

// maxFailed bounds the message kept of an error.
const maxFailed = 1 << 10

// readUsage reads a usage object of either shape: prompt and completion (chat,
// completions, embeddings) or input and output tokens (responses). The last
// one in an answer holds, for servers that report with every chunk count up.
func (a *answer) readUsage(s *jsonedit.Scanner, data []byte) {
	if !s.Object() {
		s.Skip()
		return
	}
	u, total := Usage{}, 0
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "prompt_tokens", "input_tokens":
			u.Input, u.Reported = count(s, data, u.Input, u.Reported)
		case "completion_tokens", "output_tokens":
			u.Output, u.Reported = count(s, data, u.Output, u.Reported)
		case "prompt_tokens_details", "input_tokens_details":
			details(s, data, func(name string, n int) {
				switch name {
				case "cached_tokens":
					u.Cached = n
				case "cache_write_tokens":
					u.CacheWrite = n
				}
			})
		case "completion_tokens_details", "output_tokens_details":
			details(s, data, func(name string, n int) {
				if name == "reasoning_tokens" {
					u.Reasoning = n
				}
			})
		case "total_tokens":
			total, _ = count(s, data, 0, false)
		case "prompt_cache_hit_tokens": // DeepSeek
			u.Cached, _ = count(s, data, u.Cached, false)
		default:
			s.Skip()
		}
	}
	if !u.Reported && total > 0 { // reranking has nothing else
		u.Input, u.Reported = total, true
	}
	if u.Reported {
		if more := total - u.Input - u.Output; more > 0 && more == u.Reasoning {
			u.Output += more // xAI counts reasoning beside the output
		}
		u.Cached = min(u.Cached, u.Input)
		u.CacheWrite = min(u.CacheWrite, u.Input-u.Cached)
		u.Reasoning = min(u.Reasoning, u.Output)
		a.usage = u
	}
}

// maxCount is beyond any answer's tokens; a server that reports more is wrong,
// and one such number would drown a counter for good.
const maxCount = 1 << 31

// count reads a number of tokens. Without one it gives back what was known.
func count(s *jsonedit.Scanner, data []byte, known int, reported bool) (int, bool) {
	number, ok := s.Number()
	if !ok {
		s.Skip()
		return known, reported
	}
	n, ok := jsonedit.Int(number.Of(data))
	if !ok || n < 0 || n >= maxCount {
		return known, reported
	}
	return n, true
}

// details reads the numbers in an object.
func details(s *jsonedit.Scanner, data []byte, found func(name string, n int)) {
	if !s.Object() {
		s.Skip()
		return
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if n, ok := count(s, data, 0, false); ok {
			found(string(key.Of(data)), n)
		}
	}
}

// readError notes an error: an object with a message, or a string. The first
// one in an answer holds.
func (a *answer) readError(s *jsonedit.Scanner, data []byte) {
	if s.Peek() == jsonedit.Null {
		s.Skip()
		return
	}
	inner := *s
	span := s.Skip()
	if s.Failed() {
		return
	}
	message := string(data[span.Start:min(span.End, span.Start+maxFailed)])
	if t, ok := inner.Text(); ok {
		message = t.Value(data)
	} else if inner.Object() {
		for {
			key, ok := inner.NextMember()
			if !ok {
				break
			}
			if string(key.Of(data)) == "message" {
				if t, ok := inner.Text(); ok {
					message = t.Value(data)
					continue
				}
			}
			inner.Skip()
		}
	}
	a.fail(message)
}

func (a *answer) fail(message string) {
	if a.failed != "" {
		return
	}
	if message == "" {
		message = "error without a message"
	}
	a.failed = message[:min(len(message), maxFailed)]
}

// readText reads a string into known, and allocates only when it changes. It
// says no, and passes the value, if that is no string or empty.
func readText(s *jsonedit.Scanner, data []byte, known *string) (jsonedit.Text, bool) {
	t, ok := s.Text()
	if !ok {
		s.Skip()
		return t, false
	}
	if t.Size == 0 {
		return t, false
	}
	if t.Escaped() || string(t.Of(data)) != *known {
		*known = t.Value(data)
	}
	return t, true
}

// readModel notes the name of the model and tells where it stands. Start is 0
// if it is no string. Servers send an empty name before they know it.
func (a *answer) readModel(s *jsonedit.Scanner, data []byte) jsonedit.Text {
	t, _ := readText(s, data, &a.served)
	return t
}

// readStatus notes how a response of the Responses API ended.
func (a *answer) readStatus(s *jsonedit.Scanner, data []byte) {
	status := a.finish
	readText(s, data, &status)
	if status != "in_progress" && status != "queued" {
		a.finish = status
	}
}

// readReason reads {"reason": "…"}, as in incomplete_details.
func (a *answer) readReason(s *jsonedit.Scanner, data []byte) {
	if !s.Object() {
		s.Skip()
		return
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		if string(key.Of(data)) == "reason" {
			readText(s, data, &a.finish)
		} else {
			s.Skip()
		}
	}
}
