// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock/sim"
)

const (
	patience = 60 * time.Second       // a client leaves when no token has come
	probe    = time.Second            // a dead server is asked again so often
	sampling = 100 * time.Millisecond // of the queues, for the results
	maxTries = 3                      // attempts at a request
	overtime = 15 * time.Minute       // within which what began in the window has to end
)

// Run is one policy on one workload at one load with one seed.
type Run struct {
	Policy   string
	New      func(Fleet) Chooser // one for each gateway
	Workload Workload
	Preset   sim.Preset
	Load     float64 // 1: the workload's nominal rate
	Seed     uint64
	Gateways int // that share nothing; requests go to them at random. 0: 1
}

// race is a Run under way: an event loop in virtual time.
type race struct {
	run      Run
	now      time.Duration
	events   eventHeap
	sessions []Session
	servers  []server
	gateways []gateway
	flights  []*flight // by request ID - 1
	open     int       // flights that are not over
	rng      *rand.Rand
	tally    tally
}

type server struct {
	engine         *sim.Engine
	slow           float64
	up             bool
	life           int // counts deaths, so that events of an earlier life are known
	stepping       bool
	pending        []sim.Event // of the step under way
	gauges         sim.Gauges  // at the end of the last step
	flights        map[uint64]*flight
	area           float64 // integral of the requests in flight, in request seconds
	since          time.Duration
	assigned       int
	assignedTokens int // prompt tokens of the assigned
	maxQueue       int
}

type gateway struct {
	chooser Chooser
	up      []bool
}

// flight is one request on its way.
type flight struct {
	Request
	session *Session
	turn    int
	gateway int
	server  int // -1: none
	tries   int
	arrived time.Duration
	first   time.Duration // 0: no token yet
	last    time.Duration
	tokens  int
	cached  int
	over    bool
	counts  bool // arrived in the measured window
}

// event is something that will happen; which fields mean something depends on
// the kind.
type event struct {
	at   time.Duration
	seq  uint64 // keeps events of one moment in the order of their making
	kind eventKind
	id   uint64 // session or request
	turn int
	n    int // server or fault
	life int
}

type eventKind uint8

const (
	arrival eventKind = iota
	stepEnd
	scrape
	sample
	fault
	revival
	probing
	impatience
)

// Do runs it. Equal runs give equal results.
func (r Run) Do() *Result {
	w := &r.Workload
	c := &race{
		run: r, sessions: w.Sessions(r.Load, r.Seed),
		servers: make([]server, w.Servers), gateways: make([]gateway, max(r.Gateways, 1)),
		rng: newRand(r.Seed, "race", 0), tally: newTally(),
	}
	for i := range c.servers {
		s := &c.servers[i]
		s.engine, s.slow, s.up, s.flights = sim.NewEngine(r.Preset), 1, true, map[uint64]*flight{}
		if w.Slow != nil {
			s.slow = w.Slow[i]
		}
		c.push(event{at: time.Duration(c.rng.Float64() * float64(w.Scrape)), kind: scrape, n: i})
	}
	for i := range c.gateways {
		g := &c.gateways[i]
		g.chooser = r.New(Fleet{Servers: w.Servers, Preset: r.Preset, Seed: r.Seed*1000 + uint64(i) + 1})
		g.up = make([]bool, w.Servers)
		for s := range g.up {
			g.up[s] = true
		}
	}
	for i, f := range w.Faults {
		c.push(event{at: time.Duration(f.At * float64(w.Window)), kind: fault, n: i})
	}
	for i := range c.sessions {
		c.push(event{at: c.sessions[i].Start, kind: arrival, id: uint64(i)})
	}
	c.push(event{at: w.Warmup, kind: sample})
	c.loop(w.Window)
	return c.result()
}

func (c *race) push(e event) { c.events.push(e) }

// loop ends when all that arrived in the window is over.
func (c *race) loop(window time.Duration) {
	for {
		e := c.events.pop() // never empty: scrapes go on
		if e.at >= window && (c.open == 0 || e.at > window+overtime) {
			return
		}
		c.now = e.at
		switch e.kind {
		case arrival:
			c.arrive(e.id, e.turn)
		case stepEnd:
			c.stepEnded(e.n, e.life)
		case scrape:
			c.scrape(e.n)
		case sample:
			c.sample()
		case fault:
			c.strike(c.run.Workload.Faults[e.n])
		case revival:
			c.servers[e.n].up = true
		case probing:
			c.probe(e.turn, e.n)
		case impatience:
			c.giveUp(c.flights[e.id-1])
		}
	}
}

// arrive starts a turn of a session, unless the window is over.
func (c *race) arrive(session uint64, turn int) {
	if c.now >= c.run.Workload.Window {
		return
	}
	s := &c.sessions[session]
	f := &flight{session: s, turn: turn, server: -1, arrived: c.now, counts: c.now >= c.run.Workload.Warmup}
	f.ID = uint64(len(c.flights) + 1)
	f.Prompt = s.Turns[turn].Prompt
	if len(s.Turns) > 1 {
		f.Session = s.ID + 1
	}
	f.gateway = c.rng.IntN(len(c.gateways))
	c.flights = append(c.flights, f)
	c.open++
	c.push(event{at: c.now + patience, kind: impatience, id: f.ID})
	c.try(f)
}

// try picks servers for f until one takes it or nothing is left to try.
func (c *race) try(f *flight) {
	g := &c.gateways[f.gateway]
	for ; f.tries < maxTries; f.tries++ {
		n := g.chooser.Pick(c.now, &f.Request)
		if n < 0 {
			break
		}
		s := &c.servers[n]
		switch {
		case !s.up:
			g.chooser.Done(c.now, &f.Request, Ending{Outcome: Refused})
			f.Tried = append(f.Tried, n)
			c.markDown(f.gateway, n)
		case !s.engine.Submit(c.now, c.order(f)):
			g.chooser.Done(c.now, &f.Request, Ending{Outcome: Refused})
			f.Tried = append(f.Tried, n)
		default:
			f.server = n
			f.tries++
			s.account(c.now)
			s.flights[f.ID] = f
			if f.counts {
				s.assigned++
				s.assignedTokens += f.Prompt.Tokens()
			}
			if !s.stepping {
				c.step(n)
			}
			return
		}
	}
	c.end(f)
	c.tally.refused(f)
}

// order is f as its engine sees it; the blocks cover prompt and answer.
func (c *race) order(f *flight) *sim.Request {
	t := &f.session.Turns[f.turn]
	size := c.run.Preset.BlockSize
	tokens := t.Prompt.Tokens()
	whole := append(t.Prompt[:len(t.Prompt):len(t.Prompt)], t.Answer)
	blocks := whole.Blocks(make([]uint64, 0, (tokens+t.Answer.Tokens)/size), size)
	return &sim.Request{ID: f.ID, Blocks: blocks, PromptTokens: tokens, OutputTokens: t.Answer.Tokens}
}

// markDown is what a gateway does when a server refuses it a connection.
func (c *race) markDown(gw, n int) {
	g := &c.gateways[gw]
	if !g.up[n] {
		return
	}
	g.up[n] = false
	g.chooser.Health(c.now, n, false)
	c.push(event{at: c.now + probe, kind: probing, n: n, turn: gw})
}

func (c *race) probe(gw, n int) {
	g := &c.gateways[gw]
	if c.servers[n].up {
		g.up[n] = true
		g.chooser.Health(c.now, n, true)
		return
	}
	c.push(event{at: c.now + probe, kind: probing, n: n, turn: gw})
}

// step begins the next step of a server that has something to do. What happens
// in it becomes known at its end.
func (c *race) step(n int) {
	s := &c.servers[n]
	s.stepping = false
	if s.engine.Idle() {
		return
	}
	end, events := s.engine.Step(c.now)
	took := time.Duration(float64(end-c.now) * s.slow)
	if took <= 0 && !s.engine.Idle() {
		took = time.Millisecond // it only made room
	}
	s.stepping = true
	s.pending = events
	c.push(event{at: c.now + took, kind: stepEnd, n: n, life: s.life})
}

func (c *race) stepEnded(n, life int) {
	s := &c.servers[n]
	if life != s.life {
		return
	}
	s.gauges = s.engine.Gauges()
	if c.now >= c.run.Workload.Warmup {
		s.maxQueue = max(s.maxQueue, s.gauges.Waiting)
	}
	for _, e := range s.pending {
		f := c.flights[e.ID-1]
		if f.over || f.server != n || e.Kind == sim.Preempted {
			continue
		}
		if f.tokens == 0 {
			f.first, f.cached = c.now, e.Cached
		}
		f.tokens, f.last = e.Tokens, c.now
		c.gateways[f.gateway].chooser.Output(c.now, &f.Request, e.Tokens)
		if e.Kind == sim.Finished {
			c.settle(f, Answered)
			c.end(f)
			c.tally.answered(f, c.run.Workload.SLO)
		}
	}
	c.step(n)
}

// settle takes f off its server and tells the policy.
func (c *race) settle(f *flight, o Outcome) {
	s := &c.servers[f.server]
	s.account(c.now)
	delete(s.flights, f.ID)
	f.server = -1
	c.gateways[f.gateway].chooser.Done(c.now, &f.Request, Ending{o, f.tokens, f.cached})
}

// end closes a request for good; the session goes on whatever became of it.
func (c *race) end(f *flight) {
	f.over = true
	c.open--
	if next := f.turn + 1; next < len(f.session.Turns) {
		c.push(event{at: c.now + f.session.Turns[f.turn].Think, kind: arrival, id: f.session.ID, turn: next})
	}
}

func (c *race) giveUp(f *flight) {
	if f.over || f.tokens > 0 {
		return
	}
	c.servers[f.server].engine.Abort(f.ID)
	c.settle(f, GaveUp)
	c.end(f)
	c.tally.gaveUp(f)
}

func (c *race) strike(x Fault) {
	s := &c.servers[x.Server]
	if x.Slow > 0 {
		s.slow = x.Slow
	}
	if x.Down <= 0 {
		return
	}
	s.engine.Reset()
	s.life++
	s.up, s.stepping, s.gauges = false, false, sim.Gauges{}
	c.push(event{at: c.now + x.Down, kind: revival, n: x.Server})
	for _, f := range sortedFlights(s.flights) {
		c.settle(f, Broken)
		if f.tokens > 0 {
			c.end(f)
			c.tally.broken(f)
			continue
		}
		f.Tried = append(f.Tried, x.Server)
		c.try(f)
	}
}

func (c *race) scrape(n int) {
	if s := &c.servers[n]; s.up {
		for i := range c.gateways {
			if g := &c.gateways[i]; g.up[n] {
				g.chooser.Scrape(c.now, n, s.gauges)
			}
		}
	}
	c.push(event{at: c.now + c.run.Workload.Scrape, kind: scrape, n: n})
}

func (s *server) account(now time.Duration) {
	s.area += float64(len(s.flights)) * (now - s.since).Seconds()
	s.since = now
}
