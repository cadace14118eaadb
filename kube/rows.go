// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// GatewayRow is a Gateway in a table.
type GatewayRow struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Class     string        `json:"class"`
	Addresses []string      `json:"addresses"`
	Listeners []ListenerRow `json:"listeners"`
	Verdict
	Findings []Finding `json:"conditions"`
}

// ListenerRow is a listener of a Gateway.
type ListenerRow struct {
	Name     string `json:"name"`
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	Host     string `json:"hostname,omitempty"`
	Routes   int32  `json:"attachedRoutes"`
}

// RouteRow is a route as one of its parents sees it.
type RouteRow struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Parent    string   `json:"parent"`
	Hosts     []string `json:"hostnames"`
	Verdict
	Findings []Finding `json:"conditions"`
}

// ModelRow is a Model as one of its parents sees it.
type ModelRow struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Parent    string   `json:"parent"`
	Names     []string `json:"names"`             // that clients ask for
	Targets   []string `json:"targets,omitempty"` // InferencePools
	Alias     string   `json:"alias,omitempty"`
	Verdict
	Findings []Finding `json:"conditions"`
}

// PolicyRow is a GatewayPolicy as one Gateway sees it.
type PolicyRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Target    string `json:"target"` // kind/name
	Parent    string `json:"parent"` // empty: it concerns no Gateway
	Verdict
	Findings []Finding `json:"conditions"`
}

// PoolRow is an InferencePool as one Gateway sees it.
type PoolRow struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Parent    string            `json:"parent"` // empty: no route of any Gateway leads to it
	Pods      *PodCount         `json:"pods,omitempty"`
	Selector  map[string]string `json:"selector"`
	Ports     []int32           `json:"ports"`
	Picker    string            `json:"endpointPicker,omitempty"` // empty: the gateway's own
	Verdict
	Findings []Finding `json:"conditions"`
}

// GatewayRows are the Gateways.
func (v *Overview) GatewayRows() []GatewayRow {
	var out []GatewayRow
	for _, g := range shown(v, v.Gateways) {
		s := v.statusOf(kindGateway, g)
		row := GatewayRow{Namespace: g.Namespace, Name: g.Name, Class: string(g.Spec.GatewayClassName), Findings: s.Findings()}
		row.Verdict = judge(row.Findings)
		if f := v.silentGateway(g, s); f != nil {
			row.Verdict = Verdict{f.Reason, f.Message, true}
		}
		for _, a := range s.Addresses {
			row.Addresses = append(row.Addresses, a.Value)
		}
		for _, l := range g.Spec.Listeners {
			r := ListenerRow{Name: string(l.Name), Port: int32(l.Port), Protocol: string(l.Protocol), Host: string(deref(l.Hostname, ""))}
			for _, ls := range s.Listeners {
				if ls.Name == l.Name {
					r.Routes = ls.AttachedRoutes
				}
			}
			row.Listeners = append(row.Listeners, r)
		}
		out = append(out, row)
	}
	return out
}

// routed is what routes and Models have in common here.
type routed struct {
	kind    string
	object  metav1.Object
	hosts   []gatewayv1.Hostname
	parents []gatewayv1.ParentReference
	pools   []types.NamespacedName
}

// routes are the HTTPRoutes and GRPCRoutes.
func (v *Overview) routes() []routed {
	var out []routed
	for _, r := range shown(v, v.HTTPRoutes) {
		x := routed{kindHTTPRoute, r, r.Spec.Hostnames, r.Spec.ParentRefs, nil}
		for i := range r.Spec.Rules {
			for _, b := range r.Spec.Rules[i].BackendRefs {
				x.leads(b.BackendRef)
			}
		}
		out = append(out, x)
	}
	for _, r := range shown(v, v.GRPCRoutes) {
		x := routed{kindGRPCRoute, r, r.Spec.Hostnames, r.Spec.ParentRefs, nil}
		for i := range r.Spec.Rules {
			for _, b := range r.Spec.Rules[i].BackendRefs {
				x.leads(b.BackendRef)
			}
		}
		out = append(out, x)
	}
	return out
}

func (v *Overview) models() []routed {
	var out []routed
	for _, m := range shown(v, v.Models) {
		x := routed{kindModel, m, m.Spec.Hostnames, m.Spec.ParentRefs, nil}
		add := func(to kindRef) {
			if to.kind == kindInferencePool {
				x.pools = append(x.pools, to.NamespacedName)
			}
		}
		for _, t := range m.Spec.Targets {
			if deref(t.Weight, 1) != 0 {
				add(leadsTo(m, t.PoolRef, t.ProviderRef))
			}
		}
		for _, f := range m.Spec.Fallbacks {
			add(leadsTo(m, f.PoolRef, f.ProviderRef))
		}
		out = append(out, x)
	}
	return out
}

// leadsTo is where a target or fallback of a Model leads; neither reference, which
// the schema refuses: nowhere.
func leadsTo(m *v1alpha1.Model, pool *v1alpha1.PoolReference, provider *v1alpha1.ProviderReference) kindRef {
	switch {
	case pool != nil:
		return kindRef{inferenceGroup, kindInferencePool, types.NamespacedName{Namespace: string(deref(pool.Namespace, gatewayv1.Namespace(m.Namespace))), Name: string(pool.Name)}}
	case provider != nil:
		return kindRef{v1alpha1.Group, kindProvider, types.NamespacedName{Namespace: string(deref(provider.Namespace, gatewayv1.Namespace(m.Namespace))), Name: string(provider.Name)}}
	}
	return kindRef{}
}

// leads notes an InferencePool that requests are sent to.
func (x *routed) leads(b gatewayv1.BackendRef) {
	if deref(b.Group, "") == inferenceGroup && deref(b.Kind, "") == kindInferencePool && deref(b.Weight, 1) != 0 {
		x.pools = append(x.pools, types.NamespacedName{Namespace: string(deref(b.Namespace, gatewayv1.Namespace(x.object.GetNamespace()))), Name: string(b.Name)})
	}
}

// each calls row for every parent: those with a status, then those that nobody
// answers for. A route of which nothing is wrong in itself has the trouble of a
// pool that it leads to.
func (v *Overview) each(x routed, row func(parent string, verdict Verdict, findings []Finding)) {
	s := v.statusOf(x.kind, x.object)
	findings := s.Findings()
	for _, p := range s.Parents {
		parent := s.parentName(p.ParentRef)
		list := findingsOf(findings, parent+foreign(string(p.ControllerName)))
		verdict := judge(list)
		if !verdict.Bad {
			for _, f := range v.poolFindings(x) {
				if f.Bad && !verdict.Bad {
					verdict = Verdict{f.Reason, kindInferencePool + " " + types.NamespacedName{Namespace: f.Namespace, Name: f.Name}.String() + ": " + f.Message, true}
				}
			}
		}
		row(parent, verdict, list)
	}
	for _, f := range v.silentParents(x, s) {
		row(f.Of, Verdict{f.Reason, f.Message, true}, nil)
	}
}

// RouteRows are the routes, a row per parent.
func (v *Overview) RouteRows() []RouteRow {
	var out []RouteRow
	for _, x := range v.routes() {
		r := RouteRow{Kind: x.kind, Namespace: x.object.GetNamespace(), Name: x.object.GetName()}
		for _, h := range x.hosts {
			r.Hosts = append(r.Hosts, string(h))
		}
		v.each(x, func(parent string, verdict Verdict, findings []Finding) {
			r.Parent, r.Verdict, r.Findings = parent, verdict, findings
			out = append(out, r)
		})
	}
	return out
}

// ModelRows are the Models, a row per parent.
func (v *Overview) ModelRows() []ModelRow {
	var out []ModelRow
	for i, m := range shown(v, v.Models) {
		r := ModelRow{Namespace: m.Namespace, Name: m.Name, Names: modelsOf(m), Alias: string(m.Spec.Alias)}
		for _, t := range m.Spec.Targets {
			ref := leadsTo(m, t.PoolRef, t.ProviderRef)
			to := ref.Name
			if ref.Namespace != m.Namespace {
				to = ref.Namespace + "/" + to
			}
			if ref.kind == kindProvider {
				to = "provider " + to
			}
			if t.Model != "" {
				to += " (" + string(t.Model) + ")"
			}
			if t.Weight != nil {
				to += " ×" + strconv.Itoa(int(*t.Weight))
			}
			r.Targets = append(r.Targets, to)
		}
		v.each(v.models()[i], func(parent string, verdict Verdict, findings []Finding) {
			r.Parent, r.Verdict, r.Findings = parent, verdict, findings
			out = append(out, r)
		})
	}
	return out
}

// PolicyRows are the GatewayPolicies, a row per Gateway.
func (v *Overview) PolicyRows() []PolicyRow {
	var out []PolicyRow
	for _, p := range shown(v, v.GatewayPolicies) {
		s := v.statusOf(kindGatewayPolicy, p)
		findings := s.Findings()
		row := PolicyRow{Namespace: p.Namespace, Name: p.Name, Target: strings.ToLower(string(p.Spec.TargetRef.Kind)) + "/" + string(p.Spec.TargetRef.Name)}
		for _, a := range s.Ancestors {
			row.Parent = s.parentName(a.AncestorRef)
			row.Findings = findingsOf(findings, row.Parent+foreign(string(a.ControllerName)))
			row.Verdict = judge(row.Findings)
			out = append(out, row)
		}
		if f := v.silentPolicy(p, s); f != nil {
			row.Verdict = Verdict{f.Reason, f.Message, true}
			out = append(out, row)
		}
	}
	return out
}

// PoolRows are the InferencePools, a row per Gateway.
func (v *Overview) PoolRows() []PoolRow {
	var out []PoolRow
	for _, p := range shown(v, v.InferencePools) {
		s := v.statusOf(kindInferencePool, p)
		row := PoolRow{Namespace: p.Namespace, Name: p.Name, Pods: v.podsOf(p), Selector: selectorOf(p), Ports: targetPorts(p)}
		if ref := p.Spec.EndpointPickerRef; ref != nil {
			row.Picker = string(ref.Name)
			if ref.Port != nil {
				row.Picker += ":" + strconv.Itoa(int(ref.Port.Number))
			}
		}
		pods := v.podFinding(p)
		for _, parent := range s.Pools {
			row.Parent = poolParentName(parent, p.Namespace)
			row.Findings = findingsOf(s.Findings(), row.Parent+foreign(string(parent.ControllerName)))
			if row.Verdict = judge(row.Findings); !row.Bad && pods != nil && pods.Bad {
				row.Verdict = Verdict{pods.Reason, pods.Message, true}
			}
			out = append(out, row)
		}
		if len(s.Pools) == 0 {
			row.Verdict = Verdict{"NotReferenced", notReferenced, true}
			out = append(out, row)
		}
	}
	return out
}

const notReferenced = "no route of any Gateway leads to the pool"

// shown are the objects of the namespace that is asked for, by name.
func shown[T any, P object[T]](v *Overview, list []P) []P {
	var out []P
	for _, o := range list {
		if v.Namespace == "" || o.GetNamespace() == v.Namespace {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b P) int { return compareNames(nameOf(a), nameOf(b)) })
	return out
}

// statusOf is the status of an object; an empty one where there is none.
func (v *Overview) statusOf(kind string, o metav1.Object) *Status {
	s := statusFor(v.Statuses, kind, nameOf(o))
	if s.Generation == 0 {
		s.Generation = o.GetGeneration()
	}
	return s
}

func findingsOf(list []Finding, of string) []Finding {
	var out []Finding
	for _, f := range list {
		if f.Of == of {
			out = append(out, f)
		}
	}
	return out
}

// Explain are all findings about the objects of the kinds with a name, and
// whether there is any such object. An empty namespace is any.
func (v *Overview) Explain(kinds []string, namespace, name string) (list []Finding, found bool) {
	about := func(kind, ns, n string) bool {
		return slices.Contains(kinds, kind) && n == name && (namespace == "" || ns == namespace || kind == kindGatewayClass)
	}
	for _, s := range v.Statuses {
		if about(s.Kind, s.Namespace, s.Name) {
			found = true
			list = append(list, s.Findings()...)
		}
	}
	for _, s := range v.Objects.Statuses() { // one of a translation has what is ours alone
		found = found || about(s.Kind, s.Namespace, s.Name)
	}
	for _, f := range v.Silent() {
		if about(f.Kind, f.Namespace, f.Name) {
			list = append(list, f)
		}
	}
	for _, p := range v.InferencePools {
		if f := v.podFinding(p); f != nil && about(kindInferencePool, p.Namespace, p.Name) {
			list = append(list, *f)
		}
	}
	for _, x := range append(v.routes(), v.models()...) {
		if about(x.kind, x.object.GetNamespace(), x.object.GetName()) {
			list = append(list, v.poolFindings(x)...)
		}
	}
	return list, found
}

// poolFindings are those about the pools that a route leads to, but for what
// other routes have to do with them.
func (v *Overview) poolFindings(x routed) []Finding {
	var out []Finding
	for _, name := range x.pools {
		i := slices.IndexFunc(v.InferencePools, func(p *infv1.InferencePool) bool { return nameOf(p) == name })
		if i < 0 {
			continue // there is none, of which ResolvedRefs tells; or it is not known
		}
		for _, f := range statusFor(v.Statuses, kindInferencePool, name).Findings() {
			if f.Condition == string(infv1.InferencePoolConditionResolvedRefs) {
				out = append(out, f)
			}
		}
		if f := v.podFinding(v.InferencePools[i]); f != nil {
			out = append(out, *f)
		}
	}
	return out
}
