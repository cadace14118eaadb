// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// reply tells the client of a failure: as an answer if none has begun, inside
// the stream if one has.
func (x *exchange) reply(e *llm.Error) {
	rec := x.record
	if rec.ErrorClass == "" {
		rec.ErrorClass, rec.Error = e.Code, e.Message
		if rec.ErrorClass == "" {
			rec.ErrorClass = e.Type
		}
		if x.denial != nil && x.denial.Detail != "" {
			rec.Error = x.denial.Detail
		}
	}
	if x.clientGone() {
		// Nobody listens, or somebody who has closed only his own half: an
		// answer that net/http would end for us must not look whole to him.
		x.broken = true
		return
	}
	if x.sent {
		x.replyInStream(e)
		return
	}
	rec.Status = e.Status
	h := x.w.Header()
	for name, values := range e.Header {
		if !protected(name) {
			h[name] = values
		}
	}
	x.tellRouting(h)
	x.tellRetries(h, e.Status)
	if isGRPC(x.r.Header) {
		x.replyGRPC(e)
		return
	}
	body := e.BodyIn(llm.ErrorDialect(x.op, cmp.Or(x.path, x.r.URL.Path), x.r.Header), rec.RequestID)
	kind := "application/json"
	if x.denial != nil && x.denial.Body != nil {
		body = x.denial.Body // the picker's own words
		if kind = h.Get("Content-Type"); kind == "" {
			kind = "text/plain; charset=utf-8"
		}
	}
	h.Set("Content-Type", kind)
	if x.r.Method == http.MethodHead {
		h.Del("Content-Type") // some clients parse by it what the answer to a HEAD does not carry; RFC 9110 §9.3.2 leaves it open
	}
	x.answer(e.Status, body)
}

// replyInStream appends the error as an event. The message then ends broken
// (see settle): a client that only counts bytes must not take it for whole.
func (x *exchange) replyInStream(e *llm.Error) {
	x.broken = true
	stream := strings.HasPrefix(x.w.Header().Get("Content-Type"), "text/event-stream") || x.translation != nil && x.wantsArray()
	if !x.reads() || !stream {
		return
	}
	x.writeDeadline(time.Now())
	event := e.StreamError(x.op, x.record.RequestID)
	switch {
	case x.reader != nil:
		half := x.midEvent && !x.reader.MidEvent() // it has been closed
		if event = llm.Fail(x.reader, x.op, e, x.record.RequestID); half {
			event = append([]byte("\n\n"), event...)
		}
	case x.midEvent:
		event = append([]byte("\n\n"), event...) // end the half event, or it would swallow this one
	}
	n, err := x.w.Write(event)
	x.record.BytesOut += int64(n)
	if err == nil {
		x.ctl.Flush()
	}
}

// fail is reply for a panic: whatever state the exchange is in.
func (x *exchange) fail(e *llm.Error) {
	if !x.sent {
		x.reply(e)
		return
	}
	x.record.ErrorClass, x.record.Error, x.broken = "internal_error", e.Message, true
	if x.reads() && strings.HasPrefix(x.w.Header().Get("Content-Type"), "text/event-stream") {
		// Whoever reads the answer may be what has failed: he is not asked, and an
		// event that was begun is ended whether or not there is one.
		x.writeDeadline(time.Now())
		n, _ := x.w.Write(append([]byte("\n\n"), e.StreamError(x.op, x.record.RequestID)...))
		x.record.BytesOut += int64(n)
		x.ctl.Flush()
	}
}

func (x *exchange) answerJSON(body []byte) *llm.Error {
	x.w.Header().Set("Content-Type", "application/json")
	x.answer(http.StatusOK, body)
	return nil
}

func (x *exchange) answer(status int, body []byte) {
	if h := x.w.Header(); !x.opened {
		x.mark(h)
		h.Set(requestIDHeader, x.record.RequestID)
		if status != http.StatusNoContent {
			h.Set("Content-Length", strconv.Itoa(len(body)))
		}
	}
	x.record.Status = status
	x.writeDeadline(time.Now()) // the last one may have passed in the wait for a model server
	if !x.opened {
		x.w.WriteHeader(status)
	}
	x.sent = true
	if x.r.Method != http.MethodHead {
		n, _ := x.w.Write(body)
		x.record.BytesOut += int64(n)
	}
}

// timedOut names the phase that ran out, and its bound.
func (x *exchange) timedOut(cause error) *llm.Error {
	bound := x.service.timeouts.FirstToken
	switch cause {
	case errIdleTimeout:
		bound = x.service.timeouts.Idle
	case errTotalTimeout:
		bound = x.service.timeouts.Total
	case errBackendTimeout:
		bound = config.Duration(x.service.http.backend)
	}
	return llm.Timeout(cause.Error(), bound.D())
}

// clientLeft is told to nobody; it is there for the record.
func clientLeft() *llm.Error {
	return &llm.Error{Status: StatusClientClosed, Type: "client_error", Code: "client_closed", Message: "the client left"}
}

// denied is a picker's refusal in the client's dialect. The detail names the
// members: it goes to clients that may see endpoints, and into the record.
func denied(d *epp.Denial, reason string, detail bool) *llm.Error {
	e := d.Error(reason)
	if detail && d.Detail != "" {
		e.Message = d.Detail
	}
	return e
}

// isGRPC says that the request is a call by gRPC.
func isGRPC(h http.Header) bool {
	kind, ok := strings.CutPrefix(h.Get("Content-Type"), "application/grpc")
	return ok && (kind == "" || kind[0] == '+' || kind[0] == ';')
}

// replyGRPC is a refusal as a gRPC client reads it: a head that is the trailer
// too (gRPC over HTTP/2, Trailers-Only).
func (x *exchange) replyGRPC(e *llm.Error) {
	h := x.w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(grpcStatus(e.Status)))
	h.Set("Grpc-Message", strings.ReplaceAll(url.PathEscape(e.Message), "%20", " "))
	h.Set(requestIDHeader, x.record.RequestID)
	x.mark(h)
	x.sent = true
	x.writeDeadline(time.Now())
	x.w.WriteHeader(http.StatusOK)
}

// grpcStatus is the code for an HTTP status, as gRPC's own table has it, but
// that a time that ran out is one.
func grpcStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge:
		return 13 // INTERNAL
	case http.StatusUnauthorized:
		return 16 // UNAUTHENTICATED
	case http.StatusForbidden:
		return 7 // PERMISSION_DENIED
	case http.StatusNotFound:
		return 12 // UNIMPLEMENTED
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable:
		return 14 // UNAVAILABLE
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return 4 // DEADLINE_EXCEEDED
	}
	return 2 // UNKNOWN
}
