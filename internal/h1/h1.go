// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package h1 is the client side of HTTP/1.1 (RFC 9112) over TCP connections
// that the caller's goroutine owns while it uses them.
//
// net/http hands every exchange to two goroutines of the connection, which
// costs two changes of goroutine for a request and their stacks for as long as
// a stream is open. Here the goroutine that asks writes the request, reads the
// answer, and takes a stream's pieces straight from the socket (see
// [Body.Each]). TLS and HTTP/2 stay with net/http.
//
// Start reading at [Transport.RoundTrip].
//
// Always true: a connection has one exchange at a time, and goes back to the
// idle ones only when its answer was read to the proper end, nothing came
// after it, and the request was sent whole. A request is never sent twice.
package h1

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"
)

// Transport sends requests over kept connections, one pool of them for each
// address. It is safe for concurrent use; set its fields before the first use.
type Transport struct {
	Dialer      net.Dialer
	IdleTimeout time.Duration // an idle connection is closed after it; 0: kept for ever
	MaxIdle     int           // idle connections to one address; 0: none are kept
	MaxHeader   int64         // bytes of the headers of an answer, those of 1xx answers included

	mu    sync.Mutex
	idle  map[string][]idleConn // by address, the newest last
	sweep *time.Timer           // runs while there are idle ones
}

type idleConn struct {
	*Conn
	since time.Time
}

// RoundTrip sends req to the host and port of its URL and returns the answer
// once its head has come. Of the hooks of httptrace it calls GotConn,
// WroteRequest, GotFirstResponseByte and Got1xxResponse, the second from
// another goroutine if the request's body is large. The body of the answer is a
// [Body], or an io.ReadWriteCloser after 101. Ending the request's context ends
// the exchange at any point, the reading of the body included. A request's body
// that may block must be [Slow]. With Close set no kept connection is used; the
// new one is kept all the same.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	c, reused, err := t.connection(ctx, req.URL.Host, req.Close)
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: c.tcp, Reused: reused, WasIdle: reused})
	}
	return c.RoundTrip(req)
}

// connection takes an idle connection to address unless it must be fresh, or
// dials.
func (t *Transport) connection(ctx context.Context, address string, fresh bool) (c *Conn, reused bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	for !fresh {
		c := t.takeIdle(address)
		if c == nil {
			break
		}
		if c.unasked() == nil {
			return c, true, nil
		}
		c.Close()
	}
	tcp, err := t.Dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, err
	}
	c = NewConn(tcp, t.MaxHeader)
	c.done = func(c *Conn) { t.keep(address, c) }
	return c, false, nil
}

func (t *Transport) takeIdle(address string) *Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.idle[address]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1].Conn
	list[len(list)-1].Conn = nil
	if len(list) == 1 {
		delete(t.idle, address)
	} else {
		t.idle[address] = list[:len(list)-1]
	}
	return c
}

// keep takes c back after an exchange, or closes it.
func (t *Transport) keep(address string, c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle[address]) >= t.MaxIdle {
		c.Close()
		return
	}
	if t.idle == nil {
		t.idle = map[string][]idleConn{}
	}
	t.idle[address] = append(t.idle[address], idleConn{c, time.Now()})
	if t.sweep == nil && t.IdleTimeout > 0 {
		t.sweep = time.AfterFunc(t.IdleTimeout, t.closeExpired)
	}
}

// closeExpired closes what has been idle for long enough and comes back when
// the next may have been.
func (t *Transport) closeExpired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	oldest := now
	for address, list := range t.idle {
		n := 0
		for n < len(list) && now.Sub(list[n].since) >= t.IdleTimeout {
			list[n].Close()
			n++
		}
		if n == len(list) {
			delete(t.idle, address)
			continue
		}
		list = slices.Delete(list, 0, n)
		t.idle[address] = list
		if list[0].since.Before(oldest) {
			oldest = list[0].since
		}
	}
	if t.sweep != nil {
		t.sweep.Stop() // another one, if CloseIdleConnections came in between
		t.sweep = nil
	}
	if len(t.idle) > 0 {
		// Not at once for each of many: a sixteenth of the time together.
		wait := max(t.IdleTimeout-now.Sub(oldest), t.IdleTimeout/16, time.Millisecond)
		t.sweep = time.AfterFunc(wait, t.closeExpired)
	}
}

// CloseIdleConnections closes the connections that are idle now.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range t.idle {
		for _, c := range list {
			c.Close()
		}
	}
	t.idle = nil
	if t.sweep != nil {
		t.sweep.Stop()
		t.sweep = nil
	}
}
