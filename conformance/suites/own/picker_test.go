// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"testing"
	"time"
)

// penstockPicker is `penstock epp` for a pool.
func penstockPicker(b *bed, pool string) workload {
	return workload{
		name: pool + "-picker", replicas: 1, image: penstockImage, service: 9002, grace: 5,
		args:  []string{"epp", "--pool-name", pool, "--pool-namespace", b.ns, "--grpc-port", "9002", "--grpc-health-port", "9003"},
		probe: "grpc: {port: 9003, service: inference-extension}",
	}
}

// TestPickerDies takes the pickers of two pools away, of which one fails open.
func TestPickerDies(t *testing.T) {
	b := lay(t)
	b.mayPick()
	for pool, mode := range map[string]string{"open": "FailOpen", "closed": "FailClose"} {
		p := penstockPicker(b, pool)
		b.deploy(p)
		b.deploy(servers(pool, 2))
		b.pool(pool, reference(p, mode))
	}
	b.gateway("")
	b.running("open-picker", "closed-picker", "open-server", "closed-server")
	b.wait("open.own.test", 200)
	b.wait("closed.own.test", 200)

	open := b.traffic("open.own.test", 4, 20*time.Millisecond)
	for round := range 2 {
		for _, pool := range []string{"open", "closed"} {
			if round == 0 { // orderly
				b.scale(pool+"-picker", 0)
			} else { // and not: it comes back by itself
				b.kill(b.pods("app=" + pool + "-picker")...)
				b.scale(pool+"-picker", 0)
			}
		}
		b.wait("closed.own.test", 503)
		for range 50 {
			if r := b.ask("closed.own.test", chat); r.err != nil || r.status != 503 {
				t.Errorf("without its picker the pool that fails closed answers %s, want 503", r)
			}
			if r := b.ask("open.own.test", chat); r.err != nil || r.status != 200 {
				t.Errorf("without its picker the pool that fails open answers %s, want 200", r)
			}
		}
		b.scale("open-picker", 1)
		b.scale("closed-picker", 1)
		b.wait("closed.own.test", 200)
	}
	b.losesNothing(open)
}

// TestPickerList hands the gateway lists of endpoints: it goes through them in
// order, says who served, and never leaves the pool.
func TestPickerList(t *testing.T) {
	b := lay(t)
	p := stagePicker("list")
	b.deploy(p)
	b.deploy(servers("list", 2))
	b.deploy(servers("outside", 1))
	b.pool("list", reference(p, "FailClose"))
	b.gateway("")
	b.running("list-picker", "list-server", "outside-server")
	// Ready, in the pool, and deaf on its port.
	b.apply(`
apiVersion: v1
kind: Pod
metadata: {name: dead, labels: {app: list-server, own: dead}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %s, args: [server, -port, "3001"], readinessProbe: {httpGet: {path: /health, port: 3001}, periodSeconds: 1}}]
`, stageImage)
	b.until("the deaf pod is ready", time.Minute, func() (string, bool) {
		pods := b.pods("own=dead")
		return "", len(pods) == 1 && ready(&pods[0])
	})

	at := map[string]string{} // endpoint by name, and name by endpoint
	list := b.pods("app=list-server,own!=dead")
	names := map[string]string{"dead": b.pods("own=dead")[0].Status.PodIP, "outside": b.pods("app=outside-server")[0].Status.PodIP,
		"a": list[0].Status.PodIP, "b": list[1].Status.PodIP}
	for name, ip := range names {
		at[name] = ip + ":3000"
	}
	pod := map[string]string{"a": list[0].Name, "b": list[1].Name}
	b.wait("list.own.test", 200, "x-stage-pick", at["a"])

	for _, c := range []struct{ list, by string }{
		{at["a"], "a"},
		{at["b"], "b"},
		{at["a"] + "," + at["b"], "a"},
		{at["b"] + "," + at["a"], "b"},
		{at["dead"] + "," + at["a"], "a"},
		{at["dead"] + "," + at["b"] + "," + at["a"], "b"},
		{at["outside"] + "," + at["b"], "b"},
		{names["a"] + ":3001," + at["b"], "b"}, // no port of the pool
		{at["dead"] + "," + at["outside"] + "," + at["a"], "a"},
	} {
		for range 10 {
			r := b.ask("list.own.test", chat, "x-stage-pick", c.list)
			if r.err != nil || r.status != 200 || r.header.Get("x-stage-pod") != pod[c.by] || r.header.Get("x-stage-served") != at[c.by] {
				t.Errorf("of %s: %s by %s, reported as %s; want %s, which is %s", c.list, r, r.header.Get("x-stage-pod"), r.header.Get("x-stage-served"), c.by, at[c.by])
				break
			}
		}
	}

	// Nobody of the list is a member: one of the pool instead, whom the gateway
	// chose, or a refusal if a policy says so.
	bad := []string{at["outside"], "10.244.0.1:6443", "192.0.2.1:80", "nonsense", ""}
	for _, list := range bad {
		r := b.ask("list.own.test", chat, "x-stage-pick", list)
		if by := r.header.Get("x-stage-pod"); r.err != nil || r.status != 200 || by != pod["a"] && by != pod["b"] {
			t.Errorf("of %q: %s by %q, want a member of the pool", list, r, by)
		}
	}
	b.apply(`
apiVersion: penstock.dev/v1alpha1
kind: GatewayPolicy
metadata: {name: list}
spec:
  targetRef: {group: inference.networking.k8s.io, kind: InferencePool, name: list}
  picker: {onInvalidPick: reject}
`)
	b.wait("list.own.test", 503, "x-stage-pick", at["outside"])
	for _, list := range bad {
		if r := b.ask("list.own.test", chat, "x-stage-pick", list); r.err != nil || r.status != 503 {
			t.Errorf("of %q with onInvalidPick: reject: %s, want 503", list, r)
		}
	}
}

// TestPickerRefuses lets pickers refuse: what they say is for the client, in
// both failure modes, since a decision is no failure.
func TestPickerRefuses(t *testing.T) {
	b := lay(t)
	for pool, mode := range map[string]string{"open": "FailOpen", "closed": "FailClose"} {
		p := stagePicker(pool)
		b.deploy(p)
		b.deploy(servers(pool, 1))
		b.pool(pool, reference(p, mode))
	}
	b.gateway("")
	b.running("open-picker", "closed-picker", "open-server", "closed-server")
	for _, pool := range []string{"open", "closed"} {
		host := pool + ".own.test"
		b.wait(host, 200)
		for _, code := range []int{429, 503, 400} {
			r := b.ask(host, chat, "x-stage-refuse", fmt.Sprint(code))
			want := fmt.Sprintf(`{"error":{"message":"the stage refuses","code":%d}}`, code)
			if r.err != nil || r.status != code || string(r.body) != want {
				t.Errorf("%s, %d: %s; want the picker's body", pool, code, r)
			}
			if r.header.Get("x-stage-reason") != "by request" || r.header.Get("retry-after") != "7" {
				t.Errorf("%s, %d: header %v; want the picker's fields", pool, code, r.header)
			}
			if by := r.header.Get("x-stage-pod"); by != "" {
				t.Errorf("%s, %d: %s was asked all the same", pool, code, by)
			}
		}
	}
}
