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

// Overview is what people ask about: objects, and the statuses that stand in
// them or that a translation makes of them.
type Overview struct {
	*Objects // of read; a list that is nil is not known
	Statuses []*Status
	// Namespace whose objects are shown; empty: all.
	Namespace string

	read    string // the namespace that the objects are of; empty: all
	members bool   // the annotation penstock.dev/members counts
}

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
func (f Finding) Object() string {
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
	for _, l := range byAge(o.ListenerSets) {
		s := of(kindListenerSet, l)
		s.Conditions, s.Entries = l.Status.Conditions, l.Status.Listeners
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
	for _, p := range byAge(o.GatewayPolicies) {
		of(kindGatewayPolicy, p).Ancestors = p.Status.Ancestors
	}
	for _, p := range byAge(o.BackendTLSPolicies) {
		of(kindBackendTLSPolicy, p).Ancestors = p.Status.Ancestors
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
