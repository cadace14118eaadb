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

func clientTLS(c *config.ClientTLS) (*tls.Config, error) { return Identity(c).Config() }

// Identity is c, nil for a plain TLS client, as package certs takes it.
func Identity(c *config.ClientTLS) certs.Client {
	if c == nil {
		return certs.Client{}
	}
	return certs.Client{
		CA: c.CA, Cert: c.Cert, Key: c.Key, ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify,
		CAPEM: c.CAPEM, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM.Reveal(), SubjectAltNames: c.SubjectAltNames, Pins: c.Pins,
	}
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

// ready says whether ask would not have to wait for an answer to begin.
func (d *dialer) ready(t *turn) bool {
	c, ok := t.conn.(*plainConn)
	if !ok || !c.sent || c.failed != nil {
		return true
	}
	began := time.Now()
	defer func() { c.before += time.Since(began) }()
	return c.Arrived()
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
	// Worked is how long the last exchange, which brought size bytes, took of a core.
	Worked(size int) time.Duration
	Idle() bool // it can be used again
	Close() error
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
	p := &plainConn{request: req, text: text.Bytes()}
	if p.quiet, err = h1.Unpoll(c); err == nil {
		c = p.quiet
	}
	p.Conn = h1.NewConn(c, d.transport.MaxResponseHeaderBytes)
	return p, nil
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

// Worked is estimated: the standard library's goroutines wait as they work.
func (c *transportConn) Worked(size int) time.Duration {
	return 2*plainCost + time.Duration(size>>10)*time.Microsecond
}

// plainConn is a connection for HTTP/1.1 without TLS.
type plainConn struct {
	*h1.Conn
	quiet   *h1.Unpolled // the connection below; nil: another
	request *http.Request
	text    []byte        // request, as it is sent each time
	sent    bool          // an answer is under way
	failed  error         // why it is not
	before  time.Duration // what sending, and looking for the answer, took
	worked  time.Duration // what all took, without the naps
}

func (c *plainConn) send(ctx context.Context, timeout time.Duration) {
	began := time.Now()
	c.failed = c.Send(ctx, began.Add(timeout), c.text)
	c.sent, c.before = true, time.Since(began)
}

func (c *plainConn) Get(ctx context.Context, timeout time.Duration, page []byte) (int, []byte, error) {
	if !c.sent {
		c.send(ctx, timeout)
	}
	c.sent = false
	if c.failed != nil {
		return 0, page[:0], c.failed
	}
	if c.quiet != nil {
		defer func(began time.Time, asleep time.Duration) {
			c.worked = c.before + time.Since(began) - (c.quiet.Asleep() - asleep)
		}(time.Now(), c.quiet.Asleep())
	}
	res, err := c.Receive(c.request, timeout/8)
	if err != nil {
		return 0, page[:0], err
	}
	return readPage(res, page)
}

// Worked is measured where nothing but naps is waited for. For those, and for
// all that the runtime does beside, it adds a quarter: see BenchmarkScrape.
func (c *plainConn) Worked(size int) time.Duration {
	if c.quiet == nil {
		return plainCost + time.Duration(size>>10)*time.Microsecond
	}
	return max(plainCost, c.worked+c.worked/4)
}

// plainCost is the least that an exchange takes, however small the page.
const plainCost = 50 * time.Microsecond

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
