// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/kube/kubetest"
)

// printed is what a command prints, a word apart from a word by one space.
func printed(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	root := newRootCommand()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n"), err
}

func statusOf(kind, status, reason, message string) string {
	return `{"type": "` + kind + `", "status": "` + status + `", "reason": "` + reason + `", "message": "` + message + `", "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"}`
}

func objectCluster(t *testing.T) *kubetest.Server {
	s := kubetest.New(t)
	s.Put("gateways", `{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "models", "namespace": "ai", "generation": 2},
		"spec": {"gatewayClassName": "penstock", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
		"status": {"addresses": [{"type": "IPAddress", "value": "192.0.2.1"}], "listeners": [{"name": "http", "attachedRoutes": 3, "supportedKinds": [], "conditions": []}],
			"conditions": [`+statusOf("Accepted", "True", "Accepted", "")+`,`+statusOf("Programmed", "True", "Programmed", "")+`]}}`)
	s.Put("gateways", `{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "a-new-one", "namespace": "ai", "generation": 3},
		"spec": {"gatewayClassName": "penstock", "listeners": []}, "status": {"conditions": [`+statusOf("Accepted", "True", "Accepted", "")+`]}}`)
	s.Put("httproutes", `{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "chat", "namespace": "ai", "generation": 2},
		"spec": {"hostnames": ["a.example"], "parentRefs": [{"name": "models"}, {"name": "nobody"}]},
		"status": {"parents": [{"parentRef": {"name": "models"}, "controllerName": "penstock.dev/gateway-controller", "conditions": [`+
		statusOf("Accepted", "True", "Accepted", "")+`,`+statusOf("ResolvedRefs", "False", "BackendNotFound", "there is no Service x")+`]}]}}`)
	s.Put("inferencepools", `{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "llama", "namespace": "ai", "generation": 2},
		"spec": {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}], "endpointPickerRef": {"name": "epp", "port": {"number": 9002}}},
		"status": {"parents": [{"parentRef": {"name": "models"}, "controllerName": "example.org/other", "conditions": [`+statusOf("Accepted", "True", "Accepted", "")+`]}]}}`)
	s.Refuse(func(c kubetest.Call) int {
		if c.Resource == "models" {
			return 404
		}
		return 0
	})
	return s
}

func TestGetObjects(t *testing.T) {
	kubeconfig := objectCluster(t).Kubeconfig("default")
	for _, c := range []struct{ command, want string }{
		{"get gateways", `REASON NAMESPACE GATEWAY ADDRESS LISTENERS (ROUTES) CLASS MESSAGE
Stale ai a-new-one - - penstock the status is about an older generation; the controller has not looked at this one yet
Programmed ai models 192.0.2.1 http:80 (3) penstock -`},
		{"get routes --namespace ai", `REASON NAMESPACE ROUTE PARENT HOSTNAMES MESSAGE
BackendNotFound ai httproute/chat ai/models a.example there is no Service x
Unanswered ai httproute/chat ai/nobody a.example no controller answers for this parent: is its name right, and its class served?`},
		{"get pools", `REASON NAMESPACE POOL GATEWAY PORTS SELECTOR PICKER MESSAGE
Accepted ai llama ai/models 8000 app=llama epp:9002 -`},
		{"explain route/ai/chat", `OBJECT OF CONDITION STATUS REASON MESSAGE
BAD httproute/ai/chat Gateway ai/models ResolvedRefs False BackendNotFound there is no Service x
ok httproute/ai/chat Gateway ai/models Accepted True Accepted -`},
		{"explain pool/llama", `OBJECT OF CONDITION STATUS REASON MESSAGE
ok inferencepool/ai/llama Gateway ai/models (of example.org/other) Accepted True Accepted -`},
	} {
		got, err := printed(t, append(strings.Fields(c.command), "--kubeconfig", kubeconfig)...)
		if err != nil {
			t.Errorf("%s: %v", c.command, err)
		}
		if _, rest, ok := strings.Cut(got, "their CRD is not installed\n"); ok {
			got = rest
		} else {
			t.Errorf("%s says nothing of the kind that is not known: %s", c.command, got)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.command, diff)
		}
	}
	if _, err := printed(t, "explain", "gateway/ai/nobody", "--kubeconfig", kubeconfig); err == nil || !strings.Contains(err.Error(), "there is no gateway nobody in namespace ai") {
		t.Errorf("explain of a stranger: %v", err)
	}
	got, err := printed(t, "get", "routes", "-o", "json", "--kubeconfig", kubeconfig)
	var rows []kube.RouteRow
	_, text, _ := strings.Cut(got, "\n")
	if err != nil || json.Unmarshal([]byte(text), &rows) != nil || len(rows) != 2 || len(rows[0].Findings) != 2 || !rows[0].Bad {
		t.Errorf("-o json: %v\n%s", err, got)
	}
}

func TestGetObjectsRefused(t *testing.T) {
	s := objectCluster(t)
	s.Refuse(func(kubetest.Call) int { return 403 })
	if _, err := printed(t, "get", "gateways", "--kubeconfig", s.Kubeconfig("default")); err == nil || !strings.Contains(err.Error(), "may not list gateways.gateway.networking.k8s.io in all namespaces") {
		t.Errorf("without a role: %v", err)
	}
	if _, err := printed(t, "get", "gateways", "-f", "/nowhere"); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("of no file: %v", err)
	}
}
