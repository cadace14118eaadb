// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"net/url"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Quirks are the ways in which a server that is compatible with OpenAI's API
// differs from it. Flags only: what they lead to is for others.
type Quirks struct {
	Name       string     // of the row; "" where the server is not known
	llm.Quirks            // of requests and answers
	Responses  bool       // has the Responses API
	NoVersion  bool       // a base URL without a path stays without /v1
	Limits     LimitStyle // how it tells its rate limits

	hosts []string // the base URL's host is one of these or below it; with a port: that port of any host
}

// LimitStyle is how the rate limits of an account stand in the headers.
type LimitStyle uint8

// The styles.
const (
	LimitsOpenAI    LimitStyle = iota // x-ratelimit-{limit,remaining,reset}-{requests,tokens}
	LimitsDaily                       // as OpenAI's; requests are per day
	LimitsBySize                      // x-ratelimitbysize-{limit,remaining}-{minute,month}
	LimitsAnthropic                   // anthropic-ratelimit-…, reset in RFC 3339
	LimitsNone
)

// older are the names that every compatible server knows.
func older() llm.Quirks { return llm.Quirks{MaxTokens: true, SystemRole: true} }

// quirkTable has the rows in the order of guessing.
var quirkTable = []Quirks{
	{Name: "openai", Responses: true, hosts: []string{"openai.com"}},
	{Name: "azure", Responses: true, hosts: []string{"openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com"}},
	{Name: "groq", Quirks: llm.Quirks{SystemRole: true, NoN: true, NoLogprobs: true, NoNames: true}, Responses: true, Limits: LimitsDaily, hosts: []string{"groq.com"}},
	{Name: "mistral", Quirks: llm.Quirks{MaxTokens: true, NoStreamOptions: true, SystemRole: true, KnownOnly: true, RandomSeed: true, RequiredAny: true, ToolIDs: true}, Limits: LimitsBySize, hosts: []string{"mistral.ai"}},
	{Name: "deepseek", Quirks: older(), Limits: LimitsNone, hosts: []string{"deepseek.com"}},
	{Name: "together", Quirks: older(), hosts: []string{"together.xyz", "together.ai"}},
	{Name: "openrouter", Quirks: older(), Limits: LimitsNone, hosts: []string{"openrouter.ai"}},
	{Name: "xai", Quirks: llm.Quirks{SystemRole: true}, Responses: true, Limits: LimitsNone, hosts: []string{"x.ai"}},
	{Name: "fireworks", Quirks: older(), hosts: []string{"fireworks.ai"}},
	{Name: "perplexity", Quirks: llm.Quirks{MaxTokens: true, SystemRole: true, NoN: true, NoLogprobs: true}, NoVersion: true, Limits: LimitsNone, hosts: []string{"perplexity.ai"}},
	{Name: "cerebras", Quirks: llm.Quirks{SystemRole: true, NoN: true}, Limits: LimitsDaily, hosts: []string{"cerebras.ai"}},
	{Name: "ollama", Quirks: older(), Limits: LimitsNone, hosts: []string{":11434"}},
	{Name: "vllm", Quirks: older(), Responses: true, Limits: LimitsNone},
	{Name: "huggingface", Quirks: older(), Limits: LimitsNone, hosts: []string{"huggingface.co"}},
	{Name: "moonshot", Quirks: older(), Limits: LimitsNone, hosts: []string{"moonshot.cn", "moonshot.ai"}},
	{Name: "zhipu", Quirks: llm.Quirks{MaxTokens: true, SystemRole: true, NoN: true}, Limits: LimitsNone, hosts: []string{"bigmodel.cn", "z.ai"}},
	{Name: "dashscope", Quirks: older(), Limits: LimitsNone, hosts: []string{"aliyuncs.com"}},
	{Name: "gemini", Quirks: older(), Limits: LimitsNone, hosts: []string{"generativelanguage.googleapis.com", "aiplatform.googleapis.com"}},
	{Name: "cohere", Quirks: llm.Quirks{MaxTokens: true, SystemRole: true, NoN: true, NoNames: true}, Limits: LimitsNone, hosts: []string{"cohere.com", "cohere.ai"}},
	{Name: "deepinfra", Quirks: older(), Limits: LimitsNone, hosts: []string{"deepinfra.com"}},
	{Name: "siliconflow", Quirks: older(), Limits: LimitsNone, hosts: []string{"siliconflow.cn", "siliconflow.com"}},
	{Name: "sambanova", Quirks: llm.Quirks{MaxTokens: true, SystemRole: true, NoN: true}, hosts: []string{"sambanova.ai"}},
	{Name: "nebius", Quirks: older(), hosts: []string{"nebius.com", "nebius.ai"}},
	{Name: "novita", Quirks: older(), Limits: LimitsNone, hosts: []string{"novita.ai"}},
	{Name: "hyperbolic", Quirks: older(), Limits: LimitsNone, hosts: []string{"hyperbolic.xyz"}},
	{Name: "baseten", Quirks: older(), Limits: LimitsNone, hosts: []string{"baseten.co"}},
	{Name: "nvidia", Quirks: llm.Quirks{MaxTokens: true, SystemRole: true, NoN: true}, Limits: LimitsNone, hosts: []string{"nvidia.com"}},
}

// quirksOf is the row of a provider. An unknown server is taken for one that
// knows the older names and refuses nothing.
func quirksOf(cfg config.Provider, base *url.URL) (Quirks, bool) {
	name := cfg.Quirks
	switch cfg.Dialect {
	case config.ProviderOpenAI:
	case config.ProviderAzure:
		if name == "" {
			name = "azure"
		}
	case config.ProviderCohere:
		name = "cohere"
	case config.ProviderGemini, config.ProviderVertex:
		name = "gemini"
	case config.ProviderAnthropic:
		return Quirks{Quirks: older(), Limits: LimitsAnthropic}, true
	default:
		return Quirks{Quirks: older(), Limits: LimitsNone}, true
	}
	if name == "none" {
		return Quirks{Quirks: older()}, true
	}
	for _, q := range quirkTable {
		if name == q.Name || name == "" && q.at(base) {
			return q, true
		}
	}
	return Quirks{Quirks: older()}, name == ""
}

// at says whether a base URL is one of the server's.
func (q Quirks) at(base *url.URL) bool {
	host := strings.ToLower(strings.TrimSuffix(base.Hostname(), "."))
	for _, h := range q.hosts {
		if port, ok := strings.CutPrefix(h, ":"); ok && base.Port() == port {
			return true
		}
		if host == h || strings.HasSuffix(host, "."+h) || strings.HasSuffix(host, "-"+h) {
			return true
		}
	}
	return false
}
