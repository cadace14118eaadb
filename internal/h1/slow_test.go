// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/h1"
)

// trickle is a body whose reads wait for feed; Close ends one that waits.
type trickle struct {
	feed   chan string
	closed chan struct{}
	once   sync.Once
	err    error // at the end of feed; nil: io.EOF
}

func newTrickle(err error) *trickle {
	return &trickle{feed: make(chan string, 1), closed: make(chan struct{}), err: err}
}

func (b *trickle) Slow() bool { return true }

func (b *trickle) Read(p []byte) (int, error) {
	select {
	case s, ok := <-b.feed:
		if ok {
			return copy(p, s), nil
		}
		if b.err != nil {
			return 0, b.err
		}
		return 0, io.EOF
	case <-b.closed:
		return 0, errors.New("closed")
	}
}

func (b *trickle) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

var _ h1.Slow = (*trickle)(nil)

// An answer is read while the body waits for more, whatever its length; when it
// is over, or the exchange is given up, the body is closed and nobody reads it.
func TestSlowBody(t *testing.T) {
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")
		io.Copy(io.Discard, r)
	})
	for _, length := range []int64{-1, 10, 1 << 20} {
		tr := transport(t)
		body := newTrickle(nil)
		req := request(t, t.Context(), address, "")
		req.Body, req.ContentLength = body, length
		body.feed <- "some"
		if got, want := outcome(tr.RoundTrip(req))(readAll), "200 \"early\" map[]"; got != want {
			t.Errorf("length %d: %s", length, got)
		}
		select {
		case <-body.closed:
		case <-time.After(5 * time.Second):
			t.Errorf("length %d: the body stays open", length)
		}
	}
}

// A body that breaks off ends the exchange, though the server waits for more.
func TestSlowBodyBreaks(t *testing.T) {
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) })
	tr := transport(t)
	body := newTrickle(errors.New("gone"))
	req := request(t, t.Context(), address, "")
	req.Body, req.ContentLength = body, 100
	body.feed <- "some"
	close(body.feed)
	done := make(chan error)
	go func() { _, err := tr.RoundTrip(req); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("an answer came")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the exchange goes on")
	}
}

// The connection is kept after an upload that ended.
func TestSlowBodyKeepsConnection(t *testing.T) {
	address, conns := server(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	tr := transport(t)
	for i := range 100 {
		body := newTrickle(nil)
		text := strings.Repeat("x", 10)
		body.feed <- text
		close(body.feed)
		req := request(t, t.Context(), address, "")
		req.Body, req.ContentLength = body, int64(len(text))
		if i%2 == 0 {
			req.ContentLength = -1
		}
		if got := outcome(tr.RoundTrip(req))(readAll); !strings.HasPrefix(got, "200") {
			t.Fatal(got)
		}
	}
	if n := conns.Load(); n > 5 {
		t.Errorf("%d connections for 100 requests in turn", n)
	}
}
