// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"cmp"

	"github.com/penstock/penstock/internal/jsonedit"
	"github.com/penstock/penstock/internal/sse"
)

// TapOptions says what a Tap has to do.
type TapOptions struct {
	Op          Op
	Stream      bool   // text/event-stream; else one JSON body
	DropUsage   bool   // take out the usage chunk that the client did not ask for
	AnswerModel string // write this name into "model"; "": leave the server's
	Whole       bool   // pass a stream on in whole events: the caller looks into them
}

// Tap watches one answer. One goroutine.
type Tap struct {
	op     Op
	stream bool
	drop   bool   // DropUsage, where there is such a chunk
	edits  bool   // something may be edited
	model  []byte // AnswerModel as a JSON literal; nil: none

	sse     sse.Scanner
	pattern pattern // of chat and completions
	dropped bool    // the last event was taken out
	walk    jsonWalk
	merged  anthropicUsage // what Anthropic's events have told so far
	out     []byte         // what Feed returns where something may be edited
	begun   bool           // a byte was fed

	found answer
}

// answer is what has been found so far.
type answer struct {
	usage    Usage
	tokens   int
	finished bool
	failed   string
	finish   string
	served   string
	tier     string // of service
}

// keepOut is the output buffer that a tap keeps between calls.
const keepOut = 64 << 10

// NewTap starts one.
func NewTap(o TapOptions) *Tap {
	t := &Tap{op: o.Op, stream: o.Stream}
	t.walk.op = o.Op
	t.drop = o.DropUsage && o.Stream && (o.Op == OpChat || o.Op == OpCompletions)
	if o.AnswerModel != "" {
		t.model = jsonedit.AppendString(nil, o.AnswerModel)
	}
	t.edits = t.drop || t.model != nil || o.Whole && o.Stream
	return t
}

// Feed takes the next bytes of the answer and returns those to pass on now:
// in itself when nothing is edited. What it returns is valid until the next
// call. Where nothing is to be edited it never holds bytes back; else at most
// the unfinished event, or the model name of a JSON body (bounded; what is
// over the bound passes unedited).
func (t *Tap) Feed(in []byte) []byte {
	if len(in) == 0 {
		return in
	}
	if !t.begun {
		t.begun = true
		// Some servers answer with JSON, mostly an error, under the type of a
		// stream. No line of a stream begins like this.
		t.stream = t.stream && in[0] != '{'
	}
	if t.out = t.out[:0]; cap(t.out) > keepOut {
		t.out = nil
	}
	switch {
	case t.stream && t.sse.Between():
		rest := t.known(in)
		if len(rest) == 0 && len(t.pattern.edited) == 0 {
			return in
		}
		t.feedStream(rest)
	case t.stream:
		t.feedStream(in)
	default:
		t.feedJSON(in)
	}
	if !t.edits {
		return in
	}
	return t.out
}

// Close says that the answer ended and returns the bytes still held.
func (t *Tap) Close() []byte {
	t.out = t.out[:0]
	if t.stream {
		t.closeStream()
	} else {
		t.closeJSON()
	}
	if !t.edits {
		return nil
	}
	return t.out
}

// MidEvent says whether the bytes passed on so far end inside an event of the
// stream: an empty line must then come before a StreamError. It is false when
// edits hold the unfinished event back; a caller that then breaks the stream
// off need not Close, and the client sees no half event.
func (t *Tap) MidEvent() bool {
	return t.stream && t.sse.MidEvent(!t.edits)
}

// Tokens is the number of output tokens seen so far; from the first one on
// the answer has begun. In a stream it counts the events with content, once
// for each choice; in a JSON body four bytes of content.
func (t *Tap) Tokens() int {
	if !t.stream {
		return (t.walk.content + 3) / 4
	}
	return t.found.tokens
}

// Usage is what the answer reported, completed by the tap's own count of the output
// where that is missing or cannot be, see [Usage.WithPrompt] for the input.
func (t *Tap) Usage() Usage {
	a := &t.found
	u := a.usage.ended(t.Tokens(), a.over(t.stream), t.op.Generates())
	u.Tier = cmp.Or(u.Tier, a.tier)
	return u
}

// Finished says whether the answer came to its proper end ([DONE], or
// response.completed and its kin, message_stop, Gemini's finishReason, or the
// end of a JSON value). Servers send
// [DONE] after an error too; see Failed.
func (t *Tap) Finished() bool { return t.found.finished }

// Failed is the message of the error event seen in the stream, or of the
// error in a JSON body, if any.
func (t *Tap) Failed() string { return t.found.failed }

// FinishReason is the first choice's, as reported. For the Responses API it is
// why the response is incomplete, or else its last status.
func (t *Tap) FinishReason() string { return t.found.finish }

// ServedModel is the model name the server gave.
func (t *Tap) ServedModel() string { return t.found.served }
