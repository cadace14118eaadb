// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"strings"
)

// Or is t with the phases that it leaves open taken from d.
func (t Timeouts) Or(d Timeouts) Timeouts {
	return Timeouts{
		Connect:    cmp.Or(t.Connect, d.Connect),
		FirstToken: cmp.Or(t.FirstToken, d.FirstToken),
		Idle:       cmp.Or(t.Idle, d.Idle),
		Total:      cmp.Or(t.Total, d.Total),
		Ping:       cmp.Or(t.Ping, d.Ping),
		FirstPing:  cmp.Or(t.FirstPing, d.FirstPing),
	}
}

// Or is r with what it leaves open taken from d.
func (r Retries) Or(d Retries) Retries {
	return Retries{
		Attempts:  cmp.Or(r.Attempts, d.Attempts),
		PerTarget: cmp.Or(r.PerTarget, d.PerTarget),
		Budget:    cmp.Or(r.Budget, d.Budget),
		Backoff:   cmp.Or(r.Backoff, d.Backoff),
		MaxWait:   cmp.Or(r.MaxWait, d.MaxWait),
		Within:    cmp.Or(r.Within, d.Within),
	}
}

// Resolve follows aliases from name to the model that has targets; nil when
// the name leads to none. For many names see [Config.Resolver].
func (c *Config) Resolve(name string) *Model {
	return follow(len(c.Models), name, func(name string) *Model {
		for i := range c.Models {
			if c.Models[i].Name == name {
				return &c.Models[i]
			}
		}
		return nil
	})
}

// Resolver is Resolve for many names: there may be thousands of models.
func (c *Config) Resolver() func(name string) *Model {
	byName := make(map[string]*Model, len(c.Models))
	for i := range c.Models {
		if m := &c.Models[i]; byName[m.Name] == nil {
			byName[m.Name] = m
		}
	}
	return func(name string) *Model {
		return follow(len(c.Models), name, func(name string) *Model { return byName[name] })
	}
}

// follow takes at most so many steps: aliases may go round in a circle.
func follow(steps int, name string, find func(string) *Model) *Model {
	for range steps {
		m := find(name)
		if m == nil || m.Alias == "" {
			return m
		}
		name = m.Alias
	}
	return nil
}

// MatchName says whether name is pattern, in which one * stands for anything.
func MatchName(pattern, name string) bool {
	_, ok := MatchStar(pattern, name)
	return ok
}

// MatchStar is MatchName and what the * stands for in name.
func MatchStar(pattern, name string) (star string, ok bool) {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return "", pattern == name
	}
	if len(name) < len(before)+len(after) || !strings.HasPrefix(name, before) || !strings.HasSuffix(name, after) {
		return "", false
	}
	return name[len(before) : len(name)-len(after)], true
}

// Carries says that a target of the model, or a fallback that is one, has a name
// with a *: it is asked for what the * of the model's name stands for.
func (m *Model) Carries() bool {
	for i := range m.Targets {
		if strings.Contains(m.Targets[i].Model, "*") {
			return true
		}
	}
	for i := range m.Fallbacks {
		if strings.Contains(m.Fallbacks[i].Model, "*") {
			return true
		}
	}
	return false
}
