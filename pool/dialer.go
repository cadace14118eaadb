// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/internal/h1"
)

// pageLimit bounds a page; a larger one is not read at all.
const pageLimit = 8 << 20

// dialer makes the connections of scraper and prober, in the pool's protocol.
// They are apart from those of requests: each turn keeps one of its own, so
// that it is known whether a connection is fresh.
type dialer struct {
	transport *http.Transport
	scheme    string
	plain     bool // HTTP/1.1 without TLS
	writing   writeTime
}

func newDialer(cfg config.Pool) (*dialer, error) {
	d := &dialer{scheme: "http", transport: &http.Transport{
		DialContext:            (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext,
		DisableCompression:     true,
		ReadBufferSize:         32 << 10,
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              &http.Protocols{},
	}}
	switch cfg.Protocol {
	case config.H2C:
		d.transport.Protocols.SetUnencryptedHTTP2(true)
	case config.HTTPS:
		d.scheme = "https"
		d.transport.Protocols.SetHTTP1(true)
		d.transport.Protocols.SetHTTP2(true)
		t, err := clientTLS(cfg.TLS)
		if err != nil {
			return nil, err
		}
		d.transport.TLSClientConfig = t
	default:
		d.plain = true
	}
	return d, nil
}

func clientTLS(c *config.ClientTLS) (*tls.Config, error) {
	if c == nil {
		c = &config.ClientTLS{}
	}
	return certs.Client(*c).Config()
}

// fault is why a member could not be asked, as a metric label.
type fault string

const (
	faultRefused  fault = "refused" // nobody is there
	faultTimeout  fault = "timeout"
	faultBroken   fault = "broken" // any other error of the connection
	faultStatus   fault = "status" // an answer, but not a good one
	faultTooLarge fault = "too_large"
	faultEmpty    fault = "empty" // a page without one known signal
)

// begin sends the turn's request on the connection that it keeps, so that the
// answer is under way while others are asked. What goes wrong shows in ask.
func (d *dialer) begin(ctx context.Context, t *turn, timeout time.Duration) {
	if c, ok := t.conn.(*plainConn); ok && !t.member.refused.Load() {
		c.send(ctx, timeout)
	}
}

// ready waits for the answer to what begin sent to begin, for d at most. It says
// no if ask would still have to wait for that.
func (d *dialer) ready(t *turn, wait time.Duration) bool {
	c, ok := t.conn.(*plainConn)
	return !ok || !c.sent || c.failed != nil || c.Await(wait)
}

// ask sends the turn's request, unless begin did, and reads the answer into
// page. A kept connection that the server has closed meanwhile is replaced
// once; where others of a batch wait, which a dial could hold up, it says errLost
// instead. The pool learns what fresh connections came to.
func (d *dialer) ask(ctx context.Context, timeout time.Duration, t *turn, path string, page []byte) (status int, body []byte, err error) {
	m := t.member
	if m.refused.Load() {
		t.closeConn() // only a fresh connection proves that somebody listens
	}
	for {
		kept := t.conn != nil
		if !kept {
			if t.shared {
				return 0, page[:0], errLost
			}
			t.conn, err = d.dial(ctx, timeout, m.address, path)
			switch {
			case err == nil:
				m.pool.accepted(m)
			case faultOf(err) == faultRefused:
				m.pool.dialRefused(m)
			}
			if err != nil {
				return 0, page[:0], err
			}
		}
		status, body, err = t.conn.Get(ctx, timeout, page)
		if err != nil || !t.conn.Idle() {
			t.closeConn()
		}
		if err == nil || !kept || ctx.Err() != nil || errors.Is(err, errTooLarge) || faultOf(err) == faultTimeout {
			return status, body, err
		}
	}
}

// errLost says that a turn has lost its connection and should come again, alone.
var errLost = errors.New("the connection is lost")

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes", pageLimit)

// readPage reads the answer's body into page, which grows as needed.
func readPage(res *http.Response, page []byte) (int, []byte, error) {
	defer res.Body.Close()
	page = page[:0]
	if res.ContentLength > pageLimit {
		return res.StatusCode, page, errTooLarge
	}
	if need := int(res.ContentLength) + 1; need > cap(page) {
		page = make([]byte, 0, need+need/8) // room for the read that finds the end
	}
	for {
		if len(page) == cap(page) {
			page = append(page, 0)[:len(page)]
		}
		n, err := res.Body.Read(page[len(page):cap(page)])
		page = page[:len(page)+n]
		if errors.Is(err, io.EOF) {
			return res.StatusCode, page, nil
		}
		if err != nil {
			return res.StatusCode, page, err
		}
		if len(page) > pageLimit {
			return res.StatusCode, page, errTooLarge
		}
	}
}

// clientConn is one connection to a member with the request for it, used by
// one goroutine.
type clientConn interface {
	// Get asks and reads the answer into page, which grows as needed.
	Get(ctx context.Context, timeout time.Duration, page []byte) (status int, body []byte, err error)
	Idle() bool // it can be used again
	Close() error
}

// cost is what asking for size bytes takes of a core, by BenchmarkScrape and
// rounded up. How fast this machine makes system calls shows in how long it
// takes to write a request, the one part of a round trip that does not wait.
func (d *dialer) cost(size int) time.Duration {
	trip := max(plainCost, writesPerTrip*d.writing.mean())
	if d.plain {
		return trip + time.Duration(size>>10)*500*time.Nanosecond
	}
	return 2*trip + time.Duration(size>>10)*time.Microsecond
}

const (
	plainCost     = 50 * time.Microsecond
	writesPerTrip = 8 // of the mean time of a write, as measured on a fast and on a slow machine
)

// writeTime is a moving average of the time that writes of requests took.
type writeTime struct{ nanoseconds atomic.Int64 }

func (w *writeTime) mean() time.Duration { return time.Duration(w.nanoseconds.Load()) }

// add counts a write. One that was interrupted counts for no more than twice
// the average.
func (w *writeTime) add(took time.Duration) {
	old := w.nanoseconds.Load()
	if old == 0 {
		w.nanoseconds.Store(min(int64(took), int64(plainCost/writesPerTrip)))
		return
	}
	// Two workers may overwrite each other: the average stays one.
	w.nanoseconds.Store(old + (min(int64(took), 2*old)-old)/costWeight)
}

func (d *dialer) dial(ctx context.Context, timeout time.Duration, address, path string) (clientConn, error) {
	req, err := http.NewRequest(http.MethodGet, d.scheme+"://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "penstock")
	req.Header.Set("Accept", "text/plain;version=0.0.4,*/*;q=0.1")
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !d.plain {
		c, err := d.transport.NewClientConn(ctx, d.scheme, address)
		if err != nil {
			return nil, err
		}
		return &transportConn{c, req}, nil
	}
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return nil, err
	}
	c, err := d.transport.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &plainConn{Conn: h1.NewConn(timedWrites{c, &d.writing}, d.transport.MaxResponseHeaderBytes), request: req, text: text.Bytes()}, nil
}

// transportConn is a connection of the standard library's, for all protocols.
type transportConn struct {
	*http.ClientConn
	request *http.Request
}

func (c *transportConn) Get(ctx context.Context, timeout time.Duration, page []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := c.RoundTrip(c.request.WithContext(ctx))
	if err != nil {
		return 0, page[:0], err
	}
	return readPage(res, page)
}

func (c *transportConn) Idle() bool { return c.Err() == nil }

// plainConn is a connection for HTTP/1.1 without TLS.
type plainConn struct {
	*h1.Conn
	request *http.Request
	text    []byte // request, as it is sent each time
	sent    bool   // an answer is under way
	failed  error  // why it is not
}

func (c *plainConn) send(ctx context.Context, timeout time.Duration) {
	c.failed = c.Send(ctx, time.Now().Add(timeout), c.text)
	c.sent = true
}

func (c *plainConn) Get(ctx context.Context, timeout time.Duration, page []byte) (int, []byte, error) {
	if !c.sent {
		c.send(ctx, timeout)
	}
	c.sent = false
	if c.failed != nil {
		return 0, page[:0], c.failed
	}
	res, err := c.Receive(c.request, timeout/8)
	if err != nil {
		return 0, page[:0], err
	}
	return readPage(res, page)
}

// timedWrites measures how long it takes to write a request.
type timedWrites struct {
	net.Conn
	writing *writeTime
}

func (c timedWrites) Write(p []byte) (int, error) {
	began := time.Now()
	n, err := c.Conn.Write(p)
	if err == nil {
		c.writing.add(time.Since(began))
	}
	return n, err
}

// SyscallConn lets a kept connection be looked at.
func (c timedWrites) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func faultOf(err error) fault {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return faultRefused
	case errors.Is(err, errTooLarge):
		return faultTooLarge
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return faultTimeout
	}
	return faultBroken
}
