// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package pool holds the members of a pool and what is known of each:
// discovery, scraped engine metrics, the gateway's own in-flight counts,
// health.
//
// It leaves choosing to package epp and dialling to package proxy. Start
// reading at [Pool]; a [Snapshot] is what a picker sees. Each member's state
// machine is in health.go, the metric names of the engines in engines.go.
//
// Always true: a Snapshot never changes; a [Member] keeps its identity for as
// long as it stays listed; a charge on a member is released exactly once; what
// is not known is never taken for zero.
package pool

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
)

// Options are what a Pool needs from its surroundings. The zero value works.
type Options struct {
	Log      *slog.Logger
	Metrics  *Instruments // shared by all pools; nil: none
	Resolver Resolver     // nil: net.DefaultResolver
	// Now is the clock of health and staleness, for virtual time; nil:
	// time.Now. A pool with a clock of its own is not to be started.
	Now func() time.Time
}

// Resolver looks up the addresses of a host; [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Pool is one configured pool. It keeps its identity over reloads.
type Pool struct {
	name string
	opts Options
	log  *slog.Logger
	now  func() time.Time

	cfg       atomic.Pointer[config.Pool] // defaults filled in
	snapshot  atomic.Pointer[Snapshot]
	discovery atomic.Pointer[DiscoveryStatus]
	told      atomic.Bool // see Told
	cost      scrapeCost

	// mu guards writing: the snapshot, the state of discovery once running, and
	// every member's health. The only lock taken under it is Member.pageMu.
	mu            sync.Mutex
	departed      map[string]*Member // gone, still holding charges
	lacking       Signals            // reported as missing on some member
	healthChanged chan struct{}

	// lifeMu guards what runs. It is taken before mu.
	lifeMu  sync.Mutex
	ctx     context.Context // of the started pool; nil: not running
	cancel  context.CancelFunc
	closed  bool
	running sync.WaitGroup
	stops   map[task]context.CancelFunc
	next    *plan // of the configuration in force
}

// task names what runs on behalf of one part of the configuration.
type task string

const (
	discovering task = "discovery"
	scraping    task = "scraping"
	probing     task = "probing"
)

// plan is a configuration with all that can fail already done.
type plan struct {
	cfg  config.Pool
	dial *dialer
}

// New checks cfg and returns a pool that is not running yet. Static members
// are there at once.
func New(cfg config.Pool, opts Options) (*Pool, error) {
	next, err := newPlan(cfg)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		name:          cfg.Name,
		opts:          opts,
		log:           cmp.Or(opts.Log, slog.New(slog.DiscardHandler)).With("pool", cfg.Name),
		now:           opts.Now,
		departed:      map[string]*Member{},
		healthChanged: make(chan struct{}, 1),
		stops:         map[task]context.CancelFunc{},
		next:          next,
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.opts.Resolver == nil {
		p.opts.Resolver = net.DefaultResolver
	}
	p.cfg.Store(&next.cfg)
	p.snapshot.Store(&Snapshot{})
	p.discovery.Store(&DiscoveryStatus{Source: sourceOf(next.cfg.Members)})
	if next.cfg.Members.Static != nil {
		p.replaceStatic(next.cfg.Members.Static)
	}
	return p, nil
}

// Start begins discovery, scraping and probing; it returns when the first
// discovery has ended (or failed: then the pool has no members and says so).
// Everything ends with ctx, or with Close. A second Start does nothing.
func (p *Pool) Start(ctx context.Context) {
	p.lifeMu.Lock()
	if p.ctx != nil || p.closed {
		p.lifeMu.Unlock()
		return
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.opts.Metrics.add(p)
	done := p.ctx.Done()
	p.running.Go(func() { p.watchHealth(done) })
	first := p.discover()
	p.scrape()
	p.probe()
	p.lifeMu.Unlock()
	select {
	case <-first:
	case <-done:
	}
}

// Close ends every goroutine of the pool and waits for them. Members and
// charges stay usable; the pool's metrics are gone.
func (p *Pool) Close() {
	p.lifeMu.Lock()
	p.closed = true
	if p.cancel != nil {
		p.cancel()
	}
	p.lifeMu.Unlock()
	p.running.Wait()
	p.opts.Metrics.remove(p)
}

// Prepare builds what a new configuration of the same pool needs. commit
// swaps it in and cannot fail; members that stay keep their identity. When the
// source of members changes, the old members stay until the new source has
// answered.
func (p *Pool) Prepare(cfg config.Pool) (commit func(), err error) {
	next, err := newPlan(cfg)
	if err != nil {
		return nil, err
	}
	return func() { p.commit(next) }, nil
}

func (p *Pool) commit(next *plan) {
	p.lifeMu.Lock()
	defer p.lifeMu.Unlock()
	old := p.next.cfg
	p.next = next
	p.cfg.Store(&next.cfg)
	sourceChanged := !reflect.DeepEqual(old.Members, next.cfg.Members)
	if sourceChanged {
		p.stop(discovering)
		p.mu.Lock() // the old source stores its status under it, or not at all
		p.discovery.Store(&DiscoveryStatus{Source: sourceOf(next.cfg.Members)})
		p.mu.Unlock()
		if next.cfg.Members.Static != nil {
			p.replaceStatic(next.cfg.Members.Static)
		}
	}
	if next.cfg.Probe == nil {
		p.mu.Lock()
		p.forgetProbesLocked(p.now())
		p.mu.Unlock()
	}
	if p.ctx == nil || p.closed {
		return
	}
	if sourceChanged {
		p.discover()
	}
	if transportChanged := old.Protocol != next.cfg.Protocol || next.cfg.TLS != nil || old.TLS != nil; transportChanged ||
		old.Metrics != next.cfg.Metrics || old.Engine != next.cfg.Engine {
		p.scrape()
	}
	if !reflect.DeepEqual(old.Probe, next.cfg.Probe) || next.cfg.TLS != nil || old.Protocol != next.cfg.Protocol {
		p.probe()
	}
}

// run replaces the goroutine of t. f ends with its context. lifeMu is held.
func (p *Pool) run(t task, f func(ctx context.Context)) {
	p.stop(t)
	ctx, cancel := context.WithCancel(p.ctx)
	p.stops[t] = cancel
	p.running.Go(func() {
		defer cancel()
		f(ctx)
	})
}

func (p *Pool) stop(t task) {
	if cancel := p.stops[t]; cancel != nil {
		cancel()
		delete(p.stops, t)
	}
}

// Config is the configuration in force, defaults filled in. Read only.
func (p *Pool) Config() config.Pool { return *p.cfg.Load() }

// Snapshot is the membership of this moment. One atomic load.
func (p *Pool) Snapshot() *Snapshot { return p.snapshot.Load() }

// Lookup returns the member listed at addr at this moment, or nil. addr is in
// the form of [Member.Address].
func (p *Pool) Lookup(addr string) *Member { return p.snapshot.Load().byAddress[addr] }

// Told says that the members are known, or were once, if only that there are
// none. Until then an empty pool is one whose source has not answered.
func (p *Pool) Told() bool { return p.told.Load() }

// SetMembers replaces the membership: the path for controllers and tests. It
// is meant for pools without a source of their own, since the next answer of a
// source would replace it again. An empty list says that there are none. An
// entry that is no address is left out and logged.
func (p *Pool) SetMembers(members []config.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaceLocked(members)
}

func (p *Pool) replaceStatic(members []config.Member) {
	p.SetMembers(members)
	p.discovery.Store(&DiscoveryStatus{Source: sourceStatic, OK: true, Members: len(members), Changed: p.now()})
}

// replaceFrom is SetMembers for a source that ends with ctx: a late answer of
// a source that is no longer configured changes nothing.
func (p *Pool) replaceFrom(ctx context.Context, members []config.Member, status *DiscoveryStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	p.replaceLocked(members)
	p.discovery.Store(status)
}

func (p *Pool) replaceLocked(listed []config.Member) {
	old := p.snapshot.Load()
	members := make([]*Member, 0, len(listed))
	seen := make(map[string]bool, len(listed))
	changed := false
	for _, c := range listed {
		addr, err := canonicalAddress(c.Address)
		if err != nil {
			p.log.Error("member left out", "address", c.Address, "error", err)
			continue
		}
		if seen[addr] {
			continue
		}
		seen[addr] = true
		m := old.byAddress[addr]
		if m == nil {
			m = p.joinLocked(addr)
			changed = true
		}
		if l := m.labels.Load(); l == nil || !maps.Equal(*l, c.Labels) {
			labels := maps.Clone(c.Labels)
			m.labels.Store(&labels)
			changed = true
		}
		members = append(members, m)
	}
	for _, m := range old.Members {
		if !seen[m.address] {
			changed = true
			p.departed[m.address] = m
		}
	}
	maps.DeleteFunc(p.departed, func(_ string, m *Member) bool { return m.Load() == Load{} })
	if changed {
		slices.SortFunc(members, func(a, b *Member) int { return cmp.Compare(a.address, b.address) })
		p.publishLocked(members)
		p.noteLacksLocked("") // one that lacked a signal may have gone
	}
	if len(members) > 0 || len(listed) == 0 { // a list of nothing but faults tells nothing
		p.told.Store(true)
	}
}

// joinLocked is the member for an address that was not listed. One that left
// with charges still open comes back as it is, since its server still bears
// them; but what else was known of it is void.
func (p *Pool) joinLocked(addr string) *Member {
	m := p.departed[addr]
	if m == nil {
		return &Member{address: addr, pool: p}
	}
	delete(p.departed, addr)
	m.forget()
	return m
}

// publishLocked makes members the membership, under the next version.
func (p *Pool) publishLocked(members []*Member) {
	old := p.snapshot.Load()
	s := &Snapshot{Version: old.Version + 1, Members: members, byAddress: old.byAddress}
	if !slices.Equal(old.Members, members) {
		s.byAddress = make(map[string]*Member, len(members))
		for _, m := range members {
			s.byAddress[m.address] = m
		}
	}
	p.snapshot.Store(s)
}

// lists says whether m is a member at this moment.
func (p *Pool) lists(m *Member) bool { return p.snapshot.Load().byAddress[m.address] == m }
