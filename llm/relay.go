// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"cmp"

	"bytes"
	"strings"

	"github.com/penstock/penstock/internal/sse"
)

// relay reads an answer of one dialect and writes it in another. What an answer
// tells is counted here, once for all dialects.
type relay struct {
	op      Op
	context *answerContext
	dialect Dialect // of the server
	model   string  // where the server names none
	from    answerReader
	to      answerWriter
	client  bool // the client gets a stream
	stream  bool // the server sends one
	out     []byte
	begun   bool
	closed  bool
	content int // bytes of output
	media   int // and of images and sound
	probs   int // and of how likely its tokens were
	ended   bool
	found   answer
	event   event // the one that is being written
}

// defaultMaxBody bounds a whole answer that is to be translated, in bytes.
const defaultMaxBody = 64 << 20

func (r *relay) Feed(in []byte) []byte {
	if r.out = r.out[:0]; cap(r.out) > keepOut {
		r.out = nil
	}
	if len(in) == 0 || r.ended {
		return r.out
	}
	if !r.begun {
		r.begun = true
		r.from = wholeInstead(r.from, in, r.context.MaxBody)
	}
	r.from.feed(in, r)
	return r.out
}

func (r *relay) Close() []byte {
	r.out = r.out[:0]
	if !r.closed && !r.ended {
		r.closed = true
		r.from.close(r)
	}
	return r.out
}

// MidEvent is always false: events are written whole.
func (r *relay) MidEvent() bool { return false }

func (r *relay) Tokens() int {
	if !r.client {
		return (r.content + 3) / 4
	}
	return r.found.tokens
}

func (r *relay) Usage() Usage {
	f := &r.found
	u := f.usage.ended(r.Tokens(), f.over(r.stream), true)
	u.Tier = cmp.Or(u.Tier, f.tier)
	return u
}

func (r *relay) Finished() bool       { return r.found.finished }
func (r *relay) Failed() string       { return r.found.failed }
func (r *relay) FinishReason() string { return r.found.finish }
func (r *relay) ServedModel() string  { return r.found.served }

// emit counts an event and writes it. After an error or the end none counts.
func (r *relay) emit(given *event) {
	if r.ended {
		return
	}
	r.event = *given // which can then live on the caller's stack
	e := &r.event
	switch e.kind {
	case evStart:
		if len(e.name) == 0 && r.model != "" {
			e.name = literal(r.model)
		}
		if len(e.name) > 0 {
			r.found.served = e.name.String()
		}
	case evSignature:
		e.text = tagSign(r.op.Dialect(), r.dialect, e.text)
	case evText, evReasoning, evRefusal, evRedacted, evToolArgs:
		if r.probs += len(e.probs); r.op == OpMessages {
			e.probs = nil // it has no word for them
		}
		if len(e.text) == 0 && e.kind != evToolArgs && e.probs == nil {
			return
		}
		if r.content += len(e.text); len(e.text) > 0 {
			r.found.tokens++
		}
		if e.kind == evRedacted {
			e.text = tagSign(r.op.Dialect(), r.dialect, e.text)
		}
	case evMedia:
		if !r.carries(e) {
			r.fail(NoPlace)
			return
		}
		r.media += len(e.text)
		r.content += 4 // bytes are no measure of its tokens
		r.found.tokens++
	case evToolStart:
		r.content += len(e.name)
		r.found.tokens++
		if r.op == OpMessages && len(e.sign) > 0 {
			r.out = r.to.write(r.out, &event{kind: evRedacted, choice: e.choice, text: callSign(e.sign)})
		}
	case evFinish:
		if e.choice == 0 {
			r.found.finish = e.vendor.String()
		}
	case evUsage:
		if e.usage.Told() {
			r.found.usage = e.usage
		}
	case evError:
		r.found.fail(e.err.Message)
		r.ended = true
	case evEnd:
		r.found.finished = true
		r.ended = true
	}
	if !r.client && r.content+r.media+r.probs > r.context.MaxBody && !r.ended {
		r.fail("the server's answer is over the limit")
		return
	}
	r.out = r.to.write(r.out, e)
	if e.kind == evEnd && r.context.fault != "" {
		r.found.finished = false
		r.found.fail(r.context.fault)
	}
}

// fail ends the answer with an error of the gateway's own.
func (r *relay) fail(message string) {
	r.emit(&event{kind: evError, err: UpstreamFailed(message)})
}

// Fail ends the client's answer with an error of the gateway's own, in a form
// that goes on from what was passed already.
func (r *relay) Fail(err *Error) []byte {
	r.out = r.out[:0]
	r.emit(&event{kind: evError, err: err})
	return r.out
}

// Fail ends a stream that was begun through r with an error, and gives the bytes
// to pass on last. They may be none, where the answer has ended already.
func Fail(r Reader, op Op, err *Error, requestID string) []byte {
	if f, ok := r.(interface{ Fail(*Error) []byte }); ok {
		return f.Fail(err)
	}
	var out []byte
	if r.MidEvent() {
		out = append(out, "\n\n"...)
	}
	return append(out, err.StreamError(op, requestID)...)
}

// StreamType is the media type of streams that servers of a dialect send.
func StreamType(d Dialect) string {
	if d == DialectBedrock {
		return "application/vnd.amazon.eventstream"
	}
	return "text/event-stream"
}

// IsStream says that a Content-Type is that of a stream of the dialect.
func IsStream(d Dialect, contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(media), StreamType(d))
}

// sseReader reads a stream of server-sent events.
type sseReader struct {
	scanner sse.Scanner
	reader  eventReader
}

func (s *sseReader) feed(in []byte, to *relay) {
	s.scanner.Feed(in)
	for !to.ended {
		e, ok := s.scanner.Next()
		if !ok {
			return
		}
		s.event(&e, to)
	}
}

func (s *sseReader) close(to *relay) {
	if e, ok := s.scanner.Close(); ok {
		s.event(&e, to)
	}
	if !to.ended {
		s.reader.end(to)
	}
}

func (s *sseReader) event(e *sse.Event, to *relay) {
	switch {
	case e.Over:
		to.fail("the server sent an event over the limit")
	case e.HasData:
		if data := bytes.TrimSpace(e.Data); len(data) > 0 {
			s.reader.event(e.Type, data, to)
		}
	case len(e.Raw) > 0 && e.Raw[0] == ':':
		to.emit(&event{kind: evPing})
	}
}

// wholeReader gathers an answer that comes whole.
type wholeReader struct {
	reader eventReader
	body   []byte
	max    int
}

func (w *wholeReader) feed(in []byte, to *relay) {
	if len(w.body)+len(in) > w.max {
		to.fail("the server's answer is over the limit")
		return
	}
	w.body = append(w.body, in...)
}

func (w *wholeReader) close(to *relay) {
	if len(bytes.TrimSpace(w.body)) > 0 {
		w.reader.whole(w.body, to)
	}
}

// newReader reads a stream of events or a whole answer.
func newReader(reader eventReader, stream bool) answerReader {
	if stream {
		return &sseReader{reader: reader}
	}
	return &wholeReader{reader: reader, max: defaultMaxBody}
}

// wholeInstead sees by the first bytes that a server answers with JSON, mostly
// an error, under the type of a stream. No line of a stream begins like this, nor
// does a frame.
func wholeInstead(from answerReader, in []byte, limit int) answerReader {
	json := in[0] == '{' || in[0] == '['
	switch f := from.(type) {
	case *sseReader:
		if json {
			return &wholeReader{reader: f.reader, max: limit}
		}
	case *frameReader:
		if json { // as the first byte of a frame it would be one of 1 GiB
			return &wholeReader{reader: f.reader, max: limit}
		}
	case *wholeReader:
		f.max = limit
	}
	return from
}
