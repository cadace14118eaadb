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

// Conn is one connection, kept by whoever made it: see [NewConn]. Those of a
// [Transport] are its own. It belongs to the goroutine of its exchange.
type Conn struct {
	tcp    net.Conn
	raw    syscall.RawConn // nil: the connection has none
	header int64           // bytes of the headers of an answer
	head   limited         // tcp, while heads are read
	idle   bool            // the last exchange is over, another may follow
	done   func(*Conn)     // takes the connection back when it becomes idle; nil: nobody
	ended  func() error    // of the context of the exchange
	stop   func() bool     // of the interruption by it
	timed  bool            // a read deadline may be set
	until  time.Time       // the deadline that Send set; zero: none
	begun  *bufio.Reader   // holds the beginning of an answer that Arrived has seen
	upload chan error      // of a body that is sent beside the reading; nil: all is sent
	body   io.Closer       // of the request being uploaded
	failed bool            // the request was not sent whole
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

// NewConn makes a Conn of a fresh TCP connection. The headers of an answer,
// those of 1xx answers included, may have maxHeader bytes.
func NewConn(tcp net.Conn, maxHeader int64) *Conn {
	c := &Conn{tcp: tcp, header: maxHeader, idle: true}
	if s, ok := tcp.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn()
	}
	return c
}

// interrupt ends what the connection is doing, by a deadline in the past.
func (c *Conn) interrupt() { c.tcp.SetDeadline(time.Unix(1, 0)) }

// RoundTrip is as [Transport.RoundTrip]. The last exchange must be over.
func (c *Conn) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		trace = &httptrace.ClientTrace{}
	}
	if !c.until.IsZero() {
		c.until = time.Time{}
		c.tcp.SetDeadline(c.until)
	}
	c.begin(ctx)
	var refused error
	if slow, ok := req.Body.(Slow); req.ContentLength >= 0 && req.ContentLength <= inlineBody && !(ok && slow.Slow()) {
		if refused = c.send(req, trace); refused != nil {
			// It may have said why before it closed.
			c.failed = true
			c.tcp.SetReadDeadline(time.Now().Add(lastWords))
			if ctx.Err() != nil {
				return nil, c.broken(refused)
			}
		}
	} else {
		c.upload, c.body = make(chan error, 1), req.Body
		go c.sendBeside(req, trace, c.upload)
	}
	res, err := c.receive(req, trace)
	if err != nil && refused != nil {
		err = refused
	}
	if err != nil {
		return nil, c.broken(err)
	}
	return res, nil
}

// Slow is a request body whose Read may have to wait for somebody. It is sent
// beside the reading of the answer whatever its size, which may come first. Its
// Close ends a Read that waits, and returns when none is under way.
type Slow interface {
	io.ReadCloser
	Slow() bool
}

// sendBeside sends the request while the answer is read. A body that cannot be
// read to its end leaves the server waiting for the rest: then the exchange
// ends. A server that takes no more of it may still have something to say.
func (c *Conn) sendBeside(req *http.Request, trace *httptrace.ClientTrace, done chan<- error) {
	watched := &watchedBody{ReadCloser: req.Body}
	out := *req
	out.Body = watched
	err := c.send(&out, trace)
	if watched.err != nil {
		err = watched.err
		c.interrupt()
	}
	done <- err
}

// watchedBody remembers why a body could not be read.
type watchedBody struct {
	io.ReadCloser
	err error
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// Send, Arrived and Receive are RoundTrip in steps, for a caller who asks on many
// connections and then reads from one after the other. request is what to send,
// its head and body; it is not kept. Until the answer is read the deadline ends
// the exchange, and so does the end of ctx. A connection that was closed
// meanwhile, or on which the server spoke unasked, is not written to.
func (c *Conn) Send(ctx context.Context, deadline time.Time, request []byte) error {
	c.begin(ctx)
	c.until = deadline
	c.tcp.SetReadDeadline(deadline) // a request that is small enough never waits to be written
	err := ctx.Err()                // after the deadline was set, which may have undone the interruption
	if err == nil {
		err = c.unasked()
	}
	if err == nil {
		_, err = c.tcp.Write(request)
	}
	if err != nil {
		return c.broken(err)
	}
	return nil
}

// Arrived says, without waiting, whether the answer has begun to come or never
// will: whether Receive will not wait for its beginning. Where that cannot be
// known it says yes.
func (c *Conn) Arrived() bool {
	if !canPoll || c.raw == nil || c.begun != nil || c.ended() != nil || c.late() {
		return true
	}
	r := c.reader()
	c.head.r = glance{c}
	_, err := r.Peek(1)
	c.head.r = c.tcp
	if err == nil {
		c.begun = r
		return true
	}
	dropReader(r)
	return err != errNothing
}

// errNothing says that nothing is there to be read yet.
var errNothing = errors.New("h1: nothing has come yet")

// Receive waits for the answer to what was sent; req tells its method. An
// answer that Arrived has seen begin, and that the caller comes late to read, has
// rest for what is left of it even if the deadline has passed.
func (c *Conn) Receive(req *http.Request, rest time.Duration) (*http.Response, error) {
	if by := time.Now().Add(rest); c.begun != nil && by.After(c.until) {
		c.until = by
		c.tcp.SetReadDeadline(by)
	}
	err := c.ended()
	if err == nil {
		var res *http.Response
		if res, err = c.receive(req, &httptrace.ClientTrace{}); err == nil {
			return res, nil
		}
	}
	return nil, c.broken(err)
}

// late says that the deadline of the exchange has passed.
func (c *Conn) late() bool { return !c.until.IsZero() && !time.Now().Before(c.until) }

// Idle says that the last exchange is over and another may follow.
func (c *Conn) Idle() bool { return c.idle }

func (c *Conn) begin(ctx context.Context) {
	c.idle = false
	c.ended = ctx.Err
	c.stop = context.AfterFunc(ctx, c.interrupt)
}

// broken closes the connection after err and says what ended the exchange.
func (c *Conn) broken(err error) error {
	if ended := c.ended(); ended != nil {
		err = ended
	}
	c.Close()
	return err
}

// receive reads the head of the answer. After an error the connection must be
// closed.
func (c *Conn) receive(req *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	r := c.begun
	if c.begun = nil; r == nil {
		r = c.reader()
	}
	res, err := readHead(r, req, trace)
	if err != nil {
		dropReader(r)
		return nil, err
	}
	c.head.left = 1<<63 - 1
	c.attach(res, r)
	return res, nil
}

// reader is memory to read a head into.
func (c *Conn) reader() *bufio.Reader {
	r := readers.Get().(*bufio.Reader)
	c.head = limited{r: c.tcp, left: c.header}
	r.Reset(&c.head)
	return r
}

func dropReader(r *bufio.Reader) {
	r.Reset(nil)
	readers.Put(r)
}

// send writes the request. It closes its body.
func (c *Conn) send(req *http.Request, trace *httptrace.ClientTrace) error {
	w := writers.Get().(*bufio.Writer)
	w.Reset(c.tcp)
	if trace.WroteRequest != nil {
		req = req.WithContext(context.Background()) // or Write would call it too, before the end
	}
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
func (c *Conn) attach(res *http.Response, r *bufio.Reader) {
	if res.StatusCode == http.StatusSwitchingProtocols {
		res.Body = &upgraded{c: c, r: r}
		return
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
}

// release ends the exchange after a whole answer; dirty: something came after it.
func (c *Conn) release(dirty bool) {
	if c.upload != nil {
		select {
		case err := <-c.upload:
			c.upload, c.body, c.failed = nil, nil, err != nil
		default: // the answer came before the end of the upload
		}
	}
	if dirty || c.failed || c.upload != nil || !c.stop() {
		c.Close()
		return
	}
	c.stop, c.ended = nil, nil
	if c.timed {
		c.tcp.SetReadDeadline(time.Time{})
		c.timed = false
	}
	c.idle = true
	if c.done != nil {
		c.done(c)
	}
}

// Close ends the connection and waits until nothing uses the request any more.
func (c *Conn) Close() error {
	c.idle = false
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
	err := c.tcp.Close()
	if c.upload != nil {
		c.body.Close() // which may be all that it waits for
		<-c.upload
		c.upload, c.body = nil, nil
	}
	return err
}

var errUnasked = errors.New("h1: the server spoke unasked")

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
	c *Conn
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
