// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// patient is a client connection that may be silent at first for as long as an
// idle one. HTTP clients dial ahead and keep the connection for later; net/http
// would close it ReadHeaderTimeout after it was accepted, and the request that
// is written onto it at that moment would be lost. With it that time counts
// from the first byte.
type patient struct {
	net.Conn
	header  time.Duration // limits.headerTimeout
	silence time.Time     // no byte until then ends the connection
	spoke   atomic.Bool   // a byte came
}

func (c *patient) SetReadDeadline(t time.Time) error {
	// Before the first byte net/http sets only its header and handshake
	// timeouts, which lie ahead, and a time long past to interrupt a read.
	if !c.spoke.Load() && t.After(time.Now()) && t.Before(c.silence) {
		t = c.silence
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *patient) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
		c.Conn.SetReadDeadline(time.Now().Add(c.header))
	}
	return n, err
}

// LocalAddr brings the connection to those who need it: see frames.
func (c *patient) LocalAddr() net.Addr { return local{c.Conn.LocalAddr(), c.Conn} }

// CloseWrite lets net/http end its side first, so that a refusal is not lost
// in a reset.
func (c *patient) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
