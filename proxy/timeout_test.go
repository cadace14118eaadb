// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"
	"time"
)

// A stream whose chunks come all the time runs out of its total time, never of
// its idle time, however near the two deadlines lie when the steps of extend
// would end.
func TestTheLastStepOfAPhaseIsItsTotal(t *testing.T) {
	const idle, total = 200 * time.Second, 300 * time.Second
	for first := range 25 {
		p := newPhase(func(error) {}, &errFirstTokenTimeout, total, total, &errTotalTimeout)
		p.enter(&errIdleTimeout, idle)
		for at := time.Duration(first) * time.Second; at < total; at += 20 * time.Second {
			p.extend(p.start.Add(at), idle)
			if left := time.Duration(p.deadline.Load()) - at; left < min(idle-idle/16, total-at) {
				t.Errorf("first chunk after %d s: at %v only %v are left", first, at, left)
			}
		}
		if got := time.Duration(p.deadline.Load()); got != total {
			t.Errorf("first chunk after %d s: the deadline ended at %v", first, got)
		}
		p.stop()
	}
}
