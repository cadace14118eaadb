// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

// BuiltinPickers are the picker profiles that package epp brings along.
func BuiltinPickers() []string {
	return []string{
		"default", "expected-cost", "lmetric", "llm-d-sticky", "llm-d-blend",
		"least-request", "round-robin", "random",
	}
}

func (v *validator) pools() {
	if len(v.c.Pools) == 0 && len(v.c.Providers) == 0 && !v.maybeEmpty() {
		v.fail("pools", "there are no pools and no providers", `add one: pools: [{name: llama, members: {static: ["10.0.0.11:8000"]}}]`)
	}
	pickers := append(BuiltinPickers(), names(v.c.Pickers, func(p *Picker) string { return p.Name })...)
	seen := map[string]string{}
	for i := range v.c.Pools {
		p, path := &v.c.Pools[i], joinIndex("pools", i)
		v.longName(path, p.Name, seen)
		v.members(path+".members", &p.Members)
		if t := p.TLS; t != nil {
			if p.Protocol != HTTPS && !v.skip(path+".protocol") {
				v.fail(path+".tls", fmt.Sprintf("means nothing with protocol %s", p.Protocol), "write protocol: https")
			}
			v.clientTLS(path+".tls", t)
		}
		if p.Plain && (p.Picker.Remote != nil || p.Picker.Profile != "default") {
			v.fail(path+".picker", "means nothing in a plain pool: its members are taken in turn", "leave out one of them")
		}
		if what, hint := checkPath(p.Metrics.Path); what != "" {
			v.fail(path+".metrics.path", what, hint)
		}
		if m := p.Metrics; m.Stale < m.Interval {
			v.fail(path+".metrics.stale", fmt.Sprintf("is shorter than the interval of %s", m.Interval), "every page would be stale before the next")
		}
		if e := p.Ejection; e.Max < e.Base {
			v.fail(path+".ejection.max", fmt.Sprintf("is shorter than base (%s)", e.Base), "")
		}
		if p.Probe != nil {
			if what, hint := checkPath(p.Probe.Path); what != "" {
				v.fail(path+".probe.path", what, hint)
			}
		}
		v.remotePicker(path+".picker", &p.Picker)
		if name := p.Picker.Profile; !v.full() && !slices.Contains(pickers, name) && (!v.skip("pickers") || slices.Contains(BuiltinPickers(), name)) {
			v.fail(path+".picker.profile", fmt.Sprintf("there is no picker %q", name), didYouMean(name, pickers))
		}
		twice := map[string]string{}
		for j, s := range p.Paths {
			at := joinIndex(path+".paths", j)
			v.clientPath(at, s)
			v.unique(at, s, twice)
		}
	}
}

func (v *validator) remotePicker(path string, p *PickerRef) {
	r := p.Remote
	if r == nil {
		return
	}
	if p.Profile != "default" {
		v.fail(path+".profile", "means nothing beside remote: the remote picker has its own", "leave out one of them")
	}
	path += ".remote"
	if r.External {
		if r.Address != "" {
			v.fail(path+".address", "means nothing beside external: the control plane has the addresses", "leave out one of them")
		}
	} else if what, hint := checkAddress(r.Address, false); what != "" {
		v.fail(path+".address", what, hint)
	}
	if t := r.TLS; t != nil {
		v.clientTLS(path+".tls", t)
	}
	if h := r.Health; h.Timeout > h.Interval && !h.Off {
		v.fail(path+".health.timeout", fmt.Sprintf("is longer than the interval of %s", h.Interval), "")
	}
}

func (v *validator) members(path string, m *Members) {
	var sources []string
	if m.Static != nil {
		sources = append(sources, "static")
	}
	if m.DNS != "" {
		sources = append(sources, "dns")
	}
	if m.File != "" {
		sources = append(sources, "file")
	}
	if m.External {
		sources = append(sources, "external")
	}
	switch len(sources) {
	case 0:
		v.fail(path, "says no source of members", "set one of static, dns and file")
	case 1:
	default:
		v.fail(path, "has more than one source: "+strings.Join(sources, ", "), "set one of static, dns and file")
	}
	if m.Static != nil && len(m.Static) == 0 {
		v.fail(path+".static", "is empty", `list at least one "host:port"`)
	}
	if m.DNS != "" {
		if what, hint := checkAddress(m.DNS, false); what != "" {
			v.fail(path+".dns", what, hint)
		}
	}
	if v.full() {
		return
	}
	for _, p := range checkMembers(m.Static) {
		v.fail(joinPath(path+".static", p.Path), p.What, p.Hint)
	}
}

// checkMembers checks a list of members; paths begin at the list.
func checkMembers(list []Member) Problems {
	var out Problems
	seen := map[string]int{}
	for i := range list {
		if len(out) >= maxProblems {
			break
		}
		at := joinIndex("", i)
		if what, hint := checkAddress(list[i].Address, false); what != "" {
			out = append(out, &Problem{Path: at, What: what, Hint: hint})
			continue
		}
		key := strings.ToLower(list[i].Address)
		if first, ok := seen[key]; ok {
			out = append(out, &Problem{Path: at, What: fmt.Sprintf("%q is there already, at [%d]", list[i].Address, first), Hint: "list each member once"})
			continue
		}
		seen[key] = i
	}
	return out
}

func (v *validator) pickers() {
	seen := map[string]string{}
	for i := range v.c.Pickers {
		p, path := &v.c.Pickers[i], joinIndex("pickers", i)
		v.name(path, p.Name, seen)
		if slices.Contains(BuiltinPickers(), p.Name) {
			v.fail(path+".name", fmt.Sprintf("%q is a built-in picker", p.Name), "choose another name")
		}
		// Load has read the file into Config, which then belongs to the file.
		if p.Config == nil {
			if p.File == "" {
				v.fail(path, "has no content", "set one of file and config")
			}
			continue
		}
		v.pickerConfig(path+".config", p.Config)
	}
}

// pickerConfig checks the shape; package epp checks the plug-ins.
func (v *validator) pickerConfig(path string, c *EndpointPickerConfig) {
	if len(c.Plugins) == 0 {
		v.fail(path+".plugins", "there are no plug-ins", "")
	}
	seen := map[string]string{}
	var known []string
	for i := range c.Plugins {
		p, at := &c.Plugins[i], joinIndex(path+".plugins", i)
		if p.Type == "" {
			v.fail(at+".type", "is missing", "")
			continue
		}
		name, field := p.Name, ".name"
		if name == "" {
			name, field = p.Type, ".type"
		}
		v.unique(at+field, name, seen)
		known = append(known, name)
	}
	profiles := map[string]string{}
	for i := range c.SchedulingProfiles {
		s, at := &c.SchedulingProfiles[i], joinIndex(path+".schedulingProfiles", i)
		if s.Name == "" {
			v.fail(at+".name", "is missing", "")
		} else {
			v.unique(at+".name", s.Name, profiles)
		}
		for j := range s.Plugins {
			ref, rp := s.Plugins[j].PluginRef, joinIndex(at+".plugins", j)+".pluginRef"
			switch {
			case ref == "":
				v.fail(rp, "is missing", "name one of plugins")
			case !slices.Contains(known, ref):
				v.dangling(rp, path+".plugins", "plug-in", ref, known)
			}
		}
	}
}
