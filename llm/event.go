// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// This file is the form in which the answers of all dialects meet: a sequence
// of events, whether the answer came whole or as a stream, and whether it goes
// on whole or as a stream.
//
// The order for each choice: start, any of text, reasoning, refusal and calls of
// tools, finish; then usage and end. Calls may interleave, each by its own
// number. Readers begin a call before its arguments and need not end it.

type eventKind uint8

const (
	evStart     eventKind = iota + 1 // id, model, created; once, before all others but errors and pings
	evText                           // text
	evReasoning                      // text
	evSignature                      // text: ends the reasoning that it signs
	evRedacted                       // text: reasoning that only the server can read
	evRefusal                        // text
	evMedia                          // name: the media type; text: data in base64, or id: a URL
	evToolStart                      // tool, id, name; sign may be set
	evToolArgs                       // tool, text: a piece of the JSON text of the arguments
	evToolEnd                        // tool: no further arguments
	evFinish                         // reason, vendor; text: the stop sequence, where it is known
	evUsage                          // usage: all that is known of it by now; anywhere, even first
	evPing                           // the server is still at it
	evError                          // err
	evEnd                            // the proper end of the answer
)

// event is a step of an answer. Its slices live as long as the call to which it
// is given. text, id, name and vendor are the texts of string literals.
type event struct {
	kind    eventKind
	choice  int
	tool    int // own number of the call in its choice, from 0
	text    lit
	id      lit
	name    lit    // of the tool; of the model at evStart; a media type
	sign    lit    // signature of a call (Gemini)
	probs   []byte // of text: how likely its tokens were, see logprobs.go; nil: not told
	created int64
	reason  finish
	vendor  lit // the reason as the server put it
	usage   Usage
	err     *Error
}

// finish is why an answer ended.
type finish uint8

const (
	finishStop finish = iota
	finishSequence
	finishLength
	finishTools
	finishFilter  // of the provider
	finishRefusal // of the model
	finishPause   // the server wants to be asked to go on
	finishContext // the context is full
	finishOther   // as vendor says
)

// answerReader reads what a server sends into events.
type answerReader interface {
	// feed takes the next bytes, close the end of them.
	feed(in []byte, to *relay)
	close(to *relay)
}

// eventReader reads the data of one event of a stream, of any framing, or a
// whole answer. It gives no evError for an early end, nor evEnd after evError.
type eventReader interface {
	event(kind, data []byte, to *relay)
	whole(body []byte, to *relay)
	// end is the end of the stream. It gives evEnd if that came where it may.
	end(to *relay)
}

// answerWriter appends what the client gets for an event to out. What is
// unfinished it keeps until a later event.
type answerWriter interface {
	write(out []byte, e *event) []byte
}
