// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

func TestCheckSocket(t *testing.T) {
	for _, c := range []struct {
		network, address      string
		public, private, here bool // whether it is reached; with private addresses allowed; with this machine
	}{
		{"tcp4", "8.8.8.8:443", true, true, true},
		{"tcp4", "127.0.0.1:443", false, true, true},
		{"tcp6", "[::1]:443", false, true, true},
		{"tcp6", "[::ffff:127.0.0.1]:443", false, true, true},
		{"tcp4", "10.0.0.1:443", false, true, false},
		{"tcp4", "169.254.169.254:80", false, false, false},
		{"tcp6", "[fe80::1%eth0]:80", false, false, false},
		{"tcp6", "[::ffff:169.254.169.254]:80", false, false, false},
		{"unix", "/run/x", false, false, false},
		{"udp4", "8.8.8.8:53", false, false, false},
		{"tcp4", "x", false, false, false},
	} {
		for i, want := range []bool{c.public, c.private, c.here} {
			if err := provider.CheckSocket(c.network, c.address, i == 1, i == 2); (err == nil) != want {
				t.Errorf("%s %s (%d): %v", c.network, c.address, i, err)
			}
		}
	}
}

// What a name stands for is checked when it is dialled: here one that is public
// by its looks and leads to this machine.
func TestDialRefuses(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "reached") }))
	defer s.Close()
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	p := build(t, "  - {name: p, baseURL: \"http://api.example.com"+port+"\", allowHTTP: true}", provider.Options{})
	for _, address := range []string{"127.0.0.1" + port, "localhost" + port, "169.254.169.254:80", "[::ffff:127.0.0.1]" + port} {
		conn, err := p.DialContext(context.Background(), "tcp", address)
		if err == nil {
			conn.Close()
			t.Errorf("%s is reached", address)
			continue
		}
		if v := provider.Classify(llm.DialectOpenAI, 0, nil, nil, err, false); v.Class != provider.Connect || v.Code != "address_refused" {
			t.Errorf("%s: %v: %v", address, err, v)
		}
	}
	local := build(t, "  - {name: p, baseURL: \"http://localhost"+port+"\"}", provider.Options{})
	transport := local.Transport()
	defer transport.CloseIdleConnections()
	c, _ := local.Pick("m", nil, 0)
	r, err := local.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: llm.DialectOpenAI, Model: "m", Body: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
}

func TestFetch(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok.png", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Referer") != "" || r.Header.Get("Authorization") != "" || r.Header.Get("Accept-Encoding") == "gzip" {
			t.Errorf("sent %v", r.Header)
		}
		w.Header().Set("Content-Type", "image/png; x=y")
		w.Write([]byte("png"))
	})
	serve := func(path, contentType, body string, chunked bool) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			if chunked {
				w.(http.Flusher).Flush()
			}
			io.WriteString(w, body)
		})
	}
	serve("/html", "text/html", "x", false)
	serve("/svg", "image/svg+xml", "<svg/>", false)
	serve("/large", "image/png", strings.Repeat("x", 101), false)
	serve("/large-chunked", "image/png", strings.Repeat("x", 101), true)
	serve("/empty", "image/png", "", false)
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/gzip", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, "x")
	})
	for path, to := range map[string]string{
		"/to-ok": "/ok.png", "/to-metadata": "http://169.254.169.254/latest", "/to-private": "https://10.0.0.1/x", "/to-file": "file:///etc/passwd", "/loop": "/loop",
		"/to-user": "https://u:p@example.com/",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
	}
	s := httptest.NewServer(mux)
	defer s.Close()
	f := provider.NewFetcher(provider.FetchOptions{Limit: 100, Local: true})
	if _, _, err := provider.NewFetcher(provider.FetchOptions{Timeout: 50 * time.Millisecond, Local: true}).Fetch(context.Background(), s.URL+"/slow"); fmt.Sprint(err) != "the image's server took too long" {
		t.Errorf("slow: %v", err)
	}
	const unreachable = "the image cannot be fetched: its server cannot be reached"
	for _, c := range []struct{ url, want string }{
		{"/ok.png", "image/png png"},
		{"/to-ok", "image/png png"},
		{"/html", `the URL does not lead to an image: its type is "text/html"`},
		{"/svg", `the URL does not lead to an image: its type is "image/svg+xml"`},
		{"/large", "the image is larger than the limit of 100 bytes"},
		{"/large-chunked", "the image is larger than the limit of 100 bytes"},
		{"/empty", "the image is empty"},
		{"/gzip", "the image is compressed, which was not asked for"},
		{"/none", "the image cannot be fetched: its server answers 404"},
		{"/to-metadata", unreachable}, {"/to-private", unreachable}, {"/to-file", unreachable}, {"/loop", unreachable}, {"/to-user", unreachable},
		{"https://169.254.169.254/x.png", unreachable},
		{"https://10.0.0.1/x.png", unreachable},
		{"https://[fd00:ec2::254]/x.png", unreachable},
		{"https://224.0.0.1/x.png", unreachable},
		{"http://example.com/x.png", "the image cannot be fetched: the URL must begin with https://"},
		{"file:///etc/passwd", "the image cannot be fetched: the URL names no server"},
		{"data:image/png;base64,AA", "the image cannot be fetched: the URL names no server"},
		{"https://u:p@example.com/x.png", "the image cannot be fetched: the URL holds a credential"},
		{"https://" + strings.Repeat("x", 9000), "the image's URL is too long"},
		{"https://exa mple/", "the image's URL is no URL"},
	} {
		url := c.url
		if url[0] == '/' {
			url = s.URL + url
		}
		mediaType, data, err := f.Fetch(context.Background(), url)
		got := fmt.Sprintf("%s %s", mediaType, data)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%.60s: %s, want %s", c.url, got, c.want)
		}
	}
	// Without the option this machine is as far away as the others.
	strict := provider.NewFetcher(provider.FetchOptions{})
	for _, url := range []string{s.URL + "/ok.png", "https" + strings.TrimPrefix(s.URL, "http") + "/ok.png", "https://localhost/x.png"} {
		if _, _, err := strict.Fetch(context.Background(), url); err == nil {
			t.Errorf("%s is fetched", url)
		}
	}
}
