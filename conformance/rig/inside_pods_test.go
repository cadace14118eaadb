// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"io"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

type watchEvent = watch.Event

func TestInsideDefinitionsAreServed(t *testing.T) {
	s := inside(t)
	s.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gateway}]
  rules:
  - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec:
  targetPorts: [{number: 8000}]
  selector: {matchLabels: {app: server}}
  endpointPickerRef: {name: picker, port: {number: 9002}}
`)
	_, err := s.dynamic.Resource(gvr("gateway.networking.k8s.io", "v1alpha2", "tcproutes")).Namespace(s.name).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		t.Errorf("the experimental channel is not served: %v", err)
	}
}

func TestInsideEnvironmentAndSecurity(t *testing.T) {
	s := inside(t)
	s.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: green, shape: round}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {word: open sesame}
`)
	pod := s.pod("client", `
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client, tier: front}}
spec:
  securityContext: {runAsUser: 1234, runAsGroup: 2345, fsGroup: 3456}
  containers:
  - name: main
    image: rig.test/apiclient:v1@sha256:0000000000000000000000000000000000000000000000000000000000000000
    securityContext: {readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    resources: {limits: {memory: 64Mi, cpu: 1500m}}
    envFrom: [{configMapRef: {name: settings}, prefix: P_}]
    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
    - {name: WORD, valueFrom: {secretKeyRef: {name: hidden, key: word}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: BOTH, value: "$(IP)/$(P_colour)/$(NONE)/$$(IP)"}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: about, mountPath: /about}
    - {name: settings, mountPath: /etc/one, subPath: shape}
    readinessProbe: {httpGet: {path: /id, port: web}, periodSeconds: 1}
    ports: [{name: web, containerPort: 8080}]
  volumes:
  - {name: scratch, emptyDir: {medium: Memory}}
  - {name: settings, configMap: {name: settings}}
  - name: about
    downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
`)
	for name, want := range map[string]string{
		"P_colour": "green", "IP": pod.Status.PodIP, "TIER": "front", "WORD": "open sesame",
		"MEMORY": "67108864", "CPUS": "2", "BOTH": pod.Status.PodIP + "/green/$(NONE)/$(IP)",
	} {
		_, got := s.ask(pod, "/env", "name", name)
		s.want("variable "+name, got, want)
	}
	_, id := s.ask(pod, "/id")
	s.want("user and group", id, "1234:2345")
	_, labels := s.ask(pod, "/file", "path", "/about/labels")
	// The API server adds where the node is.
	if !strings.HasPrefix(labels, "app=\"client\"\ntier=\"front\"\n") {
		t.Errorf("labels: %s", labels)
	}
	_, shape := s.ask(pod, "/file", "path", "/etc/one")
	s.want("file by subPath", shape, "round")
	if code, text := s.ask(pod, "/write", "path", "/scratch/file"); code != 200 {
		t.Errorf("an emptyDir cannot be written: %s", text)
	}
	for _, path := range []string{"/file", "/about/file"} {
		if code, text := s.ask(pod, "/write", "path", path); code != 500 || !strings.Contains(text, "read-only") {
			t.Errorf("writing %s: %d %s, want read-only", path, code, text)
		}
	}
}

func TestInsideTokens(t *testing.T) {
	s := inside(t)
	_, err := s.client.RbacV1().ClusterRoleBindings().Create(s.ctx, reviewers(s.name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := s.pod("client", `
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  containers:
  - name: main
    image: rig.test/apiclient
    volumeMounts: [{name: token, mountPath: /tokens}]
    readinessProbe: {tcpSocket: {port: 8080}}
  volumes:
  - name: token
    projected: {sources: [{serviceAccountToken: {path: elsewhere, audience: elsewhere, expirationSeconds: 600}}]}
`)
	account := "system:serviceaccount:" + s.name + ":default"
	_, own := s.ask(pod, "/token")
	s.want("own token", own, "true "+account+" [https://kubernetes.default.svc]")
	_, other := s.ask(pod, "/token", "path", "/tokens/elsewhere", "audience", "elsewhere")
	s.want("token for elsewhere", other, "true "+account+" [elsewhere]")
	_, wrong := s.ask(pod, "/token", "path", "/tokens/elsewhere")
	if !strings.HasPrefix(wrong, "false") {
		t.Errorf("a token for elsewhere is good for the API server: %s", wrong)
	}
}

func TestInsideVolumesFollowTheirSource(t *testing.T) {
	s := inside(t)
	manifest := func(a, b string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: \"" + a + "\", b: \"" + b + "\"}\n"
	}
	// The pod is there before what it mounts.
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  containers:
  - name: main
    image: rig.test/apiclient
    volumeMounts: [{name: settings, mountPath: /settings}]
    readinessProbe: {tcpSocket: {port: 8080}}
  volumes: [{name: settings, configMap: {name: settings}}]
`)
	waitNamed(s, "pods", "client", "to say what is missing", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, "not found")
	})
	s.apply(manifest("1", "1"))
	pod := waitNamed(s, "pods", "client", "to be ready", ready)
	s.apply(manifest("2", "2"))
	s.eventually("the file to change", func() bool {
		_, a := s.ask(pod, "/file", "path", "/settings/a")
		return a == "2"
	})
	_, b := s.ask(pod, "/file", "path", "/settings/b")
	s.want("the other file", b, "2")
}

func TestInsideRestartsAndLogs(t *testing.T) {
	s := inside(t)
	pod := s.pod("client", `
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  containers:
  - name: main
    image: rig.test/apiclient
    readinessProbe: {tcpSocket: {port: 8080}}
`)
	s.want("restarts", pod.Status.ContainerStatuses[0].RestartCount, 0)
	follow, err := s.client.CoreV1().Pods(s.name).GetLogs("client", &v1.PodLogOptions{Follow: true}).Stream(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	s.ask(pod, "/exit", "code", "3")
	// The stream ends with the container, so that it holds all of its output.
	text, err := io.ReadAll(follow)
	if err != nil || !strings.Contains(string(text), "exits by request") {
		t.Errorf("followed logs: %q, %v", text, err)
	}
	pod = waitNamed(s, "pods", "client", "to be restarted", func(p *v1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p)
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 3 {
		t.Errorf("last state: %+v, want exit code 3", last)
	}
	s.want("logs", s.logs("client", &v1.PodLogOptions{}), "apiclient starts\n")
	s.want("logs of before", s.logs("client", &v1.PodLogOptions{Previous: true}), "apiclient starts\napiclient exits by request\n")
	s.want("tail", s.logs("client", &v1.PodLogOptions{Previous: true, TailLines: new(int64(1))}), "apiclient exits by request\n")
	s.want("address after a restart", pod.Status.PodIP, waitNamed(s, "pods", "client", "", ready).Status.PodIP)
}

func TestInsideProbesRestartAndHide(t *testing.T) {
	s := inside(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: dead}
spec:
  containers:
  - name: main
    image: rig.test/apiclient
    livenessProbe: {httpGet: {path: /none, port: 8080}, periodSeconds: 1, failureThreshold: 2}
    readinessProbe: {httpGet: {path: /none, port: 8080}, periodSeconds: 1}
`)
	pod := waitNamed(s, "pods", "dead", "to be restarted", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	if ready(pod) {
		t.Error("a pod whose readiness probe fails is ready")
	}
}

func TestInsideInitContainersAndJobs(t *testing.T) {
	s := inside(t)
	s.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: twice}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      initContainers:
      - {name: side, image: rig.test/apiclient, restartPolicy: Always, startupProbe: {httpGet: {path: /id, port: 8080}, periodSeconds: 1}}
      - {name: fails-at-first, image: rig.test/once}
      containers:
      - {name: main, image: rig.test/once}
`)
	for range 2 {
		wait(s, "pods", "job-name=twice", "a pod of the job to succeed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	}
	s.eventually("the job to be complete", func() bool {
		job, err := s.client.BatchV1().Jobs(s.name).Get(s.ctx, "twice", metav1.GetOptions{})
		return err == nil && job.Status.Succeeded == 2
	})
}

func TestInsideUnknownImageSaysWhatToDo(t *testing.T) {
	s := inside(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: unknown}
spec: {containers: [{name: main, image: "example.com/nobody/knows:v1"}]}
`)
	waitNamed(s, "pods", "unknown", "to say what is missing", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, "--image example.com/nobody/knows=PROGRAM")
	})
}

func TestInsideDeletionLeavesNothing(t *testing.T) {
	s := inside(t)
	s.apply(deployment("gone", "rig.test/mapped", 2))
	waitNamed(s, "deployments", "gone", "to be available", func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 2 })
	if n := processes("and\x00its\x00arguments"); n != 2 {
		t.Fatalf("%d processes of the pods, want 2", n)
	}
	pods, err := s.client.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.client.AppsV1().Deployments(s.name).Delete(s.ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pods to go", func() bool {
		_, err := s.client.CoreV1().Pods(s.name).Get(s.ctx, pods.Items[0].Name, metav1.GetOptions{})
		_, err1 := s.client.CoreV1().Pods(s.name).Get(s.ctx, pods.Items[1].Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(err1)
	})
	s.eventually("the processes to go", func() bool { return processes("and\x00its\x00arguments") == 0 })
	for _, pod := range pods.Items {
		if code, _ := s.get("http://" + pod.Status.PodIP + ":8080/id"); code != 0 {
			t.Errorf("%s still answers", pod.Status.PodIP)
		}
	}
}

// eventually is for what cannot be watched.
func (s *space) eventually(what string, ok func() bool) {
	s.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			s.Fatalf("waited 30 s for %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
