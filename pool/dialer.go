// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/config"
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
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c == nil {
		return t, nil
	}
	t.ServerName, t.InsecureSkipVerify = c.ServerName, c.InsecureSkipVerify
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
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

// ask sends the turn's request and reads the answer into page. A kept
// connection that the server has closed meanwhile is replaced once. The
// pool learns what fresh connections came to.
func (d *dialer) ask(ctx context.Context, t *turn, path string, page []byte) (status int, body []byte, err error) {
	m := t.member
	if m.refused.Load() {
		t.closeConn() // only a fresh connection proves that somebody listens
	}
	if t.request == nil {
		t.request, err = http.NewRequest(http.MethodGet, d.scheme+"://"+m.address+path, nil)
		if err != nil {
			return 0, page[:0], err
		}
		t.request.Header.Set("User-Agent", "penstock")
		t.request.Header.Set("Accept", "text/plain;version=0.0.4,*/*;q=0.1")
	}
	for {
		kept := t.conn != nil
		if !kept {
			c, err := d.dial(ctx, t.request)
			switch {
			case err == nil:
				t.conn = c
				m.pool.accepted(m)
			case faultOf(err) == faultRefused:
				m.pool.dialRefused(m)
			}
			if err != nil {
				return 0, page[:0], err
			}
		}
		status, body, err = exchange(ctx, t.conn, t.request, page)
		if err != nil || t.conn.Err() != nil {
			t.closeConn()
		}
		if err == nil || !kept || ctx.Err() != nil || errors.Is(err, errTooLarge) {
			return status, body, err
		}
	}
}

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes", pageLimit)

// exchange sends req and reads the answer's body into page, which grows as
// needed.
func exchange(ctx context.Context, c clientConn, req *http.Request, page []byte) (int, []byte, error) {
	page = page[:0]
	res, err := c.Do(ctx, req)
	if err != nil {
		return 0, page, err
	}
	defer res.Body.Close()
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

// clientConn is one connection to a member, used by one goroutine.
type clientConn interface {
	Do(ctx context.Context, req *http.Request) (*http.Response, error)
	Err() error // not nil: it cannot be used again
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
	plainCost     = 80 * time.Microsecond
	writesPerTrip = 9 // of the mean time of a write, as measured on a fast and on a slow machine
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

func (d *dialer) dial(ctx context.Context, req *http.Request) (clientConn, error) {
	if !d.plain {
		c, err := d.transport.NewClientConn(ctx, d.scheme, req.URL.Host)
		if err != nil {
			return nil, err
		}
		return transportConn{c}, nil
	}
	c, err := d.transport.DialContext(ctx, "tcp", req.URL.Host)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		c.Close()
		return nil, err
	}
	p := &plainConn{conn: c, writing: &d.writing, request: text.Bytes(), limited: io.LimitedReader{R: c}}
	p.buffered = bufio.NewReaderSize(&p.limited, 4<<10)
	return p, nil
}

// transportConn is a connection of the standard library's, for all protocols.
type transportConn struct{ *http.ClientConn }

func (c transportConn) Do(ctx context.Context, req *http.Request) (*http.Response, error) {
	return c.RoundTrip(req.WithContext(ctx))
}

// plainConn speaks HTTP/1.1 in the goroutine that asks. A ClientConn hands
// each exchange to two goroutines of its own, which at a thousand scrapes a
// second costs as much again as the scraping (see BenchmarkScrape).
type plainConn struct {
	conn     net.Conn
	writing  *writeTime
	limited  io.LimitedReader // conn; bounds one answer with its header
	buffered *bufio.Reader    // limited
	request  []byte           // the same every time
	closing  bool
	stop     func() bool // of the interruption by the last context
}

func (c *plainConn) Do(ctx context.Context, req *http.Request) (*http.Response, error) {
	if c.stop != nil {
		c.stop()
	}
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	c.stop = context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	began := time.Now()
	if _, err := c.conn.Write(c.request); err != nil {
		return nil, err
	}
	c.writing.add(time.Since(began))
	c.limited.N = 2 * pageLimit // header and chunk framing included
	for {
		res, err := http.ReadResponse(c.buffered, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode >= 200 {
			c.closing = res.Close || res.ContentLength < 0 && len(res.TransferEncoding) == 0
			return res, nil
		}
	}
}

func (c *plainConn) Err() error {
	if c.closing || c.buffered.Buffered() > 0 {
		return errConnDone
	}
	return nil
}

func (c *plainConn) Close() error {
	if c.stop != nil {
		c.stop()
	}
	return c.conn.Close()
}

var errConnDone = errors.New("the connection is not to be used again")

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
