// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what is kept of an error, in bytes.
const (
	maxErrorBody = 64 << 10
	maxMessage   = 2000
	maxCode      = 128
	maxCodes     = 8
)

// evidence is what an error says of itself, in whatever shape it came.
type evidence struct {
	isError bool     // the body says that it is an error
	status  int      // a number in the body that is one of HTTP; 0: none
	message string   // bounded, printable
	first   string   // the most telling code, as written
	codes   []string // codes, types and names, plain; see plain
	wait    string   // a Google RetryInfo, or seconds as text
}

func (e *evidence) code() string { return e.first }

// add notes a code.
func (e *evidence) add(code string) {
	code = clean(clip(code[strings.LastIndexByte(code, '#')+1:], maxCode)) // AWS puts a namespace before it
	p := plain(code)
	if p == "" || len(e.codes) >= maxCodes {
		return
	}
	if e.first == "" {
		e.first = code
	}
	e.codes = append(e.codes, p)
}

func (e *evidence) has(codes []string) bool {
	for _, have := range e.codes {
		for _, c := range codes {
			if have == c {
				return true
			}
		}
	}
	return false
}

// plain is a code in the form of the table: providers do not agree on case and
// underscores, and AWS puts "Exception" behind.
func plain(code string) string {
	var b strings.Builder
	for i := range len(code) {
		switch c := code[i]; {
		case c >= 'A' && c <= 'Z':
			b.WriteByte(c + 'a' - 'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b.WriteByte(c)
		}
	}
	return strings.TrimSuffix(b.String(), "exception")
}

// readEvidence reads any body: of each dialect, of a gateway in between, HTML,
// nothing, half of something.
func readEvidence(h http.Header, body []byte) evidence {
	var e evidence
	if t := h["X-Amzn-Errortype"]; len(t) > 0 {
		name, _, _ := strings.Cut(t[0], ":")
		e.add(name)
		e.isError = true
	}
	if len(body) > maxErrorBody {
		body = body[:maxErrorBody]
	}
	body = eventOf(bytes.TrimSpace(body))
	var v any
	switch {
	case len(body) == 0:
	case json.Unmarshal(body, &v) == nil:
		e.read(v)
	case body[0] == '{' || body[0] == '[':
		e.guess(body)
	default:
		e.message = clean(untagged(string(body)))
	}
	return e
}

// mayBeError says whether the body of a 2xx is worth reading for an error.
func mayBeError(h http.Header, body []byte) bool {
	return len(h["X-Amzn-Errortype"]) > 0 || bytes.Contains(body[:min(len(body), maxErrorBody)], []byte("error"))
}

// eventOf is the data of the first event, if the body is one of a stream.
func eventOf(body []byte) []byte {
	if !bytes.HasPrefix(body, []byte("event:")) && !bytes.HasPrefix(body, []byte("data:")) {
		return body
	}
	var data []byte
	for line := range bytes.Lines(body) {
		if d, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, d...)
		} else if len(data) > 0 && len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	return bytes.TrimSpace(data)
}

// read takes what it knows from a decoded body.
func (e *evidence) read(v any) {
	if list, ok := v.([]any); ok && len(list) > 0 { // Google wraps errors of streams
		v = list[0]
	}
	m, ok := v.(map[string]any)
	if !ok {
		if s, ok := v.(string); ok {
			e.message = clean(s)
		}
		return
	}
	if r, ok := m["response"].(map[string]any); ok && m["error"] == nil { // response.failed of the Responses API
		if r["error"] != nil {
			m = r
		}
	}
	switch x := m["error"].(type) {
	case map[string]any:
		e.isError = true
		e.object(x)
	case string: // Ollama, Hugging Face
		e.isError = true
		e.message = clean(x)
		e.add(text(m["error_type"]))
		e.wait = number(m["estimated_time"])
	}
	if t := text(m["type"]); t == "error" || m["object"] == "error" || m["__type"] != nil {
		e.isError = true
		e.object(m)
	}
	if e.message == "" {
		e.bare(m)
	}
}

// bare is an object without an error member: Bedrock, Cohere, Mistral, FastAPI,
// and gateways.
func (e *evidence) bare(m map[string]any) {
	for _, key := range []string{"message", "Message", "detail", "error_description", "errors", "title", "msg"} {
		switch x := m[key].(type) {
		case string:
			e.message = clean(x)
		case map[string]any, []any:
			raw, _ := json.Marshal(x) // of decoded JSON
			e.message = clean(string(raw))
		}
		if e.message != "" {
			break
		}
	}
	for _, key := range []string{"code", "type", "__type", "reason"} {
		e.add(text(m[key]))
	}
}

// object is an error object. Its more special members come first.
func (e *evidence) object(m map[string]any) {
	if inner, ok := m["innererror"].(map[string]any); ok { // Azure
		e.add(text(inner["code"]))
	}
	for _, key := range []string{"code", "status", "type", "__type", "reason"} {
		s := text(m[key])
		if n, err := strconv.Atoi(s); err == nil && n >= 400 && n < 600 {
			e.status = n
			continue
		}
		if s != "error" {
			e.add(s)
		}
	}
	switch x := m["message"].(type) {
	case string:
		e.message = clean(x)
	case map[string]any, []any:
		raw, _ := json.Marshal(x) // of decoded JSON
		e.message = clean(string(raw))
	}
	if meta, ok := m["metadata"].(map[string]any); ok { // OpenRouter: what the server behind it said
		if raw := text(meta["raw"]); raw != "" {
			e.message = clean(e.message + ": " + raw)
		}
		e.add(text(meta["error_type"]))
	}
	details, _ := m["details"].([]any)
	for _, d := range details {
		if x, ok := d.(map[string]any); ok {
			e.detail(x)
		}
	}
}

// detail is one of google.rpc: RetryInfo, ErrorInfo, QuotaFailure.
func (e *evidence) detail(m map[string]any) {
	if s := text(m["retryDelay"]); s != "" {
		e.wait = s
	}
	e.add(text(m["reason"]))
	violations, _ := m["violations"].([]any)
	for _, v := range violations {
		if x, ok := v.(map[string]any); ok && strings.Contains(text(x["quotaId"]), "PerDay") {
			e.add("PerDay")
		}
	}
}

// guess reads the members of JSON that is cut off, or none.
func (e *evidence) guess(body []byte) {
	s := string(body)
	// Deeper it may be anybody's word.
	if _, rest, ok := strings.Cut(clip(s, 64), `"error"`); ok {
		rest = strings.TrimLeft(rest, " \t\r\n:")
		e.isError = e.isError || rest != "" && (rest[0] == '{' || rest[0] == '"')
	}
	for _, key := range []string{"code", "status", "type"} {
		e.add(member(s, key))
	}
	e.message = clean(member(s, "message"))
}

// member is the text of the first member of a name, up to where it is cut off.
func member(s, key string) string {
	_, rest, ok := strings.Cut(s, `"`+key+`"`)
	if !ok {
		return ""
	}
	rest, ok = strings.CutPrefix(strings.TrimLeft(rest, " \t\r\n:"), `"`)
	if !ok {
		return ""
	}
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			rest = rest[:i]
		}
	}
	var out string
	if json.Unmarshal([]byte(`"`+rest+`"`), &out) == nil {
		return out
	}
	return rest
}

func text(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return ""
}

func number(v any) string {
	if x, ok := v.(float64); ok {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return ""
}

// untagged is the text of HTML, without its heads, scripts and styles.
func untagged(s string) string {
	if !strings.HasPrefix(s, "<") {
		return s
	}
	var b strings.Builder
	for s != "" && b.Len() < maxMessage {
		before, rest, ok := strings.Cut(s, "<")
		b.WriteString(before)
		b.WriteByte(' ')
		if !ok {
			break
		}
		tag, after, ok := strings.Cut(rest, ">")
		if !ok {
			break
		}
		s = after
		for _, skip := range []string{"script", "style"} {
			if len(tag) >= len(skip) && strings.EqualFold(tag[:len(skip)], skip) {
				_, s, _ = strings.Cut(s, "</"+tag[:len(skip)])
				_, s, _ = strings.Cut(s, ">")
			}
		}
	}
	return b.String()
}

// clean is a text on one line, bounded, valid UTF-8 without control characters.
func clean(s string) string {
	s = clip(s, 4*maxMessage)
	var b strings.Builder
	space := false
	for _, r := range s {
		if r <= ' ' || r == 0x7F || r >= 0x80 && r < 0xA0 || r == utf8.RuneError || r == 0x2028 || r == 0x2029 {
			space = true
			continue
		}
		if space && b.Len() > 0 {
			b.WriteByte(' ')
		}
		space = false
		if b.Len()+utf8.RuneLen(r) > maxMessage {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// clip is at most n bytes of s, whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
