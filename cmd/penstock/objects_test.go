// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/golden"
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
	s.Put("models", `{"apiVersion": "penstock.dev/v1alpha1", "kind": "Model", "metadata": {"name": "chat", "namespace": "ai", "generation": 1},
		"spec": {"parentRefs": [{"name": "models"}], "names": ["chat", "small"], "targets": [{"poolRef": {"name": "llama"}, "model": "llama-8b"}]}}`)
	s.Put("gatewaypolicies", `{"apiVersion": "penstock.dev/v1alpha1", "kind": "GatewayPolicy", "metadata": {"name": "limits", "namespace": "ai", "generation": 1},
		"spec": {"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "modles"}}}`)
	s.Refuse(func(c kubetest.Call) int {
		switch c.Resource {
		case "grpcroutes":
			return 404
		case "pods":
			return 403
		}
		return 0
	})
	return s
}

func TestGetObjects(t *testing.T) {
	kubeconfig := objectCluster(t).Kubeconfig("default")
	for _, c := range []struct{ command, want string }{
		{"get gateways -o table", `REASON NAMESPACE GATEWAY ADDRESS LISTENERS (ROUTES) CLASS MESSAGE
Stale ai a-new-one - - penstock the status is about an older generation; the controller has not looked at this one yet
Programmed ai models 192.0.2.1 http:80 (3) penstock -`},
		{"get routes --namespace ai", `penstock: the cluster knows no grpcroutes.gateway.networking.k8s.io: their CRD is not installed
REASON NAMESPACE ROUTE PARENT HOSTNAMES MESSAGE
BackendNotFound ai httproute/chat ai/models a.example there is no Service x
Unanswered ai httproute/chat ai/nobody a.example no controller answers for this parent: there is no Gateway ai/nobody; there is ai/a-new-one, ai/models`},
		{"get pools", `penstock: which pods serve is not known: may not list pods in all namespaces; the role of this service account lacks it: forbidden by the test
REASON NAMESPACE POOL READY GATEWAY PORTS SELECTOR PICKER MESSAGE
Accepted ai llama - ai/models 8000 app=llama epp:9002 -`},
		{"get models", `REASON NAMESPACE MODEL PARENT NAMES ALIAS OF POOLS MESSAGE
Unanswered ai chat ai/models chat,small - llama (llama-8b) no controller answers for this parent: its class is missing: there is no GatewayClass penstock, and no other`},
		{"get gatewaypolicies --namespace ai", `REASON NAMESPACE POLICY TARGET GATEWAY MESSAGE
TargetNotFound ai limits gateway/modles - there is no Gateway ai/modles; there is ai/a-new-one, ai/models`},
		{"explain gatewaypolicy/ai/limits", `OBJECT OF CONDITION STATUS REASON MESSAGE
BAD gatewaypolicy/ai/limits - Accepted Unknown TargetNotFound there is no Gateway ai/modles; there is ai/a-new-one, ai/models`},
		{"explain httproutes/ai/chat", `OBJECT OF CONDITION STATUS REASON MESSAGE
BAD httproute/ai/chat Gateway ai/models ResolvedRefs False BackendNotFound there is no Service x
BAD httproute/ai/chat Gateway ai/nobody Accepted Unknown Unanswered no controller answers for this parent: there is no Gateway ai/nobody; there is ai/a-new-one, ai/models
ok httproute/ai/chat Gateway ai/models Accepted True Accepted -`},
		{"explain pool/llama", `penstock: which pods serve is not known: may not list pods in all namespaces; the role of this service account lacks it: forbidden by the test
OBJECT OF CONDITION STATUS REASON MESSAGE
ok inferencepool/ai/llama Gateway ai/models (of example.org/other) Accepted True Accepted -`},
	} {
		got, err := printed(t, append(strings.Fields(c.command), "--kubeconfig", kubeconfig)...)
		if err != nil {
			t.Errorf("%s: %v", c.command, err)
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
	_, text, _ := strings.Cut(got, "\n") // that a kind is not known
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

// TestObjectsOfFiles runs commands over manifests: the name of each expected
// file is the command that prints it.
func TestObjectsOfFiles(t *testing.T) {
	golden.Run(t, "testdata/objects/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		dir := t.TempDir()
		file := filepath.Join(dir, "objects.yaml")
		if err := os.WriteFile(file, []byte(c.File(t, "objects.yaml")), 0o600); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for command := range strings.Lines(c.File(t, "commands")) {
			command = strings.TrimSpace(command)
			got, err := printed(t, append(strings.Fields(command), "-f", file)...)
			if err != nil {
				got += "\nerror: " + err.Error()
			}
			out[command] = strings.ReplaceAll(strings.TrimPrefix(got, "\n"), dir+"/", "") + "\n"
		}
		return out
	})
}

// A flag that means nothing for what is asked is refused, and so is a kind that
// is not known, before anybody is asked.
func TestFlagsThatMeanNothing(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"get members --kubeconfig x", "get members asks a running gateway (--admin), for which --kubeconfig means nothing"},
		{"get picks --namespace ai --context y", "for which --context and --namespace mean nothing"},
		{"get pickers -f m.yaml", "for which --filename means nothing"},
		{"get gateways --admin :9901", "get gateways shows objects of Kubernetes, for which --admin means nothing"},
		{"get models -f m.yaml --pool llama", "for which --pool means nothing"},
		{"get policies -n 3", "for which --number means nothing"},
		{"get models --pool llama", "--pool is for get members, pickers, picks, not for models"},
		{"get members -n 3", "--number is for get picks, not for members"},
		{"explain service/ai/x", `"service" is no kind to explain; those are backendtlspolicy, gateway,`},
		{"explain model/ai/x --admin :9901", "model/ai/x is an object of Kubernetes, for which --admin means nothing"},
		{"explain 0f8fad5b --namespace ai", "a request is explained by a running gateway (--admin), for which --namespace means nothing"},
		{"explain model/ai/x --namespace b -f m.yaml", "model/ai/x is of namespace ai, and --namespace says b"},
	} {
		var code *exitError
		if _, err := printed(t, strings.Fields(c.command)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.command, err, c.want)
		} else if !errors.As(err, &code) || code.code != exitUsage {
			t.Errorf("%s: %v has another exit code than %d", c.command, err, exitUsage)
		}
	}
}

// TestExamplesOfObjects: nothing is wrong with the examples but for what the
// reader has to make, and a pool's selector is that of a Deployment beside it.
func TestExamplesOfObjects(t *testing.T) {
	const dir = "../../examples/kubernetes/"
	mine := map[string][]string{"models.yaml": {"there is no Secret ai/ai-cert", "there is no ConfigMap ai/picker-ca", "it cannot be verified as the GatewayPolicy picked says"}}
	files, err := filepath.Glob(dir + "*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples (%v)", len(files), err)
	}
	for _, file := range files {
		m, err := kube.LoadManifests(file)
		if err != nil {
			t.Error(err)
			continue
		}
		l, err := m.Local(kube.LocalOptions{Options: kube.Options{Check: checkContent}})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		v := m.Overview(l.Result, "")
		for _, r := range v.ModelRows() {
			if r.Alias == "" && (len(r.Targets) == 0 || slices.Contains(r.Targets, "")) {
				t.Errorf("%s: Model %s leads to %q", file, r.Name, r.Targets)
			}
		}
		list := v.Silent()
		for _, s := range v.Statuses {
			list = append(list, s.Findings()...)
		}
		for _, f := range list {
			if f.Bad && !slices.ContainsFunc(mine[filepath.Base(file)], func(text string) bool { return strings.Contains(f.Message, text) }) {
				t.Errorf("%s: %s: %s: %s", file, f.Object(), f.Reason, f.Message)
			}
		}
	}
	text, err := os.ReadFile(dir + "cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// One Deployment, one pool, and the same label three times.
	if n := strings.Count(string(text), "{app: llama}"); n != 3 {
		t.Errorf("the label that the pool selects stands in cluster.yaml %d times", n)
	}
}
