// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxy is the data plane: listeners, TLS, route match, attempts,
// streaming, timeouts by phase, error replies.
//
// It leaves reading bodies to llm, choosing to epp, knowing members to pool,
// and counting the cost to usage; it calls them and they never call it. Start
// reading at [exchange.serve] in serve.go: one request on one screen.
//
// Always true: a member is dialled only if the pool lists it at that moment;
// no byte is sent twice to a client; an answer that broke never ends as if it
// were whole; whatever happens, [exchange.settle] runs once per request.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage"
)

// Backend is a pool with whoever chooses among its members.
type Backend struct {
	Pool   *pool.Pool
	Picker epp.Picker
}

// Options are what a Server needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments          // nil: none
	Records func(*usage.Record)   // takes the record of each request, must not block; nil: none
	Images  provider.FetchOptions // of images that a target wants inline
	Stored  func() *auth.Registry // keys of the store of the configuration that is being prepared, nil for none; nil: there never is one
	Keys    *auth.Instruments     // nil: none
	Limits  *quota.Limiter        // nil: one that counts in memory
}

// Server is the data plane of one process.
type Server struct {
	log        *slog.Logger
	metrics    *Instruments
	records    func(*usage.Record)
	images     *provider.Fetcher
	limits     limits
	tokenizers tokenizers
	stored     func() *auth.Registry
	guard      *auth.Guard

	table    atomic.Pointer[table]
	open     atomic.Int64 // exchanges under way
	conns    atomic.Int64 // client connections, idle ones too
	files    int64        // that the process may have open
	bodies   atomic.Int64 // bytes of request bodies held
	mirrors  atomic.Int64 // copies of requests under way
	copies   sync.WaitGroup
	draining atomic.Bool
	ending   chan struct{} // closed by Drain

	mu        sync.Mutex // guards what follows; held only by Prepare, Commit, Drain
	listeners map[string]*listener
	upstreams map[upstreamKey]*upstream
	closing   sync.WaitGroup // listeners on their way out

	pins  pins
	marks sync.Map // of targets by label, *mark: what is known of them outlives a configuration
}

// mark is what was seen of a target.
type mark struct {
	load  load
	ratio ratio // to the estimate by characters
	exact ratio // to the tokenizer's count
	spans spans
}

func (s *Server) markOf(label string) *mark {
	m, _ := s.marks.LoadOrStore(label, &mark{})
	return m.(*mark)
}

// New returns a server without listeners; Prepare gives it a configuration.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewInstruments(nil)
	}
	if o.Records == nil {
		o.Records = func(*usage.Record) {}
	}
	if o.Stored == nil {
		o.Stored = func() *auth.Registry { return nil }
	}
	if o.Limits == nil {
		o.Limits = quota.NewLimiter(quota.Options{})
	}
	s := &Server{
		stored: o.Stored, guard: auth.NewGuard(1, o.Log, o.Keys), // Commit sets the number
		log: o.Log, metrics: o.Metrics, records: o.Records, images: provider.NewFetcher(o.Images),
		files: fileLimit(), ending: make(chan struct{}), listeners: map[string]*listener{}, upstreams: map[upstreamKey]*upstream{},
	}
	s.limits.limiter = o.Limits
	s.metrics.openBy(func() float64 { return float64(s.open.Load()) })
	return s
}

// Keys is the directory in force; nil before the first configuration.
func (s *Server) Keys() *auth.Directory {
	if t := s.table.Load(); t != nil {
		return t.keys
	}
	return nil
}

// Change is a configuration that was built whole and not swapped in yet.
// Either Commit or Abort must be called, once.
type Change struct {
	server    *Server
	table     *table
	opened    map[string]*listener // new, bound, not yet serving
	ids       map[string]*identities
	upstreams map[upstreamKey]*upstream
}

// Prepare builds everything that cfg needs, binds new listeners included.
// When it fails nothing has changed. backends has an entry for every pool,
// providers one for every provider.
func (s *Server) Prepare(cfg *config.Config, backends map[string]Backend, providers map[string]*provider.Provider) (*Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Change{server: s, opened: map[string]*listener{}, ids: map[string]*identities{}, upstreams: map[upstreamKey]*upstream{}}
	var err error
	if c.table, err = s.buildTable(cfg, backends, providers, c.upstreams); err != nil {
		return nil, err
	}
	for i := range cfg.Listeners {
		if err := c.prepareListener(cfg.Listeners[i], cfg.Limits); err != nil {
			c.closeOpened()
			return nil, fmt.Errorf("listeners[%d]: %w", i, err)
		}
	}
	return c, nil
}

func (c *Change) prepareListener(lc config.Listener, limits config.Limits) (err error) {
	s := c.server
	old := s.listeners[lc.Name]
	keeps := old != nil && old.keeps(lc, limits)
	var had *identities
	if keeps {
		had = old.identities.Load()
	}
	if c.ids[lc.Name], err = s.identitiesOf(&lc, had); err != nil || keeps {
		return err
	}
	l, err := s.openListener(lc, limits)
	if err == nil {
		c.opened[lc.Name] = l
	}
	return err
}

// Commit swaps the configuration in. Requests under way end under the old
// one; listeners that are gone stop accepting and drain in the background.
func (c *Change) Commit() {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	c.table.tight(s.log)
	s.marks.Range(func(label, _ any) bool {
		if !c.table.labels[label.(string)] {
			s.marks.Delete(label)
		}
		return true
	})
	s.guard.SetFailures(max(1, c.table.cfg.Keys.Failures))
	if old := s.table.Swap(c.table); old != nil {
		s.limits.forget()
		s.metrics.forget(old.cfg, c.table.cfg)
	}
	for key, u := range s.upstreams {
		if c.upstreams[key] != u {
			u.closeIdle()
		}
	}
	s.upstreams = c.upstreams
	keep := map[string]*listener{}
	for i := range c.table.cfg.Listeners {
		lc := c.table.cfg.Listeners[i]
		l := c.opened[lc.Name]
		if l == nil {
			l = s.listeners[lc.Name]
		}
		l.update(lc, c.ids[lc.Name])
		if c.opened[lc.Name] != nil {
			go l.serve()
		}
		keep[lc.Name] = l
	}
	for name, l := range s.listeners {
		if keep[name] != l {
			s.closing.Go(func() { l.drain(c.table.cfg.Limits.Drain.D()) })
		}
	}
	s.listeners = keep
}

// Abort gives back what Prepare took.
func (c *Change) Abort() { c.closeOpened() }

func (c *Change) closeOpened() {
	for _, l := range c.opened {
		l.socket.Close()
	}
}

// Addresses are the bound addresses by listener name.
func (s *Server) Addresses() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]string{}
	for name, l := range s.listeners {
		m[name] = l.socket.Addr().String()
	}
	return m
}

// CertificateFault is why a newest certificate of a listener is not in use, ""
// if all are.
func (s *Server) CertificateFault(listener string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.listeners[listener]; l != nil {
		return l.identities.Load().fault()
	}
	return ""
}

// Open is the number of exchanges under way.
func (s *Server) Open() int { return int(s.open.Load()) }

// Draining says that Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() }

// Drain stops accepting and waits until every exchange has ended or ctx ends;
// then it cuts the rest with an in-stream error and returns how many.
func (s *Server) Drain(ctx context.Context) (cut int) {
	if !s.draining.Swap(true) {
		close(s.ending)
	}
	s.mu.Lock()
	ls := make([]*listener, 0, len(s.listeners))
	for _, l := range s.listeners {
		ls = append(ls, l)
	}
	ups := s.upstreams
	s.mu.Unlock()

	var wg sync.WaitGroup
	var n atomic.Int64
	for _, l := range ls {
		wg.Go(func() { n.Add(int64(l.shutdown(ctx))) })
	}
	wg.Wait()
	s.closing.Wait()
	s.copies.Wait()
	for _, u := range ups {
		u.closeIdle()
	}
	return int(n.Load())
}

// Causes for which the gateway itself ends an exchange. They travel as the
// cause of the exchange's context.
var (
	errConnectTimeout    = errors.New("no connection to the model server in time")
	errFirstTokenTimeout = errors.New("the model server sent nothing in time")
	errIdleTimeout       = errors.New("the model server stopped sending")
	errTotalTimeout      = errors.New("the request took longer than allowed")
	errBackendTimeout    = errors.New("the backend took longer than allowed")
	errDrained           = errors.New("the gateway is shutting down")
	errEvicted           = errors.New("the endpoint picker withdrew the request")
	errEnded             = errors.New("the exchange has ended")
)

// now is the clock of records and phases; real time, as sockets are.
func now() time.Time { return time.Now() }

// errRetried settles a pick that is followed by another one.
var errRetried = errors.New("the request was put to the picker again")
