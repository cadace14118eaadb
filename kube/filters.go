// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// filters compiles the filters and backends of one rule.
type filters struct {
	t    *translation
	self kindRef
	c    *compiled
	rule *config.HTTPRule
	// prefix says that the rule has exactly one match and that it is a prefix,
	// which ReplacePrefixMatch needs.
	prefix bool
}

// unresolved notes the first reference that cannot be followed.
func (f *filters) unresolved(p *problem) {
	if f.c.unresolved == nil {
		f.c.unresolved = p
	}
}

func (f *filters) httpRoute(spec *gatewayv1.HTTPRouteRule) *problem {
	f.prefix = len(spec.Matches) == 0 || len(spec.Matches) == 1 &&
		(spec.Matches[0].Path == nil || deref(spec.Matches[0].Path.Type, gatewayv1.PathMatchPathPrefix) == gatewayv1.PathMatchPathPrefix)
	return f.all(spec.Filters)
}

// all compiles the filters of a rule. All but RequestMirror may stand there
// once.
func (f *filters) all(list []gatewayv1.HTTPRouteFilter) *problem {
	out := &f.rule.Filters
	seen := map[gatewayv1.HTTPRouteFilterType]bool{}
	for i := range list {
		spec := &list[i]
		if seen[spec.Type] && spec.Type != gatewayv1.HTTPRouteFilterRequestMirror {
			return unsupported("filter %s is there twice", spec.Type)
		}
		seen[spec.Type] = true
		if bad := f.one(spec, out); bad != nil {
			return bad
		}
	}
	if out.Redirect != nil && out.Rewrite != nil {
		return &problem{string(gatewayv1.RouteReasonIncompatibleFilters), "RequestRedirect and URLRewrite exclude each other"}
	}
	return nil
}

func (f *filters) one(spec *gatewayv1.HTTPRouteFilter, out *config.HTTPFilters) (bad *problem) {
	empty := func(absent bool) bool {
		if absent {
			bad = unsupported("filter %s says nothing", spec.Type)
		}
		return absent
	}
	switch spec.Type {
	case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
		if !empty(spec.RequestHeaderModifier == nil) {
			out.RequestHeaders, bad = edits(spec.RequestHeaderModifier)
		}
	case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
		if !empty(spec.ResponseHeaderModifier == nil) {
			out.ResponseHeaders, bad = edits(spec.ResponseHeaderModifier)
		}
	case gatewayv1.HTTPRouteFilterRequestRedirect:
		if !empty(spec.RequestRedirect == nil) {
			out.Redirect, bad = f.redirect(spec.RequestRedirect)
		}
	case gatewayv1.HTTPRouteFilterURLRewrite:
		if !empty(spec.URLRewrite == nil) {
			out.Rewrite, bad = f.rewrite(spec.URLRewrite)
		}
	case gatewayv1.HTTPRouteFilterRequestMirror:
		if !empty(spec.RequestMirror == nil) {
			bad = f.mirror(spec.RequestMirror, out)
		}
	case gatewayv1.HTTPRouteFilterCORS:
		if !empty(spec.CORS == nil) {
			out.CORS, bad = cors(spec.CORS)
		}
	case gatewayv1.HTTPRouteFilterExtensionRef:
		name := "nothing"
		if spec.ExtensionRef != nil {
			name = fmt.Sprintf("%s %s of group %q", spec.ExtensionRef.Kind, spec.ExtensionRef.Name, spec.ExtensionRef.Group)
		}
		f.unresolved(&problem{string(gatewayv1.RouteReasonInvalidKind), "filter ExtensionRef to " + name + " is not supported"})
		bad = unsupported("filter ExtensionRef to %s is not supported", name)
	default:
		bad = unsupported("filter %s is not supported", spec.Type)
	}
	return bad
}

// edits are those of a header modifier.
func edits(spec *gatewayv1.HTTPHeaderFilter) (*config.FieldEdits, *problem) {
	out := &config.FieldEdits{}
	for _, list := range []struct {
		from []gatewayv1.HTTPHeader
		to   *[]config.Field
	}{{spec.Set, &out.Set}, {spec.Add, &out.Add}} {
		for _, h := range list.from {
			name := string(h.Name)
			if !isToken(name) || !isFieldValue(h.Value) {
				return nil, unsupported("header %q: %q is not a header field", name, h.Value)
			}
			// "Subsequent entries with an equivalent header name MUST be ignored."
			if !slices.ContainsFunc(*list.to, func(f config.Field) bool { return strings.EqualFold(f.Name, name) }) {
				*list.to = append(*list.to, config.Field{Name: name, Value: h.Value})
			}
		}
	}
	for _, name := range spec.Remove {
		if !isToken(name) {
			return nil, unsupported("%q is not a header name", name)
		}
		if !slices.ContainsFunc(out.Remove, func(s string) bool { return strings.EqualFold(s, name) }) {
			out.Remove = append(out.Remove, name)
		}
	}
	if out.Set == nil && out.Add == nil && out.Remove == nil {
		return nil, nil
	}
	return out, nil
}

func (f *filters) pathRewrite(spec *gatewayv1.HTTPPathModifier) (*config.PathRewrite, *problem) {
	if spec == nil {
		return nil, nil
	}
	value, out := spec.ReplaceFullPath, &config.PathRewrite{}
	if spec.Type == gatewayv1.PrefixMatchHTTPPathModifier {
		value = spec.ReplacePrefixMatch
	}
	text := deref(value, "")
	if text != "" && !isPath(text) {
		return nil, unsupported("%q is not a path", text)
	}
	switch spec.Type {
	case gatewayv1.FullPathHTTPPathModifier:
		if text == "" {
			text = "/"
		}
		out.Full = &text
	case gatewayv1.PrefixMatchHTTPPathModifier:
		if !f.prefix {
			return nil, unsupported("ReplacePrefixMatch needs one match, of type PathPrefix")
		}
		out.Prefix = &text
	default:
		return nil, unsupported("path modifier of type %s is not supported", spec.Type)
	}
	return out, nil
}

func (f *filters) redirect(spec *gatewayv1.HTTPRequestRedirectFilter) (*config.Redirect, *problem) {
	path, bad := f.pathRewrite(spec.Path)
	out := &config.Redirect{
		Scheme: deref(spec.Scheme, ""), Host: strings.ToLower(string(deref(spec.Hostname, ""))),
		Port: int(deref(spec.Port, 0)), Path: path, Status: deref(spec.StatusCode, 302),
	}
	switch {
	case bad != nil:
		return nil, bad
	case out.Scheme != "" && out.Scheme != "http" && out.Scheme != "https":
		return nil, unsupported("requestRedirect.scheme %q is not http or https", out.Scheme)
	case out.Host != "" && !isPreciseHost(out.Host):
		return nil, unsupported("requestRedirect.hostname %q is not a host name", out.Host)
	case out.Port < 0 || out.Port > 65535:
		return nil, unsupported("requestRedirect.port %d is not a port", out.Port)
	case !slices.Contains([]int{301, 302, 303, 307, 308}, out.Status):
		return nil, unsupported("requestRedirect.statusCode %d is not supported", out.Status)
	}
	return out, nil
}

func (f *filters) rewrite(spec *gatewayv1.HTTPURLRewriteFilter) (*config.Rewrite, *problem) {
	path, bad := f.pathRewrite(spec.Path)
	out := &config.Rewrite{Host: strings.ToLower(string(deref(spec.Hostname, ""))), Path: path}
	switch {
	case bad != nil:
		return nil, bad
	case out.Host != "" && !isPreciseHost(out.Host):
		return nil, unsupported("urlRewrite.hostname %q is not a host name", out.Host)
	case out.Host == "" && path == nil:
		return nil, nil
	}
	return out, nil
}

// mirror adds a mirror. One whose backend cannot be had is left out, with
// ResolvedRefs saying so: "this BackendRef must be dropped from the Gateway".
func (f *filters) mirror(spec *gatewayv1.HTTPRequestMirrorFilter, out *config.HTTPFilters) *problem {
	m := config.Mirror{Numerator: 100, Denominator: 100}
	switch {
	case spec.Percent != nil && spec.Fraction != nil:
		return unsupported("requestMirror has percent and fraction")
	case spec.Percent != nil:
		m.Numerator = int(*spec.Percent)
	case spec.Fraction != nil:
		m.Numerator, m.Denominator = int(spec.Fraction.Numerator), int(deref(spec.Fraction.Denominator, 100))
	}
	if m.Denominator < 1 || m.Numerator < 0 || m.Numerator > m.Denominator || m.Denominator > 1_000_000_000 {
		return unsupported("requestMirror: %d of %d is not a share", m.Numerator, m.Denominator)
	}
	b, bad := f.t.resolveBackend(f.self, spec.BackendRef, f.self.kind == kindGRPCRoute)
	if bad != nil {
		f.unresolved(bad)
		return nil
	}
	f.uses(b)
	if m.Numerator > 0 && b.status == 0 {
		m.Pool = b.pool.Name
		out.Mirrors = append(out.Mirrors, m)
	}
	return nil
}

// uses notes a backend of the route once.
func (f *filters) uses(b *backend) {
	if !slices.Contains(f.c.backends, b) {
		f.c.backends = append(f.c.backends, b)
	}
}

// backend compiles one of backendRefs. One that cannot be had takes its share
// of the requests all the same, which get 500.
func (f *filters) backend(ref gatewayv1.BackendRef, list []gatewayv1.HTTPRouteFilter, grpc bool) (config.HTTPBackend, *problem) {
	out := config.HTTPBackend{}
	if w := deref(ref.Weight, 1); w < 0 || w > 1_000_000 {
		return out, unsupported("weight %d is not from 0 to 1000000", w)
	} else if w != 1 {
		out.Weight = new(int(w))
	}
	var edits config.HTTPFilters
	for i := range list {
		switch list[i].Type {
		case gatewayv1.HTTPRouteFilterRequestHeaderModifier, gatewayv1.HTTPRouteFilterResponseHeaderModifier:
		default:
			return out, unsupported("filter %s is not supported at a backendRef", list[i].Type)
		}
		if bad := f.one(&list[i], &edits); bad != nil {
			return out, bad
		}
	}
	out.RequestHeaders, out.ResponseHeaders = edits.RequestHeaders, edits.ResponseHeaders
	b, bad := f.t.resolveBackend(f.self, ref.BackendObjectReference, grpc)
	if bad != nil {
		f.unresolved(bad)
		out.Status = 500
		return out, nil
	}
	f.uses(b)
	if out.Status = b.status; out.Status == 0 {
		out.Pool = b.pool.Name
	}
	return out, nil
}

// originForm is what a CORS origin may be besides "*": scheme, host and port,
// where a star may stand for the leftmost labels of the host.
var originForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)(:[0-9]{1,5})?$`)

func cors(spec *gatewayv1.HTTPCORSFilter) (*config.CORS, *problem) {
	out := &config.CORS{AllowCredentials: deref(spec.AllowCredentials, false)}
	for _, o := range spec.AllowOrigins {
		if o != "*" && !originForm.MatchString(string(o)) {
			return nil, unsupported("cors.allowOrigins: %q is not an origin", o)
		}
		out.AllowOrigins = append(out.AllowOrigins, string(o))
	}
	token := func(to *[]string, name string) bool {
		*to = append(*to, name)
		return name == "*" || isToken(name)
	}
	for _, m := range spec.AllowMethods {
		if !token(&out.AllowMethods, string(m)) {
			return nil, unsupported("cors.allowMethods: %q is not a method", m)
		}
	}
	for _, h := range spec.AllowHeaders {
		if !token(&out.AllowHeaders, string(h)) {
			return nil, unsupported("cors.allowHeaders: %q is not a header name", h)
		}
	}
	for _, h := range spec.ExposeHeaders {
		if !token(&out.ExposeHeaders, string(h)) {
			return nil, unsupported("cors.exposeHeaders: %q is not a header name", h)
		}
	}
	switch {
	case spec.MaxAge < 0:
		return nil, unsupported("cors.maxAge is negative")
	case spec.MaxAge > 0:
		// Browsers keep a preflight for a day at most.
		out.MaxAge = min(config.Duration(time.Duration(spec.MaxAge)*time.Second), config.Duration(24*time.Hour))
	}
	return out, nil
}

// Forms of what ends up on the wire. The API server has checked most of it;
// manifests from files come unchecked.

// isToken says whether s is a token of RFC 9110, as names and methods are.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7F || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isFieldValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F || r == 0xFFFD }) && strings.TrimSpace(s) == s
}

// isText is text without control characters, in UTF-8.
func isText(s string) bool {
	return strings.ToValidUTF8(s, "\x00") == s && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F })
}

// checkRegex says why what, an expression, cannot be matched.
func checkRegex(what, expr string) *problem {
	if _, err := config.Expression(expr); err != nil {
		return unsupported("%s %q is not a regular expression (RE2) to match: %v", what, expr, err)
	}
	return nil
}

// isPath says whether s can be a path that is matched or sent.
func isPath(s string) bool {
	// None of these is in a path of a request after it was normalised.
	unclean := strings.Contains(s, "//") || strings.Contains(s+"/", "/./") || strings.Contains(s+"/", "/../") || strings.Contains(strings.ToLower(s), "%2f")
	if !strings.HasPrefix(s, "/") || unclean || strings.ContainsAny(s, "?#\\") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F }) {
		return false
	}
	_, err := url.PathUnescape(s)
	return err == nil
}

func isPreciseHost(s string) bool { return isHost(s) && !strings.HasPrefix(s, "*") }

func checkPathMatch(m config.PathMatch) *problem {
	switch {
	case m.Type != "regex" && !isPath(m.Value):
		return unsupported("%q is not a path", m.Value)
	case m.Type == "regex" && !isText(m.Value):
		return unsupported("the path to match holds control characters")
	}
	return nil
}
