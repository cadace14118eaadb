// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// passedOn are the paths that clients may ask a provider for besides the
// operations with a parser of their own, and what is added to the base URL.
var passedOn = map[string]string{
	"/v1/images/generations":     "/images/generations",
	"/v1/images/edits":           "/images/edits",
	"/v1/images/variations":      "/images/variations",
	"/v1/moderations":            "/moderations",
	"/v1/audio/speech":           "/audio/speech",
	"/v1/audio/transcriptions":   "/audio/transcriptions",
	"/v1/audio/translations":     "/audio/translations",
	"/v1/rerank":                 "/rerank",
	"/v2/rerank":                 "/rerank",
	"/v1/responses/input_tokens": "/responses/input_tokens",
	"/v1/responses/compact":      "/responses/compact",
	"/v1/fim/completions":        "/fim/completions",
}

// PassesOn says whether a cleaned path of a client is one that providers are
// asked for as it is. Files, batches and whatever else belongs to an account
// are not: several clients share it.
func PassesOn(path string) bool { _, ok := passedOn[path]; return ok }

// refused is the error for a call that the provider has no URL for.
func refused(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Failure{Verdict: Verdict{Class: Unsupported, Code: "unsupported_operation", Message: err.Error()}, Err: err}
}

// endpoint is where a call goes.
func (p *Provider) endpoint(call *Call) (*url.URL, error) {
	switch p.cfg.Dialect {
	case config.ProviderAzure:
		return p.azure(call)
	case config.ProviderAnthropic:
		return p.anthropic(call)
	case config.ProviderGemini, config.ProviderVertex:
		return p.google(call)
	case config.ProviderBedrock:
		return p.bedrock(call)
	case config.ProviderCohere:
		return p.cohere(call)
	}
	suffix, err := p.suffix(call)
	if err != nil {
		return nil, err
	}
	if p.base.Path == "" && !p.quirks.NoVersion {
		return p.at("/v1"+suffix, ""), nil
	}
	return p.at(p.base.Path+suffix, ""), nil
}

// at is the base URL's server with a path that needs no escaping.
func (p *Provider) at(path, query string) *url.URL {
	return &url.URL{Scheme: p.base.Scheme, Host: p.base.Host, Path: path, RawQuery: query}
}

// escaped is at for a path of which raw is the escaped form. Both go into the
// URL: the signature of AWS is made over the one that is sent.
func (p *Provider) escaped(raw, query string) (*url.URL, error) {
	path, err := url.PathUnescape(raw)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: p.base.Scheme, Host: p.base.Host, Path: path, RawPath: raw, RawQuery: query}, nil
}

// suffix is the path of an operation in OpenAI's API, without /v1.
func (p *Provider) suffix(call *Call) (string, error) {
	switch {
	case call.Dialect == llm.DialectResponses && needOf(call.Op) == needCount:
		return "/responses/input_tokens", nil
	case call.Dialect == llm.DialectResponses && !PassesOn(call.Path):
		return "/responses", nil
	case call.Dialect != llm.DialectOpenAI && call.Dialect != llm.DialectResponses:
		return "", refused("provider %s does not speak this dialect", p.name)
	}
	switch call.Op {
	case llm.OpChat:
		return "/chat/completions", nil
	case llm.OpCompletions:
		return "/completions", nil
	case llm.OpEmbeddings:
		return "/embeddings", nil
	}
	if s, ok := passedOn[call.Path]; ok {
		return s, nil
	}
	return "", refused("provider %s is not asked for %q", p.name, call.Path)
}

// azure has the deployment in the path where there is a version, and in the body
// below /openai/v1. The Responses API is in the latter only.
func (p *Provider) azure(call *Call) (*url.URL, error) {
	suffix, err := p.suffix(call)
	if err != nil {
		return nil, err
	}
	base, version := p.base.Path, ""
	if p.cfg.APIVersion != "" {
		version = "api-version=" + p.cfg.APIVersion
	}
	switch {
	case strings.HasSuffix(base, "/models"): // of Foundry: the model is in the body
		return p.at(base+suffix, version), nil
	case strings.HasSuffix(base, "/openai/v1"):
		return p.at(base+suffix, ""), nil
	}
	base = strings.TrimSuffix(base, "/openai")
	if version == "" || call.Dialect == llm.DialectResponses {
		return p.at(base+"/openai/v1"+suffix, ""), nil
	}
	name, err := p.segment(call.Model)
	if err != nil {
		return nil, err
	}
	return p.escaped(base+"/openai/deployments/"+name+suffix, version)
}

func (p *Provider) anthropic(call *Call) (*url.URL, error) {
	if call.Dialect != llm.DialectAnthropic {
		return nil, refused("provider %s does not speak this dialect", p.name)
	}
	path := strings.TrimSuffix(p.base.Path, "/v1") + "/v1/messages"
	if needOf(call.Op) == needCount {
		path += "/count_tokens"
	}
	return p.at(path, ""), nil
}

// google is the Gemini API of AI Studio, or of Vertex AI, in which the model
// belongs to a publisher.
func (p *Provider) google(call *Call) (*url.URL, error) {
	base, version := p.base.Path, "/v1beta"
	if p.cfg.Dialect == config.ProviderVertex {
		version = "/v1"
	}
	for _, v := range []string{"/v1beta1", "/v1beta", "/v1"} {
		if rest, ok := strings.CutSuffix(base, v); ok {
			base, version = rest, v
			break
		}
	}
	vertex := p.cfg.Dialect == config.ProviderVertex
	location := "/projects/" + p.cfg.Project + "/locations/" + p.cfg.Region
	switch {
	case call.Dialect == llm.DialectOpenAI && vertex:
		suffix, err := p.suffix(call)
		return p.at(base+version+location+"/endpoints/openapi"+suffix, ""), err
	case call.Dialect == llm.DialectAnthropic && vertex && needOf(call.Op) == needCount: // of any model, which the body names
		return p.at(base+version+location+"/publishers/anthropic/models/count-tokens:rawPredict", ""), nil
	case call.Dialect == llm.DialectAnthropic && vertex:
		name, err := p.segment(claude(call.Model))
		if err != nil {
			return nil, err
		}
		method := ":rawPredict"
		if call.Stream {
			method = ":streamRawPredict"
		}
		return p.escaped(base+version+location+"/publishers/anthropic/models/"+name+method, "")
	}
	if call.Dialect != llm.DialectGemini && (call.Dialect != llm.DialectPredict || !vertex) {
		return nil, refused("provider %s does not speak this dialect", p.name)
	}
	method, query := "generateContent", ""
	switch need := needOf(call.Op); {
	case need == needOther:
		return nil, refused("provider %s is not asked for %q", p.name, call.Path)
	case need == needCount:
		method = "countTokens"
	case call.Dialect == llm.DialectPredict:
		method = "predict"
	case call.Op == llm.OpEmbedContent:
		method = "embedContent"
	case need == needEmbeddings:
		method = "batchEmbedContents"
	case call.Stream:
		method, query = "streamGenerateContent", "alt=sse"
	}
	collection, model := "models/", strings.TrimPrefix(call.Model, "models/")
	if vertex {
		model = strings.TrimPrefix(model, "google/")
		collection = location[1:] + "/publishers/google/models/"
		if publisher, rest, ok := strings.Cut(strings.TrimPrefix(model, "publishers/"), "/models/"); ok {
			name, err := p.segment(publisher)
			if err != nil {
				return nil, err
			}
			collection = strings.Replace(collection, "/google/", "/"+name+"/", 1)
			model = rest
		}
	} else if rest, ok := strings.CutPrefix(model, "tunedModels/"); ok {
		collection, model = "tunedModels/", rest
	}
	name, err := p.segment(model)
	if err != nil {
		return nil, err
	}
	return p.escaped(base+version+"/"+collection+name+":"+method, query)
}

// claude is the name of a model of Anthropic's on Vertex AI, without its
// publisher.
func claude(model string) string {
	return strings.TrimPrefix(strings.TrimPrefix(model, "publishers/anthropic/models/"), "anthropic/")
}

func (p *Provider) bedrock(call *Call) (*url.URL, error) {
	if call.Dialect != llm.DialectBedrock {
		return nil, refused("provider %s does not speak this dialect", p.name)
	}
	name, err := p.segment(call.Model)
	if err != nil {
		return nil, err
	}
	method := "/converse"
	switch {
	case needOf(call.Op) == needCount: // of the model itself, which a profile names behind its region
		method = "/count-tokens"
		if i := strings.Index(name, "anthropic."); i > 0 && !strings.Contains(name[:i], "%") {
			name = name[i:]
		}
	case call.Stream:
		method = "/converse-stream"
	}
	return p.escaped(p.base.Path+"/model/"+name+method, "")
}

// cohere has OpenAI's form below /compatibility, and rerank in its own.
func (p *Provider) cohere(call *Call) (*url.URL, error) {
	base := p.base.Path
	for _, tail := range []string{"/compatibility/v1", "/v1", "/v2"} {
		base = strings.TrimSuffix(base, tail)
	}
	suffix, err := p.suffix(call)
	switch {
	case err != nil:
		return nil, err
	case suffix == "/rerank" && call.Path == "/v1/rerank":
		return p.at(base+"/v1/rerank", ""), nil
	case suffix == "/rerank":
		return p.at(base+"/v2/rerank", ""), nil
	}
	return p.at(base+"/compatibility/v1"+suffix, ""), nil
}

const hexDigits = "0123456789ABCDEF"

// segment is the name of a model as one element of a path, with everything
// escaped that RFC 3986 does not call unreserved: AWS signs that form.
func (p *Provider) segment(model string) (string, error) {
	if model == "" || len(model) > 2048 {
		return "", refused("provider %s has no model %.64q", p.name, model)
	}
	for part := range strings.SplitSeq(model, "/") {
		// Escaped, they would be harmless here, and not behind a server that
		// undoes that.
		if part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7F || r == '\\' }) {
			return "", refused("provider %s has no model %.64q", p.name, model)
		}
	}
	var b strings.Builder
	for i := range len(model) {
		switch c := model[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String(), nil
}
