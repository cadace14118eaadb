// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// route is what HTTPRoute, GRPCRoute and Model have in common.
type route struct {
	object    metav1.Object
	self      kindRef
	parents   []gatewayv1.ParentReference
	hostnames []gatewayv1.Hostname
	previous  []gatewayv1.RouteParentStatus // as written
}

// attachment is one listener that a route attaches to.
type attachment struct {
	listener *listener
	hosts    []string // nil: every host of the listener
}

// parent is one parentRef of a route that leads to a Gateway of ours.
type parent struct {
	ref      gatewayv1.ParentReference
	scope    *scope
	attached []attachment
	rejected *problem
}

// hosts are the hostnames of a route in lower case, or why they cannot be.
func (r *route) hosts() ([]string, *problem) {
	var out []string
	for _, h := range r.hostnames {
		host := strings.ToLower(string(h))
		if !isHost(host) {
			return nil, &problem{string(gatewayv1.RouteReasonUnsupportedValue), fmt.Sprintf("hostname %q is not a host name", h)}
		}
		if !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	return out, nil
}

// parentsOf finds the listeners of each parent of ours that a route attaches
// to. invalid is what is wrong with the route in itself.
func (t *translation) parentsOf(r *route, invalid *problem) []*parent {
	hosts, bad := r.hosts()
	if bad != nil {
		invalid = bad
	}
	var out []*parent
	for _, ref := range r.parents {
		candidates, s, missing := t.parentListeners(r, ref)
		if s == nil {
			continue
		}
		p := &parent{ref: ref, scope: s}
		out = append(out, p)
		switch {
		case missing != nil:
			p.rejected = missing
		default:
			p.attached, p.rejected = t.attach(r, candidates, hosts)
		}
		if p.rejected == nil && invalid != nil {
			p.rejected, p.attached = invalid, nil
		}
	}
	return out
}

// parentListeners are the listeners that a parentRef speaks of; s is nil where
// the parent is none of ours.
func (t *translation) parentListeners(r *route, ref gatewayv1.ParentReference) (list []*listener, s *scope, missing *problem) {
	name := types.NamespacedName{Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(r.self.Namespace))), Name: string(ref.Name)}
	if deref(ref.Group, gatewayGroup) != gatewayGroup {
		return nil, nil, nil
	}
	switch deref(ref.Kind, kindGateway) {
	case kindGateway:
		if s = t.scopes[name]; s == nil {
			return nil, nil, nil
		}
		// Not those of ListenerSets: they are parents of their own.
		list = s.own
	case kindListenerSet:
		set := t.listenerSets[name]
		if set == nil {
			return nil, nil, nil
		}
		if s = set.scope; set.listeners == nil {
			return nil, s, &problem{string(gatewayv1.RouteReasonNoMatchingParent), "the ListenerSet is not attached to a Gateway"}
		}
		list = set.listeners
	default:
		return nil, nil, nil
	}
	out := make([]*listener, 0, len(list))
	for _, l := range list {
		if (ref.SectionName == nil || *ref.SectionName == "" || string(*ref.SectionName) == l.name) && (ref.Port == nil || *ref.Port == l.port) {
			out = append(out, l)
		}
	}
	if len(out) == 0 {
		return nil, s, &problem{string(gatewayv1.RouteReasonNoMatchingParent), "the parent has no listener of this sectionName and port; " + listenersOf(list)}
	}
	return out, s, nil
}

// listenersOf names listeners with their ports, for a message.
func listenersOf(list []*listener) string {
	const most = 8
	if len(list) == 0 {
		return "it has none"
	}
	var out []string
	for _, l := range list[:min(len(list), most)] {
		out = append(out, fmt.Sprintf("%s (%d)", l.name, l.port))
	}
	text := "it has " + strings.Join(out, ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// attach narrows listeners down to those that take the route. That a listener
// is not served itself is no matter: "Listener status does not impact
// successful attachment".
func (t *translation) attach(r *route, list []*listener, hosts []string) ([]attachment, *problem) {
	var out []attachment
	allowed := false
	for _, l := range list {
		if !l.admitsKind(r.self.group, r.self.kind) || !t.admitsNamespace(l.from, l.selector, l.owner().Namespace, r.self.Namespace) {
			continue
		}
		allowed = true
		if hosts == nil {
			out = append(out, attachment{listener: l})
			continue
		}
		var common []string
		for _, h := range hosts {
			if host, ok := intersect(l.host, h); ok && !slices.Contains(common, host) {
				common = append(common, host)
			}
		}
		if common != nil {
			out = append(out, attachment{listener: l, hosts: common})
		}
	}
	switch {
	case !allowed:
		return nil, &problem{string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf("no listener's allowedRoutes admits kind %s of namespace %s", r.self.kind, r.self.Namespace)}
	case out == nil:
		return nil, &problem{string(gatewayv1.RouteReasonNoMatchingListenerHostname), "no hostname of the route is one of a listener"}
	}
	return out, nil
}

// routeStatus writes an entry per parent of ours. more are conditions beside
// Accepted, for those that are attached or not (PartiallyInvalid is for those
// alone that are).
func (t *translation) routeStatus(r *route, parents []*parent, accepted string, more func(p *parent) []metav1.Condition) {
	ours := func(p gatewayv1.RouteParentStatus) bool { return p.ControllerName == ControllerName }
	if len(parents) == 0 && !slices.ContainsFunc(r.previous, ours) {
		return
	}
	s := t.status(r.self.kind, r.object)
	gen := r.object.GetGeneration()
	for _, p := range parents {
		conditions := []metav1.Condition{condition(string(gatewayv1.RouteConditionAccepted), gen, p.rejected, string(gatewayv1.RouteReasonAccepted), accepted)}
		s.Parents = append(s.Parents, gatewayv1.RouteParentStatus{
			ParentRef: p.ref, ControllerName: ControllerName, Conditions: append(conditions, more(p)...),
		})
	}
}

// inScope joins the parents of one Gateway: the attachments in the order of its
// listeners, and whether there is any. Each listener counts the route once,
// through however many parentRefs it came.
func inScope(parents []*parent) (scopes []*scope, attached map[*scope][]attachment) {
	attached = map[*scope][]attachment{}
	for _, p := range parents {
		if !slices.Contains(scopes, p.scope) {
			scopes = append(scopes, p.scope)
		}
		for _, a := range p.attached {
			list := attached[p.scope]
			i := slices.IndexFunc(list, func(o attachment) bool { return o.listener == a.listener })
			if i < 0 {
				a.listener.attached++
				attached[p.scope] = append(list, a)
			}
		}
	}
	return scopes, attached
}

// configAttachments are the attachments to listeners that are served.
func configAttachments(list []attachment) []config.Attachment {
	var out []config.Attachment
	for _, a := range list {
		if a.listener.served() {
			out = append(out, config.Attachment{Listener: a.listener.configName(), Section: a.listener.section, Hosts: a.hosts})
		}
	}
	return out
}

// attachRoutes compiles HTTPRoutes and GRPCRoutes, the oldest first, which is
// the order in which the data plane breaks ties.
//
// The specification of GRPCRoute has a GRPCRoute and an HTTPRoute with common
// hostnames exclude each other. Its own conformance tests attach both to one
// listener, as every other implementation lets them; here they share hosts too,
// and the media type of gRPC tells their requests apart.
func (t *translation) attachRoutes() {
	type source struct {
		route   *route
		compile func() *compiled
	}
	var list []source
	for _, h := range byAge(t.objects.HTTPRoutes) {
		list = append(list, source{
			&route{h, kindRef{gatewayGroup, kindHTTPRoute, nameOf(h)}, h.Spec.ParentRefs, h.Spec.Hostnames, h.Status.Parents},
			func() *compiled { return t.compileHTTPRoute(h) },
		})
	}
	for _, g := range byAge(t.objects.GRPCRoutes) {
		list = append(list, source{
			&route{g, kindRef{gatewayGroup, kindGRPCRoute, nameOf(g)}, g.Spec.ParentRefs, g.Spec.Hostnames, g.Status.Parents},
			func() *compiled { return t.compileGRPCRoute(g) },
		})
	}
	slices.SortStableFunc(list, func(a, b source) int { return compareAge(a.route.object, b.route.object) })
	for _, s := range list {
		if len(t.parentsOf(s.route, nil)) == 0 {
			t.routeStatus(s.route, nil, "", nil)
			continue // of others: not worth compiling
		}
		c := s.compile()
		parents := t.parentsOf(s.route, c.invalid)
		scopes, attached := inScope(parents)
		for _, sc := range scopes {
			for _, b := range c.backends {
				sc.use(b, attached[sc] != nil)
			}
			if at := configAttachments(attached[sc]); at != nil && len(c.rules) > 0 {
				sc.httpRoutes = append(sc.httpRoutes, config.HTTPRoute{Name: c.name, Parents: at, Rules: c.rules})
			}
		}
		t.routeStatus(s.route, parents, "the route is attached", func(p *parent) []metav1.Condition { return c.conditions(s.route, p) })
	}
}
