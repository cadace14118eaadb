// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// Session is a series of turns; each but the first comes when the answer
// before it has ended and the user has thought.
type Session struct {
	ID    uint64
	Class string
	Start time.Duration
	Turns []Turn
}

// Turn is one request of a session.
type Turn struct {
	Prompt Prompt
	System int           // segments that make up the system prompt; then user and assistant alternate
	Answer Segment       // what the server will say; later prompts of a chat contain it
	Think  time.Duration // of the user, after the answer
}

// Sessions unrolls the workload at a load (1 is the nominal rate): the same
// for the same seed, ordered by start.
func (w *Workload) Sessions(load float64, seed uint64) []Session {
	var out []Session
	for i := range w.Sources {
		g := &generator{source: &w.Sources[i], rng: newRand(seed, w.Name, uint64(i))}
		g.seed = g.rng.Uint64()
		g.unroll(w.Rate*load*w.Sources[i].Share, w.Window)
		out = append(out, g.sessions...)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Start < out[j].Start })
	for i := range out {
		out[i].ID = uint64(i)
	}
	return out
}

func newRand(seed uint64, name string, part uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()+part))
}

// generator unrolls one source.
type generator struct {
	source   *Source
	rng      *rand.Rand
	seed     uint64    // of the shared segments
	last     uint64    // of the segments that occur once
	cycle    []int     // of a source with Prompts: those that are still to come in this turn
	popular  []float64 // cumulated weights of the groups
	sessions []Session
}

// unroll emits sessions until the window ends; rate is in requests per second.
func (g *generator) unroll(rate float64, window time.Duration) {
	s := g.source
	switch {
	case s.Kind == Bursts:
		rate /= float64(s.Size)
	case s.PerSession > 0:
		rate /= s.PerSession
	}
	if s.Groups > 0 && s.Zipf > 0 {
		sum := 0.0
		for i := range s.Groups {
			sum += math.Pow(float64(i+1), -s.Zipf)
			g.popular = append(g.popular, sum)
		}
	}
	if s.Kind == Bursts && s.Spread == 0 {
		g.burst(window / 2)
		return
	}
	for at := g.pause(rate); at < window; at += g.pause(rate) {
		switch s.Kind {
		case Independent:
			g.emit(at, g.single())
		case Chat:
			g.emit(at, g.chat())
		case Documents:
			g.emit(at, g.questions())
		case Bursts:
			g.burst(at)
		}
	}
}

// burst emits siblings on a prefix of their own.
func (g *generator) burst(at time.Duration) {
	s := g.source
	var shared Prompt
	if s.Shared.Max > 0 {
		shared = Prompt{g.once(s.Shared)}
	}
	for range s.Size {
		t := Turn{Prompt: append(slices.Clone(shared), g.once(s.Own)), System: len(shared), Answer: g.once(s.Output)}
		g.emit(at+time.Duration(g.rng.Float64()*float64(s.Spread)), []Turn{t})
	}
}

// pause draws the time to the next arrival of a Poisson process.
func (g *generator) pause(perSecond float64) time.Duration {
	return time.Duration(g.rng.ExpFloat64() / perSecond * float64(time.Second))
}

func (g *generator) emit(at time.Duration, turns []Turn) {
	g.sessions = append(g.sessions, Session{Class: g.source.Class, Start: at, Turns: turns})
}

// once is a segment that no other request has.
func (g *generator) once(l Length) Segment {
	g.last++
	return Segment{ID: mix(g.seed + g.last), Tokens: l.draw(g.rng)}
}

// group draws a group and returns its prefix.
func (g *generator) group() Prompt {
	s := g.source
	if s.Groups == 0 {
		return nil
	}
	i := 0
	switch {
	case g.rng.Float64() < s.Viral:
	case g.popular != nil:
		i = sort.SearchFloat64s(g.popular, g.rng.Float64()*g.popular[len(g.popular)-1])
	default:
		i = g.rng.IntN(s.Groups)
	}
	return Prompt{g.prefix(i)}
}

func (g *generator) prefix(group int) Segment {
	return Segment{ID: mix(^g.seed + uint64(group)), Tokens: g.source.Shared.Max}
}

func (g *generator) single() []Turn {
	s := g.source
	answer := g.once(s.Output)
	if s.Prompts > 0 {
		if len(g.cycle) == 0 {
			g.cycle = g.rng.Perm(s.Groups * s.Prompts)
		}
		n := g.cycle[0]
		g.cycle = g.cycle[1:]
		p := Prompt{g.prefix(n % s.Groups), {ID: mix(^g.seed - uint64(n) - 1), Tokens: s.Own.Max}}
		return []Turn{{Prompt: p, System: 1, Answer: answer}}
	}
	p := g.group()
	return []Turn{{Prompt: append(p, g.once(s.Own)), System: len(p), Answer: answer}}
}

func (g *generator) chat() []Turn {
	s := g.source
	p := g.group()
	if p == nil {
		p = Prompt{g.once(s.Shared)}
	}
	system := len(p)
	var turns []Turn
	for n := s.MinTurns + g.rng.IntN(s.MaxTurns-s.MinTurns+1); n > 0; n-- {
		p = append(p, g.once(s.Own))
		answer := g.once(s.Output)
		if p.Tokens()+answer.Tokens > s.MaxContext && len(turns) > 0 {
			break
		}
		turns = append(turns, Turn{Prompt: p[:len(p):len(p)], System: system, Answer: answer, Think: g.think()})
		p = append(p, answer)
	}
	return turns
}

func (g *generator) questions() []Turn {
	s := g.source
	document := g.once(s.Shared)
	var turns []Turn
	for range s.MinTurns + g.rng.IntN(s.MaxTurns-s.MinTurns+1) {
		turns = append(turns, Turn{Prompt: Prompt{document, g.once(s.Own)}, System: 1, Answer: g.once(s.Output), Think: g.think()})
	}
	return turns
}

func (g *generator) think() time.Duration {
	return time.Duration(g.rng.ExpFloat64() * float64(g.source.Think))
}

func (l Length) draw(rng *rand.Rand) int {
	if l.Max <= l.Min {
		return l.Min
	}
	if l.Median == 0 {
		return l.Min + rng.IntN(l.Max-l.Min+1)
	}
	n := int(l.Median * math.Exp(l.Sigma*rng.NormFloat64()))
	return min(max(n, l.Min), l.Max)
}
