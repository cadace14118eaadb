// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// Groups and kinds by which objects are referred to.
const (
	gatewayGroup   = gatewayv1.GroupName
	inferenceGroup = "inference.networking.k8s.io"

	kindGatewayClass     = "GatewayClass"
	kindGateway          = "Gateway"
	kindListenerSet      = "ListenerSet"
	kindHTTPRoute        = "HTTPRoute"
	kindGRPCRoute        = "GRPCRoute"
	kindBackendTLSPolicy = "BackendTLSPolicy"
	kindInferencePool    = "InferencePool"
	kindModel            = "Model"
	kindGatewayPolicy    = "GatewayPolicy"
	kindProvider         = "Provider"
	kindTenant           = "Tenant"
	kindKey              = "Key"
	kindService          = "Service"
	kindSecret           = "Secret"
	kindConfigMap        = "ConfigMap"
)

// object is a pointer to a Kubernetes object.
type object[T any] interface {
	*T
	metav1.Object
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// byAge is a list in the order of precedence that every conflict of the
// Gateway API is decided by: the oldest first, then by "namespace/name".
// An object that is there twice counts once.
func byAge[T any, P object[T]](list []P) []P {
	out := make([]P, 0, len(list))
	seen := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		if o != nil && !seen[nameOf(o)] {
			seen[nameOf(o)] = true
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b P) int { return compareAge(a, b) })
	return out
}

func compareAge(a, b metav1.Object) int {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(ta.Compare(tb.Time), compareNames(nameOf(a), nameOf(b)))
}

func byName[T any, P object[T]](list []P) map[types.NamespacedName]P {
	out := make(map[types.NamespacedName]P, len(list))
	for _, o := range list {
		if o == nil {
			continue
		}
		if _, ok := out[nameOf(o)]; !ok {
			out[nameOf(o)] = o
		}
	}
	return out
}

// index finds objects by what refers to them.
type index struct {
	services   map[types.NamespacedName]*corev1.Service
	secrets    map[types.NamespacedName]*corev1.Secret
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	pools      map[types.NamespacedName]*infv1.InferencePool
	namespaces map[string]labels.Set
	grants     map[string][]*gatewayv1.ReferenceGrant // by namespace
	keyPairs   map[types.NamespacedName]*keyPair
}

func newIndex(o *Objects) *index {
	x := &index{
		services:   byName(o.Services),
		secrets:    byName(o.Secrets),
		configMaps: byName(o.ConfigMaps),
		pools:      byName(o.InferencePools),
		namespaces: map[string]labels.Set{},
		grants:     map[string][]*gatewayv1.ReferenceGrant{},
		keyPairs:   map[types.NamespacedName]*keyPair{},
	}
	for _, ns := range o.Namespaces {
		if ns != nil {
			x.namespaces[ns.Name] = ns.Labels
		}
	}
	for _, g := range o.ReferenceGrants {
		if g != nil {
			x.grants[g.Namespace] = append(x.grants[g.Namespace], g)
		}
	}
	return x
}

// namespaceLabels are the labels of a namespace. The one that every namespace
// has (since Kubernetes 1.22) is there for one that was not given, too.
func (x *index) namespaceLabels(name string) labels.Set {
	set := x.namespaces[name]
	if set[corev1.LabelMetadataName] == name {
		return set
	}
	with := labels.Set{corev1.LabelMetadataName: name}
	for k, v := range set {
		if k != corev1.LabelMetadataName {
			with[k] = v
		}
	}
	return with
}

// kindRef is an object that refers to another one, or is referred to.
type kindRef struct {
	group, kind string
	types.NamespacedName
}

func (r kindRef) String() string { return r.kind + " " + r.NamespacedName.String() }

// permitted says whether from may refer to another object: it does so within
// its namespace, or a ReferenceGrant in the other's says so.
func (x *index) permitted(from, to kindRef) bool {
	if from.Namespace == to.Namespace {
		return true
	}
	for _, g := range x.grants[to.Namespace] {
		if grantsFrom(g, from) && grantsTo(g, to) {
			return true
		}
	}
	return false
}

func grantsFrom(g *gatewayv1.ReferenceGrant, from kindRef) bool {
	return slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
		return string(f.Group) == from.group && string(f.Kind) == from.kind && string(f.Namespace) == from.Namespace
	})
}

func grantsTo(g *gatewayv1.ReferenceGrant, to kindRef) bool {
	return slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
		return string(t.Group) == to.group && string(t.Kind) == to.kind &&
			(t.Name == nil || *t.Name == "" || string(*t.Name) == to.Name)
	})
}

// problem is why something is not so; nil is none.
type problem struct{ reason, message string }

func (p *problem) Reason() string {
	if p == nil {
		return ""
	}
	return p.reason
}

// condition is a condition of one object: reason stands where p is nil, and
// then the condition holds.
func condition(kind string, generation int64, p *problem, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation}
	if p != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, p.reason, p.message
	}
	c.Message = truncate(c.Message, 32768) // the schema's bound
	return c
}

func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "..."
}

// modelsOf are the names that clients ask for.
func modelsOf(m *v1alpha1.Model) []string {
	if len(m.Spec.Names) == 0 {
		return []string{m.Name}
	}
	names := make([]string, len(m.Spec.Names))
	for i, n := range m.Spec.Names {
		names[i] = string(n)
	}
	return names
}
