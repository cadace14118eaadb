// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/xds"
)

// term is one time of leading, and all that is known only to a leader.
type term struct {
	c         *Controller
	log       *slog.Logger
	wake      chan struct{} // capacity 1
	feed      *feed
	status    *statusWriter
	provision *provisioner // nil: nothing is provisioned

	mu      sync.Mutex
	dirty   bool                          // something has changed that a translation reads
	replies map[types.NamespacedName]bool // Gateways whose processes have replied

	// The loop's alone.
	served  map[types.NamespacedName]*served
	lasting time.Duration // of the last translation
}

// served is a Gateway that is published, or has been looked at.
type served struct {
	version   string // of its configuration
	since     time.Time
	patience  time.Duration // after since, in which processes need not have answered
	observed  kube.Observed // as the last translation was told
	published bool
	fault     string // why the newest configuration could not be sent
	held      bool   // its status waits for the processes
}

// The times in which processes need not have answered: after a change, and
// after a leader began, whom they find only by and by.
const (
	changePatience = 5 * time.Second
	leaderPatience = 30 * time.Second
	readinessEvery = 2 * time.Second // a process that goes away replies nothing
)

func newTerm(c *Controller) *term {
	t := &term{
		c: c, log: c.log, wake: make(chan struct{}, 1), dirty: true,
		replies: map[types.NamespacedName]bool{}, served: map[types.NamespacedName]*served{},
	}
	t.feed = newFeed(c)
	t.status = newStatusWriter(c)
	if c.o.Provision != nil {
		t.provision = newProvisioner(c, t.rebuild)
	}
	return t
}

// run is the control loop.
func (t *term) run(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { t.feed.run(ctx) })
	parts.Go(func() { t.status.run(ctx) })
	if t.provision != nil {
		parts.Go(func() { t.provision.run(ctx) })
	}
	tick := time.NewTicker(readinessEvery)
	defer tick.Stop()
	poke(t.wake)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-tick.C:
			t.mu.Lock()
			for name := range t.served {
				t.replies[name] = true
			}
			t.mu.Unlock()
		}
		if !t.due() {
			continue
		}
		// A translation that takes long is not done more than half of the time.
		if !gather(ctx, t.wake, t.c.o.HoldOff, max(t.c.o.MaxHoldOff, t.lasting)) {
			return
		}
		t.mu.Lock()
		t.dirty = false
		clear(t.replies)
		t.mu.Unlock()
		t.pass()
	}
}

// gather waits until nothing has come for quiet, but no longer than most.
func gather(ctx context.Context, wake <-chan struct{}, quiet, most time.Duration) bool {
	last := time.NewTimer(most)
	defer last.Stop()
	pause := time.NewTimer(quiet)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-last.C:
			return true
		case <-pause.C:
			return true
		case <-wake:
			pause.Reset(quiet)
		}
	}
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (t *term) rebuild() {
	t.mu.Lock()
	t.dirty = true
	t.mu.Unlock()
	poke(t.wake)
}

func (t *term) replied(g types.NamespacedName) {
	t.mu.Lock()
	t.replies[g] = true
	t.mu.Unlock()
	poke(t.wake)
}

// due says whether a pass would change anything: after replies alone it would
// only where a Gateway has become ready, or is no more.
func (t *term) due() bool {
	t.mu.Lock()
	dirty, replies := t.dirty, slices.Collect(maps.Keys(t.replies))
	clear(t.replies)
	t.mu.Unlock()
	if dirty {
		return true
	}
	for _, name := range replies {
		s := t.served[name]
		if s == nil {
			continue
		}
		ready, refused, waiting := t.readiness(name, s)
		if ready != s.observed.Ready || refused != s.observed.Refused || s.held && !waiting {
			return true
		}
	}
	return false
}

// pass is one round: translate everything, publish what is new, provision,
// write status.
func (t *term) pass() {
	began := time.Now()
	o := t.c.caches.objects()
	ours := ourGateways(o)
	t.observe(ours)
	observed := make(map[types.NamespacedName]kube.Observed, len(t.served))
	for name, s := range t.served {
		observed[name] = s.observed
	}
	result := kube.Translate(o, kube.Options{
		Observed: observed, Admin: t.c.o.Admin, Ops: t.c.o.Ops, Check: t.c.o.Check, BundleVersion: t.c.caches.bundleVersion(),
	})
	t.lasting = time.Since(began)
	t.c.o.Metrics.translated(t.lasting, t.c.caches.sizes(), len(result.Gateways))

	forget := t.feed.follow(result.Gateways) // members first: a configuration waits for them
	for _, g := range result.Gateways {
		s := t.served[g.NamespacedName]
		if g.Config == nil || s == nil {
			continue // not accepted: what runs stays as it is
		}
		s.published, s.fault = true, ""
		if err := t.c.o.Publisher.Publish(xds.Gateway(g.NamespacedName), g.Config); err != nil {
			s.fault = "the configuration cannot be sent: " + err.Error()
			t.replied(g.NamespacedName) // which the next pass writes
			continue
		}
		if version := t.c.o.Publisher.Status(xds.Gateway(g.NamespacedName)).Version; version != s.version {
			if s.version != "" || s.patience == 0 {
				s.patience = changePatience
			}
			s.version, s.since = version, time.Now()
		}
	}
	forget()
	t.retire(o, result)
	if t.provision != nil {
		t.provision.want(ours, result)
	}
	t.status.want(t.written(ours, result.Statuses))
	t.log.Debug("pass", "took", time.Since(began).String(), "translation", t.lasting.String(), "gateways", len(result.Gateways), "statuses", len(result.Statuses))
}

// retire forgets Gateways that are not ours any more. Those whose class is gone
// are left as they are: that is rather a mistake than a wish.
func (t *term) retire(o *kube.Objects, result *kube.Result) {
	stay := map[types.NamespacedName]bool{}
	for _, g := range result.Gateways {
		stay[g.NamespacedName] = true
	}
	classes := map[string]bool{}
	for _, c := range o.GatewayClasses {
		classes[c.Name] = true
	}
	for _, g := range o.Gateways {
		if !classes[string(g.Spec.GatewayClassName)] {
			stay[nameOf(g)] = true
		}
	}
	for name, s := range t.served {
		if !stay[name] {
			if s.published {
				t.c.o.Publisher.Remove(xds.Gateway(name))
			}
			delete(t.served, name)
		}
	}
}

// written are the statuses that may be written now. That of a Gateway whose
// processes have not answered yet to what has just changed waits for them, or
// it would say for a moment what is not so.
func (t *term) written(ours []*gatewayv1.Gateway, all []*kube.Status) []*kube.Status {
	generations := map[types.NamespacedName]int64{}
	for _, g := range ours {
		for _, c := range g.Status.Conditions {
			if c.Type == string(gatewayv1.GatewayConditionProgrammed) {
				generations[nameOf(g)] = c.ObservedGeneration
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(st *kube.Status) bool {
		s := t.served[st.NamespacedName]
		if st.Kind != "Gateway" || s == nil {
			return false
		}
		_, _, waiting := t.readiness(st.NamespacedName, s)
		s.held = waiting && s.observed.Ready && generations[st.NamespacedName] != st.Generation
		return s.held
	})
}
