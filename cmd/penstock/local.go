// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube/controller"
	"github.com/penstock/penstock/xds"
)

// clusterFlags are those of penstock run --kubernetes.
type clusterFlags struct {
	on         bool
	kubeconfig string
	pool       string
	addresses  []string
	service    string
	ops        string
	level      string
	format     string
}

// run is a controller and the data plane of every Gateway in one process, for
// small clusters: nothing is provisioned, and configurations go from hand to
// hand.
func (f *clusterFlags) run(ctx context.Context) error {
	var level slog.LevelVar
	log := newLogger(config.Log{Level: f.level, Format: f.format}, &level)
	controller.LogTo(log)
	cluster, err := controller.Connect(f.kubeconfig, "penstock-run/"+version)
	if err != nil {
		return err
	}
	pool, err := addressPool(f.pool)
	if err != nil {
		return err
	}
	local := &controller.Local{Addresses: f.hosts()}
	if f.service != "" {
		var ok bool
		if local.Namespace, local.Service, ok = strings.Cut(f.service, "/"); !ok || local.Namespace == "" || local.Service == "" {
			return usageError("--service %q is not namespace/name", f.service)
		}
	}
	log.Info("starting", "version", version, "server", cluster.Host())
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	planes := &localPlanes{log: log, own: reg, planes: map[xds.Gateway]*localPlane{}}
	c := controller.New(controller.Options{
		Cluster: cluster, Publisher: planes, Log: log, Metrics: controller.NewInstruments(reg), Pool: pool, Check: checkContent,
		Local: local,
		Admin: "off", Ops: "off", // the process has one of its own for all Gateways
	})
	planes.replied = c.Replied
	side, err := listenSide(f.ops, opsWrite, func(string) http.Handler {
		return admin.Ops(admin.Options{Log: log, Registry: planes, Ready: controllerReady(c)})
	})
	if err != nil {
		return fmt.Errorf("ops: %w", err)
	}
	side.start()
	defer side.close()
	err = c.Run(ctx)
	return cmp.Or(err, planes.close())
}

// hosts are the addresses by which clients reach this machine: those given, or
// those of its interfaces.
func (f *clusterFlags) hosts() []string {
	if len(f.addresses) > 0 {
		return f.addresses
	}
	var out []string
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	return out[:min(len(out), 16)] // the bound of a Gateway's status
}

// localPlanes are the data planes of this process by Gateway: a
// controller.Publisher that sends nothing anywhere.
type localPlanes struct {
	log     *slog.Logger
	own     *prometheus.Registry
	replied func(xds.Gateway)

	mu     sync.Mutex
	planes map[xds.Gateway]*localPlane
}

// localPlane is the data plane of one Gateway.
type localPlane struct {
	gateway *gateway
	since   time.Time

	mu      sync.Mutex // one configuration at a time
	newest  string     // version of what was published last
	version string     // of what is in force
	refusal string     // why the newest is not
}

func (l *localPlanes) plane(g xds.Gateway) *localPlane {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.planes[g]
	if p == nil {
		p = &localPlane{gateway: newGateway(l.log.With("gateway", g.String()), ""), since: time.Now()}
		p.gateway.instead = insteadOfGateway
		p.gateway.acceptFeed()
		l.planes[g] = p
	}
	return p
}

// Publish applies a configuration if it is another one than before.
func (l *localPlanes) Publish(g xds.Gateway, cfg *config.Config) error {
	p := l.plane(g)
	sum := sha256.Sum256(cfg.Encode())
	version := hex.EncodeToString(sum[:12])
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == version {
		return nil
	}
	p.newest, p.refusal = version, ""
	l.apply(g, p, cfg)
	return nil
}

// localRetry is when a configuration that could not be applied is tried again:
// a port may be free by then.
const localRetry = 2 * time.Second

// apply puts the newest configuration of a plane in force, or says why it cannot
// and tries again. The caller holds p.mu.
func (l *localPlanes) apply(g xds.Gateway, p *localPlane, cfg *config.Config) {
	err := cfg.Validate()
	if problems := checkContent(cfg); err == nil && len(problems) > 0 {
		err = config.Problems(problems)
	}
	if err == nil {
		err = l.taken(g, cfg)
	}
	before := p.refusal
	if err = p.gateway.reload(cfg, err); err == nil {
		p.version, p.refusal = p.newest, ""
	} else if p.refusal = err.Error(); p.refusal != before {
		p.gateway.log.Error("configuration refused; the old one stays", "error", err)
	}
	if p.refusal != before || err == nil {
		l.replied(g)
	}
	if err == nil {
		return
	}
	version := p.newest
	time.AfterFunc(localRetry, func() {
		l.mu.Lock()
		here := l.planes[g] == p
		l.mu.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if here && p.newest == version && p.version != version {
			l.apply(g, p, cfg)
		}
	})
}

// taken says whose an address is that a listener of cfg needs: without addresses
// of their own Gateways share those of the machine, and a port is for one.
func (l *localPlanes) taken(g xds.Gateway, cfg *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, p := range l.planes {
		theirs := p.gateway.cfg.Load()
		if other == g || theirs == nil {
			continue
		}
		for _, mine := range cfg.Listeners {
			if slices.ContainsFunc(theirs.Listeners, func(o config.Listener) bool { return o.Address == mine.Address }) {
				return fmt.Errorf("%s is served for Gateway %s already, and a port of this machine is for one Gateway; use another port, put the listeners into one Gateway, or give Gateways addresses of their own (--address-pool)", mine.Address, other)
			}
		}
	}
	return nil
}

// SetMembers feeds a set of members.
func (l *localPlanes) SetMembers(g xds.Gateway, set string, members []config.Member) {
	l.plane(g).gateway.feed(map[string][]config.Member{set: members})
}

// RemoveMembers forgets a set.
func (l *localPlanes) RemoveMembers(g xds.Gateway, set string) {
	l.plane(g).gateway.feed(map[string][]config.Member{set: nil})
}

// Remove ends the data plane of a Gateway, which takes as long as its streams
// do, within bounds.
func (l *localPlanes) Remove(g xds.Gateway) {
	l.mu.Lock()
	p := l.planes[g]
	delete(l.planes, g)
	l.mu.Unlock()
	if p != nil {
		go p.close(context.Background())
	}
}

func (p *localPlane) close(ctx context.Context) (cut int) {
	ctx, cancel := context.WithTimeout(ctx, p.gateway.drainLimit())
	defer cancel()
	return p.gateway.close(ctx)
}

// Status is that of the one process.
func (l *localPlanes) Status(g xds.Gateway) xds.GatewayStatus {
	l.mu.Lock()
	p := l.planes[g]
	l.mu.Unlock()
	if p == nil {
		return xds.GatewayStatus{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := xds.ClientState{Name: "this process", Since: p.since, Version: p.version}
	if p.refusal != "" {
		s.Refused, s.Err = p.newest, p.refusal
	}
	return xds.GatewayStatus{Version: p.newest, Clients: []xds.ClientState{s}}
}

// close drains all of them, or cuts what is open at a second signal.
func (l *localPlanes) close() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	l.mu.Lock()
	planes := l.planes
	l.planes = map[xds.Gateway]*localPlane{}
	l.mu.Unlock()
	var (
		mu      sync.Mutex
		cut     int
		closing sync.WaitGroup
	)
	for _, p := range planes {
		closing.Go(func() {
			n := p.close(ctx)
			mu.Lock()
			cut += n
			mu.Unlock()
		})
	}
	closing.Wait()
	if cut > 0 {
		return fmt.Errorf("cut %d of the open requests", cut)
	}
	return nil
}

// Gather is the metrics of the process and, with a label more, those of each
// Gateway.
func (l *localPlanes) Gather() ([]*dto.MetricFamily, error) {
	l.mu.Lock()
	gatherers := prometheus.Gatherers{l.own}
	for g, p := range l.planes {
		gatherers = append(gatherers, labelled{p.gateway.reg, g.String()})
	}
	l.mu.Unlock()
	return gatherers.Gather()
}

// labelled are metrics with the label gateway, without those of the process
// itself.
type labelled struct {
	from  prometheus.Gatherer
	value string
}

func (l labelled) Gather() ([]*dto.MetricFamily, error) {
	families, err := l.from.Gather()
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		name := f.GetName()
		return len(name) < 9 || name[:9] != "penstock_"
	})
	for _, f := range families {
		for _, m := range f.Metric {
			m.Label = append(m.Label, &dto.LabelPair{Name: new("gateway"), Value: new(l.value)})
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		}
	}
	return families, err
}
