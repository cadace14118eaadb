// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/kube"
)

func TestParse(t *testing.T) {
	m := &kube.Manifests{}
	err := m.Parse("a.yaml", []byte(`# a comment
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: gw}]}
--- # another
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: x}, data: {a: YQ==}, stringData: {b: b}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
---

`))
	if err != nil {
		t.Fatal(err)
	}
	r := m.HTTPRoutes[0]
	if r.Namespace != "default" || r.Generation != 1 || len(r.Spec.Rules) != 1 {
		t.Errorf("defaults of an HTTPRoute: %+v", r)
	}
	if s := m.Secrets[0]; s.Namespace != "x" || string(s.Data["a"]) != "a" || string(s.Data["b"]) != "b" || s.StringData != nil {
		t.Errorf("Secret: %+v", s)
	}
	if len(m.Skipped) != 1 || m.Skipped[0] != "a.yaml: Deployment d" {
		t.Errorf("Skipped = %q", m.Skipped)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"kind: Service\nmetadata: {name: x}", "a.yaml: document at line 1: is no Kubernetes object: apiVersion and kind are needed"},
		{"apiVersion: v1\nkind: Service\n", "a.yaml: document at line 1: Service : has no metadata.name"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", `a.yaml: document at line 4: Pod a: is there already, in namespace "default"`},
		{"\n---\napiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: []}\n", `a.yaml: document at line 2: Service x: json: unknown field "prots"`},
		{"apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: GRPCRoute\nmetadata: {name: x}\n", "GRPCRoute x is of gateway.networking.k8s.io/v1alpha2, which is not read; write apiVersion: gateway.networking.k8s.io/v1"},
		{"a: [", "a.yaml: document at line 1: "},
	} {
		err := (&kube.Manifests{}).Parse("a.yaml", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q) = %v, want %s", c.text, err, c.want)
		}
	}
}

func TestLoadManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml":         "apiVersion: v1\nkind: Service\nmetadata: {name: b}\n",
		"a/x.yml":        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"a/y.json":       `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"}}`,
		"README.md":      "not YAML: [",
		".hidden/x.yaml": "not YAML: [",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := kube.LoadManifests(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range m.Services {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "a c b" {
		t.Errorf("Services = %s, want a c b", got)
	}
	if _, err := kube.LoadManifests(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
