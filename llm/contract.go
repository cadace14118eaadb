// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// CONTRACT of the package towards epp and proxy. The bodies are still to be
// written; the names and meanings are settled.

// OpOf tells the operation of a cleaned path: /v1/chat/completions,
// /v1/completions, /v1/embeddings, /v1/responses, /v1/models (and
// /v1/models/{id}); OpOther for the rest.
func OpOf(path string) Op { panic("to be written") }

// Read scans a decoded body once. contentType decides between JSON and
// multipart (whose model field is read, the rest passes unparsed). The body
// must not change while the Request lives.
func Read(op Op, contentType string, body []byte, lim Limits) (*Request, *Error) {
	panic("to be written")
}

// Decode undoes a Content-Encoding (identity, gzip, deflate, zstd) under max
// bytes: 413 beyond it, 415 for a coding it does not know, 400 for bad data.
func Decode(encoding string, body []byte, max int64) ([]byte, *Error) { panic("to be written") }

// Body returns the body to send upstream: the original slice when e changes
// nothing, else a copy with the edits spliced in at the byte offsets.
func (r *Request) Body(e Edits) []byte { panic("to be written") }

// Prompt is the view of a body that prefix hashing reads: one or more
// prompts, each a sequence of pieces in the order in which the engine's chat
// template puts them (tools, then messages: role and content parts).
type Prompt struct{}

// Len is the number of prompts (an array of prompts has several; chat one; a
// body without a prompt none).
func (p *Prompt) Len() int { panic("to be written") }

// Tokens estimates the tokens of all prompts: token ids exactly, text at four
// bytes a token.
func (p *Prompt) Tokens() int { panic("to be written") }

// Bytes calls yield with the unescaped bytes of prompt i in order, in pieces
// of any size; a token id is its four bytes, little endian; media (image and
// audio URLs or data) are a hash of their content. The pieces are valid only
// during the call. It stops when yield returns false. It does not allocate.
func (p *Prompt) Bytes(i int, yield func([]byte) bool) { panic("to be written") }

// TapOptions says what a Tap has to do.
type TapOptions struct {
	Op          Op
	Stream      bool   // text/event-stream; else one JSON body
	DropUsage   bool   // take out the usage chunk that the client did not ask for
	AnswerModel string // write this name into "model"; "": leave the server's
}

// Tap watches one answer. One goroutine.
type Tap struct{}

// NewTap starts one.
func NewTap(o TapOptions) *Tap { panic("to be written") }

// Feed takes the next bytes of the answer and returns those to pass on now:
// in itself when nothing is edited. What it returns is valid until the next
// call. When nothing is to be edited it never holds bytes back; else at most
// the unfinished event (bounded; an event over the bound passes unedited).
func (t *Tap) Feed(in []byte) []byte { panic("to be written") }

// Close says that the answer ended and returns the bytes still held.
func (t *Tap) Close() []byte { panic("to be written") }

// Tokens is the number of output tokens (content events) seen so far; from
// the first one on the answer has begun.
func (t *Tap) Tokens() int { panic("to be written") }

// Usage is what the answer reported; Reported false: the tap's own count.
func (t *Tap) Usage() Usage { panic("to be written") }

// Finished says whether the answer came to its proper end ([DONE], or
// response.completed and its kin, or the end of a JSON value).
func (t *Tap) Finished() bool { panic("to be written") }

// Failed is the error event seen in the stream, if any.
func (t *Tap) Failed() string { panic("to be written") }

// FinishReason is the first choice's, as reported.
func (t *Tap) FinishReason() string { panic("to be written") }

// ServedModel is the model name the server gave.
func (t *Tap) ServedModel() string { panic("to be written") }

// JSON is the error as an OpenAI error body with the request id.
func (e *Error) JSON(requestID string) []byte { panic("to be written") }

// StreamError is the error as an event inside a stream of op that has begun.
func (e *Error) StreamError(op Op, requestID string) []byte { panic("to be written") }
