// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	var fast, slow, fresh load
	for range 20 {
		fast.took(100 * time.Millisecond)
		slow.took(300 * time.Millisecond)
	}
	for _, c := range []struct {
		name   string
		a, b   *load
		sticky bool
		want   bool
	}{
		{"slower", &slow, &fast, false, true},
		{"faster", &fast, &slow, false, false},
		{"much slower, known there", &slow, &fast, true, true},
		{"nobody has asked the other one", &slow, &fresh, false, true},
		{"likewise, but known here", &slow, &fresh, true, false},
		{"both unknown", &fresh, &fresh, false, false},
	} {
		if got := c.a.worse(c.b, c.sticky); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	fast.open.Add(5)
	if !fast.worse(&slow, false) {
		t.Error("six requests at the fast one take longer than one at the slow one")
	}
}

func TestRatio(t *testing.T) {
	var r ratio
	if r.of() != 1 {
		t.Errorf("unknown: %v", r.of())
	}
	for range 50 {
		r.learn(1000, 1300)
		r.learn(10, 100)      // too short to say anything
		r.learn(1000, 100000) // counts something else
	}
	if got := r.of(); got < 1.29 || got > 1.31 {
		t.Errorf("%v, not 1.3", got)
	}
}

func TestSpans(t *testing.T) {
	var s spans
	for range 97 {
		s.add(10 * time.Millisecond)
	}
	s.add(3 * time.Second)
	if got := s.longest(); got != 0 {
		t.Errorf("after %d answers: %v", 98, got)
	}
	s.add(10 * time.Millisecond)
	s.add(10 * time.Millisecond)
	if got := s.longest(); got < 2*time.Second || got > 3*time.Second {
		t.Errorf("one of a hundred took 3 s: %v", got)
	}
	for range 200 {
		s.add(0)
	}
	if got := s.longest(); got > 16*time.Millisecond {
		t.Errorf("one of three hundred took 3 s: %v", got)
	}
}
