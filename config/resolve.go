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
// the name leads to none.
func (c *Config) Resolve(name string) *Model {
	for range len(c.Models) {
		i := 0
		for i < len(c.Models) && c.Models[i].Name != name {
			i++
		}
		if i == len(c.Models) {
			return nil
		}
		if c.Models[i].Alias == "" {
			return &c.Models[i]
		}
		name = c.Models[i].Alias
	}
	return nil
}

// MatchName says whether name is pattern, in which one * stands for anything.
func MatchName(pattern, name string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	return len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
}
