// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// exchange is one request and its answer. It belongs to the handler's
// goroutine; no other package sees it.
type exchange struct {
	server   *Server
	listener *listener
	table    *table // the configuration that this request began under
	w        http.ResponseWriter
	r        *http.Request
	ctl      *http.ResponseController
	writeBy  time.Time // the write deadline in force

	section  *section // that the request belongs to
	route    *route   // of models; nil: an HTTP route
	rule     *rule    // of an HTTP route; nil: a route of models
	identity *auth.Identity
	op       llm.Op
	path     string // cleaned, without the route's prefix
	body     []byte // decoded; nil once no attempt can follow
	held     int64  // bytes counted for it
	req      *llm.Request
	model    *model   // nil on HTTP routes
	service  *service // who may answer
	plan     plan     // who is left to try
	aimed
	picking
	http outgoing // on HTTP routes
	ping *pinger  // of a stream; nil: none
	account
	progress
}

// account is what is kept of the exchange, and what it takes of limits.
type account struct {
	record *usage.Record
	spending
}

// aimed is at whom the request goes now, and what he gets.
type aimed struct {
	target      *target
	edited      []byte           // body with the target's edits; nil: not made yet
	translation *llm.Translation // of the request; nil: the target speaks the client's dialect
	dialect     llm.Dialect      // that it speaks
	seal        string           // the account's mark on reasoning; "": none comes back
	fetched     int64            // bytes of images in the translation, counted with the body
}

// picking is what the picker was asked and said.
type picking struct {
	pick   *epp.Result // nil before the first pick
	named  int         // how many of its endpoints were taken
	denial *epp.Denial // the picker's refusal
}

// progress is how far an exchange has come.
type progress struct {
	stalled  bool // the upload ran out of time
	sent     bool // the head of an answer went to the client
	opened   bool // before there was an answer: see openStream
	broken   bool // the answer broke: end the connection, not the message
	midEvent bool // the bytes sent end inside an event
	// estimated is the member of the answer that the gateway has counted itself.
	estimated string
	reader    llm.Reader    // of the answer that is sent; nil: none
	began     time.Time     // the attempt that is under way, or was last
	asked     string        // whom that attempt asks: a member, or an account at a provider
	picked    time.Duration // that the picker took for it
}

// serve is one request from its first line to its last byte. What it returns
// has not been told to the client yet.
func (x *exchange) serve() *llm.Error {
	host, fail := x.enter() // 1. listener, section, host
	switch {
	case fail != nil:
		return fail
	case x.hops() >= mostHops:
		return llm.LoopDetected()
	}
	if m, fail := x.matchHTTP(host); m != nil || fail != nil { // any request by host and path: see serve_http.go
		if fail == nil {
			fail = x.serveHTTP(m)
		}
		return fail
	}
	fail = x.match(host) // and path
	if fail == nil {
		fail = x.identify() // 2. who is asking, before the body is read
	}
	if fail == nil {
		fail = x.readTask()
	}
	switch {
	case fail != nil:
		return fail
	case x.op == llm.OpModels:
		return x.listModels()
	case x.upgrades():
		return x.upgrade()
	}
	if fail := x.readBody(); fail != nil { // 3. the bytes are kept as they came
		return fail
	}
	if x.req, fail = llm.ReadAt(x.op, x.path, x.r.Header.Get("Content-Type"), x.body, x.table.readLimits); fail != nil {
		return fail
	}
	if fail := x.resolve(x.req.Model); fail != nil { // 4. the model, and who of its targets may serve
		return fail
	}
	if fail := x.reserve(); fail != nil { // 5. of every limit on the way, or of none
		return fail
	}
	a, fail := x.attempts()      // 6. pick or prepare, dial, first output; the next target while nothing was sent
	if fail != nil || a == nil { // nil: the gateway has answered itself
		return fail
	}
	return x.stream(a) // 7. to the client as it comes
} // 8. settle is deferred by handle

// handle runs one exchange on a listener.
func (s *Server) handle(l *listener, w http.ResponseWriter, r *http.Request) {
	x := s.begin(l, w, r)
	defer x.settle()
	if fail := x.serve(); fail != nil {
		x.reply(fail)
	}
}

func (s *Server) begin(l *listener, w http.ResponseWriter, r *http.Request) *exchange {
	s.open.Add(1)
	l.open.Add(1)
	x := &exchange{server: s, listener: l, table: s.table.Load(), w: w, r: r, ctl: http.NewResponseController(w)}
	x.record = &usage.Record{
		Time: now(), RequestID: requestID(r.Header), Listener: l.name,
		Client: r.RemoteAddr, Method: r.Method, Path: r.URL.Path, Trace: x.table.traceOf(r.Header),
	}
	if r.ProtoMajor < 2 { // over HTTP/2 it would run while there is nothing to write, see waits
		x.writeBy = x.record.Time.Add(l.limits.WriteIdle.D())
		x.ctl.SetWriteDeadline(x.writeBy) // for what net/http may write on its own
	}
	if l.retired.Load() {
		w.Header().Set("Connection", "close") // HTTP/2: GOAWAY
	}
	if r.ContentLength != 0 {
		// A refusal does not read the body, but net/http does after it: that
		// must end too. readBody moves this deadline and takes it away.
		x.ctl.SetReadDeadline(x.record.Time.Add(l.limits.UploadIdle.D()))
	}
	return x
}

// clientGone says that the client has left, as opposed to being cut or to
// having stalled: net/http ends the context then too.
func (x *exchange) clientGone() bool {
	return !x.stalled && x.r.Context().Err() != nil && context.Cause(x.r.Context()) != errDrained && !x.http.source.interrupted()
}

// left is what remains of the total time.
func (x *exchange) left() time.Duration {
	return x.service.timeouts.Total.D() - time.Since(x.record.Time)
}

// bounds are the times of the phases at the target.
func (x *exchange) bounds() *config.Timeouts {
	if x.target != nil && x.target.timeouts != nil {
		return x.target.timeouts
	}
	return &x.service.timeouts
}

// settle ends the exchange, however it went: the picker, the record, the
// metrics. It is the only place where they are told.
func (x *exchange) settle() {
	x.ping.back()
	defer x.ping.stop()
	if p := recover(); p != nil {
		x.server.log.Error("panic while serving", "requestId", x.record.RequestID, "panic", p, "stack", string(debug.Stack()))
		x.fail(llm.Internal("the gateway failed; its log has the reason"))
	}
	rec := x.record
	if x.clientGone() && rec.ErrorClass != "client_slow" && (rec.Status == 0 || rec.ErrorClass != "") {
		rec.Status, rec.ErrorClass, rec.Error = StatusClientClosed, "client_closed", "the client left"
	}
	rec.Total, rec.Skipped = time.Since(rec.Time).Seconds(), x.leftOut()
	x.spend()
	x.settleLimits()
	if x.pick != nil {
		o := epp.Outcome{Usage: rec.Counts}
		if rec.ErrorClass != "" {
			o.Err = exchangeError(rec.ErrorClass)
		}
		x.pick.Done(o)
	}
	x.learn()
	x.dropBody()
	x.http.end()
	x.server.metrics.observe(x)
	x.server.records(rec)
	x.listener.open.Add(-1)
	x.server.open.Add(-1)
	if x.broken {
		// HTTP/1: the connection closes without the last chunk; HTTP/2: RST_STREAM.
		panic(http.ErrAbortHandler)
	}
}

// StatusClientClosed is what a record says when the client left first.
const StatusClientClosed = 499

// exchangeError is the error class of a record as an error.
type exchangeError string

func (e exchangeError) Error() string { return string(e) }
