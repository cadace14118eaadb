// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/pool"
)

// Members on a path of their own: pools with members.external are told theirs
// by whoever runs the gateway, at any time, and no configuration is built anew
// for it. So are pickers with picker.remote.external, under the name that
// config.PickerSet makes of the pool's.

// acceptFeed lets configurations name pools with members.external from now on.
// Without it they are refused: nobody would ever tell their members.
func (g *gateway) acceptFeed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = map[string][]config.Member{}
}

// feed replaces the members of pools by name. Those of a pool that no
// configuration has yet wait for it; a list of nil forgets them, for pools
// to come: one that is there keeps its own. Other pools keep theirs.
func (g *gateway) feed(members map[string][]config.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, list := range members {
		if list == nil {
			delete(g.members, name)
			continue
		}
		g.members[name] = list
		if p := g.pools[name]; p != nil && p.pool.Config().Members.External {
			p.pool.SetMembers(list)
		}
		for pool, p := range g.pools {
			if p.remote != nil && p.remoteCfg.External && config.PickerSet(pool) == name {
				p.remote.SetEndpoints(list)
			}
		}
	}
}

var errNotFed = errors.New("external members: nobody tells this process any; only a control plane does")

func (g *gateway) feeds() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		return errNotFed
	}
	return nil
}

// adopt gives a pool what was fed for it before it came, and nothing where
// nothing was: then its members are not known yet, and no picker of it is
// ready.
func (g *gateway) adopt(name string, p *pool.Pool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		return errNotFed
	}
	if list, ok := g.members[name]; ok {
		p.SetMembers(list)
	}
	return nil
}

// adoptPicker is adopt for the endpoints of a picker.
func (g *gateway) adoptPicker(pool string, c *extproc.Client) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		return errNotFed
	}
	c.SetEndpoints(g.members[config.PickerSet(pool)])
	return nil
}
