// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
)

// fleet is one Gateway with 1,000 HTTPRoutes to 200 pools of 25 pods each, every
// pool with an endpoint picker.
func fleet() *kube.Objects {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ml", Name: name, Generation: 1}
	}
	o := &kube.Objects{
		GatewayClasses: []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "penstock"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: kube.ControllerName}}},
		Gateways: []*gatewayv1.Gateway{{ObjectMeta: meta("gw"), Spec: gatewayv1.GatewaySpec{
			GatewayClassName: "penstock",
			Listeners:        []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}, {Name: "alt", Port: 8080, Protocol: gatewayv1.HTTPProtocolType}},
		}}},
	}
	for i := range 200 {
		name := fmt.Sprintf("pool-%03d", i)
		o.InferencePools = append(o.InferencePools, &infv1.InferencePool{ObjectMeta: meta(name), Spec: infv1.InferencePoolSpec{
			Selector:          infv1.LabelSelector{MatchLabels: map[infv1.LabelKey]infv1.LabelValue{"app": infv1.LabelValue(name)}},
			TargetPorts:       []infv1.Port{{Number: 8000}},
			EndpointPickerRef: &infv1.EndpointPickerRef{Name: infv1.ObjectName(name), Port: &infv1.Port{Number: 9002}},
		}})
		o.Services = append(o.Services, &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "grpc", Port: 9002}}}})
		for j := range 25 {
			pod := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("%s-%d", name, j))}
			pod.Labels = map[string]string{"app": name, "model": "llama", "role": "both"}
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.%d.%d.%d", i/100, i%100, j), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			o.Pods = append(o.Pods, pod)
		}
	}
	for i := range 1000 {
		name := fmt.Sprintf("route-%04d", i)
		o.HTTPRoutes = append(o.HTTPRoutes, &gatewayv1.HTTPRoute{ObjectMeta: meta(name), Spec: gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "gw"}}},
			Hostnames:       []gatewayv1.Hostname{gatewayv1.Hostname(name + ".example.com")},
			Rules: []gatewayv1.HTTPRouteRule{{
				Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Value: new("/v1")}}},
				BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
					Group: new(gatewayv1.Group("inference.networking.k8s.io")), Kind: new(gatewayv1.Kind("InferencePool")), Name: gatewayv1.ObjectName(fmt.Sprintf("pool-%03d", i%200)),
				}}}},
			}},
		}})
	}
	return o
}

// BenchmarkTranslate has a budget of 100 ms, of which most is to be left.
func BenchmarkTranslate(b *testing.B) {
	o := fleet()
	opts := kube.Options{Observed: map[types.NamespacedName]kube.Observed{{Namespace: "ml", Name: "gw"}: {Ready: true}}}
	r := kube.Translate(o, opts)
	if n := len(r.Gateways[0].Config.HTTPRoutes); n != 1000 {
		b.Fatalf("%d routes", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		kube.Translate(o, opts)
	}
}

// BenchmarkMembers computes the members of every pool; BenchmarkMembersOfOne
// those of one pool, as after the event of a pod.
func BenchmarkMembers(b *testing.B) {
	o := fleet()
	g := kube.Translate(o, kube.Options{}).Gateways[0]
	if n := len(kube.Members(o, g.Sources)["ml/pool-000"]); n != 25 {
		b.Fatalf("%d members", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		kube.Members(o, g.Sources)
	}
}

func BenchmarkMembersOfOne(b *testing.B) {
	o := fleet()
	g := kube.Translate(o, kube.Options{}).Gateways[0]
	b.ReportAllocs()
	for b.Loop() {
		kube.Members(o, g.Sources[:1])
	}
}

// BenchmarkValidate is what checking the result would cost on top.
func BenchmarkValidate(b *testing.B) {
	c := kube.Translate(fleet(), kube.Options{}).Gateways[0].Config
	for b.Loop() {
		if err := c.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}
