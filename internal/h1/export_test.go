// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// ReadAnswer reads an answer from text that is no connection.
func ReadAnswer(text io.Reader) (*http.Response, error) {
	c := newConn(&Transport{}, "", textConn{Reader: text})
	c.ended = context.Background().Err
	c.stop = func() bool { return true }
	c.head = limited{r: text, left: 64 << 10}
	r := bufio.NewReader(&c.head)
	res, err := readHead(r, &http.Request{Method: "POST"}, &httptrace.ClientTrace{})
	if err != nil {
		return nil, err
	}
	return res, c.attach(res, r)
}

// textConn is a connection to read from.
type textConn struct {
	net.Conn
	io.Reader
}

func (t textConn) Read(p []byte) (int, error)      { return t.Reader.Read(p) }
func (t textConn) Close() error                    { return nil }
func (t textConn) SetReadDeadline(time.Time) error { return nil }
