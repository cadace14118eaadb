// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/h1"
)

// steps makes a connection to send and receive on, to a server whose every
// answer waits for next.
func steps(t *testing.T, answer string) (c *h1.Conn, next chan bool) {
	next = make(chan bool)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			<-next
			io.WriteString(c, answer)
			next <- true
		}
	})
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c = h1.NewConn(tcp, 64<<10)
	t.Cleanup(func() { c.Close() })
	return c, next
}

const ask = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func TestAwait(t *testing.T) {
	c, next := steps(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	get := &http.Request{Method: "GET"}
	receive := func(rest time.Duration) string { return outcome(c.Receive(get, rest))(readAll) }
	for range 2 {
		if err := c.Send(t.Context(), time.Now().Add(time.Hour), []byte(ask)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if c.Await(time.Millisecond) {
				t.Fatal("an answer that did not come")
			}
		}
		next <- true
		<-next
		if !c.Await(time.Minute) || !c.Await(0) {
			t.Fatal("an answer that did not begin")
		}
		if got := receive(0); got != `200 "ok" map[]` || !c.Idle() {
			t.Fatal(got)
		}
	}
	// The answer came, but the caller comes after the deadline.
	deadline := time.Now().Add(500 * time.Millisecond)
	if err := c.Send(t.Context(), deadline, []byte(ask)); err != nil {
		t.Fatal(err)
	}
	next <- true
	<-next
	time.Sleep(time.Until(deadline) + time.Millisecond)
	if !c.Await(time.Minute) {
		t.Fatal("an answer that did not begin")
	}
	if got := receive(time.Minute); got != `200 "ok" map[]` || !c.Idle() {
		t.Fatal(got)
	}
	// A deadline is of its exchange alone.
	go func() { next <- true; <-next }()
	if got := outcome(c.RoundTrip(request(t, t.Context(), "x", "")))(readEach); got != `200 "ok" map[]` {
		t.Fatal(got)
	}
	// No answer comes.
	if err := c.Send(t.Context(), time.Now().Add(500*time.Millisecond), []byte(ask)); err != nil {
		t.Fatal(err)
	}
	if !c.Await(time.Minute) {
		t.Error("Receive would have to wait after the deadline")
	}
	if _, err := c.Receive(get, time.Minute); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// The deadline of Send holds for pieces, and so does the end of its context.
func TestSendEnds(t *testing.T) {
	for name, f := range map[string]func(cancel func()) (time.Time, error){
		"deadline": func(func()) (time.Time, error) { return time.Now().Add(500 * time.Millisecond), os.ErrDeadlineExceeded },
		"context": func(cancel func()) (time.Time, error) {
			time.AfterFunc(50*time.Millisecond, cancel)
			return time.Now().Add(time.Hour), context.Canceled
		},
	} {
		c, next := steps(t, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 9999))
		go func() { next <- true; <-next }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		by, want := f(cancel)
		if err := c.Send(ctx, by, []byte(ask)); err != nil {
			t.Fatal(name, err)
		}
		for !c.Await(time.Millisecond) {
		}
		res, err := c.Receive(&http.Request{Method: "GET"}, 0)
		if err == nil {
			err = res.Body.(*h1.Body).Each(make([]byte, 1000), func([]byte) error { return nil })
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing is sent on a connection on which something came unasked: it would be
// read as the answer.
func TestSendAfterUnasked(t *testing.T) {
	more := make(chan bool)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-more
		io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
	})
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := h1.NewConn(tcp, 64<<10)
	defer c.Close()
	if err := c.Send(t.Context(), time.Now().Add(time.Hour), []byte(ask)); err != nil {
		t.Fatal(err)
	}
	if got := outcome(c.Receive(&http.Request{Method: "GET"}, 0))(readAll); got != `200 "ok" map[]` {
		t.Fatal(got)
	}
	more <- true
	time.Sleep(20 * time.Millisecond) // for the bytes to come
	if err := c.Send(t.Context(), time.Now().Add(time.Hour), []byte(ask)); err == nil {
		t.Error("sent")
	}
}
