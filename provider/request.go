// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/jsonedit"
	"github.com/penstock/penstock/llm"
)

// Call is one request for a provider, its body in the dialect that the provider
// speaks.
type Call struct {
	Op          llm.Op      // of Body: after a translation, that of the translation
	Dialect     llm.Dialect // of Body
	Model       string      // upstream name
	Stream      bool
	Path        string      // the client's cleaned path, for what is passed on
	Body        []byte      // final: a signature covers it
	ContentType string      // "": application/json
	Header      http.Header // the client's; what may go out is chosen here
	RequestID   string
	// Scope is who the client is. Its Idempotency-Key goes out mixed with it:
	// clients share an account, and must not meet in its keys.
	Scope string
}

// anthropicVersion is sent where the client has named none.
const anthropicVersion = "2023-06-01"

// maxHeader bounds a value that a client sends to a provider, in bytes.
const maxHeader = 4096

// Request makes the HTTP request of a call: URL, headers of the list, credential
// or signature over the body. Nothing of it may be changed afterwards. Without
// GetBody, so that no transport sends it twice by itself. The error is a
// *[Failure]: a token that cannot be had, an operation without a URL.
func (p *Provider) Request(ctx context.Context, c *Credential, call *Call) (*http.Request, error) {
	u, err := p.endpoint(call)
	if err != nil {
		return nil, err
	}
	body := call.Body
	if count := needOf(call.Op) == needCount; p.cfg.Dialect == config.ProviderVertex {
		switch {
		case call.Dialect == llm.DialectAnthropic:
			body = vertexBody(body, count)
		case call.Dialect == llm.DialectGemini && count:
			body = vertexCount(body)
		}
	}
	r := &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        p.header(call),
		Body:          http.NoBody,
		ContentLength: int64(len(body)),
	}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	r = r.WithContext(ctx)
	if err := p.authorize(r, c, call); err != nil {
		return nil, err
	}
	return r, nil
}

// vertexCount is a body of Gemini's countTokens as Vertex AI takes it: what would
// be sent to generate, without the parts that do not count.
func vertexCount(body []byte) []byte {
	var out []byte
	s := jsonedit.NewScanner(body, 512)
	if !s.Object() {
		return body
	}
	for {
		name, ok := s.NextMember()
		if !ok {
			break
		}
		key, kind := name.Value(body), s.Peek()
		value := s.Skip()
		switch key {
		case "generateContentRequest", "generate_content_request":
			if kind == jsonedit.Object {
				return vertexCount(value.Of(body))
			}
		case "contents", "systemInstruction", "system_instruction", "tools":
			out = jsonedit.AppendString(append(out, ','), key)
			out = append(append(out, ':'), value.Of(body)...)
		}
	}
	if len(out) == 0 || !s.Finish() {
		return body
	}
	out[0] = '{'
	return append(out, '}')
}

// vertexBody is a body of Anthropic's API as Vertex AI takes it: the model is in
// the URL and refused in the body, unless named says that the URL has none; the
// version is in the body.
func vertexBody(body []byte, named bool) []byte {
	const version = `"anthropic_version":"vertex-2023-10-16"`
	s := jsonedit.NewScanner(body, 512)
	start := s.Pos()
	if !s.Object() {
		return body
	}
	var model, last jsonedit.Span // with the comma behind the one, or before
	var versioned, open bool
	for {
		before := s.Pos()
		name, ok := s.NextMember()
		if !ok {
			break
		}
		if open {
			model.End, open = name.Quoted().Start, false
		}
		key := name.Value(body)
		value := s.Skip()
		switch {
		case key == "model" && !named:
			model, open = jsonedit.Span{Start: name.Quoted().Start, End: value.End}, true
			last = jsonedit.Span{Start: before, End: value.End}
		case key == "anthropic_version":
			versioned = true
		}
	}
	end := s.Pos()
	switch {
	case !s.Finish():
		return body
	case model.Len() == 0 && versioned:
		return body
	case model.Len() == 0:
		return jsonedit.Apply(body, jsonedit.Insert(body, jsonedit.Span{Start: start, End: end}, version))
	case !versioned:
		// In place of the model; its comma stays.
		return jsonedit.Apply(body, jsonedit.Edit{Span: jsonedit.Span{Start: model.Start, End: last.End}, Text: []byte(version)})
	case open: // the last member: with the comma before it
		return jsonedit.Apply(body, jsonedit.Edit{Span: last})
	}
	return jsonedit.Apply(body, jsonedit.Edit{Span: model})
}

// header is all but the credential.
func (p *Provider) header(call *Call) http.Header {
	out := make(http.Header, 12+len(p.cfg.Headers))
	out["Content-Type"] = []string{cmp.Or(call.ContentType, "application/json")}
	out["Accept"] = []string{accepts(call)}
	// Compressed, a stream would wait for the compressor, and be parsed by nobody.
	out["Accept-Encoding"] = []string{"identity"}
	out["User-Agent"] = []string{p.userAgent(call.Header)}
	if call.RequestID != "" {
		out["X-Request-Id"] = []string{call.RequestID}
	}
	keep := func(name string) {
		values := call.Header[name]
		if n := 0; len(values) > 0 && len(values) <= 16 {
			for _, v := range values {
				n += len(v)
			}
			if n <= maxHeader {
				out[name] = values
			}
		}
	}
	keep("Traceparent")
	keep("Tracestate")
	switch call.Dialect {
	case llm.DialectAnthropic:
		keep("Anthropic-Version")
		keep("Anthropic-Beta")
		if len(out["Anthropic-Version"]) == 0 {
			out["Anthropic-Version"] = []string{anthropicVersion}
		}
	case llm.DialectOpenAI, llm.DialectResponses:
		keep("Openai-Beta")
	}
	if key := call.Header["Idempotency-Key"]; len(key) == 1 && key[0] != "" && call.Dialect != llm.DialectBedrock {
		sum := sha256.Sum256([]byte(call.Scope + "\x00" + key[0]))
		out["Idempotency-Key"] = []string{hex.EncodeToString(sum[:16])}
	}
	for name, secret := range p.cfg.Headers {
		value := secret.Reveal()
		if name = http.CanonicalHeaderKey(name); name == "Anthropic-Beta" && len(out[name]) > 0 {
			value = strings.Join(out[name], ",") + "," + value // a list: the client's stays
		}
		out[name] = []string{value}
	}
	return out
}

func accepts(call *Call) string {
	switch {
	case !call.Stream && needOf(call.Op) == needMedia, needOf(call.Op) == needOther:
		return "*/*"
	case call.Stream && call.Dialect == llm.DialectBedrock:
		return "application/vnd.amazon.eventstream"
	case call.Stream:
		return "text/event-stream"
	}
	return "application/json"
}

// userAgent names the client, then the gateway.
func (p *Provider) userAgent(h http.Header) string {
	if v := h["User-Agent"]; len(v) > 0 && v[0] != "" && len(v[0]) <= 256 {
		return v[0] + " " + p.agent
	}
	return p.agent
}

// authorize sets the credential, last of all.
func (p *Provider) authorize(r *http.Request, c *Credential, call *Call) error {
	secret := c.current()
	value := ""
	if secret != nil {
		value = secret.value.Reveal()
	}
	if c.organization != "" {
		r.Header["Openai-Organization"] = []string{c.organization}
	}
	if c.project != "" {
		r.Header["Openai-Project"] = []string{c.project}
	}
	bearer := func(s string) { r.Header["Authorization"] = []string{"Bearer " + s} }
	switch {
	case secret == nil:
		return nil
	case p.cfg.Dialect == config.ProviderAzure:
		r.Header["Api-Key"] = []string{value}
	case p.cfg.Dialect == config.ProviderAnthropic && !strings.HasPrefix(value, "sk-ant-oat"): // those are OAuth tokens
		r.Header["X-Api-Key"] = []string{value}
	case p.cfg.Dialect == config.ProviderGemini && call.Dialect == llm.DialectGemini:
		r.Header["X-Goog-Api-Key"] = []string{value}
	case p.cfg.Dialect == config.ProviderVertex:
		token, err := secret.oauth.get(r.Context())
		if err != nil {
			return tokenFailure(r.Context(), err)
		}
		bearer(token)
	case secret.key != nil:
		return p.sign(r, c, secret.key, call.Body)
	default:
		bearer(value)
	}
	return nil
}

// tokenFailure says what it means that no token is to be had.
func tokenFailure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return &Failure{Verdict: Classify(0, 0, nil, nil, cause, false), Err: cause}
	}
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Verdict: Verdict{Class: Auth, Code: "token", Message: "no access token is to be had"}, Err: err}
}

// sign adds the signature of AWS (version 4) over the request as it is.
func (p *Provider) sign(r *http.Request, c *Credential, key *aws.Credentials, body []byte) error {
	sum := sha256.Sum256(body)
	if err := c.signer.SignHTTP(r.Context(), *key, r, hex.EncodeToString(sum[:]), "bedrock", p.cfg.Region, time.Now()); err != nil {
		return &Failure{Verdict: Verdict{Class: Auth, Code: "signature", Message: "the request cannot be signed"}, Err: err}
	}
	return nil
}
