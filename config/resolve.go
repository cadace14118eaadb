// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "cmp"

// Or is t with the phases that it leaves open taken from d.
func (t Timeouts) Or(d Timeouts) Timeouts {
	return Timeouts{
		Connect:    cmp.Or(t.Connect, d.Connect),
		FirstToken: cmp.Or(t.FirstToken, d.FirstToken),
		Idle:       cmp.Or(t.Idle, d.Idle),
		Total:      cmp.Or(t.Total, d.Total),
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
