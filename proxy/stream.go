// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/h1"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// relay carries one answer to the client.
type relay struct {
	x        *exchange
	a        *answer
	tap      llm.Reader // nil: the bytes are not for reading
	sse      bool
	flush    bool    // after each chunk
	flushed  bool    // once at least
	frames   *frames // past net/http's buffers; nil before the first flush, and where it cannot be
	observer epp.Observer
	half     bool      // what was passed on ends inside an event, and no more comes
	prompt   int       // estimated tokens, should the server report none
	now      time.Time // when the chunk in hand came: the clock is read once per chunk
	first    time.Time // of the first token
	last     time.Time // of the newest
}

// stream sends the answer's head and then its body as it comes. From here on
// nothing can be taken back: a failure is told inside the stream.
func (x *exchange) stream(a *answer) *llm.Error {
	defer a.close()
	res := a.res
	y := &relay{x: x, a: a, sse: a.sse, tap: a.reader, observer: x.observer(), prompt: x.promptTokens()}
	if fail := x.unopened(a); fail != nil {
		x.record.Served = a.where()
		return fail
	}
	x.reader = a.reader
	x.remember(a)
	y.flush = y.sse || res.ContentLength < 0 || x.target.plain
	x.record.Served, x.record.Status = a.where(), res.StatusCode
	y.head()
	if a.reader == nil || res.StatusCode >= 300 {
		x.ping.stop() // what is no stream has no room for comments
	} else if x.startPing(x.bounds().Ping.D()); x.ping != nil {
		res.Header.Del("Content-Length") // which comments would be beyond
		res.ContentLength = -1
	}
	x.sendHead(res)
	x.dropBody()
	if x.rule != nil && a.n == 0 && a.err == nil && res.ContentLength < 0 {
		x.writeDeadline(time.Now())
		x.ctl.Flush() // the head is all there is of a stream, and the client may wait for it
	}
	err := y.copyBody()
	if y.tap != nil {
		y.note()
	}
	if err != nil {
		return y.failed(err)
	}
	a.ended()
	trailer := http.Header{}
	x.passHeader(trailer, res.Trailer)
	for name, values := range trailer {
		x.w.Header()[http.TrailerPrefix+name] = values
	}
	if y.observer != nil {
		y.observer.End(res.Trailer)
	}
	if res.StatusCode >= 400 {
		x.record.ErrorClass = "upstream_" + strconv.Itoa(res.StatusCode/100) + "xx"
	}
	return nil
}

// head tells the observer of the answer's head, and of its end if it has come.
func (y *relay) head() {
	res := y.a.res
	if w, ok := y.observer.(epp.WholeObserver); ok && y.a.fed && !y.sse && y.a.err == io.EOF {
		w.Whole(res.StatusCode, res.Header, y.tap.Usage())
	} else if y.observer != nil {
		y.observer.Head(res.StatusCode, res.Header)
	}
}

// reads says that the answer is one of a model, in a form that a tap knows.
func (x *exchange) reads() bool {
	return x.rule == nil || !x.target.plain && !x.op.Further() && x.op != llm.OpModels
}

func (x *exchange) sendHead(res *http.Response) {
	if x.opened {
		return
	}
	h := x.w.Header()
	if x.rule != nil {
		x.target.http.response.apply(res.Header)
		x.rule.response.apply(res.Header)
	}
	x.passHeader(h, res.Header)
	x.mark(h)
	h.Set(requestIDHeader, x.record.RequestID)
	if x.record.ModelUsed != "" {
		h.Set("X-Model-Used", x.record.ModelUsed)
	}
	if x.translation != nil && x.op == llm.OpEmbeddings && res.StatusCode < 300 && !x.reader.Usage().Told() {
		x.estimated = "usage"
	}
	x.tellRouting(h)
	if x.rule == nil && res.StatusCode >= 400 {
		x.tellRetries(h, res.StatusCode)
	}
	if x.translation != nil {
		h.Set("Content-Type", x.contentType())
		h.Del("Content-Length")
	}
	if !x.target.plain && strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		streamHeader(h)
	}
	if x.listener.debug.Load() {
		h.Set("X-Penstock-Pool", x.target.pool)
		h.Set("X-Penstock-Endpoint", x.record.Served)
		h.Set("X-Penstock-Pick", x.record.PickOutcome)
		h.Set("X-Penstock-Attempts", strconv.Itoa(x.record.Attempts))
	}
	if len(res.Trailer) > 0 {
		trailer := http.Header{}
		x.passHeader(trailer, res.Trailer)
		for name := range trailer {
			h.Add("Trailer", name)
		}
	}
	x.w.WriteHeader(res.StatusCode)
	x.sent = true
}

// passHeader copies to out what of an answer's header or trailer is the client's.
func (x *exchange) passHeader(out, in http.Header) {
	if p := x.target.provider; p != nil {
		p.ResponseHeader(out, in)
		return
	}
	responseHeader(out, in, x.target.plain)
}

// mark puts into an answer's head what concerns the exchange as a whole.
func (x *exchange) mark(h http.Header) {
	x.tellLimits(h)
	if x.rule != nil && x.rule.cors != nil {
		x.rule.cors.mark(h, x.r)
	}
	if x.r.ProtoMajor == 1 && x.http.source != nil && !x.http.source.whole() {
		// What is left of the body may stay unread: it must not be taken for
		// another request.
		h.Set("Connection", "close")
	}
}

// errClient marks a failure to write to the client.
type errClient struct{ error }

func (e errClient) Unwrap() error { return e.error }

func (y *relay) copyBody() error {
	a, x := y.a, y.x
	idle := x.bounds().Idle.D()
	if x.target.plain {
		idle = x.bounds().Total.D() // a stream may be silent for as long as both sides like
	}
	a.phase.enter(&errIdleTimeout, idle)
	piece := func(p []byte) error {
		x.ping.back()
		if err := y.pass(p); err != nil {
			return err
		}
		a.phase.extend(y.now, idle)
		x.waits()
		x.ping.wait()
		return nil
	}
	err := error(nil)
	switch {
	case a.fed:
		y.now = time.Now()
		err = y.emit(a.raw, a.out, y.tap.Tokens())
		a.raw, a.out = nil, nil
		a.phase.extend(y.now, idle)
		y.x.waits()
	case a.n > 0:
		err = piece((*a.buf)[:a.n])
		x.ping.back()
	}
	if err == nil && a.err != io.EOF {
		if err = a.err; err == nil {
			x.ping.wait()
			err = each(a.res.Body, *a.buf, piece)
			x.ping.back()
		}
	}
	y.x.writeDeadline(time.Now()) // for what net/http still has to write
	if gone := (errClient{}); errors.As(err, &gone) {
		return err
	}
	if err != nil && (y.tap == nil || !y.tap.Finished()) {
		return err // what the tap still holds is half an event: it stays here
	}
	if y.tap == nil {
		return nil
	}
	y.half = y.tap.MidEvent()
	rest := y.tap.Close()
	// After the reason for the end a server may leave out the rest, but not half of it.
	cut := !y.whole() || y.sse && x.translation == nil && (y.half || len(rest) > 0) && !y.tap.Finished() && y.tap.Failed() == ""
	if cut && y.sse && x.translation == nil {
		rest = nil // half an event
	}
	if len(rest) > 0 {
		if err := y.write(rest); err != nil {
			return err
		}
	}
	if cut {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// whole says that the answer has ended as answers of this API do. Some servers
// leave out what follows the reason for the end; the client of a translated
// stream needs all of it.
func (y *relay) whole() bool {
	switch {
	case y.a.res.StatusCode >= 300 || y.tap.Finished() || y.tap.Failed() != "":
		return true
	case y.sse:
		return y.tap.FinishReason() != "" && y.x.translation == nil
	}
	return y.a.credential == nil || !y.x.op.AnswersJSON()
}

// each hands f the pieces of body as they come, in buf. It returns nil at the
// body's end.
func each(body io.Reader, buf []byte, f func([]byte) error) error {
	if b, ok := body.(*h1.Body); ok {
		return b.Each(buf, f)
	}
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if ferr := f(buf[:n]); ferr != nil {
				return ferr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// pass reads one chunk and sends it on.
func (y *relay) pass(in []byte) error {
	out, tokens := in, 0
	y.now = time.Now()
	if y.tap != nil {
		before := y.tap.Tokens()
		out = y.tap.Feed(in)
		tokens = y.tap.Tokens() - before
	}
	return y.emit(in, out, tokens)
}

// emit sends out, which is what in came to, and counts the tokens in it.
func (y *relay) emit(in, out []byte, tokens int) error {
	if tokens > 0 {
		y.last = y.now
		if y.first.IsZero() {
			y.first = y.last
			y.a.charge.FirstToken()
		}
		if y.a.charge != nil {
			y.a.charge.Output(tokens)
		}
	}
	if y.observer != nil {
		y.observer.Chunk(in, tokens)
	}
	if len(out) == 0 {
		return nil
	}
	return y.write(out)
}

func (y *relay) write(p []byte) error {
	x := y.x
	if y.tap != nil && y.tap.Failed() != "" {
		p = []byte(y.a.scrub(string(p)))
	}
	if err := x.ping.lost(); err != nil {
		return errClient{err}
	}
	x.writeDeadline(y.now)
	direct := y.frames != nil && len(p) <= mostFrame
	to := io.Writer(x.w)
	if direct {
		to = y.frames
	}
	n, err := to.Write(p)
	x.record.BytesOut += int64(n)
	x.ping.wrote(y.now, y.tap == nil || y.tap.MidEvent() || y.tap.Finished())
	if whole := x.record.BytesOut == y.a.res.ContentLength; err == nil && y.flush && !direct && !whole { // the end flushes anyway
		if err = x.ctl.Flush(); err == nil && !y.flushed {
			y.flushed, y.frames = true, framesFor(x.w, x.r, x.record.Status)
		}
	}
	if err != nil {
		return errClient{err}
	}
	return nil
}

// writeDeadline gives the client WriteIdle to take the next bytes. Moving the
// deadline costs more than looking at it, so it moves when a quarter is used:
// a client that stalls is cut after three quarters of WriteIdle at the least.
func (x *exchange) writeDeadline(now time.Time) {
	idle := x.table.cfg.Limits.WriteIdle.D()
	if x.writeBy.Sub(now) < idle*3/4 {
		x.writeBy = now.Add(idle)
		x.ctl.SetWriteDeadline(x.writeBy)
	}
}

// waits takes the write deadline back while there is nothing to write. Over
// HTTP/2 one that passes resets the stream whether or not a write is pending,
// and a model server may take longer over its next token than a client may
// over the last one.
func (x *exchange) waits() {
	if x.r.ProtoMajor >= 2 && !x.writeBy.IsZero() {
		x.writeBy = time.Time{}
		x.ctl.SetWriteDeadline(x.writeBy)
	}
}

// note writes what the tap saw into the record.
func (y *relay) note() {
	rec, u := y.x.record, y.tap.Usage()
	if y.a.res.StatusCode < 300 {
		rec.Counts = u.WithPrompt(y.prompt)
	}
	rec.Finish = y.tap.FinishReason()
	if !y.first.IsZero() {
		rec.TTFT = y.first.Sub(rec.Time).Seconds()
		if n := u.Completion(); n > 1 && y.last.After(y.first) {
			rec.TPOT = y.last.Sub(y.first).Seconds() / float64(n-1)
		}
	}
	if msg := y.tap.Failed(); msg != "" && y.a.res.StatusCode < 300 {
		rec.ErrorClass, rec.Error = "upstream_stream_error", y.a.scrub(msg)
	}
}

// failed turns a broken answer into what the client is told.
func (y *relay) failed(err error) *llm.Error {
	x := y.x
	x.broken = true
	x.midEvent = y.half || y.tap != nil && y.tap.MidEvent()
	if ce := (errClient{}); errors.As(err, &ce) {
		x.record.ErrorClass = "client_closed"
		if errors.Is(err, os.ErrDeadlineExceeded) {
			x.record.ErrorClass = "client_slow"
		}
		x.record.Status, x.record.Error = StatusClientClosed, "the client took no more bytes"
		return nil
	}
	switch cause := context.Cause(y.a.ctx); {
	case cause == errIdleTimeout:
		y.a.report(pool.TimedOut)
		return x.timedOut(cause)
	case cause == errTotalTimeout, cause == errBackendTimeout:
		return x.timedOut(cause)
	case cause == errDrained:
		return llm.Unavailable(cause.Error(), time.Second)
	case cause == errEvicted:
		return x.evicted()
	case cause != nil:
		return clientLeft()
	case x.http.source.failed() != nil:
		return uploadError(x.http.source.failed())
	}
	y.a.report(pool.Reset)
	if errors.Is(err, errUnzipped) {
		return llm.UpstreamFailed(err.Error())
	}
	return llm.UpstreamFailed("the model server broke off its answer")
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
