// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package llm reads, edits and translates the wire formats of LLM APIs: pure
// functions over bytes, no sockets, no clocks.
//
// [Read] makes one scan over a request body and yields a [Request]: what
// policy needs (model, stream, bounds, prompt view) and the byte offsets of
// what may be edited. [Translate] makes the body for a server of another
// [Dialect], and a [Translation] reads the answer back. A [Tap] does that for a
// server of the client's own dialect: it reads usage and the first token from
// an answer as its bytes pass, and makes the few edits the gateway owes the
// client. [Error] is a refusal in the client's dialect.
//
// Start with read.go for requests, tap.go for answers, chat.go and event.go for
// the form in which dialects meet: each has one reader into it and one writer
// out of it (the table codecs), and no code knows two of them. Routing, retries
// and what a model name resolves to are for others.
//
// Always: a body for a server of the client's dialect is never re-marshalled,
// what is not edited keeps its bytes; what a translation cannot say is refused
// with its place, or left out and named; a body that two parsers could read
// differently in what policy reads is refused; the same bytes and counts come
// out however an answer is split.
package llm

import (
	"mime"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// Readable says whether [Read] knows a body of n bytes and this Content-Type.
// What it does not know is passed on, or picked for, as it is.
func Readable(op Op, contentType string, n int) bool {
	return n > 0 && op != OpModels && (IsJSON(contentType) || op.takesForms() && strings.HasPrefix(contentType, "multipart/form-data"))
}

// IsJSON says that a Content-Type is read as JSON: none is, too.
func IsJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && strings.HasPrefix(media, "application/") && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// Limits bound what Read accepts.
type Limits struct {
	Depth int // of nested JSON; 0: 128
}

// Request is what one scan of a body found. Strings that equal a part of the
// body are copies; Prompt refers to the body's bytes and lives as long.
type Request struct {
	Op               Op
	Model            string
	Stream           bool
	IncludeUsage     bool   // the client asked for usage in the stream itself
	N                int    // choices asked for; at least 1
	MaxTokens        int    // output bound, the largest if several are given; 0: the client set none
	User             string // user, or else safety_identifier
	CacheSalt        string
	ServiceTier      string // asked for; "": the server's default
	Tools            int    // number of tools
	Images           int    // image parts, of all messages
	Audio            int
	Files            int
	Structured       bool // JSON or a schema is asked for
	Reasoning        bool // reasoning is asked for in so many words
	PreviousResponse string
	Prompt           Prompt

	depth int // bound on nesting, for a second reading

	body    []byte
	offsets offsets
}

// offsets are the places in the body where edits go. A zero span is absent.
type offsets struct {
	model         jsonedit.Span   // the value, with its quotes if it has any
	bare          bool            // model is a form field: no quotes
	streamOptions jsonedit.Span   // the value, an object or null
	includeUsage  jsonedit.Span   // the value inside
	object        jsonedit.Span   // the top-level object
	inner         []jsonedit.Span // of values that repeat the model of the path (Gemini)
}

// Edits are what the gateway may change in a body on the way to the server.
type Edits struct {
	Model        string // "": keep
	IncludeUsage bool   // ask a stream for usage if the client did not
	Quirks       Quirks // what a server of chat completions needs otherwise
}
