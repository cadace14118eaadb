// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// Members on a path of their own: pools with members.external are told theirs
// by whoever runs the gateway, at any time, and no configuration is built anew
// for it.

// fedMembers are what was fed.
type fedMembers struct {
	on      bool                       // somebody calls feed
	members map[string][]config.Member // what was fed last, by pool
}

// acceptFeed lets configurations name pools with members.external from now on.
// Without it they are refused: nobody would ever tell their members.
func (g *gateway) acceptFeed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fed.on, g.fed.members = true, map[string][]config.Member{}
}

// feed replaces the members of pools by name. Those of a pool that no
// configuration has yet wait for it; a list of nil forgets them. Other pools
// keep theirs.
func (g *gateway) feed(members map[string][]config.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, list := range members {
		if list == nil {
			delete(g.fed.members, name)
		} else {
			g.fed.members[name] = list
		}
		if p := g.pools[name]; p != nil && p.pool.Config().Members.External {
			p.pool.SetMembers(list)
		}
	}
}

var errNotFed = errors.New("members.external: nobody tells this process the members; only a control plane does")

func (g *gateway) feeds() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.fed.on {
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
	if !g.fed.on {
		return errNotFed
	}
	if list, ok := g.fed.members[name]; ok {
		p.SetMembers(list)
	}
	return nil
}
