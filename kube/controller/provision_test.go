// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/kube"
)

// TestProvisioned shows what is made for the Gateways of each case, which are
// manifests. Flags: pool is the pool of addresses' answer.
func TestProvisioned(t *testing.T) {
	golden.Run(t, "testdata/provision/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var m kube.Manifests
		if err := m.Parse("in.yaml", []byte(c.File(t, "in.yaml"))); err != nil {
			t.Fatal(err)
		}
		p := &Provision{
			Image: "penstock:test", Controller: "penstock-controller.penstock-system.svc:9443", Audience: "penstock-controller",
			Bundle: func() []byte { return []byte("AUTHORITIES\n") }, ServiceType: "LoadBalancer", Replicas: 2,
		}
		result := kube.Translate(&m.Objects, kube.Options{})
		var out strings.Builder
		for _, g := range ourGateways(&m.Objects) {
			for _, r := range result.Gateways {
				if r.NamespacedName != nameOf(g) || r.Config == nil {
					continue
				}
				w := plan{gateway: g, infra: r.Infrastructure, drain: r.Config.Limits.Drain.D()}
				if a := c.Flag("pool"); a != "" {
					w.addresses = strings.Fields(a)
				}
				for _, o := range p.objects(w) {
					if o == nil {
						continue
					}
					text, err := appliedForm(o)
					if err != nil {
						t.Fatal(err)
					}
					doc, err := yaml.JSONToYAML(text)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&out, "---\n%s", doc)
				}
			}
		}
		return map[string]string{"objects.yaml": out.String()}
	})
}

// TestNamesStayApart: names that are too long, or become alike without their
// dots, are different ones still, and names of Services.
func TestNamesStayApart(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "a.b", "a-b", "1a", strings.Repeat("x", 253), strings.Repeat("x", 252) + "y", strings.Repeat("x.", 100) + "x"} {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		g.Spec.GatewayClassName = "penstock"
		got := infraName(g).Name
		if len(got) > 63 || strings.Contains(got, ".") || got[0] < 'a' || got[0] > 'z' {
			t.Errorf("%s: %q is no name of a Service", name, got)
		}
		if other := seen[got]; other != "" {
			t.Errorf("%s and %s are both %s", name, other, got)
		}
		seen[got] = name
	}
}
