// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestTenants puts a managed provider behind a Gateway that asks for keys: who has
// none is refused, who has one is served, who has used up his limit is told when to
// come back, and a secret that is changed counts at once, on every process.
func TestTenants(t *testing.T) {
	b := lay(t)
	b.deploy(workload{
		name: "managed", replicas: 1, image: penstockImage, grace: 5, service: 3000, probe: "tcpSocket: {port: 3000}",
		args: []string{"sim", "--provider", "--address", "0.0.0.0", "--port", "3000", "--model", "gpt-sim", "--api-key", "sk-right", "--ttft", "1ms", "--itl", "1ms"},
	})
	b.secret("account", "sk-right\n")
	b.secret("first", "key-one")
	b.apply(`
apiVersion: penstock.dev/v1alpha1
kind: GatewayPolicy
metadata: {name: gw}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}
  providers: {private: true}
---
apiVersion: penstock.dev/v1alpha1
kind: Provider
metadata: {name: managed}
spec:
  baseURL: http://managed.%[1]s.svc:3000/v1
  credentials: [{name: main, secretRef: {name: account}}]
  prices: [{input: "1", output: "2"}]
---
apiVersion: penstock.dev/v1alpha1
kind: Model
metadata: {name: stage}
spec:
  parentRefs: [{name: gw}]
  targets: [{providerRef: {name: managed}, model: gpt-sim}]
---
apiVersion: penstock.dev/v1alpha1
kind: Tenant
metadata: {name: acme}
spec: {gateways: [gw], limits: [{usd: "100", per: month}]}
---
apiVersion: penstock.dev/v1alpha1
kind: Key
metadata: {name: first}
spec: {tenantRef: {name: acme}, secretRefs: [{name: first}]}
---
apiVersion: penstock.dev/v1alpha1
kind: Key
metadata: {name: small}
spec: {tenantRef: {name: acme}, secretRefs: [{name: small}], limits: [{requests: 1, per: 1h}]}
`, b.ns)
	b.gateway("")
	b.running("managed", "gw-penstock")
	const host = "stage.own.test"
	key := func(k string) []string { return []string{"authorization", "Bearer " + k} }
	b.wait(host, 401)
	b.wait(host, 401, key("key-two")...)
	b.wait(host, 200, key("key-one")...)
	for kind, name := range map[string]string{"Provider": "managed", "Tenant": "acme", "Key": "first"} {
		b.accepted(kind, name, metav1.ConditionTrue, "ResolvedRefs")
	}
	b.accepted("Key", "small", metav1.ConditionFalse, "ResolvedRefs") // its Secret is not there yet

	// Another secret takes the place of the first one.
	b.secret("first", "key-two")
	b.wait(host, 401, key("key-one")...)
	b.wait(host, 200, key("key-two")...)

	// One request an hour, on each of two processes.
	b.secret("small", "key-small")
	b.accepted("Key", "small", metav1.ConditionTrue, "ResolvedRefs")
	b.until("the limit refuses", time.Minute, func() (string, bool) {
		r := b.ask(host, chat, key("key-small")...)
		if r.err != nil || r.status != http.StatusTooManyRequests {
			return r.String(), false
		}
		after, err := strconv.Atoi(r.header.Get("Retry-After"))
		return fmt.Sprintf("%s, Retry-After %q", r, r.header.Get("Retry-After")), err == nil && after > 3000 && after <= 3600
	})

	// The provider's secret is wrong, then there is none: told as such.
	b.secret("account", "sk-wrong")
	b.until("the provider refuses", time.Minute, func() (string, bool) {
		r := b.ask(host, chat, key("key-two")...)
		return r.String(), r.status >= 500
	})
	b.remove("v1", "Secret", "account")
	b.accepted("Provider", "managed", metav1.ConditionFalse, "Accepted")
	b.wait(host, 503, key("key-two")...)
	b.wait(host, 401)

	// Without tenants the provider is for nobody, unless that is said.
	b.secret("account", "sk-right")
	b.remove("penstock.dev/v1alpha1", "Tenant", "acme")
	b.wait(host, 404)
	b.apply(`
apiVersion: penstock.dev/v1alpha1
kind: GatewayPolicy
metadata: {name: gw}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}
  providers: {private: true, anonymous: true}
`)
	b.until("private and anonymous together are refused", time.Minute, func() (string, bool) {
		c := b.conditions("GatewayPolicy", "gw")
		return fmt.Sprint(c), meta.IsStatusConditionFalse(c, "Accepted")
	})
}

// secret makes or changes a Secret that Providers and Keys may refer to.
func (b *bed) secret(name, value string) {
	b.Helper()
	b.apply(`
apiVersion: v1
kind: Secret
metadata: {name: %s, labels: {penstock.dev/credential: "true"}}
stringData: {key: %q}
`, name, value)
}

// conditions are those of an object of ours, of the first entry where there are
// several.
func (b *bed) conditions(kind, name string) (out []metav1.Condition) {
	b.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("penstock.dev/v1alpha1")
	o.SetKind(kind)
	if err := b.Get(b.Context(), client.ObjectKey{Namespace: b.ns, Name: name}, o); err != nil {
		b.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if entries, _, _ := unstructured.NestedSlice(o.Object, "status", "ancestors"); len(entries) > 0 {
		list, _, _ = unstructured.NestedSlice(entries[0].(map[string]any), "conditions")
	}
	for _, c := range list {
		m := c.(map[string]any)
		out = append(out, metav1.Condition{Type: fmt.Sprint(m["type"]), Status: metav1.ConditionStatus(fmt.Sprint(m["status"])), Message: fmt.Sprint(m["message"])})
	}
	return out
}

// accepted waits until a condition of an object of ours has the status.
func (b *bed) accepted(kind, name string, want metav1.ConditionStatus, condition string) {
	b.Helper()
	b.until(fmt.Sprintf("%s %s is %s %s", kind, name, condition, want), time.Minute, func() (string, bool) {
		c := b.conditions(kind, name)
		return fmt.Sprint(c), meta.IsStatusConditionPresentAndEqual(c, condition, want)
	})
}
