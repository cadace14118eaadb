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
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

// exchange is a loop over attempts as a caller writes it: credentials by
// [provider.Provider.Pick], the next one where the class says so. It returns the
// credentials that were asked, with what came of each.
func exchange(t *testing.T, p *provider.Provider, transport http.RoundTripper, call *provider.Call) (trail string, last provider.Verdict) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var tried []*provider.Credential
	for {
		c, wait := p.Pick(call.Model, tried, 0)
		if c == nil {
			return strings.TrimSpace(trail), last
		}
		if wait > 0 {
			trail += fmt.Sprintf("(out for %v) ", wait.Round(time.Second))
			return strings.TrimSpace(trail), last
		}
		at, begun := p.Begin(c, call.Model), time.Now()
		var h http.Header
		r, err := p.Request(ctx, c, call)
		var body []byte
		status := 0
		if err == nil {
			var res *http.Response
			if res, err = transport.RoundTrip(r); err == nil {
				h, status = res.Header, res.StatusCode
				if status == http.StatusOK {
					at.Answered(h)
				}
				body, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
				res.Body.Close()
			}
		}
		last = p.Judge(call.Dialect, status, h, body, err, true)
		at.End(last, h, time.Since(begun))
		trail += c.Name() + ":" + last.Class.String() + " "
		if !last.Class.NextTarget() {
			return strings.TrimSpace(trail), last
		}
		tried = append(tried, c)
	}
}

// fake is a provider that answers by the key that comes.
type fake struct {
	mu      sync.Mutex
	answers map[string]http.HandlerFunc
	headers []http.Header
	bodies  []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.headers, f.bodies = append(f.headers, r.Header), append(f.bodies, fmt.Sprintf("%s %s %d %s", r.Method, r.RequestURI, r.ContentLength, body))
	answer := f.answers[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	f.mu.Unlock()
	answer(w, r)
}

func says(status int, header, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestExchange(t *testing.T) {
	limited := says(429, "Retry-After: 30", `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`)
	spoken := says(429, "", `{"error":{"message":"Rate limit reached. Please try again in 20s.","code":"rate_limit_exceeded"}}`)
	fine := says(200, "", `{"id":"x","choices":[{"message":{"content":"the word \"error\" alone"}}]}`)
	reset := func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "{")
	}
	for _, c := range []struct {
		name   string
		a      http.HandlerFunc
		first  string // what becomes of the first request, where a is asked first
		second string // of the one after it; b is asked where a is out
	}{
		{"429 goes to the next at once", limited, "a:rate_limit b:ok", "b:ok"},
		{"a hint in words", spoken, "a:rate_limit b:ok", "b:ok"},
		{"quota", says(429, "", `{"error":{"code":"insufficient_quota"}}`), "a:quota b:ok", "b:ok"},
		{"401", says(401, "", ``), "a:auth b:ok", "b:ok"},
		{"403 with a broken body", says(403, "", `{"err`), "a:forbidden b:ok", "b:ok"},
		{"an unknown model", says(404, "", `{"error":{"code":"model_not_found"}}`), "a:model_not_found b:ok", "b:ok"},
		{"500", says(500, "", "<html>"), "a:server b:ok", "a:server b:ok"},
		{"reset", reset, "a:reset b:ok", "a:reset b:ok"},
		{"cut off", cut, "a:stream_broken b:ok", "a:stream_broken b:ok"},
		{"a bad request", says(400, "", `{"error":{"message":"no","code":"x"}}`), "a:bad_request", "a:bad_request"},
		{"a long prompt", says(400, "", `{"error":{"message":"no","code":"context_length_exceeded"}}`), "a:context_window", "a:context_window"},
		{"used up", says(200, "X-Ratelimit-Remaining-Requests: 0", `{}`), "a:ok", "a:ok"},
		{"200 with an error", says(200, "", `{"error":{"code":402,"message":"credits"}}`), "a:quota b:ok", "b:ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{answers: map[string]http.HandlerFunc{"key-a": c.a, "key-b": fine}}
			s := httptest.NewServer(f)
			defer s.Close()
			p := build(t, `  - {name: p, baseURL: "`+s.URL+`/v1", credentials: [{name: a, secret: key-a, weight: 1000000}, {name: b, secret: key-b, weight: 0}]}`, provider.Options{})
			transport := p.Transport()
			defer transport.CloseIdleConnections()
			call := &provider.Call{Op: llm.OpChat, Dialect: llm.DialectOpenAI, Model: "m", Body: []byte(`{"model":"m"}`), Header: http.Header{"Authorization": {"Bearer client-key"}}}
			begun := time.Now()
			for i, want := range []string{c.first, c.second} {
				if got, _ := exchange(t, p, transport, call); got != want {
					t.Errorf("request %d: %s, want %s", i+1, got, want)
				}
			}
			if took := time.Since(begun); took > 10*time.Second { // and not the 20 s or 30 s that are asked for
				t.Errorf("took %v", took)
			}
			for i, h := range f.headers {
				if strings.Contains(fmt.Sprint(h), "client-key") || h.Get("Accept-Encoding") != "identity" || f.bodies[i] != `POST /v1/chat/completions 13 {"model":"m"}` {
					t.Errorf("got %v %s", h, f.bodies[i])
				}
			}
		})
	}
}

// Where no credential is left, the caller hears for how long, and its client too.
func TestAllOut(t *testing.T) {
	f := &fake{answers: map[string]http.HandlerFunc{
		"key-a": says(429, "Retry-After: 30", ``), "key-b": says(429, "Retry-After: 20", ``),
	}}
	s := httptest.NewServer(f)
	defer s.Close()
	p := build(t, `  - {name: p, baseURL: "`+s.URL+`/v1", credentials: [{name: a, secret: key-a, weight: 1000000}, {name: b, secret: key-b, weight: 0}]}`, provider.Options{})
	transport := p.Transport()
	defer transport.CloseIdleConnections()
	call := &provider.Call{Op: llm.OpChat, Dialect: llm.DialectOpenAI, Model: "m", Body: []byte(`{}`)}
	trail, v := exchange(t, p, transport, call)
	if trail != "a:rate_limit b:rate_limit" || v.ClientError().Header.Get("Retry-After") != "20" {
		t.Errorf("%s %v", trail, v)
	}
	if trail, _ := exchange(t, p, transport, call); trail != "(out for 20s)" {
		t.Error(trail)
	}
}
