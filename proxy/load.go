// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// load is how a target does: the gateway's own count, for choosing between
// targets that are equal otherwise.
type load struct {
	open atomic.Int64  // requests under way
	wait atomic.Uint64 // bits of the time to the first output, in seconds, smoothed; 0: unknown
}

// smoothing is the weight of the newest value in what is smoothed.
const smoothing = 0.2

// took notes the time to the first output.
func (l *load) took(d time.Duration) { smooth(&l.wait, d.Seconds()) }

// smooth moves an average towards the newest value. Of two that do it at once
// one may be lost, which an average bears.
func smooth(avg *atomic.Uint64, value float64) {
	if old := math.Float64frombits(avg.Load()); old > 0 {
		value = old + smoothing*(value-old)
	}
	avg.Store(math.Float64bits(value))
}

// cost is about how long one more request would wait.
func (l *load) cost() float64 {
	return math.Float64frombits(l.wait.Load()) * float64(1+l.open.Load())
}

// guard is how much worse a target may be than another before prompts leave it
// that its caches may know: about what a cached prompt is faster by.
const guard = 2

// worse says that l would take longer than other; sticky: so much longer that it
// is worth to go where the prompt is not known. A target that nobody has asked
// yet costs nothing, and so is tried.
func (l *load) worse(other *load, sticky bool) bool {
	if sticky {
		return l.cost() > guard*other.cost() && other.wait.Load() != 0
	}
	return l.cost() > other.cost()
}

// ratio is how many tokens a target's prompts have for one that is estimated.
type ratio struct {
	bits atomic.Uint64
}

// of is the ratio, 1 as long as none is known.
func (r *ratio) of() float64 {
	if v := math.Float64frombits(r.bits.Load()); v > 0 {
		return v
	}
	return 1
}

// learn takes what an answer reported. Short prompts are mostly template, and
// say little.
func (r *ratio) learn(estimated, reported int) {
	const least, most = 0.2, 5 // beyond them one side counts something else
	if v := float64(reported) / float64(max(estimated, 1)); estimated >= 64 && v >= least && v <= most {
		smooth(&r.bits, v)
	}
}

// spans counts how long whole answers took, by powers of two of a millisecond:
// the last one is beyond six days.
type spans struct {
	counts [30]atomic.Uint32
}

func (s *spans) add(d time.Duration) {
	s.counts[min(bits.Len64(uint64(max(0, d.Milliseconds()))), len(s.counts)-1)].Add(1)
}

// fewest is how many answers must have been seen before their times say much.
const fewest = 100

// longest is a bound that one answer of a hundred reached: those that took
// longer are that many at least. 0: too few were seen.
func (s *spans) longest() time.Duration {
	total, above := uint64(0), uint64(0)
	for i := range s.counts {
		total += uint64(s.counts[i].Load())
	}
	if total < fewest {
		return 0
	}
	for i := len(s.counts) - 1; i > 0; i-- {
		if above += uint64(s.counts[i].Load()); above*100 >= total {
			return time.Millisecond << (i - 1)
		}
	}
	return 0
}
