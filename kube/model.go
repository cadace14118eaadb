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

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// model is a Model while it is compiled.
type model struct {
	*v1alpha1.Model
	route      *route
	names      []string
	proto      config.Model // but for its name
	backends   []*backend
	providers  []*managed
	invalid    *problem
	unresolved *problem
	parents    []*parent
}

// modelUse is a Model on one Gateway.
type modelUse struct {
	*model
	attached []attachment
	dangling *problem // an alias that leads nowhere
}

// attachModels compiles Models, the oldest first: it has a name that a younger
// one wants too. Names are one list per Gateway.
func (t *translation) attachModels() {
	var list []*model
	for _, spec := range byAge(t.objects.Models) {
		r := &route{spec, kindRef{v1alpha1.Group, kindModel, nameOf(spec)}, spec.Spec.ParentRefs, spec.Spec.Hostnames, spec.Status.Parents}
		m := &model{Model: spec, route: r}
		list = append(list, m)
		if len(t.parentsOf(r, nil)) == 0 {
			continue
		}
		t.compileModel(m)
		m.parents = t.parentsOf(r, m.invalid)
		for _, p := range m.parents {
			if p.rejected == nil {
				if p.rejected = p.scope.refuses(m); p.rejected != nil {
					p.attached = nil
				}
			}
		}
		scopes, attached := inScope(m.parents)
		for _, s := range scopes {
			for _, b := range m.backends {
				s.use(b, attached[s] != nil)
			}
			if attached[s] != nil {
				s.models = append(s.models, &modelUse{model: m, attached: attached[s]})
			}
		}
	}
	for _, s := range t.scopes {
		s.resolveAliases()
	}
	for _, m := range list {
		t.routeStatus(m.route, m.parents, "the Model is attached", func(p *parent) []metav1.Condition {
			unresolved := m.unresolved
			if u := p.scope.modelUse(m); u != nil && u.dangling != nil {
				unresolved = u.dangling
			}
			return []metav1.Condition{condition(string(gatewayv1.RouteConditionResolvedRefs), m.Generation, unresolved, string(gatewayv1.RouteReasonResolvedRefs), "all references are resolved")}
		})
	}
}

// compileModel reads a Model but for what depends on a Gateway.
func (t *translation) compileModel(m *model) {
	for _, n := range modelsOf(m.Model) {
		if !slices.Contains(m.names, n) {
			m.names = append(m.names, n)
		}
	}
	spec := &m.Spec
	m.proto.Alias = string(spec.Alias)
	if m.proto.Alias != "" && (spec.Targets != nil || spec.Fallbacks != nil || spec.ReportModel != "" || spec.Timeouts != nil || spec.Retries != nil) {
		m.invalid = unsupported("an alias has nothing else of its own")
		return
	}
	m.proto.ReportModel = spec.ReportModel
	if bad := orProblem(timeouts(spec.Timeouts, &m.proto.Timeouts), retries(spec.Retries, &m.proto.Retries)); bad != nil {
		m.invalid = unsupported("%s", bad.message)
	}
	for _, target := range spec.Targets {
		out := config.Target{Model: string(target.Model)}
		out.Pool, out.Provider = t.place(m, target.PoolRef, target.ProviderRef)
		if w := deref(target.Weight, 1); w != 1 {
			out.Weight = new(int(w))
		}
		m.proto.Targets = append(m.proto.Targets, out)
	}
	for i := range spec.Fallbacks {
		f := &spec.Fallbacks[i]
		out := config.Fallback{Model: string(f.Model)}
		out.Pool, out.Provider = t.place(m, f.PoolRef, f.ProviderRef)
		for _, class := range f.Classes {
			out.On = append(out.On, config.FallbackClass(class))
		}
		m.proto.Fallbacks = append(m.proto.Fallbacks, out)
	}
}

// place follows a reference of a Model to where it is served. What cannot be had
// is a pool without members in its place.
func (t *translation) place(m *model, poolRef *v1alpha1.PoolReference, providerRef *v1alpha1.ProviderReference) (pool, provider string) {
	unresolved := func(bad *problem) {
		if bad != nil && m.unresolved == nil {
			m.unresolved = bad
		}
	}
	missing := func(name types.NamespacedName) string {
		b := t.missingPool(name)
		m.uses(b)
		return b.pool.Name
	}
	to := leadsTo(m.Model, poolRef, providerRef)
	switch {
	case (poolRef == nil) == (providerRef == nil):
		m.invalid = unsupported("a target names one of poolRef and providerRef")
		return missing(types.NamespacedName{Namespace: m.Namespace, Name: m.Name}), ""
	case providerRef != nil:
		p, bad := t.resolveProvider(m.route.self, to)
		unresolved(bad)
		if p == nil {
			return missing(to.NamespacedName), ""
		}
		if !slices.Contains(m.providers, p) {
			m.providers = append(m.providers, p)
		}
		return "", p.proto.Name
	}
	var b *backend
	bad := &problem{string(gatewayv1.RouteReasonRefNotPermitted), notPermitted(m.route.self, to)}
	if t.permitted(m.route.self, to) {
		b, bad = t.inferencePool(to)
	}
	unresolved(bad)
	if b != nil {
		m.uses(b)
	}
	if b == nil || b.status != 0 {
		return missing(to.NamespacedName), ""
	}
	return b.pool.Name, ""
}

func (m *model) uses(b *backend) {
	if !slices.Contains(m.backends, b) {
		m.backends = append(m.backends, b)
	}
}

// refuses says why a Gateway cannot serve a Model that is sound in itself.
func (s *scope) refuses(m *model) *problem {
	for _, u := range s.models {
		for _, n := range m.names {
			if u.model != m && slices.Contains(u.names, n) {
				return &problem{string(gatewayv1.PolicyReasonConflicted), fmt.Sprintf("the older Model %s has the name %q on this Gateway", u.route.self.NamespacedName, n)}
			}
		}
	}
	for _, p := range m.providers {
		p.used = true
		if bad := s.refusesProvider(p); bad != nil {
			return bad
		}
	}
	// Bounds have one home: package config is asked, on a configuration with
	// the Gateway's own settings.
	c := scratch()
	if s.policy != nil {
		s.policy.apply(c)
	}
	c.Models = nil
	if alias := m.proto.Alias; alias != "" {
		if slices.Contains(m.names, alias) {
			return unsupported("an alias may not point to itself")
		}
		// Whether it leads anywhere is found out later; here it does.
		c.Models = append(c.Models, config.Model{Name: alias, Targets: []config.Target{{Pool: c.Pools[0].Name}}})
	}
	for _, n := range m.names {
		out := m.proto
		out.Name, out.Targets, out.Fallbacks = n, slices.Clone(out.Targets), slices.Clone(out.Fallbacks)
		for i := range out.Targets { // wherever they lead
			out.Targets[i].Pool, out.Targets[i].Provider = c.Pools[0].Name, ""
		}
		for i := range out.Fallbacks {
			out.Fallbacks[i].Pool, out.Fallbacks[i].Provider = c.Pools[0].Name, ""
		}
		c.Models = append(c.Models, out)
	}
	c.SetDefaults()
	if bad := policyProblem(c.Validate()); bad != nil {
		return unsupported("%s", bad.message)
	}
	return nil
}

func (s *scope) modelUse(m *model) *modelUse {
	for _, u := range s.models {
		if u.model == m {
			return u
		}
	}
	return nil
}

// resolveAliases finds the aliases that end at no model of the Gateway that has
// targets: they are left out, and their status says so.
func (s *scope) resolveAliases() {
	by := map[string]*modelUse{}
	for _, u := range s.models {
		for _, n := range u.names {
			by[n] = u
		}
	}
	for _, u := range s.models {
		at, trail := u, []string{}
		for at != nil && at.proto.Alias != "" && !slices.Contains(trail, at.proto.Alias) {
			trail = append(trail, at.proto.Alias)
			at = by[at.proto.Alias]
		}
		switch {
		case at == nil:
			u.dangling = &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("no Model of this Gateway serves %q; %s", trail[len(trail)-1], s.servedNames(u))}
		case at.proto.Alias != "":
			u.dangling = &problem{string(gatewayv1.RouteReasonBackendNotFound), "the alias goes round in a circle: " + strings.Join(trail, ", ")}
		}
	}
}

// servedNames are the names that an alias could stand for, for a message.
func (s *scope) servedNames(alias *modelUse) string {
	const most = 5
	var names []string
	for _, u := range s.models {
		if u != alias && u.proto.Alias == "" {
			names = append(names, u.names...)
		}
	}
	if len(names) == 0 {
		return "it serves none"
	}
	slices.Sort(names)
	text := "it serves " + strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// configModels adds the models of a Gateway and where they are served. Without
// a listener that serves one there are none at all: a list of models without
// routes would be served everywhere.
func (s *scope) configModels(c *config.Config) {
	type place struct{ listener, host string }
	served := map[place][]string{}
	for _, u := range s.models {
		if u.dangling != nil {
			continue
		}
		for _, a := range u.attached {
			if !a.listener.served() {
				continue
			}
			at := a.listener.configName() + "/" + a.listener.section
			hosts := a.hosts
			if hosts == nil {
				hosts = []string{""}
			}
			for _, h := range hosts {
				served[place{at, h}] = append(served[place{at, h}], u.names...)
			}
		}
	}
	if len(served) == 0 {
		return
	}
	for _, u := range s.models {
		if u.dangling != nil {
			continue
		}
		for _, n := range u.names {
			out := u.proto
			out.Name = n
			c.Models = append(c.Models, out)
		}
	}
	// Places that serve the same names on the same host are one route; a
	// request matches a single one, the most specific, so that each lists all
	// that it serves: also what is served on every host, or by a wildcard.
	var keys []place
	for at := range served {
		keys = append(keys, at)
	}
	slices.SortFunc(keys, func(a, b place) int { return strings.Compare(a.host+" "+a.listener, b.host+" "+b.listener) })
	for _, at := range keys {
		var names []string
		for other, list := range served {
			if other.listener == at.listener && (other.host == "" || other.host == at.host || covers(other.host, at.host)) {
				names = append(names, list...)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		last := len(c.Routes) - 1
		var hosts []string
		if at.host != "" {
			hosts = []string{at.host}
		}
		if last >= 0 && slices.Equal(c.Routes[last].Hosts, hosts) && slices.Equal(c.Routes[last].Models, names) {
			c.Routes[last].Listeners = append(c.Routes[last].Listeners, at.listener)
			continue
		}
		c.Routes = append(c.Routes, config.Route{Listeners: []string{at.listener}, Hosts: hosts, PathPrefix: "/", Models: names})
	}
}
