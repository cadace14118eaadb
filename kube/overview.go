// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Finding is one condition of one object.
type Finding struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Of        string `json:"of,omitempty"` // the listener, or the parent and its controller, that it is about; empty: the object itself
	Condition string `json:"condition"`
	Status    string `json:"status"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
	Bad       bool   `json:"bad"`             // something does not work as it is written
	Stale     bool   `json:"stale,omitempty"` // it is about an older generation of the object
}

// Object is what a finding is about, as it is typed: kind/name.
func (f *Finding) Object() string {
	return strings.ToLower(f.Kind) + "/" + types.NamespacedName{Namespace: f.Namespace, Name: f.Name}.String()
}

// trouble are the conditions that are bad when they hold; all others are when
// they do not.
func trouble(kind string) bool {
	return slices.Contains([]string{"Conflicted", "PartiallyInvalid", "OverlappingTLSConfig", "InsecureFrontendValidationMode"}, kind)
}

// Findings are the conditions of a status, those of all controllers, in the
// order in which they stand there.
func (s *Status) Findings() []Finding {
	var out []Finding
	add := func(of string, list []metav1.Condition) {
		for _, c := range list {
			out = append(out, Finding{
				Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, Of: of,
				Condition: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
				Bad:   trouble(c.Type) != (c.Status != metav1.ConditionTrue),
				Stale: c.ObservedGeneration != 0 && s.Generation > c.ObservedGeneration,
			})
		}
	}
	add("", s.Conditions)
	for _, l := range s.Listeners {
		add("listener "+string(l.Name), l.Conditions)
	}
	for _, l := range s.Entries {
		add("listener "+string(l.Name), l.Conditions)
	}
	for _, p := range s.Parents {
		add(s.parentName(p.ParentRef)+foreign(string(p.ControllerName)), p.Conditions)
	}
	for _, a := range s.Ancestors {
		add(s.parentName(a.AncestorRef)+foreign(string(a.ControllerName)), a.Conditions)
	}
	for _, p := range s.Pools {
		add(poolParentName(p, s.Namespace)+foreign(string(p.ControllerName)), p.Conditions)
	}
	return out
}

func foreign(controller string) string {
	if controller == ControllerName || controller == "" {
		return ""
	}
	return " (of " + controller + ")"
}

func (s *Status) parentName(ref gatewayv1.ParentReference) string {
	name := fmt.Sprintf("%s %s/%s", deref(ref.Kind, kindGateway), deref(ref.Namespace, gatewayv1.Namespace(s.Namespace)), ref.Name)
	if ref.SectionName != nil {
		name += " " + string(*ref.SectionName)
	}
	if ref.Port != nil {
		name += ":" + strconv.Itoa(int(*ref.Port))
	}
	return name
}

func poolParentName(p infv1.ParentStatus, namespace string) string {
	return fmt.Sprintf("%s %s/%s", cmp.Or(string(p.ParentRef.Kind), kindGateway), cmp.Or(string(p.ParentRef.Namespace), namespace), p.ParentRef.Name)
}

// Statuses are those that stand in the objects, by kind and age.
func (o *Objects) Statuses() []*Status {
	var out []*Status
	of := func(kind string, object metav1.Object) *Status {
		s := &Status{Kind: kind, NamespacedName: nameOf(object), Generation: object.GetGeneration()}
		out = append(out, s)
		return s
	}
	for _, g := range byAge(o.GatewayClasses) {
		of(kindGatewayClass, g).Conditions = g.Status.Conditions
	}
	for _, g := range byAge(o.Gateways) {
		s := of(kindGateway, g)
		s.Conditions, s.Addresses, s.Listeners = g.Status.Conditions, g.Status.Addresses, g.Status.Listeners
	}
	for _, r := range byAge(o.HTTPRoutes) {
		of(kindHTTPRoute, r).Parents = r.Status.Parents
	}
	for _, r := range byAge(o.GRPCRoutes) {
		of(kindGRPCRoute, r).Parents = r.Status.Parents
	}
	for _, p := range byAge(o.InferencePools) {
		of(kindInferencePool, p).Pools = p.Status.Parents
	}
	for _, m := range byAge(o.Models) {
		of(kindModel, m).Parents = m.Status.Parents
	}
	return out
}

// Verdict is what the conditions of one object, or of one parent of it, come
// to: the worst of them.
type Verdict struct {
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Bad     bool   `json:"bad"`
}

// judge finds what a reader should be told first: what is wrong, in the order
// in which causes come before their effects, else that all is well.
func judge(list []Finding) Verdict {
	if len(list) == 0 {
		return Verdict{"Unknown", "no controller has written a status yet", true}
	}
	order := []string{"Accepted", "Conflicted", "ResolvedRefs", "PartiallyInvalid", "Programmed"}
	rank := func(f Finding) int {
		if i := slices.Index(order, f.Condition); i >= 0 {
			return i
		}
		return len(order)
	}
	var worst *Finding
	for i := range list {
		f := &list[i]
		if f.Bad && (worst == nil || rank(*f) < rank(*worst)) {
			worst = f
		}
	}
	if worst != nil {
		return Verdict{worst.Reason, worst.Message, true}
	}
	if i := slices.IndexFunc(list, func(f Finding) bool { return f.Stale }); i >= 0 {
		return Verdict{"Stale", "the status is about an older generation; the controller has not looked at this one yet", true}
	}
	for _, kind := range []string{"Programmed", "Accepted"} {
		if i := slices.IndexFunc(list, func(f Finding) bool { return f.Condition == kind && f.Of == "" }); i >= 0 {
			return Verdict{Reason: list[i].Reason}
		}
	}
	return Verdict{Reason: list[0].Reason}
}

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

// PoolRow is an InferencePool as one Gateway sees it.
type PoolRow struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Parent    string            `json:"parent"` // empty: no route of any Gateway leads to it
	Selector  map[string]string `json:"selector"`
	Ports     []int32           `json:"ports"`
	Picker    string            `json:"endpointPicker,omitempty"` // empty: the gateway's own
	Verdict
	Findings []Finding `json:"conditions"`
}

// GatewayRows are the Gateways of o. statuses are those in the objects, or
// those of a translation.
func GatewayRows(o *Objects, statuses []*Status) []GatewayRow {
	var out []GatewayRow
	for _, g := range sorted(o.Gateways) {
		s := statusOf(statuses, kindGateway, g)
		row := GatewayRow{Namespace: g.Namespace, Name: g.Name, Class: string(g.Spec.GatewayClassName), Findings: s.Findings()}
		row.Verdict = judge(row.Findings)
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

// RouteRows are the routes of o, a row per parent.
func RouteRows(o *Objects, statuses []*Status) []RouteRow {
	var out []RouteRow
	add := func(kind string, object metav1.Object, hosts []gatewayv1.Hostname, refs []gatewayv1.ParentReference) {
		s := statusOf(statuses, kind, object)
		row := RouteRow{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
		for _, h := range hosts {
			row.Hosts = append(row.Hosts, string(h))
		}
		for _, p := range s.Parents {
			row.Parent = s.parentName(p.ParentRef)
			row.Findings = findingsOf(s.Findings(), row.Parent+foreign(string(p.ControllerName)))
			row.Verdict = judge(row.Findings)
			out = append(out, row)
		}
		for _, ref := range refs {
			if !slices.ContainsFunc(s.Parents, func(p gatewayv1.RouteParentStatus) bool { return sameParent(p.ParentRef, ref) }) {
				row.Parent, row.Findings = s.parentName(ref), nil
				row.Verdict = Verdict{"Unanswered", "no controller answers for this parent: is its name right, and its class served?", true}
				out = append(out, row)
			}
		}
	}
	for _, r := range sorted(o.HTTPRoutes) {
		add(kindHTTPRoute, r, r.Spec.Hostnames, r.Spec.ParentRefs)
	}
	for _, r := range sorted(o.GRPCRoutes) {
		add(kindGRPCRoute, r, r.Spec.Hostnames, r.Spec.ParentRefs)
	}
	return out
}

// PoolRows are the InferencePools of o, a row per Gateway.
func PoolRows(o *Objects, statuses []*Status) []PoolRow {
	var out []PoolRow
	for _, p := range sorted(o.InferencePools) {
		s := statusOf(statuses, kindInferencePool, p)
		row := PoolRow{Namespace: p.Namespace, Name: p.Name, Selector: selectorOf(p), Ports: targetPorts(p)}
		if ref := p.Spec.EndpointPickerRef; ref != nil {
			row.Picker = string(ref.Name)
			if ref.Port != nil {
				row.Picker += ":" + strconv.Itoa(int(ref.Port.Number))
			}
		}
		for _, parent := range s.Pools {
			row.Parent = poolParentName(parent, p.Namespace)
			row.Findings = findingsOf(s.Findings(), row.Parent+foreign(string(parent.ControllerName)))
			row.Verdict = judge(row.Findings)
			out = append(out, row)
		}
		if s.Pools == nil {
			row.Verdict = Verdict{"NotReferenced", "no route of any Gateway leads to the pool", true}
			out = append(out, row)
		}
	}
	return out
}

func sorted[T any, P object[T]](list []P) []P {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b P) int { return compareNames(nameOf(a), nameOf(b)) })
	return out
}

// statusOf is the status of an object; an empty one where there is none.
func statusOf(list []*Status, kind string, o metav1.Object) *Status {
	s := statusFor(list, kind, nameOf(o))
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

// In are the objects of a namespace, those whose kind has none included; all
// where namespace is empty.
func (o *Objects) In(namespace string) *Objects {
	if namespace == "" {
		return o
	}
	return &Objects{
		GatewayClasses: o.GatewayClasses,
		Gateways:       within(o.Gateways, namespace),
		HTTPRoutes:     within(o.HTTPRoutes, namespace),
		GRPCRoutes:     within(o.GRPCRoutes, namespace),
		InferencePools: within(o.InferencePools, namespace),
		Models:         within(o.Models, namespace),
	}
}

func within[T any, P object[T]](list []P, namespace string) []P {
	var out []P
	for _, o := range list {
		if o.GetNamespace() == namespace {
			out = append(out, o)
		}
	}
	return out
}

// Has says whether there is an object of one of the kinds; an empty namespace
// is any.
func (o *Objects) Has(kinds []string, namespace, name string) bool {
	return slices.ContainsFunc(o.Statuses(), func(s *Status) bool {
		return slices.Contains(kinds, s.Kind) && s.Name == name && (namespace == "" || s.Namespace == namespace)
	})
}
