// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/llm"
)

const (
	// replayBody is the largest body that is kept for another attempt, or for
	// mirrors. A longer one goes through once.
	replayBody = 1 << 20
	// lastRead is how long net/http may go on reading what a backend did not
	// want, so that the client sees the answer and no reset.
	lastRead = 250 * time.Millisecond
)

// source is a client's body on its way to a backend. Transports read it in
// goroutines of their own, which may outlive the attempt but not the exchange:
// end waits for them. It is the only one that reads the request's body.
type source struct {
	x     *exchange
	body  io.Reader
	idle  time.Duration // between two reads; 0: no bound but the exchange's
	began time.Time

	reading atomic.Bool // a Read of the client is, or will be, under way

	mu     sync.Mutex // held for as long as a Read waits for the client
	taken  int64      // bytes that came
	kept   []byte     // all of them, while they are few enough
	keep   int        // how many may be kept; 0: none
	held   int64      // bytes counted for kept
	done   bool       // the end came
	err    error      // the client's side broke
	finish []func(body []byte, whole bool)

	deadline sync.Mutex // taken after mu, or alone
	cut      bool       // a Read was interrupted: what it had read is lost
	over     bool       // the exchange has ended
}

func newSource(x *exchange, keep int) *source {
	s := &source{x: x, body: x.r.Body, keep: keep, began: time.Now()}
	if x.r.ContentLength > 0 {
		// Only what says how much will come is held to come: a stream may be
		// silent for as long as both sides like.
		s.idle = x.table.cfg.Limits.UploadIdle.D()
	} else {
		x.ctl.SetReadDeadline(time.Time{})
	}
	return s
}

// upload is the body of one attempt: it begins with what is kept.
type upload struct {
	s       *source
	a       *attempt
	at      int64
	trailer http.Header // filled in at the end
	closed  atomic.Bool
}

// open begins an attempt. Those before it must be closed.
func (s *source) open(a *attempt, trailer http.Header) *upload {
	return &upload{s: s, a: a, trailer: trailer}
}

var (
	errUploadClosed = errors.New("the attempt reads no more of the request")
	errUploadLost   = errors.New("the request's beginning is gone")
)

// Slow is for package h1: a Read waits for the client.
func (u *upload) Slow() bool { return true }

func (u *upload) Read(p []byte) (int, error) {
	s := u.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.Store(true) // before closed is looked at: Close does it the other way round
	defer s.reading.Store(false)
	switch {
	case u.closed.Load():
		return 0, errUploadClosed
	case u.at < int64(len(s.kept)):
		n := copy(p, s.kept[u.at:])
		u.at += int64(n)
		return n, nil
	case u.at < s.taken:
		return 0, errUploadLost
	case s.done:
		return 0, u.end()
	case s.err != nil:
		return 0, s.err
	}
	if !s.await() {
		return 0, errUploadClosed
	}
	u.a.goOn()
	n, err := s.body.Read(p)
	s.take(p[:n])
	u.at += int64(n)
	switch {
	case err == io.EOF:
		s.done = true
		s.await()
		s.settle(true)
		return n, u.end()
	case err != nil:
		s.err = err
		s.settle(false)
	}
	return n, err
}

func (u *upload) end() error {
	for name := range u.trailer {
		u.trailer[name] = u.s.x.r.Trailer[name]
	}
	return io.EOF
}

// await moves the deadline of the next read, or takes it away after the last.
func (s *source) await() bool {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	switch {
	case s.cut || s.over:
		return false
	case s.done:
		s.x.ctl.SetReadDeadline(time.Time{}) // or it would end the wait for the answer
	case s.idle > 0:
		s.x.ctl.SetReadDeadline(uploadDeadline(s.began, s.idle, int(s.taken)))
	}
	return true
}

// take notes what came.
func (s *source) take(p []byte) {
	s.taken += int64(len(p))
	if s.keep == 0 {
		return
	}
	if len(s.kept)+len(p) > s.keep || !s.hold(len(p)) {
		s.drop()
		s.settle(false)
		return
	}
	s.kept = append(s.kept, p...)
}

func (s *source) hold(n int) bool {
	x := s.x
	if x.server.bodies.Add(int64(n)) > int64(x.table.cfg.Limits.BodiesInFlight) {
		x.server.bodies.Add(-int64(n))
		return false
	}
	s.held += int64(n)
	return true
}

// drop keeps nothing from here on.
func (s *source) drop() {
	s.x.server.bodies.Add(-s.held)
	s.kept, s.keep, s.held = nil, 0, 0
}

// settle tells those who wait for the whole body.
func (s *source) settle(whole bool) {
	for _, f := range s.finish {
		f(s.kept, whole && s.keep > 0)
	}
	s.finish = nil
}

// Close ends the attempt's reading. It returns when no Read is under way; one
// that waits for the client is interrupted.
func (u *upload) Close() error {
	if !u.closed.Swap(true) {
		u.s.quiet()
	}
	return nil
}

// quiet waits until nobody reads. What an interrupted Read had taken may be lost.
func (s *source) quiet() {
	s.deadline.Lock()
	if !s.over && s.reading.Load() {
		s.cut = true
		s.x.ctl.SetReadDeadline(time.Unix(1, 0))
	}
	s.deadline.Unlock()
	s.mu.Lock()
	s.mu.Unlock() //nolint:staticcheck // the wait is what it is for
}

// replayable says that another attempt can send the whole request: nothing of
// the body was taken, or all that was is kept and no Read is cut. A nil source
// has no body to lose.
func (s *source) replayable() bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline.Lock()
	defer s.deadline.Unlock()
	return !s.cut && s.err == nil && int64(len(s.kept)) == s.taken
}

// whole says that the end has come.
func (s *source) whole() bool {
	if s == nil {
		return true
	}
	if !s.mu.TryLock() {
		return false // a Read is under way
	}
	defer s.mu.Unlock()
	return s.done
}

// failed is why the client's side broke; nil: it did not.
func (s *source) failed() error {
	if s == nil || !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	return s.err
}

// end lets go of the body. After it nothing touches the request any more.
func (o *outgoing) end() {
	s := o.source
	if s == nil {
		return
	}
	s.quiet()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline.Lock()
	defer s.deadline.Unlock()
	s.over = true
	s.drop()
	s.settle(false)
	s.x.record.BytesIn = s.taken
	if !s.done && s.x.r.ProtoMajor == 1 {
		s.x.ctl.SetReadDeadline(time.Now().Add(lastRead))
	}
}

// uploadError is what the client is told whose body broke off.
func uploadError(err error) *llm.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &llm.Error{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "upload_timeout", Message: "the request body did not come in time"}
	}
	return &llm.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "bad_upload", Message: "the request body broke off: " + err.Error()}
}
