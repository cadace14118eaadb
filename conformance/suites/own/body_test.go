// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// prompt is a request of about n bytes. Its keys are in the order of the
// alphabet: one picker writes bodies anew.
func prompt(n int) string {
	const words = "How much water goes through? "
	return `{"max_tokens":4,"messages":[{"content":"` + strings.Repeat(words, n/len(words)) + `","role":"user"}],"model":"stage"}`
}

// sameJSON tells whether two texts are one value.
func sameJSON(x, y []byte) bool {
	var a, b any
	return json.Unmarshal(x, &a) == nil && json.Unmarshal(y, &b) == nil && reflect.DeepEqual(a, b)
}

// TestLargeBodies sends 20 MB there and back.
func TestLargeBodies(t *testing.T) {
	b := lay(t)
	b.mayPick()
	pickers := map[string]workload{"stage": stagePicker("stage"), "penstock": penstockPicker(b, "penstock")}
	for pool, p := range pickers {
		b.deploy(p)
		b.deploy(servers(pool, 1))
		b.pool(pool, reference(p, "FailClose"))
	}
	b.deploy(servers("alone", 1))
	b.pool("alone", "")
	b.gateway("")
	b.running("stage-picker", "penstock-picker", "stage-server", "penstock-server", "alone-server")
	body := prompt(20_000_000)
	for _, pool := range []string{"alone", "stage", "penstock"} {
		var pick []string
		if pool == "stage" {
			pick = []string{"x-stage-pick", b.pods("app=stage-server")[0].Status.PodIP + ":3000"}
		}
		b.wait(pool+".own.test", 200, pick...)
		begun := time.Now()
		for range 3 {
			r := b.ask(pool+".own.test", body, append(pick, "x-stage-echo", "yes")...)
			if r.err != nil || r.status != 200 || r.header.Get("x-stage-digest") != digest(body) {
				t.Errorf("%s: %s, digest %s; want 200 and %s", pool, r, r.header.Get("x-stage-digest"), digest(body))
			} else if digest(string(r.body)) != digest(body) {
				t.Errorf("%s: %d bytes came back that are not the %d that were sent", pool, len(r.body), len(body))
			}
		}
		t.Logf("%s: %d bytes there and back in %s", pool, len(body), (time.Since(begun) / 3).Round(time.Millisecond))
	}
}

// lwepp and epp are the pickers of the inference extension: the reference of
// v1.6 and the full one, last in v1.5.
func lwepp(b *bed, pool string) workload {
	w := penstockPicker(b, pool)
	w.image, w.args = "registry.k8s.io/gateway-api-inference-extension/lwepp:v1.6.0", w.args[1:]
	return w
}

func epp(b *bed, pool string) workload {
	w := penstockPicker(b, pool)
	w.image = "registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0"
	w.args = append(w.args[1:], "--tracing=false", "--metrics-endpoint-auth=false")
	return w
}

// oldKinds defines what the full picker watches; the rig has the definitions of
// the version after.
func (b *bed) oldKinds() {
	b.Helper()
	for plural, kind := range map[string]string{"inferenceobjectives": "InferenceObjective", "inferencemodelrewrites": "InferenceModelRewrite"} {
		name := plural + ".inference.networking.x-k8s.io"
		b.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s}
spec:
  group: inference.networking.x-k8s.io
  scope: Namespaced
  names: {plural: %s, kind: %s}
  versions:
    - {name: v1alpha2, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, name, plural, kind)
		b.until(name+" is established", time.Minute, func() (string, bool) {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := b.Get(b.Context(), client.ObjectKey{Name: name}, crd); err != nil {
				return err.Error(), false
			}
			for _, c := range crd.Status.Conditions {
				if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
					return "", true
				}
			}
			return fmt.Sprint(crd.Status.Conditions), false
		})
	}
}

// TestOtherPickers puts the pickers of the inference extension in front of
// pools: streams, bodies of 1 MB, and traffic.
func TestOtherPickers(t *testing.T) {
	b := lay(t)
	b.mayPick()
	b.oldKinds()
	for pool, p := range map[string]workload{"lwepp": lwepp(b, "lwepp"), "epp": epp(b, "epp")} {
		b.deploy(p)
		b.deploy(servers(pool, 2))
		b.pool(pool, reference(p, "FailClose")) // no answer without the picker
	}
	// And in front of servers with metrics that move.
	p := epp(b, "sim")
	b.deploy(p)
	b.deploy(workload{
		name: "sim-server", replicas: 2, image: penstockImage, grace: 5, probe: "httpGet: {path: /health, port: 3000}",
		args: []string{"sim", "--address", "0.0.0.0", "--port", "3000", "--model", "stage"},
	})
	b.pool("sim", reference(p, "FailClose"))
	b.gateway("")
	b.running("lwepp-picker", "epp-picker", "lwepp-server", "epp-server", "sim-picker", "sim-server")
	body := prompt(1_000_000)
	for _, pool := range []string{"lwepp", "epp"} {
		host := pool + ".own.test"
		b.wait(host, 200)
		for range 10 {
			r := b.ask(host, body, "x-stage-echo", "yes")
			if r.err != nil || r.status != 200 || !sameJSON(r.body, []byte(body)) {
				t.Errorf("%s: %s, %d bytes; want the %d that were sent", pool, r, len(r.body), len(body))
			}
		}
		for range 2 {
			r := b.ask(host, strings.Replace(chat, "{", `{"stream":true,`, 1), "x-stage-stream", "3s")
			if n := strings.Count(string(r.body), `"delta":{"content"`); r.err != nil || r.status != 200 || n != 30 || !strings.HasSuffix(string(r.body), "data: [DONE]\n\n") {
				t.Errorf("%s: a stream of %d events, want 30 and its end: %s", pool, n, r)
			}
		}
		by := map[string]int{}
		for range 100 {
			r := b.ask(host, chat)
			if r.err != nil || r.status != 200 {
				t.Errorf("%s: %s", pool, r)
			}
			by[r.header.Get("x-stage-pod")]++
		}
		t.Logf("%s: 100 requests went to %v", pool, by)
	}
	b.wait("sim.own.test", 200)
	for range 20 {
		r := b.ask("sim.own.test", strings.Replace(chat, "{", `{"stream":true,`, 1))
		if r.err != nil || r.status != 200 || !strings.HasSuffix(string(r.body), "data: [DONE]\n\n") {
			t.Errorf("sim: a stream that ends with %q: %s", short(r.body[max(0, len(r.body)-40):]), r)
		}
	}
}
