// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"math"
	"mime"
	"strings"
	"unicode"

	"github.com/penstock/penstock/internal/jsonedit"
)

const (
	maxModelName = 512 // bytes
	maxChoices   = 128 // OpenAI's bound for n
)

// Read scans a decoded body once. contentType decides between JSON and
// multipart (whose model field is read, the rest passes unparsed). The body
// must not change while the Request lives. OpModels has no body to read.
func Read(op Op, contentType string, body []byte, lim Limits) (*Request, *Error) {
	return ReadAt(op, "", contentType, body, lim)
}

// ReadAt is Read plus what the path says: Gemini's has the model and the
// method, which decides whether the answer is a stream.
func ReadAt(op Op, path, contentType string, body []byte, lim Limits) (*Request, *Error) {
	req := &Request{Op: op, N: 1, body: body, depth: lim.Depth}
	if op.Dialect() == DialectGemini {
		req.Model, req.Stream, _ = PathModel(path)
		if fault := modelFault(req.Model); fault != "" {
			return nil, InvalidRequest("model", "model "+fault)
		}
	}
	if op == OpModels {
		return req, nil
	}
	boundary, err := formBoundary(op, contentType)
	if err != nil {
		return nil, err
	}
	if boundary != "" {
		if err := readForm(req, boundary); err != nil {
			return nil, err
		}
		return req, nil
	}
	rd := reader{req: req, body: body, s: jsonedit.NewScanner(body, lim.Depth)}
	rd.prompt = &req.Prompt
	rd.prompt.body = body
	rd.document()
	if rd.s.Failed() {
		syntax := rd.s.Err()
		return nil, &Error{Status: 400, Type: typeInvalidRequest, Code: "invalid_json", Message: syntax.Error()}
	}
	if rd.err != nil {
		return nil, rd.err
	}
	if err := rd.complete(); err != nil {
		return nil, err
	}
	return req, nil
}

// formBoundary is the boundary of a multipart form, or "" for JSON. A body
// without a type is taken for JSON. A charset other than UTF-8 is refused:
// the server would read other text than the gateway.
func formBoundary(op Op, contentType string) (string, *Error) {
	if contentType == "" || contentType == "application/json" {
		return "", nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", UnsupportedMediaType("malformed Content-Type")
	}
	switch {
	case media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"):
		if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
			return "", UnsupportedMediaType(fmt.Sprintf("charset %q: JSON is UTF-8", charset))
		}
		return "", nil
	case media == "multipart/form-data" && op.takesForms():
		if b := params["boundary"]; b != "" && len(b) <= maxBoundary {
			return b, nil
		}
		return "", InvalidRequest("", "multipart/form-data without a valid boundary")
	}
	return "", UnsupportedMediaType(fmt.Sprintf("Content-Type %q is not supported here; send application/json", media))
}

// reader is one pass over a JSON body. The first error stops it.
type reader struct {
	s      jsonedit.Scanner
	body   []byte
	req    *Request
	prompt *Prompt
	seen   [fieldEngine + 1]bool
	absent [fieldEngine + 1]bool // seen, but null
	asked  bool                  // include_usage is true
	nested bool                  // inside the answer of a tool
	low    bool                  // the picture of the part is wanted in low detail
	buf    [maxFieldName]byte    // for member names that are escaped
	err    *Error
}

// refuse notes the first error of meaning.
func (rd *reader) refuse(param, message string) {
	if rd.err == nil {
		rd.err = InvalidRequest(param, param+" "+message)
		if param == "" {
			rd.err.Message = message
		}
	}
}

// document reads the top-level object.
func (rd *reader) document() {
	rd.req.offsets.object.Start = rd.start()
	if !rd.s.Object() {
		if rd.s.Peek() == jsonedit.Invalid {
			rd.s.Skip()
		} else {
			rd.refuse("", "the body must be a JSON object")
		}
		return
	}
	for {
		key, ok := rd.s.NextMember()
		if !ok {
			break
		}
		var buf [maxFieldName + 4]byte
		name, exact := foldName(&buf, key, rd.body)
		f := fields[string(name)]
		if rd.req.Op.Dialect() == DialectGemini && f != fieldEngine {
			if rd.gemini(rd.name(key)); rd.err != nil {
				return
			}
			continue
		}
		if !f.in(rd.req.Op) {
			rd.s.Skip()
			continue
		}
		if f == fieldEngine {
			rd.err = engineField(string(name))
			return
		}
		if rd.admit(f, exact); rd.err == nil {
			rd.value(f, fieldNames[f])
		}
		if rd.err != nil {
			return
		}
	}
	rd.req.offsets.object.End = rd.s.Pos()
	rd.s.Finish()
}

// start is the offset of the value that comes next.
func (rd *reader) start() int {
	rd.s.Peek()
	return rd.s.Pos()
}

// extraArgs refuses engine fields one level down, where vLLM looks for them
// too: it hands all of the object to the engine and reads kv_transfer_params
// from there.
func (rd *reader) extraArgs(param string) {
	if !rd.s.Object() {
		rd.s.Skip()
		return
	}
	for {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		var buf [maxFieldName + 4]byte
		if name, _ := foldName(&buf, key, rd.body); fields[string(name)] == fieldEngine {
			rd.err = engineField(param + "." + string(name))
			return
		}
		rd.s.Skip()
	}
}

func engineField(name string) *Error {
	err := InvalidRequest(name, name+" controls the engine and is not accepted from clients")
	err.Code = "unsupported_parameter"
	return err
}

// admit refuses a field that two parsers could read differently.
func (rd *reader) admit(f field, exact bool) {
	switch {
	case !exact:
		rd.refuse(fieldNames[f], otherCase)
	case rd.seen[f]:
		rd.refuse(fieldNames[f], twice)
	}
	rd.seen[f] = true
}

const (
	otherCase = "is spelled with other letter case, which parsers read differently"
	twice     = "occurs twice"
)

// value reads the value of a field, or passes over one that means nothing in
// this operation.
func (rd *reader) value(f field, name string) {
	op := rd.req.Op
	generates := op == OpChat || op == OpCompletions
	messages := op == OpMessages || op == OpCountTokens
	if rd.s.Peek() == jsonedit.Null {
		// As if it were not there, but for the place of stream_options.
		rd.absent[f] = true
		if null := rd.s.Skip(); f == fieldStreamOptions {
			rd.req.offsets.streamOptions = null
		}
		return
	}
	switch {
	case f == fieldModel:
		rd.model()
	case f == fieldExtraArgs:
		rd.extraArgs(name)
	case f == fieldStream:
		rd.req.Stream = rd.boolean(name)
	case f == fieldStreamOptions && generates:
		rd.streamOptions()
	case f == fieldN && (generates || op == OpImages):
		rd.req.N = rd.integer(name, 1, maxChoices)
	case f == fieldMaxTokens && (generates || messages),
		f == fieldMaxCompletionTokens && op == OpChat,
		f == fieldMaxOutputTokens && op == OpResponses:
		rd.req.MaxTokens = max(rd.req.MaxTokens, rd.integer(name, 0, math.MaxInt32))
	case f == fieldServiceTier:
		rd.req.ServiceTier = rd.text(name)
	case f == fieldUser:
		rd.req.User = rd.text(name)
	case f == fieldSafetyIdentifier:
		if rd.req.SafetyID = rd.text(name); !rd.seen[fieldUser] || rd.absent[fieldUser] {
			rd.req.User = rd.req.SafetyID
		}
	case f == fieldCacheSalt:
		rd.req.CacheSalt = rd.text(name)
	case f == fieldTools && (op == OpChat || op == OpResponses || messages):
		rd.tools()
	case f == fieldMessages && (op == OpChat || op == OpEmbeddings || messages):
		rd.messages(name, false)
	case f == fieldPrompt && op == OpCompletions, f == fieldInput && op == OpEmbeddings:
		rd.prompts(name)
	case f == fieldInput && op == OpResponses:
		rd.input(name)
	case f == fieldInstructions && op == OpResponses:
		if t, ok := rd.literal(name); ok {
			rd.prompt.instructions = t
			rd.prompt.textBytes += t.Size
		}
	case f == fieldSystem:
		rd.system(name)
	case f == fieldPreviousResponse && op == OpResponses && rd.s.Peek() == jsonedit.String:
		rd.req.PreviousResponse = rd.text(name)
	case f >= fieldMetadata && f <= fieldThinking:
		rd.asks(f)
	default:
		rd.s.Skip()
	}
}

// complete checks what a body of this operation must have.
func (rd *reader) complete() *Error {
	req := rd.req
	req.IncludeUsage = req.Stream && rd.asked
	if req.Model == "" {
		return missing("model")
	}
	var either []field // one of these must be there
	var name string    // the one to tell
	switch req.Op {
	case OpChat, OpMessages, OpCountTokens:
		either, name = []field{fieldMessages}, "messages"
	case OpGenerate, OpCountContents:
		either, name = []field{fieldMessages}, "contents"
	case OpEmbedContent:
		either, name = []field{fieldMessages}, "content"
	case OpEmbedContents:
		either, name = []field{fieldMessages}, "requests"
	case OpCompletions:
		either, name = []field{fieldPrompt, fieldPromptEmbeds}, "prompt"
	case OpEmbeddings:
		either, name = []field{fieldInput, fieldMessages}, "input"
	case OpResponses:
		either, name = []field{fieldInput, fieldPrompt, fieldPreviousResponse, fieldConversation}, "input"
	default:
		return nil
	}
	for _, f := range either {
		if rd.seen[f] && !rd.absent[f] {
			return nil
		}
	}
	return missing(name)
}

func missing(param string) *Error {
	err := InvalidRequest(param, param+" is missing")
	err.Code = "missing_required_parameter"
	return err
}

func (rd *reader) model() {
	t, ok := rd.literal("model")
	if !ok {
		return
	}
	rd.req.offsets.model = t.Quoted()
	if t.Size > maxModelName {
		rd.refuse("model", modelTooLong)
		return
	}
	rd.req.Model = t.Value(rd.body)
	if fault := modelFault(rd.req.Model); fault != "" {
		rd.refuse("model", fault)
	}
}

var modelTooLong = fmt.Sprintf("is longer than %d bytes", maxModelName)

// modelFault says what is wrong with a model name, or "".
func modelFault(name string) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > maxModelName:
		return modelTooLong
	case strings.ContainsFunc(name, unicode.IsControl):
		return "holds a control character"
	}
	return ""
}

// literal reads a string that must be there.
func (rd *reader) literal(param string) (jsonedit.Text, bool) {
	t, ok := rd.s.Text()
	if !ok {
		rd.wrongType(param, "must be a string")
	}
	return t, ok
}

// wrongType tells a value of the wrong type from one that is no value.
func (rd *reader) wrongType(param, message string) {
	if rd.s.Peek() == jsonedit.Invalid {
		rd.s.Skip()
		return
	}
	rd.refuse(param, message)
}

func (rd *reader) text(param string) string {
	t, ok := rd.literal(param)
	if !ok {
		return ""
	}
	return t.Value(rd.body)
}

func (rd *reader) boolean(param string) bool {
	kind := rd.s.Peek()
	if kind != jsonedit.True && kind != jsonedit.False {
		rd.wrongType(param, "must be true or false")
		return false
	}
	rd.s.Skip()
	return kind == jsonedit.True
}

func (rd *reader) integer(param string, low, high int) int {
	number, ok := rd.s.Number()
	if !ok {
		rd.wrongType(param, "must be an integer")
		return 0
	}
	n, ok := jsonedit.Int(number.Of(rd.body))
	switch {
	case !ok && strings.ContainsAny(string(number.Of(rd.body)), ".eE"):
		rd.refuse(param, "must be an integer")
	case !ok || n < low || n > high:
		rd.refuse(param, fmt.Sprintf("must be between %d and %d", low, high))
	}
	return n
}

// streamOptions reads include_usage, which may be edited later and so must
// occur once.
func (rd *reader) streamOptions() {
	start := rd.start()
	if !rd.s.Object() {
		rd.wrongType("stream_options", "must be an object")
		return
	}
	for {
		key, ok := rd.s.NextMember()
		if !ok {
			break
		}
		var buf [maxFieldName + 4]byte
		name, exact := foldName(&buf, key, rd.body)
		if string(name) != "include_usage" {
			rd.s.Skip()
			continue
		}
		at := &rd.req.offsets.includeUsage
		if !exact {
			rd.refuse("stream_options.include_usage", otherCase)
			return
		}
		if at.Len() > 0 {
			rd.refuse("stream_options.include_usage", twice)
			return
		}
		at.Start = rd.start()
		if rd.s.Peek() == jsonedit.Null {
			rd.s.Skip()
		} else if rd.asked = rd.boolean("stream_options.include_usage"); rd.err != nil {
			return
		}
		at.End = rd.s.Pos()
	}
	rd.req.offsets.streamOptions = jsonedit.Span{Start: start, End: rd.s.Pos()}
}

func (rd *reader) tools() {
	start := rd.start()
	if !rd.s.Array() {
		rd.wrongType("tools", "must be an array")
		return
	}
	for rd.s.NextElement() {
		if rd.s.Peek() != jsonedit.Object {
			rd.wrongType(fmt.Sprintf("tools[%d]", rd.req.Tools), "must be an object")
			return
		}
		rd.s.Skip()
		rd.req.Tools++
	}
	if rd.req.Tools > 0 {
		rd.prompt.tools = jsonedit.Span{Start: start, End: rd.s.Pos()}
		rd.prompt.textBytes += rd.prompt.tools.Len()
	}
}
