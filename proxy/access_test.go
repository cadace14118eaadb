// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func hashOf(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

// served answers any request, and counts them by the model asked for.
type served struct {
	*httptest.Server
	seen []string
}

// A key does not reach what it may not call: by no name, alias, fallback, path,
// header or query, and through no route. What may be called is, so that a refusal
// means something.
func TestAccess(t *testing.T) {
	s := &served{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen = append(s.seen, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("Api-Key")+r.Header.Get("X-Goog-Api-Key"))
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/completions" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}))
	t.Cleanup(s.Close)
	r := newRig(t, []*httptest.Server{s.Server}, func(text string) string {
		return strings.Replace(text, ", anonymous: true", "", 1) + fmt.Sprintf(`
  - {name: open, targets: [{pool: p, model: up-open}]}
  - {name: hr, targets: [{pool: p, model: up-hr}]}
  - {name: people, alias: hr}
  - {name: humans, alias: people}
  - {name: falls, targets: [{pool: p, model: up-falls, when: "false"}], fallbacks: [{virtualModel: hr}]}
  - {name: "any-*", targets: [{pool: p, model: "up-*"}]}
tenants:
  - {name: acme, deny: [hr, any-hr]}
  - {name: search, parent: acme, models: [open, people, humans, falls, "any-*"]}
  - name: crawl
    parent: acme/search
    keys: [{name: all, hash: %q}, {name: people, hash: %q, models: [people]}, {name: office, hash: %q, sources: [192.0.2.0/24]}]
  - {name: hr, keys: [{name: k, hash: %q}]}
`, hashOf("k-all"), hashOf("k-people"), hashOf("k-office"), hashOf("k-hr"))
	})
	ask := func(path, key, model string, edit func(*http.Request)) int {
		body := `{"model": "` + model + `", "messages": [{"role": "user", "content": "x"}]}`
		if strings.HasSuffix(path, "generateContent") {
			body = `{"contents": [{"parts": [{"text": "x"}]}]}`
		}
		req, err := http.NewRequest(http.MethodPost, r.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		if edit != nil {
			edit(req)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	const chat = "/v1/chat/completions"
	for _, c := range []struct {
		name, path, key, model string
		status                 int
		edit                   func(*http.Request)
	}{
		{"what is allowed", chat, "k-all", "open", 200, nil},
		{"by a pattern", chat, "k-all", "any-thing", 200, nil},
		{"who may", chat, "k-hr", "hr", 200, nil},
		{"who may, by an alias", chat, "k-hr", "humans", 200, nil},
		{"a name that is not listed", chat, "k-all", "m", 404, nil},
		{"a name that is denied above", chat, "k-all", "hr", 404, nil},
		{"an alias of it", chat, "k-all", "people", 404, nil},
		{"an alias of an alias", chat, "k-all", "humans", 404, nil},
		{"an alias that the key lists", chat, "k-people", "people", 404, nil},
		{"a fallback", chat, "k-all", "falls", 400, nil},
		{"a fallback, of who may", chat, "k-hr", "falls", 200, nil},
		{"a name within a pattern", chat, "k-all", "any-hr", 404, nil},
		{"another case", chat, "k-all", "HR", 404, nil},
		{"another path", "//v1//chat/./completions", "k-all", "hr", 404, nil},
		{"the server's own name", chat, "k-all", "up-hr", 404, nil},
		{"a header", chat, "k-all", "open", 200, func(r *http.Request) { r.Header.Set("X-Gateway-Model-Name", "hr") }},
		{"from elsewhere", chat, "k-office", "open", 403, nil},
		{"from elsewhere, with a header", chat, "k-office", "open", 403, func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.7") }},
		{"no key", chat, "", "open", 401, nil},
		{"the digest", chat, hashOf("k-all"), "open", 401, nil},
		{"the wrong key first", chat, "wrong", "open", 401, func(r *http.Request) { r.Header.Set("X-Api-Key", "k-all") }},
		{"Anthropic's API", "/v1/messages", "k-all", "hr", 404, nil},
		{"Gemini's API", "/v1beta/models/hr:generateContent", "k-all", "open", 404, nil},
		{"a further path", "/v1/rerank", "k-all", "hr", 404, nil},
	} {
		if got := ask(c.path, c.key, c.model, c.edit); got != c.status {
			t.Errorf("%s: %d, not %d", c.name, got, c.status)
		}
	}
	for _, seen := range s.seen {
		if seen != "" {
			t.Errorf("a server got the key: %s", seen)
		}
	}
	res, err := http.DefaultClient.Do(func() *http.Request {
		q, _ := http.NewRequest(http.MethodGet, r.url+"/v1/models", nil)
		q.Header.Set("X-Api-Key", "k-all")
		return q
	}())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || strings.Contains(string(text), `"hr"`) || strings.Contains(string(text), "people") || !strings.Contains(string(text), `"open"`) {
		t.Errorf("the list of models: %v %s", err, text)
	}
}

// An HTTP route is no way around keys either.
func TestAccessByHTTPRoutes(t *testing.T) {
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization")+" "+r.URL.RawQuery)
	}))
	t.Cleanup(server.Close)
	r := newHTTPRig(t, fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0"}]
pools:
  - {name: m, members: {static: {m}}, metrics: {off: true}}
  - {name: plain, plain: true, members: {static: {plain}}}
httpRoutes:
  - name: r
    parents: [{listener: l}]
    rules:
      - {matches: [{path: {value: /plain}}], backends: [{pool: plain}]}
      - {backends: [{pool: m}]}
tenants: [{name: acme, keys: [{name: a, hash: %q, models: [open]}, {name: b, hash: %q}]}]
`, hashOf("k-open"), hashOf("k-any")), map[string][]*httptest.Server{"m": {server}, "plain": {server}})
	const chat = "/v1/chat/completions"
	body := func(model string) string {
		return `{"model": "` + model + `", "messages": [{"role": "user", "content": "x"}]}`
	}
	for _, c := range []struct {
		name, target, key, body string
		status                  int
	}{
		{"no key", chat, "", body("open"), 401},
		{"what is allowed", chat, "k-open", body("open"), 200},
		{"what is not", chat, "k-open", body("hr"), 404},
		{"what cannot be read", "/other", "k-open", "text", 404},
		{"of a key that may do all", "/other", "k-any", "text", 200},
		{"a plain backend", "/plain", "k-open", "text", 200},
		{"a plain backend without a key", "/plain", "", "text", 401},
		{"a key in the query", "/plain?a=1&key=k-any&b=2", "", "text", 200},
	} {
		req, err := http.NewRequest(http.MethodPost, "http://"+r.addr("l")+c.target, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if c.key != "" {
			req.Header.Set("Authorization", "Bearer "+c.key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s: %d, not %d", c.name, res.StatusCode, c.status)
		}
	}
	for _, s := range seen {
		if strings.Contains(s, "k-") {
			t.Errorf("a backend got the key: %s", s)
		}
	}
}
