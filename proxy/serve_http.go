// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/h1"
	"github.com/penstock/penstock/llm"
	"golang.org/x/net/http/httpguts"
)

// outgoing is what an exchange on an HTTP route sends on.
type outgoing struct {
	wire   wirePath
	path   string  // escaped, as the backend is asked for it
	host   string  // the Host that the backend hears
	source *source // the body on its way through; nil: there is none, or it was read whole

	early  sync.Mutex // orders what is told to the client before the head
	wentOn bool       // 100 was sent
}

// matchHTTP finds the HTTP route of the request; nil: none takes it, or a route
// of models is the more specific one.
func (x *exchange) matchHTTP(host string) (*match, *llm.Error) {
	t := &x.section.http
	if t.empty() || x.r.Method == http.MethodConnect {
		return nil, nil
	}
	wire, ok := readPath(x.r.URL)
	if !ok {
		if x.r.URL.Path == "" || x.r.URL.Path[0] != '/' { // OPTIONS *
			return nil, nil
		}
		return nil, ambiguousPath()
	}
	m := t.find(host, wire.match, x.r)
	if wire.other != "" {
		if second := t.find(host, wire.other, x.r); second != m {
			return nil, ambiguousPath()
		}
	}
	if m != nil && m.rule == nil {
		return nil, nil
	}
	if m != nil {
		x.rule, x.http.wire = m.rule, wire
		x.record.Route, x.record.Rule = m.rule.route, m.rule.name
	}
	return m, nil
}

// serveHTTP is a request that an HTTP route takes, from its filters on.
func (x *exchange) serveHTTP(m *match) *llm.Error {
	ru := m.rule
	x.service = &ru.service
	switch { // 1. answers that need no backend
	case ru.cors != nil && preflight(x.r):
		x.answerPreflight(ru.cors)
		return nil
	}
	if !x.listener.anonymous.Load() { // no key, no entry, whatever route leads in
		if fail := x.identify(); fail != nil {
			return fail
		}
		auth.Strip(x.r) // it is the gateway's and no backend's
	}
	switch {
	case ru.redirect != nil:
		return x.redirect(m)
	case len(x.service.targets) == 0:
		return llm.Internal("the route has no backend for this request")
	}
	x.target = x.service.choose() // 2. one of the backends by weight
	if status := x.target.http.status; status != 0 {
		return standIn(status)
	}
	x.record.Pool = x.target.pool
	if fail := x.rewrite(m); fail != nil { // 3. what it is asked for
		return fail
	}
	if x.upgrades() { // 4. another protocol: bytes both ways
		return x.tunnelHTTP()
	}
	read := x.readForPicker // 5. model servers: the body is read, since the picker must see it
	if x.target.plain {
		read = x.openBody // others: it goes through unread
	}
	if fail := read(); fail != nil {
		return fail
	}
	if fail := x.mayReach(); fail != nil {
		return fail
	}
	x.mirror(ru)            // 6. copies, whose answers nobody waits for
	a, fail := x.attempts() // 7. pick or next in turn, dial; again while nothing is lost
	if fail != nil {
		return fail
	}
	return x.stream(a) // 8. to the client as it comes
}

// mayReach holds a key with rules for models to them at model servers. What it
// asks for there must be readable.
func (x *exchange) mayReach() *llm.Error {
	if x.identity == nil || x.target.plain || x.req == nil || x.identity.Allows(x.req.Model) && (x.req.Model != "" || !x.identity.Restricted()) {
		return nil
	}
	return llm.ModelNotFound(x.req.Model)
}

// standIn is the answer in place of a backend that cannot be had.
func standIn(status int) *llm.Error {
	e := &llm.Error{Status: status, Type: "server_error", Code: "no_backend", Message: "the backend of this route cannot be had"}
	if status < http.StatusInternalServerError {
		e.Type = "invalid_request_error"
	}
	return e
}

// rewrite settles path and host for the backend.
func (x *exchange) rewrite(m *match) *llm.Error {
	out, ok := &x.http, true
	out.host, out.path = x.r.Host, out.wire.send
	if c := m.rule.rewrite; c != nil {
		if out.path, ok = out.wire.rewrite(c.Path, m); !ok {
			return ambiguousPath()
		}
		if c.Host != "" {
			out.host = c.Host
		}
	}
	x.path = decoded(out.path)
	if !x.target.plain && administers(x.path) {
		return llm.NotFound(x.r.URL.Path)
	}
	return nil
}

// administers says that model servers, which read a path in their own ways, may
// take it for one of their administration.
func administers(p string) bool {
	for _, reading := range [...]string{p, strings.ReplaceAll(p, `\`, "/"), decoded(p)} {
		if config.IsAdministrative(path.Clean("/" + strings.TrimLeft(reading, "/"))) {
			return true
		}
	}
	return false
}

// readForPicker reads the body whole, for a picker that decides by it. A body of
// a known kind is parsed as on a route of models; the rest is picked for as it
// is. No filter spares a request the picker.
func (x *exchange) readForPicker() *llm.Error {
	x.op = llm.OpUnder(x.path)
	x.req = &llm.Request{Op: x.op, N: 1}
	if x.r.Body == nil || x.r.ContentLength == 0 {
		return nil
	}
	if fail := x.readRaw(); fail != nil {
		return fail
	}
	if !llm.Readable(x.op, x.r.Header.Get("Content-Type"), len(x.body)) {
		return nil
	}
	coded := x.body
	if fail := x.decode(); fail != nil {
		return fail
	}
	req, fail := llm.Read(x.op, x.r.Header.Get("Content-Type"), x.body, x.table.readLimits)
	switch {
	case fail == nil:
		x.req = req
		x.record.ModelAsked, x.record.ModelUsed, x.record.Stream = req.Model, req.Model, req.Stream
	case x.op.Further() && fail.Code != "unsupported_parameter":
		x.body = coded
		return nil
	default:
		return fail
	}
	x.r.Header.Del("Content-Encoding")
	return nil
}

// openBody lets the body through as it comes.
func (x *exchange) openBody() *llm.Error {
	x.req = &llm.Request{N: 1}
	if x.r.Body == nil || x.r.Body == http.NoBody || x.r.ContentLength == 0 {
		return nil
	}
	if x.r.ProtoMajor == 1 {
		// Or net/http would read the body to its end before an answer begins.
		x.ctl.EnableFullDuplex()
		x.closeAfterChunks()
	}
	keep := 0
	if len(x.service.http.codes) > 0 {
		keep = replayBody
	}
	x.http.source = newSource(x, keep)
	return nil
}

// tunnelHTTP passes a change of protocol on.
func (x *exchange) tunnelHTTP() *llm.Error {
	if x.r.ContentLength != 0 || x.target.upstream.tunnels == nil {
		return llm.UpgradeRefused(x.r.Header.Get("Upgrade"))
	}
	x.op = llm.OpOther
	x.req = &llm.Request{Op: llm.OpOther, Stream: true, N: 1}
	return x.handOver()
}

// shape makes the request for a backend: as the client sent it, less what is of
// this hop, with the edits of the route.
func (a *attempt) shape(r *http.Request) {
	x := a.x
	r.Method, r.Host = x.r.Method, x.http.host
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = decoded(x.http.path), x.http.path, x.r.URL.RawQuery
	x.rule.request.apply(r.Header)
	x.target.http.request.apply(r.Header)
	switch {
	case x.http.source != nil:
		r.ContentLength = x.r.ContentLength
		r.Trailer = announced(x.r.Trailer)
		r.Body = x.http.source.open(a, r.Trailer)
	case len(x.body) == 0 && (x.pick == nil || x.pick.Body == nil):
		r.Body, r.ContentLength = http.NoBody, 0
	}
}

// announced are the trailers that may follow a request.
func announced(t http.Header) http.Header {
	var out http.Header
	for name := range t {
		if !h1.OfTheHop(name) && !steers(dash(name)) && httpguts.ValidTrailerHeader(name) {
			if out == nil {
				out = http.Header{}
			}
			out[name] = nil
		}
	}
	return out
}

// plainHeader is what goes to a backend that is no model server: credentials
// and cookies are for it.
func (x *exchange) plainHeader() http.Header {
	in := x.r.Header
	out := make(http.Header, len(in)+4)
	named := in["Connection"]
	for name, values := range in {
		if d := dash(name); h1.OfTheHop(d) || framing(d) || claims(d) || steers(d) || connectionNames(named, name) {
			continue
		}
		out[name] = values
	}
	return out
}

// again says whether another attempt at an HTTP route's backend may follow a
// failure: the request must be there to be sent once more, and must not have
// been carried out already. What is asked of a model may be asked again, as on a
// route of models: servers that come and go close connections on requests that
// are under way to them, and generating twice does nothing but take time.
func (x *exchange) again(f *failure) bool {
	if !f.retry || !x.http.source.replayable() {
		return false
	}
	if f.late { // as if it had answered 504
		return slices.Contains(x.service.http.codes, http.StatusGatewayTimeout) && x.http.source.whole()
	}
	if !x.target.plain && x.req.Model != "" {
		return true
	}
	return !f.reached || f.stale && (!f.sent || idempotent(x.r.Method))
}

// decoded is an escaped path as it reads.
func decoded(escaped string) string {
	if p, err := url.PathUnescape(escaped); err == nil {
		return p
	}
	return escaped
}

// idempotent methods do no more when done twice (RFC 9110 §9.2.2).
func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// pause waits before retry number n, from 1.
func (x *exchange) pause(n int) {
	if x.service.http == nil || x.service.http.backoff <= 0 {
		return
	}
	wait := min(x.service.http.backoff<<min(n-1, 10), maxBackoff, max(x.left(), 0))
	ctx, cancel := context.WithTimeout(x.r.Context(), wait)
	defer cancel()
	<-ctx.Done()
}

const maxBackoff = 30 * time.Second
