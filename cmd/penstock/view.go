// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/proxy"
)

// This file shows a gateway to package admin.

func (g *gateway) adminHandler(address string) http.Handler {
	return admin.Handler(g.adminOptions(address))
}

func (g *gateway) opsHandler(address string) http.Handler { return admin.Ops(g.adminOptions(address)) }

func (g *gateway) adminOptions(address string) admin.Options {
	return admin.Options{
		Address: address, Log: g.log, Registry: g.reg,
		Ready:   g.readiness,
		Config:  func() []byte { return g.cfg.Load().Redacted() },
		Pools:   g.poolStatus,
		Models:  g.modelStatus,
		Targets: g.targetHealth,
		Limits:  g.limits,
		Picks:   g.recentPicks,
		Find:    g.findPick,
		Route:   g.routeOf,
		Explain: g.explain,
		Ledger:  admin.Ledger{Export: g.exportRows, Outcome: g.setOutcome},
		Usage:   g.usage, UsageQuery: []string{"by", "since", "until", "top", "order", "where", "cursor"},
		Version: version,
		Users:   func() []config.AdminUser { return g.inForce().Admin.Users },
		Tenancy: g.tenancy,
		Prices:  g.listPrices, PricesQuery: []string{"model", "provider"},
		Console: g.console(),
	}
}

func (g *gateway) readiness() admin.Readiness {
	cfg := g.cfg.Load()
	r := admin.Readiness{
		Ready: cfg != nil, Draining: g.fading.Load() || g.proxy.Draining(), Version: version, StartedAt: g.started,
		Config:     admin.ConfigStatus{File: g.file, Loads: int(g.reloads.count.Load()), LoadedAt: time.Unix(0, g.reloads.newest.Load())},
		Controller: g.control.status(),
		Keys:       g.keyring.status(),
	}
	if f := g.fault.Load(); f != nil {
		r.Config.Error, r.Config.ErrorAt = f.Err, &f.At
	}
	switch {
	case cfg == nil:
		r.Reason = g.control.reason()
		return r
	case r.Draining:
		r.Ready, r.Reason = false, "draining"
	default:
		if why := g.refusal(); why != "" {
			r.Ready, r.Reason = false, why
		}
	}
	bound := g.proxy.Addresses()
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		addr, up := bound[l.Name]
		r.Listeners = append(r.Listeners, admin.ListenerStatus{
			Name: l.Name, Address: addr, TLS: l.TLS != nil || len(l.Sections) > 0 && l.Sections[0].TLS != nil, Up: up, Error: g.proxy.CertificateFault(l.Name),
		})
		if !up && r.Ready {
			r.Ready, r.Reason = false, "listener "+l.Name+" is not up"
		}
	}
	for _, a := range g.pickers.Addresses() {
		r.Listeners = append(r.Listeners, admin.ListenerStatus{Name: "picker:" + a.Pool, Address: a.Address, TLS: a.TLS != "none", Up: true, Error: a.Fault})
	}
	for _, p := range g.poolStatus() {
		r.Pools = append(r.Pools, p.PoolSummary)
	}
	return r
}

func (g *gateway) poolStatus() []admin.PoolStatus {
	var out []admin.PoolStatus
	for _, name := range g.poolNames() {
		if p := g.pooled(name); p != nil {
			s := admin.StatusOf(p.pool)
			if p.remote != nil {
				s.Picker = pickerStatus(name, p)
				s.Profile = "remote " + s.Picker.Address
			}
			out = append(out, s)
		}
	}
	return out
}

// pickerStatus is that of a picker elsewhere.
func pickerStatus(pool string, p *pooled) *admin.PickerStatus {
	list, fault := p.remote.Replicas()
	out := &admin.PickerStatus{Pool: pool, Address: cmp.Or(p.remoteCfg.Address, config.PickerSet(pool)), Error: fault}
	for _, r := range list {
		out.Replicas = append(out.Replicas, admin.ReplicaStatus(r))
	}
	return out
}

func (g *gateway) modelStatus() []admin.ModelStatus {
	cfg := g.cfg.Load()
	var out []admin.ModelStatus
	resolve := cfg.Resolver()
	for i := range cfg.Models {
		m := &cfg.Models[i]
		s := admin.ModelStatus{Name: m.Name, Alias: m.Alias}
		if m = resolve(m.Name); m == nil {
			continue
		}
		for _, t := range m.Targets {
			ts := admin.TargetStatus{Pool: t.Pool, Provider: t.Provider, Model: cmp.Or(t.Model, m.Name), Priority: t.Priority, Weight: 1}
			if t.Weight != nil {
				ts.Weight = *t.Weight
			}
			if p := g.pooled(t.Pool); p != nil {
				for _, mem := range p.pool.Snapshot().Members {
					if mem.Available() {
						ts.Ready++
					}
				}
			}
			s.Targets = append(s.Targets, ts)
		}
		out = append(out, s)
	}
	return out
}

// targetHealth is how every target of a model does.
func (g *gateway) targetHealth() []admin.TargetHealth {
	var out []admin.TargetHealth
	for _, t := range g.proxy.Targets() {
		h := admin.TargetHealth{
			Model: t.Model, Target: t.Target, Fallback: t.Fallback, Priority: t.Priority, Weight: t.Weight, State: "-",
			Open: t.Open, FirstOutput: t.Wait, Tokens: t.Tokens,
		}
		switch {
		case t.Health != nil:
			h.State, h.Reason, h.Until = t.Health.State, t.Health.Reason, later(t.Health.Until)
			for _, c := range t.Health.Credentials {
				h.Credentials = append(h.Credentials, admin.CredentialHealth{Name: c.Name, State: c.State, Reason: c.Reason, Until: later(c.Until)})
			}
		case t.Pool != "" && t.Ready > 0:
			h.State = "ready"
		case t.Pool != "":
			h.State, h.Reason = "out", "no member is ready"
		}
		out = append(out, h)
	}
	return out
}

// later is t, or nil for none.
func later(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (g *gateway) recentPicks(pool string, n int) []*epp.Explanation {
	names := []string{pool}
	if pool == "" {
		names = g.poolNames()
	}
	var out []*epp.Explanation
	for _, name := range names {
		if p := g.pooled(name); p != nil && p.explainer() != nil {
			out = append(out, p.explainer().Recent(n)...)
		}
	}
	slices.SortStableFunc(out, func(a, b *epp.Explanation) int { return b.At.Compare(a.At) })
	return out[:min(n, len(out))]
}

func (g *gateway) findPick(id string) *epp.Explanation {
	if all := g.findPicks(id); len(all) > 0 {
		return all[0]
	}
	return nil
}

// findPicks are the decisions for a request that the pickers still know, one per
// pool that was asked.
func (g *gateway) findPicks(id string) (out []*epp.Explanation) {
	for _, name := range g.poolNames() {
		if p := g.pooled(name); p != nil && p.explainer() != nil {
			if e := p.explainer().Find(id); e != nil {
				out = append(out, e)
			}
		}
	}
	return out
}

// explain decides on a request without sending it. Listeners and routes are not
// asked: it is the operator's question, not a client's.
func (g *gateway) explain(ctx context.Context, r admin.DryRun) (*admin.Decision, *llm.Error) {
	path := cmp.Or(r.Path, "/v1/chat/completions")
	id := &auth.Identity{}
	if r.As != "" {
		if id = g.proxy.Keys().As(r.As); id == nil {
			return nil, llm.InvalidRequest("as", fmt.Sprintf("there is no key %q; give TENANT or TENANT/KEY as in the configuration, or the ID of a stored key", r.As))
		}
	}
	in := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}, Header: r.Header, ProtoMajor: 1, ProtoMinor: 1}
	h, fail := g.proxy.Rehearse(in, r.Body, r.Model, id)
	if fail != nil {
		return nil, fail
	}
	name := cmp.Or(r.Model, h.Request.Model)
	d := &admin.Decision{Route: &admin.RouteStatus{DryRun: true, At: time.Now(), Asked: name, Alias: h.Alias, Tenant: id.Tenant, Key: id.Key, Tier: id.Tier}}
	for _, s := range h.Steps {
		d.Route.Planned = append(d.Route.Planned, admin.PlannedStatus{Target: s.Target, After: string(s.After), Out: s.Out})
	}
	for _, s := range h.Skipped {
		d.Route.Skipped = append(d.Route.Skipped, admin.SkippedStatus(s))
	}
	i := slices.IndexFunc(h.Steps, func(s proxy.Step) bool { return s.Pool != "" && (r.Pool == "" || s.Pool == r.Pool) })
	switch {
	case i < 0 && r.Pool != "":
		return nil, llm.InvalidRequest("pool", fmt.Sprintf("model %s has no target in pool %s that may serve this request", name, r.Pool))
	case i < 0, r.Pool == "" && i > 0:
		return d, nil // a provider comes first
	}
	p := g.pooled(h.Steps[i].Pool)
	if p == nil {
		return nil, llm.Unavailable("the pool is being changed", time.Second)
	}
	q := &epp.Request{
		ID: "dry-run", Method: http.MethodPost, Path: path, Header: r.Header, Op: h.Op,
		Model: h.Steps[i].Model, Asked: name, Prompt: &h.Request.Prompt, CacheSalt: h.Request.CacheSalt,
		MaxTokens: h.Request.MaxTokens, Stream: h.Request.Stream, Body: func() []byte { return r.Body },
	}
	if p.remote != nil {
		d.Explanation = p.remote.Explain(ctx, q)
	} else {
		d.Explanation = p.scheduler.Explain(q)
	}
	return d, nil
}
