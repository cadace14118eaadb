// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/jsonedit"
)

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

// The types of OpenAI's errors that Penstock uses.
const (
	typeInvalidRequest = "invalid_request_error"
	typeRateLimit      = "rate_limit_error"
	typeServer         = "server_error"
)

// InvalidRequest is a 400 for the field param ("": the request as a whole).
func InvalidRequest(param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalidRequest, Code: "invalid_value", Param: param, Message: message}
}

// ModelNotFound is the 404 for a model that no route serves to this client.
func ModelNotFound(model string) *Error {
	return &Error{
		Status: http.StatusNotFound, Type: typeInvalidRequest, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q does not exist or is not served here", model),
	}
}

// NotFound is the 404 for a path that no route serves.
func NotFound(path string) *Error {
	return &Error{
		Status: http.StatusNotFound, Type: typeInvalidRequest, Code: "unknown_url",
		Message: fmt.Sprintf("no route serves %q", path),
	}
}

// MethodNotAllowed is the 405 that names the methods a path takes.
func MethodNotAllowed(method, allow string) *Error {
	return &Error{
		Status: http.StatusMethodNotAllowed, Type: typeInvalidRequest, Code: "method_not_allowed",
		Message: fmt.Sprintf("%s is not allowed here, use %s", method, allow),
		Header:  http.Header{"Allow": {allow}},
	}
}

// TooLarge is the 413 for a body of more than max bytes, decoded.
func TooLarge(max int64) *Error {
	return &Error{
		Status: http.StatusRequestEntityTooLarge, Type: typeInvalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than the limit of %d bytes", max),
	}
}

// UnsupportedMediaType is the 415 for a Content-Type or Content-Encoding.
func UnsupportedMediaType(message string) *Error {
	return &Error{
		Status: http.StatusUnsupportedMediaType, Type: typeInvalidRequest, Code: "unsupported_media_type",
		Message: message,
	}
}

// UpgradeRefused is the 400 for an Upgrade that the path does not allow.
func UpgradeRefused(protocol string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: typeInvalidRequest, Code: "upgrade_refused",
		Message: fmt.Sprintf("this path does not allow an upgrade to %q", protocol),
	}
}

// LoopDetected is the 508 for a request that comes back to the gateway again and
// again.
func LoopDetected() *Error {
	return &Error{
		Status: http.StatusLoopDetected, Type: typeServer, Code: "loop_detected",
		Message: "the request has passed too many gateways: a route or a pool leads back to the gateway itself",
	}
}

// Saturated is the 429 for servers that are all full.
func Saturated(reason string, retryAfter time.Duration) *Error {
	return &Error{
		Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "saturated",
		Message: reason, Header: retryHeader(retryAfter),
	}
}

// Unavailable is the 503 for want of a server that could answer.
func Unavailable(reason string, retryAfter time.Duration) *Error {
	return &Error{
		Status: http.StatusServiceUnavailable, Type: typeServer, Code: "unavailable",
		Message: reason, Header: retryHeader(retryAfter),
	}
}

// UpstreamFailed is the 502 for a server that broke off or answered nonsense.
func UpstreamFailed(message string) *Error {
	return &Error{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_failed", Message: message}
}

// Timeout is the 504 that names the phase whose bound was passed.
func Timeout(phase string, bound time.Duration) *Error {
	return &Error{
		Status: http.StatusGatewayTimeout, Type: typeServer, Code: "timeout",
		Message: fmt.Sprintf("the server took longer than %v (%s)", bound, phase),
	}
}

// Internal is the 500 for a fault of the gateway itself.
func Internal(message string) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal_error", Message: message}
}

// retryHeader says when to come back, in whole seconds, at least one; nil for
// no wait that is known.
func retryHeader(after time.Duration) http.Header {
	if after <= 0 {
		return nil
	}
	seconds := (after + time.Second - 1) / time.Second
	return http.Header{"Retry-After": {strconv.FormatInt(int64(seconds), 10)}}
}

// JSON is the error as an OpenAI error body. The request id stands beside the
// error object, as request_id; an empty one is left out.
func (e *Error) JSON(requestID string) []byte {
	return append(e.appendJSON(nil, "", requestID), '\n')
}

// appendJSON appends {lead"error":{…},"request_id":"…"}.
func (e *Error) appendJSON(b []byte, lead, requestID string) []byte {
	b = append(b, '{')
	b = append(b, lead...)
	b = append(b, `"error":{"message":`...)
	b = jsonedit.AppendString(b, e.Message)
	b = append(b, `,"type":`...)
	b = jsonedit.AppendString(b, e.Type)
	b = append(b, `,"param":`...)
	b = appendOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendOrNull(b, e.Code)
	b = append(b, '}')
	if requestID != "" {
		b = append(b, `,"request_id":`...)
		b = jsonedit.AppendString(b, requestID)
	}
	return append(b, '}')
}

func appendOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return jsonedit.AppendString(b, s)
}

// StreamError is the error as an event inside a stream of op that has begun.
// No [DONE] follows it. The Responses API has an event of its own for errors;
// its members stand beside the error object, by which clients of OpenAI's other
// APIs tell a failure. Anthropic has such an event too; Gemini an error object.
func (e *Error) StreamError(op Op, requestID string) []byte {
	var b []byte
	switch op.Dialect() {
	case DialectAnthropic:
		b = append(b, "event: error\ndata: "...)
		return append(append(b, e.anthropic(requestID)...), "\n\n"...)
	case DialectGemini:
		return append(append(append(b, "data: "...), e.gemini()...), "\n\n"...)
	}
	e = e.inOpenAI()
	lead := ""
	if op == OpResponses {
		b = append(b, "event: error\n"...)
		fields := append([]byte(`"type":"error","code":`), appendOrNull(nil, e.Code)...)
		fields = jsonedit.AppendString(append(fields, `,"message":`...), e.Message)
		fields = appendOrNull(append(fields, `,"param":`...), e.Param)
		lead = string(fields) + ","
	}
	b = append(b, "data: "...)
	b = e.appendJSON(b, lead, requestID)
	return append(b, "\n\n"...)
}
