// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock/sim"
)

// Chooser is a policy under test: the picker of one gateway. Times are virtual,
// since the start of the run. Calls come from one goroutine. A picked request
// is settled by exactly one Done before it is picked again.
type Chooser interface {
	// Pick returns the server for r, -1 to refuse it.
	Pick(now time.Duration, r *Request) int
	// Output says that the answer to r has tokens output tokens now; the first
	// call is the first token.
	Output(now time.Duration, r *Request, tokens int)
	Done(now time.Duration, r *Request, e Ending)
	// Scrape brings the gauges of a server, as old as the workload says.
	Scrape(now time.Duration, server int, g sim.Gauges)
	// Health says that a server left (it refused a connection) or is back, empty.
	Health(now time.Duration, server int, up bool)
}

// Fleet is what a policy is told at the start.
type Fleet struct {
	Servers int
	Preset  sim.Preset
	Seed    uint64
}

// Request is what a policy may know of a request. Read only.
type Request struct {
	ID      uint64 // from 1, unique in the run
	Session uint64 // 0: a request on its own
	Prompt  Prompt
	Tried   []int // servers that have failed it
}

// Ending is how an attempt ended and, of an answer, what its usage says.
type Ending struct {
	Outcome Outcome
	Output  int // tokens
	Cached  int // prompt tokens found in the cache
}

// Outcome is the kind of an ending.
type Outcome uint8

// The outcomes of an attempt.
const (
	Answered Outcome = iota // whole
	Refused                 // no connection, or the server's queue is full: nothing was sent
	Broken                  // the server died
	GaveUp                  // the client left before the first token
)

// References are the policies that need nothing but counters, by name.
func References() map[string]func(Fleet) Chooser {
	return map[string]func(Fleet) Chooser{
		"ref-random":         func(f Fleet) Chooser { return newReference(f, pickRandom) },
		"ref-round-robin":    func(f Fleet) Chooser { return newReference(f, pickRoundRobin) },
		"ref-least-inflight": func(f Fleet) Chooser { return newReference(f, pickLeastInflight) },
		"ref-p2c":            func(f Fleet) Chooser { return newReference(f, pickTwoChoices) },
		"ref-session-hash":   func(f Fleet) Chooser { return newReference(f, pickSessionHash) },
		"ref-least-queue":    func(f Fleet) Chooser { return newReference(f, pickLeastQueue) },
		"ref-lmetric":        func(f Fleet) Chooser { return newReference(f, pickUncachedTimesLoad) },
	}
}

// reference is a Chooser made of one rule over a few counters.
type reference struct {
	rule     func(*reference, *Request, []int) int
	rng      *rand.Rand
	up       []bool
	inflight []int
	waiting  []int // scraped
	running  []int // scraped
	where    map[uint64]int
	prefixes []prefixIndex // only with pickUncachedTimesLoad
	next     int
	open     []int // scratch
}

func newReference(f Fleet, rule func(*reference, *Request, []int) int) *reference {
	c := &reference{
		rule: rule, rng: rand.New(rand.NewPCG(f.Seed, 1)),
		up: make([]bool, f.Servers), inflight: make([]int, f.Servers),
		waiting: make([]int, f.Servers), running: make([]int, f.Servers),
		where: map[uint64]int{}, prefixes: make([]prefixIndex, f.Servers),
	}
	for i := range c.up {
		c.up[i] = true
		c.prefixes[i] = newPrefixIndex(f.Preset.NumBlocks * f.Preset.BlockSize / indexBlock)
	}
	return c
}

func (c *reference) Pick(_ time.Duration, r *Request) int {
	c.open = c.open[:0]
	for i, up := range c.up {
		if up && !contains(r.Tried, i) {
			c.open = append(c.open, i)
		}
	}
	if len(c.open) == 0 {
		return -1
	}
	s := c.rule(c, r, c.open)
	c.inflight[s]++
	c.where[r.ID] = s
	return s
}

func (c *reference) Output(time.Duration, *Request, int) {}

func (c *reference) Done(_ time.Duration, r *Request, _ Ending) {
	c.inflight[c.where[r.ID]]--
	delete(c.where, r.ID)
}

func (c *reference) Scrape(_ time.Duration, server int, g sim.Gauges) {
	c.waiting[server], c.running[server] = g.Waiting, g.Running
}

func (c *reference) Health(_ time.Duration, server int, up bool) {
	c.up[server] = up
	c.prefixes[server].clear()
}

func contains(s []int, x int) bool {
	for _, v := range s {
		if v == x {
			return true
		}
	}
	return false
}

func pickRandom(c *reference, _ *Request, open []int) int {
	return open[c.rng.IntN(len(open))]
}

func pickRoundRobin(c *reference, _ *Request, open []int) int {
	c.next++
	return open[c.next%len(open)]
}

// least returns the candidate with the smallest cost, ties at random.
func (c *reference) least(open []int, cost func(int) float64) int {
	best, lowest, ties := open[0], cost(open[0]), 1
	for _, s := range open[1:] {
		switch x := cost(s); {
		case x < lowest:
			best, lowest, ties = s, x, 1
		case x == lowest:
			ties++
			if c.rng.IntN(ties) == 0 {
				best = s
			}
		}
	}
	return best
}

func pickLeastInflight(c *reference, _ *Request, open []int) int {
	return c.least(open, func(s int) float64 { return float64(c.inflight[s]) })
}

func pickLeastQueue(c *reference, _ *Request, open []int) int {
	return c.least(open, func(s int) float64 { return float64(c.waiting[s] + c.running[s]) })
}

func pickTwoChoices(c *reference, _ *Request, open []int) int {
	a, b := open[c.rng.IntN(len(open))], open[c.rng.IntN(len(open))]
	if c.inflight[b] < c.inflight[a] {
		return b
	}
	return a
}

// pickSessionHash is rendezvous hashing of the session, or else of the prompt's
// first segment, under a load bound of 1.25 times the mean.
func pickSessionHash(c *reference, r *Request, open []int) int {
	total := 1
	for _, s := range open {
		total += c.inflight[s]
	}
	bound := 1 + int(1.25*float64(total)/float64(len(open)))
	key := r.Prompt[0].ID
	if r.Session != 0 {
		key = r.Session
	}
	return c.least(open, func(s int) float64 {
		x := float64(mix(key^mix(uint64(s)+1))>>11) / (1 << 53)
		if c.inflight[s] >= bound {
			x++
		}
		return x
	})
}

// pickUncachedTimesLoad is LMetric (arXiv 2603.15202) on the gateway's own
// counts: uncached prompt tokens x (requests in flight + 1).
func pickUncachedTimesLoad(c *reference, r *Request, open []int) int {
	blocks := r.Prompt.Blocks(nil, indexBlock)
	tokens := r.Prompt.Tokens()
	s := c.least(open, func(s int) float64 {
		uncached := max(tokens-indexBlock*c.prefixes[s].match(blocks), 1)
		return float64(uncached * (c.inflight[s] + 1))
	})
	c.prefixes[s].insert(blocks)
	return s
}
