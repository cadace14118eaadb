// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// tenant is a Tenant while it is compiled.
type tenant struct {
	*v1alpha1.Tenant
	proto      config.Tenant
	up         *tenant
	scopes     []*scope // of ours, that the outermost one names
	invalid    *problem
	unresolved *problem
}

// tenantKey is a Key while it is compiled.
type tenantKey struct {
	*v1alpha1.Key
	of         *tenant
	proto      config.Key
	invalid    *problem
	unresolved *problem
}

// readTenants compiles Tenants and Keys, and shuts the Gateways that a Tenant
// names to whoever has no key: also where the Tenant is not valid, since whoever
// made it meant them to be shut.
func (t *translation) readTenants() {
	var list []*tenant
	by := map[types.NamespacedName]*tenant{}
	for _, o := range byAge(t.objects.Tenants) {
		n := &tenant{Tenant: o}
		list = append(list, n)
		by[nameOf(o)] = n
		for _, g := range o.Spec.Gateways {
			name := types.NamespacedName{Namespace: o.Namespace, Name: string(g)}
			if s := t.scopes[name]; s != nil {
				s.keyed = true
				n.scopes = append(n.scopes, s)
			} else {
				n.unresolved = &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("there is no Gateway %s of a class of this controller", name)}
			}
		}
	}
	for _, n := range list {
		if n.Spec.Parent != "" {
			n.up = by[types.NamespacedName{Namespace: n.Namespace, Name: string(n.Spec.Parent)}]
		}
	}
	for _, n := range list {
		t.compileTenant(n)
	}
	// From the outside in: a tenant is valid if those above it are.
	slices.SortStableFunc(list, func(a, b *tenant) int { return a.depth() - b.depth() })
	for _, n := range list {
		t.acceptTenant(n)
	}
	t.readKeys(by)
	for _, n := range list {
		t.ownStatus(kindTenant, n, n.invalid, n.unresolved, len(n.root().scopes) > 0 || n.invalid != nil || n.root().unresolved != nil, n.Status.Conditions)
	}
}

// mostLevels is how deep tenants are, with one more to tell a circle by.
const mostLevels = 4

func (n *tenant) depth() (d int) {
	for up := n.up; up != nil && d < mostLevels; up = up.up {
		d++
	}
	return d
}

func (n *tenant) root() *tenant {
	for range mostLevels {
		if n.up == nil {
			break
		}
		n = n.up
	}
	return n
}

// compileTenant reads what a Tenant says of itself.
func (t *translation) compileTenant(n *tenant) {
	spec := &n.Spec
	n.proto = config.Tenant{
		Name: short(n.Name), Kind: spec.Kind, Tier: spec.Tier, Regions: spec.Regions, Models: spec.Models, Deny: spec.Deny, Sources: spec.Sources, Metadata: spec.Metadata,
	}
	n.proto.Limits, n.invalid = limitsOf(spec.Limits)
	switch {
	case n.invalid != nil:
	case (len(spec.Gateways) > 0) == (spec.Parent != ""):
		n.invalid = invalidPolicy("set one of gateways and parent")
	case spec.Parent != "" && n.up == nil:
		n.unresolved = &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("there is no Tenant %s in namespace %s", spec.Parent, n.Namespace)}
		n.invalid = &problem{string(gatewayv1.PolicyReasonInvalid), "its parent is not there"}
	case n.depth() >= mostLevels-1:
		n.invalid = invalidPolicy("there are more than three levels above keys, or they go round in a circle; the levels are organisation, team, project")
	}
	var path []string
	for up, i := n.up, 0; up != nil && i < mostLevels; up, i = up.up, i+1 {
		path = append([]string{short(up.Name)}, path...)
	}
	n.proto.Parent = strings.Join(path, "/")
}

// acceptTenant asks package config about a Tenant and those above it, where its
// bounds have their home.
func (t *translation) acceptTenant(n *tenant) {
	if n.invalid != nil {
		return
	}
	if n.up != nil && n.up.invalid != nil {
		n.invalid = invalidPolicy("the Tenant %s above it is not valid", n.up.Name)
		return
	}
	if n.invalid = n.check(nil); n.invalid != nil {
		return
	}
	for _, s := range n.root().scopes {
		s.tenants = append(s.tenants, n)
	}
}

// check asks package config about a tenant, those above it and keys of its own,
// on each of its Gateways: whether a limit may be shared is the Gateway's affair.
func (n *tenant) check(keys []config.Key) (bad *problem) {
	scopes := n.root().scopes
	if len(scopes) == 0 {
		scopes = []*scope{nil}
	}
	for _, s := range scopes {
		c := scratch()
		for up := n; up != nil; up = up.up {
			c.Tenants = append([]config.Tenant{up.proto}, c.Tenants...)
		}
		c.Tenants[len(c.Tenants)-1].Keys = keys
		if s != nil && s.policy != nil {
			s.policy.apply(c)
		}
		bad = orProblem(bad, tenantProblem(c))
	}
	return bad
}

// tenantProblem validates a configuration whose last tenant is the one that is
// asked about.
func tenantProblem(c *config.Config) *problem {
	c.SetDefaults()
	err := c.Validate()
	if err == nil {
		return nil
	}
	own := fmt.Sprintf("tenants[%d].", len(c.Tenants)-1)
	var lines []string
	for _, p := range config.AsProblems(err) {
		q := config.Problem{Path: strings.TrimPrefix(strings.TrimPrefix(p.Path, own), "keys[0]."), What: p.What, Hint: p.Hint}
		lines = append(lines, q.Error())
	}
	return &problem{string(gatewayv1.PolicyReasonInvalid), strings.Join(lines, "\n")}
}

// readKeys compiles Keys, the oldest first: it has a secret that a younger one
// has too.
func (t *translation) readKeys(tenants map[types.NamespacedName]*tenant) {
	holders := map[*scope]map[string]*tenantKey{} // by digest
	for _, o := range byAge(t.objects.Keys) {
		k := &tenantKey{Key: o}
		t.compileKey(k, tenants)
		var scopes []*scope
		if k.of != nil {
			scopes = k.of.root().scopes
		}
		if k.invalid == nil && k.unresolved == nil {
			for _, s := range scopes {
				if k.invalid = conflicts(holders[s], k); k.invalid != nil {
					break
				}
			}
		}
		if k.invalid == nil && len(k.proto.Secrets) > 0 { // one secret that is there is enough to serve
			for _, s := range scopes {
				if holders[s] == nil {
					holders[s] = map[string]*tenantKey{}
				}
				for _, d := range k.proto.Secrets {
					holders[s][d.Hash] = k
				}
				s.keys = append(s.keys, k)
			}
		}
		t.ownStatus(kindKey, k, k.invalid, k.unresolved, len(scopes) > 0 || k.unresolved != nil, k.Status.Conditions)
	}
}

// conflicts says which older Key has one of the secrets of k.
func conflicts(held map[string]*tenantKey, k *tenantKey) *problem {
	for _, d := range k.proto.Secrets {
		if other := held[d.Hash]; other != nil {
			// Not whose it is: that would tell one tenant about another.
			return &problem{string(gatewayv1.PolicyReasonConflicted), "one of its secrets is that of an older Key"}
		}
	}
	return nil
}

func (t *translation) compileKey(k *tenantKey, tenants map[types.NamespacedName]*tenant) {
	spec := &k.Spec
	from := kindRef{v1alpha1.Group, kindKey, nameOf(k)}
	to := kindRef{v1alpha1.Group, kindTenant, types.NamespacedName{
		Namespace: string(deref(spec.TenantRef.Namespace, gatewayv1.Namespace(k.Namespace))), Name: string(spec.TenantRef.Name),
	}}
	if !t.permitted(from, to) {
		k.unresolved = &problem{string(gatewayv1.RouteReasonRefNotPermitted), notPermitted(from, to)}
		k.invalid = invalidPolicy("its tenant cannot be referred to")
		return
	}
	if k.of = tenants[to.NamespacedName]; k.of == nil {
		k.unresolved = &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("there is no Tenant %s", to.NamespacedName)}
		k.invalid = invalidPolicy("its tenant is not there")
		return
	}
	if k.of.invalid != nil {
		k.invalid = invalidPolicy("the Tenant %s is not valid", to.Name)
		return
	}
	k.proto = config.Key{
		Name: short(k.Namespace + "." + k.Name), Tier: spec.Tier, Models: spec.Models, Deny: spec.Deny, Sources: spec.Sources,
		NotBefore: timeText(spec.NotBefore), Expires: timeText(spec.Expires), Disabled: spec.Disabled, Metadata: spec.Metadata,
	}
	if k.proto.Limits, k.invalid = limitsOf(spec.Limits); k.invalid != nil {
		return
	}
	for i := range spec.SecretRefs {
		ref := &spec.SecretRefs[i]
		value, bad := t.credential(from, &ref.SecretKeyReference)
		if bad != nil {
			k.unresolved = cmp.Or(k.unresolved, bad)
			continue
		}
		secret := config.KeySecret{Hash: digestOf(value), NotBefore: timeText(ref.NotBefore), Expires: timeText(ref.Expires)}
		if !slices.ContainsFunc(k.proto.Secrets, func(o config.KeySecret) bool { return o.Hash == secret.Hash }) {
			k.proto.Secrets = append(k.proto.Secrets, secret)
		}
	}
	if len(k.proto.Secrets) == 0 {
		k.invalid = invalidPolicy("none of its secrets can be had")
		return
	}
	k.invalid = k.of.check([]config.Key{k.proto})
}

// digestOf is the digest of a key, or the one that stands in its place.
func digestOf(value string) string {
	const form = "sha256:"
	if digest, ok := strings.CutPrefix(value, form); ok && len(digest) == 2*sha256.Size {
		if _, err := hex.DecodeString(digest); err == nil {
			return form + strings.ToLower(digest)
		}
	}
	sum := sha256.Sum256([]byte(value))
	return form + hex.EncodeToString(sum[:])
}

func timeText(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// configTenants adds who may ask the Gateway.
func (s *scope) configTenants(c *config.Config) {
	for _, n := range s.tenants {
		out := n.proto
		for _, k := range s.keys {
			if k.of == n {
				out.Keys = append(out.Keys, k.proto)
			}
		}
		c.Tenants = append(c.Tenants, out)
	}
}

// ownStatus notes the conditions of a Provider, Tenant or Key: none, where it
// concerns no Gateway of ours and we have said nothing before.
func (t *translation) ownStatus(kind string, o metav1.Object, invalid, unresolved *problem, ours bool, had []metav1.Condition) {
	if !ours && len(had) == 0 {
		return
	}
	s := t.status(kind, o)
	if !ours {
		s.Conditions = []metav1.Condition{condition(string(gatewayv1.PolicyConditionAccepted), o.GetGeneration(),
			&problem{string(gatewayv1.PolicyReasonTargetNotFound), "no Gateway of this controller is concerned"}, "", "")}
		return
	}
	s.Conditions = []metav1.Condition{
		condition(string(gatewayv1.PolicyConditionAccepted), o.GetGeneration(), invalid, string(gatewayv1.PolicyReasonAccepted), "it is in force"),
		condition(string(gatewayv1.RouteConditionResolvedRefs), o.GetGeneration(), unresolved, string(gatewayv1.RouteReasonResolvedRefs), "all references are resolved"),
	}
}

// limitsOf are limits in the form of the configuration.
func limitsOf(list []v1alpha1.Limit) (out []config.Limit, bad *problem) {
	for i := range list {
		l := &list[i]
		c := config.Limit{
			Requests: int(deref(l.Requests, 0)), Input: int(deref(l.Input, 0)), Output: int(deref(l.Output, 0)), Tokens: int(deref(l.Tokens, 0)),
			Concurrency: int(deref(l.Concurrency, 0)), Per: l.Per, Zone: l.Zone, Models: l.Models, Mode: config.LimitMode(l.Mode),
			Soft: float64(deref(l.SoftPercent, 0)) / 100, Oversize: config.Oversize(l.Oversize),
			OnStoreFailure: config.OnStoreFailure(l.OnStoreFailure), Share: float64(deref(l.SharePercent, 0)) / 100,
		}
		if l.USD != "" {
			usd, _, err := config.ParseUSD(string(l.USD))
			if err != nil {
				return nil, invalidPolicy("limits[%d].usd %v", i, err)
			}
			c.USD = float64(usd) / float64(config.Dollar)
		}
		out = append(out, c)
	}
	return out, nil
}
