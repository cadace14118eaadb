// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"container/list"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/config"
)

// Users are the end users of a node, each with the same limits. They name
// themselves, so that their number is bounded: those that find no room share one
// node, as long as everybody else has used something that still counts.
type Users struct {
	parent string
	limits []config.Limit
	max    int
	counts time.Duration // for how long what somebody has used may count
	others *Node

	mu     sync.Mutex
	byName map[string]*list.Element
	recent list.List // of *user, the newest first
}

type user struct {
	name string
	node *Node
	seen time.Time
}

// maxUserName bounds the name of an end user as it is kept; longer ones are
// shortened, and told apart by a hash.
const maxUserName = 128

// longestPeriod is as long as what was used may count in a calendar.
const longestPeriod = 366 * 24 * time.Hour

// NewUsers returns the end users of the node of that name.
func NewUsers(parent string, c *config.Users) *Users {
	u := &Users{parent: parent, limits: c.Limits, max: c.Max, byName: map[string]*list.Element{}, others: NewNode(parent+"@", c.Limits)}
	for _, l := range u.others.limits {
		d := l.length
		switch {
		case l.kind == config.WindowCalendar && l.length == 0 && l.word == "month":
			d = 31 * 24 * time.Hour
		case l.kind == config.WindowCalendar && l.length == 0:
			d = longestPeriod
		case l.unit == Concurrency:
			d = time.Hour
		}
		u.counts = max(u.counts, d)
	}
	return u
}

// Nodes calls f for the node of each end user that is known, and for the one that
// the rest share.
func (u *Users) Nodes(f func(*Node)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(u.others)
	for _, e := range u.byName {
		f(e.Value.(*user).node)
	}
}

// Node is the node of an end user.
func (u *Users) Node(name string) *Node {
	if len(name) > maxUserName {
		name = name[:maxUserName] + "#" + strconv.FormatUint(xxhash.Sum64String(name), 16)
	}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.byName[name]; e != nil {
		u.recent.MoveToFront(e)
		e.Value.(*user).seen = now
		return e.Value.(*user).node
	}
	if len(u.byName) >= u.max {
		oldest := u.recent.Back()
		if now.Sub(oldest.Value.(*user).seen) < u.counts {
			return u.others
		}
		delete(u.byName, oldest.Value.(*user).name)
		u.recent.Remove(oldest)
	}
	n := &user{name: name, node: NewNode(u.parent+"@"+name, u.limits), seen: now}
	u.byName[name] = u.recent.PushFront(n)
	return n.node
}
