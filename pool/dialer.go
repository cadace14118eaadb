// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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
}

func newDialer(cfg config.Pool) (*dialer, error) {
	d := &dialer{scheme: "http", transport: &http.Transport{
		DialContext:            (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext,
		DisableCompression:     true,
		ReadBufferSize:         32 << 10,
		WriteBufferSize:        1 << 10,
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
		d.transport.Protocols.SetHTTP1(true)
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
			t.conn, err = d.transport.NewClientConn(ctx, d.scheme, m.address)
			switch {
			case err == nil:
				m.pool.accepted(m)
			case faultOf(err) == faultRefused:
				m.pool.dialRefused(m)
			}
			if err != nil {
				t.conn = nil
				return 0, page[:0], err
			}
		}
		status, body, err = exchange(ctx, t, page)
		if err != nil || t.conn.Err() != nil {
			t.closeConn()
		}
		if err == nil || !kept || ctx.Err() != nil || errors.Is(err, errTooLarge) {
			return status, body, err
		}
	}
}

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes", pageLimit)

func exchange(ctx context.Context, t *turn, page []byte) (int, []byte, error) {
	page = page[:0]
	res, err := t.conn.RoundTrip(t.request.WithContext(ctx))
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
