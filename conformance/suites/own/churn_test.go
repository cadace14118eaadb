// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// members are the endpoints of a pool as one gateway process tells them in its
// metrics, in order.
func (b *bed) members(c *http.Client, gateway *corev1.Pod, pool string) ([]string, error) {
	resp, err := c.Get("http://" + gateway.Status.PodIP + ":9902/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var out []string
	line := regexp.MustCompile(`(?m)^penstock_pool_member_up\{endpoint="([^"]*)",pool="` + regexp.QuoteMeta(b.ns+"/"+pool) + `"\}`)
	for _, m := range line.FindAllSubmatch(text, -1) {
		out = append(out, string(m[1]))
	}
	slices.Sort(out)
	return out, nil
}

// tiny is a pod of a pool's servers without a Deployment.
func (b *bed) tiny(name, app string) *corev1.Pod {
	grace := int64(5)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.ns, Labels: map[string]string{"app": app, "own": "churn"}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "main", Image: stageImage, Args: []string{"server"},
			Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(3000)},
			}},
		}}},
	}
}

// TestChurn lets 300 pods come and go in waves, while each server is asked all
// the time, then measures how long the change of one takes to the gateways.
func TestChurn(t *testing.T) {
	const waves, size = 10, 30
	b := lay(t)
	b.mayPick()
	p := penstockPicker(b, "picked")
	b.deploy(p)
	b.pool("picked", reference(p, "FailClose"))
	b.pool("alone", "")
	b.gateway("")
	for _, pool := range []string{"picked", "alone"} {
		b.deploy(servers(pool, 1))
	}
	b.running("picked-picker", "picked-server", "alone-server", "gw-penstock")
	b.wait("picked.own.test", 200)
	b.wait("alone.own.test", 200)
	all := []*traffic{b.traffic("picked.own.test", 4, 10*time.Millisecond), b.traffic("alone.own.test", 4, 10*time.Millisecond)}

	for wave := range waves {
		for i := range size {
			pool := []string{"picked", "alone"}[i%2]
			if err := b.Create(t.Context(), b.tiny(fmt.Sprintf("wave-%d-%d", wave, i), pool+"-server")); err != nil {
				t.Fatal(err)
			}
		}
		b.until("the wave is ready", 2*time.Minute, func() (string, bool) {
			n := 0
			for _, p := range b.pods("own=churn") {
				if ready(&p) && strings.HasPrefix(p.Name, fmt.Sprintf("wave-%d-", wave)) {
					n++
				}
			}
			return fmt.Sprint(n), n == size
		})
		if wave > 0 { // the one before goes, so that there are always two while they change
			for i := range size {
				if err := b.Delete(t.Context(), b.tiny(fmt.Sprintf("wave-%d-%d", wave-1, i), "")); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	b.same("picked", "alone")
	for _, traffic := range all {
		b.losesNothing(traffic)
		if len(traffic.by) < waves {
			t.Errorf("only %d servers were asked", len(traffic.by))
		}
	}
	b.measure("alone")
}

// same waits until the members of every gateway process are the ready pods of
// the pools.
func (b *bed) same(pools ...string) {
	b.Helper()
	c := &http.Client{Timeout: 5 * time.Second}
	for _, pool := range pools {
		b.until("the members of "+pool+" are its ready pods", 30*time.Second, func() (string, bool) {
			want := []string{}
			for _, p := range b.pods("app=" + pool + "-server") {
				if ready(&p) {
					want = append(want, p.Status.PodIP+":3000")
				}
			}
			slices.Sort(want)
			for _, g := range b.gateways() {
				if !ready(&g) {
					continue
				}
				if has, err := b.members(c, &g, pool); err != nil || !slices.Equal(has, want) {
					return fmt.Sprintf("%s has %v (%v), want %v", g.Name, has, err, want), false
				}
			}
			return "", len(want) > 0
		})
	}
}

// measure moves one pod into and out of a pool by its label, and looks for it
// at one gateway process after each. The time is from before the change is sent
// to the API server until the process shows it.
func (b *bed) measure(pool string) {
	b.Helper()
	const changes, budget = 200, 200 * time.Millisecond
	c := &http.Client{Timeout: 5 * time.Second}
	gateways := b.gateways()
	pod := b.pods("own=churn,app=" + pool + "-server")[0]
	endpoint := pod.Status.PodIP + ":3000"
	var took []time.Duration
	for i := range changes {
		app, in := "nobody", i%2 == 1
		if in {
			app = pool + "-server"
		}
		begun := time.Now()
		patch := client.RawPatch(client.Merge.Type(), fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app))
		if err := b.Patch(b.Context(), pod.DeepCopy(), patch); err != nil {
			b.Fatal(err)
		}
		for {
			has, err := b.members(c, &gateways[i/2%len(gateways)], pool)
			if err != nil {
				b.Fatal(err)
			}
			if slices.Contains(has, endpoint) == in {
				break
			}
			if time.Since(begun) > 30*time.Second {
				b.Fatalf("change %d (in: %v) has not reached the gateway: %v", i, in, has)
			}
			time.Sleep(2 * time.Millisecond)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	at := func(part float64) time.Duration {
		return took[int(part*float64(len(took)-1))].Round(time.Millisecond)
	}
	b.Logf("from a change of a pod to the gateway: %d changes, p50 %s, p90 %s, p99 %s, most %s (budget of p99: %s)",
		len(took), at(.5), at(.9), at(.99), at(1), budget)
	// A machine that does other things meanwhile is no fault.
	if at(.5) > budget || at(.99) > 10*budget {
		b.Errorf("half of the changes took longer than %s, or one in a hundred longer than %s", budget, 10*budget)
	}
}
