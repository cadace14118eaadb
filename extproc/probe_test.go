// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/extproc/extproctest"
	"github.com/penstock/penstock/internal/certs"
)

// A probe tells what a picker does, and where it leaves the protocol.
func TestProbe(t *testing.T) {
	const endpoint = "10.0.0.1:8000"
	body := []byte(`{"model":"m","prompt":"` + strings.Repeat("x", 100_000) + `"}`)
	for _, c := range []struct {
		name   string
		script extproctest.Script
		body   []byte
		want   []string
		remark string // of the only remark, a part; "": there is none
	}{
		{"good", extproctest.Good(endpoint), body, []string{"picked: " + endpoint, "in 2 messages", "set x-gateway-destination-endpoint: " + endpoint, "metadata envoy.lb", "served: " + endpoint, "answer to the response headers", "end of stream"}, ""},
		{"no body", extproctest.Good(endpoint), nil, []string{"picked: " + endpoint}, ""},
		{"empty replies", extproctest.EmptyBodies(endpoint), body[:20], []string{"the original is kept"}, "must be a streamed response"},
		{"one channel", extproctest.Channels(endpoint, ""), body, []string{"picked: " + endpoint}, "one place only"},
		{"channels differ", extproctest.Channels(endpoint, "b:1"), body, []string{"picked: " + endpoint}, "different endpoints"},
		{"body first", extproctest.BodyFirst(endpoint), body, []string{"picked: " + endpoint}, "before the headers"},
		{"changes", extproctest.Replaces(endpoint, func(b []byte) []byte { return b[1:] }), body, nil, "comes back changed"},
		{"nobody", extproctest.Channels("", ""), body, nil, "no endpoint"},
		{"refuses", extproctest.Refuses(429, "later", extproctest.Field{Name: "retry-after", Value: "7"}), body, []string{"refused with status 429", "retry-after: 7", "later"}, ""},
		{"closes", extproctest.ClosesAtOnce, nil, []string{"failed: the picker ended the stream without an answer"}, ""},
		{"silent", extproctest.Silent, body, []string{"failed: DeadlineExceeded"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := extproctest.Start(t, c.script, nil)
			timeout := 20 * time.Second
			if c.name == "silent" {
				timeout = 200 * time.Millisecond
			}
			q := &extproc.Probe{Address: p.Address, Path: "/v1/completions", Header: http.Header{"X-Test": {"yes"}}, Body: c.body, Timeout: timeout}
			got := q.Run(context.Background())
			var text strings.Builder
			got.Write(&text)
			for _, want := range append(c.want, "x-test: yes", ":path: /v1/completions", "health not known (Unimplemented)") {
				if !strings.Contains(text.String(), want) {
					t.Errorf("the transcript lacks %q:\n%s", want, text.String())
				}
			}
			if c.remark == "" && len(got.Remarks) > 0 || c.remark != "" && (len(got.Remarks) != 1 || !strings.Contains(got.Remarks[0], c.remark)) {
				t.Errorf("remarks %q, want %q", got.Remarks, c.remark)
			}
		})
	}
}

// What a probe says when it cannot ask, and that it finds TLS out.
func TestProbeAdvises(t *testing.T) {
	good := extproctest.Good("10.0.0.1:8000")
	secure := extproctest.Start(t, good, ownCertificate(t)).Address
	plain := extproctest.Start(t, good, nil).Address
	page := httptest.NewServer(http.NotFoundHandler())
	defer page.Close()
	name := certs.Client{ServerName: "localhost"}
	for _, c := range []struct {
		name, address string
		tls           *certs.Client
		detect        bool
		want, hint    string
	}{
		{"TLS found out", secure, nil, true, "picked: 10.0.0.1:8000", ""},
		{"and said", secure, nil, true, "TLS, as was found out; the certificate of \"test\" was not verified, which --tls does  health", ""},
		{"plaintext found out", plain, nil, true, plain + "  plaintext  health", ""},
		{"a page found out", strings.TrimPrefix(page.URL, "http://"), nil, true, "failed: ", "plain HTTP, as a metrics port"},
		{"nobody", closed(t), nil, true, "failed: connection refused\n", ""},
		{"nobody, TLS", closed(t), &name, false, "failed: connection refused\n", ""},
		{"plaintext to TLS", secure, nil, false, "failed: ", "try --tls"},
		{"TLS to plaintext", plain, &name, false, "failed: tls: first record", "try --plaintext"},
		{"nobody vouches", secure, &name, false, "x509: ", "--ca FILE"},
		{"health port", sick(t), nil, true, "failed: Unimplemented: ", "ext_proc is usually on 9002"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := (&extproc.Probe{Address: c.address, TLS: c.tls, Detect: c.detect, Timeout: 20 * time.Second}).Run(context.Background())
			var text strings.Builder
			got.Write(&text)
			if !strings.Contains(text.String(), c.want) || !strings.Contains(got.Hint, c.hint) || c.hint == "" && got.Hint != "" {
				t.Errorf("want %q and the hint %q:\n%s", c.want, c.hint, &text)
			}
			if strings.Contains(text.String(), "health \n") || strings.Contains(text.String(), "desc =") {
				t.Errorf("%s", &text)
			}
		})
	}
}
