// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package llm reads and edits the wire formats of LLM APIs: pure functions
// over bytes, no sockets, no clocks.
//
// [Read] makes one scan over a request body and yields a [Request]: what
// policy needs (model, stream, bounds, prompt view) and the byte offsets of
// what may be edited. A [Tap] reads usage and the first token from an answer
// as its bytes pass, and makes the few edits the gateway owes the client.
// [Error] is a refusal in the client's dialect.
//
// Bodies are never re-marshalled: what is not edited keeps its bytes.
package llm

import "net/http"

// Op is what a request asks for.
type Op uint8

// The operations with a parser of their own; Other is any further path that a
// pool allows: its body is passed on, only the model is read.
const (
	OpUnknown Op = iota
	OpChat
	OpCompletions
	OpEmbeddings
	OpResponses
	OpModels
	OpOther
)

// Limits bound what Read accepts.
type Limits struct {
	Depth int // of nested JSON; 0: 128
}

// Request is what one scan of a body found. Strings that equal a part of the
// body are copies; Prompt refers to the body's bytes and lives as long.
type Request struct {
	Op           Op
	Model        string
	Stream       bool
	IncludeUsage bool // the client asked for usage in the stream itself
	N            int  // choices asked for; at least 1
	MaxTokens    int  // output bound; 0: the client set none
	User         string
	CacheSalt    string
	Tools        int // number of tools
	Prompt       Prompt

	body    []byte
	offsets offsets
}

// offsets are the places in the body where edits go. A zero span is absent.
type offsets struct {
	model         span
	streamOptions span
	includeUsage  span
	object        span // the top-level object
}

type span struct{ start, end int }

// Edits are what the gateway may change in a body on the way to the server.
type Edits struct {
	Model        string // "": keep
	IncludeUsage bool   // ask a stream for usage if the client did not
}

// Usage is what an answer cost, in tokens, as the server reported it. Input
// contains Cached; Output contains Reasoning (OpenAI's convention).
type Usage struct {
	Input, Output     int
	Cached, Reasoning int
	Reported          bool // false: the server said nothing; the counts are the tap's own
}

// Error is a refusal or a failure as the client will see it.
type Error struct {
	Status  int    // HTTP status
	Type    string // invalid_request_error, …
	Code    string // model_not_found, …; may be empty
	Param   string // the field at fault, messages[3].content; may be empty
	Message string
	Header  http.Header // e.g. Retry-After; may be nil
}

func (e *Error) Error() string { return e.Message }
