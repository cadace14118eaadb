// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// Translate compiles objects. The order of the steps is that of precedence:
// what an earlier one has claimed a later one cannot have.
func Translate(o *Objects, opts Options) *Result {
	t := newTranslation(o, opts)
	t.readClasses()
	t.readGateways()
	t.readPolicies()
	t.readTenants()
	t.readProviders()
	t.readListenerSets()
	t.attachRoutes()
	t.attachModels()
	return t.finish()
}

// translation is the state of one call of Translate.
type translation struct {
	*index
	objects *Objects
	opts    Options

	classes      map[string]*class // ours
	scopes       map[types.NamespacedName]*scope
	listenerSets map[types.NamespacedName]*listenerSet
	backends     map[string]*backend // by the name of the pool
	tlsPolicies  map[types.NamespacedName][]*tlsPolicy
	poolPolicies map[types.NamespacedName]*poolPolicy
	providers    map[types.NamespacedName]*managed

	statuses []*Status
}

// scope is one Gateway of ours while it is compiled.
type scope struct {
	*gatewayv1.Gateway
	name     types.NamespacedName
	observed Observed

	own       []*listener    // of the Gateway itself
	sets      []*listenerSet // that are attached, in the order of precedence
	rejected  *problem       // why the Gateway is not accepted
	unusable  *problem       // an address that cannot be had
	client    *keyPair       // shown to backends; nil: none
	clientBad *problem
	insecure  []string // listeners that let clients without a valid certificate in
	infra     Infrastructure
	policy    *gatewayPolicy
	access

	httpRoutes []config.HTTPRoute
	models     []*modelUse
	uses       map[string]*backend // by the name of the pool
	pools      map[types.NamespacedName]*poolUse
	services   map[types.NamespacedName]bool // that routes lead to
}

// access is who may ask a Gateway.
type access struct {
	keyed   bool // a Tenant names it: whoever has no key is refused
	tenants []*tenant
	keys    []*tenantKey
}

func newTranslation(o *Objects, opts Options) *translation {
	if opts.Admin == "" {
		opts.Admin = "127.0.0.1:9901"
	}
	switch opts.Ops {
	case "":
		opts.Ops = ":9902"
	case "off":
		opts.Ops = ""
	}
	return &translation{
		index:        newIndex(o),
		objects:      o,
		opts:         opts,
		classes:      map[string]*class{},
		scopes:       map[types.NamespacedName]*scope{},
		listenerSets: map[types.NamespacedName]*listenerSet{},
		backends:     map[string]*backend{},
		tlsPolicies:  map[types.NamespacedName][]*tlsPolicy{},
		poolPolicies: map[types.NamespacedName]*poolPolicy{},
		providers:    map[types.NamespacedName]*managed{},
	}
}

// listeners are all that the Gateway has, in the order of precedence.
func (s *scope) listeners() []*listener {
	out := slices.Clone(s.own)
	for _, set := range s.sets {
		out = append(out, set.listeners...)
	}
	return out
}

// ordered are the scopes by name.
func (t *translation) ordered() []*scope {
	out := make([]*scope, 0, len(t.scopes))
	for _, s := range t.scopes {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *scope) int { return compareNames(a.name, b.name) })
	return out
}

// finish puts the results together. Statuses of Gateways come last: they count
// what the steps before have attached.
func (t *translation) finish() *Result {
	r := &Result{}
	for _, s := range t.ordered() {
		g := &Gateway{NamespacedName: s.name}
		if s.rejected == nil {
			g.Config, g.Sources = t.configuration(s)
		}
		g.Infrastructure = s.infra
		r.Gateways = append(r.Gateways, g)
		t.gatewayStatus(s)
	}
	t.listenerSetStatuses()
	t.tlsPolicyStatuses()
	t.poolStatuses()
	t.policyStatuses()
	t.providerStatuses()
	r.Statuses = t.statuses
	slices.SortFunc(r.Statuses, func(a, b *Status) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareNames(a.NamespacedName, b.NamespacedName))
	})
	return r
}

// configuration is that of an accepted Gateway, complete with defaults.
func (t *translation) configuration(s *scope) (*config.Config, []*Source) {
	c := &config.Config{
		Admin:     config.Admin{Address: t.opts.Admin},
		Ops:       config.Ops{Address: t.opts.Ops},
		Records:   config.Records{Path: s.infra.Parameters.Records},
		Listeners: s.configListeners(),
		// Never nil: this says that routes come and go, and that there may be
		// none.
		HTTPRoutes: append([]config.HTTPRoute{}, s.httpRoutes...),
	}
	var sources []*Source
	names := make([]string, 0, len(s.uses))
	for name := range s.uses {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b := s.uses[name]
		pool := b.pool
		if pool.TLS != nil && b.tls != nil && s.client != nil {
			tls := *pool.TLS
			tls.CertPEM, tls.KeyPEM = s.client.cert, config.Secret(s.client.key)
			pool.TLS = &tls
		}
		c.Pools = append(c.Pools, pool)
		if b.picker != nil {
			c.Pickers = append(c.Pickers, *b.picker)
		}
		sources = append(sources, b.sources...)
	}
	s.configModels(c)
	s.configTenants(c)
	s.configProviders(c)
	if s.policy != nil {
		s.policy.apply(c)
	}
	c.SetDefaults()
	return c, sources
}

// status notes what is to be written to an object.
func (t *translation) status(kind string, o metav1.Object) *Status {
	s := &Status{Kind: kind, NamespacedName: nameOf(o), Generation: o.GetGeneration()}
	t.statuses = append(t.statuses, s)
	return s
}

// serviceTypes are those that a parameter may ask for.
func serviceType(s string) (corev1.ServiceType, bool) {
	switch t := corev1.ServiceType(s); t {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP:
		return t, true
	}
	return "", false
}
