// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/ledger"
	"github.com/penstock/penstock/usage/otlp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// gateway is a whole Penstock in one process: the parts that a configuration
// describes, and the one way to change them, apply.
type gateway struct {
	log     *slog.Logger
	file    string // of the configuration; "" when there is none
	started time.Time
	flagOf  func(key string) string // the flag that gives an address; nil: there are none
	// instead is what to try with an address that is taken where its key stands in
	// no file; nil or "": it does.
	instead func(cfg *config.Config, key string) string
	reg     *prometheus.Registry
	proxy   *proxy.Server
	pickers *extproc.Listeners // where other gateways ask

	instruments
	spending
	reloads reloads

	sinks
	cfg    atomic.Pointer[config.Config]
	fault  atomic.Pointer[reloadFault] // of the last reload; nil: it succeeded
	fading atomic.Bool                 // the end has been announced

	applying  sync.Mutex // one apply at a time
	mu        sync.Mutex // guards what follows for readers
	pools     map[string]*pooled
	providers map[string]*provider.Provider
	members   map[string][]config.Member // what was fed last, by set; nil: nobody calls feed
	admin     *sideServer
	ops       *sideServer
	control   *control // nil: the configuration is a file's
	// closed says why a picker is not to be asked although it runs; "": it may
	// be. nil: it always may. It is set before the first configuration.
	closed func() string
}

// instruments are the metrics of the packages that count.
type instruments struct {
	poolMetrics     *pool.Instruments
	providerMetrics *provider.Instruments
	pickMetrics     *epp.Instruments
	remoteMetrics   *extproc.ClientInstruments
	recordMetrics   *usage.Instruments
	ledgerMetrics   *ledger.Instruments
	otlpMetrics     *otlp.Instruments
	sloMetrics      *usage.SLOInstruments
	consoleMetrics  *admin.ConsoleInstruments
}

// reloads tell of configurations.
type reloads struct {
	total    *prometheus.CounterVec
	ok, time prometheus.Gauge
	count    atomic.Int64 // those that were applied
	newest   atomic.Int64 // when the one in force was, Unix nanoseconds
	log      reloadLog
}

// pooled is a pool with its picker: a scheduler in this process or a client of
// one elsewhere. Both keep their identity over reloads that leave them be.
type pooled struct {
	pool      *pool.Pool
	scheduler *epp.Scheduler
	profile   *config.EndpointPickerConfig // of the scheduler
	remote    *extproc.Client
	remoteCfg config.RemotePicker
}

// picker is nil for a plain pool.
func (p *pooled) picker() epp.Picker {
	switch {
	case p.remote != nil:
		return p.remote
	case p.scheduler != nil:
		return p.scheduler
	}
	return nil
}

// explainer tells of past picks.
type explainer interface {
	Picked() uint64
	Recent(n int) []*epp.Explanation
	Find(requestID string) *epp.Explanation
}

// explainer is nil for a plain pool.
func (p *pooled) explainer() explainer {
	switch {
	case p.remote != nil:
		return p.remote
	case p.scheduler != nil:
		return p.scheduler
	}
	return nil
}

// closePicker ends the picker, not the pool.
func (p *pooled) closePicker() {
	if p.remote != nil {
		p.remote.Close()
	}
	if p.scheduler != nil {
		p.scheduler.Close()
	}
}

// reloadFault is why the last reload changed nothing.
type reloadFault struct {
	At  time.Time
	Err string
}

// newGateway is a gateway without a configuration. file is named in readiness.
func newGateway(log *slog.Logger, file string) *gateway {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	g := &gateway{
		log: log, reg: reg, pools: map[string]*pooled{},
		instruments: instruments{
			poolMetrics: pool.NewInstruments(reg), providerMetrics: provider.NewInstruments(reg), pickMetrics: epp.NewInstruments(reg),
			remoteMetrics: extproc.NewClientInstruments(reg), recordMetrics: usage.NewInstruments(reg), ledgerMetrics: ledger.NewInstruments(reg),
			otlpMetrics: otlp.NewInstruments(reg), sloMetrics: usage.NewSLOInstruments(reg), consoleMetrics: admin.NewConsoleInstruments(reg),
		},
		file: file, started: time.Now(),
		reloads: reloads{total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_config_reloads_total",
			Help: "Configurations applied (result=ok) or refused (result=failed), the first one included."}, []string{"result"}),
			ok: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_config_last_reload_successful",
				Help: "1 if the newest configuration is in force, 0 if it was refused and an older one stays."}),
			time: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_config_last_success_timestamp_seconds",
				Help: "When the configuration in force was applied."})},
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_build_info",
		Help: "Always 1; the labels say what runs.", ConstLabels: prometheus.Labels{"version": thisBuild().Version, "goversion": thisBuild().Go}})
	build.Set(1)
	reg.MustRegister(g.reloads.total, g.reloads.ok, g.reloads.time, build)
	g.pickers = extproc.NewListeners(extproc.ListenersOptions{Log: log, Metrics: extproc.NewServerInstruments(reg), Ready: func() bool { return g.refusal() == "" }})
	g.limiter = quota.NewLimiter(quota.Options{Log: log, Metrics: quota.NewInstruments(reg)})
	g.keyring = newKeyring(reg)
	g.proxy = proxy.New(proxy.Options{
		Stored: g.keyring.registry, Keys: g.keyring.failures, Limits: g.limiter,
		Log: log, Metrics: proxy.NewInstruments(reg),
		Records: func(r *usage.Record) { g.sinks.take(r); g.ledger.Load().Append(r) },
	})
	return g
}

// refusal is why pickers are not to be asked although they run; "": they may be.
func (g *gateway) refusal() string {
	if g.closed == nil {
		return ""
	}
	return g.closed()
}

// reload applies cfg, or keeps what is there and says why. err is the error of
// reading the configuration, if that failed already.
func (g *gateway) reload(cfg *config.Config, err error) error {
	start := time.Now()
	old := g.cfg.Load()
	if err == nil {
		err = g.bound(cfg, g.apply(cfg))
	}
	if err != nil {
		g.fault.Store(&reloadFault{At: time.Now(), Err: err.Error()})
		g.reloads.log.note(admin.ReloadStatus{At: start, Error: err.Error(), Took: time.Since(start).Seconds()})
		g.reloads.total.WithLabelValues("failed").Inc()
		g.reloads.ok.Set(0)
		return err
	}
	g.fault.Store(nil)
	g.reloads.count.Add(1)
	g.reloads.newest.Store(time.Now().UnixNano())
	g.reloads.total.WithLabelValues("ok").Inc()
	g.reloads.ok.Set(1)
	g.reloads.time.SetToCurrentTime()
	for _, note := range hostnames(cfg) {
		g.log.Warn("a member is not named by its address", "path", note.Path, "what", note.What, "hint", note.Hint)
	}
	changes := []string(nil)
	if old != nil {
		changes = config.Diff(old, cfg)
	}
	g.reloads.log.note(admin.ReloadStatus{At: start, First: old == nil, Took: time.Since(start).Seconds(), Changes: changes})
	if old != nil {
		g.log.Info("configuration applied", "changes", len(changes), "took", time.Since(start).Round(time.Millisecond).String())
		for _, line := range changes {
			g.log.Info("configuration changed", "what", line)
		}
	}
	return nil
}

// bound adds to an error over an address that is taken what may be tried: the
// key that it comes from, or the flag.
func (g *gateway) bound(cfg *config.Config, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	part, rest, _ := strings.Cut(err.Error(), ": ")
	key := part + ".address"
	if strings.HasPrefix(part, "pickerListeners[") && strings.HasPrefix(rest, "health: ") {
		key = part + ".health"
	}
	if g.instead != nil {
		if try := g.instead(cfg, key); try != "" {
			return fmt.Errorf("%w; %s", err, try)
		}
	}
	try := "try another " + key
	if g.flagOf != nil {
		if flag := g.flagOf(key); flag != "" {
			try += ", or " + flag
		}
	}
	if key == "admin.address" {
		try += `, or admin: {address: "off"}`
		usual := &config.Config{}
		usual.SetDefaults()
		if cfg.Admin.Address == usual.Admin.Address {
			try += "; " + usual.Admin.Address + " is the default, also of another penstock on this machine"
		}
	}
	return fmt.Errorf("%w; %s", err, try)
}

// listenerOf is the listener whose address has the key; nil: it is none's.
func listenerOf(cfg *config.Config, key string) *config.Listener {
	for i := range cfg.Listeners {
		if key == fmt.Sprintf("listeners[%d].address", i) {
			return &cfg.Listeners[i]
		}
	}
	return nil
}

// insteadOfGateway is what to try under a controller, whose user has a Gateway in
// place of the configuration.
func insteadOfGateway(cfg *config.Config, key string) string {
	l := listenerOf(cfg, key)
	switch {
	case l != nil:
		return "another process has the port of " + listenerWords(l) + "; choose another one in the Gateway"
	case key == "ops.address":
		return "try another --ops"
	}
	return ""
}

// listenerWords names the listeners of a Gateway that share an address.
func listenerWords(l *config.Listener) string {
	names := make([]string, len(l.Sections))
	for i := range l.Sections {
		names[i] = l.Sections[i].Name
	}
	if len(names) == 1 {
		return "listener " + names[0]
	}
	return "listeners " + strings.Join(names, ", ")
}

// apply builds every part of cfg, which may fail and then changes nothing, and
// swaps all of them in, which cannot fail.
func (g *gateway) apply(cfg *config.Config) (err error) {
	g.applying.Lock()
	defer g.applying.Unlock()
	var commits, undo []func()
	defer func() {
		if err != nil {
			for _, f := range slices.Backward(undo) {
				f()
			}
		}
	}()

	next, backends := map[string]*pooled{}, map[string]proxy.Backend{}
	for i := range cfg.Pools {
		pc := cfg.Pools[i]
		p, commit, err := g.buildPool(cfg, pc)
		if err != nil {
			return fmt.Errorf("pools[%d] (%s): %w", i, pc.Name, err)
		}
		before := g.pools[pc.Name]
		if before == nil {
			undo = append(undo, p.pool.Close)
		}
		if before == nil || before.picker() != p.picker() {
			undo = append(undo, p.closePicker)
		}
		commits = append(commits, commit)
		next[pc.Name] = p
		backends[pc.Name] = proxy.Backend{Pool: p.pool, Picker: p.picker()}
	}
	providers, err := g.buildProviders(cfg, &undo)
	if err != nil {
		return err
	}
	keys, err := g.buildKeys(cfg, &undo)
	if err != nil {
		return err
	}
	commits = append(commits, keys)
	change, err := g.proxy.Prepare(cfg, backends, providers)
	if err != nil {
		return err
	}
	undo = append(undo, change.Abort)
	commits = append(commits, change.Commit)

	asked, err := g.pickers.Prepare(cfg, pickerBackends(next))
	if err != nil {
		return err
	}
	undo = append(undo, asked.Abort)
	commits = append(commits, asked.Commit)

	if err := g.buildSinks(cfg, &commits, &undo); err != nil {
		return err
	}
	adminServer, opsServer, err := g.buildSides(cfg, &undo, &commits)
	if err != nil {
		return err
	}

	for _, commit := range commits {
		commit()
	}
	g.mu.Lock()
	before, gone := g.pools, g.providers
	g.pools, g.providers, g.admin, g.ops = next, providers, adminServer, opsServer
	for name, p := range next { // what was fed may have changed since it was made
		if list, ok := g.members[name]; ok && before[name] == nil && p.pool.Config().Members.External {
			p.pool.SetMembers(list)
		}
		if p.remote != nil && p.remoteCfg.External {
			p.remote.SetEndpoints(g.members[config.PickerSet(name)])
		}
	}
	g.mu.Unlock()
	g.cfg.Store(cfg)
	for name, p := range gone {
		if providers[name] != p {
			p.Close()
		}
	}
	for name, p := range before {
		after := next[name]
		if after == nil {
			p.pool.Close()
		}
		if after == nil || after.picker() != p.picker() {
			p.closePicker()
		}
	}
	return nil
}

// buildSinks makes ready where limits are counted and where records go.
func (g *gateway) buildSinks(cfg *config.Config, commits, undo *[]func()) error {
	old := g.cfg.Load()
	if old == nil || old.Records != cfg.Records {
		if err := g.openRecords(cfg, undo, commits); err != nil {
			return err
		}
	}
	if err := g.openTelemetry(cfg, undo, commits); err != nil {
		return err
	}
	*commits = append(*commits, func() { g.slos.Store(usage.NewSLOs(cfg.SLOs, g.slos.Load(), g.sloMetrics)) })
	if otherStore(old, cfg) {
		if err := g.openQuota(cfg, undo, commits); err != nil {
			return err
		}
	}
	return g.openLedger(cfg, undo, commits)
}

// buildSides binds the admin and ops addresses of cfg, or keeps what is there.
func (g *gateway) buildSides(cfg *config.Config, undo, commits *[]func()) (adminServer, opsServer *sideServer, err error) {
	adminServer, opsServer = g.admin, g.ops
	for _, side := range []struct {
		what, address string
		tls           *config.ServerTLS
		write         time.Duration // of one answer
		handler       func(address string) http.Handler
		server        **sideServer
	}{
		{"admin", cfg.Admin.Address, cfg.Admin.TLS, 0, g.adminHandler, &adminServer},
		{"ops", cfg.Ops.Address, nil, opsWrite, g.opsHandler, &opsServer},
	} {
		before := *side.server
		if side.address == addressOf(before) && (before == nil || reflect.DeepEqual(side.tls, before.tls)) {
			continue
		}
		if before != nil && side.address == before.address { // the socket is taken over, with another certificate
			secure, err := before.secure(side.tls, g.log)
			if err != nil {
				return nil, nil, fmt.Errorf("%s.tls: %w", side.what, err)
			}
			*commits = append(*commits, secure)
			continue
		}
		s, err := listenSide(side.address, side.write, side.handler)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", side.what, err)
		}
		secure, err := s.secure(side.tls, g.log)
		if err != nil {
			s.close()
			return nil, nil, fmt.Errorf("%s.tls: %w", side.what, err)
		}
		if s != nil {
			*undo = append(*undo, s.close)
		}
		*side.server = s
		*commits = append(*commits, secure, func() { s.start(); before.close() })
	}
	return adminServer, opsServer, nil
}

// buildProviders are the providers of cfg: those that are configured as before
// keep what they know of their credentials.
func (g *gateway) buildProviders(cfg *config.Config, undo *[]func()) (map[string]*provider.Provider, error) {
	next := map[string]*provider.Provider{}
	for i, pc := range cfg.Providers {
		if p := g.providers[pc.Name]; p != nil && p.Config().Equal(pc) {
			next[pc.Name] = p
			continue
		}
		p, err := provider.New(pc, provider.Options{Log: g.log, Metrics: g.providerMetrics, Previous: g.providers[pc.Name], Version: version})
		if err != nil {
			return nil, fmt.Errorf("providers[%d] (%s): %w", i, pc.Name, err)
		}
		*undo = append(*undo, p.Close)
		next[pc.Name] = p
	}
	return next, nil
}

// buildPool makes a pool ready for cfg, or prepares the change of one that is
// there. A new pool runs already when this returns: its members are known and
// being scraped before it gets a request, and a picker elsewhere is connected.
func (g *gateway) buildPool(cfg *config.Config, pc config.Pool) (_ *pooled, _ func(), fail error) {
	before := g.pools[pc.Name]
	next, commit := &pooled{}, func() {}
	if before != nil {
		next.pool = before.pool
		var err error
		if commit, err = before.pool.Prepare(pc); err != nil {
			return nil, nil, err
		}
	} else {
		made, err := pool.New(pc, pool.Options{Log: g.log, Metrics: g.poolMetrics})
		if err != nil {
			return nil, nil, err
		}
		if pc.Members.External {
			if err := g.adopt(pc.Name, made); err != nil {
				return nil, nil, err
			}
		}
		next.pool = made
		made.Start(context.Background())
		defer func() {
			if fail != nil {
				made.Close()
			}
		}()
	}
	if pc.Members.External && before != nil {
		// The source may have been another one until now.
		if err := g.feeds(); err != nil {
			return nil, nil, err
		}
		swap := commit
		commit = func() { swap(); g.adopt(pc.Name, next.pool) }
	}
	if pc.Plain {
		return next, commit, nil
	}
	log := g.log.With("pool", pc.Name)
	if r := pc.Picker.Remote; r != nil {
		if before != nil && before.remote != nil && reflect.DeepEqual(before.remoteCfg, *r) {
			next.remote, next.remoteCfg = before.remote, *r
			return next, commit, nil
		}
		c, err := extproc.NewClient(next.pool, *r, extproc.ClientOptions{Log: log, Metrics: g.remoteMetrics, Picks: g.pickMetrics})
		if err != nil {
			return nil, nil, fmt.Errorf("picker.remote: %w", err)
		}
		if r.External {
			if err := g.adoptPicker(pc.Name, c); err != nil {
				return nil, nil, err
			}
		}
		c.Start()
		next.remote, next.remoteCfg = c, *r
		return next, commit, nil
	}
	pcfg, err := pickerConfig(cfg, pc.Picker.Profile)
	if err != nil {
		return nil, nil, err
	}
	profile, err := epp.Compile(pcfg)
	if err != nil {
		return nil, nil, fmt.Errorf("picker %s: %w", pc.Picker.Profile, err)
	}
	for _, note := range profile.Notes() {
		log.Warn("picker profile", "profile", pc.Picker.Profile, "note", note)
	}
	next.profile = pcfg
	if before == nil || before.scheduler == nil {
		next.scheduler = epp.New(next.pool, profile, epp.Options{Log: log, Metrics: g.pickMetrics})
		return next, commit, nil
	}
	next.scheduler = before.scheduler
	swap := commit
	return next, func() {
		swap()
		if !reflect.DeepEqual(before.profile, pcfg) {
			next.scheduler.SetProfile(profile)
		}
	}, nil
}

// pickerConfig is the profile of that name: one of the configuration's, else a
// built-in one.
func pickerConfig(cfg *config.Config, name string) (*config.EndpointPickerConfig, error) {
	name = cmp.Or(name, "default")
	for i := range cfg.Pickers {
		if cfg.Pickers[i].Name == name {
			return named(cfg.Pickers[i].Config, name), nil
		}
	}
	if c, ok := epp.Builtin(name); ok {
		return c, nil
	}
	return nil, fmt.Errorf("no picker profile is called %q", name)
}

// named is c with its scheduling profile called as the picker is: explanations
// then say which of the configuration's pickers decided. Within c the profile is
// mostly called default, as the built-in picker is.
func named(c *config.EndpointPickerConfig, name string) *config.EndpointPickerConfig {
	if c == nil || len(c.SchedulingProfiles) != 1 {
		return c
	}
	out := *c
	out.SchedulingProfiles = slices.Clone(c.SchedulingProfiles)
	out.SchedulingProfiles[0].Name = name
	return &out
}

// poolNames are the pools in force, sorted.
func (g *gateway) poolNames() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.pools))
}

func (g *gateway) pooled(name string) *pooled {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pools[name]
}

// fade says that the end is near, and serves on.
func (g *gateway) fade() {
	g.fading.Store(true)
	g.pickers.Fade()
}

// close drains the data plane within ctx and ends everything else. It returns
// how many streams were cut.
func (g *gateway) close(ctx context.Context) int {
	var pickersCut int
	var draining sync.WaitGroup
	draining.Go(func() { pickersCut = g.pickers.Drain(ctx) })
	cut := g.proxy.Drain(ctx)
	draining.Wait()
	cut += pickersCut
	g.applying.Lock()
	defer g.applying.Unlock()
	g.mu.Lock()
	pools, providers, adminServer, ops := g.pools, g.providers, g.admin, g.ops
	g.pools, g.providers, g.admin, g.ops = map[string]*pooled{}, nil, nil, nil
	g.mu.Unlock()
	for _, p := range providers {
		p.Close()
	}
	for _, p := range pools {
		p.pool.Close()
		p.closePicker()
	}
	g.limiter.Close()
	if l := g.records.Swap(nil); l != nil {
		closeRecords(l)
	}
	g.otlp.Swap(nil).Close()
	if l := g.ledger.Swap(nil); l != nil {
		closeLedger(g, l)
	}
	adminServer.close()
	ops.close()
	g.keyring.close()
	return cut
}

// openRecords prepares another sink.
func (g *gateway) openRecords(cfg *config.Config, undo, commits *[]func()) error {
	l, err := usage.Open(cfg.Records, usage.Options{Log: g.log, Metrics: g.recordMetrics})
	if err != nil {
		return fmt.Errorf("records: %w", err)
	}
	*undo = append(*undo, func() { closeRecords(l) })
	*commits = append(*commits, func() {
		if before := g.records.Swap(l); before != nil {
			go closeRecords(before)
		}
	})
	return nil
}

// closeRecords gives the sink a bounded time to take what is queued.
func closeRecords(l *usage.Log) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	l.Close(ctx)
}
