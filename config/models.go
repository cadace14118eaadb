// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

// Model is a name that clients may ask for.
type Model struct {
	// Name may hold one *, which stands for anything: gpt-*. An exact name wins
	// over patterns, then the longest one.
	Name string `yaml:"name"`
	// Alias resolves this name to another model of the list; then nothing
	// else is set.
	Alias   string   `yaml:"alias"`
	Targets []Target `yaml:"targets"`
	// Fallbacks follow when every target has failed, or none can serve a request.
	Fallbacks []Fallback `yaml:"fallbacks"`
	// Degraded is the answer of last resort; nil: the error is told.
	Degraded *Degraded `yaml:"degraded"`
	// ReportModel says which name answers carry: "asked" (default) or "served".
	ReportModel string `yaml:"reportModel" enum:"asked|served"`
	// Affinity keeps a tenant's prompts that begin alike at one of several equal
	// targets, whose caches then know them: "auto" (default, where no weight is
	// set) or "none".
	Affinity string `yaml:"affinity" enum:"auto|none"`
	// MaxCost leaves out targets at which a request may cost more, by the estimate
	// of its prompt and the bound on its answer; nil: none.
	MaxCost  *USD     `yaml:"maxCost"`
	Timeouts Timeouts `yaml:"timeouts" unset:"inherit"` // unset fields: Config.Timeouts
	Retries  Retries  `yaml:"retries" unset:"inherit"`  // unset fields: Config.Retries
}

// Target is one place that serves a model: a pool, or a managed provider.
type Target struct {
	Pool         string         `yaml:"pool"`
	Provider     string         `yaml:"provider"`
	Model        string         `yaml:"model"`                        // upstream model name; empty: the name that was asked for, aliases resolved; a * in it: what the * of the model's name stands for
	Weight       *int           `yaml:"weight" min:"0" max:"1000000"` // share among the targets of one priority; nil: 1; 0: none
	Priority     int            `yaml:"priority" min:"0" max:"1000"`  // lower ones are tried first
	When         string         `yaml:"when"`                         // CEL over what is known of the request; empty: always
	Defaults     map[string]any `yaml:"defaults"`                     // members of the body that a client may set otherwise
	Overrides    map[string]any `yaml:"overrides"`                    // members of the body that a client may not
	Capabilities *Capabilities  `yaml:"capabilities"`
	Timeouts     Timeouts       `yaml:"timeouts" unset:"inherit"` // unset fields: the model's
}

// Capabilities are what a target can do. What is unset is not known, and no
// request is kept away for it, but for regions.
type Capabilities struct {
	Context    int      `yaml:"context" min:"0" max:"1000000000"` // tokens of prompt and answer; 0: unknown
	Output     int      `yaml:"output" min:"0" max:"1000000000"`  // tokens of an answer; 0: unknown
	Modalities []string `yaml:"modalities"`                       // text, image, audio, file; nil: unknown
	Tools      *bool    `yaml:"tools"`
	Structured *bool    `yaml:"structured"` // JSON mode and schemas
	Regions    []string `yaml:"regions"`    // where requests are processed; nil: the provider's region
}

// FallbackClass is a class of failures.
type FallbackClass string

// The classes.
const (
	FallbackGeneral       FallbackClass = "general"       // whatever another target may do better
	FallbackContextWindow FallbackClass = "contextWindow" // the prompt is too long there
	FallbackContentPolicy FallbackClass = "contentPolicy" // it refuses the content
)

// Fallback is a target, or another model with all of its targets, for failures
// of some classes. Exactly one of Pool, Provider and VirtualModel is set.
type Fallback struct {
	On           []FallbackClass `yaml:"on"` // nil: general
	VirtualModel string          `yaml:"virtualModel"`
	Pool         string          `yaml:"pool"`
	Provider     string          `yaml:"provider"`
	Model        string          `yaml:"model"`
	When         string          `yaml:"when"`
	Defaults     map[string]any  `yaml:"defaults"`
	Overrides    map[string]any  `yaml:"overrides"`
	Capabilities *Capabilities   `yaml:"capabilities"`
	Timeouts     Timeouts        `yaml:"timeouts" unset:"inherit"`
}

// Target is the fallback as a target; for one without VirtualModel.
func (f *Fallback) Target() Target {
	return Target{
		Pool: f.Pool, Provider: f.Provider, Model: f.Model, When: f.When,
		Defaults: f.Defaults, Overrides: f.Overrides, Capabilities: f.Capabilities, Timeouts: f.Timeouts,
	}
}

// Degraded is an answer made by the gateway when nobody else answers.
type Degraded struct {
	Text string `yaml:"text"`
}

// Retries bound the attempts at one request.
type Retries struct {
	Attempts  int      `yaml:"attempts" default:"3" min:"1" max:"100"`    // in all, the first and those at fallbacks included; default 3
	PerTarget int      `yaml:"perTarget" default:"2" min:"1" max:"100"`   // at one provider; default 2
	Budget    float64  `yaml:"budget" default:"0.2" min:"0" max:"10"`     // retries per request over the last 10s, at least 10 in that time; default 0.2
	Backoff   Duration `yaml:"backoff" default:"200ms" min:"0s" max:"1m"` // before the second attempt at one provider, with jitter; doubles; default 200ms
	MaxWait   Duration `yaml:"maxWait" default:"10s" min:"0s" max:"10m"`  // the longest wait that a provider may ask for; default 10s
	Within    Duration `yaml:"within" default:"1m" min:"0s" max:"24h"`    // no further attempt at a provider after so long; default 1m
}

// Tenant is who asks, with its keys: an organisation, a team or a project. What
// a parent does not allow, those below it may not do either.
type Tenant struct {
	Name     string            `yaml:"name"`
	Kind     string            `yaml:"kind" enum:"organisation|team|project"` // empty: the one below the parent's
	Parent   string            `yaml:"parent"`                                // path of the one above: acme, or acme/search; empty: none
	Tier     string            `yaml:"tier"`                                  // empty: the parent's
	Regions  []string          `yaml:"regions"`                               // the only ones in which its requests may be processed; nil: any
	Models   []string          `yaml:"models"`                                // that may be asked for, names or patterns with one *; nil: every model
	Deny     []string          `yaml:"deny"`                                  // that may not, whatever Models says
	Sources  []string          `yaml:"sources"`                               // CIDR blocks or addresses of clients; nil: any
	Metadata map[string]string `yaml:"metadata"`
	Limits   []Limit           `yaml:"limits"` // of all its keys together
	Users    *Users            `yaml:"users"`  // nil: end users are not told apart
	Keys     []Key             `yaml:"keys"`
}

// Key lets a client in. The gateway knows its digest only.
type Key struct {
	Name   string   `yaml:"name"`
	Hash   string   `yaml:"hash" private:"true"` // sha256:HEX, the digest of the whole key
	Tier   string   `yaml:"tier"`                // empty: the tenant's
	Models []string `yaml:"models"`              // names or patterns with one *; nil: every model
	// Secrets are further digests by which the key is known, for rotation.
	Secrets   []KeySecret       `yaml:"secrets" private:"true"`
	Limits    []Limit           `yaml:"limits"` // besides those of the tenant
	Deny      []string          `yaml:"deny"`
	Sources   []string          `yaml:"sources"`
	NotBefore string            `yaml:"notBefore"` // time, RFC 3339, or a date; empty: from the start
	Expires   string            `yaml:"expires"`   // likewise; empty: never
	Disabled  bool              `yaml:"disabled"`
	Metadata  map[string]string `yaml:"metadata"`
}

// KeySecret is one of several digests of a key.
type KeySecret struct {
	Hash      string `yaml:"hash" private:"true"`
	NotBefore string `yaml:"notBefore"`
	Expires   string `yaml:"expires"` // the end of its grace
}
