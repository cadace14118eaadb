// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package provider speaks to managed model APIs: where an operation is found
// (base URL and path), how a request is allowed in (credential, signature,
// token), what an outcome means, and which credential is fit for use.
//
// Left to others: bodies and their translation (package llm), the connections
// and the loop over attempts (package proxy), which provider serves a model.
//
// Start reading at [Provider.Request] for the way out, and at [Classify] for
// what comes back: it alone decides what an outcome means, over the table in
// rules.go. health.go has what follows from it for a credential.
//
// Always: of a client's headers only those of a list go out, and a provider's
// credential is set last; no secret is in a log, an error or a state; nothing is
// sent to link-local and metadata addresses; what a provider says is bounded
// before it is kept.
package provider

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Provider is one managed API with its credentials. Its methods may be called
// from any goroutine.
type Provider struct {
	name        string
	cfg         config.Provider
	base        url.URL // without a trailing slash
	quirks      Quirks
	credentials []*Credential // never empty
	agent       string
	log         *slog.Logger
	metrics     *Instruments
	dialer      dialer

	mu sync.Mutex // guards the health of every credential; held for no I/O
}

// Options are what a Provider takes from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger // nil: [slog.Default]
	Metrics *Instruments // shared by all providers; nil: none
	// Previous is the provider of the same name that this one replaces: what is
	// known of the health of credentials that stay the same is taken over.
	Previous *Provider
	Version  string // of the gateway, for User-Agent
}

// New builds a provider from a configuration that is valid and has its defaults
// (see [config.Config.Validate]). Secrets in files are read here for the first
// time; one that cannot be used is an error.
func New(cfg config.Provider, o Options) (*Provider, error) {
	p, problems := build(cfg, o)
	if len(problems) > 0 {
		return nil, fmt.Errorf("provider %s: %w", cfg.Name, problems[0])
	}
	if o.Previous != nil {
		p.inherit(o.Previous)
	}
	p.metrics.add(p)
	return p, nil
}

// Check says what New would refuse, in the whole of a configuration, with paths;
// for [config.Options].
func Check(c *config.Config) []*config.Problem {
	var all []*config.Problem
	for i, cfg := range c.Providers {
		_, problems := build(cfg, Options{})
		for _, problem := range problems {
			all = append(all, problem.Under("providers["+strconv.Itoa(i)+"]"))
		}
	}
	return all
}

func build(cfg config.Provider, o Options) (*Provider, []*config.Problem) {
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Host == "" {
		return nil, []*config.Problem{{Path: "baseURL", What: "is no URL of a server"}}
	}
	q, ok := quirksOf(cfg, u)
	if !ok {
		return nil, []*config.Problem{{Path: "quirks", What: strconv.Quote(cfg.Quirks) + " is not known"}}
	}
	p := &Provider{
		name: cfg.Name, cfg: cfg, quirks: q, log: o.Log, metrics: o.Metrics,
		base:  url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")},
		agent: strings.TrimRight("penstock/"+o.Version, "/"),
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	p.log = p.log.With("provider", p.name)
	p.dialer = newDialer(reach{private: cfg.AllowPrivate, loopback: isLocal(u.Hostname())}, connectBound(cfg))
	var problems []*config.Problem
	for i, c := range cfg.Credentials {
		made, err := p.newCredential(c, cmp.Or(c.Name, strconv.Itoa(i+1)))
		if err != nil {
			key := "secret"
			if c.SecretFile != "" {
				key = "secretFile"
			}
			problems = append(problems, &config.Problem{Path: "credentials[" + strconv.Itoa(i) + "]." + key, What: err.Error()})
			continue
		}
		p.credentials = append(p.credentials, made)
	}
	if len(p.credentials) == 0 {
		p.credentials = []*Credential{{provider: p, name: "none", weight: 1, models: map[string]*health{}}}
	}
	return p, problems
}

// Close ends the metrics of the provider. What is under way may go on.
func (p *Provider) Close() { p.metrics.remove(p) }

// Name is the provider's name.
func (p *Provider) Name() string { return p.name }

// Format prints the name under every verb: fmt would print what is inside.
func (p *Provider) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("provider " + p.name)) }

// LogValue keeps everything but the name out of logs.
func (p *Provider) LogValue() slog.Value { return slog.StringValue(p.name) }

// Config is what the provider was built from.
func (p *Provider) Config() config.Provider { return p.cfg }

// Quirks are the ways of the server, if it is compatible with OpenAI's.
func (p *Provider) Quirks() Quirks { return p.quirks }

// isLocal says whether a host of a base URL is this machine by its name.
func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// need is what an operation wants of a provider.
type need uint8

const (
	needNone need = iota
	needChat      // in whatever dialect
	needResponses
	needCompletions
	needEmbeddings
	needMedia // images, audio, moderations
	needRerank
	needCount // of tokens, before a request
	needOther // a path that is passed on
)

// needOf goes by the operation's name, so that a new operation of llm is
// refused here until it has a row.
func needOf(op llm.Op) need {
	switch op.String() {
	case "chat", "messages", "generate":
		return needChat
	case "responses":
		return needResponses
	case "completions":
		return needCompletions
	case "embeddings":
		return needEmbeddings
	case "images", "moderations", "speech", "transcription":
		return needMedia
	case "rerank":
		return needRerank
	case "embed_content", "embed_contents":
		return needEmbeddings
	case "count_tokens", "count_contents":
		return needCount
	case "other":
		return needOther
	}
	return needNone
}

// Speaks says in which dialect the provider serves an operation; the body is
// translated where the client's is another. false: not at all.
func (p *Provider) Speaks(op llm.Op) (llm.Dialect, bool) {
	chat := llm.DialectOpenAI
	switch p.cfg.Dialect {
	case config.ProviderAnthropic:
		chat = llm.DialectAnthropic
	case config.ProviderGemini, config.ProviderVertex:
		chat = llm.DialectGemini
	case config.ProviderBedrock:
		chat = llm.DialectBedrock
	}
	compatible := p.cfg.Dialect == config.ProviderOpenAI || p.cfg.Dialect == config.ProviderAzure
	switch needOf(op) {
	case needChat:
		return chat, true
	case needResponses:
		if compatible && p.quirks.Responses {
			return llm.DialectResponses, true
		}
		return chat, true
	case needCompletions, needMedia, needOther:
		return llm.DialectOpenAI, compatible
	case needEmbeddings:
		switch p.cfg.Dialect {
		case config.ProviderGemini:
			return llm.DialectGemini, true
		case config.ProviderVertex:
			return llm.DialectPredict, true
		}
		return llm.DialectOpenAI, compatible || p.cfg.Dialect == config.ProviderCohere
	case needRerank:
		return llm.DialectOpenAI, compatible || p.cfg.Dialect == config.ProviderCohere
	case needCount:
		if p.quirks.Name == "openai" {
			return llm.DialectResponses, true
		}
		return chat, chat == llm.DialectAnthropic || chat == llm.DialectGemini || chat == llm.DialectBedrock
	}
	return 0, false
}

// SpeaksModel is Speaks for one model. It differs on Vertex AI, where the
// publisher of a model decides: Anthropic's (claude-…) are spoken to in its own
// dialect, those of others (meta/…) in OpenAI's; and on Bedrock, which counts the
// tokens of Anthropic's models only.
func (p *Provider) SpeaksModel(op llm.Op, model string) (llm.Dialect, bool) {
	if n := needOf(op); p.cfg.Dialect == config.ProviderVertex {
		chat := n == needChat || n == needResponses
		switch publisher, _, named := strings.Cut(model, "/"); {
		case strings.HasPrefix(claude(model), "claude"):
			return llm.DialectAnthropic, chat || n == needCount
		case named && publisher != "google" && publisher != "publishers" && publisher != "models":
			return llm.DialectOpenAI, chat
		}
	}
	d, ok := p.Speaks(op)
	if d == llm.DialectBedrock && needOf(op) == needCount {
		ok = strings.Contains(model, "anthropic")
	}
	return d, ok
}

// Failure is an error of which the provider knows what it means. [Classify]
// gives its Verdict.
type Failure struct {
	Verdict Verdict
	Err     error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// ErrTimeout is what the caller gives to [Classify] when a bound of its own on
// a phase has passed: connect, first token, idle.
var ErrTimeout = errors.New("the provider took too long")
