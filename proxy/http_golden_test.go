// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/golden"
)

// Each case has a configuration, in which {a}, {b}, {c} are echo servers, and
// requests through the listener l: a line "METHOD URL", header lines, an empty
// line. What comes of them is the answer's status, its headers that a route can
// set, and behind an arrow what the server saw.
func TestHTTPCases(t *testing.T) {
	golden.Run(t, "testdata/http/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		servers := map[string][]*httptest.Server{}
		for _, name := range []string{"a", "b", "c"} {
			servers[name] = []*httptest.Server{echo(t, name)}
		}
		r := newHTTPRig(t, c.File(t, "in.yaml"), servers)
		var out strings.Builder
		for block := range strings.SplitSeq(strings.TrimSpace(c.File(t, "requests")), "\n\n") {
			lines := strings.Split(block, "\n")
			method, url, _ := strings.Cut(lines[0], " ")
			host, target, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
			res, e := r.ask("l", method, host, "/"+target, func(q *http.Request) {
				if lines[len(lines)-1] == "" {
					lines = lines[:len(lines)-1]
				}
				for _, h := range lines[1:] {
					k, v, _ := strings.Cut(h, ": ")
					q.Header.Add(k, v)
				}
			})
			fmt.Fprintf(&out, "%s: %d", lines[0], res.StatusCode)
			if e.Server != "" {
				fmt.Fprintf(&out, " → %s %s %s%s", e.Server, e.Host, e.Path, map[bool]string{true: "?" + e.Query}[e.Query != ""])
			}
			out.WriteByte('\n')
			shown(&out, "  ", res.Header, "Location", "Vary", "Grpc-Status", "Grpc-Message", "Connection")
			shown(&out, "  → ", e.Header)
		}
		return map[string]string{"answers": out.String()}
	})
}

// shown writes the headers that a case is about.
func shown(out *strings.Builder, lead string, h http.Header, more ...string) {
	var names []string
	for name := range h {
		about := strings.HasPrefix(name, "X-") && !strings.HasPrefix(name, "X-Forwarded") && name != "X-Request-Id" && name != "X-Penstock-Hops" && !strings.HasPrefix(name, "X-Echo")
		if about || strings.HasPrefix(name, "Access-Control-Allow") || strings.HasPrefix(name, "Access-Control-Max") || strings.HasPrefix(name, "Access-Control-Expose") || slices.Contains(more, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(out, "%s%s: %s\n", lead, name, strings.Join(h[name], " | "))
	}
}
