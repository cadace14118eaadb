// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/llm"
)

// Verdict is what an outcome means.
type Verdict struct {
	Class   Class
	Status  int    // of the answer, or of the error inside it; 0: there was none
	Code    string // the provider's own word for it, or ours; may be empty
	Message string // the provider's own, bounded; may be empty
	// Wait is how long the provider asks to be left alone, at most ten minutes;
	// 0: it says nothing.
	Wait time.Duration
	// Request tells requests apart, so that one that is sent again and again is
	// not taken for many; 0: it is not known which one it was.
	Request uint64
}

// Classify is the one function that decides what an outcome means, by the table
// in rules.go. d is the dialect that was spoken. An answer has a status, a
// header and, of an error, the body or its beginning; in a stream, the event
// that says that it failed is the body, beside the 200. A failure without an
// answer has err: an error of the transport, [ErrTimeout], the cause of a
// context, or what [Provider.Request] returned. sent says that a part of the
// request may have reached the provider.
func Classify(d llm.Dialect, status int, h http.Header, body []byte, err error, sent bool) Verdict {
	if err != nil {
		return classifyError(status, err, sent)
	}
	ok := status >= 200 && status < 300
	if ok && !mayBeError(h, body) {
		return Verdict{Class: OK, Status: status}
	}
	e := readEvidence(h, body)
	if ok {
		if !e.isError {
			return Verdict{Class: OK, Status: status}
		}
		// The status of the head says nothing any more; an error may have a
		// number of its own.
		status = e.status
	}
	v := Verdict{Class: decide(d, status, &e), Status: status, Code: e.code(), Message: e.message}
	if v.Class != BadRequest && v.Class != ContentPolicy {
		v.Wait = hint(h, &e)
	}
	return v
}

// classifyError is Classify for what ended without an answer, or in its middle.
func classifyError(status int, err error, sent bool) Verdict {
	var f *Failure
	if errors.As(err, &f) {
		return f.Verdict
	}
	v := Verdict{Status: status}
	var timeout net.Error
	switch {
	case errors.Is(err, errAddress):
		v.Class, v.Code, v.Message = Connect, "address_refused", "the provider's address is refused"
	case errors.Is(err, ErrTimeout), errors.Is(err, os.ErrDeadlineExceeded):
		v.Class, v.Code = Timeout, "timeout"
	case errors.Is(err, context.Canceled):
		v.Class = Canceled
	case errors.Is(err, context.DeadlineExceeded):
		v.Class = Deadline
	case status == 0 && connecting(err):
		v.Class, v.Code = Connect, "connect"
	case errors.As(err, &timeout) && timeout.Timeout():
		v.Class, v.Code = Timeout, "timeout"
	case status != 0:
		v.Class, v.Code = StreamBroken, "broken"
	case sent || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		v.Class, v.Code = Reset, "reset"
	default:
		v.Class, v.Code = Connect, "connect"
	}
	return v
}

// connecting says whether err is one of making a connection.
func connecting(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var cert *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) || errors.As(err, &record) || errors.As(err, &alert) ||
		errors.As(err, &cert) || errors.As(err, &unknown) || errors.As(err, &host)
}

// goodEnds are finish reasons after which an answer may hold nothing: the model
// has chosen so, or was told to, or was stopped for what it says.
var goodEnds = map[string]bool{
	"stop": true, "end_turn": true, "tool_calls": true, "tool_use": true, "function_call": true, "length": true, "max_tokens": true,
	"stop_sequence": true, "content_filter": true, "refusal": true, "pause_turn": true, "completed": true, "incomplete": true,
	"max_output_tokens": true, "model_length": true, "eos_token": true,
	"queued": true, "in_progress": true, // of a response in the background, which is asked for later
	"STOP": true, "MAX_TOKENS": true, "SAFETY": true, "RECITATION": true, "PROHIBITED_CONTENT": true, "BLOCKLIST": true, "SPII": true, "IMAGE_SAFETY": true, "LANGUAGE": true, "NO_IMAGE": true,
	"guardrail_intervened": true, "content_filtered": true, "COMPLETE": true, "STOP_SEQUENCE": true, "TOOL_CALL": true, "eos": true,
}

// ClassifyEnd is Classify for the end of an answer that was 2xx and has been
// read: how much real output it held, why it says that it ended, the error
// inside it ("": none), and what reading it ended with (nil: its proper end).
func ClassifyEnd(d llm.Dialect, output int, finish, failed string, err error) Verdict {
	switch {
	case err != nil:
		return classifyError(http.StatusOK, err, true)
	case failed == llm.NoPlace:
		return Verdict{Class: Unsupported, Message: failed}
	case failed != "":
		e := evidence{isError: true, message: clean(failed)}
		e.add(failed)
		v := Verdict{Class: decide(d, 0, &e), Message: e.message}
		if v.Class != BadRequest && v.Class != ContentPolicy {
			v.Wait = hint(nil, &e)
		}
		return v
	case output == 0 && finish != "" && !goodEnds[finish]:
		return Verdict{Class: Empty, Status: http.StatusOK, Code: clip(finish, maxCode)}
	}
	return Verdict{Class: OK, Status: http.StatusOK}
}

// ClientError is what the client is told: an error that blames whom it should,
// with a status that says whether to come back (a fault of the provider is never
// a 400, a refused credential of ours never a 401).
func (v Verdict) ClientError() *llm.Error {
	e := &llm.Error{Type: "server_error", Code: "upstream_failed", Status: http.StatusBadGateway, Message: "the provider failed"}
	set := func(status int, code, message string) { e.Status, e.Code, e.Message = status, code, message }
	switch v.Class {
	case Connect, Reset:
		set(http.StatusBadGateway, "upstream_unavailable", "the provider cannot be reached")
	case RateLimit:
		set(http.StatusTooManyRequests, "rate_limit_exceeded", "the provider's rate limit is reached")
		e.Type = "rate_limit_error"
	case Quota:
		set(http.StatusServiceUnavailable, "provider_quota", "the gateway's account at the provider is exhausted")
	case Overloaded:
		set(http.StatusServiceUnavailable, "overloaded", "the provider is overloaded")
	case Server:
		if v.Status == http.StatusGatewayTimeout {
			set(http.StatusGatewayTimeout, "timeout", "the provider took too long")
		}
	case Timeout, Deadline:
		set(http.StatusGatewayTimeout, "timeout", "the provider took too long")
	case Auth, Forbidden:
		set(http.StatusBadGateway, "provider_auth", "the provider refuses the gateway's credential")
	case ModelNotFound:
		set(http.StatusNotFound, "model_not_found", "the provider does not know the model")
		e.Type = "invalid_request_error"
	case ContextWindow:
		set(http.StatusBadRequest, "context_length_exceeded", cmp.Or(public(v.Message), "the prompt is too long for the model"))
		e.Type, e.Param = "invalid_request_error", "messages"
	case ContentPolicy:
		set(http.StatusBadRequest, "content_policy_violation", cmp.Or(public(v.Message), "the provider refuses the content"))
		e.Type = "invalid_request_error"
	case BadRequest:
		set(http.StatusBadRequest, cmp.Or(v.Code, "invalid_value"), cmp.Or(public(v.Message), "the provider refuses the request"))
		if v.Status >= 400 && v.Status < 500 {
			e.Status = v.Status
		}
		e.Type = "invalid_request_error"
	case Unsupported:
		set(http.StatusBadRequest, "unsupported_operation", cmp.Or(v.Message, "the provider does not do this"))
		e.Type = "invalid_request_error"
	case Canceled:
		set(499, "canceled", "the client has left")
	case Empty:
		set(http.StatusBadGateway, "empty_answer", "the provider gave an empty answer")
	}
	switch v.Class {
	case RateLimit, Overloaded, Quota:
		if v.Wait > 0 {
			seconds := (v.Wait + time.Second - 1) / time.Second
			e.Header = http.Header{"Retry-After": {strconv.FormatInt(int64(seconds), 10)}}
		}
	}
	return e
}

// accountIDs name the gateway's account in messages.
var accountIDs = regexp.MustCompile(`\b(org|proj)[-_][A-Za-z0-9]{3,}`)

// public is a provider's message without the names of the gateway's account.
func public(message string) string { return accountIDs.ReplaceAllString(message, "$1-…") }

// Scrub takes the provider's own secrets out of a text that it has said.
func (p *Provider) Scrub(text string) string {
	for _, c := range p.credentials {
		for _, v := range c.secret.Load().values() {
			if len(v) >= 8 && strings.Contains(text, v) {
				text = strings.ReplaceAll(text, v, "[secret]")
			}
		}
	}
	return text
}

// Judge is [Classify] for an outcome of this provider, without its secrets in
// the message.
func (p *Provider) Judge(d llm.Dialect, status int, h http.Header, body []byte, err error, sent bool) Verdict {
	v := Classify(d, status, h, body, err, sent)
	if v.Message != "" {
		v.Message, v.Code = p.Scrub(v.Message), p.Scrub(v.Code)
	}
	return v
}
