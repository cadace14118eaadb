// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// alias leads another host to a pool: a change of which a request tells that
// the gateways have it.
func (b *bed) alias(host, pool string) {
	b.Helper()
	b.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s}
spec:
  parentRefs: [{name: gw}]
  hostnames: [%s.own.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: %s}]}]
`, host, host, pool)
}

// TestAPIServerAway kills the API server for a while under traffic.
func TestAPIServerAway(t *testing.T) {
	away := lasting(t, "OWN_OUTAGE", 20*time.Second)
	halt := os.Getenv("RIG_HALT")
	if halt == "" {
		t.Fatal("RIG_HALT is not set: this needs a rig, whose API server can be halted; conformance/run.sh own brings one up")
	}
	b := lay(t)
	b.mayPick()
	p := penstockPicker(b, "picked")
	b.deploy(p)
	b.deploy(servers("picked", 2))
	b.deploy(servers("alone", 2))
	all := b.both(p)
	file := filepath.Join(halt, "kube-apiserver")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
	b.until("the API server is away", 10*time.Second, func() (string, bool) {
		_, err := b.clientset.Discovery().ServerVersion()
		return "it answers", err != nil
	})
	before := all[0].sent.Load()
	time.Sleep(away) // the length of the outage is what is given
	if n := all[0].sent.Load() - before; n == 0 {
		t.Error("no request was sent while the API server was away")
	} else {
		t.Logf("%d requests while the API server was away for %s", n, away)
	}
	// What dies of its own accord meanwhile is no business of the API server's.
	os.Remove(file)
	b.until("the API server is back", time.Minute, func() (string, bool) {
		_, err := b.clientset.Discovery().ServerVersion()
		return fmt.Sprint(err), err == nil
	})
	back := time.Now()
	b.alias("later", "alone")
	b.wait("later.own.test", 200)
	t.Logf("a route that was made after the outage served %s after the API server was back", time.Since(back).Round(100*time.Millisecond))
	b.scale("alone-server", 3)
	b.programmed()
	newest := b.pods("app=alone-server")
	b.until("every server is asked", time.Minute, func() (string, bool) {
		all[1].mu.Lock()
		defer all[1].mu.Unlock()
		for _, p := range newest {
			if all[1].by[p.Name] == 0 {
				return fmt.Sprint(all[1].by), false
			}
		}
		return "", true
	})
	t.Logf("a server that was asked for after the outage served %s after the API server was back, most of it until the cluster had made the pod", time.Since(back).Round(100*time.Millisecond))
	for _, traffic := range all {
		b.losesNothing(traffic)
	}
}

// crash kills the processes of a pod, which knows nothing of it.
func (b *bed) crash(pod string) {
	b.Helper()
	found := 0
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environment, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !bytes.Contains(append([]byte{0}, environment...), []byte("\x00POD_NAME="+pod+"\x00")) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		found++
	}
	if found == 0 {
		b.Fatalf("no process of %s was found", pod)
	}
}

// leader is the pod that holds the controller's Lease.
func (b *bed) leader() string {
	b.Helper()
	lease := &coordinationv1.Lease{}
	if err := b.Get(b.Context(), client.ObjectKey{Namespace: system, Name: "penstock-controller"}, lease); err != nil {
		b.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (b *bed) controllers() []corev1.Pod {
	b.Helper()
	list := &corev1.PodList{}
	if err := b.List(b.Context(), list, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": "penstock-controller"}); err != nil {
		b.Fatal(err)
	}
	return list.Items
}

// TestControllerDies kills the leader, then all controllers, under traffic.
func TestControllerDies(t *testing.T) {
	b := lay(t)
	b.mayPick()
	p := penstockPicker(b, "picked")
	b.deploy(p)
	b.deploy(servers("picked", 2))
	b.deploy(servers("alone", 2))
	all := b.both(p)
	whole := func() {
		t.Helper()
		b.until("two controllers are ready", 2*time.Minute, func() (string, bool) {
			pods := b.controllers()
			n := 0
			for _, p := range pods {
				if ready(&p) {
					n++
				}
			}
			return fmt.Sprintf("%d of %d", n, len(pods)), n == 2 && len(pods) == 2
		})
	}
	// holder is the pod of the Lease's holder, whose name may go on.
	holder := func() string {
		t.Helper()
		name := b.leader()
		for _, p := range b.controllers() {
			if strings.HasPrefix(name, p.Name) {
				return p.Name
			}
		}
		return ""
	}
	for round, end := range []string{"the leader crashes", "the leader's node dies", "the leader is deleted", "all crash", "all are deleted"} {
		whole()
		old, begun := holder(), time.Now()
		if old == "" {
			t.Fatalf("the leader %q is no pod", b.leader())
		}
		pods := b.controllers()
		for _, p := range pods {
			switch {
			case end == "the leader crashes" && p.Name == old, end == "all crash":
				b.crash(p.Name)
			case end == "the leader's node dies" && p.Name == old:
				b.crash(p.Name)
				b.kill(p) // it does not come back
			case end == "the leader is deleted" && p.Name == old, end == "all are deleted":
				if err := b.Delete(t.Context(), &p); err != nil {
					t.Fatal(err)
				}
			}
		}
		host := fmt.Sprintf("round-%d", round)
		b.alias(host, "alone")
		b.wait(host+".own.test", 200)
		now := holder()
		t.Logf("%s: a change took %s; %s led, %s does", end, time.Since(begun).Round(100*time.Millisecond), old, now)
		if replaced := end != "the leader crashes" && end != "all crash"; replaced && now == old {
			t.Errorf("%s: it leads still", end)
		}
	}
	whole()
	b.programmed()
	for _, traffic := range all {
		b.losesNothing(traffic)
	}
}
