// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// client speaks one protocol version only.
func client(major int) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(major == 1)
	p.SetUnencryptedHTTP2(major == 2)
	return &http.Client{Transport: &http.Transport{Protocols: p}, Timeout: 10 * time.Second}
}

// hijacks answers with bytes that net/http would not send.
func hijacks(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, rw, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		rw.WriteString(text)
		rw.Flush()
	}
}

// A client's time to take bytes does not run while there are none for it: a
// model server may be slower than limits.writeIdle, before an answer and
// within one, and its error arrives too.
// (B67)
func TestServerSlowerThanWriteIdle(t *testing.T) {
	const pause = 700 * time.Millisecond
	whole := func(w http.ResponseWriter, r *http.Request) { time.Sleep(pause); answers(200, answer)(w, r) }
	empty := func(w http.ResponseWriter, r *http.Request) { time.Sleep(pause); w.WriteHeader(204) }
	gap := func(w http.ResponseWriter, r *http.Request) {
		streams(chunk("up-m", "a"))(w, r)
		time.Sleep(pause)
		streams(chunk("up-m", "b"), finish, doneMark)(w, r)
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() }
	for _, c := range []struct {
		name   string
		server http.HandlerFunc
		body   string
		status int
		in     string
	}{
		{"whole", whole, hello, 200, `"hi"`},
		{"empty", empty, hello, 204, ""},
		{"stream", gap, helloStream, 200, "[DONE]"},
		{"timeout", hang, helloStream, 504, "timeout"},
	} {
		for major := 1; major <= 2; major++ {
			t.Run(fmt.Sprintf("%s over HTTP/%d", c.name, major), func(t *testing.T) {
				r := newRig(t, []*httptest.Server{model(t, c.server)}, func(y string) string {
					return y + "limits: {writeIdle: 200ms}\ntimeouts: {firstToken: 1s}\n"
				})
				cl := client(major)
				defer cl.CloseIdleConnections()
				res, err := cl.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(c.body))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != c.status || !strings.Contains(string(b), c.in) {
					t.Errorf("got %d %q %v", res.StatusCode, b, err)
				}
			})
		}
	}
}

// The transport hears 1xx answers on a goroutine of its own, which must not
// touch the client once the attempt is over.
func TestInformationalAnswersWithoutEnd(t *testing.T) {
	noLeaks(t)
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		for i := 0; ; i++ {
			if _, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	r := newRig(t, []*httptest.Server{s}, func(y string) string { return y + "retries: {attempts: 1}\n" })
	res, body := r.post(hello)
	if res.StatusCode != 502 {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	for i := range 20 { // clients that leave meanwhile; the race detector watches
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(5+i)*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(hello))
		req.Header.Set("Content-Type", "application/json")
		if res, err := http.DefaultTransport.RoundTrip(req); err == nil {
			res.Body.Close()
		}
		cancel()
	}
	got := r.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello))
	if strings.Contains(got, " 103 ") { // RFC 9110 §15.2
		t.Errorf("a 1xx went to an HTTP/1.0 client: %q", got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// A status that ends no request is no answer.
func TestStatusOutsideTheRange(t *testing.T) {
	for _, status := range []string{"000", "099", "101", "600", "999"} {
		t.Run(status, func(t *testing.T) {
			s := model(t, hijacks("HTTP/1.1 "+status+" X\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nhi"))
			r := newRig(t, []*httptest.Server{s}, func(y string) string { return y + "retries: {attempts: 1}\n" })
			if res, body := r.post(hello); res.StatusCode != 502 {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
}

// What headers may not say, trailers may not either.
func TestTrailersAreFilteredLikeHeaders(t *testing.T) {
	s := model(t, hijacks("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie, X-Late\r\n\r\n2\r\nhi\r\n0\r\nSet-Cookie: a=b\r\nX-Late: yes\r\n\r\n"))
	r := newRig(t, []*httptest.Server{s}, nil)
	res, _ := r.post(hello)
	if res.Trailer.Get("X-Late") != "yes" || len(res.Trailer["Set-Cookie"]) > 0 {
		t.Errorf("trailers %v", res.Trailer)
	}
}

// A client that closes its half of the connection counts as gone; what it
// still reads must not look like an answer.
func TestHalfClosedClient(t *testing.T) {
	s := model(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	r := newRig(t, []*httptest.Server{s}, nil)
	for _, length := range []int{len(hello), len(hello) + 100} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, hello)
		c.(*net.TCPConn).CloseWrite()
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("got %q", b)
		}
	}
}

// Bodies that unpack count against limits.bodiesInFlight while they do.
func TestUnpackedBodiesCount(t *testing.T) {
	s := model(t, answers(200, answer))
	r := newRig(t, []*httptest.Server{s}, func(y string) string { return y + "limits: {body: 2MiB, bodiesInFlight: 2MiB}\n" })
	var packed strings.Builder
	z := gzip.NewWriter(&packed)
	io.WriteString(z, strings.TrimSuffix(hello, "}")+`,"x":"`+strings.Repeat("a", 2000<<10)+`"}`)
	z.Close()
	send := func(lines ...string) (*http.Response, error) {
		req, _ := http.NewRequest("POST", r.url+"/v1/chat/completions", strings.NewReader(packed.String()))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Content-Encoding": lines}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
		return res, err
	}
	if res, err := send("gzip"); err != nil || res.StatusCode != 503 {
		t.Errorf("got %v %v, want 503", res, err)
	}
	if res, err := send("identity", "gzip"); err != nil || res.StatusCode != 503 {
		t.Errorf("in two lines: got %v %v, want 503", res, err)
	}
	for range 3 { // nothing stays counted
		if res, body := r.post(hello); res.StatusCode != 200 {
			t.Errorf("after it: %d %s", res.StatusCode, body)
		}
	}
}

// Nothing that says how to read a body is left for the server to read anew.
func TestHowABodyIsReadIsSaidOnce(t *testing.T) {
	seen := make(chan http.Header, 1)
	s := model(t, func(w http.ResponseWriter, r *http.Request) { seen <- r.Header; answers(200, answer)(w, r) })
	r := newRig(t, []*httptest.Server{s}, nil)
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
	tail := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hello), hello)
	if got := r.raw(head + "Content-Type: multipart/form-data; boundary=x\r\n" + tail); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("two types: %q", got)
	}
	if got := r.raw(head + "Content_Type: text/plain\r\nContent_Encoding: gzip\r\nContent-Encoding:\r\n" + tail); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("got %q", got)
	}
	h := <-seen
	for _, name := range []string{"Content_type", "Content_encoding", "Content-Encoding"} {
		if v, ok := h[name]; ok {
			t.Errorf("the server saw %s: %q", name, v)
		}
	}
}

// A refusal names members to those only who may see endpoints.
func TestRefusalHidesMembers(t *testing.T) {
	for _, debug := range []bool{false, true} {
		s := httptest.NewServer(answers(200, answer))
		s.Close() // nobody is there any more
		address := strings.TrimPrefix(s.URL, "http://")
		r := newRig(t, []*httptest.Server{s}, func(y string) string {
			return strings.Replace(y, "anonymous: true", fmt.Sprintf("anonymous: true, debugHeaders: %v", debug), 1)
		})
		r.post(hello) // ejects it
		res, body := r.post(hello)
		if res.StatusCode != 503 || strings.Contains(body, address) != debug {
			t.Errorf("debugHeaders %v: %d %s", debug, res.StatusCode, body)
		}
		if rec := r.record(1); !strings.Contains(rec.Error, address) {
			t.Errorf("record %q", rec.Error)
		}
	}
}
