// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/penstock/penstock/llm"
)

// uploadFloor is the mean rate below which an upload counts as stalled, in
// bytes a second, measured after the first idle time: without it one byte per
// idle time would hold a connection for as long as it likes.
const uploadFloor = 1 << 10

// readBody reads the whole body before anything is asked upstream: attempts
// need it whole, and net/http notices a client that leaves only after the
// body's end. Bounded in size, in time and over all requests together.
func (x *exchange) readBody() *llm.Error {
	if fail := x.readRaw(); fail != nil {
		return fail
	}
	if len(x.r.Header["Content-Encoding"]) == 0 {
		return nil
	}
	fail := x.decode()
	x.r.Header.Del("Content-Encoding")
	return fail
}

// decode takes the Content-Encoding off the body.
func (x *exchange) decode() (fail *llm.Error) {
	enc := x.r.Header["Content-Encoding"]
	if len(enc) == 0 {
		return nil
	}
	// Several lines are one list (RFC 9110 §5.3).
	if x.body, fail = llm.DecodeHolding(strings.Join(enc, ","), x.body, int64(x.table.cfg.Limits.Body), x.hold); fail != nil {
		return fail
	}
	return x.hold(int64(cap(x.body)) - x.held) // what the steps before held is free
}

// readRaw reads the body as it comes.
func (x *exchange) readRaw() *llm.Error {
	limit := int64(x.table.cfg.Limits.Body)
	if len(x.r.Header["Content-Type"]) > 1 {
		return llm.InvalidRequest("", "Content-Type is given twice, which servers read differently")
	}
	if x.r.ContentLength > limit {
		return llm.TooLarge(limit)
	}
	x.closeAfterChunks()
	raw, fail := x.readAll(limit)
	if fail != nil {
		return fail
	}
	x.record.BytesIn, x.record.Read = int64(len(raw)), time.Since(x.record.Time).Seconds()
	x.body = raw
	return nil
}

// closeAfterChunks ends the connection after a chunked request: net/http has
// dropped a Content-Length that came beside it; RFC 9112 §6.1 wants the
// connection closed in that case, and it cannot be told from here which case it
// is.
func (x *exchange) closeAfterChunks() {
	if len(x.r.TransferEncoding) > 0 && x.r.ProtoMajor == 1 {
		x.w.Header().Set("Connection", "close")
	}
}

func (x *exchange) readAll(limit int64) ([]byte, *llm.Error) {
	size := x.r.ContentLength
	if size < 0 {
		size = 4 << 10
	}
	// A length is a claim: memory follows the bytes that came, not the header; it
	// is at most eight times as much.
	buf := make([]byte, 0, min(size+1, 64<<10))
	if fail := x.hold(int64(cap(buf))); fail != nil {
		return nil, fail
	}
	idle := x.table.cfg.Limits.UploadIdle.D()
	start := time.Now()
	for {
		if len(buf) == cap(buf) {
			grown := min(max(int64(cap(buf))*2, 4<<10), limit+1)
			// An eighth of a claim that has come makes it credible: then all of it is
			// taken in one step, which leaves no halves behind for the collector.
			if whole := x.r.ContentLength + 1; whole > int64(cap(buf)) && whole <= 8*int64(len(buf)) {
				grown = min(whole, limit+1)
			}
			if int64(cap(buf)) > limit {
				return nil, llm.TooLarge(limit)
			}
			if fail := x.hold(grown - int64(cap(buf))); fail != nil {
				return nil, fail
			}
			buf = append(make([]byte, 0, grown), buf...)
		}
		if len(buf) > 0 && int64(len(buf)) != x.r.ContentLength { // begin has set the first one
			x.ctl.SetReadDeadline(uploadDeadline(start, idle, len(buf)))
		}
		n, err := x.r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > limit {
			return nil, llm.TooLarge(limit)
		}
		switch {
		case err == io.EOF:
			x.ctl.SetReadDeadline(time.Time{}) // or it would end the wait for the answer
			return buf, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			x.stalled = true
			return nil, uploadError(err)
		case err != nil:
			var tooBig *http.MaxBytesError
			if errors.As(err, &tooBig) {
				return nil, llm.TooLarge(limit)
			}
			return nil, uploadError(err)
		}
	}
}

// uploadDeadline is when the next byte must have come.
func uploadDeadline(start time.Time, idle time.Duration, got int) time.Time {
	next := time.Now().Add(idle)
	floor := start.Add(idle + time.Duration(got)*time.Second/uploadFloor + idle)
	if floor.Before(next) {
		return floor
	}
	return next
}

// hold counts n more bytes of request bodies, or refuses.
func (x *exchange) hold(n int64) *llm.Error {
	fail := x.server.hold(n, int64(x.table.cfg.Limits.BodiesInFlight))
	if fail == nil {
		x.held += n
	}
	return fail
}

// hold counts n more bytes of bodies, whoever's, or refuses.
func (s *Server) hold(n, limit int64) *llm.Error {
	if s.bodies.Add(n) > limit && n > 0 {
		s.bodies.Add(-n)
		s.metrics.overload.Inc()
		return llm.Unavailable("the gateway holds too many request bodies and answers at the moment", time.Second)
	}
	return nil
}

// dropBody lets go of the body once no attempt can follow: a stream may live
// for many minutes after it.
func (x *exchange) dropBody() {
	x.body, x.req, x.edited = nil, nil, nil
	if x.translation != nil {
		x.translation.Body = nil
	}
	x.server.bodies.Add(-x.held)
	x.held = 0
}
