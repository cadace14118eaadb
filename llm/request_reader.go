// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// requestReader is what the readers of all dialects share: a cursor over a body
// that [Read] has found valid. The first error stops them.
type requestReader struct {
	*chat
	s    jsonedit.Scanner
	body []byte
	err  *Error
	buf  [64]byte // for escaped names
}

func newRequestReader(c *chat, body []byte, depth int) *requestReader {
	return &requestReader{chat: c, body: body, s: jsonedit.NewScanner(body, depth)}
}

func (r *requestReader) refuse(path, message string) {
	if r.err == nil {
		r.err = InvalidRequest(path, path+" "+message)
	}
}

// prefix makes the place of an error, told from inside an object, whole.
func (r *requestReader) prefix(path string) {
	if r.err != nil && r.err.Param != "" {
		r.err.Param, r.err.Message = path+"."+r.err.Param, path+"."+r.err.Message
	}
}

// next is the name of the next member of an object. It stops at an error.
func (r *requestReader) next() (string, bool) {
	if r.err != nil {
		return "", false
	}
	key, ok := r.s.NextMember()
	if !ok {
		return "", false
	}
	name := key.Of(r.body)
	if key.Escaped() {
		name, _ = jsonedit.Unescape(r.buf[:0], name)
	}
	if known, ok := memberNames[string(name)]; ok {
		return known, true
	}
	return string(name), true
}

// memberNames are those that occur again and again, so that reading them does
// not allocate.
var memberNames = map[string]string{
	"role": "role", "content": "content", "type": "type", "text": "text", "name": "name", "id": "id",
	"tool_calls": "tool_calls", "tool_call_id": "tool_call_id", "function": "function",
	"arguments": "arguments", "description": "description", "parameters": "parameters", "strict": "strict",
	"input": "input", "input_schema": "input_schema", "tool_use_id": "tool_use_id", "is_error": "is_error",
	"cache_control": "cache_control", "source": "source", "media_type": "media_type", "data": "data",
	"url": "url", "image_url": "image_url", "thinking": "thinking", "signature": "signature",
	"reasoning_content": "reasoning_content", "thinking_blocks": "thinking_blocks", "refusal": "refusal",
	"model": "model", "messages": "messages", "stream": "stream", "stream_options": "stream_options",
	"tools": "tools", "tool_choice": "tool_choice", "temperature": "temperature", "top_p": "top_p",
	"max_tokens": "max_tokens", "max_completion_tokens": "max_completion_tokens", "user": "user",
	"system": "system", "stop": "stop", "metadata": "metadata", "parts": "parts",
	"functionCall": "functionCall", "functionResponse": "functionResponse", "args": "args",
	"response": "response", "contents": "contents", "output": "output", "call_id": "call_id",
	"encrypted_content": "encrypted_content", "summary": "summary", "status": "status",
}

// maxParts bounds what a request is taken into: three bytes of a body make a
// part of a hundred times as many.
const maxParts = 1 << 16

// element says whether the array has another element. It stops at an error, and
// where the request has too many parts.
func (r *requestReader) element() bool {
	if r.err == nil && len(r.parts)+len(r.inner)+len(r.turns)+len(r.tools) > maxParts {
		r.err = InvalidRequest("", fmt.Sprintf("the request has more than %d messages, parts and tools", maxParts))
	}
	return r.err == nil && r.s.NextElement()
}

// members are the names of the members of the object that the reader is in, but
// for those that are null. The loop's body must consume each value.
func (r *requestReader) members() iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			key, ok := r.next()
			if !ok {
				return
			}
			if !r.null() && !yield(key) {
				return
			}
		}
	}
}

// null passes a null, which is as good as nothing.
func (r *requestReader) null() bool {
	if r.s.Peek() != jsonedit.Null {
		return false
	}
	r.s.Skip()
	return true
}

// raw passes a value and gives it as it was sent.
func (r *requestReader) raw() []byte { return r.s.Skip().Of(r.body) }

// saved is a place in the body to come back to.
type saved struct {
	s  jsonedit.Scanner
	is bool
}

// save passes a value that is to be read later.
func (r *requestReader) save() saved {
	at := saved{r.s, true}
	r.s.Skip()
	return at
}

// back moves the cursor to a saved value; its methods then read that one.
func (r *requestReader) back(at saved) { r.s = at.s }

// object enters an object that must be there.
func (r *requestReader) object(path string) bool {
	if r.s.Object() {
		return true
	}
	r.s.Skip()
	r.refuse(path, "must be an object")
	return false
}

// array enters an array that must be there.
func (r *requestReader) array(path string) bool {
	if r.s.Array() {
		return true
	}
	r.s.Skip()
	r.refuse(path, "must be an array")
	return false
}

// text reads a string that must be there.
func (r *requestReader) text(path string) lit {
	t, ok := r.s.Text()
	if !ok {
		r.s.Skip()
		r.refuse(path, "must be a string")
		return nil
	}
	return t.Of(r.body)
}

// word reads a string from which the reader chooses.
func (r *requestReader) word(path string) string { return r.text(path).String() }

// typed reads a value of one of these kinds.
func (r *requestReader) typed(path string, kinds ...jsonedit.Kind) []byte {
	kind := r.s.Peek()
	raw := r.raw()
	for _, k := range kinds {
		if k == kind {
			return raw
		}
	}
	what := map[jsonedit.Kind]string{
		jsonedit.Number: "a number", jsonedit.String: "a string", jsonedit.True: "true or false",
		jsonedit.Object: "an object", jsonedit.Array: "an array",
	}
	r.refuse(path, "must be "+what[kinds[0]])
	return nil
}

func (r *requestReader) number(path string) []byte { return r.typed(path, jsonedit.Number) }
func (r *requestReader) boolean(path string) []byte {
	return r.typed(path, jsonedit.True, jsonedit.False)
}

// maxOthers bounds the names of members that are kept to be told.
const maxOthers = 64

// ignore notes a member that has no place in chat, once for each name.
func (r *requestReader) ignore(name string, raw []byte) {
	if len(name) > 64 {
		name = name[:64]
	}
	for i := range r.others {
		if r.others[i].name == name {
			return
		}
	}
	if len(r.others) < maxOthers {
		r.others = append(r.others, param{name, raw})
	}
}

// topAlone takes out how many likely tokens are asked for, where no likelihoods are.
func (r *requestReader) topAlone() {
	if p := &r.params[paramTopLogprobs]; p.name != "" && r.params[paramLogprobs].name == "" {
		r.ignore(p.name, p.raw)
		*p = param{}
	}
}

// other passes a member that has no place in chat. prefix names where it stands.
func (r *requestReader) other(prefix, name string) {
	if r.null() {
		return
	}
	r.ignore(prefix+name, r.raw())
}

// arguments reads the JSON text of a call's arguments, which must be an object.
// None are as good as an empty one. path is asked only for an error.
func (r *requestReader) arguments(text lit, path func() string) []byte {
	args := []byte(text)
	if bytes.IndexByte(args, '\\') >= 0 {
		args, _ = jsonedit.Unescape(make([]byte, 0, len(text)+8), text)
	}
	if args = bytes.TrimSpace(args); len(args) == 0 {
		return []byte("{}")
	}
	if !isObject(args) {
		r.refuse(path(), "must be the text of a JSON object")
		return nil
	}
	return args
}

// isObject says that b is a JSON object and nothing else.
func isObject(b []byte) bool {
	s := jsonedit.NewScanner(b, 0)
	if s.Peek() != jsonedit.Object {
		return false
	}
	s.Skip()
	return s.Finish()
}

// dataURL takes a data: URL apart. ok is false for one that is not base64.
func dataURL(url lit) (media string, data lit, is, ok bool) {
	if !bytes.HasPrefix(url, []byte("data:")) {
		return "", nil, false, true
	}
	head := url[len("data:"):min(len(url), 256)]
	comma := bytes.IndexByte(head, ',')
	if comma < 0 {
		return "", nil, true, false
	}
	media, found := strings.CutSuffix(head[:comma].String(), ";base64")
	media, _, _ = strings.Cut(media, ";")
	return strings.ToLower(media), url[len("data:")+comma+1:], true, found
}

// isWeb says that a URL is one that others can fetch.
func isWeb(url lit) bool {
	s := url[:min(len(url), 16)].String()
	return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")
}

// truth says that a member is set and true.
func truth(raw []byte) bool { return string(raw) == "true" }

// integer is a number that is written as one; 0 if it is not.
func integer(raw []byte) int {
	n, _ := jsonedit.Int(raw)
	return n
}

// float is the value of a number.
func float(raw []byte) float64 {
	f, _ := strconv.ParseFloat(string(raw), 64)
	return f
}
