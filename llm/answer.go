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

// readUsage reads a usage object of OpenAI's. The last one in an answer holds, for
// servers that report with every chunk count up.
func (a *answer) readUsage(s *jsonedit.Scanner, data []byte) {
	var t tally
	if t.readOpenAI(s, data); t.whole() || t.total.told {
		a.usage = t.usage()
	}
}

// count reads a number that is no count of tokens, such as an index. Without one
// it gives back what was known.
func count(s *jsonedit.Scanner, data []byte, known int, reported bool) (int, bool) {
	number, ok := s.Number()
	if !ok {
		s.Skip()
		return known, reported
	}
	n, ok := jsonedit.Int(number.Of(data))
	if !ok || n < 0 || n > maxCount {
		return known, reported
	}
	return n, true
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
	for key := range s.Members() {
		if string(key.Of(data)) == "reason" {
			readText(s, data, &a.finish)
		} else {
			s.Skip()
		}
	}
}
