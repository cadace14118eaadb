// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/h1"
)

// server runs f on every connection and returns its address and how many
// there were.
func server(t testing.TB, f func(c net.Conn, r *bufio.Reader)) (string, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conns := new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer c.Close()
				f(c, bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().String(), conns
}

// answers reads requests and gives each the same bytes.
func answers(text string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

func transport(t testing.TB) *h1.Transport {
	tr := &h1.Transport{IdleTimeout: time.Minute, MaxIdle: 8, MaxHeader: 64 << 10}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func request(t testing.TB, ctx context.Context, address, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/x", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.GetBody = nil
	return r
}

// outcome is an answer as its reader sees it.
func outcome(res *http.Response, err error) func(read func(io.Reader) ([]byte, error)) string {
	return func(read func(io.Reader) ([]byte, error)) string {
		if err != nil {
			return "no answer"
		}
		defer res.Body.Close()
		body, err := read(res.Body)
		if err != nil {
			return fmt.Sprintf("%d %q, broken", res.StatusCode, body)
		}
		return fmt.Sprintf("%d %q %v", res.StatusCode, body, res.Trailer)
	}
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// readEach reads by pieces, into a small buffer.
func readEach(r io.Reader) (all []byte, err error) {
	err = r.(*h1.Body).Each(make([]byte, 7), func(p []byte) error {
		all = append(all, p...)
		return nil
	})
	return all, err
}

// TestAnswersAsNetHTTP holds what is read against net/http's own client.
func TestAnswersAsNetHTTP(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
		"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		chunked + "5\r\nhello\r\n0\r\n\r\n",
		chunked + "5\r\nhello\r\n1\r\n \r\nA;ext=\"1\"\r\n0123456789\r\n0\r\n\r\n",
		chunked + "5 \r\nhello\r\n0\r\nX-One: 1\r\nX-Two: 2\r\n\r\n",
		chunked + "000005\r\nhello\r\n000\r\n\r\n",
		chunked + strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n",
		chunked + "1000\r\n" + strings.Repeat("y", 4096) + "\r\n0\r\n\r\n",
		chunked + "5\r\nhelloX\r\n0\r\n\r\n",
		chunked + "\r\nhello\r\n0\r\n\r\n",
		chunked + "g\r\nhello\r\n0\r\n\r\n",
		chunked + "-1\r\nhello\r\n0\r\n\r\n",
		chunked + "ffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
		chunked + "5\nhello\r\n0\r\n\r\n",
		chunked + "0\r\nno field\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 2x0 OK\r\n\r\n",
		"hello\r\n\r\n",
		"\x00\x01\x02\r\n\r\n",
	} {
		name := text[:min(len(text), 90)]
		address, _ := server(t, answers(text))
		std := &http.Transport{DisableCompression: true}
		want := outcome(std.RoundTrip(request(t, t.Context(), address, "q")))(readAll)
		std.CloseIdleConnections()
		for how, read := range map[string]func(io.Reader) ([]byte, error){"Read": readAll, "Each": readEach} {
			tr := transport(t)
			if got := outcome(tr.RoundTrip(request(t, t.Context(), address, "q")))(read); got != want {
				t.Errorf("%q, by %s:\n got %s\nwant %s", name, how, got, want)
			}
		}
	}
}

// TestKeeps counts the connections that a row of equal requests takes.
func TestKeeps(t *testing.T) {
	for _, c := range []struct {
		name, text string
		conns      int64
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 1},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 1},
		{"empty", "HTTP/1.1 204 No Content\r\n\r\n", 1},
		{"close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", 4},
		{"old", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 4},
		{"more than length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n", 4},
		{"more than chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1", 4},
	} {
		for how, read := range map[string]func(io.Reader) ([]byte, error){"Read": readAll, "Each": readEach} {
			address, conns := server(t, answers(c.text))
			tr := transport(t)
			for range 4 {
				res, err := tr.RoundTrip(request(t, t.Context(), address, "q"))
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				if _, err := read(res.Body); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				res.Body.Close()
			}
			if n := conns.Load(); n != c.conns {
				t.Errorf("%s by %s: %d connections, want %d", c.name, how, n, c.conns)
			}
		}
	}
}

// An answer that is given up takes its connection with it.
func TestCloseBeforeTheEnd(t *testing.T) {
	gone := make(chan error, 1)
	address, conns := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
		_, err := io.ReadAll(r)
		gone <- err
	})
	tr := transport(t)
	res, err := tr.RoundTrip(request(t, t.Context(), address, ""))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	res.Body.Close()
	if _, err := res.Body.Read(make([]byte, 1)); err == nil {
		t.Error("read after Close")
	}
	<-gone
	if res, err = tr.RoundTrip(request(t, t.Context(), address, "")); err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A request that is to close its connection gets one of its own, which is kept.
func TestFreshConnection(t *testing.T) {
	address, conns := server(t, func(c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	tr := transport(t)
	for i, fresh := range []bool{false, false, true, false} {
		reused := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req := request(t, ctx, address, "q")
		req.Close = fresh
		if got, want := outcome(tr.RoundTrip(req))(readAll), "200 \"ok\" map[]"; got != want || reused != (i > 0 && !fresh) {
			t.Errorf("request %d: %s, reused %v", i, got, reused)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A kept connection that the server has closed meanwhile, or on which it said
// something unasked, is not used.
func TestStaleConnection(t *testing.T) {
	for name, after := range map[string]string{"closed": "", "unasked": "HTTP/1.1 408 Request Timeout\r\n\r\n"} {
		done := make(chan bool)
		address, conns := server(t, func(c net.Conn, r *bufio.Reader) {
			if req, err := http.ReadRequest(r); err == nil {
				io.Copy(io.Discard, req.Body)
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				<-done
				io.WriteString(c, after)
			}
		})
		tr := transport(t)
		for range 3 {
			reused := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
			if got, want := outcome(tr.RoundTrip(request(t, ctx, address, "q")))(readAll), "200 \"ok\" map[]"; got != want || reused {
				t.Errorf("%s: %s, reused %v", name, got, reused)
			}
			done <- true
			time.Sleep(20 * time.Millisecond) // for the bytes to come
		}
		if n := conns.Load(); n != 3 {
			t.Errorf("%s: %d connections, want 3", name, n)
		}
	}
}

func TestIdleTimeout(t *testing.T) {
	gone := make(chan bool, 3)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(c, r)
		gone <- true
	})
	tr := transport(t)
	tr.IdleTimeout = 30 * time.Millisecond
	for range 3 {
		outcome(tr.RoundTrip(request(t, t.Context(), address, "q")))(readAll)
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Fatal("an idle connection stays open")
		}
	}
}

// A server may answer before the upload ends, and may then take no more of it.
func TestAnswerBeforeTheUploadEnds(t *testing.T) {
	big := strings.Repeat("x", 16<<20)
	for name, f := range map[string]func(net.Conn, *bufio.Reader){
		"reads no more": func(c net.Conn, r *bufio.Reader) {
			http.ReadRequest(r)
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nfull")
			time.Sleep(50 * time.Millisecond)
		},
		"stays": func(c net.Conn, r *bufio.Reader) {
			http.ReadRequest(r)
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nfull")
			<-t.Context().Done()
		},
	} {
		address, _ := server(t, f)
		tr := transport(t)
		if got, want := outcome(tr.RoundTrip(request(t, t.Context(), address, big)))(readAll), "413 \"full\" map[]"; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// A large body arrives whole, and the connection is kept.
func TestLargeUpload(t *testing.T) {
	var sizes []int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		sizes = append(sizes, n)
	}))
	defer s.Close()
	tr := transport(t)
	reused := 0
	for _, n := range []int{0, 1, 32 << 10, 32<<10 + 1, 8 << 20, 8 << 20} {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				reused++
			}
		}})
		if got := outcome(tr.RoundTrip(request(t, ctx, s.Listener.Addr().String(), strings.Repeat("y", n))))(readAll); !strings.HasPrefix(got, "200") {
			t.Fatal(got)
		}
	}
	if got := fmt.Sprint(sizes); got != "[0 1 32768 32769 8388608 8388608]" {
		t.Errorf("sizes %s", got)
	}
	// The end of a large upload may be reported after the answer: then the
	// connection is not kept.
	if reused < 3 {
		t.Errorf("%d of 5 requests on a kept connection", reused)
	}
}

// WroteRequest is called once, and with success only when all was written.
func TestWroteRequest(t *testing.T) {
	for _, size := range []int{0, 100, 100 << 10} {
		address, _ := server(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		for _, open := range []bool{true, false} {
			calls := make(chan error, 4)
			tcp, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if !open {
				tcp.Close()
			}
			trace := &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) { calls <- i.Err }}
			c := h1.NewConn(tcp, 64<<10)
			res, err := c.RoundTrip(request(t, httptrace.WithClientTrace(t.Context(), trace), address, strings.Repeat("x", size)))
			if err == nil {
				res.Body.Close()
			}
			if first := <-calls; len(calls) > 0 || (first == nil) != open || (err == nil) != open {
				t.Errorf("%d bytes, open %v: told %v and %d times more, result %v", size, open, first, len(calls), err)
			}
			c.Close()
		}
	}
}

// Ending the context ends the exchange at every point.
func TestContext(t *testing.T) {
	silent := func(c net.Conn, r *bufio.Reader) { <-t.Context().Done() }
	begins := func(text string) func(net.Conn, *bufio.Reader) {
		return func(c net.Conn, r *bufio.Reader) {
			http.ReadRequest(r)
			io.WriteString(c, text)
			<-t.Context().Done()
		}
	}
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name, body string
		f          func(net.Conn, *bufio.Reader)
		read       func(io.Reader) ([]byte, error)
	}{
		{"before the head", "q", silent, readAll},
		{"in the upload", strings.Repeat("x", 16<<20), silent, readAll},
		{"in the head", "q", begins("HTTP/1.1 200 OK\r\nX-A: 1"), readAll},
		{"in the body", "q", begins("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"), readAll},
		{"in a chunk", "q", begins(chunked + "9\r\nhello"), readAll},
		{"between pieces", "q", begins(chunked + "5\r\nhello\r\n"), readEach},
		{"in a body until the end", "q", begins("HTTP/1.1 200 OK\r\n\r\nhello"), readEach},
	} {
		address, _ := server(t, c.f)
		for _, after := range []time.Duration{0, 30 * time.Millisecond, 1200 * time.Millisecond} {
			if after > time.Second && c.name != "between pieces" {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), after)
			tr := transport(t)
			began := time.Now()
			res, err := tr.RoundTrip(request(t, ctx, address, c.body))
			if err == nil {
				_, err = c.read(res.Body)
				res.Body.Close()
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %v: %v", c.name, after, err)
			}
			if took := time.Since(began); took > after+5*time.Second {
				t.Errorf("%s, %v: ended after %v", c.name, after, took)
			}
			cancel()
		}
	}
}

// Ending the context ends a stream although its server is always ahead of the
// reader, which then never waits.
func TestContextEndsAFastStream(t *testing.T) {
	const size = 32 << 10 // fits into the buffers of a connection
	written := make(chan bool)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat("x", size))
		close(written)
		<-t.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := transport(t).RoundTrip(request(t, ctx, address, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	<-written
	read, after := 0, 0
	err = res.Body.(*h1.Body).Each(make([]byte, 1<<10), func(p []byte) error {
		if read += len(p); ctx.Err() != nil {
			after++
		}
		if read > 8<<10 { // past what came with the head
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || after > 0 {
		t.Errorf("%d pieces after the end of the context, then %v", after, err)
	}
}

// A connection that breaks off while the reader is busy is noticed although
// the poller reports it together with bytes.
func TestEachSeesTheEndOfABusyStream(t *testing.T) {
	next := make(chan bool)
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
		for range next {
			io.WriteString(c, "1\r\nb\r\n")
		}
	})
	res, err := transport(t).RoundTrip(request(t, t.Context(), address, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	n := 0
	err = res.Body.(*h1.Body).Each(make([]byte, 100), func([]byte) error {
		switch n++; n {
		case 1, 2:
			next <- true
		case 3:
			next <- true
			close(next)
			time.Sleep(50 * time.Millisecond) // until both are there
		}
		return nil
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) || n != 4 {
		t.Errorf("%d pieces, then %v", n, err)
	}
}

// An error of the function that takes the pieces ends the reading.
func TestEachStops(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer s.Close()
	res, err := transport(t).RoundTrip(request(t, t.Context(), s.Listener.Addr().String(), ""))
	if err != nil {
		t.Fatal(err)
	}
	enough, n := errors.New("enough"), 0
	err = res.Body.(*h1.Body).Each(make([]byte, 100), func([]byte) error {
		if n++; n == 5 {
			return enough
		}
		return nil
	})
	if err != enough || n != 5 {
		t.Errorf("%d pieces, %v", n, err)
	}
	res.Body.Close()
}

func TestInformational(t *testing.T) {
	address, _ := server(t, answers("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	var seen []string
	stop := errors.New("stop")
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if seen = append(seen, fmt.Sprint(code, h)); len(seen) > 3 {
			return stop
		}
		return nil
	}}
	tr := transport(t)
	for range 2 {
		res, err := tr.RoundTrip(request(t, httptrace.WithClientTrace(t.Context(), trace), address, ""))
		if len(seen) == 2 && err != nil || len(seen) > 2 && !errors.Is(err, stop) {
			t.Fatal(seen, err)
		}
		if err == nil {
			res.Body.Close()
		}
	}
	if got := fmt.Sprint(seen); got != "[102 map[] 103 map[Link:[x]] 102 map[] 103 map[Link:[x]]]" {
		t.Error(got)
	}
}

func TestUpgrade(t *testing.T) {
	address, _ := server(t, func(c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi ")
		io.Copy(c, r)
	})
	res, err := transport(t).RoundTrip(request(t, t.Context(), address, ""))
	if err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	rw := res.Body.(io.ReadWriteCloser)
	io.WriteString(rw, "there")
	got := make([]byte, len("hi there"))
	if _, err := io.ReadFull(rw, got); err != nil || string(got) != "hi there" {
		t.Errorf("%q, %v", got, err)
	}
	rw.Close()
}

func TestBounds(t *testing.T) {
	field := "X-A: " + strings.Repeat("x", 1000) + "\r\n"
	for name, text := range map[string]string{
		"head":           "HTTP/1.1 200 OK\r\n" + strings.Repeat(field, 100),
		"heads":          strings.Repeat("HTTP/1.1 103 Early Hints\r\n"+field+"\r\n", 100),
		"line":           "HTTP/1.1 200 " + strings.Repeat("x", 100<<10),
		"trailer":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat(field, 100),
		"extension":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 2000),
		"size of zeroes": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 2000),
	} {
		// The server waits after it: only the bound can end this.
		address, _ := server(t, func(c net.Conn, r *bufio.Reader) { answers(text)(c, r) })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got := outcome(transport(t).RoundTrip(request(t, ctx, address, "")))(readAll)
		if ctx.Err() != nil || !strings.Contains(got, "no answer") && !strings.Contains(got, "broken") {
			t.Errorf("%s: %s", name, got)
		}
		cancel()
	}
}

// FuzzBody holds the framing against net/http's: what is accepted here reads
// the same there, however it is split, and never reaches past the message.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		"5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nX: 1\r\n\r\nrest", "A\r\n0123456789\r\n1 \r\nx\r\n0\r\n\r\n",
		"5\nhello\r\n0\r\n\r\n", "0\r\n:\r\n\r\n", "ffffffffffffffff\r\n", "0\r\nX: 1\r\n Y\r\n\r\n",
		"5 \r\n00000\r\n0 0\r\n\r\n",
	} {
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, in string, split uint8) {
		head := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		got := outcome(h1.ReadAnswer(&pieces{head + in, int(split)}))(readAll)
		if whole := outcome(h1.ReadAnswer(&pieces{head + in, 1 << 20}))(readEach); whole != got {
			t.Fatalf("%q split at %d: %s; whole: %s", in, split, got, whole)
		}
		if strings.Contains(got, "broken") || got == "no answer" {
			return
		}
		want := outcome(http.ReadResponse(bufio.NewReader(strings.NewReader(head+in)), &http.Request{Method: "POST"}))(readAll)
		if got != want {
			t.Fatalf("%q:\n got %s\nwant %s", in, got, want)
		}
	})
}

// pieces gives text in pieces of n bytes and then the end.
type pieces struct {
	text string
	n    int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(max(p.n, 1), len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

func BenchmarkRoundTrip(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "ok")
	}))
	defer s.Close()
	body := bytes.Repeat([]byte("x"), 2000)
	run := func(b *testing.B, t http.RoundTripper) {
		b.ReportAllocs()
		for b.Loop() {
			r, _ := http.NewRequest("POST", s.URL, io.NopCloser(bytes.NewReader(body)))
			r.ContentLength = int64(len(body))
			res, err := t.RoundTrip(r)
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	b.Run("h1", func(b *testing.B) { run(b, transport(b)) })
	b.Run("net-http", func(b *testing.B) {
		t := &http.Transport{}
		defer t.CloseIdleConnections()
		run(b, t)
	})
}

// BenchmarkPiece is one piece of a stream, 160 bytes, sent each time the last
// one was read.
func BenchmarkPiece(b *testing.B) {
	run := func(b *testing.B, t http.RoundTripper, read func(body io.Reader, next func() error) error) {
		piece := []byte("a0\r\n" + strings.Repeat("x", 160) + "\r\n")
		next := make(chan bool, 1)
		address, _ := server(b, func(c net.Conn, r *bufio.Reader) {
			http.ReadRequest(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range next {
				c.Write(piece)
			}
			io.WriteString(c, "0\r\n\r\n")
		})
		res, err := t.RoundTrip(request(b, b.Context(), address, ""))
		if err != nil {
			b.Fatal(err)
		}
		defer res.Body.Close()
		b.ReportAllocs()
		b.ResetTimer()
		n := 0
		next <- true
		err = read(res.Body, func() error {
			if n++; n < b.N {
				next <- true
			} else if n == b.N {
				close(next)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	buf := make([]byte, 4096)
	b.Run("h1", func(b *testing.B) {
		run(b, transport(b), func(body io.Reader, next func() error) error {
			return body.(*h1.Body).Each(buf, func([]byte) error { return next() })
		})
	})
	b.Run("net-http", func(b *testing.B) {
		t := &http.Transport{}
		defer t.CloseIdleConnections()
		run(b, t, func(body io.Reader, next func() error) error {
			for {
				n, err := body.Read(buf)
				if n > 0 {
					next()
				}
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	})
}
