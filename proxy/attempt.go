// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"golang.org/x/net/http/httpguts"
)

// attempt is one try at one member.
type attempt struct {
	x          *exchange
	member     *pool.Member // nil: a provider, with
	credential *provider.Credential
	dialect    llm.Dialect
	account    *provider.Attempt // counts it there
	latency    time.Duration     // to the first output
	charge     *pool.Charge      // the gateway's own count where the picker keeps none
	ctx        context.Context
	cancel     context.CancelCauseFunc
	phase      *phase
	// evicted stops the watch for the picker withdrawing the request; nil: none.
	evicted  func() bool
	unfollow func() // lets go of the client's context; nil: it is followed directly

	// Set by the transport, possibly from its own goroutines.
	connected atomic.Bool // a connection was had
	reused    atomic.Bool // and it had served before
	sentFull  atomic.Bool // the whole request was written
	answered  atomic.Bool // a byte of an answer came

	told    int  // 1xx answers of the member; under the exchange's early lock
	decided bool // the round trip is over: the client is the handler's alone; likewise
}

// answer is a member's answer whose first body bytes have come, or its end.
type answer struct {
	*attempt
	res     *http.Response
	sse     bool
	buffers *sync.Pool // where buf goes back to
	buf     *[]byte
	n       int   // bytes of buf that are there already
	err     error // of the read that brought them; io.EOF: the body has ended
	early
}

// failure is an attempt that brought no answer.
type failure struct {
	reply   *llm.Error
	class   provider.Class // what it means for other targets
	wait    time.Duration  // that whoever refused has asked for; 0: nothing was said
	outcome pool.Outcome
	blame   bool       // the member is at fault: tell passive health
	retry   bool       // another attempt may follow
	paid    bool       // and has been taken from the budget
	sent    bool       // the member had the whole request
	stale   bool       // a kept connection was closed before any answer: try the member anew
	reached bool       // there was a connection
	replied bool       // it said that it did not serve the request: nothing was used
	reader  llm.Reader // of the answer that broke; nil: there was none
	limited bool       // the gateway's own limits for the target have no room
	late    bool       // the time of one attempt was over
	foreign bool       // the code of reply is the server's word: for the client, and not for metrics
}

// code is what metrics call the failure: one of a few words.
func (f *failure) code() string {
	if f.foreign {
		return f.class.String()
	}
	return f.reply.Code
}

// notForClients says why an answer is not passed on: what it tells is between
// the gateway and its members. "" for all others.
func notForClients(status int) string {
	switch {
	case status >= 300 && status < 400:
		return "the model server answered with a redirect"
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired:
		return "the model server asks the gateway for credentials; the operator sets them as apiKey of the pool"
	}
	return ""
}

// withheld is notForClients for the exchange's target: what a plain backend
// says is for the client.
func (x *exchange) withheld(status int) string {
	if x.target.plain {
		return ""
	}
	return notForClients(status)
}

// retryStatus says which answers mean "not here, not now": those that the route
// names, else what servers say of themselves.
func (x *exchange) retryStatus(status int) bool {
	if h := x.service.http; h != nil {
		return slices.Contains(h.codes, status) && x.http.source.replayable() && x.http.source.whole()
	}
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// outcomeOf is what an answer says of its member. What a plain backend answers
// is between it and the client.
func (x *exchange) outcomeOf(status int) pool.Outcome {
	if status >= 500 && !x.target.plain {
		return pool.ServerError
	}
	return pool.OK
}

// next is the member to try: the next of the picker's list that the pool has
// at this moment, then a new pick, then, if the picker names nobody of the
// pool, a ready member in turn. A pick was counted when it was made, and is not
// again if all that it named have left the pool since; refusedPick tells of them.
func (x *exchange) next(tried []string) (*pool.Member, *llm.Error) {
	p := x.target.backend.Pool
	if x.target.plain {
		return x.nextPlain(tried)
	}
	for round := 0; round < 2; round++ {
		for x.pick != nil && x.named < len(x.pick.Endpoints) {
			addr := x.pick.Endpoints[x.named]
			x.named++
			if slices.Contains(tried, addr) {
				continue
			}
			if m := p.Lookup(addr); m != nil {
				return m, nil
			}
			x.server.metrics.refusedPick(x.target.pool)
			x.server.log.Warn("the picker named an endpoint that is not a member", "pool", x.target.pool, "endpoint", addr, "requestId", x.record.RequestID)
		}
		if round == 0 {
			if fail := x.ask(tried); fail != nil {
				return nil, fail
			}
		}
	}
	if x.target.reject {
		x.record.PickOutcome = "refused-invalid-pick"
		return nil, llm.Unavailable("the endpoint picker named no member of the pool", time.Second)
	}
	if m := x.target.inTurn(tried, pool.Returning); m != nil {
		x.record.PickOutcome = "fallback-invalid-pick"
		return m, nil
	}
	x.record.PickOutcome = "fallback-none-ready"
	return nil, llm.Unavailable("no member of the pool is ready", time.Second)
}

// nextPlain is the next member in turn: one that is ready and was not tried;
// one that was, where another answer is hoped for; one that is out, since nobody
// asks plain members whether they are back but the requests themselves.
func (x *exchange) nextPlain(tried []string) (*pool.Member, *llm.Error) {
	m := x.target.inTurn(tried, pool.Returning)
	if m == nil && len(tried) > 0 {
		m = x.target.inTurn(nil, pool.Returning)
	}
	if m == nil {
		m = x.target.inTurn(tried, pool.Ejected)
	}
	if m == nil {
		return nil, llm.Unavailable("no backend of the route is ready", time.Second)
	}
	return m, nil
}

// ask puts the request to the picker.
func (x *exchange) ask(tried []string) *llm.Error {
	if x.pick != nil {
		x.pick.Done(epp.Outcome{Err: errRetried})
		x.pick = nil
	}
	q := pickRequest(x.record.RequestID, x.target.named(x), x.req, x.r, x.path)
	q.Tried, q.Body = tried, x.outBody
	if x.rule != nil {
		q.Method, q.Host, q.Path, q.Model = x.r.Method, x.http.host, x.http.path, x.req.Model
		if x.r.URL.RawQuery != "" {
			q.Path += "?" + x.r.URL.RawQuery
		}
	}
	began := time.Now()
	res, err := x.target.backend.Picker.Pick(x.r.Context(), q)
	x.picked += time.Since(began)
	switch {
	case err != nil && x.r.Context().Err() != nil:
		return clientLeft()
	case errors.Is(err, context.DeadlineExceeded):
		x.record.PickOutcome = "refused-picker-timeout" // whoever failed has counted it
		return &llm.Error{Status: http.StatusGatewayTimeout, Type: "server_error", Code: "picker_timeout", Message: "the endpoint picker did not answer in time"}
	case err != nil:
		x.record.PickOutcome = "refused-picker-failed"
		x.server.log.Debug("the endpoint picker failed", "pool", x.target.pool, "error", err, "requestId", x.record.RequestID)
		return llm.Unavailable("the endpoint picker failed", time.Second)
	}
	x.pick, x.named = res, 0
	x.record.PickOutcome, x.record.ModelUsed = res.Reason, x.used()
	if d := res.Denial; d != nil {
		x.denial = d
		return denied(d, res.Reason, x.listener.debug.Load())
	}
	if x.record.Picked == "" && len(res.Endpoints) > 0 {
		x.record.Picked = res.Endpoints[0]
	}
	return nil
}

// inTurn is a member by round robin that is in no worse a state, nil if there is
// none.
func (tg *target) inTurn(tried []string, worst pool.State) *pool.Member {
	members := tg.backend.Pool.Snapshot().Members
	if len(members) == 0 {
		return nil
	}
	start := int(tg.turn.Add(1) % uint64(len(members)))
	for i := range members {
		m := members[(start+i)%len(members)]
		if m.State() <= worst && !slices.Contains(tried, m.Address()) {
			return m
		}
	}
	return nil
}

// attempt sends the request to m, over a connection of its own if it is to be
// fresh, and waits for the beginning of the answer.
func (x *exchange) attempt(m *pool.Member, fresh bool) (*answer, *failure) {
	a := x.begins(m)
	out := a.outbound()
	out.Close = fresh
	res, err := a.roundTrip(out)
	if err != nil {
		return nil, a.failed(err)
	}
	return a.answers(res)
}

// answers waits for the beginning of the answer's body.
func (a *attempt) answers(res *http.Response) (*answer, *failure) {
	if !validStatus(res.StatusCode) {
		f := a.invalid()
		if f.class = provider.Server; a.account != nil {
			a.ends(provider.Verdict{Class: f.class, Status: res.StatusCode}, nil, 0)
		}
		a.close()
		res.Body.Close()
		return nil, f
	}
	if a.credential != nil {
		unzip(res, int64(a.x.table.cfg.Limits.Body))
	}
	ans := &answer{attempt: a, res: res, sse: llm.IsStream(a.speaks(), mediaType(res.Header))}
	enough := ans.enough()
	ans.buf = ans.buffers.Get().(*[]byte)
	for ans.n < enough && ans.err == nil {
		var n int
		n, ans.err = res.Body.Read((*ans.buf)[ans.n:])
		ans.n += n
	}
	if ans.err != nil && ans.err != io.EOF && (ans.n == 0 || !ans.sse) {
		f := a.failed(ans.err)
		ans.close()
		return nil, f
	}
	if f := ans.commit(); f != nil {
		ans.close()
		return nil, f
	}
	return ans, nil
}

// enough is how many bytes of the body must be there before the head is passed
// on, which cannot be taken back: until then a member that dies can be replaced.
// After a head only bytes of the body, or its end, make an answer: one for a
// stream, a buffer full for the rest, so that a short answer is had whole or
// not at all. Other backends, and what is no answer of a model, may wait
// for the client in the middle of it: there the head is the answer.
func (a *answer) enough() int {
	x, n := a.x, a.res.ContentLength
	a.buffers = wholeBuffers
	switch {
	case x.rule != nil && (x.target.plain || !a.sse && !llm.IsJSON(a.res.Header.Get("Content-Type"))):
		if n < 0 || n > 0 && n <= int64(smallBuffer) {
			a.buffers = readBuffers
		}
		if n == 0 || x.r.Method == http.MethodHead || a.res.Body == http.NoBody {
			return 1 // the end, without which nothing can be said to be over
		}
		return 0
	case a.sse:
		a.buffers = readBuffers
		return 1
	}
	return wholeBuffer
}

// failed ends an attempt that brought no answer, and says what that means.
func (a *attempt) failed(err error) *failure {
	f := a.classify(err)
	f.class = classOf(context.Cause(a.ctx), a.connected.Load())
	f.reached = a.connected.Load()
	if broke := a.x.http.source.failed(); broke != nil {
		a.x.stalled = errors.Is(broke, os.ErrDeadlineExceeded)
		f = &failure{reply: uploadError(broke), sent: f.sent, reached: f.reached}
	}
	if a.x.rule != nil && !f.reached && f.blame {
		f.reply = llm.Unavailable(f.reply.Message, time.Second) // nobody has had the request
	}
	// That there was no head has been told already: this is an answer that broke.
	a.ends(provider.Classify(a.dialect, http.StatusOK, nil, nil, a.causeOf(err), true), nil, 0)
	a.close()
	return f
}

// mediaType is the answer's media type without its parameters.
func mediaType(h http.Header) string {
	kind := h.Get("Content-Type")
	if plain := kind == "application/json" || kind == "text/event-stream"; plain {
		return kind
	}
	kind, _, _ = mime.ParseMediaType(kind)
	return kind
}

// begins counts the attempt on its member and starts its clock.
func (x *exchange) begins(m *pool.Member) *attempt {
	a := &attempt{x: x, member: m}
	client := x.r.Context()
	if s := x.http.source; s != nil {
		client, a.unfollow = s.follow()
	}
	a.ctx, a.cancel = context.WithCancelCause(client)
	if x.pick != nil && x.pick.Evicted != nil {
		a.evicted = context.AfterFunc(x.pick.Evicted, func() { a.cancel(errEvicted) })
	}
	total, over := x.left(), &errTotalTimeout
	if h := x.service.http; h != nil && h.backend > 0 && h.backend < total {
		total, over = h.backend, &errBackendTimeout
	}
	a.phase = newPhase(a.cancel, &errConnectTimeout, x.service.timeouts.Connect.D(), total, over)
	switch o := x.observer(); {
	case m == nil: // a provider
	case o != nil:
		o.Attempt(m)
	default:
		tokens := x.req.Prompt.Tokens()
		a.charge = m.Charge(tokens, tokens)
	}
	return a
}

// readBuffers relay streams: one is held for as long as a stream is open, so
// they are small; an SSE event is a few hundred bytes. wholeBuffers take other
// answers.
var (
	readBuffers  = &sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	wholeBuffers = &sync.Pool{New: func() any { b := make([]byte, wholeBuffer); return &b }}
)

const (
	smallBuffer = 4 << 10
	wholeBuffer = 32 << 10
)

// outbound builds the request for the member. Its body has no GetBody, so the
// transport can never send it twice.
func (a *attempt) outbound() *http.Request {
	x := a.x
	u := &url.URL{Scheme: x.target.upstream.scheme, Host: a.member.Address(), Path: x.outPath(), RawQuery: x.query()}
	r := &http.Request{
		Method: x.r.Method, URL: u, Host: u.Host, Header: x.requestHeader(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if x.http.source == nil {
		body := x.upstreamBody()
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	if x.rule != nil {
		a.shape(r)
	}
	if x.pick != nil {
		applyEdits(r.Header, x.pick.Header)
	}
	return r.WithContext(httptrace.WithClientTrace(a.ctx, a.trace()))
}

// trace notes how far the request has come.
func (a *attempt) trace() *httptrace.ClientTrace {
	x := a.x
	first := x.bounds().FirstToken.D()
	if !x.req.Stream || x.target.plain {
		first = x.bounds().Total.D() // a whole answer is one long first token
	}
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			a.reused.Store(info.Reused)
			a.connected.Store(true)
			a.phase.enter(&errFirstTokenTimeout, first)
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				a.sentFull.Store(true)
			}
		},
		GotFirstResponseByte: func() { a.answered.Store(true) },
		Got1xxResponse:       a.informational,
	}
}

// roundTrip sends r and waits for the head of the answer.
func (a *attempt) roundTrip(r *http.Request) (*http.Response, error) {
	res, err := a.x.target.upstream.roundTrip(r)
	a.x.http.early.Lock()
	a.decided = true
	a.x.http.early.Unlock()
	return res, err
}

// validStatus says that a final answer may have this status (RFC 9110 §15).
func validStatus(code int) bool { return code >= 200 && code <= 599 }

// maxInformational bounds the 1xx answers to one request, which the transport
// leaves to its caller: without it they could go on until the time is up.
const maxInformational = 32

var errInformational = errors.New("too many 1xx answers")

// informational passes 1xx answers on (RFC 9110 §15.2), except those that
// belong to the hop. The transport calls it from a goroutine of its own, which
// may outlive the round trip when that is cancelled.
func (a *attempt) informational(code int, header textproto.MIMEHeader) error {
	x := a.x
	x.http.early.Lock()
	defer x.http.early.Unlock()
	if a.told++; a.told > maxInformational {
		return errInformational
	}
	if a.member == nil { // what a provider says early is of its own account and site
		return nil
	}
	if a.decided || code == http.StatusContinue || code == http.StatusSwitchingProtocols || !x.r.ProtoAtLeast(1, 1) {
		return nil
	}
	x.tellEarly(code, http.Header(header))
	return nil
}

// tellEarly sends a 1xx answer. The early lock is held.
func (x *exchange) tellEarly(code int, header http.Header) {
	if p := x.ping; p != nil { // the handler waits for the round trip
		p.mu.Lock()
		defer p.mu.Unlock()
		if x.sent {
			return
		}
	}
	x.writeDeadline(time.Now())
	defer x.waits()
	h := x.w.Header()
	kept := h.Clone()
	clear(h)
	responseHeader(h, header, x.target.plain)
	x.w.WriteHeader(code)
	clear(h)
	for k, v := range kept {
		h[k] = v
	}
}

// goOn answers a client of HTTP/1.1 that waits for 100 before it sends the body.
// net/http would do it at the first read of the body, from the goroutine that
// reads it and beside whatever else is being told to the client.
func (a *attempt) goOn() {
	x := a.x
	if x.r.ProtoMajor != 1 || !httpguts.HeaderValuesContainsToken(x.r.Header["Expect"], "100-continue") {
		return
	}
	x.http.early.Lock()
	defer x.http.early.Unlock()
	if !a.decided && !x.http.wentOn {
		x.http.wentOn = true
		x.tellEarly(http.StatusContinue, nil)
	}
}

// query is the client's query less credentials, parsed and written anew so
// that both ends read the same.
func (x *exchange) query() string {
	if x.r.URL.RawQuery == "" {
		return ""
	}
	q := x.r.URL.Query()
	for _, name := range []string{"key", "api_key", "api-key"} {
		q.Del(name)
	}
	return q.Encode()
}

// upstreamBody is the client's body with the edits that the target needs, or
// the picker's replacement.
func (x *exchange) upstreamBody() []byte {
	if x.replaced() {
		return x.pick.Body
	}
	return x.outBody()
}

// replaced says that the picker has sent another body, and with it perhaps
// another name of the model.
func (x *exchange) replaced() bool { return x.pick != nil && x.pick.Body != nil }

// used is the model's name in the body that is sent, for the record.
func (x *exchange) used() string {
	if x.replaced() {
		if r, fail := llm.Read(x.op, x.r.Header.Get("Content-Type"), x.pick.Body, x.table.readLimits); fail == nil && r.Model != "" {
			return r.Model
		}
	}
	return x.target.named(x)
}

// outBody is the client's body with the edits that the target needs, or what it
// is in the target's dialect.
func (x *exchange) outBody() []byte {
	if x.rule != nil {
		return x.body // HTTP routes change nothing in it
	}
	if x.edited == nil {
		tg := x.target
		switch t := x.translation; {
		case t != nil:
			x.edited = t.Body
		case tg.provider != nil && x.op.Generates():
			x.edited = x.adapted()
		default:
			x.edited, x.record.Dropped = x.req.Edited(llm.Edits{Model: tg.named(x), IncludeUsage: x.asksUsage(), Quirks: tg.ways})
			if x.plan.sealed != "" { // a pool has made none of it
				x.edited, x.record.Dropped = llm.Opened(x.op, x.edited, "")
			}
		}
		x.edited = x.parameters(x.edited)
	}
	return x.edited
}

// adapted is the body for a server of the client's own dialect: with the edits
// that it needs, and without what only the maker of an earlier answer can read.
func (x *exchange) adapted() []byte {
	tg := x.target
	t, fail := llm.Translate(x.req, llm.Backend{Dialect: x.dialect, Model: tg.named(x), Quirks: tg.ways, Seal: x.seal})
	if fail != nil { // not for a server of this dialect
		body, dropped := x.req.Edited(llm.Edits{Model: tg.named(x), IncludeUsage: x.asksUsage(), Quirks: tg.ways})
		x.record.Dropped = dropped
		return body
	}
	x.record.Dropped = t.Dropped
	return t.Body
}

// parameters sets those of the target in a body of its dialect: all but those
// of a chat that was translated, which were set before, or which have no such
// place there.
func (x *exchange) parameters(body []byte) []byte {
	tg := x.target
	if len(tg.defaults)+len(tg.overrides) == 0 || x.op.Counts() || x.op == llm.OpEmbeddings && x.translation != nil {
		return body
	}
	if x.translation == nil || x.dialect == llm.DialectOpenAI {
		return llm.SetMembers(body, tg.defaults, tg.overrides)
	}
	split := func(list []llm.Member) (out []llm.Member) {
		for _, m := range list {
			switch {
			case !slices.Contains(chatParameters[:], m.Name):
				out = append(out, m)
			case x.op != llm.OpChat:
				x.record.Dropped = append(x.record.Dropped, m.Name)
			}
		}
		return out
	}
	return llm.SetMembers(body, split(tg.defaults), split(tg.overrides))
}

// outPath is the path at a pool's member.
func (x *exchange) outPath() string {
	switch {
	case x.translation == nil:
		return x.path
	case x.op.Embeds():
		return "/v1/embeddings"
	}
	return "/v1/chat/completions" // the one form that every engine has
}

// translate puts the request into dialect d, if the client speaks another one.
// A failure says what cannot be said in it.
func (x *exchange) translate(d llm.Dialect) *failure {
	x.hold(-x.fetched) // of the translation before
	x.translation, x.dialect, x.fetched = nil, d, 0
	if x.rule != nil || !x.op.Translates() || x.op.Dialect() == d && !x.wantsArray() {
		return nil
	}
	if tg := x.target; tg.provider == nil && (x.op == llm.OpResponses || tg.paths[x.path]) {
		return nil // the members speak the client's dialect
	}
	req, tg := x.req, x.target
	defaults, overrides := tg.chatDefaults, tg.chatOverrides
	if x.op == llm.OpEmbeddings {
		defaults, overrides = tg.defaults, tg.overrides
	}
	if (x.op == llm.OpChat || x.op == llm.OpEmbeddings) && len(defaults)+len(overrides) > 0 {
		var fail *llm.Error
		set := llm.SetMembers(x.body, defaults, overrides)
		if req, fail = llm.ReadAt(x.op, x.path, x.r.Header.Get("Content-Type"), set, x.table.readLimits); fail != nil {
			return &failure{reply: fail, class: provider.BadRequest}
		}
	}
	t, fail := llm.Translate(req, llm.Backend{
		Dialect: d, Model: x.target.named(x), MaxOutput: x.target.maxOutput(), Quirks: x.target.quirks, Images: x.fetchImage,
	})
	if fail != nil {
		return &failure{reply: fail, class: provider.Unsupported}
	}
	x.translation, x.record.Dropped = t, t.Dropped
	return nil
}

// evicted is what the client is told when the picker has withdrawn the
// request: the picker's own refusal, if it sent one.
func (x *exchange) evicted() *llm.Error {
	if e := (*epp.Eviction)(nil); errors.As(context.Cause(x.pick.Evicted), &e) && e.Denial != nil {
		x.denial = e.Denial
		return denied(e.Denial, "evicted", x.listener.debug.Load())
	}
	return llm.Saturated(errEvicted.Error(), time.Second)
}

// asksUsage says that the gateway asks a stream for usage in the client's
// place.
func (x *exchange) asksUsage() bool {
	return x.rule == nil && x.req.Stream && !x.req.IncludeUsage && !x.target.quirks.NoStreamOptions
}

func (x *exchange) observer() epp.Observer {
	if x.pick == nil {
		return nil
	}
	return x.pick.Observer
}

// classify says what an error before the first byte means: whose fault it is
// and whether another attempt may follow.
func (a *attempt) classify(err error) *failure {
	sent := a.sentFull.Load()
	switch cause := context.Cause(a.ctx); {
	case cause == errConnectTimeout:
		return &failure{reply: llm.UpstreamFailed(errConnectTimeout.Error()), outcome: pool.Refused, blame: true, retry: true}
	case cause == errFirstTokenTimeout:
		// Not retried: a pool that is late is not helped by asking it twice.
		return &failure{reply: a.x.timedOut(cause), outcome: pool.TimedOut, blame: true, sent: sent}
	case cause == errTotalTimeout:
		return &failure{reply: a.x.timedOut(cause), sent: sent}
	case cause == errBackendTimeout:
		// The time of one attempt is over, not that of the request.
		return &failure{reply: a.x.timedOut(cause), outcome: pool.TimedOut, blame: true, retry: true, sent: sent, late: true}
	case cause == errDrained:
		return &failure{reply: llm.Unavailable(cause.Error(), time.Second), sent: sent}
	case cause == errEvicted:
		return &failure{reply: a.x.evicted(), sent: sent}
	case cause != nil:
		return &failure{reply: clientLeft(), sent: sent}
	case strings.Contains(err.Error(), "request header list larger than peer's advertised limit"):
		// net/http says so before it sends anything, in words only.
		return &failure{reply: &llm.Error{
			Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "headers_too_large",
			Message: "the request's headers are larger than the model server takes",
		}}
	case err == errUnzipped:
		return &failure{reply: llm.UpstreamFailed(err.Error()), sent: sent}
	case errors.Is(err, errNoTunnel):
		return &failure{reply: llm.UpgradeRefused(a.x.r.Header.Get("Upgrade"))}
	case ownLimit(err):
		return &failure{reply: llm.Unavailable("the gateway cannot open a connection: it is at a limit of its own", time.Second), retry: true, sent: sent}
	case !a.connected.Load():
		why := "the model server refused the connection"
		if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" {
			// TCP stands, so it was the handshake; the scraper's log has the reason.
			why = "no TLS connection to the model server could be made"
		}
		return &failure{reply: llm.UpstreamFailed(why), outcome: pool.Refused, blame: true, retry: true}
	case a.reused.Load() && !a.answered.Load():
		return &failure{reply: llm.UpstreamFailed("the model server closed the connection"), retry: true, sent: sent, stale: true}
	case !a.answered.Load(), strings.Contains(err.Error(), "EOF"), isReset(err):
		return &failure{reply: llm.UpstreamFailed("the model server broke the connection before it answered"), outcome: pool.Reset, blame: true, retry: true, sent: sent}
	}
	return a.invalid()
}

// ownLimit says that this machine or process, and no member, is short of what
// a connection takes. Blaming members for it would eject all of them.
func ownLimit(err error) bool {
	for _, own := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// invalid is the failure of an answer that is none.
func (a *attempt) invalid() *failure {
	return &failure{reply: llm.UpstreamFailed("the model server's answer is not valid HTTP"), outcome: pool.Reset, blame: true, sent: true}
}

// close ends the attempt and what it holds. It is idempotent.
func (a *attempt) close() {
	a.phase.stop()
	if a.evicted != nil {
		a.evicted()
	}
	a.charge.Release()
	if a.account != nil { // unless it has been told already
		a.account.End(provider.Verdict{Class: provider.Canceled}, nil, 0)
		a.x.target.load.open.Add(-1)
		a.account = nil
	}
	a.cancel(errEnded)
	if a.unfollow != nil {
		a.unfollow()
	}
}

func (a *answer) close() {
	a.attempt.close()
	a.res.Body.Close()
	a.x.server.bodies.Add(-a.held)
	a.held = 0
	if a.buf != nil {
		a.buffers.Put(a.buf)
		a.buf = nil
	}
}
