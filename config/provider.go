// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"reflect"
)

// ProviderKind is the kind of a managed API: how its URLs, credentials and
// bodies look.
type ProviderKind string

// The kinds of providers.
const (
	ProviderOpenAI    ProviderKind = "openai" // and every server that is compatible with it
	ProviderAzure     ProviderKind = "azure"
	ProviderAnthropic ProviderKind = "anthropic"
	ProviderGemini    ProviderKind = "gemini" // Google AI Studio
	ProviderVertex    ProviderKind = "vertex"
	ProviderBedrock   ProviderKind = "bedrock"
	ProviderCohere    ProviderKind = "cohere"
)

// Provider is a managed model API.
type Provider struct {
	Name    string       `yaml:"name"`
	Dialect ProviderKind `yaml:"dialect" default:"openai" enum:"openai|azure|anthropic|gemini|vertex|bedrock|cohere"`
	// BaseURL is derived from Dialect and Region where that is enough.
	BaseURL string `yaml:"baseURL"`
	// Quirks is one of [ProviderQuirks], or "none"; empty: guessed from the host.
	Quirks string `yaml:"quirks"`
	// Region is part of the URL for bedrock and vertex; elsewhere a label.
	Region      string            `yaml:"region"`
	Project     string            `yaml:"project"`    // vertex
	APIVersion  string            `yaml:"apiVersion"` // azure: of the classic paths; empty: the v1 ones
	Credentials []Credential      `yaml:"credentials"`
	Headers     map[string]Secret `yaml:"headers"` // set on every request; never shown, since some servers are let in by one
	// PriceList is the name of the provider in a price list of LiteLLM's; empty:
	// guessed from Dialect, Quirks and host.
	PriceList string `yaml:"priceList"`
	AllowHTTP bool   `yaml:"allowHTTP"`
	// AllowPrivate lets the name of the provider lead to addresses that are not
	// public. Link-local and metadata addresses stay refused.
	AllowPrivate bool     `yaml:"allowPrivate"`
	Timeouts     Timeouts `yaml:"timeouts" unset:"inherit"` // unset fields: Config.Timeouts
	Cooldown     Cooldown `yaml:"cooldown"`
}

// Credential is one account at a provider.
type Credential struct {
	Name   string `yaml:"name"`                   // empty: its place in the list, from 1
	Secret Secret `yaml:"secret" as:"secretFile"` // "file:PATH" in a file sets SecretFile
	// SecretFile holds the secret; package provider reads it again when it changes.
	SecretFile   string  `yaml:"secretFile" file:"path"`
	Weight       *int    `yaml:"weight" min:"0" max:"1000000"` // share among the credentials; nil: 1; 0: only when no other is left
	Organization string  `yaml:"organization"`                 // openai
	Project      string  `yaml:"project"`                      // openai
	AccessKeyID  string  `yaml:"accessKeyID"`                  // bedrock: requests are signed; without it the secret is a bearer key
	SessionToken Secret  `yaml:"sessionToken"`                 // bedrock
	Limits       []Limit `yaml:"limits"`                       // of what is sent with it; over them the next credential or target is asked
}

// Cooldown takes a credential out of use for a model, after failures in a row,
// and lets it back by one request.
type Cooldown struct {
	After int      `yaml:"after" default:"3" min:"1" max:"1000"`
	For   Duration `yaml:"for" default:"5s" min:"1ms" max:"1h"` // doubles with each further time out
	Max   Duration `yaml:"max" default:"5m" min:"1ms" max:"24h"`
}

// ProviderQuirks are the compatible servers whose ways package provider knows.
func ProviderQuirks() []string {
	return []string{
		"openai", "azure", "groq", "mistral", "deepseek", "together", "openrouter", "xai", "fireworks", "perplexity", "cerebras",
		"ollama", "vllm", "huggingface", "moonshot", "zhipu", "dashscope", "gemini", "cohere", "deepinfra", "siliconflow", "sambanova",
		"nebius", "novita", "hyperbolic", "baseten", "nvidia",
	}
}

// Equal says whether two providers are configured alike.
func (p Provider) Equal(q Provider) bool { return reflect.DeepEqual(p, q) }

// DefaultBaseURL is where the API of a kind is, or "" where only the operator
// knows.
func DefaultBaseURL(kind ProviderKind, region string) string {
	switch kind {
	case ProviderOpenAI:
		return "https://api.openai.com/v1"
	case ProviderAnthropic:
		return "https://api.anthropic.com"
	case ProviderGemini:
		return "https://generativelanguage.googleapis.com"
	case ProviderCohere:
		return "https://api.cohere.com"
	case ProviderVertex:
		switch region {
		case "":
			return ""
		case "global":
			return "https://aiplatform.googleapis.com"
		}
		return "https://" + region + "-aiplatform.googleapis.com"
	case ProviderBedrock:
		if region != "" {
			return "https://bedrock-runtime." + region + ".amazonaws.com"
		}
	}
	return ""
}

// deriveBaseURL fills in BaseURL. A compatible server is somewhere else than
// OpenAI, so that its URL has to be given.
func (p *Provider) deriveBaseURL() {
	compatible := p.Dialect == ProviderOpenAI && p.Quirks != "" && p.Quirks != "openai" && p.Quirks != "none"
	if p.BaseURL == "" && !compatible && (p.Region == "" || regionForm.MatchString(p.Region)) {
		p.BaseURL = DefaultBaseURL(p.Dialect, p.Region)
	}
}

// metadataAddresses answer with the credentials of the machine that asks, or
// steer it, and are not link-local.
func metadataAddresses() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
		netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
		netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
		netip.MustParseAddr("168.63.129.16"),   // Azure
	}
}

// RefusedAddress says why nothing is sent to an address that somebody else may
// have chosen, or "". Loopback addresses count as private.
func RefusedAddress(a netip.Addr, allowPrivate bool) string {
	a = embedded(a.Unmap().WithZone(""))
	for _, m := range metadataAddresses() {
		if a == m {
			return "is a metadata service"
		}
	}
	switch {
	case !a.IsValid():
		return "is no address"
	case a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast(), a.IsInterfaceLocalMulticast():
		return "is link-local, where metadata services are"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsUnspecified(), within4(a, "0.0.0.0/8"), within4(a, "240.0.0.0/4"):
		return "is no address of a server"
	case allowPrivate:
		return ""
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsPrivate(), within4(a, "100.64.0.0/10"), within4(a, "192.0.0.0/24"), within4(a, "198.18.0.0/15"),
		netip.MustParsePrefix("fec0::/10").Contains(a):
		return "is a private address"
	}
	return ""
}

func within4(a netip.Addr, prefix string) bool { return netip.MustParsePrefix(prefix).Contains(a) }

// embedded is the IPv4 address that an IPv6 address stands for (RFC 6052,
// RFC 3056), or the address itself.
func embedded(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	b := a.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a), netip.MustParsePrefix("::/96").Contains(a) && b[12] != 0:
		return netip.AddrFrom4([4]byte(b[12:]))
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}
