// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// gatewayPolicy is a GatewayPolicy for a Gateway.
type gatewayPolicy struct {
	*v1alpha1.GatewayPolicy
	redis      *config.Redis      // nil: none
	lists      []config.PriceFile // of prices
	invalid    *problem
	unresolved *problem
}

// poolPolicy is one for an InferencePool.
type poolPolicy struct {
	gatewayPolicy
	profile *config.EndpointPickerConfig
	tls     *config.ClientTLS
	closed  bool // the pool's picker could not be verified
}

// readPolicies reads BackendTLSPolicies and GatewayPolicies: the oldest of
// those with one target holds.
func (t *translation) readPolicies() {
	t.readTLSPolicies()
	for _, p := range byAge(t.objects.GatewayPolicies) {
		target := types.NamespacedName{Namespace: p.Namespace, Name: string(p.Spec.TargetRef.Name)}
		switch ref := p.Spec.TargetRef; {
		case ref.Group == gatewayGroup && ref.Kind == kindGateway:
			s := t.scopes[target]
			if s == nil || s.policy != nil {
				continue // its status says so
			}
			policy := &gatewayPolicy{GatewayPolicy: p}
			if policy.invalid = t.readStores(policy); policy.invalid == nil {
				policy.invalid = t.checkPolicy(policy.set, p)
			}
			s.policy = policy
		case ref.Group == inferenceGroup && ref.Kind == kindInferencePool:
			if t.poolPolicies[target] != nil {
				continue
			}
			policy := &poolPolicy{gatewayPolicy: gatewayPolicy{GatewayPolicy: p}}
			t.readPoolPolicy(policy)
			t.poolPolicies[target] = policy
		}
	}
}

// readStores follows the references of a policy for a Gateway. Where the use of
// limits cannot be shared as it says, or a list of prices is missing, the policy
// is not valid: counting elsewhere would let in more than was meant.
func (t *translation) readStores(p *gatewayPolicy) *problem {
	from := kindRef{v1alpha1.Group, kindGatewayPolicy, nameOf(p)}
	if k := p.Spec.Prices; k != nil {
		for _, ref := range k.ConfigMapRefs {
			name := types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)}
			list, bad := t.priceList(name)
			if bad != nil {
				p.unresolved = bad
				return invalidPolicy("prices.configMapRefs: %s", bad.message)
			}
			p.lists = append(p.lists, list)
		}
	}
	if p.Spec.Quota == nil || p.Spec.Quota.Redis == nil {
		return nil
	}
	r := p.Spec.Quota.Redis
	p.redis = &config.Redis{Addresses: r.Addresses, Cluster: r.Cluster, Username: r.Username, Prefix: r.Prefix}
	if r.PasswordRef != nil {
		password, bad := t.credential(from, r.PasswordRef)
		if bad != nil {
			p.unresolved = bad
			return invalidPolicy("quota.redis.passwordRef: %s", bad.message)
		}
		p.redis.Password = config.Secret(password)
	}
	if r.TLS || len(r.CACertificateRefs) > 0 {
		bundles, bad := t.bundles(from, r.CACertificateRefs)
		if bad != nil {
			p.unresolved = bad
			return invalidPolicy("quota.redis.caCertificateRefs: %s", bad.message)
		}
		p.redis.TLS = &config.ClientTLS{CAPEM: strings.Join(bundles, "")}
	}
	return nil
}

// Keys of a ConfigMap with a list of prices.
const (
	pricesKey  = "prices.yaml"
	liteLLMKey = "prices.json"
)

func (t *translation) priceList(name types.NamespacedName) (config.PriceFile, *problem) {
	refuse := func(format string, args ...any) (config.PriceFile, *problem) {
		return config.PriceFile{}, &problem{reasonInvalidConfigMapRef, fmt.Sprintf(format, args...)}
	}
	m, ok := t.configMaps[name]
	if !ok {
		return refuse("there is no ConfigMap %s", name)
	}
	if text := m.Data[pricesKey]; text != "" {
		return config.PriceFile{Format: config.PricesPenstock, Text: text}, nil
	}
	if text := m.Data[liteLLMKey]; text != "" {
		return config.PriceFile{Format: config.PricesLiteLLM, Text: text}, nil
	}
	return refuse("the ConfigMap %s has neither %s nor %s", name, pricesKey, liteLLMKey)
}

// apply sets what a policy says of its Gateway. One that is not valid as a
// whole sets nothing.
func (p *gatewayPolicy) apply(c *config.Config) {
	if p.invalid == nil {
		_ = p.set(c) // read once before
	}
}

func (p *gatewayPolicy) set(c *config.Config) *problem {
	spec := &p.Spec
	if spec.Picker != nil || spec.Engine != "" || spec.Metrics != nil || spec.Isolation != "" {
		return invalidPolicy("picker, engine, metrics and isolation are for an InferencePool")
	}
	if bad := timeouts(spec.Timeouts, &c.Timeouts); bad != nil {
		return bad
	}
	if bad := retries(spec.Retries, &c.Retries); bad != nil {
		return bad
	}
	if k := spec.Providers; k != nil && k.Private && k.Anonymous {
		return invalidPolicy("providers: private and anonymous together would let anybody have the Gateway call what it can reach")
	}
	if q := spec.Quota; q != nil {
		if q.Output != nil {
			c.Quota.Output = int(*q.Output)
		}
		if p.redis != nil {
			c.Quota.Store, c.Quota.Redis = config.QuotaRedis, p.redis
		}
	}
	if k := spec.Prices; k != nil {
		c.Prices.Unknown = config.UnknownPrice(k.Unknown)
		c.Prices.Files = append(c.Prices.Files, p.lists...)
	}
	l := spec.Limits
	if l == nil {
		return nil
	}
	for _, size := range []struct {
		name string
		from *resource.Quantity
		to   *config.Size
	}{{"body", l.Body, &c.Limits.Body}, {"bodiesInFlight", l.BodiesInFlight, &c.Limits.BodiesInFlight}, {"headers", l.Headers, &c.Limits.Headers}} {
		if size.from == nil {
			continue
		}
		n, ok := size.from.AsInt64()
		if !ok || n <= 0 {
			return invalidPolicy("limits.%s: %s is not a size in bytes", size.name, size.from)
		}
		*size.to = config.Size(n)
	}
	if l.Streams != nil {
		c.Limits.Streams = int(*l.Streams)
	}
	if l.Connections != nil {
		c.Limits.Connections = int(*l.Connections)
	}
	return setDuration("limits.drain", l.Drain, &c.Limits.Drain)
}

func invalidPolicy(format string, args ...any) *problem {
	return &problem{string(gatewayv1.PolicyReasonInvalid), fmt.Sprintf(format, args...)}
}

func setDuration(name string, from *gatewayv1.Duration, to *config.Duration) *problem {
	if from == nil {
		return nil
	}
	d, ok := duration(*from)
	if !ok || d == 0 {
		return invalidPolicy("%s: %q is not a duration above 0", name, *from)
	}
	*to = d
	return nil
}

func timeouts(from *v1alpha1.Timeouts, to *config.Timeouts) *problem {
	if from == nil {
		return nil
	}
	for _, d := range []struct {
		name string
		from *gatewayv1.Duration
		to   *config.Duration
	}{
		{"timeouts.connect", from.Connect, &to.Connect}, {"timeouts.firstToken", from.FirstToken, &to.FirstToken},
		{"timeouts.idle", from.Idle, &to.Idle}, {"timeouts.total", from.Total, &to.Total},
	} {
		if bad := setDuration(d.name, d.from, d.to); bad != nil {
			return bad
		}
	}
	return nil
}

func retries(from *v1alpha1.Retries, to *config.Retries) *problem {
	if from == nil {
		return nil
	}
	if from.Attempts != nil {
		if to.Attempts = int(*from.Attempts); to.Attempts < 1 {
			return invalidPolicy("retries.attempts must be at least 1")
		}
	}
	if from.BudgetPercent != nil {
		if to.Budget = float64(*from.BudgetPercent) / 100; to.Budget <= 0 {
			return invalidPolicy("retries.budgetPercent must be at least 1; attempts: 1 turns retries off")
		}
	}
	return nil
}

// checkPolicy tries what a policy sets on a configuration that is valid
// without it, so that bounds have one home: package config.
func (t *translation) checkPolicy(set func(*config.Config) *problem, p *v1alpha1.GatewayPolicy) *problem {
	c := scratch()
	if bad := set(c); bad != nil {
		return bad
	}
	c.SetDefaults()
	return policyProblem(c.Validate())
}

func policyProblem(err error) *problem {
	if err == nil {
		return nil
	}
	var lines []string
	for _, p := range config.AsProblems(err) {
		path := p.Path
		for _, prefix := range []string{"pools[0].", "models[0].", "pickers[0]."} {
			path = strings.TrimPrefix(path, prefix)
		}
		q := config.Problem{Path: path, What: p.What, Hint: p.Hint}
		lines = append(lines, q.Error())
	}
	if lines == nil {
		lines = []string{err.Error()}
	}
	return &problem{string(gatewayv1.PolicyReasonInvalid), strings.Join(lines, "\n")}
}

// scratch is a valid configuration with one pool.
func scratch() *config.Config {
	return &config.Config{
		Listeners: []config.Listener{{Name: "x", Address: ":80", Anonymous: true}},
		Pools:     []config.Pool{{Name: "x", Members: config.Members{Static: []config.Member{{Address: "x:1"}}}}},
		Models:    []config.Model{{Name: "x", Targets: []config.Target{{Pool: "x"}}}},
	}
}

func (t *translation) readPoolPolicy(p *poolPolicy) {
	spec := &p.Spec
	if spec.Timeouts != nil || spec.Retries != nil || spec.Limits != nil || spec.Providers != nil || spec.Prices != nil || spec.Quota != nil {
		p.invalid = invalidPolicy("timeouts, retries, limits, providers, prices and quota are for a Gateway")
		return
	}
	if spec.Isolation != "" && spec.Isolation != "none" {
		// Said openly rather than accepted and not done.
		p.invalid = invalidPolicy("isolation: %s is not supported by this version", spec.Isolation)
		return
	}
	if k := spec.Picker; k != nil {
		if k.Profile != "" && k.Config != nil {
			p.invalid = invalidPolicy("picker: set one of profile and config")
			return
		}
		if k.Config != nil {
			if p.profile, p.invalid = t.pickerProfile(k.Config.Raw); p.invalid != nil {
				return
			}
		}
		t.pickerTLS(p)
	}
	if p.invalid == nil {
		p.invalid = t.checkPolicy(func(c *config.Config) *problem {
			c.Pools[0].Picker.Remote = &config.RemotePicker{External: true}
			bad := p.setRemote(&c.Pools[0])
			return orProblem(bad, p.set(&c.Pools[0]))
		}, p.GatewayPolicy)
	}
}

func orProblem(list ...*problem) *problem {
	for _, p := range list {
		if p != nil {
			return p
		}
	}
	return nil
}

// pickerProfile decodes an EndpointPickerConfig as strictly as from a file. It
// goes in as a file of its own: what looks like a variable of ours there is its
// own, and nothing of this process's surroundings can get in.
func (t *translation) pickerProfile(raw []byte) (*config.EndpointPickerConfig, *problem) {
	const document = `{listeners: [{name: x, address: ":80", anonymous: true}], pools: [{name: x, members: {static: ["x:1"]}}], models: [{name: x, targets: [{pool: x}]}], pickers: [{name: x, file: config}]}`
	c, err := config.ParseWith("policy", []byte(document), config.Options{
		Env:      func(string) (string, bool) { return "", false },
		ReadFile: func(string) ([]byte, error) { return raw, nil },
		Check:    t.opts.Check,
	})
	if err != nil {
		bad := policyProblem(err)
		bad.message = "picker.config: " + bad.message
		return nil, bad
	}
	return c.Pickers[0].Config, nil
}

// pickerTLS says how the endpoint picker of the pool is verified. A policy that
// asks for it and names no valid authority closes the pool rather than
// verifying nothing.
func (t *translation) pickerTLS(p *poolPolicy) {
	spec := p.Spec.Picker.TLS
	if spec == nil || spec.Plaintext && spec.CACertificateRefs == nil {
		return
	}
	bundles, bad := t.bundles(kindRef{v1alpha1.Group, kindGatewayPolicy, nameOf(p)}, spec.CACertificateRefs)
	if bad != nil {
		p.unresolved = bad
	}
	host := strings.ToLower(string(spec.Hostname))
	switch {
	case host != "" && !isPreciseHost(host):
		p.invalid, p.closed = invalidPolicy("picker.tls.hostname %q is not a host name", spec.Hostname), true
	case bundles == nil:
		p.closed = true
		p.invalid = invalidPolicy("picker.tls: no certificate authority is valid")
		if p.unresolved != nil {
			p.invalid = &problem{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), "picker.tls: " + p.unresolved.message}
		}
	default:
		p.tls = &config.ClientTLS{CAPEM: strings.Join(bundles, ""), ServerName: host}
	}
}

// apply sets what a policy says of its pool.
func (p *poolPolicy) apply(t *translation, b *backend) {
	if p.closed && b.pool.Picker.Remote != nil && b.status == 0 {
		b.status = 503
		b.unresolved = &problem{string(infv1.InferencePoolReasonInvalidExtensionRef), "endpointPickerRef: it cannot be verified as the GatewayPolicy " + p.Name + " says"}
	}
	if p.invalid != nil {
		return
	}
	_ = p.set(&b.pool)
	k := p.Spec.Picker
	if k == nil {
		return
	}
	if b.pool.Picker.Remote == nil {
		switch {
		case k.Profile != "":
			b.pool.Picker.Profile = k.Profile
		case p.profile != nil:
			b.picker = &config.Picker{Name: pickerName(b.object.NamespacedName), Config: p.profile}
			b.pool.Picker.Profile = b.picker.Name
		}
		return
	}
	_ = p.setRemote(&b.pool)
	if tls := b.pool.Picker.Remote.TLS; p.tls != nil && tls.ServerName == "" {
		own := *p.tls
		own.ServerName = b.picked.Name + "." + b.picked.Namespace + ".svc"
		b.pool.Picker.Remote.TLS = &own
	}
}

func (p *poolPolicy) set(pool *config.Pool) *problem {
	switch p.Spec.Engine {
	case "", "auto", "vllm", "sglang", "trtllm":
		pool.Engine = config.Engine(p.Spec.Engine)
	default:
		return invalidPolicy("engine %q is not known", p.Spec.Engine)
	}
	if k := p.Spec.Picker; k != nil && k.Profile != "" && !slices.Contains(config.BuiltinPickers(), k.Profile) {
		return invalidPolicy("picker.profile: there is no profile %q", k.Profile)
	}
	m := p.Spec.Metrics
	if m == nil {
		return nil
	}
	pool.Metrics.Path, pool.Metrics.Off = m.Path, m.Disabled
	if bad := setDuration("metrics.interval", m.Interval, &pool.Metrics.Interval); bad != nil {
		return bad
	}
	// A page must not be stale before the next can come.
	if i := pool.Metrics.Interval; i > 0 && i <= math.MaxInt64/3 {
		pool.Metrics.Stale = max(2_000_000_000, min(3*i, 3600_000_000_000))
	}
	return nil
}

func (p *poolPolicy) setRemote(pool *config.Pool) *problem {
	k := p.Spec.Picker
	if k == nil {
		return nil
	}
	r := pool.Picker.Remote
	switch k.OnInvalidPick {
	case "", "fallback", "reject":
		r.OnInvalidPick = config.OnInvalidPick(k.OnInvalidPick)
	default:
		return invalidPolicy("picker.onInvalidPick %q is not known", k.OnInvalidPick)
	}
	switch {
	case k.TLS != nil && k.TLS.Plaintext && k.TLS.CACertificateRefs == nil:
		r.TLS = nil
	case p.tls != nil:
		r.TLS = p.tls
	}
	return setDuration("picker.timeout", k.Timeout, &r.Timeout)
}

// policyStatuses writes an entry per Gateway that a GatewayPolicy is about.
func (t *translation) policyStatuses() {
	scopes := t.ordered()
	for _, p := range byAge(t.objects.GatewayPolicies) {
		target := types.NamespacedName{Namespace: p.Namespace, Name: string(p.Spec.TargetRef.Name)}
		var held *gatewayPolicy
		var about []*scope
		switch p.Spec.TargetRef.Kind {
		case kindGateway:
			if s := t.scopes[target]; s != nil {
				held, about = s.policy, []*scope{s}
			}
		case kindInferencePool:
			if policy := t.poolPolicies[target]; policy != nil {
				held = &policy.gatewayPolicy
			}
			for _, s := range scopes {
				if s.pools[target] != nil {
					about = append(about, s)
				}
			}
		}
		var conditions []metav1.Condition
		if held != nil {
			accepted, unresolved := held.invalid, held.unresolved
			if held.GatewayPolicy != p {
				unresolved = nil
				accepted = &problem{string(gatewayv1.PolicyReasonConflicted), "the older GatewayPolicy " + held.Name + " has the same target"}
			}
			conditions = append(conditions,
				condition(string(gatewayv1.PolicyConditionAccepted), p.Generation, accepted, string(gatewayv1.PolicyReasonAccepted), "the policy is in force"),
				condition(string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), p.Generation, unresolved, string(gatewayv1.BackendTLSPolicyReasonResolvedRefs), "all references are resolved"))
		}
		t.policyStatus(kindGatewayPolicy, p, p.Status.Ancestors, about, conditions)
	}
}
