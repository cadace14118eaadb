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

// tenant lets the key sk-client-1 in alone; more is the rest of its tenant.
func tenant(more string) func(string) string {
	return func(text string) string {
		text = strings.Replace(text, ", anonymous: true", "", 1)
		return text + fmt.Sprintf("tenants:\n  - name: acme\n    keys: [{name: ci, hash: \"sha256:%x\"}]\n%s", sha256.Sum256([]byte("sk-client-1")), more)
	}
}

// keyed sends body with the key and gives the answer back.
func (r *rig) keyed(path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, _ := http.NewRequest(http.MethodPost, r.url+path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer sk-client-1")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res, string(text)
}

// TestRefusedByLimit: what is over a limit reaches no server, is told in the
// client's dialect with the limit's name and a wait, and costs nothing.
func TestRefusedByLimit(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		io.WriteString(w, `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`)
	}))
	defer server.Close()
	r := newRig(t, []*httptest.Server{server}, tenant("    limits: [{tokens: 1000, per: 24h, soft: 0.01}, {requests: 2, per: 24h}]\n"))
	const body = `{"model":"m","max_tokens":500,"messages":[{"role":"user","content":"hello"}]}`
	for i := range 2 {
		res, text := r.keyed("/v1/chat/completions", body)
		if res.StatusCode != 200 || res.Header.Get("X-Ratelimit-Limit-Tokens") != "1000" || res.Header.Get("X-Ratelimit-Remaining-Requests") != fmt.Sprint(1-i) {
			t.Fatalf("request %d: %d %v %s", i, res.StatusCode, res.Header, text)
		}
		if w := res.Header.Get("X-Penstock-Limit-Warning"); !strings.HasPrefix(w, "acme: 1000 tokens per 24h: 5") {
			t.Errorf("warning %q", w)
		}
	}
	res, text := r.keyed("/v1/chat/completions", body)
	if res.StatusCode != 429 || !strings.Contains(text, "acme: 2 requests per 24h") || !strings.Contains(text, `"code":"rate_limit_exceeded"`) {
		t.Errorf("over the limit: %d %s", res.StatusCode, text)
	}
	if after := res.Header.Get("Retry-After"); after != "43200" && after != "43199" {
		t.Errorf("Retry-After %q", after)
	}
	res, text = r.keyed("/v1/messages", body, "anthropic-version", "2023-06-01")
	if res.StatusCode != 429 || !strings.Contains(text, `"type":"rate_limit_error"`) || res.Header.Get("Anthropic-Ratelimit-Requests-Limit") != "2" || res.Header.Get("Anthropic-Ratelimit-Requests-Remaining") != "0" {
		t.Errorf("in Anthropic's dialect: %d %v %s", res.StatusCode, res.Header, text)
	}
	if asked != 2 {
		t.Errorf("the server was asked %d times", asked)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.records[2]; last.Limit != "acme: 2 requests per 24h" || last.ErrorClass != "rate_limit_exceeded" || last.Attempts != 0 {
		t.Errorf("record %+v", last)
	}
}

func TestLargerThanTheLimit(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") }))
	defer server.Close()
	r := newRig(t, []*httptest.Server{server}, tenant("    limits: [{tokens: 1000, per: 1m}]\n"))
	res, text := r.keyed("/v1/chat/completions", `{"model":"m","max_tokens":5000,"messages":[{"role":"user","content":"hello"}]}`)
	if res.StatusCode != 400 || res.Header.Get("Retry-After") != "" || !strings.Contains(text, "request_exceeds_limit") {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, text)
	}
}
