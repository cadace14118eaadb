// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// compiled is an HTTPRoute or a GRPCRoute as the data plane has it, for every
// Gateway alike.
type compiled struct {
	name       string
	names      []string // of rules
	rules      []config.HTTPRule
	backends   []*backend
	invalid    *problem // the whole route cannot be served
	dropped    []string // rules that cannot be served, and why
	unresolved *problem // the first reference that cannot be followed

	instructions int // of the regular expressions of rules, see [config.Expression]
}

// conditions of a route beside Accepted.
func (c *compiled) conditions(r *route, p *parent) []metav1.Condition {
	gen := r.object.GetGeneration()
	out := []metav1.Condition{condition(string(gatewayv1.RouteConditionResolvedRefs), gen, c.unresolved, string(gatewayv1.RouteReasonResolvedRefs), "all references are resolved")}
	if p.rejected == nil && len(c.dropped) > 0 {
		// "The message MUST start with the prefix Dropped Rule."
		out = append(out, condition(string(gatewayv1.RouteConditionPartiallyInvalid), gen, nil, string(gatewayv1.RouteReasonUnsupportedValue), "Dropped Rule "+strings.Join(c.dropped, "; ")))
	}
	return out
}

// add takes over a rule, or says why it cannot be served. A rule whose matches
// are understood keeps them and answers 500, for its requests must not fall to
// a rule that lacks its filters ("the filter MUST NOT be skipped").
func (c *compiled) add(i int, rule config.HTTPRule, bad *problem) {
	if bad == nil {
		c.rules = append(c.rules, rule)
		return
	}
	if c.invalid == nil {
		c.invalid = bad
	}
	c.dropped = append(c.dropped, fmt.Sprintf("%d: %s", i, bad.message))
	if rule.Matches != nil {
		c.rules = append(c.rules, config.HTTPRule{Name: rule.Name, Matches: rule.Matches, Backends: []config.HTTPBackend{{Status: 500}}})
	}
}

// ruleName is the name of a rule, for records. A name that is there already, or
// is none, is left out: the schema of v1.7 has them unique.
func (c *compiled) ruleName(name *gatewayv1.SectionName) string {
	s := string(deref(name, ""))
	if len(s) > longName || !longForm.MatchString(s) || slices.Contains(c.names, s) {
		return ""
	}
	c.names = append(c.names, s)
	return s
}

// expressions holds the regular expressions of a rule, and of the route so far,
// to what can be matched and may cost. Matches are compiled without.
func (c *compiled) expressions(rule *config.HTTPRule) *problem {
	var all []string
	for i := range rule.Matches {
		m := &rule.Matches[i]
		if m.Path.Type == "regex" {
			all = append(all, m.Path.Value)
		}
		for _, f := range slices.Concat(m.Headers, m.Query) {
			if f.Type == "regex" {
				all = append(all, f.Value)
			}
		}
	}
	sum := c.instructions
	for _, expr := range all {
		n, err := config.Expression(expr)
		if err != nil {
			return unsupported("%q is not a regular expression (RE2) to match: %v", expr, err)
		}
		sum += n
	}
	if sum > config.MaxRouteExpressions {
		return unsupported("the regular expressions of the route come to about %d instructions, and %d are the most", sum, config.MaxRouteExpressions)
	}
	c.instructions = sum
	return nil
}

// seal decides what rules that were dropped mean for the route: only where none
// is left it is not accepted.
func (c *compiled) seal(rules int) *compiled {
	if len(c.dropped) < rules {
		c.invalid = nil
	} else if c.invalid != nil {
		c.rules = nil
	}
	return c
}

func (t *translation) compileHTTPRoute(r *gatewayv1.HTTPRoute) *compiled {
	c := &compiled{name: objectName(nameOf(r))}
	self := kindRef{gatewayGroup, kindHTTPRoute, nameOf(r)}
	for i := range r.Spec.Rules {
		spec := &r.Spec.Rules[i]
		rule := config.HTTPRule{Name: c.ruleName(spec.Name)}
		bad := httpMatches(spec.Matches, &rule)
		if bad = cmp.Or(bad, c.expressions(&rule)); bad != nil {
			rule.Matches = nil
		}
		f := filters{t: t, self: self, c: c, rule: &rule}
		bad = cmp.Or(bad, f.httpRoute(spec), httpTimeouts(spec.Timeouts, &rule), httpRetry(spec.Retry, &rule))
		if bad == nil && spec.SessionPersistence != nil {
			bad = unsupported("sessionPersistence is not supported")
		}
		if rule.Filters.Redirect == nil {
			for _, b := range spec.BackendRefs {
				backend, fault := f.backend(b.BackendRef, b.Filters, false)
				bad = cmp.Or(bad, fault)
				rule.Backends = append(rule.Backends, backend)
			}
			rule.Backends = someWeight(rule.Backends)
		} else if len(spec.BackendRefs) > 0 {
			bad = cmp.Or(bad, &problem{string(gatewayv1.RouteReasonIncompatibleFilters), "RequestRedirect leaves nothing for backendRefs"})
		}
		if bad == nil && len(spec.Matches) == 0 {
			rule.Matches = nil // every path
		}
		c.add(i, rule, bad)
	}
	return c.seal(len(r.Spec.Rules))
}

// someWeight is the list if one of it has a weight; else nothing would ever be
// chosen, and requests get what a rule without backends gives.
func someWeight(list []config.HTTPBackend) []config.HTTPBackend {
	for _, b := range list {
		if deref(b.Weight, 1) > 0 {
			return list
		}
	}
	return nil
}

func unsupported(format string, args ...any) *problem {
	return &problem{string(gatewayv1.RouteReasonUnsupportedValue), fmt.Sprintf(format, args...)}
}

// httpMatches always gives a match: one for every path where the route has
// none, so that a rule that is dropped keeps its place.
func httpMatches(list []gatewayv1.HTTPRouteMatch, rule *config.HTTPRule) *problem {
	if len(list) == 0 {
		rule.Matches = []config.HTTPMatch{{Path: config.PathMatch{Type: "prefix", Value: "/"}}}
	}
	for _, m := range list {
		out := config.HTTPMatch{Path: config.PathMatch{Type: "prefix", Value: "/"}, Method: string(deref(m.Method, ""))}
		if m.Path != nil {
			kind, bad := pathType(deref(m.Path.Type, gatewayv1.PathMatchPathPrefix))
			out.Path = config.PathMatch{Type: kind, Value: deref(m.Path.Value, "/")}
			if bad = cmp.Or(bad, checkPathMatch(out.Path)); bad != nil {
				return bad
			}
		}
		if out.Method != "" && (!isToken(out.Method) || strings.ToUpper(out.Method) != out.Method) {
			return unsupported("method %q is none", out.Method)
		}
		for _, h := range m.Headers {
			f := config.FieldMatch{Name: strings.ToLower(string(h.Name)), Type: matchType(string(deref(h.Type, gatewayv1.HeaderMatchExact))), Value: h.Value}
			if bad := appendMatch(&out.Headers, f, true); bad != nil {
				return bad
			}
		}
		for _, q := range m.QueryParams {
			f := config.FieldMatch{Name: string(q.Name), Type: matchType(string(deref(q.Type, gatewayv1.QueryParamMatchExact))), Value: q.Value}
			if bad := appendMatch(&out.Query, f, false); bad != nil {
				return bad
			}
		}
		rule.Matches = append(rule.Matches, out)
	}
	return nil
}

func pathType(kind gatewayv1.PathMatchType) (string, *problem) {
	switch kind {
	case gatewayv1.PathMatchExact:
		return "exact", nil
	case gatewayv1.PathMatchPathPrefix:
		return "prefix", nil
	case gatewayv1.PathMatchRegularExpression:
		return "regex", nil
	}
	return "", unsupported("path match of type %s is not supported", kind)
}

func matchType(kind string) string {
	switch kind {
	case string(gatewayv1.HeaderMatchExact):
		return "exact"
	case string(gatewayv1.HeaderMatchRegularExpression):
		return "regex"
	}
	return kind // refused by appendMatch
}

// appendMatch adds a header or query match. "Subsequent entries with an
// equivalent name MUST be ignored."
func appendMatch(list *[]config.FieldMatch, f config.FieldMatch, header bool) *problem {
	switch {
	case f.Type != "exact" && f.Type != "regex":
		return unsupported("match of type %s is not supported", f.Type)
	case f.Name == "", header && !isToken(f.Name):
		return unsupported("%q is not a name of a header or query parameter", f.Name)
	case !isText(f.Name), header && !isFieldValue(f.Value), !isText(f.Value):
		return unsupported("the value to match of %q holds control characters", f.Name)
	}
	for _, e := range *list {
		if e.Name == f.Name {
			return nil
		}
	}
	*list = append(*list, f)
	return nil
}

// longest is the longest timeout that there is: "implementations that cannot
// completely disable the timeout MUST interpret zero as the longest possible
// value".
const longest = config.Duration(168 * time.Hour)

func httpTimeouts(spec *gatewayv1.HTTPRouteTimeouts, rule *config.HTTPRule) *problem {
	if spec == nil {
		return nil
	}
	if spec.Request != nil {
		d, ok := duration(*spec.Request)
		if !ok {
			return unsupported("timeouts.request %q is not a duration", *spec.Request)
		}
		if rule.Timeouts.Request = min(d, longest); d == 0 {
			rule.Timeouts.Request = longest
		}
	}
	if spec.BackendRequest != nil {
		d, ok := duration(*spec.BackendRequest)
		if !ok {
			return unsupported("timeouts.backendRequest %q is not a duration", *spec.BackendRequest)
		}
		rule.Timeouts.Backend = min(d, longest)
		if r := rule.Timeouts.Request; spec.Request != nil && rule.Timeouts.Backend > r {
			return unsupported("timeouts.backendRequest is longer than timeouts.request")
		}
	}
	return nil
}

// duration reads a duration of the Gateway API (GEP-2257).
func duration(s gatewayv1.Duration) (config.Duration, bool) {
	d, err := time.ParseDuration(string(s))
	return config.Duration(d), err == nil && d >= 0
}

func httpRetry(spec *gatewayv1.HTTPRouteRetry, rule *config.HTTPRule) *problem {
	if spec == nil {
		return nil
	}
	out := &config.HTTPRetry{Attempts: deref(spec.Attempts, 1), Backoff: config.Duration(25 * time.Millisecond)}
	if out.Attempts < 0 || out.Attempts > 100 {
		return unsupported("retry.attempts %d is not from 0 to 100", out.Attempts)
	}
	for _, code := range spec.Codes {
		if code < 400 || code > 599 {
			return unsupported("retry.codes: %d is not from 400 to 599", code)
		}
		out.Codes = append(out.Codes, int(code))
	}
	if spec.Backoff != nil {
		d, ok := duration(*spec.Backoff)
		if !ok || d > config.Duration(time.Minute) {
			return unsupported("retry.backoff %q is not a duration of at most 1m", *spec.Backoff)
		}
		out.Backoff = d
	}
	if out.Attempts > 0 {
		rule.Retry = out
	}
	return nil
}
