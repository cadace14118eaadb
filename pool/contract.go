// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"log/slog"

	"github.com/penstock/penstock/config"
	"github.com/prometheus/client_golang/prometheus"
)

// CONTRACT of the package towards epp, proxy, admin and cmd. The bodies are
// still to be written; the names and meanings are settled.

// Options are what a Pool needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments // shared by all pools; nil: none
}

// Instruments are the Prometheus metrics of all pools (penstock_pool_…).
type Instruments struct{}

// NewInstruments registers them.
func NewInstruments(reg prometheus.Registerer) *Instruments { panic("to be written") }

// Pool is one configured pool. It keeps its identity over reloads.
type Pool struct{}

// New checks cfg and returns a pool that is not running yet. Static members
// are there at once.
func New(cfg config.Pool, opts Options) (*Pool, error) { panic("to be written") }

// Start begins discovery, scraping and probing; it returns when the first
// discovery has ended (or failed: then the pool has no members and says so).
func (p *Pool) Start(ctx context.Context) { panic("to be written") }

// Close ends every goroutine of the pool and waits for them.
func (p *Pool) Close() { panic("to be written") }

// Prepare builds what a new configuration of the same pool needs. commit
// swaps it in and cannot fail; members that stay keep their identity.
func (p *Pool) Prepare(cfg config.Pool) (commit func(), err error) { panic("to be written") }

// Config is the configuration in force.
func (p *Pool) Config() config.Pool { panic("to be written") }

// Snapshot is the membership of this moment. One atomic load.
func (p *Pool) Snapshot() *Snapshot { panic("to be written") }

// Lookup returns the member listed at addr at this moment, or nil.
func (p *Pool) Lookup(addr string) *Member { panic("to be written") }

// SetMembers replaces the membership: the path for controllers and tests.
func (p *Pool) SetMembers(members []config.Member) { panic("to be written") }

// Member is one model server. Its methods are safe for concurrent use and,
// but for Report, lock-free.
type Member struct{}

func (m *Member) Address() string           { panic("to be written") }
func (m *Member) Labels() map[string]string { panic("to be written") } // read only

// State is Ready, Returning, Ejected or Down. Available is Ready or Returning.
func (m *Member) State() State    { panic("to be written") }
func (m *Member) Available() bool { panic("to be written") }

// Share is the part of its fair load that a returning member should get: 1
// when Ready, rising from 0.1 while Returning.
func (m *Member) Share() float64 { panic("to be written") }

// Metrics is the last good page; nil when there never was one (unknown).
// Stale says that the page is older than the pool's bound.
func (m *Member) Metrics() *Metrics { panic("to be written") }
func (m *Member) Stale() bool       { panic("to be written") }

// SetMetrics is what the scraper calls; tests and virtual time call it too.
func (m *Member) SetMetrics(x *Metrics) { panic("to be written") }

// Epoch changes when the server behind the address has restarted (a counter
// ran backwards, or it refused and then accepted): its cache is gone.
func (m *Member) Epoch() uint64 { panic("to be written") }

// Load is the gateway's own count.
func (m *Member) Load() Load { panic("to be written") }

// Charge counts one exchange on the member, at once: uncached prompt tokens
// queued and prompt tokens of context.
func (m *Member) Charge(uncached, prompt int) *Charge { panic("to be written") }

// Report tells passive health what an attempt came to.
func (m *Member) Report(o Outcome) { panic("to be written") }

// Charge is what one exchange holds on one member. Its methods may be called
// from one goroutine at a time; Release is idempotent.
type Charge struct{}

func (c *Charge) FirstToken()  { panic("to be written") } // the queued tokens are worked off
func (c *Charge) Output(n int) { panic("to be written") } // n more tokens streamed
func (c *Charge) Release()     { panic("to be written") }
