// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/kube/kubetest"
)

// followed runs FollowPool against a server and gives what it tells, one after
// the other.
func followed(t *testing.T, s *kubetest.Server, log *slog.Logger) <-chan kube.FollowedPool {
	t.Helper()
	c, err := kube.Connect(s.Kubeconfig("models"), "", "penstock-test")
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan kube.FollowedPool, 100)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.FollowPool(ctx, kube.PoolOptions{Namespace: "models", Name: "llama", Log: log, Changed: func(p kube.FollowedPool) { told <- p }}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return told
}

// next is what is told next, as "protocol address address".
func next(t *testing.T, told <-chan kube.FollowedPool) string {
	t.Helper()
	select {
	case p := <-told:
		words := []string{string(p.Protocol)}
		for _, m := range p.Members {
			words = append(words, m.Address)
		}
		return strings.Join(words, " ")
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is told")
		return ""
	}
}

func quietly(t *testing.T, told <-chan kube.FollowedPool) {
	t.Helper()
	select {
	case p := <-told:
		t.Fatalf("told: %v", p)
	case <-time.After(100 * time.Millisecond):
	}
}

func poolText(labels, ports, more string) string {
	return fmt.Sprintf(`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "llama", "namespace": "models"},
		"spec": {"selector": {"matchLabels": {%s}}, "targetPorts": [%s]%s}}`, labels, ports, more)
}

func podText(name, ip, labels, ready, more string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "models", "labels": {%s}%s},
		"spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
		"status": {"phase": "Running", "podIP": %q, "conditions": [{"type": "Ready", "status": %q}]}}`, name, labels, more, ip, ready)
}

const app = `"app": "llama"`

func TestFollowPool(t *testing.T) {
	s := kubetest.New(t)
	told := followed(t, s, nil)
	quietly(t, told) // no pool yet: nothing is known

	s.Put("pods", podText("a", "10.0.0.1", app, "True", ""))
	s.Put("pods", podText("stranger", "10.0.0.9", `"app": "other"`, "True", ""))
	s.Put("inferencepools", poolText(app, `{"number": 8000}`, ""))
	if got := next(t, told); got != "http 10.0.0.1:8000" {
		t.Fatalf("at first: %s", got)
	}
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"a pod that is not ready", func() { s.Put("pods", podText("b", "10.0.0.2", app, "False", "")) }, ""},
		{"gets ready", func() { s.Put("pods", podText("b", "10.0.0.2", app, "True", "")) }, "http 10.0.0.1:8000 10.0.0.2:8000"},
		{"changes what is not read", func() { s.Put("pods", podText("b", "10.0.0.2", app, "True", `, "annotations": {"x": "y"}`)) }, ""},
		{"is being deleted", func() {
			s.Put("pods", podText("b", "10.0.0.2", app, "True", `, "deletionTimestamp": "2026-01-01T00:00:00Z"`))
		}, "http 10.0.0.1:8000"},
		{"is gone", func() { s.Delete("", "pods", "models", "b") }, ""},
		{"two ports", func() { s.Put("inferencepools", poolText(app, `{"number": 8000}, {"number": 8001}`, "")) }, "http 10.0.0.1:8000 10.0.0.1:8001"},
		{"one of them active", func() {
			s.Put("pods", podText("a", "10.0.0.1", app, "True", `, "annotations": {"inference.networking.k8s.io/active-ports": "8001"}`))
		}, "http 10.0.0.1:8001"},
		{"another protocol", func() {
			s.Put("inferencepools", poolText(app, `{"number": 8001}`, `, "appProtocol": "kubernetes.io/h2c"`))
		}, "kubernetes.io/h2c 10.0.0.1:8001"},
		{"another selector", func() { s.Put("inferencepools", poolText(`"app": "other"`, `{"number": 8000}`, "")) }, "http 10.0.0.9:8000"},
		{"no pool", func() { s.Delete("inference.networking.k8s.io", "inferencepools", "models", "llama") }, "http"},
		{"the pool again", func() { s.Put("inferencepools", poolText(app, `{"number": 8001}`, "")) }, "http 10.0.0.1:8001"},
	} {
		step.change()
		if step.want == "" {
			quietly(t, told)
			continue
		}
		want := strings.Replace(step.want, "kubernetes.io/h2c", string(config.H2C), 1)
		if got := next(t, told); got != want {
			t.Fatalf("%s: %s, want %s", step.what, got, want)
		}
	}
}

// The role of a picker grants what is asked for, no more and no less.
func TestFollowPoolCalls(t *testing.T) {
	s := kubetest.New(t)
	s.Put("inferencepools", poolText(app, `{"number": 8000}`, ""))
	// Without initial events in watches, so that lists are seen as well: older
	// servers have no others.
	told := followed(t, s, nil)
	next(t, told)
	var got []kube.Access
	for _, c := range s.Calls() {
		if c.Namespace != "models" {
			t.Errorf("%v goes beyond the namespace", c)
		}
		got = append(got, kube.Access{Group: c.Group, Resource: c.Resource, Verbs: []string{c.Verb}})
	}
	for _, a := range got {
		if !kube.Grants(kube.PickerAccess(false), a.Group, a.Resource, a.Verbs[0]) {
			t.Errorf("%v is called and not granted", a)
		}
	}
	for _, a := range kube.PickerAccess(false) {
		if !kube.Grants(got, a.Group, a.Resource, "watch") {
			t.Errorf("%v is granted and not called: %v", a, got)
		}
	}
}

func TestFollowPoolOutage(t *testing.T) {
	s := kubetest.New(t)
	var log bytes.Buffer
	var mu sync.Mutex
	locked := writer(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(p) })
	s.Put("inferencepools", poolText(app, `{"number": 8000}`, ""))
	s.Put("pods", podText("a", "10.0.0.1", app, "True", ""))
	s.Refuse(func(c kubetest.Call) int {
		if c.Resource == "pods" {
			return 403
		}
		return 0
	})
	told := followed(t, s, slog.New(slog.NewTextHandler(locked, nil)))
	said := func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
	for end := time.Now().Add(20 * time.Second); !strings.Contains(said(), "may not") && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	quietly(t, told)
	s.Refuse(nil)
	if got := next(t, told); got != "http 10.0.0.1:8000" {
		t.Fatalf("after a refusal: %s", got)
	}
	text := said()
	if n := strings.Count(text, "may not"); n != 1 || !strings.Contains(text, "pods in namespace models; the role of this service account lacks it") {
		t.Errorf("the refusal is told %d times:\n%s", n, text)
	}
	s.Break()
	s.Put("pods", podText("b", "10.0.0.2", app, "True", ""))
	if diff := cmp.Diff("http 10.0.0.1:8000 10.0.0.2:8000", next(t, told)); diff != "" {
		t.Errorf("after a break (-want +got):\n%s", diff)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
