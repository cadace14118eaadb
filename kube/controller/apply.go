// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/xds"
)

// provisioner makes the infrastructure of Gateways as it is planned, apart from
// the control loop. What was applied is not applied again before somebody else
// has changed it, or repairEvery has passed.
type provisioner struct {
	c      *Controller
	log    *slog.Logger
	events *events
	wake   chan struct{}

	mu    sync.Mutex
	plans map[types.NamespacedName]plan // by the Gateway; what is not in it stays as it is
	gone  map[types.NamespacedName]bool // names of what is to be removed
	watch map[types.NamespacedName]seen // generations by name, as watched
	// collisions are objects of somebody else that have a name of ours, by the
	// Gateway; changed is called when they are others than before.
	collisions map[types.NamespacedName]string
	changed    func()

	// The goroutine's alone.
	applied map[string]applied // by resource and name
	bad     map[types.NamespacedName]string
}

// seen is by what a change by somebody else is noticed.
type seen struct {
	deployment int64
	service    types.UID
	ports      string
}

type applied struct {
	sum  [sha256.Size]byte
	seen seen
	when time.Time
}

const (
	repairEvery  = 10 * time.Minute // for what is not watched
	applyTime    = 20 * time.Second
	applyAgain   = time.Second // after a failure; doubles
	applyAtATime = 4
)

func newProvisioner(c *Controller, changed func()) *provisioner {
	return &provisioner{
		c: c, log: c.log, events: newEvents(c), wake: make(chan struct{}, 1),
		plans: map[types.NamespacedName]plan{}, gone: map[types.NamespacedName]bool{}, watch: map[types.NamespacedName]seen{},
		applied: map[string]applied{}, bad: map[types.NamespacedName]string{},
		collisions: map[types.NamespacedName]string{}, changed: changed,
	}
}

// collision is the object that is in the way of a Gateway's; "": there is none
// that is known.
func (p *provisioner) collision(g types.NamespacedName) string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.collisions[g]
}

func (p *provisioner) collided(g types.NamespacedName, err error) {
	text := ""
	if errors.Is(err, errForeign) {
		text = err.Error()
	}
	p.mu.Lock()
	before := p.collisions[g]
	delete(p.collisions, g)
	if text != "" {
		p.collisions[g] = text
	}
	p.mu.Unlock()
	if before != text {
		p.changed()
	}
}

// want takes what a translation says about infrastructure.
func (p *provisioner) want(ours []*gatewayv1.Gateway, result *kube.Result) {
	objects := map[types.NamespacedName]*gatewayv1.Gateway{}
	names := map[types.NamespacedName]bool{}
	for _, g := range ours {
		objects[nameOf(g)] = g
		names[infraName(g)] = true
	}
	plans := map[types.NamespacedName]plan{}
	for _, g := range result.Gateways {
		o := objects[g.NamespacedName]
		if g.Config == nil || o == nil || o.DeletionTimestamp != nil {
			continue
		}
		w := plan{gateway: o, infra: g.Infrastructure, drain: g.Config.Limits.Drain.D()}
		if p.c.o.Pool != nil {
			w.addresses, _ = p.c.o.Pool.of(g.NamespacedName)
		}
		plans[g.NamespacedName] = w
	}
	watch := map[types.NamespacedName]seen{}
	gone := map[types.NamespacedName]bool{}
	for _, d := range list[appsv1.Deployment](p.c.caches, "Deployment") {
		s := watch[nameOf(d)]
		s.deployment = d.Generation
		watch[nameOf(d)] = s
		if d.Labels[appName] == gatewayApp && !names[nameOf(d)] && p.orphan(d) {
			gone[nameOf(d)] = true
		}
	}
	for _, s := range list[corev1.Service](p.c.caches, "Service") {
		if s.Labels[managedBy] != managedByUs {
			continue
		}
		at := watch[nameOf(s)]
		at.service, at.ports = s.UID, fmt.Sprint(s.Spec.Type, s.Spec.Ports, s.Spec.ExternalIPs, s.Spec.LoadBalancerIP)
		watch[nameOf(s)] = at
		if s.Labels[appName] == gatewayApp && !names[nameOf(s)] && p.orphan(s) {
			gone[nameOf(s)] = true
		}
	}
	p.mu.Lock()
	p.plans, p.gone, p.watch = plans, gone, watch
	maps.DeleteFunc(p.collisions, func(g types.NamespacedName, _ string) bool { _, ok := plans[g]; return !ok })
	p.mu.Unlock()
	poke(p.wake)
}

// orphan says whether the Gateway of an object is gone or is of another
// controller's class now. A Gateway whose class is missing keeps what it has.
func (p *provisioner) orphan(o object) bool {
	for _, g := range list[gatewayv1.Gateway](p.c.caches, "Gateway") {
		if g.Namespace != o.GetNamespace() || shorten(g.Name, 63) != o.GetLabels()[gatewayv1.GatewayNameLabelKey] {
			continue
		}
		class := find[gatewayv1.GatewayClass](p.c.caches, "GatewayClass", types.NamespacedName{Name: string(g.Spec.GatewayClassName)})
		if class == nil {
			return false
		}
		if class.Spec.ControllerName == kube.ControllerName && infraName(g) == nameOf(o) {
			return false
		}
	}
	return true
}

// run applies until ctx ends.
func (p *provisioner) run(ctx context.Context) {
	again := time.NewTimer(repairEvery / 10)
	defer again.Stop()
	pause := applyAgain
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-again.C:
		}
		if p.round(ctx) {
			pause = applyAgain
			again.Reset(repairEvery / 10)
		} else {
			again.Reset(pause)
			pause = min(2*pause, repairEvery/10)
		}
	}
}

// round brings everything up to date. It says whether all went well.
func (p *provisioner) round(ctx context.Context) (ok bool) {
	p.mu.Lock()
	plans, gone, watch := p.plans, p.gone, p.watch
	p.mu.Unlock()
	var (
		work   sync.WaitGroup
		mu     sync.Mutex
		places = make(chan struct{}, applyAtATime)
	)
	ok = true
	for name := range gone {
		if err := p.remove(ctx, name); err != nil && ctx.Err() == nil {
			p.log.Warn("infrastructure not removed; trying again", "name", name.String(), "error", err)
			ok = false
		}
	}
	for name, w := range plans {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			err := p.apply(ctx, w, watch[infraName(w.gateway)], &mu)
			p.collided(name, err)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				delete(p.bad, name)
				return
			}
			if ctx.Err() != nil {
				return
			}
			ok = false
			p.log.Warn("infrastructure of a Gateway not provisioned; trying again", "gateway", name.String(), "error", err)
			if p.bad[name] != err.Error() {
				p.bad[name] = err.Error()
				p.events.note("Gateway", w.gateway, true, "ProvisioningFailed", err.Error())
			}
		})
	}
	work.Wait()
	return ok
}

// errForeign is an object of the name of ours that somebody else made.
var errForeign = errors.New("there is one already, which is not the controller's; rename or remove it")

// apply makes the objects of one Gateway.
func (p *provisioner) apply(ctx context.Context, w plan, at seen, mu *sync.Mutex) error {
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	for i, o := range p.c.o.Provision.objects(w) {
		gvr := provisioned()[i]
		name := infraName(w.gateway)
		id := gvr.Resource + " " + name.String()
		mu.Lock()
		before, known := p.applied[id]
		mu.Unlock()
		if o == nil {
			if known && before.sum == ([sha256.Size]byte{}) {
				continue
			}
			if err := p.removeOurs(ctx, gvr, name); err != nil {
				return fmt.Errorf("%s: %w", gvr.Resource, err)
			}
			mu.Lock()
			p.applied[id] = applied{when: time.Now()}
			mu.Unlock()
			continue
		}
		text, err := appliedForm(o)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		if known && before.sum == sum && time.Since(before.when) < repairEvery && !(changedBySomebody(gvr, before.seen, at)) {
			continue
		}
		if !known {
			if _, err := p.ours(ctx, gvr, name); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s: %w", gvr.Resource, name, err)
			}
		}
		if err := p.c.api.apply(ctx, gvr, o); err != nil {
			p.c.o.Metrics.provisioned(gvr.Resource, "failed")
			return fmt.Errorf("%s %s: %w", gvr.Resource, name, err)
		}
		p.c.o.Metrics.provisioned(gvr.Resource, "ok")
		mu.Lock()
		p.applied[id] = applied{sum: sum, seen: at, when: time.Now()}
		mu.Unlock()
	}
	return nil
}

// changedBySomebody says whether an object is another one than when it was
// applied. Our own change is one too: it is then applied once more, which
// changes nothing.
func changedBySomebody(gvr schema.GroupVersionResource, before, now seen) bool {
	switch gvr.Resource {
	case "deployments":
		return before.deployment != now.deployment
	case "services":
		return before.service != now.service || before.ports != now.ports
	}
	return false
}

// sampleOf is an empty object of a kind that is provisioned.
func sampleOf(gvr schema.GroupVersionResource) object {
	switch gvr.Resource {
	case "serviceaccounts":
		return &corev1.ServiceAccount{}
	case "configmaps":
		return &corev1.ConfigMap{}
	case "services":
		return &corev1.Service{}
	case "deployments":
		return &appsv1.Deployment{}
	case "poddisruptionbudgets":
		return &policyv1.PodDisruptionBudget{}
	}
	return &autoscalingv2.HorizontalPodAutoscaler{}
}

// ours is the UID of an object of ours.
func (p *provisioner) ours(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (types.UID, error) {
	o := sampleOf(gvr)
	if err := p.c.api.get(ctx, gvr, name, o); err != nil {
		return "", err
	}
	if o.GetLabels()[managedBy] != managedByUs {
		return "", errForeign
	}
	return o.GetUID(), nil
}

func (p *provisioner) removeOurs(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) error {
	uid, err := p.ours(ctx, gvr, name)
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, errForeign):
		return nil
	case err != nil:
		return err
	}
	return p.c.api.remove(ctx, gvr, name, uid)
}

// remove takes away everything of a name that is ours. The owner reference does
// so too where a garbage collector runs and the Gateway is gone.
func (p *provisioner) remove(ctx context.Context, name types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	var errs []error
	for _, gvr := range provisioned() {
		errs = append(errs, p.removeOurs(ctx, gvr, name))
		delete(p.applied, gvr.Resource+" "+name.String())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.log.Info("infrastructure removed", "name", name.String())
	return nil
}

// GatewayOf says which Gateway a service account serves: the one that it was
// provisioned for.
func (c *Controller) GatewayOf(a xds.Account) (xds.Gateway, error) {
	for _, g := range ourGateways(c.caches.objects()) {
		if infraName(g) == (types.NamespacedName{Namespace: a.Namespace, Name: a.Name}) {
			return xds.Gateway(nameOf(g)), nil
		}
	}
	return xds.Gateway{}, errors.New("it was provisioned for no Gateway of a class of " + kube.ControllerName)
}

// AuthoritiesChanged brings the authorities to every Gateway's processes.
func (c *Controller) AuthoritiesChanged() {
	if t := c.current(); t != nil && t.provision != nil {
		poke(t.provision.wake)
	}
}
