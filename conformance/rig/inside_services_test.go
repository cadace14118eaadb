// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func deployment(name, image string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[3]d
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: main
        image: %[2]s
        lifecycle: {preStop: {sleep: {seconds: 2}}}
        readinessProbe: {httpGet: {path: /id, port: 8080}, periodSeconds: 1}
`, name, image, replicas)
}

func balancer(name, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {type: LoadBalancer, selector: {app: %[1]s}, ports: [{name: web, port: 80, targetPort: 8080}]%[2]s}
`, name, more)
}

func (s *space) address(service string) string {
	s.Helper()
	svc := waitNamed(s, "services", service, "to have an address", func(o *v1.Service) bool { return len(o.Status.LoadBalancer.Ingress) > 0 })
	return svc.Status.LoadBalancer.Ingress[0].IP
}

func reviewers(namespace string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reviewers-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
	}
}

// TestInsideRollingUpdateLosesNothing opens a new connection for each request
// while every pod of the Deployment is replaced.
func TestInsideRollingUpdateLosesNothing(t *testing.T) {
	s := inside(t)
	s.apply(deployment("web", "rig.test/apiclient", 2) + "---" + balancer("web", ""))
	waitNamed(s, "deployments", "web", "to be available", func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 2 })
	url := "http://" + s.address("web") + "/id"
	s.eventually("the service to answer", func() bool { code, _ := s.get(url); return code == 200 })

	ctx, stop := context.WithCancel(s.ctx)
	var clients sync.WaitGroup
	var answers atomic.Int64
	for range 4 {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for ctx.Err() == nil {
				response, err := client.Get(url)
				if err != nil {
					t.Errorf("request %d: %v", answers.Load(), err)
					return
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != 200 {
					t.Errorf("request %d: %s", answers.Load(), response.Status)
					return
				}
				answers.Add(1)
				time.Sleep(time.Millisecond) // the machine has other things to do
			}
		})
	}
	patch := `{"spec":{"template":{"metadata":{"annotations":{"again":"1"}}}}}`
	d, err := s.client.AppsV1().Deployments(s.name).Patch(s.ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitNamed(s, "deployments", "web", "to be updated", func(now *appsv1.Deployment) bool {
		return now.Status.ObservedGeneration >= d.Generation && now.Status.UpdatedReplicas == 2 &&
			now.Status.Replicas == 2 && now.Status.AvailableReplicas == 2
	})
	s.eventually("the old pods to go", func() bool {
		pods, err := s.client.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 2
	})
	stop()
	clients.Wait()
	t.Logf("%d requests", answers.Load())
	if answers.Load() < 100 {
		t.Errorf("only %d requests were made", answers.Load())
	}
}

func TestInsideAddresses(t *testing.T) {
	s := inside(t)
	s.apply(balancer("any", "") +
		"---" + balancer("asked", ", loadBalancerIP: 10.245.200.7") +
		"---" + balancer("outside", ", loadBalancerIP: 192.0.2.1") +
		"---" + balancer("classed", ", loadBalancerClass: example.com/other"))
	if got := s.address("any"); !strings.HasPrefix(got, "10.245.") {
		t.Errorf("address %s is not of the pool", got)
	}
	s.want("address asked for", s.address("asked"), "10.245.200.7")
	s.apply(balancer("late", ", loadBalancerIP: 10.245.200.7"))
	for _, name := range []string{"outside", "late"} {
		s.eventually("an event about "+name, func() bool {
			events, err := s.client.CoreV1().Events(s.name).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=AllocationFailed,involvedObject.name=" + name})
			return err == nil && len(events.Items) > 0
		})
	}
	services, err := s.client.CoreV1().Services(s.name).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, svc := range services.Items {
		has := len(svc.Status.LoadBalancer.Ingress) > 0
		if want := svc.Name == "any" || svc.Name == "asked"; has != want {
			t.Errorf("%s has an address: %v, want %v", svc.Name, has, want)
		}
	}
}

// TestInsideNamesAndClusterIPs reaches a Service from a pod by its name, and a
// load balancer through the pod's default route.
func TestInsideNamesAndClusterIPs(t *testing.T) {
	s := inside(t)
	s.apply(deployment("web", "rig.test/apiclient", 1) + "---" + balancer("web", "") + `
---
apiVersion: v1
kind: Service
metadata: {name: each}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: web, port: 8080}]}
`)
	pod := wait(s, "pods", "app=web", "a ready pod", ready)
	lb := s.address("web")
	svc, err := s.client.CoreV1().Services(s.name).Get(s.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, got := s.ask(pod, "/lookup", "name", "web")
	s.want("web", got, "["+svc.Spec.ClusterIP+"]")
	_, got = s.ask(pod, "/lookup", "name", "web."+s.name+".svc.cluster.local")
	s.want("the full name", got, "["+svc.Spec.ClusterIP+"]")
	s.eventually("the headless name", func() bool {
		_, got := s.ask(pod, "/lookup", "name", "each."+s.name)
		return got == "["+pod.Status.PodIP+"]"
	})
	if code, text := s.ask(pod, "/lookup", "name", "example.com"); code == 200 {
		t.Errorf("example.com resolves to %s", text)
	}
	for _, address := range []string{"web:80", svc.Spec.ClusterIP + ":80", lb + ":80"} {
		s.eventually(address+" from a pod", func() bool { code, _ := s.ask(pod, "/dial", "address", address); return code == 200 })
	}
}

func TestInsideForwardsAnswersOfHalfClosedConnections(t *testing.T) {
	s := inside(t)
	s.apply(deployment("web", "rig.test/apiclient", 1) + "---" + balancer("web", ""))
	wait(s, "pods", "app=web", "a ready pod", ready)
	address := s.address("web") + ":80"
	s.eventually("the service to answer", func() bool { code, _ := s.get("http://" + address + "/id"); return code == 200 })
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET /id HTTP/1.0\r\n\r\n")
	conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 200") {
		t.Errorf("answer %q, %v", answer, err)
	}
	// Without endpoints the address refuses.
	patch := `{"spec":{"replicas":0}}`
	if _, err := s.client.AppsV1().Deployments(s.name).Patch(s.ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the service to refuse", func() bool {
		_, err := net.Dial("tcp", address)
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}
