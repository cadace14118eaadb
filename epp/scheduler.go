// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/pool"
)

// Options of a Scheduler; the zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments
	Now     func() time.Time // virtual time; nil: time.Now
	Seed    uint64           // of ties; 0: random
	Explain int              // picks kept for explanation; 0: 1024; <0: none
}

// Scheduler is the Picker in this process: one per pool.
//
// Reading is free of locks but for the prefix index (shared) and a word of
// random state; a pick allocates a fixed amount (the result with its observer,
// the closure that settles it, the charge) and the hashes of the prompt.
type Scheduler struct {
	pool    *pool.Pool
	log     *slog.Logger
	now     func() time.Time
	start   time.Time
	profile atomic.Pointer[Profile]
	members atomic.Pointer[roster]
	mu      sync.Mutex // of changes to members
	index   *index
	fleet   *fleet
	ring    *ring
	metrics *counters
	views   sync.Pool
	unsized *pool.Metrics // no member's page
	session sessions
	random  atomic.Uint64
	turn    atomic.Uint64
	picks   atomic.Uint32 // names picks in the index
	colds   atomic.Uint64 // numbers cold prompts
}

// roster is what the scheduler keeps of the members of one snapshot.
type roster struct {
	snapshot *pool.Snapshot
	members  []*tracked // as in the snapshot
}

// tracked is what the scheduler keeps of one member for as long as it is
// listed.
type tracked struct {
	m       *pool.Member
	address string
	token   uint64 // what a session token calls it; never 0
	holder  atomic.Pointer[holder]
	limit   atomic.Int64                 // of holder, as last set
	sized   atomic.Pointer[pool.Metrics] // the page that limit was read from
	epoch   atomic.Uint64
	speed   *speed
	cold    atomic.Uint64 // number of its last cold prompt; 0: none
	trust   trust
}

// New returns a scheduler over p.
func New(p *pool.Pool, profile *Profile, o Options) *Scheduler {
	s := &Scheduler{pool: p, log: o.Log, now: o.Now, index: newIndex(), fleet: newFleet(), unsized: &pool.Metrics{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.start = s.now()
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	s.random.Store(o.Seed)
	s.views.New = func() any { return newView() }
	s.ring = newRing(o.Explain)
	s.profile.Store(profile)
	s.members.Store(&roster{})
	s.metrics = o.Metrics.of(p.Config().Name, s)
	return s
}

// Close takes the scheduler's metrics out. A pick after it still works.
func (s *Scheduler) Close() { s.metrics.close() }

// SetProfile swaps the profile; index, learnt speeds and counts stay.
func (s *Scheduler) SetProfile(p *Profile) {
	s.profile.Store(p)
	s.resize(s.roster().members)
}

// Profile is the profile in force.
func (s *Scheduler) Profile() *Profile { return s.profile.Load() }

// The reasons of a result.
const (
	reasonPicked      = "picked"
	reasonSaturated   = "saturated"    // 429: every candidate is full
	reasonNoEndpoints = "no-endpoints" // the pool has no members
	reasonNoneReady   = "none-ready"   // all are ejected or down
	reasonSubset      = "subset-empty" // none of the subset asked for is ready
	reasonTried       = "tried-all"    // every ready one has failed this request
	reasonFiltered    = "filtered"     // the profile's filters left none, not for load
)

// Pick chooses. Its time does not depend on any other request's.
func (s *Scheduler) Pick(ctx context.Context, r *Request) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	v := s.views.Get().(*view)
	defer v.done(s)
	profile := s.profile.Load()
	v.begin(s, r, false)
	v.look(s, profile)
	d := s.prepare(v, profile)
	for range attempts {
		v.choose(profile)
		if !v.overtaken() {
			break
		}
	}
	var res *Result
	if len(v.ranked) > 0 {
		res = s.charge(v, profile, d)
	} else {
		res = s.refuse(v)
	}
	took := s.now().Sub(v.now)
	s.ring.keep(v, profile, res, took)
	s.metrics.picked(res.Reason, took)
	return res, nil
}

// attempts at one decision, when others take the same member at the same time.
const attempts = 3

// choose is the algorithm, over what look has found. It changes nothing but v.
func (v *view) choose(p *Profile) {
	v.count() // what each member is doing at this moment
	v.admit() // available, in the subset, not tried
	for _, f := range p.filters {
		if len(v.alive) == 0 {
			return
		}
		f.apply(v, f.name)
	}
	v.score(p)
	p.picker.key(v)
	v.rank(p.picker.max)
}

// overtaken says that somebody else has charged the best candidate since its
// load was read: among many picks at once all would take the same one.
func (v *view) overtaken() bool {
	if len(v.ranked) == 0 {
		return false
	}
	first := &v.all[v.ranked[0].i]
	return first.t.m.Load().Requests > first.load.Requests
}

// begin readies v for a request. A dry run sees the random numbers and the turn
// that the next pick will have, and takes neither.
func (v *view) begin(s *Scheduler, r *Request, dry bool) {
	v.r, v.now, v.constants = r, s.now(), s.fleet.constants()
	if dry {
		v.random, v.turn = random(s.random.Load()+golden), s.turn.Load()+1
	} else {
		v.random, v.turn = random(s.random.Add(golden)), s.turn.Add(1)
	}
	// Neighbouring states give neighbouring streams; one step mixes them.
	v.random = random(v.random.next())
}

// done gives v back.
func (v *view) done(s *Scheduler) {
	v.r = nil
	s.views.Put(v)
}

// prepare makes the result, before any load is read: an allocation may have to
// wait for the garbage collector.
func (s *Scheduler) prepare(v *view, p *Profile) *decision {
	d := &decision{}
	d.exchange = exchange{
		s: s, chains: v.chains.clone(), prompt: v.tokens, pick: s.pickNumber(), stream: v.r.Stream,
		op: v.r.Op, sent: v.now, session: p.session, sessionKey: v.session.key,
	}
	d.result.Endpoints = d.endpoints[:0]
	d.result.Reason = reasonPicked
	d.result.Observer = &d.exchange
	d.result.Edits = p.session != nil && p.session.echo
	d.result.OnDone = d.exchange.settle
	return d
}

// charge takes the best candidate: counts it at once, so that the next pick
// sees it, and notes in the index what it will hold.
func (s *Scheduler) charge(v *view, p *Profile, d *decision) *Result {
	first := &v.all[v.ranked[0].i]
	d.exchange.take(first.t, first.t.m, first.matched, &v.chains, s.tick(v.now), true)
	if v.cold() {
		first.t.cold.Store(s.colds.Add(1))
	}
	for _, at := range v.ranked[:min(p.picker.max, len(v.ranked))] {
		d.result.Endpoints = append(d.result.Endpoints, v.all[at.i].t.address)
	}
	return &d.result
}

// cold says that no candidate holds a part of the prompt.
func (v *view) cold() bool {
	for _, i := range v.alive {
		if v.all[i].matched > 0 {
			return false
		}
	}
	return len(v.chains.hash) > 0
}

// pickNumber names a pick for the index; 0 is nobody.
func (s *Scheduler) pickNumber() uint32 {
	for {
		if n := s.picks.Add(1); n != 0 {
			return n
		}
	}
}

// refuse says why there is no candidate.
func (s *Scheduler) refuse(v *view) *Result {
	reason, status := reasonFiltered, http.StatusServiceUnavailable
	switch {
	case len(v.all) == 0:
		reason = reasonNoEndpoints
	case v.emptied == stageAvailability:
		reason = reasonNoneReady
	case v.emptied == stageSubset:
		reason = reasonSubset
	case v.emptied == stageTried:
		reason = reasonTried
	case v.saturated:
		reason, status = reasonSaturated, http.StatusTooManyRequests
	}
	return &Result{Reason: reason, Denial: &Denial{
		Status: status,
		Header: http.Header{"Retry-After": {"1"}},
		Detail: v.detail(reason),
	}}
}

// detail lists the candidates with who refused them and why.
func (v *view) detail(reason string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: 0 of %d members", reason, len(v.all))
	for i := range v.all {
		if i == explained {
			fmt.Fprintf(&b, "; and %d more", len(v.all)-i)
			break
		}
		c := &v.all[i]
		fmt.Fprintf(&b, "; %s: %s: %s", c.t.address, c.refusedBy, c.why)
	}
	return b.String()
}

// Explain decides as Pick would and changes nothing.
func (s *Scheduler) Explain(r *Request) *Explanation {
	v := s.views.Get().(*view)
	defer v.done(s)
	profile := s.profile.Load()
	v.begin(s, r, true)
	v.look(s, profile)
	v.choose(profile)
	var res *Result
	if len(v.ranked) == 0 {
		res = s.refuse(v)
	} else {
		res = &Result{Reason: reasonPicked}
		for _, at := range v.ranked[:min(profile.picker.max, len(v.ranked))] {
			res.Endpoints = append(res.Endpoints, v.all[at.i].t.address)
		}
	}
	rec := &record{}
	rec.fill(v, profile, res, s.now().Sub(v.now))
	e := rec.explanation(s.pool.Config().Name)
	e.DryRun = true
	return e
}

// tick is the index's time.
func (s *Scheduler) tick(now time.Time) tick {
	return tick(max(0, now.Sub(s.start)) / (time.Second / ticksPerSecond))
}

// roster follows the pool's membership. It never goes back to an older
// snapshot, so that two picks on either side of a change agree.
func (s *Scheduler) roster() *roster {
	snapshot, now := s.pool.Snapshot(), s.members.Load()
	if now.snapshot == snapshot {
		return now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.members.Load()
	if now.snapshot != nil && now.snapshot.Version >= snapshot.Version {
		return now
	}
	known := make(map[*pool.Member]*tracked, len(now.members))
	for _, t := range now.members {
		known[t.m] = t
	}
	next := &roster{snapshot: snapshot, members: make([]*tracked, 0, len(snapshot.Members))}
	for _, m := range snapshot.Members {
		t := known[m]
		delete(known, m)
		if t == nil {
			t = s.track(m)
		}
		next.members = append(next.members, t)
	}
	s.resize(next.members)
	s.members.Store(next)
	for _, t := range known {
		s.index.leave(t.holder.Swap(nil))
		s.fleet.leave(t.speed)
	}
	return next
}

func (s *Scheduler) track(m *pool.Member) *tracked {
	t := &tracked{m: m, address: m.Address(), speed: s.fleet.join()}
	t.token = max(1, xxhash.Sum64String(s.pool.Config().Name+" "+t.address))
	t.epoch.Store(m.Epoch())
	limit := s.profile.Load().index.capacity
	t.limit.Store(int64(limit))
	t.holder.Store(s.index.join(limit))
	return t
}

// find returns what is kept of m, or nil.
func (s *Scheduler) find(m *pool.Member) *tracked {
	for _, t := range s.roster().members {
		if t.m == m {
			return t
		}
	}
	return nil
}

// refresh forgets what a restarted member held and how fast it was.
func (s *Scheduler) refresh(t *tracked) {
	epoch := t.m.Epoch()
	if epoch == t.epoch.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := t.holder.Load()
	if t.epoch.Swap(epoch) == epoch || old == nil {
		return
	}
	t.holder.Store(s.index.join(int(t.limit.Load())))
	s.index.leave(old)
	s.fleet.forget(t.speed)
	t.trust.reset()
}

// size follows the cache that a member reports: num_blocks * block_size tokens
// in blocks of 64. Unknown: the profile's capacity, which is large.
func (s *Scheduler) size(t *tracked, page *pool.Metrics, p indexParams, members int) {
	limit := p.capacity
	if p.reported && page != nil && page.Has&pool.HasCacheConfig != 0 && page.BlockSize > 0 && page.NumBlocks > 0 {
		limit = int(min(math.MaxInt32, float64(page.NumBlocks)*float64(page.BlockSize)/blockTokens))
	}
	limit = max(1, min(limit, maxEntries/max(1, members)))
	t.sized.Store(page)
	if int64(limit) == t.limit.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.limit.Store(int64(limit))
	s.index.resize(t.holder.Load(), limit)
}

// resize makes the next pick read every member's size again.
func (s *Scheduler) resize(members []*tracked) {
	for _, t := range members {
		t.sized.Store(s.unsized)
	}
}
