// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
)

var (
	before = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	now    = metav1.NewTime(time.Date(2026, 2, 2, 0, 0, 0, 0, time.UTC))
)

func cond(kind, status, reason string, at metav1.Time) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, LastTransitionTime: at, ObservedGeneration: 2}
}

func routeParent(controller, name string, conditions ...metav1.Condition) gatewayv1.RouteParentStatus {
	return gatewayv1.RouteParentStatus{ControllerName: gatewayv1.GatewayController(controller), ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, Conditions: conditions}
}

// TestMergeParents keeps what is others', where it is, and the time of a
// transition that was none; removes what of ours is not wanted any more, and a
// condition that is there only while it holds.
func TestMergeParents(t *testing.T) {
	const ours, theirs = kube.ControllerName, "example.com/x"
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r", Generation: 2}}
	r.Status.Parents = []gatewayv1.RouteParentStatus{
		routeParent(ours, "gone", cond("Accepted", "True", "Accepted", before)),
		routeParent(theirs, "gw", cond("Accepted", "False", "Mine", before)),
		routeParent(ours, "gw", cond("Accepted", "True", "Accepted", before), cond("ResolvedRefs", "True", "ResolvedRefs", before), cond("PartiallyInvalid", "True", "UnsupportedValue", before), cond("example.com/Own", "True", "Theirs", before)),
	}
	cached := r.DeepCopy()
	s := &kube.Status{Kind: "HTTPRoute", NamespacedName: types.NamespacedName{Namespace: "a", Name: "r"}, Generation: 2, Parents: []gatewayv1.RouteParentStatus{
		routeParent(ours, "gw", cond("Accepted", "True", "Accepted", metav1.Time{}), cond("ResolvedRefs", "False", "BackendNotFound", metav1.Time{})),
		routeParent(ours, "new", cond("Accepted", "True", "Accepted", metav1.Time{})),
	}}
	shared := r.Status.Parents
	changed, err := s.Merge(r, now)
	if err != nil || !changed {
		t.Fatalf("Merge = %v, %v", changed, err)
	}
	want := []gatewayv1.RouteParentStatus{
		routeParent(theirs, "gw", cond("Accepted", "False", "Mine", before)),
		routeParent(ours, "gw", cond("Accepted", "True", "Accepted", before), cond("ResolvedRefs", "False", "BackendNotFound", now), cond("example.com/Own", "True", "Theirs", before)),
		routeParent(ours, "new", cond("Accepted", "True", "Accepted", now)),
	}
	if diff := cmp.Diff(want, r.Status.Parents); diff != "" {
		t.Errorf("parents (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cached.Status.Parents, shared); diff != "" {
		t.Errorf("the old list, which a cache may share, was changed:\n%s", diff)
	}
	if changed, err = s.Merge(r, metav1.Now()); err != nil || changed {
		t.Errorf("a second Merge = %v, %v, want no change", changed, err)
	}
	r.Generation = 3
	s.Parents = nil
	if changed, err = s.Merge(r, now); err != nil || changed {
		t.Errorf("Merge into another generation = %v, %v, want no change", changed, err)
	}
	if _, err := s.Merge(&gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other"}}, now); err == nil {
		t.Error("Merge into another object has no error")
	}
}

// TestMergeFull leaves the entries of others where the schema has no room for
// more.
func TestMergeFull(t *testing.T) {
	p := &infv1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Generation: 1}}
	for range 32 {
		p.Status.Parents = append(p.Status.Parents, infv1.ParentStatus{ControllerName: "example.com/x", ParentRef: infv1.ParentReference{Name: "gw"}})
	}
	s := &kube.Status{Kind: "InferencePool", NamespacedName: types.NamespacedName{Namespace: "a", Name: "p"}, Generation: 1, Pools: []infv1.ParentStatus{{ControllerName: kube.ControllerName, ParentRef: infv1.ParentReference{Name: "gw"}}}}
	if changed, err := s.Merge(p, now); err != nil || changed || len(p.Status.Parents) != 32 {
		t.Errorf("Merge = %v, %v, %d parents", changed, err, len(p.Status.Parents))
	}
	// A reference with its defaults written out is the same parent.
	p.Status.Parents = []infv1.ParentStatus{{ControllerName: kube.ControllerName, ParentRef: infv1.ParentReference{Group: new(infv1.Group("gateway.networking.k8s.io")), Kind: "Gateway", Name: "gw"}}}
	if _, err := s.Merge(p, now); err != nil || len(p.Status.Parents) != 1 {
		t.Errorf("Merge: %v, %d parents, want the same one", err, len(p.Status.Parents))
	}
}

// TestMergeGateway renews listeners by name and takes away a condition of ours
// that does not hold any more.
func TestMergeGateway(t *testing.T) {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "g", Generation: 2}}
	g.Status.Conditions = []metav1.Condition{cond("InsecureFrontendValidationMode", "True", "ConfigurationChanged", before), cond("Accepted", "Unknown", "Pending", before), cond("example.com/Own", "True", "X", before)}
	g.Status.Listeners = []gatewayv1.ListenerStatus{
		{Name: "gone"},
		{Name: "http", Conditions: []metav1.Condition{cond("Accepted", "True", "Accepted", before), cond("OverlappingTLSConfig", "True", "OverlappingHostnames", before)}},
	}
	s := &kube.Status{
		Kind: "Gateway", NamespacedName: types.NamespacedName{Namespace: "a", Name: "g"}, Generation: 2,
		Conditions: []metav1.Condition{cond("Accepted", "True", "Accepted", metav1.Time{})},
		Listeners:  []gatewayv1.ListenerStatus{{Name: "http", AttachedRoutes: 2, Conditions: []metav1.Condition{cond("Accepted", "True", "Accepted", metav1.Time{})}}},
		Addresses:  []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}}, AttachedListenerSets: new(int32(1)),
	}
	if changed, err := s.Merge(g, now); err != nil || !changed {
		t.Fatalf("Merge = %v, %v", changed, err)
	}
	want := gatewayv1.GatewayStatus{
		Conditions:           []metav1.Condition{cond("Accepted", "True", "Accepted", now), cond("example.com/Own", "True", "X", before)},
		Listeners:            []gatewayv1.ListenerStatus{{Name: "http", AttachedRoutes: 2, Conditions: []metav1.Condition{cond("Accepted", "True", "Accepted", before)}}},
		Addresses:            []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}},
		AttachedListenerSets: new(int32(1)),
	}
	if diff := cmp.Diff(want, g.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if changed, err := s.Merge(g, metav1.Now()); err != nil || changed {
		t.Errorf("a second Merge = %v, %v, want no change", changed, err)
	}
}
