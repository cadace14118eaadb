// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// stream is one request and its answer as a gateway shows them. It belongs to
// the goroutine of Process.
//
// The two directions are independent of each other: an answer can come while
// the request is still on its way (a local reply of the gateway), or without
// any request (a filter before this one refused it).
type stream struct {
	server  *Server
	rules   *rules
	grpc    extprocv3.ExternalProcessor_ProcessServer
	ctx     context.Context
	leash   *leash
	inbox   chan received // see next
	quit    chan struct{} // ends who fills inbox
	begun   bool          // a message has come
	observe bool          // observability mode: nothing is answered
	mute    bool          // the message in hand is of observability mode: it gets no reply
	meta    contextMetadata
	outcome string

	request
	reply
}

// phase is how far a direction has come.
type phase uint8

const (
	waiting phase = iota // for headers
	opened               // headers are there, more will follow
	decided              // request: answered before its end (other modes than full duplex)
	ended                // whatever follows is ignored
)

// bodyMode is how a body is sent, as the gateway says in its first message.
type bodyMode uint8

const (
	modeDuplex bodyMode = iota // also when the gateway says nothing
	modeNone
	modeStreamed // chunk by chunk, each answered for itself
	modeBuffered // whole, in one message
	modePartial  // one message, which may be less than the whole
)

func modeOf(m procv3.ProcessingMode_BodySendMode) (bodyMode, bool) {
	switch m {
	case procv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		return modeDuplex, true
	case procv3.ProcessingMode_NONE:
		return modeNone, true
	case procv3.ProcessingMode_STREAMED:
		return modeStreamed, true
	case procv3.ProcessingMode_BUFFERED:
		return modeBuffered, true
	case procv3.ProcessingMode_BUFFERED_PARTIAL:
		return modePartial, true
	}
	return 0, false
}

// request is the direction to the model server.
type request struct {
	asked   phase
	askMode bodyMode
	fields  fields
	id      string
	made    bool // id is ours
	parts   [][]byte
	size    int64 // of parts
	held    int64 // bytes counted for this stream
	since   time.Time
	read    *llm.Request // nil: the body was not read
	// Answers carry the client's name of the model, not the server's.
	renamed     bool
	answers     bool // would, if a picker elsewhere renames
	clientModel string
	pick        *epp.Result
	named       []string     // its endpoints that are members
	member      *pool.Member // who is charged; nil: unknown
	settled     bool
}

func newStream(s *Server, r *rules, g extprocv3.ExternalProcessor_ProcessServer) *stream {
	return &stream{server: s, rules: r, grpc: g, ctx: g.Context(), leash: leashOf(g.Context()), outcome: outcomeFailed}
}

// picked says that the request was given an endpoint.
func (x *stream) picked() bool { return x.pick != nil && x.pick.Denial == nil }

// close ends whatever is still open. err is what Process returns.
func (x *stream) close(err error) {
	if x.quit != nil {
		close(x.quit)
	}
	x.dropBody()
	if err == nil {
		err = errNoEnd
	}
	x.settle(err)
}

// errNoEnd settles a pick whose answer was not seen to its end.
var errNoEnd = errors.New("the end of the answer was not shown to the picker")

// settle tells the picker how the exchange ended, once. err nil: the answer is
// whole.
func (x *stream) settle(err error) {
	if x.settled || x.pick == nil {
		return
	}
	x.settled = true
	o := epp.Outcome{Err: err}
	if x.tap != nil {
		o.Usage = x.tap.Usage()
	}
	x.pick.Done(o)
}

// receive takes one message.
func (x *stream) receive(in *incoming) error {
	m := &in.m
	if !x.begun {
		x.begun = true
		if fail := x.configure(m); fail != nil {
			return fail
		}
	}
	if x.observe {
		return nil
	}
	x.mute = m.GetObservabilityMode()
	x.meta.take(in.meta)
	if context := m.GetMetadataContext(); context != nil {
		if !wellTyped(context) {
			x.rules.counts.spurious("metadata")
		}
		x.meta.merge(context)
	}
	switch kind := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(kind.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.requestBody(kind.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return x.requestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return x.responseHeaders(kind.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return x.responseBody(kind.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return x.responseTrailers(kind.ResponseTrailers)
	}
	return x.spurious(codes.InvalidArgument, "unknown", "a message of a kind that is not known")
}

// wellTyped says that what a gateway says by metadata is of a type that is
// understood. A hint that is not names nobody, so that nobody is left to pick.
func wellTyped(m *corev3.Metadata) bool {
	if hint, ok := m.GetFilterMetadata()[namespaceSubset].GetFields()[keySubset]; ok {
		switch hint.GetKind().(type) {
		case *structpb.Value_StringValue, *structpb.Value_ListValue:
		default:
			return false
		}
	}
	if served, ok := m.GetFilterMetadata()[namespaceLB].GetFields()[keyServed]; ok {
		_, ok = served.GetKind().(*structpb.Value_StringValue)
		return ok
	}
	return true
}

// configure reads what only the first message says.
func (x *stream) configure(m *extprocv3.ProcessingRequest) error {
	x.observe = m.GetObservabilityMode()
	if p := m.GetProtocolConfig(); p != nil && !x.observe {
		var ok, also bool
		x.askMode, ok = modeOf(p.GetRequestBodyMode())
		x.answerMode, also = modeOf(p.GetResponseBodyMode())
		if !ok || !also {
			return x.spurious(codes.InvalidArgument, "mode", "a body mode that is not supported; use FULL_DUPLEX_STREAMED")
		}
	}
	return nil
}

// spurious ends the stream over a message that cannot be taken.
func (x *stream) spurious(code codes.Code, kind, what string) error {
	x.outcome = outcomeFailed
	x.rules.counts.spurious(kind)
	return status.Error(code, what)
}

// ignored counts a message that comes after the end of its direction: some
// gateways end a large body twice (envoy#46237).
func (x *stream) ignored() error {
	x.rules.counts.spurious("after-end")
	return nil
}

func (x *stream) requestHeaders(h *extprocv3.HttpHeaders) error {
	if x.asked != waiting {
		return x.spurious(codes.FailedPrecondition, "request-headers", "request headers after request headers")
	}
	x.asked = opened
	if x.answered != waiting {
		x.asked = ended // the answer is there already
		return x.ignored()
	}
	var fits bool
	x.fields, fits = readFields(h.GetHeaders(), int(x.rules.limits.Headers))
	x.id, x.made = requestID(x.fields.get("X-Request-Id"))
	if !fits {
		return x.refuse(&llm.Error{
			Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "headers_too_large",
			Message: "the request's headers are larger than the limit of " + strconv.Itoa(int(x.rules.limits.Headers)) + " bytes",
		})
	}
	switch {
	case h.GetEndOfStream():
		return x.decide(ended, endHeaders)
	case x.askMode == modeNone, x.askMode == modeStreamed:
		// The gateway sends no body, or none before this answer.
		return x.decide(decided, endHeaders)
	}
	if n, err := strconv.ParseInt(x.fields.get("Content-Length"), 10, 64); err == nil && n > int64(x.rules.limits.Body) {
		return x.refuse(llm.TooLarge(int64(x.rules.limits.Body)))
	}
	if x.askMode == modeBuffered || x.askMode == modePartial {
		return x.send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{}},
		}})
	}
	return nil
}

func (x *stream) requestBody(b *extprocv3.HttpBody) error {
	last := b.GetEndOfStream() || b.GetEndOfStreamWithoutMessage()
	switch {
	case x.asked == waiting:
		return x.spurious(codes.FailedPrecondition, "request-body", "a request body before request headers")
	case x.asked == ended:
		return x.ignored()
	case x.asked == decided && x.askMode == modeStreamed:
		if last {
			x.asked = ended
		}
		return x.send(bodyAnswer(true, &extprocv3.CommonResponse{}))
	case x.asked == decided:
		return x.spurious(codes.FailedPrecondition, "request-body", "a request body that this mode does not have")
	}
	if len(b.GetBody()) > 0 {
		if x.size+int64(len(b.GetBody())) > int64(x.rules.limits.Body) {
			return x.refuse(llm.TooLarge(int64(x.rules.limits.Body)))
		}
		if fail := x.hold(int64(len(b.GetBody()))); fail != nil {
			return x.refuse(fail)
		}
		x.size += int64(len(b.GetBody()))
		x.parts = append(x.parts, b.GetBody())
		if len(x.parts) >= maxParts {
			if fail := x.join(); fail != nil {
				return x.refuse(fail)
			}
		}
	}
	switch {
	case last:
		return x.decide(ended, endBody)
	case x.askMode == modeBuffered, x.askMode == modePartial:
		return x.decide(decided, endBody) // trailers follow, or the rest is not shown
	}
	return nil
}

// maxParts bounds the chunks of a body that are kept apart: below some size a
// chunk costs more than its bytes.
const maxParts = 4096

// requestTrailers end a request that no body message has ended. Their content
// is of no use to a picker.
func (x *stream) requestTrailers() error {
	switch x.asked {
	case waiting:
		return x.spurious(codes.FailedPrecondition, "request-trailers", "request trailers before request headers")
	case ended:
		return x.ignored()
	case opened:
		return x.decide(ended, endTrailers)
	}
	x.asked = ended
	return x.send(trailersAnswer(true))
}

// hold counts n more bytes of bodies, or refuses.
func (x *stream) hold(n int64) *llm.Error {
	if x.server.bodies.Add(n) > int64(x.rules.limits.BodiesInFlight) {
		x.server.bodies.Add(-n)
		return llm.Unavailable("the endpoint picker holds too many request bodies at the moment", time.Second)
	}
	x.held += n
	return nil
}

// join makes the body one piece.
func (x *stream) join() *llm.Error {
	if len(x.parts) < 2 {
		return nil
	}
	if fail := x.hold(x.size); fail != nil {
		return fail
	}
	x.parts = append(x.parts[:0], bytes.Join(x.parts, nil))
	clear(x.parts[1:cap(x.parts)])
	x.server.bodies.Add(-x.size)
	x.held -= x.size
	return nil
}

// dropBody lets go of the request's body.
func (x *stream) dropBody() {
	x.parts, x.read = nil, nil
	x.server.bodies.Add(-x.held)
	x.held = 0
}

// ending is what ended a request.
type ending uint8

const (
	endHeaders ending = iota
	endBody
	endTrailers
)

// decide puts the request to the picker and answers. then is the phase after.
func (x *stream) decide(then phase, by ending) error {
	x.asked, x.since = then, time.Now()
	if fail := x.join(); fail != nil {
		return x.refuse(fail)
	}
	var body []byte
	if len(x.parts) > 0 {
		body = x.parts[0]
	}
	sent, encoded, fail := x.readRequest(body, x.askMode == modePartial && then == decided)
	if fail != nil {
		return x.refuse(fail)
	}
	q := x.question(sent)
	res, err := x.rules.Picker.Pick(x.ctx, q)
	switch {
	case err != nil && x.ctx.Err() != nil:
		return x.left(x.ctx.Err())
	case errors.Is(err, context.DeadlineExceeded):
		return x.refuse(&llm.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "picker_timeout", Message: "the endpoint picker did not answer in time"})
	case err != nil:
		x.server.log.Debug("the picker failed", "pool", x.rules.counts.pool, "requestId", x.id, "error", err)
		return x.refuse(llm.Unavailable("the endpoint picker failed", time.Second))
	}
	x.pick = res
	if res.Denial != nil {
		return x.deny(res.Denial, res.Reason)
	}
	if x.named = x.members(res.Endpoints); len(x.named) == 0 {
		return x.refuse(llm.Unavailable("the endpoint picker named no member of the pool", time.Second))
	}
	replaced := res.Body
	if out := sent(); replaced == nil && (len(body) != len(out) || len(out) > 0 && &out[0] != &body[0]) {
		replaced = out
	}
	x.renamed = x.renamed || x.answers && res.Body != nil
	if by == endHeaders {
		replaced = nil // there is nothing to replace
	}
	if !res.Edits && (x.rules.TellServed == nil || !x.rules.TellServed()) {
		x.grpc.SetHeader(metadata.MD{keyAnswers: {answersObserved}})
	}
	err = x.proceed(by, body, replaced, encoded)
	x.dropBody()
	x.rules.counts.answered(x.since)
	if err != nil {
		return err
	}
	// The gateway tries the first one now, and says later who it was.
	x.member = x.rules.Pool.Lookup(x.named[0])
	if res.Observer != nil && x.member != nil {
		res.Observer.Attempt(x.member)
	}
	return nil
}

// readRequest reads what the picker should know from the body, by the rules of
// the gateway's own listeners. What has no parser is picked for as it is: only
// what would steer an engine is refused everywhere. sent is the body as it goes
// on; encoded says that it does not have the client's Content-Encoding, if it is
// another one.
func (x *stream) readRequest(body []byte, partial bool) (sent func() []byte, encoded bool, fail *llm.Error) {
	raw := func() []byte { return body }
	kind := x.fields.get("Content-Type")
	x.fields.op = llm.OpUnder(x.fields.path())
	known := !x.fields.op.Further() && x.fields.op != llm.OpModels // where what is no JSON is refused
	if len(body) == 0 || !known && !llm.Readable(x.fields.op, kind, len(body)) {
		return raw, false, nil
	}
	plain := body
	if coding := strings.Join(x.fields.header["Content-Encoding"], ","); coding != "" {
		if plain, fail = llm.DecodeHolding(coding, body, int64(x.rules.limits.Body), x.hold); fail != nil {
			return nil, false, fail
		}
		encoded = len(plain) == 0 || &plain[0] != &body[0]
	}
	read, fail := llm.Read(x.fields.op, kind, plain, llm.Limits{Depth: x.rules.limits.JSONDepth})
	switch {
	case fail == nil:
	case partial && fail.Code == "invalid_json", x.fields.op.Further() && fail.Code != "unsupported_parameter":
		return raw, false, nil
	default:
		return nil, false, fail
	}
	x.read = read
	model, answer := x.rules.served(read.Model)
	x.fields.model = model
	x.answers, x.renamed, x.clientModel = answer, answer && model != read.Model, read.Model
	if model == read.Model || partial {
		return raw, false, nil
	}
	var edited []byte
	return func() []byte {
		if edited == nil {
			edited = read.Body(llm.Edits{Model: model})
		}
		return edited
	}, encoded, nil
}

// question is the request as a picker knows it.
func (x *stream) question(body func() []byte) *epp.Request {
	f := &x.fields
	q := &epp.Request{ID: x.id, Method: f.method, Host: f.authority, Path: f.path(), Header: f.header, Op: f.op, Body: body}
	if r := x.read; r != nil {
		q.Model, q.Asked, q.Prompt, q.CacheSalt = f.model, r.Model, &r.Prompt, r.CacheSalt
		q.MaxTokens, q.Stream = r.MaxTokens, r.Stream
	}
	if x.meta.subset != nil {
		q.Subset = eligible(x.rules.Pool.Snapshot().Members, x.meta.subset)
	}
	return q
}

// members are the endpoints that the pool lists at this moment: a picker
// elsewhere may name others.
func (x *stream) members(endpoints []string) []string {
	stranger := func(e string) bool { return x.rules.Pool.Lookup(e) == nil }
	if !slices.ContainsFunc(endpoints, stranger) {
		return endpoints
	}
	return slices.DeleteFunc(slices.Clone(endpoints), stranger)
}

// eligible are the members that a hint names, by host:port or by host alone.
// Never nil.
func eligible(members []*pool.Member, subset []string) []string {
	out := []string{}
	for _, m := range members {
		if inSubset(subset, m.Address()) {
			out = append(out, m.Address())
		}
	}
	return out
}

// proceed answers a request that goes to an endpoint.
func (x *stream) proceed(by ending, body, replaced []byte, decoded bool) error {
	endpoints := strings.Join(x.named, ",")
	head := &headAnswer{}
	edits := &head.edits
	edits.apply(x.pick.Header)
	edits.set(HeaderEndpoint, endpoints)
	if x.made {
		edits.set("x-request-id", x.id)
	}
	if replaced != nil {
		edits.length(len(replaced))
		if decoded {
			edits.remove("content-encoding")
		}
	}
	head.common.ClearRouteCache = true
	answer := head.seal(true)
	answer.DynamicMetadata = lbMetadata(HeaderEndpoint, endpoints)
	switch buffered := x.askMode == modeBuffered || x.askMode == modePartial; {
	case buffered && by == endBody:
		if replaced != nil {
			head.common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: replaced}}
		}
		answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &head.common}}
		return x.send(answer)
	case buffered && by == endTrailers: // a request without a body: the headers have gone
		answer.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
		return x.send(answer)
	}
	if err := x.send(answer); err != nil || by == endHeaders {
		return err
	}
	if replaced != nil {
		body = replaced
	}
	if by == endBody || len(body) > 0 {
		if err := x.sendChunks(true, body, by == endBody); err != nil {
			return err
		}
	}
	if by == endTrailers {
		return x.send(trailersAnswer(true))
	}
	return nil
}

// sendChunks answers with the bytes of a body; end says that they are the last.
func (x *stream) sendChunks(ofRequest bool, body []byte, end bool) (err error) {
	chunks(body, func(part []byte, last bool) bool {
		err = x.send(streamedAnswer(ofRequest, part, last && end))
		return err == nil
	})
	return err
}

// send answers. An error is the end of the stream.
func (x *stream) send(m *extprocv3.ProcessingResponse) error {
	err := x.grpc.Send(m)
	if err == nil {
		return nil
	}
	if err = x.left(err); err == nil {
		err = errAnswered // there is nobody to answer any more
	}
	return err
}

// withdrawn answers in the picker's place when it has withdrawn the request.
func (x *stream) withdrawn() error {
	denial, reason := &epp.Denial{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, "evicted"
	if e := (*epp.Eviction)(nil); errors.As(context.Cause(x.pick.Evicted), &e) && e.Denial != nil {
		denial = e.Denial
	}
	err := x.deny(denial, reason)
	if err == errAnswered {
		x.outcome = outcomeEvicted
	}
	return err
}

// deny passes a picker's refusal on.
func (x *stream) deny(d *epp.Denial, reason string) error {
	e := d.Error(reason)
	return x.immediate(e, d.Body)
}

// refuse ends the stream with an error for the client.
func (x *stream) refuse(e *llm.Error) error { return x.immediate(e, nil) }

func (x *stream) immediate(e *llm.Error, body []byte) error {
	x.outcome = outcomeImmediate
	x.rules.counts.refusal(e.Status)
	edits := &mutation{}
	kind := "application/json"
	for name, values := range e.Header {
		if body != nil && strings.EqualFold(name, "Content-Type") {
			kind = strings.Join(values, ", ")
			continue
		}
		for _, v := range values {
			edits.set(name, v)
		}
	}
	if body == nil {
		body = e.JSON(x.id)
	} else if e.Header.Get("Content-Type") == "" {
		kind = "text/plain; charset=utf-8"
	}
	edits.set("content-type", kind)
	if x.id != "" {
		edits.set("x-request-id", x.id)
	}
	err := x.send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.Status)},
			Headers: edits.proto(), Body: body, Details: e.Code,
		},
	}})
	if err != nil {
		return err
	}
	x.settle(e)
	return errAnswered
}
