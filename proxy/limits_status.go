// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"slices"
	"strings"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/quota"
)

// Limits tells how much of the limits of at most n nodes is in use: of those with
// names after the one given, in order, below tenant ("": of all). next is the name
// to go on after; "": there is no more. It knows every tenant, the keys of the
// configuration, and of stored keys and end users those that have asked lately.
func (s *Server) Limits(ctx context.Context, tenant, after string, n int) (states []quota.State, next string, err error) {
	t := s.table.Load()
	if t == nil {
		return nil, "", nil
	}
	nodes := map[string]*quota.Node{}
	add := func(n *quota.Node) {
		if n.Name() > after && len(n.Limits()) > 0 && below(tenant, n.Name()) {
			nodes[n.Name()] = n
		}
	}
	t.keys.Nodes(func(a *auth.Node) {
		if len(a.Limits) > 0 {
			add(s.limits.of(a).Node)
		}
	})
	s.limits.nodes.Range(func(_, v any) bool {
		c := v.(*node)
		add(c.Node)
		if c.users != nil {
			c.users.Nodes(add)
		}
		return true
	})
	for i := range t.cfg.Providers {
		for _, node := range credentialLimits(&t.cfg.Providers[i]) {
			add(node)
		}
	}
	names := make([]string, 0, len(nodes))
	for name := range nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) > n {
		names = names[:n]
		next = names[n-1]
	}
	for len(names) > 0 { // those of one group together
		group := groupOf(names[0])
		i := slices.IndexFunc(names, func(name string) bool { return groupOf(name) != group })
		if i < 0 {
			i = len(names)
		}
		list := make([]*quota.Node, i)
		for j := range list {
			list[j] = nodes[names[j]]
		}
		some, err := s.limits.limiter.Usage(ctx, group, list)
		if err != nil {
			return nil, "", err
		}
		states, names = append(states, some...), names[i:]
	}
	return states, next, nil
}

// groupOf is the name of the outermost node of the path that leads to a node; a
// credential is on its own.
func groupOf(name string) string {
	if i := strings.IndexAny(name, "/:@"); i >= 0 && !strings.HasPrefix(name, credentialPrefix) {
		return name[:i]
	}
	return name
}

// below says that a node is the tenant's, or in its tree.
func below(tenant, name string) bool {
	rest, ok := strings.CutPrefix(name, tenant)
	return ok && (tenant == "" || rest == "" || strings.ContainsRune("/:@", rune(rest[0])))
}
