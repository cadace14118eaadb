// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// Status is what of ours is to stand in the status of one object. Which fields
// are used depends on the kind; empty lists mean that nothing of ours is to be
// left.
//
// Times of transition are not set: [Status.Merge] keeps those of conditions
// whose status is as it was and sets the others.
type Status struct {
	Kind string // GatewayClass, Gateway, ListenerSet, HTTPRoute, GRPCRoute, BackendTLSPolicy, InferencePool, Model, GatewayPolicy, Provider, Tenant or Key
	types.NamespacedName
	// Generation of the object that the status is about.
	Generation int64

	Conditions           []metav1.Condition               // GatewayClass, Gateway, ListenerSet, Provider, Tenant, Key
	Features             []gatewayv1.SupportedFeature     // GatewayClass
	Addresses            []gatewayv1.GatewayStatusAddress // Gateway
	Listeners            []gatewayv1.ListenerStatus       // Gateway
	AttachedListenerSets *int32                           // Gateway
	Entries              []gatewayv1.ListenerEntryStatus  // ListenerSet
	Parents              []gatewayv1.RouteParentStatus    // HTTPRoute, GRPCRoute, Model
	Ancestors            []gatewayv1.PolicyAncestorStatus // BackendTLSPolicy, GatewayPolicy
	Pools                []infv1.ParentStatus             // InferencePool
}

// Bounds of lists in the schemas.
const (
	maxParents   = 32
	maxAncestors = 16
	maxPools     = 32
)

// Merge puts the status into object, which is a fresh copy of the one that it
// is about and is changed in place: entries and conditions of others stay as
// they are and where they are, our own are renewed, and those of ours that are
// not wanted any more go. It says whether anything has changed. now is the time
// of the transitions that there are.
//
// An object of another generation is left alone: it will be translated anew.
// The lists of others' entries are atomic, so the object must be written with
// its resourceVersion, and a conflict answered by another Merge into a fresh
// copy.
func (s *Status) Merge(object metav1.Object, now metav1.Time) (changed bool, err error) {
	if nameOf(object) != s.NamespacedName {
		return false, fmt.Errorf("kube: status of %s %s is not that of %s", s.Kind, s.NamespacedName, nameOf(object))
	}
	if object.GetGeneration() != s.Generation {
		return false, nil
	}
	switch o := object.(type) {
	case *gatewayv1.GatewayClass:
		return renew(&o.Status, func() {
			o.Status.Conditions = mergeConditions(o.Status.Conditions, s.Conditions, now)
			o.Status.SupportedFeatures = slices.Clone(s.Features)
		}), nil
	case *gatewayv1.Gateway:
		return renew(&o.Status, func() { s.mergeGateway(o, now) }), nil
	case *gatewayv1.ListenerSet:
		return renew(&o.Status, func() { s.mergeListenerSet(o, now) }), nil
	case *gatewayv1.HTTPRoute:
		return renew(&o.Status, func() { o.Status.Parents = s.mergeParents(o.Status.Parents, now) }), nil
	case *gatewayv1.GRPCRoute:
		return renew(&o.Status, func() { o.Status.Parents = s.mergeParents(o.Status.Parents, now) }), nil
	case *v1alpha1.Model:
		return renew(&o.Status, func() { o.Status.Parents = s.mergeParents(o.Status.Parents, now) }), nil
	case *gatewayv1.BackendTLSPolicy:
		return renew(&o.Status, func() { o.Status.Ancestors = s.mergeAncestors(o.Status.Ancestors, now) }), nil
	case *v1alpha1.GatewayPolicy:
		return renew(&o.Status, func() { o.Status.Ancestors = s.mergeAncestors(o.Status.Ancestors, now) }), nil
	case *v1alpha1.Provider:
		return s.renewConditions(&o.Status, now), nil
	case *v1alpha1.Tenant:
		return s.renewConditions(&o.Status, now), nil
	case *v1alpha1.Key:
		return s.renewConditions(&o.Status, now), nil
	case *infv1.InferencePool:
		return renew(&o.Status, func() { o.Status.Parents = s.mergePools(o.Status.Parents, now) }), nil
	}
	return false, fmt.Errorf("kube: a %T has no status of ours", object)
}

func (s *Status) renewConditions(status *v1alpha1.Conditions, now metav1.Time) bool {
	return renew(status, func() { status.Conditions = mergeConditions(status.Conditions, s.Conditions, now) })
}

// renew says whether change changes anything of *status. The lists of a status
// may be shared with a cache: change must put new ones in their place.
func renew[T any](status *T, change func()) bool {
	before := *status
	change()
	return !equalStatus(reflect.ValueOf(before), reflect.ValueOf(*status))
}

// equalStatus is DeepEqual but for empty and absent lists, which are the same
// on the wire.
func equalStatus(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equalStatus(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		if t, ok := a.Interface().(metav1.Time); ok {
			return t.Time.Equal(b.Interface().(metav1.Time).Time)
		}
		for i := range a.NumField() {
			if !equalStatus(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// mergeConditions renews ours among those of others: "MUST NOT remove or
// reorder Conditions that they are not directly responsible for".
func mergeConditions(old, ours []metav1.Condition, now metav1.Time) []metav1.Condition {
	out := slices.Clone(old)
	for _, c := range ours {
		i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type })
		c.LastTransitionTime = now
		if i < 0 {
			out = append(out, c)
			continue
		}
		if out[i].Status == c.Status && !out[i].LastTransitionTime.IsZero() {
			c.LastTransitionTime = out[i].LastTransitionTime
		}
		out[i] = c
	}
	return out
}

// removable are the conditions of ours that are there only while they hold.
func removable(list []metav1.Condition, ours []metav1.Condition, kinds ...string) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(list), func(c metav1.Condition) bool {
		return slices.Contains(kinds, c.Type) && !slices.ContainsFunc(ours, func(o metav1.Condition) bool { return o.Type == c.Type })
	})
}

func (s *Status) mergeGateway(o *gatewayv1.Gateway, now metav1.Time) {
	o.Status.Conditions = removable(mergeConditions(o.Status.Conditions, s.Conditions, now), s.Conditions,
		string(gatewayv1.GatewayConditionInsecureFrontendValidationMode))
	o.Status.Addresses = slices.Clone(s.Addresses)
	o.Status.AttachedListenerSets = s.AttachedListenerSets
	old := o.Status.Listeners
	o.Status.Listeners = nil
	for _, l := range s.Listeners {
		i := slices.IndexFunc(old, func(o gatewayv1.ListenerStatus) bool { return o.Name == l.Name })
		var before []metav1.Condition
		if i >= 0 {
			before = old[i].Conditions
		}
		l.Conditions = listenerConditions(before, l.Conditions, now)
		o.Status.Listeners = append(o.Status.Listeners, l)
	}
}

func (s *Status) mergeListenerSet(o *gatewayv1.ListenerSet, now metav1.Time) {
	o.Status.Conditions = mergeConditions(o.Status.Conditions, s.Conditions, now)
	old := o.Status.Listeners
	o.Status.Listeners = nil
	for _, l := range s.Entries {
		i := slices.IndexFunc(old, func(o gatewayv1.ListenerEntryStatus) bool { return o.Name == l.Name })
		var before []metav1.Condition
		if i >= 0 {
			before = old[i].Conditions
		}
		l.Conditions = listenerConditions(before, l.Conditions, now)
		o.Status.Listeners = append(o.Status.Listeners, l)
	}
}

func listenerConditions(old, ours []metav1.Condition, now metav1.Time) []metav1.Condition {
	return removable(mergeConditions(old, ours, now), ours, string(gatewayv1.ListenerConditionOverlappingTLSConfig))
}

// mergeEntries renews our entries in a list that others write to as well. Those
// that stay keep their place; new ones come last, as far as there is room.
func mergeEntries[T any](old, ours []T, most int, isOurs func(T) bool, same func(a, b T) bool, renewed func(old, of T) T) []T {
	out := make([]T, 0, len(old)) // never null, which the schemas refuse
	done := make([]bool, len(ours))
	for i := range old {
		if !isOurs(old[i]) {
			out = append(out, old[i])
			continue
		}
		for j := range ours {
			if !done[j] && same(old[i], ours[j]) {
				done[j] = true
				out = append(out, renewed(old[i], ours[j]))
				break
			}
		}
	}
	var none T
	for j := range ours {
		if !done[j] && len(out) < most {
			out = append(out, renewed(none, ours[j]))
		}
	}
	return out
}

func (s *Status) mergeParents(old []gatewayv1.RouteParentStatus, now metav1.Time) []gatewayv1.RouteParentStatus {
	return mergeEntries(old, s.Parents, maxParents,
		func(p gatewayv1.RouteParentStatus) bool { return p.ControllerName == ControllerName },
		func(a, b gatewayv1.RouteParentStatus) bool { return sameParent(a.ParentRef, b.ParentRef) },
		func(old, of gatewayv1.RouteParentStatus) gatewayv1.RouteParentStatus {
			of.Conditions = removable(mergeConditions(old.Conditions, of.Conditions, now), of.Conditions, string(gatewayv1.RouteConditionPartiallyInvalid))
			return of
		})
}

func (s *Status) mergeAncestors(old []gatewayv1.PolicyAncestorStatus, now metav1.Time) []gatewayv1.PolicyAncestorStatus {
	return mergeEntries(old, s.Ancestors, maxAncestors,
		func(p gatewayv1.PolicyAncestorStatus) bool { return p.ControllerName == ControllerName },
		func(a, b gatewayv1.PolicyAncestorStatus) bool { return sameParent(a.AncestorRef, b.AncestorRef) },
		func(old, of gatewayv1.PolicyAncestorStatus) gatewayv1.PolicyAncestorStatus {
			of.Conditions = mergeConditions(old.Conditions, of.Conditions, now)
			return of
		})
}

func (s *Status) mergePools(old []infv1.ParentStatus, now metav1.Time) []infv1.ParentStatus {
	return mergeEntries(old, s.Pools, maxPools,
		func(p infv1.ParentStatus) bool { return p.ControllerName == ControllerName },
		func(a, b infv1.ParentStatus) bool { return samePoolParent(a.ParentRef, b.ParentRef) },
		func(old, of infv1.ParentStatus) infv1.ParentStatus {
			of.Conditions = mergeConditions(old.Conditions, of.Conditions, now)
			return of
		})
}

// sameParent compares references as they are meant: what is left out is its
// default. The namespace has none here: within one object it is written alike.
func sameParent(a, b gatewayv1.ParentReference) bool {
	return deref(a.Group, gatewayGroup) == deref(b.Group, gatewayGroup) && deref(a.Kind, kindGateway) == deref(b.Kind, kindGateway) &&
		deref(a.Namespace, "") == deref(b.Namespace, "") && a.Name == b.Name &&
		deref(a.SectionName, "") == deref(b.SectionName, "") && deref(a.Port, 0) == deref(b.Port, 0)
}

func samePoolParent(a, b infv1.ParentReference) bool {
	kind := func(k infv1.Kind) infv1.Kind {
		if k == "" {
			return kindGateway
		}
		return k
	}
	return deref(a.Group, gatewayGroup) == deref(b.Group, gatewayGroup) && kind(a.Kind) == kind(b.Kind) && a.Namespace == b.Namespace && a.Name == b.Name
}
