// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// ReadAnswer reads an answer from text that is no connection.
func ReadAnswer(text io.Reader) (*http.Response, error) {
	c := NewConn(textConn{Reader: text}, 64<<10)
	c.ended = context.Background().Err
	c.stop = func() bool { return true }
	return c.receive(&http.Request{Method: "POST"}, &httptrace.ClientTrace{})
}

// textConn is a connection to read from.
type textConn struct {
	net.Conn
	io.Reader
}

func (t textConn) Read(p []byte) (int, error)      { return t.Reader.Read(p) }
func (t textConn) Close() error                    { return nil }
func (t textConn) SetReadDeadline(time.Time) error { return nil }
