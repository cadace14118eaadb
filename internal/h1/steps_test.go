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

// bothKinds runs f with connections as they are, and with such as the poller
// does not watch.
func bothKinds(t *testing.T, f func(t *testing.T, dial func(address string) *h1.Conn)) {
	for _, kind := range []string{"polled", "unpolled"} {
		t.Run(kind, func(t *testing.T) {
			f(t, func(address string) *h1.Conn {
				tcp, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				if kind == "unpolled" {
					quiet, err := h1.Unpoll(tcp)
					if errors.Is(err, errors.ErrUnsupported) && os.Getenv("CI") != "true" {
						t.Skip("this system does not let a connection out of the poller (all but Unix)")
					}
					if err != nil {
						t.Fatal(err)
					}
					tcp = quiet
				}
				c := h1.NewConn(tcp, 64<<10)
				t.Cleanup(func() { c.Close() })
				return c
			})
		})
	}
}

// steps makes a connection to send and receive on, to a server whose every
// answer waits for next.
func steps(t *testing.T, dial func(string) *h1.Conn, answer string) (c *h1.Conn, next chan bool) {
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
	return dial(address), next
}

// arrives waits until Arrived says yes.
func arrives(t *testing.T, c *h1.Conn) {
	for range 10_000 {
		if c.Arrived() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("nothing arrived in 10 s")
}

const ask = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func TestArrived(t *testing.T) { bothKinds(t, testArrived) }

func testArrived(t *testing.T, dial func(string) *h1.Conn) {
	c, next := steps(t, dial, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	get := &http.Request{Method: "GET"}
	receive := func(rest time.Duration) string { return outcome(c.Receive(get, rest))(readAll) }
	for range 2 {
		if err := c.Send(t.Context(), time.Now().Add(time.Hour), []byte(ask)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if c.Arrived() {
				t.Fatal("an answer that did not come")
			}
		}
		next <- true
		<-next
		arrives(t, c)
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
	arrives(t, c)
	time.Sleep(time.Until(deadline) + time.Millisecond)
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
	arrives(t, c) // the deadline
	if _, err := c.Receive(get, time.Minute); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// The deadline of Send holds for pieces, and so does the end of its context.
func TestSendEnds(t *testing.T) { bothKinds(t, testSendEnds) }

func testSendEnds(t *testing.T, dial func(string) *h1.Conn) {
	for name, f := range map[string]func(cancel func()) (time.Time, error){
		"deadline": func(func()) (time.Time, error) { return time.Now().Add(500 * time.Millisecond), os.ErrDeadlineExceeded },
		"context": func(cancel func()) (time.Time, error) {
			time.AfterFunc(50*time.Millisecond, cancel)
			return time.Now().Add(time.Hour), context.Canceled
		},
	} {
		c, next := steps(t, dial, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 9999))
		go func() { next <- true; <-next }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		by, want := f(cancel)
		if err := c.Send(ctx, by, []byte(ask)); err != nil {
			t.Fatal(name, err)
		}
		arrives(t, c)
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
func TestSendAfterUnasked(t *testing.T) { bothKinds(t, testSendAfterUnasked) }

func testSendAfterUnasked(t *testing.T, dial func(string) *h1.Conn) {
	more := make(chan bool)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-more
		io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
	})
	c := dial(address)
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
