// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// models compiles the models of a configuration.
func (b *builder) models() error {
	cfg, t, resolve := b.cfg, b.table, b.cfg.Resolver()
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		if mc.Alias != "" {
			continue
		}
		m, err := b.model(mc)
		if err != nil {
			return fmt.Errorf("model %s: %w", mc.Name, err)
		}
		if m.wild {
			t.patterns = append(t.patterns, m)
		} else {
			t.models[mc.Name] = m
		}
	}
	slices.SortStableFunc(t.patterns, func(a, b *model) int { return cmp.Compare(len(b.name), len(a.name)) })
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; mc.Alias != "" {
			end := resolve(mc.Name)
			if end == nil {
				return fmt.Errorf("model %s: the alias leads nowhere", mc.Name)
			}
			t.models[mc.Name], t.aliases[mc.Name] = t.model(end.Name), mc.Alias
		}
	}
	for i := range cfg.Models { // once every model is there
		mc := &cfg.Models[i]
		m := t.model(mc.Name)
		m.several = m.several || len(m.targets) > 1 || len(mc.Fallbacks) > 0
		for j := range mc.Fallbacks {
			f, err := b.fallback(mc, &mc.Fallbacks[j], m, resolve)
			if err != nil {
				return fmt.Errorf("model %s: %w", mc.Name, err)
			}
			m.fallbacks = append(m.fallbacks, f)
		}
	}
	return nil
}

func (b *builder) model(mc *config.Model) (*model, error) {
	cfg, r := b.cfg, mc.Retries.Or(b.cfg.Retries)
	m := &model{name: mc.Name, report: mc.ReportModel != "served", wild: strings.Contains(mc.Name, "*"), service: service{
		timeouts: mc.Timeouts.Or(cfg.Timeouts), attempts: max(r.Attempts, 1), resends: 1, budget: newBudget(r.Budget),
		perTarget: r.PerTarget, backoff: r.Backoff.D(), maxWait: r.MaxWait.D(), within: r.Within.D(),
	}}
	m.maxCost = mc.MaxCost
	if mc.Degraded != nil {
		m.degraded = mc.Degraded.Text
	}
	for _, tc := range mc.Targets {
		tg, err := b.modelTarget(mc, tc, m)
		if err != nil {
			return nil, err
		}
		tg.of = mc.Name
		m.targets = append(m.targets, tg)
		m.several = m.several || tg.accounts > 1
		m.weights += tg.weight
		m.weighted = m.weighted || tc.Weight != nil
	}
	m.affinity = mc.Affinity != "none" && !m.weighted
	slices.SortStableFunc(m.targets, func(a, b *target) int { return cmp.Compare(a.priority, b.priority) })
	if m.weights <= 0 {
		return nil, fmt.Errorf("no target has a weight above zero")
	}
	return m, nil
}

func (b *builder) fallback(mc *config.Model, fc *config.Fallback, m *model, resolve func(string) *config.Model) (f fallback, err error) {
	f.on = fc.On
	if fc.VirtualModel != "" {
		if end := resolve(fc.VirtualModel); end != nil {
			f.model = b.table.model(end.Name)
		}
		if f.model == nil {
			return f, fmt.Errorf("no model %s to fall back to", fc.VirtualModel)
		}
		f.when, err = b.compiler.compile(fc.When)
		return f, err
	}
	f.target, err = b.modelTarget(mc, fc.Target(), m)
	return f, err
}

// modelTarget compiles one place that serves a model.
func (b *builder) modelTarget(mc *config.Model, tc config.Target, m *model) (*target, error) {
	var tg *target
	var err error
	above := m.timeouts
	if tc.Provider != "" {
		tg, err = b.providerTarget(tc.Provider, mc.Name)
		if err == nil {
			above = mc.Timeouts.Or(tg.provider.Config().Timeouts).Or(b.cfg.Timeouts)
		}
	} else {
		tg, err = b.target(tc.Pool, mc.Name)
	}
	if err != nil {
		return nil, err
	}
	tg.label = cmp.Or(tc.Provider, tc.Pool)
	switch {
	case strings.Contains(tc.Model, "*"):
		tg.star = tc.Model
	case tc.Model == "" && !m.wild:
		tg.model = mc.Name
	default:
		tg.model = tc.Model
	}
	if name := cmp.Or(tg.model, tg.star); name != "" {
		tg.label += "/" + name
	}
	if tc.Weight != nil {
		tg.weight = *tc.Weight
	}
	tg.priority, tg.can = tc.Priority, tc.Capabilities
	if tg.can != nil && tg.can.Regions != nil {
		tg.regions = tg.can.Regions
	}
	if tg.can != nil && tg.can.Context > 0 || strings.Contains(tc.When, "request.tokens") || strings.Contains(tc.When, "request.cost") || mc.MaxCost != nil { // else nobody asks
		tg.encoding = encoding(tg.model)
	}
	tg.media = mediaOf(cmp.Or(tg.model, tg.star))
	bounds := tc.Timeouts.Or(above)
	tg.timeouts, tg.mark = &bounds, b.server.markOf(tg.label)
	b.table.labels[tg.label] = true
	if tg.when, err = b.compiler.compile(tc.When); err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}
	if tg.defaults, err = members(tc.Defaults); err != nil {
		return nil, fmt.Errorf("defaults: %w", err)
	}
	if tg.overrides, err = members(tc.Overrides); err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	tg.chatDefaults, tg.chatOverrides = inChat(tg.defaults), inChat(tg.overrides)
	if tc.Pool != "" {
		b.allowPaths(tg, tc.Pool)
	}
	return tg, nil
}

// chatParameters have other names or places in other dialects: as members of a
// chat they are set before it is translated.
var chatParameters = [...]string{
	"max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "n", "seed", "frequency_penalty", "presence_penalty",
	"logit_bias", "logprobs", "top_logprobs", "response_format", "parallel_tool_calls", "tool_choice", "reasoning_effort", "user",
}

// inChat are the members of list that mean something in a chat of OpenAI's.
func inChat(list []llm.Member) (out []llm.Member) {
	for _, m := range list {
		if slices.Contains(chatParameters[:], m.Name) {
			out = append(out, m)
		}
	}
	return out
}

// members are the members of a JSON object in the order of their names.
func members(m map[string]any) ([]llm.Member, error) {
	var out []llm.Member
	for _, name := range slices.Sorted(maps.Keys(m)) {
		value, err := json.Marshal(m[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, llm.Member{Name: name, Value: value})
	}
	return out, nil
}

// allowPaths lets requests for the pool's further paths through to it.
func (b *builder) allowPaths(tg *target, pool string) {
	paths := b.pools[pool].Paths
	if paths == nil {
		paths = config.DefaultPaths()
	}
	tg.paths = map[string]bool{}
	for _, p := range paths {
		tg.paths[p], b.table.paths[p] = true, true
	}
}

// target is a pool as a target. model labels its metrics; "": an HTTP route's.
func (b *builder) target(name, model string) (*target, error) {
	pc := b.pools[name]
	if pc == nil {
		return nil, fmt.Errorf("no pool %s", name)
	}
	u, err := b.server.upstreamFor(pc, b.ups)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", name, err)
	}
	tg := &target{
		label: name, pool: name, weight: 1, plain: pc.Plain, apiKey: pc.APIKey, backend: b.backends[name], upstream: u,
		counts: b.server.metrics.target(model, name, len(b.cfg.Models)),
		reject: pc.Picker.Remote != nil && pc.Picker.Remote.OnInvalidPick == config.InvalidReject,
	}
	tg.quirks = llm.Quirks{MaxTokens: true, SystemRole: true} // which every engine knows
	tg.query, tg.system = usage.Query{Pool: name}, engineOf(pc)
	return tg, nil
}

// providerTarget is a provider as a target.
func (b *builder) providerTarget(name, model string) (*target, error) {
	p := b.providers[name]
	if p == nil {
		return nil, fmt.Errorf("no provider %s", name)
	}
	tg := &target{label: name, provider: p, weight: 1, upstream: b.server.upstreamOf(p, b.ups), counts: b.server.metrics.target(model, name, len(b.cfg.Models))}
	q := p.Quirks()
	if tg.quirks = q.Quirks; q.Name != "" && q.Name != "openai" {
		tg.ways = tg.quirks
	}
	pc := p.Config()
	tg.system = systemOf(pc.Dialect, q.Name)
	tg.query, tg.tiered = queryOf(&pc, q.Name), pc.Dialect == config.ProviderOpenAI || pc.Dialect == config.ProviderAzure
	accounts := p.Accounts()
	tg.accounts, tg.limits = len(accounts), credentialLimits(&pc)
	if d, ok := p.Speaks(llm.OpResponses); ok && d == llm.DialectResponses {
		tg.seals = map[string]string{}
		for _, account := range accounts {
			tg.seals[seal(p, account)] = account
		}
	}
	if pc.Region != "" {
		tg.regions = []string{pc.Region}
	}
	return tg, nil
}

// tight warns of total times in which not all answers fit that targets have given
// before.
func (t *table) tight(log *slog.Logger) {
	said := map[string]bool{}
	for _, m := range t.all() {
		for _, tg := range m.targets {
			if p99 := tg.spans.longest(); p99 > tg.timeouts.Total.D() && !said[m.name+tg.label] {
				said[m.name+tg.label] = true
				log.Warn("timeouts.total is shorter than one answer of a hundred has taken", "model", m.name, "target", tg.label,
					"total", tg.timeouts.Total.D(), "took", p99)
			}
		}
	}
}

// all are the models that have targets.
func (t *table) all() []*model {
	list := slices.Clone(t.patterns)
	for _, name := range slices.Sorted(maps.Keys(t.models)) {
		if m := t.models[name]; m.name == name {
			list = append(list, m)
		}
	}
	return list
}
