// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

const page = `listeners: [{name: public, address: "127.0.0.1:8080", anonymous: true}]
pools: [{name: llama, members: {static: ["10.0.0.1:8000"]}}]
models: [{name: chat, targets: [{pool: llama}]}]
providers:
`

// parse reads a list of providers as an operator writes it.
func parse(t testing.TB, list string) []config.Provider {
	t.Helper()
	c, err := config.Parse("in.yaml", []byte(page+list))
	if err != nil {
		t.Fatal(err)
	}
	return c.Providers
}

// build makes the one provider of a list.
func build(t testing.TB, list string, o provider.Options) *provider.Provider {
	t.Helper()
	p, err := provider.New(parse(t, list)[0], o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

var dialects = map[string]llm.Dialect{
	"openai": llm.DialectOpenAI, "responses": llm.DialectResponses, "anthropic": llm.DialectAnthropic,
	"gemini": llm.DialectGemini, "bedrock": llm.DialectBedrock, "predict": llm.DialectPredict,
}

var ops = map[string]llm.Op{
	"chat": llm.OpChat, "completions": llm.OpCompletions, "embeddings": llm.OpEmbeddings, "responses": llm.OpResponses, "other": llm.OpOther,
	"count": llm.OpCountTokens, "count_contents": llm.OpCountContents, "embed_content": llm.OpEmbedContent, "embed_contents": llm.OpEmbedContents,
}

func readCall(t *testing.T, line string) (name string, call *provider.Call) {
	t.Helper()
	model := ""
	if before, rest, ok := strings.Cut(line, `"`); ok {
		m, after, _ := strings.Cut(rest, `"`)
		model, line = m, before+"MODEL"+after
	}
	f := strings.Fields(line)
	if model == "" {
		model = f[3]
	}
	call = &provider.Call{Op: ops[f[1]], Dialect: dialects[f[2]], Model: model, Body: []byte(`{"a":1}`), RequestID: "id-1"}
	for _, x := range f[4:] {
		if path, ok := strings.CutPrefix(x, "path="); ok {
			call.Path = path
		}
		call.Stream = call.Stream || x == "stream"
	}
	return f[0], call
}

// TestRequests shows for each call the URL and the headers that differ from the
// call before.
func TestRequests(t *testing.T) {
	golden.Run(t, "testdata/request/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		byName := map[string]*provider.Provider{}
		for _, cfg := range parse(t, "  "+strings.ReplaceAll(strings.TrimSpace(c.File(t, "providers.yaml")), "\n", "\n  ")+"\n") {
			p, err := provider.New(cfg, provider.Options{Version: "1"})
			if err != nil {
				t.Fatal(err)
			}
			byName[cfg.Name] = p
		}
		var client http.Header
		if c.Has("client") {
			h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(c.File(t, "client") + "\n"))).ReadMIMEHeader()
			if err != nil {
				t.Fatal(err)
			}
			client = http.Header(h)
		}
		var out strings.Builder
		last := map[string]string{}
		for line := range strings.Lines(c.File(t, "calls")) {
			line = strings.TrimSpace(line)
			name, call := readCall(t, line)
			call.Header = client
			p := byName[name]
			cred, _ := p.Pick(call.Model, nil, 0)
			fmt.Fprintf(&out, "# %s\n", line)
			r, err := p.Request(context.Background(), cred, call)
			if err != nil {
				v := p.Judge(call.Dialect, 0, nil, nil, err, false)
				fmt.Fprintf(&out, "%s: %s\n", v.Class, v.Message)
				continue
			}
			if got, err := io.ReadAll(r.Body); err != nil || string(got) != `{"a":1}` || r.ContentLength != 7 || r.GetBody != nil {
				t.Errorf("body is %q %v, length %d", got, err, r.ContentLength)
			}
			fmt.Fprintf(&out, "%s %s\n", r.Method, r.URL)
			headers := map[string]string{}
			for _, k := range slices.Sorted(maps.Keys(r.Header)) {
				headers[k] = strings.Join(r.Header[k], " | ")
				if headers[k] != last[k] {
					fmt.Fprintf(&out, "  %s: %s\n", k, headers[k])
				}
			}
			for _, k := range slices.Sorted(maps.Keys(last)) {
				if headers[k] == "" {
					fmt.Fprintf(&out, "  without %s\n", k)
				}
			}
			last = headers
		}
		return map[string]string{"requests": out.String()}
	})
}

// A client's key, in whatever slot it comes, reaches no provider.
// (B40, B41)
func TestClientCredentialsStay(t *testing.T) {
	const key = "sk-penstock-client"
	h := http.Header{}
	for _, name := range []string{
		"Authorization", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Xi-Api-Key", "Cookie", "X-Amz-Security-Token", "X-Amz-Date",
		"Cf-Aig-Authorization", "Helicone-Auth", "X-Portkey-Api-Key", "X-Litellm-Api-Key", "X-Bf-Vk", "Openai-Organization", "Openai-Project",
		"X-Forwarded-For", "Forwarded", "Via", "Host", "Content-Length", "Accept-Encoding", "Expect", "Connection", "X-Custom", "Baggage", "Content-Encoding",
		"X-Penstock-Hops", "X-Request-Id", "Accept", "Content-Type", "Te", "Transfer-Encoding", "X-Stainless-Os", "Ocp-Apim-Subscription-Key",
	} {
		h[name] = []string{key}
	}
	h["Idempotency-Key"] = []string{key} // goes out mixed
	h["Traceparent"] = []string{"00-1-2-01"}
	for _, list := range []string{
		"  - {name: p, credentials: [{secret: provider-key}]}",
		"  - {name: p}",
		"  - {name: p, dialect: azure, baseURL: \"https://r.openai.azure.com\", credentials: [{secret: provider-key}]}",
		"  - {name: p, dialect: anthropic, credentials: [{secret: provider-key}]}",
		"  - {name: p, dialect: gemini, credentials: [{secret: provider-key}]}",
		"  - {name: p, dialect: bedrock, region: eu-west-1, credentials: [{secret: provider-key}]}",
		"  - {name: p, dialect: bedrock, region: eu-west-1, credentials: [{secret: provider-key, accessKeyID: AKIA}]}",
		"  - {name: p, dialect: cohere, credentials: [{secret: provider-key}]}",
	} {
		p := build(t, list, provider.Options{})
		d, _ := p.Speaks(llm.OpChat)
		c, _ := p.Pick("m", nil, 0)
		r, err := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: d, Model: "m", Body: []byte("{}"), Header: h, Scope: "a"})
		if err != nil {
			t.Fatal(err)
		}
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, ""), key) {
				t.Errorf("%s: %s carries the client's key", list, name)
			}
		}
		if strings.Contains(r.URL.String(), key) || r.Header.Get("Traceparent") == "" || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s: %v %v", list, r.URL, r.Header)
		}
		other, _ := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: d, Model: "m", Body: []byte("{}"), Header: h, Scope: "b"})
		if k := r.Header.Get("Idempotency-Key"); k != "" && k == other.Header.Get("Idempotency-Key") {
			t.Errorf("two clients meet in the key %s", k)
		}
	}
}

// What a provider says of its account, or sends back, reaches no client.
func TestResponseHeader(t *testing.T) {
	in := http.Header{}
	for _, name := range []string{
		"Set-Cookie", "Openai-Organization", "Anthropic-Organization-Id", "Server", "Alt-Svc", "Cf-Ray", "Cf-Cache-Status", "X-Ratelimit-Remaining-Tokens",
		"Anthropic-Ratelimit-Tokens-Reset", "Authorization", "X-Api-Key", "Strict-Transport-Security", "X-Amzn-Bedrock-Input-Token-Count", "Via", "Content-Length",
		"Transfer-Encoding", "Access-Control-Allow-Origin", "X-Penstock-Endpoint", "Retry-After", "X-Hop", "Www-Authenticate", "X-Ms-Region", "Location", "X-Upstream-Request-Id",
	} {
		in[name] = []string{"secret"}
	}
	in["Connection"] = []string{"close, x-hop"}
	in["X-Request-Id"] = []string{"req_1"}
	in["Content-Type"] = []string{"application/json"}
	in["Openai-Processing-Ms"] = []string{"12"}
	out := http.Header{}
	provider.ResponseHeader(out, in)
	want := "map[Content-Type:[application/json] Openai-Processing-Ms:[12] X-Upstream-Request-Id:[req_1]]"
	if got := fmt.Sprint(out); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestSpeaks(t *testing.T) {
	for list, want := range map[string]string{
		"{name: p}": "1 1 1 2 1 2",
		"{name: p, baseURL: \"https://api.groq.com/openai/v1\"}":             "1 1 1 2 1 -",
		"{name: p, baseURL: \"https://api.mistral.ai\"}":                     "1 1 1 1 1 -",
		"{name: p, baseURL: \"https://llm.example.com\"}":                    "1 1 1 1 1 -",
		"{name: p, dialect: azure, baseURL: \"https://r.openai.azure.com\"}": "1 1 1 2 1 -",
		"{name: p, dialect: anthropic}":                                      "3 - - 3 - 3",
		"{name: p, dialect: gemini}":                                         "4 - 4 4 - 4",
		"{name: p, dialect: bedrock, region: eu-west-1}":                     "5 - - 5 - 5",
		"{name: p, dialect: cohere}":                                         "1 - 1 1 - -",
	} {
		p := build(t, "  - "+list, provider.Options{})
		var got []string
		for _, op := range []llm.Op{llm.OpChat, llm.OpCompletions, llm.OpEmbeddings, llm.OpResponses, llm.OpOther, llm.OpCountTokens} {
			if d, ok := p.Speaks(op); ok {
				got = append(got, fmt.Sprint(uint8(d)))
			} else {
				got = append(got, "-")
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", list, s, want)
		}
		if _, ok := p.Speaks(llm.OpModels); ok {
			t.Errorf("%s: lists models", list)
		}
	}
}

func TestQuirkNames(t *testing.T) {
	for _, name := range config.ProviderQuirks() {
		p := build(t, "  - {name: p, baseURL: \"https://llm.example.com/v1\", quirks: "+name+"}", provider.Options{})
		if p.Quirks().Name != name {
			t.Errorf("%s leads to %q", name, p.Quirks().Name)
		}
	}
	for host, name := range map[string]string{
		"api.openai.com": "openai", "eu.api.openai.com": "openai", "notopenai.com": "", "api.groq.com": "groq", "openrouter.ai": "openrouter",
		"api.x.ai": "xai", "max.ai": "", "127.0.0.1:11434": "ollama", "dashscope-intl.aliyuncs.com": "dashscope", "router.huggingface.co": "huggingface",
		"api.z.ai": "zhipu", "res.openai.azure.com": "azure",
	} {
		p := build(t, "  - {name: p, allowHTTP: true, baseURL: \"https://"+host+"/v1\"}", provider.Options{})
		if p.Quirks().Name != name {
			t.Errorf("%s is taken for %q", host, p.Quirks().Name)
		}
	}
}

// Whatever a model is called, the request stays with the operation.
func FuzzModelInPath(f *testing.F) {
	for _, s := range []string{"gpt", "a/b:c", "../x", "arn:aws:bedrock:eu-west-1:1:x/y", "%2e%2e", "a?b#c", "publishers/x/models/y", "publishers/../models/y", "tunedModels/..", "\u00e9", "a//b", "models/models/x"} {
		f.Add(s)
	}
	list := parse(f, `  - {name: azure, dialect: azure, baseURL: "https://r.openai.azure.com", apiVersion: "1", credentials: [{secret: k}]}
  - {name: gemini, dialect: gemini, credentials: [{secret: k}]}
  - {name: bedrock, dialect: bedrock, region: eu-west-1, credentials: [{secret: k}]}
`)
	begins := []string{"/openai/deployments/", "/v1beta/", "/model/"}
	ends := []string{"/chat/completions", ":generateContent", "/converse"}
	var providers []*provider.Provider
	for _, cfg := range list {
		p, err := provider.New(cfg, provider.Options{})
		if err != nil {
			f.Fatal(err)
		}
		providers = append(providers, p)
	}
	f.Fuzz(func(t *testing.T, model string) {
		for i, p := range providers {
			d, _ := p.Speaks(llm.OpChat)
			c, _ := p.Pick("m", nil, 0)
			r, err := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: d, Model: model})
			if err != nil {
				continue
			}
			sent := r.URL.RequestURI()
			path, _, _ := strings.Cut(sent, "?")
			name, ok := strings.CutPrefix(path, begins[i])
			name, ok2 := strings.CutSuffix(name, ends[i])
			if i == 1 {
				_, name, _ = strings.Cut(name, "/") // the collection
			}
			if !ok || !ok2 || strings.ContainsAny(name, "/?#\\ ") || strings.Contains(r.URL.Path, "/../") || strings.HasSuffix(r.URL.Path, "/..") {
				t.Errorf("%q leads to %s", model, sent)
			}
		}
	})
}

func TestVertexBody(t *testing.T) {
	const version = `"anthropic_version":"vertex-2023-10-16"`
	for in, want := range map[string]string{
		`{"model":"claude","max_tokens":1}`:             `{` + version + `,"max_tokens":1}`,
		` { "a" : 1 , "model" : "claude" } `:            ` { "a" : 1 , ` + version + ` } `,
		`{"model":"x"}`:                                 `{` + version + `}`,
		`{}`:                                            `{` + version + `}`,
		` {"a":1}`:                                      ` {"a":1,` + version + `}`,
		`{"anthropic_version":"v","model":"x"}`:         `{"anthropic_version":"v"}`,
		`{"model":"x","anthropic_version":"v"}`:         `{"anthropic_version":"v"}`,
		`{"a":1, "model":"x", "anthropic_version":"v"}`: `{"a":1, "anthropic_version":"v"}`,
		`{"anthropic_version":"v"}`:                     `{"anthropic_version":"v"}`,
		`{"messages":[{"model":"inside"}],"\u006dodel":"x","n":1e400}`: `{"messages":[{"model":"inside"}],` + version + `,"n":1e400}`,
		`nonsense`: `nonsense`, `{"model":`: `{"model":`, ``: ``, `{"model":"x"} x`: `{"model":"x"} x`,
	} {
		if got := string(provider.VertexBody([]byte(in))); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

func FuzzVertexBody(f *testing.F) {
	for _, s := range []string{`{"model":"claude","a":[1]}`, `{"a":{"model":1},"model":null}`, `{"anthropic_version":1,"model":2}`, `{"\u006dodel":1}`, ` {} `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		out := provider.VertexBody(bytes.Clone(body))
		var in, got map[string]json.RawMessage
		if json.Unmarshal(body, &in) != nil || in == nil {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		seen := map[string]int{}
		depth := 0
		for { // duplicates are for others to refuse
			tok, err := dec.Token()
			if err != nil {
				break
			}
			switch x := tok.(type) {
			case json.Delim:
				if x == '{' || x == '[' {
					depth++
				} else {
					depth--
				}
			case string:
				if depth == 1 {
					seen[x]++
				}
			}
		}
		if seen["model"] > 1 || seen["anthropic_version"] > 1 || bytes.Equal(out, body) {
			return
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %s: %v", body, out, err)
		}
		if _, ok := got["model"]; ok || got["anthropic_version"] == nil {
			t.Errorf("%s: %s", body, out)
		}
		for k, v := range in {
			if k != "model" && string(got[k]) != string(v) {
				t.Errorf("%s: %s is %s", body, k, got[k])
			}
		}
	})
}

// On Vertex AI the publisher of a model decides.
func TestSpeaksModel(t *testing.T) {
	cfg := config.Provider{Name: "v", Dialect: config.ProviderVertex, BaseURL: "https://aiplatform.googleapis.com", Region: "global", Project: "proj"}
	p, err := provider.New(cfg, provider.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, _ := p.Pick("m", nil, 0)
	const at = "https://aiplatform.googleapis.com/v1/projects/proj/locations/global/"
	for model, want := range map[string]string{
		"gemini-2.5-pro":             at + "publishers/google/models/gemini-2.5-pro:generateContent",
		"google/gemini-2.5-pro":      at + "publishers/google/models/gemini-2.5-pro:generateContent",
		"claude-sonnet-4-5@20250929": at + "publishers/anthropic/models/claude-sonnet-4-5%4020250929:rawPredict",
		"anthropic/claude-opus-4":    at + "publishers/anthropic/models/claude-opus-4:rawPredict",
		"meta/llama-4":               at + "endpoints/openapi/chat/completions",
	} {
		d, ok := p.SpeaksModel(llm.OpChat, model)
		r, err := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: d, Model: model, Body: []byte(`{"model":"m"}`)})
		if err != nil || !ok || r.URL.String() != want {
			t.Errorf("%s: %v %v, want %s", model, r, err, want)
			continue
		}
		if body, _ := io.ReadAll(r.Body); (d == llm.DialectAnthropic) != strings.Contains(string(body), "vertex-2023-10-16") || r.ContentLength != int64(len(body)) {
			t.Errorf("%s: %s", model, body)
		}
	}
	if _, ok := p.SpeaksModel(llm.OpEmbeddings, "claude-x"); ok {
		t.Error("embeddings of a chat model")
	}
}
