// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// This file is routing as the Kubernetes Gateway API has it (HTTPRoute and
// GRPCRoute v1): any request by host, path, method, header and query, to pools.
// [Route] is the other kind: the model APIs, whose target the request's body
// names.

// Section is a part of a [Listener] with hosts of its own: a listener in the
// words of the Gateway API, several of which share an address. A request
// belongs to the most specific section for its host, and over TLS the
// handshake's server name chooses the section first.
type Section struct {
	Name string     `yaml:"name"`
	Host string     `yaml:"host"` // exact, "*.suffix", or empty for every host
	TLS  *ServerTLS `yaml:"tls"`  // set in all sections of a listener or in none
}

// Attachment is where a route is served.
type Attachment struct {
	Listener string   `yaml:"listener"`
	Section  string   `yaml:"section"` // empty: the whole listener
	Hosts    []string `yaml:"hosts"`   // exact or "*.suffix", each within the section's; nil: every host of the section
}

// HTTPRoute serves any HTTP request. Where several routes match, the one with
// the longer exact host, then the longer host, wins; among those by its rule's
// match: exact path, then an expression, then the longest prefix, then a method,
// then more headers, then more query parameters; then the earlier route of the
// list, then the earlier rule.
type HTTPRoute struct {
	Name    string       `yaml:"name"`
	Parents []Attachment `yaml:"parents"`
	Rules   []HTTPRule   `yaml:"rules"`
}

// HTTPRule is what becomes of requests that match.
type HTTPRule struct {
	Name     string        `yaml:"name"`
	Matches  []HTTPMatch   `yaml:"matches"` // any of them; nil: every path
	Filters  HTTPFilters   `yaml:"filters"`
	Backends []HTTPBackend `yaml:"backends"` // none, and no redirect: 500
	Timeouts HTTPTimeouts  `yaml:"timeouts"`
	Retry    *HTTPRetry    `yaml:"retry"` // nil: only connections that could not be made are tried again
}

// HTTPMatch holds when all of its parts do.
type HTTPMatch struct {
	Path    PathMatch    `yaml:"path"`
	Method  string       `yaml:"method"` // empty: any
	Headers []FieldMatch `yaml:"headers"`
	Query   []FieldMatch `yaml:"query"`
}

// PathMatch compares the path: whole elements for a prefix, the whole path for
// the others.
type PathMatch struct {
	Type  string `yaml:"type" default:"prefix" enum:"exact|prefix|regex"`
	Value string `yaml:"value" default:"/"` // RE2 for regex
}

// FieldMatch compares a header field, without regard to the case of its name,
// or a query parameter.
type FieldMatch struct {
	Name  string `yaml:"name"`
	Type  string `yaml:"type" default:"exact" enum:"exact|regex"`
	Value string `yaml:"value"`
}

// HTTPFilters change a request or its answer, or give the answer.
type HTTPFilters struct {
	RequestHeaders  *FieldEdits `yaml:"requestHeaders"`
	ResponseHeaders *FieldEdits `yaml:"responseHeaders"`
	Redirect        *Redirect   `yaml:"redirect"` // no backends then
	Rewrite         *Rewrite    `yaml:"rewrite"`
	Mirrors         []Mirror    `yaml:"mirrors"`
	CORS            *CORS       `yaml:"cors"`
}

// FieldEdits are carried out in the order remove, set, add.
type FieldEdits struct {
	Set    []Field  `yaml:"set"`
	Add    []Field  `yaml:"add"`
	Remove []string `yaml:"remove"`
}

// Field is one header field.
type Field struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

// shown is the field as it is printed: without the value, if the name says that
// it lets somebody in.
func (f Field) shown() Field {
	name := strings.ToLower(f.Name)
	for _, word := range [...]string{"auth", "cookie", "key", "token", "secret", "password", "credential"} {
		if strings.Contains(name, word) && f.Value != "" {
			f.Value = placeholder
			break
		}
	}
	return f
}

// Format covers the verbs of fmt.
func (f Field) Format(s fmt.State, _ rune) { _, _ = fmt.Fprintf(s, "{%s %s}", f.Name, f.shown().Value) }

// Redirect answers with a Location. What is empty stays as it was asked.
type Redirect struct {
	Scheme string       `yaml:"scheme" enum:"http|https"`
	Host   string       `yaml:"host"`
	Port   int          `yaml:"port" min:"0" max:"65535"` // 0: the scheme's own if one is set, else the listener's
	Path   *PathRewrite `yaml:"path"`
	Status int          `yaml:"status" default:"302" min:"300" max:"399"`
}

// PathRewrite replaces the path, or the prefix that the rule matched.
type PathRewrite struct {
	Full   *string `yaml:"full"`
	Prefix *string `yaml:"prefix"`
}

// Rewrite changes what the backend is asked.
type Rewrite struct {
	Host string       `yaml:"host"`
	Path *PathRewrite `yaml:"path"`
}

// Mirror sends a copy of a share of the requests, whose answers are dropped.
type Mirror struct {
	Pool string `yaml:"pool"`
	// Numerator and Denominator are the share. A source that means none leaves
	// the mirror out: zero is the default's here.
	Numerator   int `yaml:"numerator" default:"100" min:"0" max:"1000000000"`
	Denominator int `yaml:"denominator" default:"100" min:"1" max:"1000000000"`
}

// CORS answers preflight requests and marks answers (Fetch standard).
type CORS struct {
	AllowOrigins     []string `yaml:"allowOrigins"` // "*", exact, or with "*" as the leftmost labels of the host
	AllowCredentials bool     `yaml:"allowCredentials"`
	AllowMethods     []string `yaml:"allowMethods"` // "*" is all
	AllowHeaders     []string `yaml:"allowHeaders"`
	ExposeHeaders    []string `yaml:"exposeHeaders"`
	MaxAge           Duration `yaml:"maxAge" default:"5s" min:"1s" max:"24h"`
}

// HTTPBackend is one place that requests go to: a pool, or a status that stands
// for a backend that cannot be had.
type HTTPBackend struct {
	Pool            string      `yaml:"pool"`
	Status          int         `yaml:"status" min:"0" max:"599"` // only without a pool
	Weight          *int        `yaml:"weight" min:"0" max:"1000000"`
	RequestHeaders  *FieldEdits `yaml:"requestHeaders"`
	ResponseHeaders *FieldEdits `yaml:"responseHeaders"`
}

// HTTPTimeouts end a request with 504.
type HTTPTimeouts struct {
	Request Duration `yaml:"request" min:"0s" max:"168h"` // the whole, retries included; 0: timeouts.total
	Backend Duration `yaml:"backend" min:"0s" max:"168h"` // one attempt up to its end; 0: none
}

// HTTPRetry says when another attempt follows besides connections that could
// not be made.
type HTTPRetry struct {
	Codes    []int    `yaml:"codes"`                                    // statuses of the backend, 400 to 599
	Attempts int      `yaml:"attempts" default:"1" min:"0" max:"100"`   // besides the first
	Backoff  Duration `yaml:"backoff" default:"25ms" min:"0s" max:"1m"` // before the first retry; doubles
}
