// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/sim"
)

// post sends a body with headers and returns the answer.
func post(t *testing.T, client *http.Client, url, body string, headers ...string) (*http.Response, map[string]any) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	v := map[string]any{}
	_ = json.Unmarshal(raw, &v) // what is no JSON is empty
	return res, v
}

// TestProviderShowsCredentials holds that the stats tell which slot carried
// which credential, and never the credential.
func TestProviderShowsCredentials(t *testing.T) {
	p, addr, client := provide(t, sim.ProviderConfig{Shape: "gemini", Models: []string{"m"}, Keys: []string{"provider-secret"}, KeepBodies: true})
	post(t, client, "http://"+addr+"/v1beta/models/m:generateContent?key=client-secret-1", `{"contents":[{"parts":[{"text":"hello"}]}]}`,
		"x-goog-api-key", "provider-secret", "Authorization", "Bearer client-secret-2", "Cookie", "a=client-secret-3",
		"x-api-key", "client-secret-4", "X-Trace", "visible")
	res, err := client.Get("http://" + addr + "/sim/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, _ := io.ReadAll(res.Body)
	if strings.Contains(string(raw), "secret") {
		t.Errorf("a secret is shown: %s", raw)
	}
	var s sim.Stats
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	seen := s.Seen[0]
	for name, want := range map[string]string{
		"X-Goog-Api-Key": sim.CredentialHash("provider-secret"), "Authorization": "Bearer " + sim.CredentialHash("client-secret-2"),
		"Cookie": sim.CredentialHash("a=client-secret-3"), "X-Api-Key": sim.CredentialHash("client-secret-4"), "X-Trace": "visible",
	} {
		if got := seen.Headers[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if !strings.Contains(seen.Query, "key=sha256") || !strings.Contains(seen.Body, "hello") || !seen.Ended {
		t.Errorf("%+v", seen)
	}
	post(t, client, "http://"+addr+"/v1beta/models/m:generateContent", `{"contents":[]}`, "x-goog-api-key", "provider-secret")
	post(t, client, "http://"+addr+"/v1beta/models/m:generateContent", `{}`, "x-goog-api-key", "wrong")
	want := fmt.Sprint([]sim.Calls{
		{Credential: sim.CredentialHash("provider-secret"), Model: "m", Attempts: 2, Refused: 1},
		{Credential: sim.CredentialHash("wrong"), Model: "m", Attempts: 1, Refused: 1},
	})
	other := p.Stats().Calls
	if len(other) == 2 && other[0].Credential == sim.CredentialHash("wrong") {
		other[0], other[1] = other[1], other[0]
	}
	if fmt.Sprint(other) != want || p.Stats().Attempts != 3 {
		t.Errorf("calls %+v, want %s", other, want)
	}
}

// TestProviderLimitHeaders asks each shape beyond its limit of requests.
func TestProviderLimitHeaders(t *testing.T) {
	headers := map[string]string{
		"openai": "x-ratelimit-remaining-requests", "azure": "x-ratelimit-remaining-requests", "responses": "x-ratelimit-remaining-requests",
		"anthropic": "anthropic-ratelimit-requests-remaining",
	}
	for _, s := range speakers() {
		shape, _, _ := strings.Cut(s.shape, " ")
		cfg := sim.ProviderConfig{Shape: shape, Models: []string{"m"}, RequestsPerMinute: 1}
		if shape == "responses" {
			cfg.Shape = "openai"
		}
		_, addr, client := provide(t, cfg)
		first, second := s.say(t, client, addr, false, "hello", "bound"), s.say(t, client, addr, false, "hello", "bound")
		if first.status != 200 || second.status != 429 || second.failure == "" || second.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d, then %d %v %s", s.shape, first.status, second.status, second.header, second.body)
		}
		if h := headers[shape]; h != "" && (first.header.Get(h) != "0" || second.header.Get(h) != "0") {
			t.Errorf("%s: %v", s.shape, first.header)
		}
		if shape == "anthropic" {
			if at, err := time.Parse(time.RFC3339, first.header.Get("anthropic-ratelimit-requests-reset")); err != nil || time.Until(at) > time.Minute {
				t.Errorf("reset %v, %v", at, err)
			}
		}
	}
}

// TestProviderCaches holds that repeated prefixes are cached per key and model,
// above a minimum, as each shape counts them.
func TestProviderCaches(t *testing.T) {
	long := strings.Repeat("word ", 1200) // 1500 tokens
	for _, s := range speakers() {
		switch s.shape {
		case "anthropic", "bedrock", "responses":
			continue // below: by marks
		}
		shape, _, _ := strings.Cut(s.shape, " ")
		_, addr, client := provide(t, sim.ProviderConfig{Shape: shape, Models: []string{"m"}})
		first, second := s.say(t, client, addr, false, long, "bound"), s.say(t, client, addr, true, long, "bound")
		if first.cached != 0 || second.cached != 1408 || second.in != first.in {
			t.Errorf("%s: cached %v, then %v of %v", s.shape, first.cached, second.cached, second.in)
		}
		s.header[1] = "Bearer another"
		if h := s.say(t, client, addr, false, long, "bound"); h.cached != 0 {
			t.Errorf("%s: another key finds %v", s.shape, h.cached)
		}
		if h := s.say(t, client, addr, false, "short", "bound"); h.cached != 0 {
			t.Errorf("%s: short %v", s.shape, h.cached)
		}
	}
	_, addr, client := provide(t, sim.ProviderConfig{Shape: "anthropic", Models: []string{"m"}})
	body := func(mark string) string {
		return fmt.Sprintf(`{"model":"m","max_tokens":5,"system":[{"type":"text","text":%q%s}],"messages":[{"role":"user","content":"hello"}]}`, long, mark)
	}
	ask := func(mark string) string {
		_, v := post(t, client, "http://"+addr+"/v1/messages", body(mark), "x-api-key", "k", "anthropic-version", "2023-06-01")
		u := at(v, "usage")
		return fmt.Sprint(num(u, "input_tokens"), num(u, "cache_creation_input_tokens"), num(u, "cache_read_input_tokens"))
	}
	const mark = `,"cache_control":{"type":"ephemeral"}`
	if got := []string{ask(""), ask(mark), ask(mark), ask("")}; fmt.Sprint(got) != "[1511 0 0 8 1503 0 8 0 1503 1511 0 0]" {
		t.Errorf("%q", got)
	}
	_, addr, client = provide(t, sim.ProviderConfig{Shape: "bedrock", Models: []string{"m"}})
	for i, want := range []string{"8 1503 0", "8 0 1503"} {
		_, v := post(t, client, "http://"+addr+"/model/m/converse", fmt.Sprintf(`{"system":[{"text":%q},{"cachePoint":{"type":"default"}}],"messages":[{"role":"user","content":[{"text":"hello"}]}]}`, long))
		u := at(v, "usage")
		if got := fmt.Sprint(num(u, "inputTokens"), num(u, "cacheWriteInputTokens"), num(u, "cacheReadInputTokens")); got != want {
			t.Errorf("bedrock %d: %s, want %s", i, got, want)
		}
	}
}

// TestProviderKnowsItsOwn holds that ids, signatures and encrypted reasoning are
// good at their maker alone.
func TestProviderKnowsItsOwn(t *testing.T) {
	_, a, client := provide(t, sim.ProviderConfig{Name: "a", Models: []string{"m"}})
	_, b, _ := provide(t, sim.ProviderConfig{Name: "b", Models: []string{"m"}})
	_, v := post(t, client, "http://"+a+"/v1/responses", `{"model":"m","input":"say: hi","reasoning":{},"include":["reasoning.encrypted_content"]}`)
	id, sealed, item := str(v, "id"), str(v, "output", 0, "encrypted_content"), str(v, "output", 0, "id")
	for _, body := range []string{
		fmt.Sprintf(`{"model":"m","input":"x","previous_response_id":%q}`, id),
		fmt.Sprintf(`{"model":"m","input":[{"type":"reasoning","id":"rs_x","summary":[],"encrypted_content":%q},{"role":"user","content":"x"}]}`, sealed),
		fmt.Sprintf(`{"model":"m","input":[{"type":"reasoning","id":%q,"summary":[]},{"role":"user","content":"x"}]}`, item),
	} {
		if res, v := post(t, client, "http://"+a+"/v1/responses", body); res.StatusCode != 200 {
			t.Errorf("at its maker: %s %v", res.Status, v)
		}
		if res, v := post(t, client, "http://"+b+"/v1/responses", body); res.StatusCode != 400 && res.StatusCode != 404 {
			t.Errorf("elsewhere: %s %v", res.Status, v)
		}
	}
	body := fmt.Sprintf(`{"model":"m","input":"x","previous_response_id":%q}`, id)
	if res, _ := post(t, client, "http://"+a+"/v1/responses", body, "Authorization", "Bearer another"); res.StatusCode != 400 {
		t.Errorf("with another key: %s", res.Status)
	}
}

// TestSignatureVector is "get-vanilla" of the test suite that AWS published.
func TestSignatureVector(t *testing.T) {
	r := httptest.NewRequest("GET", "http://example.amazonaws.com/", nil)
	r.Header.Set("X-Amz-Date", "20150830T123600Z")
	got := sim.Sign("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", []string{"20150830", "us-east-1", "service", "aws4_request"},
		"20150830T123600Z", r, []string{"host", "x-amz-date"}, nil)
	if want := "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestProviderSignatures holds that a signature is good for one request, one
// secret, one region and five minutes.
func TestProviderSignatures(t *testing.T) {
	_, addr, client := provide(t, sim.ProviderConfig{
		Shape: "bedrock", Models: []string{"a:b/c"}, Region: "eu-west-1",
		AccessKeys: []sim.AccessKey{{ID: "AKIA", Secret: "s"}, {ID: "ASIA", Secret: "s2", SessionToken: "token"}},
	})
	const body = `{"messages":[{"role":"user","content":[{"text":"hello"}]}],"inferenceConfig":{"maxTokens":3}}`
	tests := []struct {
		name, id, secret, region, token, body string
		ago                                   time.Duration
		status                                int
		kind                                  string
	}{
		{"good", "AKIA", "s", "eu-west-1", "", body, 0, 200, ""},
		{"good with a token", "ASIA", "s2", "eu-west-1", "token", body, time.Minute, 200, ""},
		{"no token", "ASIA", "s2", "eu-west-1", "", body, 0, 403, "UnrecognizedClientException"},
		{"unknown key", "AKIB", "s", "eu-west-1", "", body, 0, 403, "UnrecognizedClientException"},
		{"wrong secret", "AKIA", "t", "eu-west-1", "", body, 0, 403, "InvalidSignatureException"},
		{"wrong region", "AKIA", "s", "us-east-1", "", body, 0, 403, "InvalidSignatureException"},
		{"changed body", "AKIA", "s", "eu-west-1", "", body + " ", 0, 403, "InvalidSignatureException"},
		{"old", "AKIA", "s", "eu-west-1", "", body, 6 * time.Minute, 403, "InvalidSignatureException"},
		{"of tomorrow", "AKIA", "s", "eu-west-1", "", body, -6 * time.Minute, 403, "InvalidSignatureException"},
	}
	for _, tt := range tests {
		req, err := http.NewRequest("POST", "http://"+addr+"/model/a%3Ab%2Fc/converse", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		date := time.Now().Add(-tt.ago).UTC().Format("20060102T150405Z")
		scope := []string{date[:8], tt.region, "bedrock", "aws4_request"}
		req.Header.Set("X-Amz-Date", date)
		signed := []string{"host", "x-amz-date"}
		if tt.token != "" {
			req.Header.Set("X-Amz-Security-Token", tt.token)
			signed = append(signed, "x-amz-security-token")
		}
		seen := req.Clone(t.Context())
		seen.Host = addr
		signature := sim.Sign(tt.secret, scope, date, seen, signed, []byte(body))
		req.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
			tt.id, strings.Join(scope, "/"), strings.Join(signed, ";"), signature))
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if kind, _, _ := strings.Cut(res.Header.Get("x-amzn-ErrorType"), ":"); res.StatusCode != tt.status || kind != tt.kind {
			t.Errorf("%s: %s %s, want %d %s", tt.name, res.Status, kind, tt.status, tt.kind)
		}
	}
}

// TestProviderContent holds what the words of a request make of the answer.
func TestProviderContent(t *testing.T) {
	_, addr, client := provide(t, sim.ProviderConfig{Models: []string{"m"}})
	tests := []struct {
		body  string
		check func(v map[string]any) bool
	}{
		{`"messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"https://x/y.png"}},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`,
			func(v map[string]any) bool {
				return strings.HasPrefix(str(v, "choices", 0, "message", "content"), "I see 2 images. ") && num(v, "usage", "prompt_tokens") > 512
			}},
		{`"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object","additionalProperties":false,"properties":{"list":{"type":"array","items":{"$ref":"#/$defs/e"}},"kind":{"enum":["a","b"]},"opt":{"anyOf":[{"type":"null"},{"type":"string"}]}},"required":["list","kind","opt"],"$defs":{"e":{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}}}}}`,
			func(v map[string]any) bool {
				return str(v, "choices", 0, "message", "content") == `{"kind":"a","list":[{"n":7}],"opt":null}`
			}},
		{`"messages":[{"role":"user","content":"please refuse"}]`, func(v map[string]any) bool {
			return str(v, "choices", 0, "message", "refusal") != "" && at(v, "choices", 0, "message", "content") == nil
		}},
		{`"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`,
			func(v map[string]any) bool { return str(v, "choices", 0, "finish_reason") == "tool_calls" }},
		{`"messages":[{"role":"user","content":"use tools"}],"parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]`,
			func(v map[string]any) bool { return len(list(v, "choices", 0, "message", "tool_calls")) == 1 }},
		{`"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"sunny"}]`,
			func(v map[string]any) bool {
				return strings.HasPrefix(str(v, "choices", 0, "message", "content"), "The tools say: sunny. ")
			}},
		{`"stop":["b"],"messages":[{"role":"user","content":"say: abc"}]`, func(v map[string]any) bool {
			return str(v, "choices", 0, "message", "content") == "a" && str(v, "choices", 0, "finish_reason") == "stop"
		}},
	}
	for _, tt := range tests {
		if res, v := post(t, client, "http://"+addr+"/v1/chat/completions", `{"model":"m",`+tt.body+`}`); res.StatusCode != 200 || !tt.check(v) {
			t.Errorf("%s: %s %v", tt.body, res.Status, v)
		}
	}
}

// TestProviderGoogleToken gets a token by an assertion and uses it.
func TestProviderGoogleToken(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, addr, client := provide(t, sim.ProviderConfig{Shape: "gemini", Models: []string{"m"}, Keys: []string{"token"}, TokenKey: &key.PublicKey})
	ask := func(claims string, spoil bool) (*http.Response, map[string]any) {
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		sum := sha256.Sum256([]byte(text))
		sig, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		if spoil {
			sig[0] ^= 1
		}
		form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {text + "." + base64.RawURLEncoding.EncodeToString(sig)}}
		return post(t, client, "http://"+addr+"/token", form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	}
	claims := func(lives time.Duration) string {
		now := time.Now()
		return fmt.Sprintf(`{"iss":"a@b","scope":"s","aud":"https://oauth2.googleapis.com/token","iat":%d,"exp":%d}`, now.Unix(), now.Add(lives).Unix())
	}
	if res, v := ask(claims(time.Hour), true); res.StatusCode != 400 || str(v, "error") != "invalid_grant" {
		t.Errorf("a wrong signature: %s %v", res.Status, v)
	}
	if res, v := ask(claims(2*time.Hour), false); res.StatusCode != 400 {
		t.Errorf("too long: %s %v", res.Status, v)
	}
	res, v := ask(claims(time.Hour), false)
	if res.StatusCode != 200 || str(v, "access_token") != "token" {
		t.Fatalf("%s %v", res.Status, v)
	}
	if res, v := post(t, client, "http://"+addr+"/v1/projects/p/locations/l/publishers/google/models/m:generateContent",
		`{"contents":[{"parts":[{"text":"hello"}]}]}`, "Authorization", "Bearer "+str(v, "access_token")); res.StatusCode != 200 {
		t.Errorf("%s %v", res.Status, v)
	}
}
