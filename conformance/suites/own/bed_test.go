// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// bed is a namespace of a test and what the test does in it.
type bed struct {
	*testing.T
	client.Client
	clientset *kubernetes.Clientset
	ns        string
	address   string // of the Gateway gw, once there is one
}

// lay makes a namespace for the test.
func lay(t *testing.T) *bed {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("this needs a cluster, which conformance/run.sh own brings up")
	}
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	cfg.Timeout = 20 * time.Second
	b := &bed{T: t, ns: "own-" + strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))}
	if b.Client, err = client.New(cfg, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(gatewayv1.Install(b.Scheme()), infv1.Install(b.Scheme()), apiextensionsv1.AddToScheme(b.Scheme())); err != nil {
		t.Fatal(err)
	}
	if b.clientset, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.ns}}
	if err := b.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("OWN_DUMP") != "" {
			b.dump()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// The next test shall not share the machine with what is left of this one.
		now := int64(0)
		b.Delete(ctx, &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "gw", Namespace: b.ns}})
		b.Delete(ctx, namespace)
		for ctx.Err() == nil && b.Get(ctx, client.ObjectKeyFromObject(namespace), namespace) == nil {
			b.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(b.ns), &client.DeleteAllOfOptions{DeleteOptions: client.DeleteOptions{GracePeriodSeconds: &now}})
			time.Sleep(200 * time.Millisecond)
		}
		if ctx.Err() != nil {
			t.Errorf("the namespace %s is still there after a minute", b.ns)
		}
	})
	return b
}

// dump shows what a failure may be about.
func (b *bed) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	lines := int64(25)
	for _, ns := range []string{b.ns, system} {
		pods := &corev1.PodList{}
		b.List(ctx, pods, client.InNamespace(ns))
		for i, p := range pods.Items {
			b.Logf("pod %s %s ready=%v deleted=%v restarts=%d", p.Name, p.Status.PodIP, ready(&p), p.DeletionTimestamp, restarts(&p))
			if i < 12 {
				log, _ := b.clientset.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
				b.Logf("%s", log)
			}
		}
	}
	events := &corev1.EventList{}
	b.List(ctx, events, client.InNamespace(b.ns))
	for _, e := range events.Items {
		b.Logf("event %s/%s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// apply creates or changes the objects of a manifest in the namespace.
func (b *bed) apply(manifest string, args ...any) {
	b.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(fmt.Sprintf(manifest, args...)), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			b.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() != "CustomResourceDefinition" {
			o.SetNamespace(b.ns)
		}
		if err := b.Apply(b.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("own"), client.ForceOwnership); err != nil {
			b.Fatalf("apply %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// until waits for what a condition says to come true.
func (b *bed) until(what string, longest time.Duration, is func() (string, bool)) {
	b.Helper()
	var now string
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var ok bool
		if now, ok = is(); ok {
			return
		}
	}
	b.Fatalf("%s: not so after %s: %s", what, longest, now)
}

// gateway makes the Gateway gw and sets its address. Settings are the keys of
// its ConfigMap of parameters, as YAML; there are two processes unless it says
// otherwise.
func (b *bed) gateway(parameters string) {
	b.Helper()
	b.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: gw}
data: {%s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: penstock
  infrastructure:
    parametersRef: {group: "", kind: ConfigMap, name: gw}
  listeners: [{name: http, port: 80, protocol: HTTP}]
`, parameters)
	b.programmed()
}

// programmed waits until the Gateway of the newest generation is served.
func (b *bed) programmed() {
	b.Helper()
	b.until("the Gateway is programmed", 2*time.Minute, func() (string, bool) {
		g := &gatewayv1.Gateway{}
		if err := b.Get(b.Context(), client.ObjectKey{Namespace: b.ns, Name: "gw"}, g); err != nil {
			return err.Error(), false
		}
		c := meta.FindStatusCondition(g.Status.Conditions, string(gatewayv1.GatewayConditionProgrammed))
		if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != g.Generation || len(g.Status.Addresses) == 0 {
			return fmt.Sprintf("%+v %+v", c, g.Status.Addresses), false
		}
		b.address = g.Status.Addresses[0].Value
		return "", true
	})
}

// pool makes an InferencePool of the pods with app NAME-server on port 3000 and
// a route of host NAME.own.test to it. reference is its endpointPickerRef as
// YAML, or empty.
func (b *bed) pool(name, reference string) {
	b.Helper()
	if reference != "" {
		reference = "endpointPickerRef: " + reference
	}
	b.apply(`
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s-server}}
  targetPorts: [{number: 3000}]
  %[2]s
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[1]s}
spec:
  parentRefs: [{name: gw}]
  hostnames: [%[1]s.own.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: %[1]s}]}]
`, name, reference)
}

// workload is a Deployment, and a Service if it has a port for one.
type workload struct {
	name     string
	replicas int
	image    string
	args     []string
	service  int    // port, of the Service of the same name
	probe    string // of readiness, as YAML
	grace    int    // terminationGracePeriodSeconds
	preStop  int    // seconds in which others may learn that it goes
	secret   string // mounted at /certs
	revision string // another one is rolled out
}

// system is the namespace of the controller.
const system = "penstock-system"

const (
	stageImage    = "rig.test/stage:own"
	penstockImage = "ghcr.io/penstock/penstock:own"
)

// servers are stage servers of a pool.
func servers(pool string, replicas int) workload {
	return workload{name: pool + "-server", replicas: replicas, image: stageImage, args: []string{"server"}, probe: "httpGet: {path: /health, port: 3000}", grace: 5}
}

// stagePicker is the picker of a pool that does what requests say.
func stagePicker(pool string) workload {
	return workload{name: pool + "-picker", replicas: 1, image: stageImage, args: []string{"picker"}, service: 9002, probe: "tcpSocket: {port: 9002}", grace: 5}
}

// reference is the endpointPickerRef to a workload.
func reference(w workload, mode string) string {
	return fmt.Sprintf("{name: %s, port: {number: %d}, failureMode: %s}", w.name, w.service, mode)
}

func (b *bed) deploy(w workload) {
	b.Helper()
	lifecycle, volumes, mounts := "{}", "[]", "[]"
	if w.preStop > 0 {
		lifecycle = fmt.Sprintf("{preStop: {sleep: {seconds: %d}}}", w.preStop)
	}
	if w.secret != "" {
		volumes = fmt.Sprintf("[{name: certs, secret: {secretName: %s}}]", w.secret)
		mounts = "[{name: certs, mountPath: /certs}]"
	}
	quoted := make([]string, len(w.args))
	for i, a := range w.args {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	b.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}, annotations: {own/revision: "%[9]s"}}
    spec:
      terminationGracePeriodSeconds: %[6]d
      volumes: %[8]s
      containers:
        - name: main
          image: %[3]s
          args: [%[4]s]
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
          readinessProbe: {%[5]s, periodSeconds: 1}
          lifecycle: %[7]s
          volumeMounts: %[10]s
`, w.name, w.replicas, w.image, strings.Join(quoted, ", "), w.probe, w.grace, lifecycle, volumes, w.revision, mounts)
	if w.service > 0 {
		b.apply(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {app: %[1]s}
  ports: [{name: main, port: %[2]d, targetPort: %[2]d, appProtocol: http2}]
`, w.name, w.service)
	}
}

// mayPick lets the pods of the namespace read what pickers read.
func (b *bed) mayPick() {
	b.Helper()
	b.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: picker}
rules:
  - {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}
  - {apiGroups: [inference.networking.x-k8s.io], resources: ["*"], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: picker}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: picker}
subjects: [{kind: ServiceAccount, name: default, namespace: %s}]
`, b.ns)
}

// running waits until a Deployment is as wanted: every pod of the newest
// template and ready, and none of another left.
func (b *bed) running(names ...string) {
	b.Helper()
	for _, name := range names {
		b.until(name+" runs", 3*time.Minute, func() (string, bool) {
			d := &appsv1.Deployment{}
			if err := b.Get(b.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, d); err != nil {
				return err.Error(), false
			}
			want, s := *d.Spec.Replicas, d.Status
			ok := s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.ReadyReplicas == want && s.AvailableReplicas == want && s.Replicas == want
			return fmt.Sprintf("%+v", s), ok
		})
	}
}

// scale sets the replicas of a Deployment and waits until exactly so many pods
// exist, ready.
func (b *bed) scale(name string, replicas int32) {
	b.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: name}}
	patch := client.RawPatch(client.Merge.Type(), fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := b.Patch(b.Context(), d, patch); err != nil {
		b.Fatal(err)
	}
	b.running(name)
	b.until("pods of "+name, time.Minute, func() (string, bool) {
		n := len(b.pods("app=" + name))
		return fmt.Sprint(n), n == int(replicas)
	})
}

// pods are those that a selector names and that are not gone, by name.
func (b *bed) pods(selector string) []corev1.Pod {
	b.Helper()
	s, err := labels.Parse(selector)
	if err != nil {
		b.Fatal(err)
	}
	list := &corev1.PodList{}
	if err := b.List(b.Context(), list, client.InNamespace(b.ns), client.MatchingLabelsSelector{Selector: s}); err != nil {
		b.Fatal(err)
	}
	slices.SortFunc(list.Items, func(x, y corev1.Pod) int { return strings.Compare(x.Name, y.Name) })
	return list.Items
}

// gateways are the pods of the Gateway.
func (b *bed) gateways() []corev1.Pod {
	b.Helper()
	return b.pods("gateway.networking.k8s.io/gateway-name=gw")
}

// kill deletes pods without any grace, as a node that dies.
func (b *bed) kill(pods ...corev1.Pod) {
	b.Helper()
	now := int64(0)
	for _, p := range pods {
		if err := b.Delete(b.Context(), &p, &client.DeleteOptions{GracePeriodSeconds: &now}); client.IgnoreNotFound(err) != nil {
			b.Fatal(err)
		}
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

func short(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) > 200 {
		return string(text[:200]) + "…"
	}
	return string(text)
}

// remove deletes an object of the namespace.
func (b *bed) remove(version, kind, name string) {
	b.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetNamespace(b.ns)
	o.SetName(name)
	if err := b.Delete(b.Context(), o); err != nil {
		b.Fatal(err)
	}
}

// both makes the Gateway with two pools, whose servers have been deployed: picked,
// whose picker is p, and alone, which has none. It returns traffic to each.
func (b *bed) both(p workload) []*traffic {
	b.Helper()
	b.pool("picked", reference(p, "FailClose"))
	b.pool("alone", "")
	b.gateway("")
	b.running("picked-picker", "picked-server", "alone-server", "gw-penstock")
	b.wait("picked.own.test", 200)
	b.wait("alone.own.test", 200)
	return []*traffic{b.traffic("picked.own.test", 4, 20*time.Millisecond), b.traffic("alone.own.test", 4, 20*time.Millisecond)}
}
