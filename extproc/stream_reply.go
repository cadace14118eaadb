// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// reply is the direction to the client. Nothing in it waits: heads are answered
// at once and bodies go back as they come.
type reply struct {
	answered   phase
	answerMode bodyMode
	status     int
	tap        *llm.Tap // nil: the bytes are not for reading
	sse        bool
}

// headerServedTest and what it says are what
// destination-endpoint-served-verifier adds to an answer (conformance suite of the extension).
const (
	headerServedTest = "x-conformance-test-served-endpoint"
	notReported      = "missing: the gateway sent no " + keyServed + " in " + namespaceLB
)

func (x *stream) responseHeaders(h *extprocv3.HttpHeaders) error {
	if x.answered != waiting {
		if x.answered == ended {
			return x.ignored()
		}
		return x.spurious(codes.FailedPrecondition, "response-headers", "response headers after response headers")
	}
	x.answered = opened
	if x.asked == opened {
		// The gateway answers before the request has come: there is nothing
		// left to pick for.
		x.asked = ended
		x.dropBody()
	}
	// Headers over the limit are the gateway's affair: they pass, unread.
	f, _ := readFields(h.GetHeaders(), int(x.rules.limits.Headers))
	x.status = f.status
	head := &headAnswer{}
	edits := &head.edits
	if x.picked() {
		x.attribute()
		switch o := x.pick.Observer; {
		case o == nil:
		case !x.pick.Edits:
			o.Head(x.status, f.header)
		default:
			before := maps.Clone(f.header)
			o.Head(x.status, f.header)
			edits.difference(before, f.header)
		}
	}
	if x.rules.TellServed != nil && x.rules.TellServed() {
		told := x.meta.served
		if told == "" {
			told = notReported
		}
		edits.set(headerServedTest, told)
	}
	if !h.GetEndOfStream() && x.picked() {
		x.renamed = x.renamed && !x.mute
		x.watch(&f)
		if x.tap != nil && x.renamed && x.answerMode == modeDuplex {
			edits.noLength() // the name that goes back may have another length
		}
	}
	err := x.respond(head.seal(false))
	if err == nil && h.GetEndOfStream() {
		x.finish(nil)
	}
	return err
}

// respond answers a message about the answer, unless it was marked as one that
// gets no reply.
func (x *stream) respond(m *extprocv3.ProcessingResponse) error {
	if x.mute {
		return nil
	}
	return x.send(m)
}

// attribute moves the accounting to the member that answered, and tells passive
// health of it. A gateway's own reply names nobody and blames nobody.
func (x *stream) attribute() {
	if x.meta.served == "" {
		return
	}
	m := x.rules.Pool.Lookup(strings.ToLower(bracketed(strings.TrimSpace(x.meta.served))))
	if m == nil {
		x.rules.counts.spurious("served-unknown")
		x.astray("no member of the pool")
		return
	}
	if !slices.Contains(x.named, m.Address()) {
		x.rules.counts.spurious("served-other")
		x.astray("none of those that were picked")
	}
	if m != x.member && x.pick.Observer != nil {
		x.pick.Observer.Served(m)
	}
	x.member = m
	switch {
	case x.status >= 500:
		m.Report(pool.ServerError)
	case x.status >= 200:
		m.Report(pool.OK)
	}
}

// astray tells of an answer from an endpoint that was not picked.
func (x *stream) astray(what string) {
	if more, ok := x.server.astray.now(); ok {
		x.server.log.Warn("the gateway sent a request to an endpoint that is "+what, "pool", x.rules.counts.pool, "requestId", x.id,
			"served", x.meta.served, "picked", strings.Join(x.named, ","), "moreSince", more)
	}
}

// watch begins to read the answer's body, if it is one to read.
func (x *stream) watch(f *fields) {
	kind := f.get("Content-Type")
	if kind != "application/json" && kind != "text/event-stream" {
		kind, _, _ = mime.ParseMediaType(kind)
	}
	x.sse = kind == "text/event-stream"
	if f.get("Content-Encoding") != "" || !x.sse && kind != "application/json" {
		return
	}
	o := llm.TapOptions{Op: x.fields.op, Stream: x.sse}
	if x.renamed = x.renamed && x.status < 300; x.renamed {
		o.AnswerModel = x.clientModel
	}
	x.tap = llm.NewTap(o)
}

func (x *stream) responseBody(b *extprocv3.HttpBody) error {
	switch x.answered {
	case waiting:
		return x.spurious(codes.FailedPrecondition, "response-body", "a response body before response headers")
	case ended:
		return x.ignored()
	}
	if x.answerMode == modeNone {
		return x.spurious(codes.FailedPrecondition, "response-body", "a response body that this mode does not have")
	}
	end := b.GetEndOfStream() || b.GetEndOfStreamWithoutMessage()
	out := x.pass(b.GetBody(), end)
	var err error
	switch {
	case x.answerMode != modeDuplex:
		err = x.respond(bodyAnswer(false, changed(b.GetBody(), out, x.answerMode)))
	case x.mute:
	case len(out) > 0 || end:
		err = x.sendChunks(false, out, end)
	}
	if err == nil && end {
		x.finish(nil)
	}
	return err
}

// pass shows bytes of the answer to the tap and to the picker, and returns what
// goes back for them.
func (x *stream) pass(in []byte, end bool) []byte {
	out, tokens := in, 0
	if x.tap != nil {
		before := x.tap.Tokens()
		out = x.tap.Feed(in)
		tokens = x.tap.Tokens() - before
		if x.renamed {
			// The tap's own buffer, which it uses again before gRPC has written
			// it; see codec.Marshal.
			out = slices.Clone(out)
		}
		if end {
			if rest := x.tap.Close(); len(rest) > 0 {
				out = append(out, rest...)
			}
			tokens = x.tap.Tokens() - before
		}
	}
	if x.picked() && x.pick.Observer != nil && len(in) > 0 {
		x.pick.Observer.Chunk(in, tokens)
	}
	return out
}

// changed answers a body message in a mode in which each has one answer.
func changed(in, out []byte, mode bodyMode) *extprocv3.CommonResponse {
	c := &extprocv3.CommonResponse{}
	switch {
	case bytes.Equal(in, out):
	case len(out) == 0:
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_ClearBody{ClearBody: true}}
	default:
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: out}}
		if mode == modeBuffered {
			edits := &mutation{}
			edits.length(len(out))
			c.HeaderMutation = edits.proto()
		}
	}
	return c
}

func (x *stream) responseTrailers(t *extprocv3.HttpTrailers) error {
	switch x.answered {
	case waiting:
		return x.spurious(codes.FailedPrecondition, "response-trailers", "response trailers before response headers")
	case ended:
		return x.ignored()
	}
	if x.tap != nil && x.answerMode == modeDuplex {
		if rest := slices.Clone(x.tap.Close()); len(rest) > 0 && !x.mute {
			if err := x.sendChunks(false, rest, false); err != nil {
				return err
			}
		}
	}
	if err := x.respond(trailersAnswer(false)); err != nil {
		return err
	}
	x.finish(t.GetTrailers())
	return nil
}

// finish ends the answer: all of it has passed.
func (x *stream) finish(trailers *corev3.HeaderMap) {
	x.answered = ended
	if !x.picked() {
		return
	}
	if o := x.pick.Observer; o != nil {
		var trailer http.Header
		if trailers != nil {
			f, _ := readFields(trailers, int(x.rules.limits.Headers))
			trailer = f.header
		}
		o.End(trailer)
	}
	x.settle(x.fault())
}

// fault is why an answer that has passed whole is none that a client wanted.
func (x *stream) fault() error {
	switch {
	case x.status >= 400:
		return fmt.Errorf("status %d", x.status)
	case x.tap == nil:
		return nil
	case x.tap.Failed() != "":
		return errors.New(x.tap.Failed())
	case x.sse && !x.tap.Finished() && x.tap.FinishReason() == "":
		return io.ErrUnexpectedEOF
	}
	return nil
}

// difference adds what turns before into after.
func (m *mutation) difference(before, after http.Header) {
	for name := range before {
		if _, ok := after[name]; !ok {
			m.remove(name)
		}
	}
	for name, values := range after {
		if slices.Equal(values, before[name]) {
			continue
		}
		for i, v := range values {
			m.add(name, v, i > 0)
		}
	}
}
