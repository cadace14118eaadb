// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/sse"
)

// arrayReader gives a stream of events as one JSON array of their data, as
// Gemini's streamGenerateContent does without alt=sse.
type arrayReader struct {
	Reader
	scanner sse.Scanner
	out     []byte
	begun   bool
	closed  bool
}

func (a *arrayReader) Feed(in []byte) []byte {
	if a.out = a.out[:0]; cap(a.out) > keepOut {
		a.out = nil
	}
	a.take(a.Reader.Feed(in))
	return a.out
}

// Close ends the array only where the answer came to its end: what comes after
// an early one is for Fail.
func (a *arrayReader) Close() []byte {
	a.out = a.out[:0]
	a.take(a.Reader.Close())
	if e, ok := a.scanner.Close(); ok && isObject(bytes.TrimSpace(e.Data)) {
		a.event(&e) // else it is cut off
	}
	if a.Finished() || a.Failed() != "" {
		a.end()
	}
	return a.out
}

// MidEvent is always false: elements are written whole.
func (a *arrayReader) MidEvent() bool { return false }

// Fail adds the error as the last element.
func (a *arrayReader) Fail(err *Error) []byte {
	a.out = a.out[:0]
	if !a.closed {
		a.element(err.gemini())
		a.end()
	}
	return a.out
}

func (a *arrayReader) take(events []byte) {
	a.scanner.Feed(events)
	for {
		e, ok := a.scanner.Next()
		if !ok {
			return
		}
		a.event(&e)
	}
}

func (a *arrayReader) event(e *sse.Event) {
	data := bytes.TrimSpace(e.Data)
	switch {
	case a.closed:
	case e.Over:
		a.element(UpstreamFailed("the server sent an event over the limit").gemini())
		a.end()
	case e.HasData && len(data) > 0:
		a.element(data)
	}
}

func (a *arrayReader) element(data []byte) {
	if a.begun {
		a.out = append(a.out, ",\r\n"...)
	} else {
		a.out = append(a.out, '[')
	}
	a.begun = true
	a.out = append(a.out, data...)
}

func (a *arrayReader) end() {
	if a.closed {
		return
	}
	if a.closed = true; !a.begun {
		a.out = append(a.out, '[')
	}
	a.out = append(a.out, ']')
}
