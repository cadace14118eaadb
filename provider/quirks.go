// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"net/url"
	"strings"

	"github.com/penstock/penstock/config"
)

// Quirks are the ways in which a server that is compatible with OpenAI's API
// differs from it, as far as a request or the reading of an answer depends on
// them. Flags only: what they lead to is for others.
type Quirks struct {
	Name string // of the row; "" where the server is not known

	// Requests.
	MaxTokens       string // name of the output bound of chat; "": max_tokens
	SystemRole      string // "": system; developer where that is understood and system is not the newer name
	NoStreamOptions bool   // stream_options is refused
	SingleN         bool   // n other than 1 is refused
	NoLogprobs      bool   // logprobs and logit_bias are refused
	NoMessageName   bool   // name in a message is refused
	StrictFields    bool   // unknown members are refused
	StrictRoles     bool   // user and assistant must take turns
	Seed            string // "": seed
	ToolChoiceAny   bool   // "required" is called "any"
	ToolID          int    // exact length of a tool call's id, alphanumeric; 0: any
	JSONWord        bool   // JSON mode wants the word json in the prompt

	// Answers.
	UsageUnasked    bool   // the last chunk of a stream has usage without being asked for it
	UsageAt         string // a member of the last chunk, beside usage, that holds an object with usage
	SplitCache      bool   // cached tokens stand in prompt_cache_hit_tokens
	ReasoningBeside bool   // completion_tokens lacks the reasoning tokens; total_tokens has them
	WholeTools      bool   // tool calls come in one piece
	KeepAlive       bool   // blank lines or comments may come for minutes before the first token

	// The server.
	Responses bool // has the Responses API
	NoVersion bool // a base URL without a path stays without /v1
	Limits    LimitStyle

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

const newBound = "max_completion_tokens"

// quirkTable has the rows in the order of guessing.
var quirkTable = []Quirks{
	{Name: "openai", MaxTokens: newBound, SystemRole: "developer", Responses: true, hosts: []string{"openai.com"}},
	{Name: "azure", MaxTokens: newBound, SystemRole: "developer", Responses: true, hosts: []string{"openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com"}},
	{Name: "groq", MaxTokens: newBound, SingleN: true, NoLogprobs: true, NoMessageName: true, UsageUnasked: true, UsageAt: "x_groq", Responses: true, Limits: LimitsDaily, hosts: []string{"groq.com"}},
	{Name: "mistral", NoStreamOptions: true, StrictFields: true, Seed: "random_seed", ToolChoiceAny: true, ToolID: 9, UsageUnasked: true, Limits: LimitsBySize, hosts: []string{"mistral.ai"}},
	{Name: "deepseek", SplitCache: true, JSONWord: true, KeepAlive: true, Limits: LimitsNone, hosts: []string{"deepseek.com"}},
	{Name: "together", UsageUnasked: true, hosts: []string{"together.xyz", "together.ai"}},
	{Name: "openrouter", UsageUnasked: true, KeepAlive: true, Limits: LimitsNone, hosts: []string{"openrouter.ai"}},
	{Name: "xai", MaxTokens: newBound, ReasoningBeside: true, Responses: true, Limits: LimitsNone, hosts: []string{"x.ai"}},
	{Name: "fireworks", UsageUnasked: true, hosts: []string{"fireworks.ai"}},
	{Name: "perplexity", SingleN: true, NoLogprobs: true, StrictRoles: true, UsageUnasked: true, NoVersion: true, Limits: LimitsNone, hosts: []string{"perplexity.ai"}},
	{Name: "cerebras", MaxTokens: newBound, SingleN: true, Limits: LimitsDaily, hosts: []string{"cerebras.ai"}},
	{Name: "ollama", WholeTools: true, KeepAlive: true, Limits: LimitsNone, hosts: []string{":11434"}},
	{Name: "vllm", Responses: true, Limits: LimitsNone},
	{Name: "huggingface", Limits: LimitsNone, hosts: []string{"huggingface.co"}},
	{Name: "moonshot", UsageUnasked: true, Limits: LimitsNone, hosts: []string{"moonshot.cn", "moonshot.ai"}},
	{Name: "zhipu", SingleN: true, UsageUnasked: true, Limits: LimitsNone, hosts: []string{"bigmodel.cn", "z.ai"}},
	{Name: "dashscope", Limits: LimitsNone, hosts: []string{"aliyuncs.com"}},
	{Name: "gemini", Limits: LimitsNone, hosts: []string{"generativelanguage.googleapis.com", "aiplatform.googleapis.com"}},
	{Name: "cohere", SingleN: true, NoMessageName: true, Limits: LimitsNone, hosts: []string{"cohere.com", "cohere.ai"}},
	{Name: "deepinfra", Limits: LimitsNone, hosts: []string{"deepinfra.com"}},
	{Name: "siliconflow", UsageUnasked: true, Limits: LimitsNone, hosts: []string{"siliconflow.cn", "siliconflow.com"}},
	{Name: "sambanova", SingleN: true, hosts: []string{"sambanova.ai"}},
	{Name: "nebius", hosts: []string{"nebius.com", "nebius.ai"}},
	{Name: "novita", Limits: LimitsNone, hosts: []string{"novita.ai"}},
	{Name: "hyperbolic", Limits: LimitsNone, hosts: []string{"hyperbolic.xyz"}},
	{Name: "baseten", Limits: LimitsNone, hosts: []string{"baseten.co"}},
	{Name: "nvidia", SingleN: true, Limits: LimitsNone, hosts: []string{"nvidia.com"}},
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
		return Quirks{Limits: LimitsAnthropic}, true
	default:
		return Quirks{Limits: LimitsNone}, true
	}
	if name == "none" {
		return Quirks{}, true
	}
	for _, q := range quirkTable {
		if name == q.Name || name == "" && q.at(base) {
			return q, true
		}
	}
	return Quirks{}, name == ""
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
