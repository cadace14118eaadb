// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
)

// limits are the compiled limits of the nodes that identities have. What was used
// is not in them: they may be dropped and compiled again.
type limits struct {
	limiter *quota.Limiter
	nodes   sync.Map // *node by *auth.Node
	count   atomic.Int64
}

// node is an auth.Node with its limits, and its end users.
type node struct {
	*quota.Node
	from  []string // where an end user is named
	users *quota.Users
}

// mostNodes bounds the nodes that are kept compiled.
const mostNodes = 100_000

func (l *limits) of(n *auth.Node) *node {
	if v, ok := l.nodes.Load(n); ok {
		return v.(*node)
	}
	c := &node{Node: quota.NewNode(n.Name, n.Limits)}
	if n.Users != nil {
		c.from, c.users = n.Users.From, quota.NewUsers(n.Name, n.Users)
	}
	v, had := l.nodes.LoadOrStore(n, c)
	if !had && l.count.Add(1) > mostNodes {
		l.forget()
	}
	return v.(*node)
}

// forget drops all: of a configuration that is gone, or because there are too many.
func (l *limits) forget() {
	l.nodes.Clear()
	l.count.Store(0)
}

// path appends the nodes whose limits the request counts in; none, if there are no
// limits.
func (l *limits) path(list []*quota.Node, x *exchange) []*quota.Node {
	any := false
	var users *node
	for _, n := range x.identity.Nodes {
		if len(n.Limits) == 0 && n.Users == nil && len(list) > 0 {
			continue // the first one names the group
		}
		c := l.of(n)
		list, any = append(list, c.Node), any || len(n.Limits) > 0
		if c.users != nil {
			users = c
		}
	}
	if users != nil {
		if name := x.endUser(users.from); name != "" {
			list, any = append(list, users.users.Node(name)), true
		}
	}
	if !any {
		return nil
	}
	return list
}

// endUser is the name of the end user, in the first place that has one.
func (x *exchange) endUser(from []string) string {
	for _, place := range from {
		name := ""
		if header, ok := strings.CutPrefix(place, "header "); ok {
			name = x.r.Header.Get(header)
		} else {
			name = x.req.User
		}
		if name != "" {
			return name
		}
	}
	return ""
}

// credentialPrefix begins the names of the nodes of credentials. No name of a
// tenant has a space.
const credentialPrefix = "provider "

// credentialLimits are the limits of a provider's credentials by their names.
func credentialLimits(p *config.Provider) map[string]*quota.Node {
	var out map[string]*quota.Node
	for i := range p.Credentials {
		c := &p.Credentials[i]
		if len(c.Limits) == 0 {
			continue
		}
		name := c.Name
		if name == "" {
			name = strconv.Itoa(i + 1)
		}
		if out == nil {
			out = map[string]*quota.Node{}
		}
		out[name] = quota.NewNode(credentialPrefix+p.Name+"/"+name, c.Limits)
	}
	return out
}
