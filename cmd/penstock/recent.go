// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"sync"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/usage"
)

const (
	recentRequests = 1000
	recentText     = 1 << 10 // bytes of a text that a client or a provider wrote
)

// recent keeps the records of the newest requests that came as far as a choice
// of targets, for penstock explain and the console: at most a few megabytes.
type recent struct {
	mu   sync.Mutex
	ring [recentRequests]*usage.Record
	next int
}

// note keeps r, which nobody changes any more.
func (n *recent) note(r *usage.Record) {
	if !chose(r) || len(r.ModelAsked)+len(r.Path) > recentText {
		return
	}
	n.put(clipped(r))
}

// chose says that r came as far as a choice of targets.
func chose(r *usage.Record) bool { return len(r.Tries) > 0 || len(r.Skipped) > 0 }

// clipped is r with no text longer than recentText of those that have no bound.
func clipped(r *usage.Record) *usage.Record {
	if max(len(r.Error), len(r.ModelAsked), len(r.Path), len(r.Task), len(r.User)) <= recentText {
		return r
	}
	short := *r
	for _, s := range []*string{&short.Error, &short.ModelAsked, &short.Path, &short.Task, &short.User} {
		if len(*s) > recentText {
			*s = strings.Clone(strings.ToValidUTF8((*s)[:recentText], ""))
		}
	}
	return &short
}

func (n *recent) put(r *usage.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ring[n.next] = r
	n.next = (n.next + 1) % recentRequests
}

// newest are all that are kept, newest first.
func (n *recent) newest() []*usage.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]*usage.Record, 0, recentRequests)
	for i := range recentRequests {
		if r := n.ring[(n.next+recentRequests-1-i)%recentRequests]; r != nil {
			out = append(out, r)
		}
	}
	return out
}

// find is the newest of that id, or nil.
func (n *recent) find(id string) *usage.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range recentRequests {
		if r := n.ring[(n.next+recentRequests-1-i)%recentRequests]; r != nil && r.RequestID == id {
			return r
		}
	}
	return nil
}

// routeOf is how a request went through the targets of its model; nil when it is
// not kept.
func (g *gateway) routeOf(id string) *admin.RouteStatus {
	r := g.recent.find(id)
	if r == nil {
		return nil
	}
	s := &admin.RouteStatus{
		RequestID: r.RequestID, At: r.Time, Asked: r.ModelAsked, Alias: r.Alias, Tenant: r.Tenant, Key: r.Key, Tier: r.Tier,
		Status: r.Status, Fallback: r.Fallback, Bound: r.Bound, Error: r.Error, Dropped: r.Dropped, Pool: r.Pool,
	}
	for _, t := range r.Tries {
		s.Tries = append(s.Tries, admin.TryStatus{Target: t.Target, Error: t.Error, Seconds: t.Seconds})
	}
	for _, k := range r.Skipped {
		s.Skipped = append(s.Skipped, admin.SkippedStatus(k))
	}
	return s
}
