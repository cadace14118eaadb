// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"slices"
	"strconv"
)

// Backend is the server for which a request is translated.
type Backend struct {
	Dialect Dialect
	Model   string // its name there; "": the client's
	// MaxOutput is the bound on output tokens where the dialect requires one and
	// the client set none. 0: 4096.
	MaxOutput int
	Quirks    Quirks // of servers that are compatible with OpenAI's
	Strict    bool   // refuse what would else be left out
	Seal      string // the mark of its account on reasoning that no other can read; see [Seal]
	// Images fetches an image where the dialect takes only data. nil: refused.
	Images func(url string) (mediaType string, data []byte, err error)
}

// defaultMaxOutput is the bound on output where nothing says another, in tokens.
const defaultMaxOutput = 4096

// Translation is a request in the backend's dialect, and what the way back
// needs. It may be used for several attempts.
type Translation struct {
	Op      Op
	Body    []byte
	Stream  bool
	Dropped []string // members that the backend has no place for, sorted

	dialect Dialect
	quirks  Quirks
	legacy  bool   // the client wants a call in the older form (OpenAI)
	usage   bool   // the client asked for usage in its stream
	model   string // the backend's name of it, where the server gives none
	echo    []byte // members of the request that the answer repeats (Responses)
	vectors int    // embeddings that the answer must have
	base64  bool   // of which the client wants them in
}

// AnswerOptions say what the client gets.
type AnswerOptions struct {
	Stream       bool   // what the server sends: a stream, else one JSON body
	Model        string // name to show to the client; "": the server's
	IncludeUsage bool   // usage in the stream, where that is asked for
	RequestID    string // in errors, and in ids where the server gives none
	Created      int64  // Unix seconds, where the server does not say
	MaxBody      int    // bytes of a whole answer; 0: 64 MiB
	InputTokens  int    // estimated, where an answer must tell them and the server does not
	// JSONArray: a client of Gemini's streamGenerateContent gets the stream as one
	// JSON array, not as events (it did not send alt=sse). The server sends events.
	JSONArray bool
}

// Reader reads an answer as its bytes pass and gives those for the client. One
// goroutine. A [Tap] is one, for a server of the client's dialect.
type Reader interface {
	Passing
	Found
}

// Passing is the part of a Reader that takes and gives bytes.
type Passing interface {
	// Feed takes the next bytes and returns those to pass on, which are valid
	// until the next call.
	Feed(in []byte) []byte
	// Close says that the answer ended and returns what was still held. That it
	// ended too early is for the caller to tell: it is then neither Finished nor
	// Failed.
	Close() []byte
	// MidEvent says whether what was passed on ends inside an event.
	MidEvent() bool
}

// Found is what a Reader has found so far.
type Found interface {
	Progress
	Usage() Usage
	FinishReason() string // the first choice's, in the server's words
	ServedModel() string  // the name that the server gave
}

// Progress is how far an answer has come.
type Progress interface {
	Tokens() int    // events with output so far: from the first on the answer has begun
	Finished() bool // it came to its proper end
	Failed() string // the message of the error in it, if any
}

// codec is how a dialect is read and written.
type codec struct {
	readRequest  func(c *chat, body []byte, depth int) *Error
	writeRequest func(w *requestWriter)
	readAnswer   func(q Quirks, stream bool) answerReader
	writeAnswer  func(o *answerContext) answerWriter
	writeStream  func(o *answerContext) answerWriter
}

// codecs has a row for each dialect. A nil function: the dialect is not spoken
// on that side.
var codecs = [...]codec{
	DialectOpenAI: {
		readRequest: readOpenAI, writeRequest: writeOpenAI, readAnswer: openAIAnswer,
		writeAnswer: newOpenAIWhole, writeStream: newOpenAIStream,
	},
	DialectResponses: {
		readRequest: readResponses, writeRequest: writeResponses, readAnswer: responsesAnswer,
		writeAnswer: newResponsesWhole, writeStream: newResponsesStream,
	},
	DialectAnthropic: {
		readRequest: readAnthropic, writeRequest: writeAnthropic, readAnswer: anthropicAnswer,
		writeAnswer: newAnthropicWhole, writeStream: newAnthropicStream,
	},
	DialectGemini: {
		readRequest: readGemini, writeRequest: writeGemini, readAnswer: geminiAnswer,
		writeAnswer: newGeminiWhole, writeStream: newGeminiStream,
	},
	DialectBedrock: {writeRequest: writeBedrock, readAnswer: bedrockAnswer},
}

// answerContext is what a writer of answers knows.
type answerContext struct {
	AnswerOptions
	legacy bool   // see Translation
	echo   []byte // see Translation
	fault  string // what the writer could not write, in the end
}

// Translate makes the body for a backend. Where that speaks the client's
// dialect, the body keeps its bytes but for what [Edits] change. What cannot be
// said in the other dialect is refused with the path of it; parameters that
// only shape the answer are left out and named.
func Translate(r *Request, b Backend) (*Translation, *Error) {
	front := r.Op.Dialect()
	t := &Translation{Op: r.Op, Stream: r.Stream, dialect: b.Dialect, quirks: b.Quirks, usage: r.IncludeUsage, model: b.Model}
	if b.Dialect == front {
		if b.Quirks.NoN && r.N > 1 {
			return nil, cannot("n", "must be 1 for this server")
		}
		t.Body, t.Dropped = r.Edited(Edits{Model: b.Model, IncludeUsage: true, Quirks: b.Quirks})
		if b.Strict && len(t.Dropped) > 0 {
			return nil, leftOut(t.Dropped[0], b.Dialect)
		}
		if body, foreign := withoutForeign(front, t.Body, b.Seal); foreign {
			t.Body, t.Dropped = body, append(t.Dropped, foreignThinking)
			slices.Sort(t.Dropped)
		} else {
			t.Body = body
		}
		return t, nil
	}
	if !Speaks(r.Op, b.Dialect) {
		return nil, cannotServe(r.Op, b.Dialect)
	}
	if b.Model == "" {
		b.Model = r.Model
	}
	c := &chat{dialect: front, n: 1}
	w := &requestWriter{chat: c, backend: &b}
	w.out = make([]byte, 0, len(r.body)+len(r.body)/8+512)
	if r.Op.Embeds() {
		t.embeddings(r, w)
	} else {
		body := r.body
		if r.Op == OpCountContents {
			body = countedRequest(body)
		}
		if err := codecs[front].readRequest(c, body, r.depth); err != nil {
			return nil, err
		}
		c.ownSigns(b.Dialect)
		c.stream, c.usage, c.maxTokens = r.Stream, r.IncludeUsage, r.MaxTokens
		if b.Dialect != DialectGemini {
			w.withoutShown()
		}
		codecs[b.Dialect].writeRequest(w)
	}
	w.leftOver()
	if w.err == nil && r.Op.Counts() {
		w.out = countBody(b, w.out)
	}
	if w.err == nil && b.Strict && len(w.dropped) > 0 {
		w.err = leftOut(w.dropped[0], b.Dialect)
	}
	if w.err != nil {
		return nil, w.err
	}
	t.Body, t.Dropped, t.echo, t.legacy = w.out, w.dropped, c.echo, c.legacy
	return t, nil
}

// Speaks says that requests of op can be translated for a server of dialect d,
// or need not be.
func Speaks(op Op, d Dialect) bool {
	front := op.Dialect()
	if d == front {
		return true
	}
	switch {
	case op.Generates():
		return int(d) < len(codecs) && codecs[d].writeRequest != nil && codecs[d].readAnswer != nil &&
			codecs[front].readRequest != nil && codecs[front].writeAnswer != nil
	case op.Counts():
		return int(d) < len(codecs) && d != DialectOpenAI
	case op.Embeds():
		return d == DialectOpenAI || d == DialectGemini || d == DialectPredict
	}
	return false
}

// leftOut is the 400 for a member that is not to be left out.
func leftOut(name string, d Dialect) *Error {
	err := cannot(name, fmt.Sprintf("cannot be said to a server that speaks %s", d))
	err.Code = "unsupported_parameter"
	return err
}

// cannotServe is the 400 for an operation that a backend's dialect has no form of.
func cannotServe(op Op, d Dialect) *Error {
	err := InvalidRequest("", fmt.Sprintf("the operation %s cannot be translated for a server that speaks %s", op, d))
	err.Code = "unsupported_operation"
	return err
}

// Reshaped is the translation of a request that goes to a server of the client's
// own dialect, for an answer that comes whole where a stream is asked for, or the
// other way round: what is known of it is written anew in the form asked for. It
// says no where nothing can be written.
func Reshaped(op Op, stream bool, q Quirks) (*Translation, bool) {
	switch op {
	case OpChat, OpResponses, OpMessages, OpGenerate:
		return &Translation{Op: op, Stream: stream, dialect: op.Dialect(), quirks: q}, true
	}
	return nil, false
}

// Answer reads one answer to the request.
func (t *Translation) Answer(o AnswerOptions) Reader {
	array := o.JSONArray && t.Stream && t.Op == OpGenerate
	if t.dialect == t.Op.Dialect() && o.Stream == t.Stream {
		tap := NewTap(TapOptions{Op: t.Op, Stream: o.Stream, DropUsage: t.Stream && !o.IncludeUsage && !t.usage, AnswerModel: o.Model})
		if array && o.Stream {
			return &arrayReader{Reader: tap}
		}
		return tap
	}
	o.IncludeUsage = o.IncludeUsage || t.usage
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	if !t.Op.Generates() {
		return &converted{t: t, o: o}
	}
	front := codecs[t.Op.Dialect()]
	c := &answerContext{AnswerOptions: o, echo: t.echo, legacy: t.legacy}
	r := &relay{op: t.Op, stream: o.Stream, context: c, dialect: t.dialect, model: t.model, from: codecs[t.dialect].readAnswer(t.quirks, o.Stream)}
	if r.client = t.Stream; r.client {
		r.to = front.writeStream(c)
	} else {
		r.to = front.writeAnswer(c)
	}
	if array {
		return &arrayReader{Reader: r}
	}
	return r
}

// requestWriter is one request on its way to a backend.
type requestWriter struct {
	*chat
	backend *Backend
	out     []byte
	used    [paramCount]bool
	dropped []string
	err     *Error
}

// refuse notes the first error.
func (w *requestWriter) refuse(err *Error) {
	if w.err == nil {
		w.err = err
	}
}

// take is the value of a member, which then counts as used; nil: not set.
func (w *requestWriter) take(k paramKind) []byte {
	w.used[k] = true
	return w.params[k].raw
}

// maxDropped bounds the names that a translation tells.
const maxDropped = 64

// drop names a member as left out.
func (w *requestWriter) drop(name string) {
	i, found := slices.BinarySearch(w.dropped, name)
	if !found && len(w.dropped) < maxDropped {
		w.dropped = slices.Insert(w.dropped, i, name)
	}
}

// leftOver names what the writer did not take.
func (w *requestWriter) leftOver() {
	for k := range w.params {
		if p := &w.params[k]; p.name != "" && !w.used[k] {
			w.drop(p.name)
		}
	}
	for _, p := range w.others {
		w.drop(p.name)
	}
}

// member begins a member of the object that is open.
func (w *requestWriter) member(name string) { w.out = appendMember(w.out, name) }

// quoted writes a member that is a string.
func (w *requestWriter) quoted(name string, l lit) { w.out = appendText(w.out, name, l) }

// raw writes a member whose value is JSON already.
func (w *requestWriter) raw(name string, value []byte) {
	w.out = append(appendMember(w.out, name), value...)
}

// pass writes a member under another name, if it was set.
func (w *requestWriter) pass(k paramKind, name string) {
	if value := w.take(k); value != nil {
		w.raw(name, value)
	}
}

// open begins an element of an array, an object.
func (w *requestWriter) open() { w.out = append(appendComma(w.out), '{') }

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// appendComma parts what comes next from what stands before it.
func appendComma(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] != '{' && b[n-1] != '[' && b[n-1] != ':' {
		return append(b, ',')
	}
	return b
}

// appendLine appends JSON without its line ends, which none has inside of a
// string: for events, of which each line is one field.
func appendLine(b, json []byte) []byte {
	for _, c := range json {
		if c != '\n' && c != '\r' {
			b = append(b, c)
		}
	}
	return b
}

// appendMember begins a member of an object. name needs no escape.
func appendMember(b []byte, name string) []byte {
	b = append(appendComma(b), '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

// appendText appends a member that is a string.
func appendText(b []byte, name string, l lit) []byte {
	return appendLit(appendMember(b, name), l)
}

// appendLit appends a string.
func appendLit(b []byte, l lit) []byte {
	b = append(b, '"')
	b = append(b, l...)
	return append(b, '"')
}
