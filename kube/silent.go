// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// This file finds what no status can tell: that nobody answers for an object,
// as for one that names a parent or a target that is not there, and that a pool
// which is right in itself has no pods.

// Silent are findings about objects of which no controller of any Gateway has
// said anything.
func (v *Overview) Silent() []Finding {
	var out []Finding
	add := func(f *Finding) {
		if f != nil {
			out = append(out, *f)
		}
	}
	for _, g := range shown(v, v.Gateways) {
		add(v.silentGateway(g, v.statusOf(kindGateway, g)))
	}
	for _, l := range shown(v, v.ListenerSets) {
		add(v.silentListenerSet(l, v.statusOf(kindListenerSet, l)))
	}
	for _, x := range append(v.routes(), v.models()...) {
		out = append(out, v.silentParents(x, v.statusOf(x.kind, x.object))...)
	}
	for _, p := range shown(v, v.InferencePools) {
		if s := v.statusOf(kindInferencePool, p); len(s.Pools) == 0 {
			add(s.silent("", "Accepted", "NotReferenced", notReferenced))
		}
	}
	for _, p := range shown(v, v.GatewayPolicies) {
		add(v.silentPolicy(p, v.statusOf(kindGatewayPolicy, p)))
	}
	for _, p := range shown(v, v.BackendTLSPolicies) {
		add(v.silentTLSPolicy(p, v.statusOf(kindBackendTLSPolicy, p)))
	}
	return out
}

func (s *Status) silent(of, condition, reason, message string) *Finding {
	return &Finding{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, Of: of, Condition: condition, Status: string(metav1.ConditionUnknown), Reason: reason, Message: message, Bad: true}
}

const unanswered = "Unanswered"

func (v *Overview) silentGateway(g *gatewayv1.Gateway, s *Status) *Finding {
	// The API server writes conditions of its own into a Gateway that is new.
	if slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionUnknown || c.ObservedGeneration != 0 }) {
		return nil
	}
	return s.silent("", "Accepted", unanswered, "no controller answers for this Gateway: "+v.classTrouble(g))
}

func (v *Overview) silentListenerSet(l *gatewayv1.ListenerSet, s *Status) *Finding {
	if slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionUnknown }) {
		return nil
	}
	ref := gatewayv1.ParentReference{Group: l.Spec.ParentRef.Group, Kind: l.Spec.ParentRef.Kind, Namespace: l.Spec.ParentRef.Namespace, Name: l.Spec.ParentRef.Name}
	return s.silent(s.parentName(ref), "Accepted", unanswered, v.parentTrouble(l.Namespace, ref))
}

// silentParents are the parents of a route that nobody answers for.
func (v *Overview) silentParents(x routed, s *Status) []Finding {
	var out []Finding
	for _, ref := range x.parents {
		if !slices.ContainsFunc(s.Parents, func(p gatewayv1.RouteParentStatus) bool { return sameParent(p.ParentRef, ref) }) {
			out = append(out, *s.silent(s.parentName(ref), "Accepted", unanswered, v.parentTrouble(s.Namespace, ref)))
		}
	}
	return out
}

// parentTrouble says why nobody may answer for a parent.
func (v *Overview) parentTrouble(namespace string, ref gatewayv1.ParentReference) string {
	const nobody = "no controller answers for this parent: "
	name := types.NamespacedName{Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(namespace))), Name: string(ref.Name)}
	switch deref(ref.Kind, kindGateway) {
	case kindGateway:
		g, there, known := lookUp(v, v.Gateways, name)
		switch {
		case g != nil:
			return nobody + v.classTrouble(g)
		case known:
			return nobody + missing(kindGateway, name, there)
		}
		return nobody + "is its name right, and its class served?"
	case kindListenerSet:
		l, there, known := lookUp(v, v.ListenerSets, name)
		if l == nil && known {
			return nobody + missing(kindListenerSet, name, there)
		}
		return nobody + "is its name right, and is it attached to a Gateway whose class is served?"
	}
	return nobody + "a parent is a Gateway or a ListenerSet, not a " + string(*ref.Kind)
}

// classTrouble says why nobody may answer for a Gateway that is there.
func (v *Overview) classTrouble(g *gatewayv1.Gateway) string {
	class := string(g.Spec.GatewayClassName)
	if v.GatewayClasses == nil {
		return fmt.Sprintf("is the class %s of Gateway %s served?", class, nameOf(g))
	}
	i := slices.IndexFunc(v.GatewayClasses, func(c *gatewayv1.GatewayClass) bool { return c.Name == class })
	if i < 0 {
		return fmt.Sprintf("its class is missing: %s", missing(kindGatewayClass, types.NamespacedName{Name: class}, namesOf(v.GatewayClasses)))
	}
	if c := v.GatewayClasses[i].Spec.ControllerName; c != ControllerName {
		return fmt.Sprintf("the class %s of Gateway %s is for the controller %s", class, nameOf(g), c)
	}
	return fmt.Sprintf("the class %s of Gateway %s is for %s; does penstock controller run?", class, nameOf(g), ControllerName)
}

// silentPolicy is why a GatewayPolicy concerns no Gateway.
func (v *Overview) silentPolicy(p *v1alpha1.GatewayPolicy, s *Status) *Finding {
	if len(s.Ancestors) > 0 {
		return nil
	}
	target := types.NamespacedName{Namespace: p.Namespace, Name: string(p.Spec.TargetRef.Name)}
	gone := func(message string) *Finding {
		return s.silent("", "Accepted", string(gatewayv1.PolicyReasonTargetNotFound), message)
	}
	switch p.Spec.TargetRef.Kind {
	case kindGateway:
		g, there, known := lookUp(v, v.Gateways, target)
		switch {
		case g != nil:
			return s.silent("", "Accepted", unanswered, "no controller answers for the target: "+v.classTrouble(g))
		case known:
			return gone(missing(kindGateway, target, there))
		}
	case kindInferencePool:
		pool, there, known := lookUp(v, v.InferencePools, target)
		switch {
		case pool != nil:
			return s.silent("", "Accepted", "NotReferenced", fmt.Sprintf("no route of any Gateway leads to InferencePool %s", target))
		case known:
			return gone(missing(kindInferencePool, target, there))
		}
	}
	return s.silent("", "Accepted", unanswered, "no controller answers for the target: is its name right?")
}

func (v *Overview) silentTLSPolicy(p *gatewayv1.BackendTLSPolicy, s *Status) *Finding {
	if len(s.Ancestors) > 0 {
		return nil
	}
	for _, ref := range p.Spec.TargetRefs {
		name := types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)}
		if service, there, known := lookUp(v, v.Services, name); ref.Kind == kindService && service == nil && known {
			return s.silent("", "Accepted", string(gatewayv1.PolicyReasonTargetNotFound), missing(kindService, name, there))
		}
	}
	return s.silent("", "Accepted", "NotReferenced", "no route of any Gateway leads to a target of the policy")
}

// lookUp finds an object. known says that there is none where there is nil, and
// there are the names of those that there are.
func lookUp[T any, P object[T]](v *Overview, list []P, name types.NamespacedName) (found P, there []types.NamespacedName, known bool) {
	if i := slices.IndexFunc(list, func(o P) bool { return nameOf(o) == name }); i >= 0 {
		return list[i], nil, true
	}
	return nil, namesOf(list), list != nil && (v.read == "" || v.read == name.Namespace)
}

func namesOf[T any, P object[T]](list []P) []types.NamespacedName {
	var out []types.NamespacedName
	for _, o := range list {
		out = append(out, nameOf(o))
	}
	return out
}

// missing says that there is no such object, and which there are: first those
// that a name that is only a little wrong would be next to.
func missing(kind string, name types.NamespacedName, there []types.NamespacedName) string {
	const most = 5
	show := func(n types.NamespacedName) string { return strings.TrimPrefix(n.String(), "/") }
	if len(there) == 0 {
		return fmt.Sprintf("there is no %s %s, and no other", kind, show(name))
	}
	slices.SortFunc(there, func(a, b types.NamespacedName) int {
		if (a.Namespace == name.Namespace) != (b.Namespace == name.Namespace) {
			if a.Namespace == name.Namespace {
				return -1
			}
			return 1
		}
		return compareNames(a, b)
	})
	var words []string
	for _, n := range there[:min(len(there), most)] {
		words = append(words, show(n))
	}
	text := fmt.Sprintf("there is no %s %s; there is %s", kind, show(name), strings.Join(words, ", "))
	if more := len(there) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// PodCount is what the selector of an InferencePool comes to.
type PodCount struct {
	Ready   int `json:"ready"` // that are members of the pool
	Matched int `json:"matched"`
}

// podsOf counts the pods of a pool; nil: they are not known. An annotation in a
// file stands in their place.
func (v *Overview) podsOf(p *infv1.InferencePool) *PodCount {
	if text, ok := p.Annotations[MembersAnnotation]; ok && v.members {
		list, _ := memberList(text)
		return &PodCount{len(list), len(list)}
	}
	if v.Pods == nil || v.read != "" && v.read != p.Namespace {
		return nil
	}
	s := &Source{Namespace: p.Namespace, Selector: selectorOf(p), Ports: targetPorts(p)}
	count := &PodCount{}
	for _, pod := range v.Pods {
		if len(s.Selector) == 0 || pod.Namespace != p.Namespace || !matches(pod.Labels, s.Selector) || ended(pod) {
			continue
		}
		count.Matched++
		if isReady(pod) && len(s.pods([]*corev1.Pod{pod})) > 0 {
			count.Ready++
		}
	}
	return count
}

// ended says that a pod is only there to be looked at.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// podFinding says whether a pool has members; nil: it is not known.
func (v *Overview) podFinding(p *infv1.InferencePool) *Finding {
	n := v.podsOf(p)
	if n == nil {
		return nil
	}
	f := &Finding{
		Kind: kindInferencePool, Namespace: p.Namespace, Name: p.Name, Of: "its pods", Condition: "Ready",
		Status: string(metav1.ConditionTrue), Reason: "Ready", Message: fmt.Sprintf("%d of %d pods that it selects serve", n.Ready, n.Matched),
	}
	_, annotated := p.Annotations[MembersAnnotation]
	switch {
	case n.Ready > 0:
		return f
	case annotated && v.members:
		f.Reason, f.Message = "NoPods", "the annotation "+MembersAnnotation+" lists no member"
	case n.Matched == 0:
		f.Reason, f.Message = "NoPods", v.selectsNothing(p)
	case n.Matched == 1:
		f.Reason, f.Message = "NoReadyPods", "the pod that it selects is not ready"
	default:
		f.Reason, f.Message = "NoReadyPods", fmt.Sprintf("none of the %d pods that it selects is ready", n.Matched)
	}
	f.Status, f.Bad = string(metav1.ConditionFalse), true
	return f
}

// selectsNothing says so, and which labels pods have that were perhaps meant.
func (v *Overview) selectsNothing(p *infv1.InferencePool) string {
	const most = 5
	selector := selectorOf(p)
	var want, have []string
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		want = append(want, k+"="+selector[k])
		for _, pod := range v.Pods {
			if value, ok := pod.Labels[k]; ok && pod.Namespace == p.Namespace && value != selector[k] && !slices.Contains(have, k+"="+value) {
				have = append(have, k+"="+value)
			}
		}
	}
	text := fmt.Sprintf("selector %s matches no pod of namespace %s", strings.Join(want, ","), p.Namespace)
	if slices.Sort(have); len(have) > 0 {
		text += "; pods there have " + strings.Join(have[:min(len(have), most)], ", ")
	}
	return text
}

// Overview is what a controller would say of the files, by the statuses of a
// translation of theirs. namespace is the one to show; empty: all.
func (m *Manifests) Overview(r *Result, namespace string) *Overview {
	o := m.Objects
	if len(o.GatewayClasses) == 0 {
		o.GatewayClasses = assumedClasses(o.Gateways)
	}
	// What no file has is not there; but few files have pods, and those that have
	// none say nothing of them.
	known(&o.GatewayClasses)
	known(&o.Gateways)
	known(&o.ListenerSets)
	known(&o.InferencePools)
	known(&o.Services)
	return &Overview{Objects: &o, Statuses: r.Statuses, Namespace: namespace, members: true}
}

func known[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}
