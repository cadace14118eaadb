// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/kube"
)

func local(t *testing.T, o kube.LocalOptions, texts ...string) (*kube.Manifests, *kube.Local, error) {
	t.Helper()
	m := &kube.Manifests{}
	if err := m.Parse("test.yaml", []byte(strings.Join(texts, "\n---\n"))); err != nil {
		t.Fatal(err)
	}
	l, err := m.Local(o)
	return m, l, err
}

func gatewayYAML(name, class string, ports ...int) string {
	text := fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s, namespace: ai}\nspec:\n  gatewayClassName: %s\n  listeners:\n", name, class)
	for _, port := range ports {
		text += fmt.Sprintf("    - {name: p%d, port: %[1]d, protocol: HTTP}\n", port)
	}
	return text
}

const (
	llamaPool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama, namespace: ai, annotations: {penstock.dev/members: "127.0.0.1:8001,  localhost:8002"}}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}`
	llamaRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llama, namespace: ai}
spec:
  parentRefs: [{name: models}, {name: nowhere}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]}]`
	llamaPod = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: ai, labels: {app: llama}}
spec: {containers: [{name: vllm, image: vllm}]}
status: {podIP: 10.0.0.7, phase: Running, conditions: [{type: Ready, status: "True"}]}`
)

func TestLocal(t *testing.T) {
	_, l, err := local(t, kube.LocalOptions{Bind: "127.0.0.1", Shift: 8000}, gatewayYAML("models", "penstock", 80, 8443), gatewayYAML("other", "penstock", 80), llamaPool, llamaRoute, llamaPod)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range l.Config.Listeners {
		got = append(got, c.Address)
	}
	for _, m := range l.Members["ai/llama"] {
		got = append(got, m.Address)
	}
	got = append(got, l.Others...)
	if diff := cmp.Diff([]string{"127.0.0.1:8080", "127.0.0.1:8443", "127.0.0.1:8001", "localhost:8002", "ai/other"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	pods := strings.Replace(llamaPool, "penstock.dev/members", "other", 1)
	if _, l, err = local(t, kube.LocalOptions{}, gatewayYAML("models", "penstock", 80), pods, llamaRoute, llamaPod); err != nil {
		t.Fatal(err)
	}
	if m := l.Members["ai/llama"]; len(m) != 1 || m[0].Address != "10.0.0.7:8000" {
		t.Errorf("members by pods: %v", m)
	}
}

func TestLocalRefusals(t *testing.T) {
	class := "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: penstock}\nspec: {controllerName: example.org/other}"
	for _, c := range []struct {
		what, want string
		o          kube.LocalOptions
		texts      []string
	}{
		{"no Gateway", "there is no Gateway of a class of penstock", kube.LocalOptions{}, []string{llamaPool}},
		{"a class of others", "there is no Gateway of a class of penstock", kube.LocalOptions{}, []string{gatewayYAML("models", "penstock", 80), class}},
		{"another name", "there is no Gateway nobody; there is ai/models", kube.LocalOptions{Gateway: "nobody"}, []string{gatewayYAML("models", "penstock", 80)}},
		{"one port for two", "would both be served at 127.0.0.1:8080", kube.LocalOptions{Bind: "127.0.0.1", Shift: 8000}, []string{gatewayYAML("models", "penstock", 80, 8080)}},
		{"no address", `"8001" is not host:port`, kube.LocalOptions{}, []string{gatewayYAML("models", "penstock", 80), llamaRoute, strings.Replace(llamaPool, "127.0.0.1:8001", "8001", 1)}},
		{"no listener", "is not accepted", kube.LocalOptions{}, []string{strings.Replace(gatewayYAML("models", "penstock", 80), "HTTP", "SCTP", 1)}},
	} {
		if _, _, err := local(t, c.o, c.texts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestRows(t *testing.T) {
	lost := strings.NewReplacer("name: llama, namespace", "name: lost, namespace", "name: llama}", "name: nobody}", "{name: nowhere}", "{name: models, sectionName: p81}").Replace(llamaRoute)
	m, l, err := local(t, kube.LocalOptions{Bind: "127.0.0.1"}, gatewayYAML("models", "penstock", 80), llamaPool, strings.Replace(llamaPool, "name: llama", "name: spare", 1), llamaRoute, lost)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	v := m.Overview(l.Result, "")
	for _, r := range v.GatewayRows() {
		got = append(got, fmt.Sprint(r.Reason, " ", r.Name, r.Addresses, r.Listeners[0].Routes))
	}
	for _, r := range v.RouteRows() {
		got = append(got, fmt.Sprint(r.Reason, " ", r.Name, " at ", r.Parent))
	}
	for _, r := range v.PoolRows() {
		got = append(got, fmt.Sprint(r.Reason, " ", r.Name, " at ", r.Parent, " bad ", r.Bad))
	}
	want := []string{
		"Programmed models[127.0.0.1] 2",
		"Accepted llama at Gateway ai/models", "Unanswered llama at Gateway ai/nowhere",
		"BackendNotFound lost at Gateway ai/models", "NoMatchingParent lost at Gateway ai/models p81",
		"Accepted llama at Gateway ai/models bad false", "NotReferenced spare at  bad true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rows := m.Overview(l.Result, "elsewhere").GatewayRows(); rows != nil {
		t.Errorf("Gateways of another namespace: %v", rows)
	}
	for _, c := range []struct {
		namespace, name string
		want            bool
	}{{"ai", "models", true}, {"", "models", true}, {"", "x", false}, {"elsewhere", "models", false}} {
		if _, found := v.Explain([]string{"Gateway"}, c.namespace, c.name); found != c.want {
			t.Errorf("Gateway %s of namespace %q is found: %v", c.name, c.namespace, found)
		}
	}
	// A status of an older generation is said to be old.
	for _, g := range m.Gateways {
		g.Generation = 7
	}
	for _, st := range l.Result.Statuses {
		st.Generation = 7
	}
	if r := v.GatewayRows(); r[0].Reason != "Stale" {
		t.Errorf("an old status is %s", r[0].Reason)
	}
}
