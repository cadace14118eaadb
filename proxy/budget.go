// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sync"
	"time"
)

// budget bounds the retries of a model to a share of its requests over the
// last ten seconds, so that a pool in trouble is not asked twice as much. Few
// requests still get a fixed number of retries.
type budget struct {
	share float64
	now   func() time.Time

	mu     sync.Mutex
	second int64 // of the newest slot
	slots  [budgetSeconds]struct{ requests, retries int }
}

const (
	budgetSeconds = 10
	budgetFloor   = 10 // retries in ten seconds, whatever the share
)

func newBudget(share float64) *budget { return &budget{share: share, now: time.Now} }

// request counts a request. A nil budget has no bound.
func (b *budget) request() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slot().requests++
}

// retry takes one retry out of the budget, or says that it is used up.
func (b *budget) retry() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := b.slot()
	requests, retries := 0, 0
	for _, s := range b.slots {
		requests += s.requests
		retries += s.retries
	}
	if float64(retries) >= max(budgetFloor, b.share*float64(requests)) {
		return false
	}
	slot.retries++
	return true
}

// giveBack is for a retry that was taken out and not made.
func (b *budget) giveBack() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slot().retries--
}

// slot is that of this second; those that have passed unused are emptied.
func (b *budget) slot() *struct{ requests, retries int } {
	now := b.now().Unix()
	for n := min(now-b.second, budgetSeconds); n > 0; n-- {
		b.slots[(now-n+1)%budgetSeconds] = struct{ requests, retries int }{}
	}
	b.second = max(b.second, now)
	return &b.slots[b.second%budgetSeconds]
}
