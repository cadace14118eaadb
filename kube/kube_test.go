// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/kube"
)

// pair is a certificate, which is an authority too, and its key.
type pair struct{ cert, key string }

func newPair(t testing.TB) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		key:  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	}
}

// parse reads manifests in which $CERT, $KEY and $OTHER stand for PEM texts.
func parse(t testing.TB, p, other pair, text string) *kube.Manifests {
	t.Helper()
	text = strings.NewReplacer("$CERT", strconv.Quote(p.cert), "$KEY", strconv.Quote(p.key), "$OTHER", strconv.Quote(other.cert)).Replace(text)
	m := &kube.Manifests{}
	if err := m.Parse("objects.yaml", []byte(text)); err != nil {
		t.Fatal(err)
	}
	return m
}

// observe gives every Gateway an address, unless a flag of the case says
// "observed: none" (with "unprovisioned: WHY"), and makes those of "unusable:
// ADDRESS" unusable.
func observe(o *kube.Objects, c *golden.Case) kube.Options {
	opts := kube.Options{Observed: map[types.NamespacedName]kube.Observed{}, BundleVersion: c.Flag("bundle")}
	for i, g := range o.Gateways {
		if c.Flag("observed") == "none" {
			opts.Observed[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = kube.Observed{Unprovisioned: c.Flag("unprovisioned")}
			continue
		}
		observed := kube.Observed{
			Ready:     true,
			Addresses: []gatewayv1.GatewayStatusAddress{{Type: new(gatewayv1.IPAddressType), Value: fmt.Sprintf("192.0.2.%d", i+1)}},
		}
		if u := c.Flag("unusable"); u != "" {
			observed.Unusable = []string{u}
		}
		opts.Observed[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = observed
	}
	return opts
}

// TestTranslate runs objects to configurations, members and status.
func TestTranslate(t *testing.T) {
	p, other := newPair(t), newPair(t)
	golden.Run(t, "testdata/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		m := parse(t, p, other, c.File(t, "objects.yaml"))
		opts := observe(&m.Objects, c)
		r := kube.Translate(&m.Objects, opts)
		sameInAnyOrder(t, &m.Objects, opts, r)
		show := func(s string) string {
			return strings.NewReplacer(strconv.Quote(p.cert), "$CERT", strconv.Quote(other.cert), "$OTHER", strconv.Quote(p.cert+other.cert), "$CERT$OTHER").Replace(s)
		}
		out := map[string]string{"status": statuses(r)}
		for _, g := range r.Gateways {
			if c.Flag("show") == "status" {
				valid(t, g)
				continue
			}
			out["config "+g.String()] = show(gateway(t, g, &m.Objects))
		}
		return out
	})
}

// valid holds every configuration to what config asks of one.
func valid(t testing.TB, g *kube.Gateway) {
	t.Helper()
	if g.Config == nil {
		return
	}
	if err := g.Config.Validate(); err != nil {
		t.Errorf("Gateway %s: configuration is not valid:\n%v", g.NamespacedName, err)
	}
	sets := map[string]bool{}
	for _, s := range g.Sources {
		if sets[s.Set] {
			t.Errorf("Gateway %s: two sources of set %q", g.NamespacedName, s.Set)
		}
		sets[s.Set] = true
	}
	// A configuration is withheld until every set of it is known.
	wanted := func(name string) {
		if !sets[name] {
			t.Errorf("Gateway %s: nothing says where the members of set %q come from", g.NamespacedName, name)
		}
		delete(sets, name)
	}
	for _, p := range g.Config.Pools {
		if p.Members.External {
			wanted(p.Name)
		}
		if r := p.Picker.Remote; r != nil && r.External {
			wanted(config.PickerSet(p.Name))
		}
	}
	for name := range sets {
		t.Errorf("Gateway %s: set %q belongs to no pool", g.NamespacedName, name)
	}
}

func gateway(t testing.TB, g *kube.Gateway, o *kube.Objects) string {
	valid(t, g)
	var b strings.Builder
	in := g.Infrastructure
	if len(in.Ports) > 0 {
		fmt.Fprintf(&b, "# ports %v", in.Ports)
		for _, k := range slices.Sorted(maps.Keys(in.Labels)) {
			if k != gatewayv1.GatewayNameLabelKey {
				fmt.Fprintf(&b, " label %s=%s", k, in.Labels[k])
			}
		}
		for _, k := range slices.Sorted(maps.Keys(in.Annotations)) {
			fmt.Fprintf(&b, " annotation %s=%s", k, in.Annotations[k])
		}
		if n := in.Parameters.Replicas; n != nil {
			fmt.Fprintf(&b, " replicas %d", *n)
		}
		if s := in.Parameters.ServiceType; s != "" {
			fmt.Fprintf(&b, " serviceType %s", s)
		}
		for _, a := range in.Addresses {
			fmt.Fprintf(&b, " address %q", a.Value)
		}
		b.WriteByte('\n')
	}
	members := kube.Members(o, g.Sources)
	for _, set := range slices.Sorted(maps.Keys(members)) {
		fmt.Fprintf(&b, "# members of %s:", set)
		for _, m := range members[set] {
			b.WriteString(" " + m.Address)
			for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
				fmt.Fprintf(&b, ",%s=%s", k, m.Labels[k])
			}
		}
		b.WriteByte('\n')
	}
	if g.Config == nil {
		b.WriteString("# none\n")
		return b.String()
	}
	b.Write(g.Config.Sparse())
	return b.String()
}

func conditions(b *strings.Builder, indent string, generation int64, list []metav1.Condition) {
	for _, c := range list {
		fmt.Fprintf(b, "%s%s %s %s: %s", indent, c.Type, c.Status, c.Reason, strings.ReplaceAll(c.Message, "\n", "; "))
		if c.ObservedGeneration != generation {
			fmt.Fprintf(b, " (generation %d, not %d)", c.ObservedGeneration, generation)
		}
		b.WriteByte('\n')
	}
}

func parentText(p gatewayv1.ParentReference) string {
	s := "Gateway"
	if p.Kind != nil {
		s = string(*p.Kind)
	}
	s += " "
	if p.Namespace != nil {
		s += string(*p.Namespace) + "/"
	}
	s += string(p.Name)
	if p.SectionName != nil {
		s += " section " + string(*p.SectionName)
	}
	if p.Port != nil {
		s += fmt.Sprintf(" port %d", *p.Port)
	}
	return s
}

func kinds(list []gatewayv1.RouteGroupKind) string {
	var out []string
	for _, k := range list {
		out = append(out, string(k.Kind))
	}
	return strings.Join(out, ",")
}

// statuses is a line per condition.
func statuses(r *kube.Result) string {
	var b strings.Builder
	for _, s := range r.Statuses {
		fmt.Fprintf(&b, "%s %s\n", s.Kind, s.NamespacedName)
		conditions(&b, "  ", s.Generation, s.Conditions)
		if len(s.Features) > 0 {
			fmt.Fprintf(&b, "  %d features\n", len(s.Features))
		}
		for _, a := range s.Addresses {
			fmt.Fprintf(&b, "  address %s\n", a.Value)
		}
		if n := s.AttachedListenerSets; n != nil && *n > 0 {
			fmt.Fprintf(&b, "  %d ListenerSets\n", *n)
		}
		for _, l := range s.Listeners {
			fmt.Fprintf(&b, "  listener %s: %d routes of %s\n", l.Name, l.AttachedRoutes, kinds(l.SupportedKinds))
			conditions(&b, "    ", s.Generation, l.Conditions)
		}
		for _, l := range s.Entries {
			fmt.Fprintf(&b, "  listener %s: %d routes of %s\n", l.Name, l.AttachedRoutes, kinds(l.SupportedKinds))
			conditions(&b, "    ", s.Generation, l.Conditions)
		}
		for _, p := range s.Parents {
			fmt.Fprintf(&b, "  %s\n", parentText(p.ParentRef))
			conditions(&b, "    ", s.Generation, p.Conditions)
		}
		for _, a := range s.Ancestors {
			fmt.Fprintf(&b, "  %s\n", parentText(a.AncestorRef))
			conditions(&b, "    ", s.Generation, a.Conditions)
		}
		for _, p := range s.Pools {
			fmt.Fprintf(&b, "  %s %s/%s\n", p.ParentRef.Kind, p.ParentRef.Namespace, p.ParentRef.Name)
			conditions(&b, "    ", s.Generation, p.Conditions)
		}
	}
	return b.String()
}

// sameInAnyOrder translates the objects backwards.
func sameInAnyOrder(t testing.TB, o *kube.Objects, opts kube.Options, want *kube.Result) {
	t.Helper()
	back := *o
	reversed(&back.GatewayClasses)
	reversed(&back.Gateways)
	reversed(&back.ListenerSets)
	reversed(&back.HTTPRoutes)
	reversed(&back.GRPCRoutes)
	reversed(&back.ReferenceGrants)
	reversed(&back.BackendTLSPolicies)
	reversed(&back.InferencePools)
	reversed(&back.Models)
	reversed(&back.GatewayPolicies)
	reversed(&back.Pods)
	reversed(&back.EndpointSlices)
	got := kube.Translate(&back, opts)
	if statuses(want) != statuses(got) {
		t.Errorf("status depends on the order of the objects:\n%s\nand backwards:\n%s", statuses(want), statuses(got))
	}
	for i, g := range want.Gateways {
		if one, two := gateway(t, g, o), gateway(t, got.Gateways[i], &back); one != two {
			t.Errorf("configuration depends on the order of the objects:\n%s\nand backwards:\n%s", one, two)
		}
	}
}

// reversed turns a list round and puts a hole into it, which is to be no matter.
func reversed[T any](list *[]*T) {
	*list = append(slices.Clone(*list), nil)
	slices.Reverse(*list)
}
