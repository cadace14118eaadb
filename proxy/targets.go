// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"math"

	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
)

// TargetStatus is how one target of a model does.
type TargetStatus struct {
	Model    string // that clients ask for
	Target   string // as in records and headers
	Pool     string // or
	Provider string
	Upstream string // name at the target; "": the name asked for
	Priority int
	Weight   int
	Fallback string // classes of failures that lead to it, or to the model it is named after; "": one of the model's own
	Open     int64
	Wait     float64 // seconds to the first output, smoothed; 0: unknown
	Tokens   float64 // that it counts for one that is estimated
	Ready    int     // of a pool: members that may be picked
	Health   *provider.TargetState
}

// Targets are the targets of every model, in the order of the configuration.
func (s *Server) Targets() []TargetStatus {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	var out []TargetStatus
	for i := range t.cfg.Models {
		m := t.named(t.cfg.Models[i].Name)
		if m == nil || t.cfg.Models[i].Alias != "" {
			continue
		}
		for _, tg := range m.targets {
			out = append(out, tg.status(m.name, ""))
		}
		for j := range m.fallbacks {
			f := &m.fallbacks[j]
			if f.target != nil {
				out = append(out, f.target.status(m.name, f.classes()))
			} else {
				out = append(out, TargetStatus{Model: m.name, Target: "model " + f.model.name, Fallback: f.classes()})
			}
		}
	}
	return out
}

func (f *fallback) classes() string {
	if f.on == nil {
		return "general"
	}
	text := ""
	for i, c := range f.on {
		if i > 0 {
			text += ", "
		}
		text += string(c)
	}
	return text
}

// corrected is how many tokens the target counts for one that is estimated, in the
// way in which its prompts are.
func (tg *target) corrected() float64 {
	if tg.encoding != "" {
		return tg.exact.of()
	}
	return tg.ratio.of()
}

func (tg *target) status(model, fallback string) TargetStatus {
	s := TargetStatus{
		Model: model, Target: tg.label, Pool: tg.pool, Upstream: cmp.Or(tg.model, tg.star), Priority: tg.priority, Weight: tg.weight, Fallback: fallback,
		Open: tg.load.open.Load(), Wait: math.Float64frombits(tg.load.wait.Load()), Tokens: tg.corrected(),
	}
	if tg.provider != nil {
		health := tg.provider.State(tg.model)
		s.Provider, s.Health = tg.provider.Name(), &health
		return s
	}
	for _, m := range tg.backend.Pool.Snapshot().Members {
		if m.State() <= pool.Returning {
			s.Ready++
		}
	}
	return s
}

// named is the model of the configuration's name, a pattern or not.
func (t *table) named(name string) *model {
	if m := t.models[name]; m != nil {
		return m
	}
	for _, m := range t.patterns {
		if m.name == name {
			return m
		}
	}
	return nil
}
