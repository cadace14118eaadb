// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// listenerSet is a ListenerSet whose parent is a Gateway of ours.
type listenerSet struct {
	*gatewayv1.ListenerSet
	scope     *scope
	listeners []*listener
	rejected  *problem
}

// readListenerSets attaches ListenerSets to their Gateways, the oldest first:
// "parent Gateway, then ListenerSets ordered by creation time, then by
// namespace/name".
func (t *translation) readListenerSets() {
	for _, ls := range byAge(t.objects.ListenerSets) {
		ref := ls.Spec.ParentRef
		if deref(ref.Group, gatewayGroup) != gatewayGroup || deref(ref.Kind, kindGateway) != kindGateway {
			continue
		}
		s, ok := t.scopes[types.NamespacedName{Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(ls.Namespace))), Name: string(ref.Name)}]
		if !ok {
			continue
		}
		set := &listenerSet{ListenerSet: ls, scope: s}
		t.listenerSets[nameOf(ls)] = set
		switch {
		case !t.admitsListenerSet(s, ls.Namespace):
			set.rejected = &problem{string(gatewayv1.ListenerSetReasonNotAllowed), "the Gateway's allowedListeners does not admit ListenerSets of this namespace"}
			continue
		case s.rejected != nil:
			set.rejected = &problem{string(gatewayv1.ListenerSetReasonParentNotAccepted), "the Gateway is not accepted"}
			continue
		}
		for i := range ls.Spec.Listeners {
			e := &ls.Spec.Listeners[i]
			set.listeners = t.addListener(s, set, set.listeners, &gatewayv1.Listener{
				Name: e.Name, Hostname: e.Hostname, Port: e.Port, Protocol: e.Protocol, TLS: e.TLS, AllowedRoutes: e.AllowedRoutes,
			})
		}
		settle(s.listeners(), set.listeners)
		for _, l := range set.listeners {
			t.resolveListener(l)
		}
		if !slices.ContainsFunc(set.listeners, (*listener).served) {
			set.rejected = &problem{string(gatewayv1.ListenerSetReasonListenersNotValid), "no listener can be served: " + listenerFaults(set.listeners)}
		}
		s.sets = append(s.sets, set)
	}
	for _, s := range t.scopes {
		overlaps(s.listeners())
	}
}

// admitsListenerSet reads allowedListeners, by default none.
func (t *translation) admitsListenerSet(s *scope, namespace string) bool {
	allowed := s.Spec.AllowedListeners
	if allowed == nil || allowed.Namespaces == nil {
		return false
	}
	from := deref(allowed.Namespaces.From, gatewayv1.NamespacesFromNone)
	var selector labels.Selector
	if from == gatewayv1.NamespacesFromSelector {
		selector, _ = metav1.LabelSelectorAsSelector(allowed.Namespaces.Selector)
	}
	return t.admitsNamespace(from, selector, s.Namespace, namespace)
}

func (t *translation) listenerSetStatuses() {
	for _, set := range t.listenerSets {
		gen := set.Generation
		st := t.status(kindListenerSet, set.ListenerSet)
		accepted := condition(string(gatewayv1.ListenerSetConditionAccepted), gen, set.rejected, string(gatewayv1.ListenerSetReasonAccepted), "the listeners are attached to the Gateway")
		if bad := faulty(set.listeners); set.rejected == nil && len(bad) > 0 {
			accepted.Reason, accepted.Message = string(gatewayv1.ListenerSetReasonListenersNotValid), "not all listeners are served: "+truncate(listenerFaults(bad), 16384)
		}
		programmed := set.rejected
		if programmed == nil && !slices.ContainsFunc(set.listeners, func(l *listener) bool { return l.notProgrammed() == nil }) {
			programmed = &problem{string(gatewayv1.ListenerSetReasonPending), "the Gateway is not programmed yet"}
		}
		st.Conditions = append(st.Conditions, accepted,
			condition(string(gatewayv1.ListenerSetConditionProgrammed), gen, programmed, string(gatewayv1.ListenerSetReasonProgrammed), "configuration has been sent to the data plane"))
		for _, l := range set.listeners {
			st.Entries = append(st.Entries, gatewayv1.ListenerEntryStatus(l.status(gen)))
		}
	}
}
