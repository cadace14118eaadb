// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

// picker gives every candidate its key; the highest is picked, ties at random.
// The next ones are the fall-backs, in order.
type picker struct {
	max int // endpoints returned
	key func(v *view)
}

// defaultEndpoints are returned when a profile does not say how many: a first
// choice and two to fall back on without another pick.
const defaultEndpoints = 3

func maxScore(v *view) {
	for _, i := range v.alive {
		v.all[i].key = v.all[i].total
	}
}

// weightedRandom draws without replacement by score; all zero: evenly. A
// returning member has its share of the weight.
func weightedRandom(v *view) {
	sum := 0.0
	for _, i := range v.alive {
		sum += v.all[i].total
	}
	for _, i := range v.alive {
		c := &v.all[i]
		weight := c.share
		if sum > 0 {
			weight *= c.total
		}
		c.key = v.random.exponentialKey(weight)
	}
}

func uniform(v *view) {
	for _, i := range v.alive {
		c := &v.all[i]
		c.key = v.random.exponentialKey(c.share)
	}
}

// roundRobin goes through the candidates in the order of their addresses. A
// returning member is passed over but for its share of the turns.
func roundRobin(v *view) {
	n := uint64(len(v.alive))
	if n == 0 {
		return
	}
	first := v.turn % n
	for k, i := range v.alive {
		c := &v.all[i]
		c.key = -float64((uint64(k) + n - first) % n)
		if c.share < 1 && v.random.float() > c.share {
			c.key -= float64(n)
		}
	}
}
