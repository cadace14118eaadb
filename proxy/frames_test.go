// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/proxy"
)

// A stream's chunks go out past net/http's buffers, its head, its end and its
// trailers through them: the bytes stay in order, and the connection is good
// for the next request.
func TestFramesOnTheWire(t *testing.T) {
	events := []string{chunk("up-m", "a"), chunk("up-m", strings.Repeat("b", proxy.MostFrame)), chunk("up-m", "c"),
		chunk("up-m", strings.Repeat("d", 300)), chunk("up-m", strings.Repeat("e", 3*proxy.MostFrame)), finish, doneMark}
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Late")
		for _, e := range events {
			streams(e)(w, r)
			time.Sleep(2 * time.Millisecond) // each in a packet of its own, on most machines
		}
		w.Header().Set("X-Late", "yes")
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	want := strings.ReplaceAll(strings.Join(events, ""), `"up-m"`, `"m"`)
	for _, proto := range []string{"1.1", "1.0"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		in := bufio.NewReader(c)
		for range 2 {
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", proto, len(helloStream), helloStream)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if string(body) != want || err != nil {
				t.Fatalf("HTTP/%s: %v\n%s", proto, err, body)
			}
			if proto == "1.0" {
				break
			}
			if got := res.Trailer.Get("X-Late"); got != "yes" {
				t.Errorf("trailer %q", got)
			}
		}
	}
}

func TestFramesOnlyWhereChunksAre(t *testing.T) {
	frames := func(method, proto string, status int, length string) bool {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		used := make(chan bool, 1)
		srv := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			w.WriteHeader(status)
			used <- proxy.UsesFrames(w, r, status)
		})}
		defer srv.Close()
		go srv.Serve(&once{proxy.Patient(near), make(chan struct{})})
		go io.Copy(io.Discard, far)
		fmt.Fprintf(far, "%s / %s\r\nHost: x\r\n\r\n", method, proto)
		return <-used
	}
	for _, c := range []struct {
		method, proto string
		status        int
		length        string
		want          bool
	}{
		{"GET", "HTTP/1.1", 200, "", true},
		{"GET", "HTTP/1.1", 503, "", true},
		{"GET", "HTTP/1.0", 200, "", false},
		{"HEAD", "HTTP/1.1", 200, "", false},
		{"GET", "HTTP/1.1", 204, "", false},
		{"GET", "HTTP/1.1", 304, "", false},
		{"GET", "HTTP/1.1", 200, "5", false},
	} {
		if got := frames(c.method, c.proto, c.status, c.length); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// After half a comment nothing may follow on the connection, or the chunk after
// it would be read as the rest of it.
func TestNothingFollowsHalfAComment(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	event := chunk("m", "a")
	out := make(chan [3]error, 1)
	srv := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, comment, second := proxy.AfterLostComment(w, r, time.Second, []byte(event))
		out <- [3]error{first, comment, second}
		panic(http.ErrAbortHandler)
	})}
	defer srv.Close()
	go srv.Serve(&once{proxy.Patient(near), make(chan struct{})})
	fmt.Fprint(far, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	in := bufio.NewReaderSize(far, 16) // the smallest
	for line := ""; !strings.HasPrefix(line, "data:"); {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	in.Discard(len("\n\r\n") + 5) // and some of the comment
	time.Sleep(1500 * time.Millisecond)
	go io.Copy(io.Discard, far)
	if got := <-out; got[0] != nil || got[1] == nil || got[2] == nil {
		t.Errorf("an event: %v; a comment that is not taken: %v; an event after it: %v", got[0], got[1], got[2])
	}
}

// once is a listener of one connection.
type once struct {
	conn net.Conn
	end  chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return c, nil
	}
	<-o.end
	return nil, net.ErrClosed
}

func (o *once) Close() error   { close(o.end); return nil }
func (o *once) Addr() net.Addr { return &net.TCPAddr{} }
