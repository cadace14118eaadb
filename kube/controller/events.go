// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/kube"
)

// events tells what a person should know beside the object that it is about:
// that something is served now, is refused, or is served no more. They follow
// the conditions, and are few: past a bound they are left out, for the
// conditions say the same.
type events struct {
	c *Controller

	mu     sync.Mutex
	left   float64 // events that may be written now
	filled time.Time
}

const (
	eventBurst  = 50
	eventRate   = 5 // in a second
	eventLength = 1024
)

func newEvents(c *Controller) *events { return &events{c: c, left: eventBurst, filled: time.Now()} }

func (e *events) allowed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.left = min(eventBurst, e.left+now.Sub(e.filled).Seconds()*eventRate)
	e.filled = now
	if e.left < 1 {
		return false
	}
	e.left--
	return true
}

// of tells of the conditions that differ between two states of one object.
func (e *events) of(k key, before, after object) {
	for _, n := range news(k.kind, conditions(before), conditions(after)) {
		if !e.allowed() {
			e.c.o.Metrics.eventLeftOut()
			continue
		}
		e.write(k, after, n)
	}
}

// note tells of something that is in no condition.
func (e *events) note(kind string, about object, warning bool, reason, message string) {
	if e.allowed() {
		e.write(key{kind, nameOf(about)}, about, newsItem{warning: warning, reason: reason, message: message})
	}
}

// newsItem is one event.
type newsItem struct {
	warning         bool
	reason, message string
}

// news are the events that follow from a change of conditions. That something
// holds is told of Gateways and classes alone: of a thousand routes it is noise.
func news(kind string, before, after map[string]metav1.Condition) (out []newsItem) {
	names := make([]string, 0, len(after))
	for name := range after {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c, old := after[name], before[name]
		if old.Status == c.Status && (c.Status == metav1.ConditionTrue || old.Reason == c.Reason && old.Message == c.Message) {
			continue
		}
		pending := c.Reason == string(gatewayv1.GatewayReasonPending) || c.Reason == string(gatewayv1.GatewayReasonAddressNotAssigned)
		switch c.Type {
		case string(gatewayv1.GatewayConditionAccepted), string(gatewayv1.GatewayConditionProgrammed), string(gatewayv1.GatewayConditionResolvedRefs):
		default:
			continue
		}
		switch {
		case c.Status == metav1.ConditionFalse && pending && old.Status != metav1.ConditionTrue:
			// On its way, not wrong.
		case c.Status == metav1.ConditionFalse:
			out = append(out, newsItem{warning: true, reason: c.Reason, message: name + " is false: " + c.Message})
		case c.Status == metav1.ConditionTrue && (kind == "Gateway" || kind == "GatewayClass" || old.Status == metav1.ConditionFalse) && c.Type != string(gatewayv1.GatewayConditionResolvedRefs):
			out = append(out, newsItem{reason: c.Reason, message: name + ": " + c.Message})
		}
	}
	return out
}

// conditions are ours in an object, by type and by what they are about.
func conditions(o object) map[string]metav1.Condition {
	out := map[string]metav1.Condition{}
	add := func(about string, list []metav1.Condition) {
		for _, c := range list {
			name := c.Type
			if about != "" {
				name += " for " + about
			}
			out[name] = c
		}
	}
	parents := func(list []gatewayv1.RouteParentStatus) {
		for _, p := range list {
			if p.ControllerName == kube.ControllerName {
				add(reference(p.ParentRef), p.Conditions)
			}
		}
	}
	ancestors := func(list []gatewayv1.PolicyAncestorStatus) {
		for _, p := range list {
			if p.ControllerName == kube.ControllerName {
				add(reference(p.AncestorRef), p.Conditions)
			}
		}
	}
	switch o := o.(type) {
	case *gatewayv1.GatewayClass:
		add("", o.Status.Conditions)
	case *gatewayv1.Gateway:
		add("", o.Status.Conditions)
	case *gatewayv1.ListenerSet:
		add("", o.Status.Conditions)
	case *v1alpha1.Provider:
		add("", o.Status.Conditions)
	case *v1alpha1.Tenant:
		add("", o.Status.Conditions)
	case *v1alpha1.Key:
		add("", o.Status.Conditions)
	case *gatewayv1.HTTPRoute:
		parents(o.Status.Parents)
	case *gatewayv1.GRPCRoute:
		parents(o.Status.Parents)
	case *v1alpha1.Model:
		parents(o.Status.Parents)
	case *gatewayv1.BackendTLSPolicy:
		ancestors(o.Status.Ancestors)
	case *v1alpha1.GatewayPolicy:
		ancestors(o.Status.Ancestors)
	case *infv1.InferencePool:
		for _, p := range o.Status.Parents {
			if p.ControllerName == kube.ControllerName {
				add(string(p.ParentRef.Namespace)+"/"+string(p.ParentRef.Name), p.Conditions)
			}
		}
	}
	return out
}

func reference(p gatewayv1.ParentReference) string {
	s := string(p.Name)
	if p.Namespace != nil {
		s = string(*p.Namespace) + "/" + s
	}
	if p.SectionName != nil {
		s += "/" + string(*p.SectionName)
	}
	return s
}

func (e *events) write(k key, about object, n newsItem) {
	kd := (*kind)(nil)
	for i := range e.c.caches.kinds {
		if e.c.caches.kinds[i].name == k.kind {
			kd = &e.c.caches.kinds[i]
		}
	}
	if kd == nil {
		return
	}
	namespace := k.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if len(n.message) > eventLength {
		n.message = n.message[:eventLength-3] + "..."
	}
	level := corev1.EventTypeNormal
	if n.warning {
		level = corev1.EventTypeWarning
	}
	now := metav1.Now()
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	err := e.c.api.create(ctx, corev1.SchemeGroupVersion.WithResource("events"), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", shorten(k.Name, 200), now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			Kind: k.kind, APIVersion: kd.resource.GroupVersion().String(), Namespace: k.Namespace, Name: k.Name,
			UID: about.GetUID(), ResourceVersion: about.GetResourceVersion(),
		},
		Reason: n.reason, Message: n.message, Type: level, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: fieldManager}, ReportingController: kube.ControllerName, ReportingInstance: e.c.o.Identity,
	}, &corev1.Event{})
	if err != nil {
		e.c.log.Debug("event not written", "object", k.String(), "error", err)
	}
}
