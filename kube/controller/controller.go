// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller keeps gateways as the objects of a Kubernetes cluster say:
// it watches them, has package kube translate them, publishes what comes out,
// provisions the processes of each Gateway and writes status.
//
// Left to others: what the objects mean (package kube), how configurations
// travel (package xds, or the process itself, behind [Publisher]), and the
// command line.
//
// Start reading at term.pass in loop.go, the one control loop: any event, a
// cheap test whether it matters (kinds.go), a hold-off, the whole translation,
// then publish, provision and status. Endpoints take a path of their own,
// members.go, on which nothing is translated.
//
// Always true: only the leader publishes and writes; what runs is never taken
// away because something could not be read; nothing is written that stands
// there already; of status only our own entries are touched.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

// Publisher takes what the processes of Gateways are to have, and says how far
// they are. Its methods may be called at a time. [xds.Server] is one.
type Publisher interface {
	Publish(g xds.Gateway, cfg *config.Config) error
	SetMembers(g xds.Gateway, set string, members []config.Member)
	RemoveMembers(g xds.Gateway, set string)
	Remove(g xds.Gateway)
	Status(g xds.Gateway) xds.GatewayStatus
}

// Options are what a Controller needs. Cluster and Publisher must be set.
type Options struct {
	Cluster   *Cluster
	Publisher Publisher
	Log       *slog.Logger
	Metrics   *Instruments // nil: none
	Namespace string       // of the controller, for its Lease
	Identity  string       // of this replica
	// Elect has replicas agree on who leads; false: this is the only one. Lease is
	// how long a leader that died is waited for, default 15s.
	Elect bool
	Lease time.Duration
	// Lead is told that leading begins, before anything is published, and that
	// it has ended. An error when it begins is told and tried again.
	Lead func(ctx context.Context, lead bool) error
	// Provision says how the processes of Gateways are made; nil: they are not,
	// and Local says where Gateways are served.
	Provision *Provision
	Local     *Local
	Pool      *AddressPool // nil: addresses are somebody else's to give
	// Admin, Ops and Check are those of kube.Options.
	Admin, Ops string
	Check      func(*config.Config) []*config.Problem
	// HoldOff is how long changes must have paused before they are acted on,
	// MaxHoldOff the longest that one waits. Default 20ms and 200ms.
	HoldOff, MaxHoldOff time.Duration
}

// Controller is one replica.
type Controller struct {
	o      Options
	log    *slog.Logger
	api    *api
	caches *caches
	synced chan struct{} // closed when everything has been read once

	mu   sync.Mutex
	term *term // nil: this replica does not lead
}

// New returns a controller that does nothing before [Controller.Run].
func New(o Options) *Controller {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewInstruments(nil)
	}
	if o.HoldOff <= 0 {
		o.HoldOff = 20 * time.Millisecond
	}
	if o.MaxHoldOff <= 0 {
		o.MaxHoldOff = 200 * time.Millisecond
	}
	if o.Lease <= 0 {
		o.Lease = leaseDuration
	}
	if o.Lead == nil {
		o.Lead = func(context.Context, bool) error { return nil }
	}
	if o.Identity == "" {
		host, _ := os.Hostname()
		o.Identity = fmt.Sprintf("%s_%d", host, os.Getpid())
	}
	c := &Controller{o: o, log: o.Log, api: o.Cluster.api, synced: make(chan struct{})}
	c.caches = newCaches(c.api, o.Log, c.changed)
	return c
}

// LogTo sends what the client libraries log to log. It is for the whole process.
func LogTo(log *slog.Logger) {
	klog.SetLogger(logr.FromSlogHandler(log.Handler()))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts.Go(func() { c.caches.run(ctx, c.synced) })
	select {
	case <-c.synced:
	case <-ctx.Done():
		return nil
	}
	c.log.Info("the cluster has been read", "objects", c.caches.sizes())
	return c.elect(ctx, c.lead)
}

// Synced says whether everything has been read once.
func (c *Controller) Synced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// Leads says whether this replica leads.
func (c *Controller) Leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term != nil
}

// lead is the time in which this replica leads.
func (c *Controller) lead(ctx context.Context) {
	for {
		err := c.o.Lead(ctx, true)
		if err == nil {
			break
		}
		c.log.Error("this replica cannot lead yet; trying again", "error", err)
		if !sleep(ctx, time.Second) {
			return
		}
	}
	t := newTerm(c)
	c.mu.Lock()
	c.term = t
	c.mu.Unlock()
	c.o.Metrics.leader.Set(1)
	c.log.Info("this replica leads")
	t.run(ctx)
	c.mu.Lock()
	c.term = nil
	c.mu.Unlock()
	c.o.Metrics.leader.Set(0)
	if err := c.o.Lead(context.WithoutCancel(ctx), false); err != nil {
		c.log.Error("leading has ended", "error", err)
	}
	c.log.Info("this replica leads no more")
}

func (c *Controller) current() *term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term
}

// Replied says that a process of a Gateway has taken or refused something. It
// does not block.
func (c *Controller) Replied(g xds.Gateway) {
	if t := c.current(); t != nil {
		t.replied(types.NamespacedName(g))
	}
}

// changed is told each change of a watched object. A kind without objects (both
// nil) has come or gone.
func (c *Controller) changed(k *kind, old, new object) {
	t := c.current()
	if t == nil {
		return // a term begins with everything
	}
	if old != nil && new != nil && !k.matters(old, new) && !c.o.Local.reachedBy(k, new) {
		if k.status && old.GetResourceVersion() != new.GetResourceVersion() {
			t.status.look(key{k.name, nameOf(new)})
		}
		return
	}
	switch k.name {
	case "Pod", "EndpointSlice":
		t.feed.touched(k.name, old, new)
		if old != nil || new != nil {
			return
		}
	}
	c.o.Metrics.event(k.name)
	t.rebuild()
}
