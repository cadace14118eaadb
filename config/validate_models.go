// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

func (v *validator) models() {
	if len(v.c.Models) == 0 && len(v.c.Listeners) > 0 && !v.maybeEmpty() { // without listeners that alone is said
		v.fail("models", "there are no models", "add one: models: [{name: chat, targets: [{pool: NAME}]}]")
	}
	seen := map[string]string{}
	byName := map[string]*Model{}
	known := names(v.c.Models, func(m *Model) string { return m.Name })
	for i := range v.c.Models {
		byName[v.c.Models[i].Name] = &v.c.Models[i]
	}
	places, resolve := v.places(), v.c.Resolver()
	for i := range v.c.Models {
		m, path := &v.c.Models[i], joinIndex("models", i)
		v.pattern(path+".name", m.Name)
		if m.Name != "" {
			v.unique(path+".name", m.Name, seen)
		}
		switch {
		case m.Alias != "":
			v.alias(path, m, byName, known)
			if end := resolve(m.Name); end != nil && end.Carries() {
				v.fail(path+".alias", fmt.Sprintf("a target of %q takes what * stands for, and an alias has nothing for it", end.Name), "let this name have targets of its own")
			}
			continue
		case len(m.Targets) == 0:
			v.fail(path+".targets", "model has no targets", "add targets: [{pool: NAME}] or [{provider: NAME}], or alias: MODEL")
		}
		v.targets(path, m, places)
		for j := range m.Fallbacks {
			f, fp := &m.Fallbacks[j], joinIndex(path+".fallbacks", j)
			v.fallback(fp, m, f, places, byName, known)
			if end := resolve(f.VirtualModel); end != nil && end.Carries() && !strings.Contains(m.Name, "*") {
				v.fail(fp+".virtualModel", fmt.Sprintf("a target of %q takes what * stands for, and %q has no *", end.Name, m.Name), "write a provider and the model's name there: {provider: NAME, model: NAME}")
			}
		}
		if m.Degraded != nil && m.Degraded.Text == "" {
			v.fail(path+".degraded.text", "is missing", "write what clients are told when nobody else answers")
		}
		v.modelTimeouts(path+".timeouts", m.Timeouts, v.c.Timeouts)
	}
}

// places is what targets may name.
type places struct {
	pools, providers   []string
	isPool, isProvider map[string]bool
}

func (v *validator) places() *places {
	p := &places{
		pools:     names(v.c.Pools, func(p *Pool) string { return p.Name }),
		providers: names(v.c.Providers, func(p *Provider) string { return p.Name }),
	}
	p.isPool, p.isProvider = setOf(p.pools), setOf(p.providers)
	return p
}

func (v *validator) targets(path string, m *Model, known *places) {
	total := map[int]int{}
	for j := range m.Targets {
		t, tp := &m.Targets[j], joinIndex(path+".targets", j)
		v.target(tp, m, t, known)
		if t.Weight == nil {
			total[t.Priority]++
		} else {
			total[t.Priority] += max(*t.Weight, 0)
		}
	}
	for priority, sum := range total {
		switch {
		case sum == 0 && len(total) == 1:
			v.fail(path+".targets", "every weight is 0", "give one target a weight")
		case sum == 0:
			v.fail(path+".targets", fmt.Sprintf("every weight of priority %d is 0", priority), "give one target a weight")
		}
	}
}

// target checks one place that serves m.
func (v *validator) target(path string, m *Model, t *Target, known *places) {
	switch {
	case t.Pool != "" && t.Provider != "":
		v.fail(path+".provider", "a target is a pool or a provider, not both", "keep one of them")
	case t.Provider != "":
		if !known.isProvider[t.Provider] {
			v.dangling(path+".provider", "providers", "provider", t.Provider, known.providers)
		}
	case t.Pool == "":
		v.fail(path+".pool", "is missing", "name one of pools, or of providers: provider: NAME")
	case !known.isPool[t.Pool]:
		v.dangling(path+".pool", "pools", "pool", t.Pool, known.pools)
	case v.plain(t.Pool):
		v.fail(path+".pool", fmt.Sprintf("pool %q is plain: its members are no model servers", t.Pool), "name another pool, or take plain away")
	}
	v.upstreamName(path+".model", m, t.Model)
	for _, section := range []struct {
		key string
		m   map[string]any
	}{{"defaults", t.Defaults}, {"overrides", t.Overrides}} {
		for name := range section.m {
			if slices.Contains([]string{"model", "stream", "messages", "input", "contents", "prompt"}, strings.ToLower(name)) {
				v.fail(joinKey(path+"."+section.key, name), "is not a parameter that a target may change", "the model's name at the server is the target's model")
			}
		}
	}
	if c := t.Capabilities; c != nil {
		for i, kind := range c.Modalities {
			if !slices.Contains(modalities(), kind) {
				v.fail(joinIndex(path+".capabilities.modalities", i), fmt.Sprintf("%q is not known", kind), "use one of "+strings.Join(modalities(), ", "))
			}
		}
		if c.Context > 0 && c.Output > c.Context {
			v.fail(path+".capabilities.output", fmt.Sprintf("is more than the context of %d", c.Context), "")
		}
	}
	v.modelTimeouts(path+".timeouts", t.Timeouts, m.Timeouts.Or(v.c.Timeouts))
}

// upstreamName checks the name at a target of m, which may carry what a * stands
// for.
func (v *validator) upstreamName(path string, m *Model, name string) {
	switch strings.Count(name, "*") {
	case 0:
		if name != "" {
			v.modelName(path, name)
		}
	case 1:
		if strings.Count(m.Name, "*") != 1 {
			v.fail(path, fmt.Sprintf("%q takes what * stands for in the model's name, and %q has no *", name, m.Name), "write the whole name, or give the model a name with one *, such as openai/*")
		}
		if rest := strings.Replace(name, "*", "", 1); rest != "" {
			v.modelName(path, rest)
		}
	default:
		v.fail(path, fmt.Sprintf("%q has more than one *", name), "one * takes what * stands for in the model's name")
	}
}

func modalities() []string { return []string{"text", "image", "audio", "file"} }

func (v *validator) fallback(path string, m *Model, f *Fallback, known *places, byName map[string]*Model, models []string) {
	for i, class := range f.On {
		switch class {
		case FallbackGeneral, FallbackContextWindow, FallbackContentPolicy:
		default:
			v.fail(joinIndex(path+".on", i), fmt.Sprintf("%q is not known", string(class)), "use one of general, contextWindow, contentPolicy")
		}
	}
	if f.VirtualModel == "" {
		t := f.Target()
		v.target(path, m, &t, known)
		return
	}
	switch {
	case f.Pool != "" || f.Provider != "" || f.Model != "":
		v.fail(path+".virtualModel", "a fallback is a model of this list, a pool or a provider", "keep one of them")
	case f.VirtualModel == m.Name:
		v.fail(path+".virtualModel", "a model cannot be its own fallback", "")
	case byName[f.VirtualModel] == nil:
		v.dangling(path+".virtualModel", "models", "model", f.VirtualModel, models)
	}
	if f.Defaults != nil || f.Overrides != nil || f.Capabilities != nil || f.Timeouts != (Timeouts{}) {
		v.fail(path, "defaults, overrides, capabilities and timeouts of another model are its own", "set them at its targets")
	}
}

// modelTimeouts checks timeouts that are set over those above them.
func (v *validator) modelTimeouts(path string, t, above Timeouts) {
	eff := t.Or(above)
	if t.Connect != 0 || t.Total != 0 {
		v.timeouts(path, eff)
	}
	if t.FirstToken != 0 && eff.Total != 0 && eff.FirstToken > eff.Total {
		v.fail(path+".firstToken", fmt.Sprintf("is longer than the total of %s", eff.Total), "")
	}
}

// pattern checks a model's name, which may hold one *.
func (v *validator) pattern(path, name string) {
	if before, after, wild := strings.Cut(name, "*"); wild {
		if strings.Contains(after, "*") {
			v.fail(path, fmt.Sprintf("%q has more than one *", name), "one * stands for anything")
			return
		}
		if name = before + after; name == "" {
			return // every name
		}
	}
	v.modelName(path, name)
}

// entry checks who is let in by a listener.
func (v *validator) entry(path string, l *Listener) {
	keys := slices.ContainsFunc(v.c.Tenants, func(t Tenant) bool { return len(t.Keys) > 0 }) || v.c.Keys.Store != KeysOff && v.c.Keys.Store != "" || v.skip("tenants") ||
		v.c.HTTPRoutes != nil // made of objects that come and go, Keys among them: without one nobody is let in
	switch {
	case !l.Anonymous && !keys:
		v.fail(path+".anonymous", "no keys are configured, so that anybody is let in here", "write anonymous: true if that is meant, or list tenants with keys")
	case l.Anonymous && len(v.c.Providers) > 0 && !l.AllowRemote && !isLoopback(l.Address):
		v.fail(path+".anonymous", "anybody who reaches this address may spend money at the providers", "list tenants with keys, listen on loopback, or write allowRemote: true if that is meant")
	}
}
