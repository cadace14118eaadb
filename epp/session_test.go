// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"testing"
	"time"
)

// TestSessionsAreBounded: a binding lives for its time, and the number kept is
// at most two generations, the newest for sure.
func TestSessionsAreBounded(t *testing.T) {
	var s sessions
	now := time.Unix(1000, 0)
	if got := s.get(7, now, time.Minute); got != 0 {
		t.Errorf("bound to %d before any binding", got)
	}
	s.bind(7, 1, now)
	if got := s.get(7, now.Add(time.Minute), time.Minute); got != 1 {
		t.Errorf("bound to %d within its time", got)
	}
	if got := s.get(7, now.Add(2*time.Minute), time.Minute); got != 0 {
		t.Errorf("bound to %d after its time", got)
	}
	for k := range uint64(3 * sessionGeneration) {
		s.bind(100+k, k+1, now)
	}
	if n := len(s.now) + len(s.old); n > 2*sessionGeneration {
		t.Errorf("%d bindings are kept", n)
	}
	last := uint64(3 * sessionGeneration)
	for _, k := range []uint64{last, last - sessionGeneration + 1} {
		if got := s.get(99+k, now, time.Minute); got != k {
			t.Errorf("the binding to %d is lost: %d", k, got)
		}
	}
	if got := s.get(7, now, time.Minute); got != 0 {
		t.Errorf("the oldest is still bound to %d", got)
	}
}
