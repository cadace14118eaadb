// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"regexp"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// mediaType is what every gRPC request says of its body; routes for gRPC and
// for other HTTP share hosts by it.
func mediaType() config.FieldMatch {
	return config.FieldMatch{Name: "content-type", Type: "regex", Value: `application/grpc([+;].*)?`}
}

// compileGRPCRoute turns a GRPCRoute into rules of HTTP: a method is the path
// "/service/method".
func (t *translation) compileGRPCRoute(r *gatewayv1.GRPCRoute) *compiled {
	c := &compiled{name: grpcRouteName(nameOf(r))}
	self := kindRef{gatewayGroup, kindGRPCRoute, nameOf(r)}
	for i := range r.Spec.Rules {
		spec := &r.Spec.Rules[i]
		rule := config.HTTPRule{Name: c.ruleName(spec.Name)}
		bad := grpcMatches(spec.Matches, &rule)
		if bad = cmp.Or(bad, c.expressions(&rule)); bad != nil {
			rule.Matches = nil
		}
		f := filters{t: t, self: self, c: c, rule: &rule}
		list, unknown := grpcFilters(spec.Filters)
		bad = cmp.Or(bad, unknown, f.all(list))
		if bad == nil && spec.SessionPersistence != nil {
			bad = unsupported("sessionPersistence is not supported")
		}
		for _, b := range spec.BackendRefs {
			own, unknown := grpcFilters(b.Filters)
			backend, fault := f.backend(b.BackendRef, own, true)
			bad = cmp.Or(bad, unknown, fault)
			rule.Backends = append(rule.Backends, backend)
		}
		rule.Backends = someWeight(rule.Backends)
		c.add(i, rule, bad)
	}
	return c.seal(len(r.Spec.Rules))
}

// grpcFilters are the filters as those of an HTTPRoute, which they are a part
// of.
func grpcFilters(list []gatewayv1.GRPCRouteFilter) ([]gatewayv1.HTTPRouteFilter, *problem) {
	out := make([]gatewayv1.HTTPRouteFilter, 0, len(list))
	for _, f := range list {
		switch f.Type {
		case gatewayv1.GRPCRouteFilterRequestHeaderModifier, gatewayv1.GRPCRouteFilterResponseHeaderModifier,
			gatewayv1.GRPCRouteFilterRequestMirror, gatewayv1.GRPCRouteFilterExtensionRef:
		default:
			return nil, unsupported("filter %s is not supported", f.Type)
		}
		out = append(out, gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return out, nil
}

func grpcMatches(list []gatewayv1.GRPCRouteMatch, rule *config.HTTPRule) *problem {
	if len(list) == 0 {
		list = []gatewayv1.GRPCRouteMatch{{}}
	}
	for _, m := range list {
		out := config.HTTPMatch{Path: config.PathMatch{Type: "prefix", Value: "/"}}
		if m.Method != nil {
			path, bad := grpcPath(m.Method)
			if bad = cmp.Or(bad, checkPathMatch(path)); bad != nil {
				return bad
			}
			out.Path = path
		}
		for _, h := range m.Headers {
			f := config.FieldMatch{Name: strings.ToLower(string(h.Name)), Type: matchType(string(deref(h.Type, gatewayv1.GRPCHeaderMatchExact))), Value: h.Value}
			if bad := appendMatch(&out.Headers, f, true); bad != nil {
				return bad
			}
		}
		if bad := appendMatch(&out.Headers, mediaType(), true); bad != nil {
			return bad
		}
		rule.Matches = append(rule.Matches, out)
	}
	return nil
}

// grpcName is a name of a protobuf service or method.
var grpcName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

func grpcPath(m *gatewayv1.GRPCMethodMatch) (config.PathMatch, *problem) {
	service, method := deref(m.Service, ""), deref(m.Method, "")
	switch kind := deref(m.Type, gatewayv1.GRPCMethodMatchExact); {
	case service == "" && method == "":
		return config.PathMatch{Type: "prefix", Value: "/"}, nil
	case kind == gatewayv1.GRPCMethodMatchRegularExpression:
		// One alternative may not reach over the slash to the other half.
		part := func(s string) string {
			if s == "" {
				return "[^/]+"
			}
			return "(?:" + s + ")"
		}
		for _, expr := range []string{service, method} {
			if bad := checkRegex("method match", expr); bad != nil {
				return config.PathMatch{}, bad
			}
		}
		return config.PathMatch{Type: "regex", Value: "^/" + part(service) + "/" + part(method) + "$"}, nil
	case kind != gatewayv1.GRPCMethodMatchExact:
		return config.PathMatch{}, unsupported("method match of type %s is not supported", kind)
	case service != "" && !grpcName.MatchString(service), method != "" && !grpcName.MatchString(method):
		return config.PathMatch{}, unsupported("method match %q, %q is not of names", service, method)
	case method == "":
		return config.PathMatch{Type: "prefix", Value: "/" + service}, nil
	case service == "":
		return config.PathMatch{Type: "regex", Value: "^/[^/]+/" + regexp.QuoteMeta(method) + "$"}, nil
	}
	return config.PathMatch{Type: "exact", Value: "/" + service + "/" + method}, nil
}
