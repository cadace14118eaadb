// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file tells errors in the words of each dialect, and reads those that
// servers of any dialect send.

// fault is what an error is about, for which each dialect has a word.
type fault uint8

const (
	faultServer fault = iota
	faultInvalid
	faultAuth
	faultBilling
	faultPermission
	faultNotFound
	faultTooLarge
	faultRate
	faultOverloaded
	faultTimeout
)

// faultWords are the words for a fault. Those of OpenAI are also the ones that
// the gateway's own errors have.
var faultWords = [...]struct {
	openAI, anthropic, gemini string
	status                    int // what stands in Gemini's error where none is known
}{
	faultServer:     {typeServer, "api_error", "INTERNAL", 500},
	faultInvalid:    {typeInvalidRequest, "invalid_request_error", "INVALID_ARGUMENT", 400},
	faultAuth:       {"authentication_error", "authentication_error", "UNAUTHENTICATED", 401},
	faultBilling:    {"insufficient_quota", "billing_error", "RESOURCE_EXHAUSTED", 402},
	faultPermission: {"permission_error", "permission_error", "PERMISSION_DENIED", 403},
	faultNotFound:   {typeInvalidRequest, "not_found_error", "NOT_FOUND", 404},
	faultTooLarge:   {typeInvalidRequest, "request_too_large", "INVALID_ARGUMENT", 413},
	faultRate:       {typeRateLimit, "rate_limit_error", "RESOURCE_EXHAUSTED", 429},
	faultOverloaded: {typeServer, "overloaded_error", "UNAVAILABLE", 503},
	faultTimeout:    {typeServer, "timeout_error", "DEADLINE_EXCEEDED", 504},
}

// faultOfWord finds the fault for a type, a code or a status of any dialect, in
// lower case.
var faultOfWord = map[string]fault{
	"api_error": faultServer, "internal": faultServer,
	"invalid_request_error": faultInvalid, "invalid_argument": faultInvalid, "failed_precondition": faultInvalid,
	"invalid_prompt": faultInvalid, "badrequesterror": faultInvalid, "validationexception": faultInvalid,
	"authentication_error": faultAuth, "unauthenticated": faultAuth, "invalid_api_key": faultAuth,
	"billing_error": faultBilling, "insufficient_quota": faultBilling,
	"permission_error": faultPermission, "permission_denied": faultPermission, "accessdeniedexception": faultPermission,
	"not_found_error": faultNotFound, "not_found": faultNotFound, "model_not_found": faultNotFound, "notfounderror": faultNotFound,
	"resourcenotfoundexception": faultNotFound, "request_too_large": faultTooLarge,
	"rate_limit_error": faultRate, "rate_limit_exceeded": faultRate, "resource_exhausted": faultRate, "requests": faultRate,
	"tokens": faultRate, "throttlingexception": faultRate, "too_many_requests": faultRate,
	"overloaded_error": faultOverloaded, "unavailable": faultOverloaded, "overloaded": faultOverloaded,
	"serviceunavailableexception": faultOverloaded, "timeout_error": faultTimeout, "timeout": faultTimeout,
	"deadline_exceeded": faultTimeout, "modeltimeoutexception": faultTimeout,
}

// fault of an error, by its status, or else by its words.
func (e *Error) fault() fault {
	switch e.Status {
	case 401:
		return faultAuth
	case 402:
		return faultBilling
	case 403:
		return faultPermission
	case 404:
		return faultNotFound
	case 408, 504:
		return faultTimeout
	case 413:
		return faultTooLarge
	case 429:
		return faultRate
	case 503, 529:
		return faultOverloaded
	}
	if e.Status >= 400 && e.Status < 500 {
		return faultInvalid
	}
	for _, word := range [...]string{e.Code, e.Type} {
		if f, ok := faultOfWord[strings.ToLower(word)]; ok && e.Status == 0 {
			return f
		}
	}
	return faultServer
}

// Body is the error as a whole answer to op, in the client's dialect. The
// request id stands beside it where the dialect has a place; an empty one is
// left out.
func (e *Error) Body(op Op, requestID string) []byte { return e.BodyIn(op.Dialect(), requestID) }

// ErrorDialect is the dialect in which a client is told of an error: that of the
// operation, or where it is not known yet, or has none, of the path.
func ErrorDialect(op Op, path string, h http.Header) Dialect {
	if op == OpUnknown {
		op = OpUnder(path)
	}
	switch {
	case op == OpModels:
		return listDialect(path, h)
	case op == OpOther && strings.Contains(path, "/v1beta/") && !strings.Contains(path, "/v1beta/openai/"):
		return DialectGemini
	}
	return op.Dialect()
}

// BodyIn is Body in a dialect.
func (e *Error) BodyIn(d Dialect, requestID string) []byte {
	switch d {
	case DialectAnthropic:
		return append(e.anthropic(requestID), '\n')
	case DialectGemini:
		return append(e.gemini(), '\n')
	}
	return e.inOpenAI().JSON(requestID)
}

// inOpenAI is the error with a type that clients of OpenAI's APIs know.
func (e *Error) inOpenAI() *Error {
	f, known := faultOfWord[strings.ToLower(e.Type)]
	if e.Type != "" && (!known || faultWords[f].openAI == e.Type || e.Type == "requests" || e.Type == "tokens") && e.Type == strings.ToLower(e.Type) {
		return e
	}
	told := *e
	told.Type = faultWords[e.fault()].openAI
	if told.Code == "" && e.Type != "" && e.Type != "api_error" {
		told.Code = strings.TrimSuffix(strings.ToLower(e.Type), "_error")
	}
	return &told
}

func (e *Error) anthropic(requestID string) []byte {
	b := []byte(`{"type":"error","error":{"type":`)
	b = jsonedit.AppendString(b, faultWords[e.fault()].anthropic)
	b = jsonedit.AppendString(append(b, `,"message":`...), e.Message)
	b = append(b, '}')
	if requestID != "" {
		b = jsonedit.AppendString(append(b, `,"request_id":`...), requestID)
	}
	return append(b, '}')
}

func (e *Error) gemini() []byte {
	word := faultWords[e.fault()]
	status := e.Status
	if status == 0 {
		status = word.status
	}
	b := strconv.AppendInt([]byte(`{"error":{"code":`), int64(status), 10)
	b = jsonedit.AppendString(append(b, `,"message":`...), e.Message)
	b = jsonedit.AppendString(append(b, `,"status":`...), word.gemini)
	return append(b, "}}"...)
}

// ReadError reads the body of an error from a server of dialect d: of any form,
// or none. Type and Code are the server's own words.
func ReadError(d Dialect, status int, body []byte) *Error {
	e := &Error{Status: status}
	body = bytes.TrimSpace(body)
	s := jsonedit.NewScanner(body, 0)
	if s.Array() { // Gemini's streams wrap an error in a list
		s.NextElement()
	}
	if s.Peek() == jsonedit.Object {
		e.read(&s, body, true)
	} else if t, ok := s.Text(); ok {
		e.Message = t.Value(body)
	}
	if e.Type != "" && e.Code == strconv.Itoa(e.Status) {
		e.Code = "" // Gemini repeats the status there
	}
	if e.Message == "" {
		e.Message = bareMessage(status, body)
	}
	e.Message = cut(e.Message, maxFailed)
	e.Type, e.Code, e.Param = cut(e.Type, 128), cut(e.Code, 128), cut(e.Param, 256)
	if e.Message == "" {
		e.Message = "error without a message"
	}
	if e.Type == "" {
		e.Type = faultWords[e.fault()].openAI
	}
	return e
}

// read reads an object of an error, and the error inside it where there is one.
func (e *Error) read(s *jsonedit.Scanner, data []byte, outer bool) {
	if !s.Object() {
		return
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return
		}
		name := string(key.Of(data))
		switch kind := s.Peek(); {
		case kind == jsonedit.Object && outer && (name == "error" || name == "response"):
			e.read(s, data, name == "response")
		case kind == jsonedit.String:
			t, _ := s.Text()
			e.word(name, t.Value(data), outer)
		case kind == jsonedit.Number && name == "code":
			number, _ := s.Number()
			if e.Code = string(number.Of(data)); e.Status == 0 {
				if n, ok := jsonedit.Int(number.Of(data)); ok && n >= 400 && n < 600 {
					e.Status = n
				}
			}
		default:
			raw := s.Skip()
			if name == "detail" && e.Message == "" && !s.Failed() && kind != jsonedit.Null { // FastAPI
				e.Message = string(raw.Of(data))
			}
		}
	}
}

// word takes a string out of an error.
func (e *Error) word(name, value string, outer bool) {
	to := (*string)(nil)
	switch name {
	case "message", "Message", "detail":
		to = &e.Message
	case "error", "msg":
		if e.Message == "" {
			to = &e.Message
		}
	case "type":
		if !outer || value != "error" && !strings.HasPrefix(value, "response.") {
			to = &e.Type
		}
	case "__type", "status":
		if e.Type == "" && (name != "status" || !outer) {
			to = &e.Type
		}
	case "code":
		to = &e.Code
	case "param":
		to = &e.Param
	}
	if to != nil && value != "" {
		*to = value
	}
}

// bareMessage makes the best of a body that is no error known here.
func bareMessage(status int, body []byte) string {
	text := string(body[:min(len(body), 4<<10)])
	if i := strings.Index(strings.ToLower(text), "<title>"); i >= 0 && i+7 <= len(text) {
		text, _, _ = strings.Cut(text[i+7:], "<")
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	where := "the server"
	if status != 0 {
		where = strings.TrimSpace(fmt.Sprintf("the server answered %d %s", status, http.StatusText(status)))
	}
	if text == "" {
		return where + " without a message"
	}
	return where + ": " + cut(text, 512)
}

// cut bounds a string, at the beginning of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
