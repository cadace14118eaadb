// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// BenchmarkRequest is a request of 2 KB and its answer through the gateway,
// and through a bare ReverseProxy for comparison. Client and model server run
// in the same process, so only the difference between the two speaks; the
// ratio of whole processes is measured by penstock bench system.
func BenchmarkRequest(b *testing.B) {
	body := []byte(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":"hello"}]}`, strings.Repeat("be kind. ", 215)))
	whole := []byte(answer + strings.Repeat(" ", 1024-len(answer)))
	servers := make([]*httptest.Server, 4)
	for i := range servers {
		servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Write(whole)
		}))
		defer servers[i].Close()
	}
	run := func(b *testing.B, url string) {
		t := &http.Transport{MaxIdleConnsPerHost: 16}
		defer t.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			req, _ := http.NewRequest("POST", url+"/v1/chat/completions", bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			res, err := t.RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	b.Run("gateway", func(b *testing.B) {
		r := newRig(b, servers, func(y string) string { return strings.Replace(y, "round-robin", "default", 1) })
		run(b, r.url)
	})
	b.Run("reverseproxy", func(b *testing.B) {
		u, _ := url.Parse(servers[0].URL)
		p := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }})
		defer p.Close()
		run(b, p.URL)
	})
	b.Run("direct", func(b *testing.B) { run(b, servers[0].URL) })
}

// BenchmarkChunk is one chunk of a stream, 160 bytes, from model server to
// client, beside a bare ReverseProxy. As in BenchmarkRequest only the
// difference speaks.
func BenchmarkChunk(b *testing.B) {
	c := chunk("up-m", "0123456789")
	streams := func(n int) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for range n {
				io.WriteString(w, c)
				w.(http.Flusher).Flush()
			}
			io.WriteString(w, finish+doneMark)
		}))
	}
	run := func(b *testing.B, start func(s *httptest.Server) (url string, end func())) {
		s := streams(b.N)
		defer s.Close()
		url, end := start(s)
		defer end()
		b.ReportAllocs()
		b.ResetTimer()
		res, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(helloStream))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	b.Run("gateway", func(b *testing.B) {
		run(b, func(s *httptest.Server) (string, func()) {
			return newRig(b, []*httptest.Server{s}, func(y string) string { return strings.Replace(y, "round-robin", "default", 1) }).url, func() {}
		})
	})
	b.Run("reverseproxy", func(b *testing.B) {
		run(b, func(s *httptest.Server) (string, func()) {
			u, _ := url.Parse(s.URL)
			p := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, FlushInterval: -1})
			return p.URL, p.Close
		})
	})
}
