// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"syscall"
	"time"
)

// conn is one connection. It belongs to the goroutine of its exchange.
type conn struct {
	t       *Transport
	address string
	tcp     net.Conn
	raw     syscall.RawConn // nil: the connection has none
	since   time.Time       // idle since; under t.mu
	head    limited         // tcp, while heads are read
	ended   func() error    // of the context of the exchange
	stop    func() bool     // of the interruption by it
	timed   bool            // a read deadline may be set
	upload  chan error      // of a body that is sent beside the reading; nil: all is sent
	failed  bool            // the request was not sent whole
}

const (
	// inlineBody is the largest request body that is sent before the answer is
	// looked at: it fits into the buffers of a connection that takes anything.
	inlineBody = 32 << 10
	// lastWords is how long an answer may take after the server has refused
	// the rest of the request.
	lastWords = 100 * time.Millisecond
)

// Memory for the heads of requests and answers.
var (
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 8<<10) }}
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}
)

func newConn(t *Transport, address string, tcp net.Conn) *conn {
	c := &conn{t: t, address: address, tcp: tcp}
	if s, ok := tcp.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn()
	}
	return c
}

// interrupt ends what the connection is doing, by a deadline in the past.
func (c *conn) interrupt() { c.tcp.SetDeadline(time.Unix(1, 0)) }

// exchange sends req and reads the head of the answer. After an error the
// connection must be closed.
func (c *conn) exchange(ctx context.Context, req *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	c.ended = ctx.Err
	c.stop = context.AfterFunc(ctx, c.interrupt)
	var refused error
	if req.ContentLength >= 0 && req.ContentLength <= inlineBody {
		if refused = c.send(req, trace); refused != nil {
			// It may have said why before it closed.
			c.failed = true
			c.tcp.SetReadDeadline(time.Now().Add(lastWords))
			if ctx.Err() != nil {
				return nil, refused
			}
		}
	} else {
		c.upload = make(chan error, 1)
		go func() { c.upload <- c.send(req, trace) }()
	}
	r := readers.Get().(*bufio.Reader)
	c.head = limited{r: c.tcp, left: c.t.MaxHeader}
	r.Reset(&c.head)
	res, err := readHead(r, req, trace)
	if err != nil {
		r.Reset(nil)
		readers.Put(r)
		if refused != nil {
			err = refused
		}
		return nil, err
	}
	c.head.left = 1<<63 - 1
	return res, c.attach(res, r)
}

// send writes the request. It closes its body.
func (c *conn) send(req *http.Request, trace *httptrace.ClientTrace) error {
	w := writers.Get().(*bufio.Writer)
	w.Reset(c.tcp)
	err := req.Write(w)
	if err == nil {
		err = w.Flush()
	}
	w.Reset(nil)
	writers.Put(w)
	if trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
	return err
}

// readHead reads up to the end of the final answer's head.
func readHead(r *bufio.Reader, req *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	if _, err := r.Peek(1); err != nil {
		return nil, err
	}
	if trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte()
	}
	for {
		res, err := http.ReadResponse(r, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode < 100 || res.StatusCode > 199 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
		if trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// attach gives res a body that reads from the connection; r holds what came
// with the head.
func (c *conn) attach(res *http.Response, r *bufio.Reader) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		res.Body = &upgraded{c: c, r: r}
		return nil
	}
	b := &Body{c: c, early: r, trailer: &res.Trailer, closing: res.Close}
	switch {
	case res.Body == http.NoBody:
		b.framing, b.left = byLength, 0
	case len(res.TransferEncoding) > 0:
		b.framing = byChunks
	case res.ContentLength >= 0:
		b.framing, b.left = byLength, res.ContentLength
	default:
		b.framing, b.closing = byClose, true
	}
	res.Body = b
	if b.framing == byLength && b.left == 0 {
		b.end(io.EOF)
	}
	return nil
}

// release ends the exchange after a whole answer; dirty: something came after it.
func (c *conn) release(dirty bool) {
	if c.upload != nil {
		select {
		case err := <-c.upload:
			c.upload, c.failed = nil, err != nil
		default: // the answer came before the end of the upload
		}
	}
	if dirty || c.failed || c.upload != nil || !c.stop() {
		c.close()
		return
	}
	c.stop, c.ended = nil, nil
	if c.timed {
		c.tcp.SetReadDeadline(time.Time{})
		c.timed = false
	}
	c.t.keep(c)
}

// close ends the connection and waits until nothing uses the request any more.
func (c *conn) close() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
	c.tcp.Close()
	if c.upload != nil {
		<-c.upload
		c.upload = nil
	}
}

var errHeader = errors.New("h1: the headers of the answer are too large")

// limited reads heads.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHeader
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// upgraded is the connection after 101, for one reader and one writer.
type upgraded struct {
	c *conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error)  { return u.r.Read(p) }
func (u *upgraded) Write(p []byte) (int, error) { return u.c.tcp.Write(p) }

// Close may be called at any time.
func (u *upgraded) Close() error {
	u.c.stop()
	return u.c.tcp.Close()
}

// malformed is an error of an answer that breaks RFC 9112.
func malformed(what string) error { return fmt.Errorf("h1: malformed answer: %s", what) }
