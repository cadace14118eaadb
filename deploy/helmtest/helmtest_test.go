// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package helmtest_test renders the chart and holds what comes out to the types
// of Kubernetes, to the tables of access in package kube, and to rules on pods.
// It is a module of its own: Helm's libraries are no business of the program.
package helmtest_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

var (
	update = flag.Bool("update", false, "rewrite deploy/manifests")
	keep   = flag.String("keep", "", "folder to leave in what is rendered, for an API server to look at: make test-manifests")
)

const (
	chartDir  = "../helm/penstock"
	namespace = "penstock-system"
)

// render is what helm template prints for values, in the order of the files.
func render(values string) (string, error) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return "", err
	}
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return "", err
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "penstock", Namespace: namespace, IsInstall: true, Revision: 1}, caps)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(files[name]), "---"))
		if strings.HasSuffix(name, ".yaml") && text != "" {
			out.WriteString("---\n" + text + "\n")
		}
	}
	if *keep != "" {
		name := fmt.Sprintf("%x.yaml", sha256.Sum256([]byte(values)))
		if err := os.WriteFile(filepath.Join(*keep, name), []byte("# values: "+strings.ReplaceAll(values, "\n", "\n# ")+"\n"+out.String()), 0o644); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

// kinds are those that may stand in deploy/; others are foreign, and are only
// checked to be objects.
func kinds() map[string]func() metav1.Object {
	return map[string]func() metav1.Object{
		"v1/ServiceAccount":                               func() metav1.Object { return &corev1.ServiceAccount{} },
		"v1/Service":                                      func() metav1.Object { return &corev1.Service{} },
		"v1/ConfigMap":                                    func() metav1.Object { return &corev1.ConfigMap{} },
		"v1/Namespace":                                    func() metav1.Object { return &corev1.Namespace{} },
		"apps/v1/Deployment":                              func() metav1.Object { return &appsv1.Deployment{} },
		"policy/v1/PodDisruptionBudget":                   func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
		"networking.k8s.io/v1/NetworkPolicy":              func() metav1.Object { return &networkingv1.NetworkPolicy{} },
		"rbac.authorization.k8s.io/v1/Role":               func() metav1.Object { return &rbacv1.Role{} },
		"rbac.authorization.k8s.io/v1/RoleBinding":        func() metav1.Object { return &rbacv1.RoleBinding{} },
		"rbac.authorization.k8s.io/v1/ClusterRole":        func() metav1.Object { return &rbacv1.ClusterRole{} },
		"rbac.authorization.k8s.io/v1/ClusterRoleBinding": func() metav1.Object { return &rbacv1.ClusterRoleBinding{} },
		"autoscaling/v2/HorizontalPodAutoscaler":          func() metav1.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
		"gateway.networking.k8s.io/v1/GatewayClass":       func() metav1.Object { return &gatewayv1.GatewayClass{} },
		"inference.networking.k8s.io/v1/InferencePool":    func() metav1.Object { return &infv1.InferencePool{} },
		"monitoring.coreos.com/v1/PodMonitor":             nil,
		"keda.sh/v1alpha1/ScaledObject":                   nil,
	}
}

// decode reads a stream of objects strictly.
func decode(t *testing.T, text string) []metav1.Object {
	t.Helper()
	var out []metav1.Object
	seen := map[string]bool{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if head.Kind == "" {
			if strings.Trim(doc, "\n") != "" && !onlyComments(doc) {
				t.Fatalf("no object:\n%s", doc)
			}
			continue
		}
		id := fmt.Sprint(head.Kind, "/", head.Namespace, "/", head.Name)
		if head.Name == "" || seen[id] {
			t.Errorf("%s has no name, or is there twice", id)
		}
		seen[id] = true
		make, ok := kinds()[head.APIVersion+"/"+head.Kind]
		switch {
		case !ok:
			t.Errorf("%s: %s %s is no kind that is expected here", id, head.APIVersion, head.Kind)
		case make == nil:
		default:
			o := make()
			if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
				t.Errorf("%s: %v in\n%s", id, err, doc)
			}
			out = append(out, o)
		}
	}
	return out
}

func onlyComments(doc string) bool {
	for line := range strings.Lines(doc) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

const (
	allInOne  = "controller: {enabled: false}\nallInOne: {enabled: true}\n"
	eppValues = `controller: {enabled: false}
gatewayClass: {create: false}
epp:
  - {name: llama-epp, pool: llama, namespace: models}
`
	everything = `image: {repository: registry.example.com/penstock, tag: v9, pullPolicy: IfNotPresent}
imagePullSecrets: [{name: registry}]
common: {labels: {team: inference}, nodeSelector: {pool: cpu}, tolerations: [{key: a, operator: Exists}], priorityClassName: high, logLevel: debug, logFormat: text}
controller: {replicas: 3, addressPool: 192.0.2.0/28, podAnnotations: {a: b}, resources: {limits: {memory: 2Gi}}}
epp:
  - name: llama-epp
    pool: llama
    namespace: models
    config: {plugins: [{type: queue-scorer}, {type: max-score-picker}], schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]}
    certificateSecret: epp-tls
    engine: vllm
    resources: {requests: {cpu: 1}}
  - {name: qwen-epp, pool: qwen, namespace: models, leaderElection: true, replicas: 3, profile: lmetric, drainSeconds: 60}
networkPolicy: {monitoringNamespaceLabels: {kubernetes.io/metadata.name: monitoring}, apiServer: {cidrs: [10.96.0.1/32], ports: [443]}}
monitoring: {podMonitor: {enabled: true, labels: {release: prometheus}}}
`
)

func TestChart(t *testing.T) {
	for name, values := range map[string]string{
		"defaults": "", "all-in-one": allInOne, "epp": eppValues, "everything": everything,
		"host network":      allInOne + "  hostNetwork: true\n",
		"without policies":  everything + "gatewayClass: {create: false}\n",
		"monitored gateway": "monitoring: {podMonitor: {enabled: true}}\nnetworkPolicy: {enabled: false}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if name == "host network" {
				values = "controller: {enabled: false}\nallInOne: {enabled: true, hostNetwork: true}\n"
			}
			text, err := render(values)
			if err != nil {
				t.Fatal(err)
			}
			objects := decode(t, text)
			if len(objects) < 5 {
				t.Fatalf("only %d objects:\n%s", len(objects), text)
			}
			checkPods(t, objects)
			checkReferences(t, objects)
		})
	}
}

// checkPods holds every pod to the pod security standard "restricted", and to
// what makes a roll-out lose nothing.
func checkPods(t *testing.T, objects []metav1.Object) {
	t.Helper()
	for _, o := range objects {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		pod := d.Spec.Template.Spec
		s := pod.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod security: %v", d.Name, s)
		}
		if pod.HostPID || pod.HostIPC {
			t.Errorf("%s shares namespaces of the node", d.Name)
		}
		for _, c := range pod.Containers {
			s := c.SecurityContext
			if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: container security: %v", d.Name, s)
			}
			if c.LivenessProbe == nil || c.ReadinessProbe == nil || c.StartupProbe == nil {
				t.Errorf("%s lacks probes", d.Name)
			}
			if len(c.Resources.Requests) == 0 && len(c.Resources.Limits) == 0 {
				t.Errorf("%s says nothing of resources", d.Name)
			}
			if c.Resources.Limits.Cpu() != nil && !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s has a limit of CPU, which throttles streams", d.Name)
			}
			names := map[string]bool{}
			for _, p := range c.Ports {
				names[p.Name] = true
				if len(p.Name) > 15 {
					t.Errorf("%s: the name of port %s is too long", d.Name, p.Name)
				}
			}
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
				if p != nil && p.HTTPGet != nil && !names[p.HTTPGet.Port.StrVal] {
					t.Errorf("%s: a probe asks port %v, which is none", d.Name, p.HTTPGet.Port)
				}
			}
		}
	}
}

// checkReferences finds what each object refers to.
func checkReferences(t *testing.T, objects []metav1.Object) {
	t.Helper()
	has := func(kind func(metav1.Object) bool, namespace, name string) bool {
		return slices.ContainsFunc(objects, func(o metav1.Object) bool {
			return kind(o) && o.GetNamespace() == namespace && o.GetName() == name
		})
	}
	account := func(o metav1.Object) bool { _, ok := o.(*corev1.ServiceAccount); return ok }
	role := func(o metav1.Object) bool { _, ok := o.(*rbacv1.Role); return ok }
	clusterRole := func(o metav1.Object) bool { _, ok := o.(*rbacv1.ClusterRole); return ok }
	selects := func(what, namespace string, selector map[string]string) {
		n := 0
		for _, o := range objects {
			if d, ok := o.(*appsv1.Deployment); ok && d.Namespace == namespace && within(selector, d.Spec.Template.Labels) {
				n++
			}
		}
		if n != 1 || len(selector) == 0 {
			t.Errorf("%s selects the pods of %d Deployments", what, n)
		}
	}
	subjects := func(name string, list []rbacv1.Subject) {
		for _, s := range list {
			if !has(account, s.Namespace, s.Name) {
				t.Errorf("%s binds %s, which is not there", name, s.Name)
			}
		}
	}
	for _, o := range objects {
		name := fmt.Sprintf("%T %s", o, o.GetName())
		switch o := o.(type) {
		case *appsv1.Deployment:
			selects(name, o.Namespace, o.Spec.Selector.MatchLabels)
			if !has(account, o.Namespace, o.Spec.Template.Spec.ServiceAccountName) {
				t.Errorf("%s runs as %s, which is not there", name, o.Spec.Template.Spec.ServiceAccountName)
			}
		case *corev1.Service:
			selects(name, o.Namespace, o.Spec.Selector)
		case *policyv1.PodDisruptionBudget:
			selects(name, o.Namespace, o.Spec.Selector.MatchLabels)
		case *networkingv1.NetworkPolicy:
			selects(name, o.Namespace, o.Spec.PodSelector.MatchLabels)
		case *rbacv1.RoleBinding:
			subjects(name, o.Subjects)
			if !has(role, o.Namespace, o.RoleRef.Name) {
				t.Errorf("%s binds Role %s, which is not there", name, o.RoleRef.Name)
			}
		case *rbacv1.ClusterRoleBinding:
			subjects(name, o.Subjects)
			if !has(clusterRole, "", o.RoleRef.Name) {
				t.Errorf("%s binds ClusterRole %s, which is not there", name, o.RoleRef.Name)
			}
		}
	}
}

func within(part, whole map[string]string) bool {
	for k, v := range part {
		if whole[k] != v {
			return false
		}
	}
	return true
}

func TestSchemaRefuses(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"replicas: 2", "replicas"},
		{"controller: {replicas: 0}", "replicas"},
		{"controller: {replicas: two}", "replicas"},
		{"controller: {serviceType: ExternalName}", "serviceType"},
		{"controller: {addressPool: everything}", "addressPool"},
		{"controller: {resources: {request: {cpu: 1}}}", "request"},
		{"common: {logLevel: loud}", "logLevel"},
		{"image: {tag: 1}", "tag"},
		{"image: {pullPolicy: Sometimes}", "pullPolicy"},
		{"epp: [{name: a, pool: b}]", "namespace"},
		{"epp: [{name: A_b, pool: b, namespace: c}]", "name"},
		{"epp: [{name: a, pool: b, namespace: c, profile: x, config: {plugins: []}}]", "epp"},
		{"epp: [{name: a, pool: b, namespace: c, engine: other}]", "engine"},
		{"allInOne: {ports: [80, 80]}", "ports"},
		{"allInOne: {ports: [70000]}", "ports"},
		{"networkPolicy: {apiServer: {cidrs: [api.example.com]}}", "cidrs"},
		{"monitoring: {podMonitor: {interval: often}}", "interval"},
		{"allInOne: {enabled: true}", "enable one of them"},
	} {
		if _, err := render(c.values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error about %s", c.values, err, c.want)
		}
	}
}

// TestManifests compares deploy/manifests with the chart: they are what it
// prints for a file of values each.
func TestManifests(t *testing.T) {
	for name, values := range map[string]string{"controller": "", "all-in-one": allInOne, "epp": eppValues} {
		text, err := render(values)
		if err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "app.kubernetes.io/managed-by: Helm\n", "app.kubernetes.io/managed-by: manifests\n")
		head := "# Written by go test ./... -update in deploy/helmtest from the chart. Apply it after\n# the CRDs; see docs/install.md.\n"
		if name != "epp" {
			head += "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: " + namespace + "\n  labels: {pod-security.kubernetes.io/enforce: restricted}\n"
		}
		text = head + text
		file := filepath.Join("../manifests", name+".yaml")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(committed) != text {
			t.Errorf("%s is old: go test ./... -update", file)
		}
		decode(t, string(committed))
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decode(t, string(text)) {
			h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler)
			if !ok || !strings.Contains(file, "model-servers") {
				continue
			}
			for _, m := range h.Spec.Metrics {
				if m.Type == autoscalingv2.ResourceMetricSourceType {
					t.Errorf("%s scales model servers by %s", file, m.Resource.Name)
				}
			}
		}
	}
}

// TestCRDs compares the chart's CRDs with those that are generated.
func TestCRDs(t *testing.T) {
	for _, pair := range [][2]string{{"../crds", chartDir + "/crds"}, {chartDir + "/crds", "../crds"}} {
		files, err := filepath.Glob(pair[0] + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("no CRDs in %s: %v", pair[0], err)
		}
		for _, file := range files {
			a, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(pair[1], filepath.Base(file)))
			if err != nil || string(a) != string(b) {
				t.Errorf("%s and its copy in %s differ (%v); make generate", file, pair[1], err)
			}
		}
	}
}
