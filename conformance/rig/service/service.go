// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package service makes Services work without kube-proxy and without a cloud: it
// gives those of type LoadBalancer an address out of a pool, and forwards
// connections to every ClusterIP, node port and load balancer address to a ready
// endpoint.
//
// It forwards in user space, so a pod sees the rig's address as the client's;
// and it does not try a second endpoint when one refuses, as kube-proxy would
// not, because a retry here would hide what a gateway does wrong.
//
// [Forwarder.Run] is the place to begin; a Service's ports are in frontend.go,
// load balancer addresses in addresses.go.
package service

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Config is what the forwarder works with.
type Config struct {
	Client kubernetes.Interface
	Pool   netip.Prefix // of load balancer addresses
	NodeIP netip.Addr   // node ports are open there
	Log    *slog.Logger
}

// Forwarder serves the addresses of all Services.
type Forwarder struct {
	Config
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	synced   []cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[cache.ObjectName]

	// Only the one goroutine that works the queue uses these.
	addresses *addresses
	frontends map[cache.ObjectName]map[frontendKey]*frontend
}

// New makes a forwarder; the informers of factory are started by the caller.
func New(config Config, factory informers.SharedInformerFactory) (*Forwarder, error) {
	f := &Forwarder{
		Config:    config,
		services:  factory.Core().V1().Services().Lister(),
		slices:    factory.Discovery().V1().EndpointSlices().Lister(),
		queue:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](50*time.Millisecond, 10*time.Second)),
		addresses: newAddresses(config.Pool),
		frontends: map[cache.ObjectName]map[frontendKey]*frontend{},
	}
	add := func(informer cache.SharedIndexInformer, name func(any) (cache.ObjectName, bool)) error {
		enqueue := func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if n, ok := name(o); ok {
				f.queue.Add(n)
			}
		}
		f.synced = append(f.synced, informer.HasSynced)
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }, DeleteFunc: enqueue,
		})
		return err
	}
	err := add(factory.Core().V1().Services().Informer(), func(o any) (cache.ObjectName, bool) {
		s := o.(*v1.Service)
		return cache.MetaObjectToName(s), true
	})
	if err != nil {
		return nil, err
	}
	err = add(factory.Discovery().V1().EndpointSlices().Informer(), func(o any) (cache.ObjectName, bool) {
		s := o.(*discoveryv1.EndpointSlice)
		owner := s.Labels[discoveryv1.LabelServiceName]
		return cache.NewObjectName(s.Namespace, owner), owner != ""
	})
	return f, err
}

// Run keeps the forwards as the API server wants them until ctx ends.
func (f *Forwarder) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), f.synced...) {
		return
	}
	context.AfterFunc(ctx, f.queue.ShutDown)
	for {
		name, shutdown := f.queue.Get()
		if shutdown {
			return
		}
		if err := f.reconcile(ctx, name); err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
			f.Log.Warn("forward a service", "service", name.String(), "err", err)
			f.queue.AddRateLimited(name)
		} else if err != nil {
			f.queue.AddRateLimited(name)
		} else {
			f.queue.Forget(name)
		}
		f.queue.Done(name)
	}
}

func (f *Forwarder) reconcile(ctx context.Context, name cache.ObjectName) error {
	s, err := f.services.Services(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		f.addresses.release(name)
		f.applyFrontends(name, nil)
		return nil
	}
	if err != nil {
		return err
	}
	address, err := f.assign(ctx, name, s)
	if err != nil {
		return err
	}
	endpoints, err := f.slices.EndpointSlices(name.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name.Name}))
	if err != nil {
		return err
	}
	return f.applyFrontends(name, wantedFrontends(s, f.NodeIP, address, endpoints))
}

// wantedFrontends are the places where the Service must answer, each with its
// ready endpoints.
func wantedFrontends(s *v1.Service, node, loadBalancer netip.Addr, endpoints []*discoveryv1.EndpointSlice) map[frontendKey][]netip.AddrPort {
	wanted := map[frontendKey][]netip.AddrPort{}
	if s.Spec.Type == v1.ServiceTypeExternalName || s.Spec.ClusterIP == v1.ClusterIPNone {
		return wanted
	}
	cluster, _ := netip.ParseAddr(s.Spec.ClusterIP)
	for _, port := range s.Spec.Ports {
		if port.Protocol == v1.ProtocolSCTP {
			continue
		}
		ready := readyEndpoints(endpoints, port.Name)
		for _, at := range []netip.AddrPort{
			netip.AddrPortFrom(cluster, uint16(port.Port)),
			netip.AddrPortFrom(loadBalancer, uint16(port.Port)),
			netip.AddrPortFrom(node, uint16(port.NodePort)),
		} {
			if at.Addr().IsValid() && at.Port() != 0 {
				wanted[frontendKey{at, port.Protocol}] = ready
			}
		}
	}
	return wanted
}

// readyEndpoints lists where connections to the port may go. The port of an
// endpoint slice has the name of the Service's port.
func readyEndpoints(endpoints []*discoveryv1.EndpointSlice, port string) []netip.AddrPort {
	var ready []netip.AddrPort
	for _, slice := range endpoints {
		i := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port)
		})
		if i < 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			c := e.Conditions
			if c.Ready != nil && !*c.Ready || c.Terminating != nil && *c.Terminating {
				continue
			}
			for _, a := range e.Addresses {
				if addr, err := netip.ParseAddr(a); err == nil {
					ready = append(ready, netip.AddrPortFrom(addr, uint16(*slice.Ports[i].Port)))
				}
			}
		}
	}
	// The same endpoint may be in two slices while one moves to the other.
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}
