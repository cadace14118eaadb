// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// CredentialLabel is what a Secret is labelled with ("true") whose keys Providers,
// Keys and GatewayPolicies of its namespace may refer to. Of Secrets without it a
// controller keeps key pairs of TLS and nothing else.
const CredentialLabel = "penstock.dev/credential"

// credentialKey is the key of a Secret's data unless a reference names another.
const credentialKey = "key"

// Reasons of ResolvedRefs for what the Gateway API has no word for.
const (
	reasonInvalidSecretRef    = "InvalidSecretRef"
	reasonInvalidConfigMapRef = "InvalidConfigMapRef"
)

// credential follows a reference to a Secret in the namespace of from. White space
// around the value is not part of it: files that Secrets are made of end with a
// new line.
func (x *index) credential(from kindRef, ref *v1alpha1.SecretKeyReference) (string, *problem) {
	name := types.NamespacedName{Namespace: from.Namespace, Name: string(ref.Name)}
	key := ref.Key
	if key == "" {
		key = credentialKey
	}
	refuse := func(format string, args ...any) (string, *problem) {
		return "", &problem{reasonInvalidSecretRef, fmt.Sprintf(format, args...)}
	}
	s, ok := x.secrets[name]
	switch {
	case !ok:
		return refuse("there is no Secret %s", name)
	case s.Labels[CredentialLabel] != "true":
		return refuse(`the Secret %s is not labelled %s: "true", by which its owner says that it is meant for gateways`, name, CredentialLabel)
	}
	value, ok := s.Data[key]
	text := strings.TrimSpace(string(value))
	switch {
	case !ok:
		return refuse("the Secret %s has no key %q", name, key)
	case text == "":
		return refuse("the key %q of the Secret %s is empty", key, name)
	}
	return text, nil
}

// managed is a Provider while it is compiled.
type managed struct {
	*v1alpha1.Provider
	proto      config.Provider
	prices     []config.Price
	private    *problem // why a Gateway that allows no private addresses refuses it
	invalid    *problem
	unresolved *problem
	used       bool // by a Model on a Gateway of ours
}

// readProviders compiles every Provider.
func (t *translation) readProviders() {
	for _, o := range byAge(t.objects.Providers) {
		p := &managed{Provider: o}
		t.compileProvider(p)
		t.providers[nameOf(o)] = p
	}
}

func (t *translation) compileProvider(p *managed) {
	spec := &p.Spec
	p.proto = config.Provider{
		Name: short(p.Namespace + "." + p.Name), Dialect: config.ProviderKind(spec.Dialect), BaseURL: spec.BaseURL, Quirks: spec.Quirks,
		Region: spec.Region, Project: spec.Project, APIVersion: spec.APIVersion, PriceList: spec.PriceList,
	}
	if p.invalid = timeouts(spec.Timeouts, &p.proto.Timeouts); p.invalid != nil {
		return
	}
	from := kindRef{v1alpha1.Group, kindProvider, nameOf(p)}
	for i := range spec.Credentials {
		c := &spec.Credentials[i]
		out := config.Credential{Name: c.Name, Organization: c.Organization, Project: c.Project, AccessKeyID: c.AccessKeyID}
		if out.Name == "" {
			out.Name = strconv.Itoa(i + 1) // it stays when one before it cannot be had
		}
		if c.Weight != nil {
			out.Weight = new(int(*c.Weight))
		}
		if out.Limits, p.invalid = limitsOf(c.Limits); p.invalid != nil {
			return
		}
		value, bad := t.credential(from, &c.SecretRef)
		if bad == nil && c.SessionTokenRef != nil {
			var token string
			token, bad = t.credential(from, c.SessionTokenRef)
			out.SessionToken = config.Secret(token)
		}
		if bad != nil {
			p.unresolved = bad
			continue
		}
		out.Secret = config.Secret(value)
		p.proto.Credentials = append(p.proto.Credentials, out)
	}
	if len(spec.Credentials) > 0 && len(p.proto.Credentials) == 0 {
		p.invalid = invalidPolicy("none of its credentials can be had")
		return
	}
	if p.prices, p.invalid = pricesOf(p.proto.Name, spec.Prices); p.invalid != nil {
		return
	}
	if p.private = p.check(false); p.private == nil {
		return
	}
	p.invalid = p.check(true) // what a Gateway's consent does not mend
}

// check asks package config about the provider.
func (p *managed) check(private bool) *problem {
	c := scratch()
	c.Listeners[0].AllowRemote = true
	out := p.proto
	out.AllowHTTP, out.AllowPrivate = private, private
	c.Providers = []config.Provider{out}
	c.Models[0].Targets = []config.Target{{Provider: out.Name}}
	c.Prices.Table = p.prices
	c.SetDefaults()
	bad := policyProblem(c.Validate())
	if bad != nil {
		bad.message = strings.ReplaceAll(strings.ReplaceAll(bad.message, "providers[0].", ""), "prices.table", "prices")
	}
	return bad
}

// pricesOf are prices in the form of the configuration.
func pricesOf(provider string, list []v1alpha1.Price) (out []config.Price, bad *problem) {
	for i := range list {
		p := &list[i]
		c := config.Price{Provider: provider, Model: p.Model, From: config.Date(p.From)}
		for _, rate := range []struct {
			name string
			from v1alpha1.Amount
			to   **config.USD
		}{
			{"input", p.Input, &c.Rates.Input}, {"cacheRead", p.CacheRead, &c.Rates.CacheRead}, {"cacheWrite", p.CacheWrite, &c.Rates.CacheWrite},
			{"cacheWrite1h", p.CacheWrite1h, &c.Rates.CacheWrite1h}, {"output", p.Output, &c.Rates.Output}, {"reasoning", p.Reasoning, &c.Rates.Reasoning},
			{"perRequest", p.PerRequest, &c.Rates.Request},
		} {
			if rate.from == "" {
				continue
			}
			usd, _, err := config.ParseUSD(string(rate.from))
			if err != nil {
				return nil, invalidPolicy("prices[%d].%s %v", i, rate.name, err)
			}
			*rate.to = &usd
		}
		out = append(out, c)
	}
	return out, nil
}

// resolveProvider follows a reference of a Model.
func (t *translation) resolveProvider(from, to kindRef) (*managed, *problem) {
	if !t.permitted(from, to) {
		return nil, &problem{string(gatewayv1.RouteReasonRefNotPermitted), notPermitted(from, to)}
	}
	p := t.providers[to.NamespacedName]
	switch {
	case p == nil:
		return nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("there is no Provider %s", to.NamespacedName)}
	case p.invalid != nil:
		p.used = true
		return nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("the Provider %s is not valid", to.NamespacedName)}
	}
	return p, nil
}

// refusesProvider says why the Gateway does not let requests go to a provider.
func (s *scope) refusesProvider(p *managed) *problem {
	policy := s.providersPolicy()
	switch {
	case p.private != nil && !policy.Private:
		return unsupported("the Provider %s needs a GatewayPolicy with providers.private for this Gateway: %s", p.Name, p.private.message)
	case !s.keyed && !policy.Anonymous:
		return unsupported("the Provider %s costs money, and the Gateway asks nobody for a key: make a Tenant for it, or a GatewayPolicy with providers.anonymous", p.Name)
	}
	return nil
}

// providersPolicy is what the Gateway allows; nothing, unless a valid policy says so.
func (s *scope) providersPolicy() v1alpha1.ProvidersPolicy {
	if s.policy == nil || s.policy.invalid != nil || s.policy.Spec.Providers == nil {
		return v1alpha1.ProvidersPolicy{}
	}
	return *s.policy.Spec.Providers
}

// configProviders adds the providers that the Gateway's models lead to.
func (s *scope) configProviders(c *config.Config) {
	var list []*managed
	for _, u := range s.models {
		for _, p := range u.providers {
			if u.dangling == nil && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b *managed) int { return strings.Compare(a.proto.Name, b.proto.Name) })
	for _, p := range list {
		out := p.proto
		out.AllowHTTP, out.AllowPrivate = p.private != nil, p.private != nil // refusesProvider has let it in
		c.Providers = append(c.Providers, out)
		c.Prices.Table = append(c.Prices.Table, p.prices...)
	}
}

func (t *translation) providerStatuses() {
	for _, name := range sortedNames(t.providers) {
		p := t.providers[name]
		t.ownStatus(kindProvider, p, p.invalid, p.unresolved, p.used, p.Status.Conditions)
	}
}
