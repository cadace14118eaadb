// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/kube"
)

// caches are the objects of every kind that the API server has. Replicas that
// do not lead keep them too, so that the next leader begins at once.
type caches struct {
	api     *api
	log     *slog.Logger
	changed func(k *kind, old, new object) // one of them nil: it came, or is gone

	mu      sync.Mutex
	kinds   []kind
	watches map[string]*watch // by kind; none: its definition is missing
	bundle  string            // see api.bundleVersion
	missing map[string]bool   // that were told of

	toldAway time.Time // that the API server cannot be reached
}

// watch is one kind that is followed.
type watch struct {
	informer cache.SharedIndexInformer
	handler  cache.ResourceEventHandlerRegistration
	stop     context.CancelFunc
}

// recheckEvery is how often missing definitions are looked for, and those that
// were there whether they still are.
const recheckEvery = 15 * time.Second

func newCaches(a *api, log *slog.Logger, changed func(k *kind, old, new object)) *caches {
	return &caches{api: a, log: log, changed: changed, kinds: kinds(), watches: map[string]*watch{}, missing: map[string]bool{}}
}

// run follows the kinds until ctx ends. ready is closed once everything that is
// there has been read.
func (c *caches) run(ctx context.Context, ready chan<- struct{}) {
	for {
		if err := c.recheck(ctx); err == nil {
			break
		} else if ctx.Err() == nil {
			c.log.Error("the kinds of the API server cannot be listed; trying again", "error", err)
		}
		if !sleep(ctx, time.Second) {
			return
		}
	}
	told := time.Now()
	for {
		waiting := c.unsynced()
		if len(waiting) == 0 {
			break
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			c.log.Warn("waiting for the first list of some kinds", "kinds", strings.Join(waiting, ","))
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return
		}
	}
	close(ready)
	for sleep(ctx, recheckEvery) {
		if err := c.recheck(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("the kinds of the API server cannot be listed", "error", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// recheck begins to follow kinds whose definition is there, and forgets those
// whose definition is gone.
func (c *caches) recheck(ctx context.Context) error {
	var errs []error
	for i := range c.kinds {
		k := &c.kinds[i]
		served := true
		if !builtIn(k.resource.Group) {
			var err error
			if served, err = c.api.serves(k.resource); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		c.mu.Lock()
		w := c.watches[k.name]
		told := c.missing[k.name]
		c.missing[k.name] = !served
		c.mu.Unlock()
		switch {
		case served && w == nil:
			if told {
				c.log.Info("kind is there now", "kind", k.name, "version", k.resource.GroupVersion().String())
			}
			if err := c.follow(ctx, k); err != nil {
				errs = append(errs, err)
			}
		case !served && w != nil:
			c.log.Warn("the definition of a kind is gone; its objects are too", "kind", k.name)
			c.mu.Lock()
			delete(c.watches, k.name)
			c.mu.Unlock()
			w.stop()
			c.changed(k, nil, nil)
		case !served && !told && !k.optional:
			c.log.Error("the definition of a kind is missing, without which there is nothing to do; install the Gateway API", "kind", k.name, "version", k.resource.GroupVersion().String())
		case !served && !told:
			c.log.Info("the definition of a kind is not installed; it is looked for again", "kind", k.name, "version", k.resource.GroupVersion().String())
		}
	}
	if version := c.api.bundleVersion(ctx); version != "" {
		c.mu.Lock()
		before := c.bundle
		c.bundle = version
		c.mu.Unlock()
		if before != version {
			c.changed(&c.kinds[0], nil, nil)
		}
	}
	return errors.Join(errs...)
}

// follow begins to list and watch one kind.
func (c *caches) follow(ctx context.Context, k *kind) error {
	client, err := c.api.group(k.resource.GroupVersion())
	if err != nil {
		return err
	}
	selectors := func(o *metav1.ListOptions) { o.FieldSelector, o.LabelSelector = k.fields, k.labels }
	indexers := cache.Indexers{}
	switch k.name {
	case "Pod":
		indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
	case "EndpointSlice":
		indexers[serviceIndex] = func(o any) ([]string, error) {
			e := o.(*discoveryv1.EndpointSlice)
			return []string{e.Namespace + "/" + serviceOf(e)}, nil
		}
	}
	lists := cache.NewFilteredListWatchFromClient(client, k.resource.Resource, metav1.NamespaceAll, selectors)
	informer := cache.NewSharedIndexInformer(kube.Patient(lists, func(err error) { c.away(k, err) }), k.sample, 0, indexers)
	err = errors.Join(
		informer.SetTransform(func(o any) (any, error) {
			if o, ok := o.(object); ok {
				stripMeta(o)
				if k.strip != nil {
					k.strip(o)
				}
			}
			return o, nil
		}),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { c.broken(k, err) }),
	)
	if err != nil {
		return err
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.changed(k, nil, o.(object)) },
		UpdateFunc: func(old, new any) { c.changed(k, old.(object), new.(object)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if o, ok := o.(object); ok {
				c.changed(k, o, nil)
			}
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	c.mu.Lock()
	c.watches[k.name] = &watch{informer: informer, handler: handler, stop: stop}
	c.mu.Unlock()
	go informer.RunWithContext(ctx)
	return nil
}

const serviceIndex = "service"

// broken tells of a list or watch that failed. It is tried again for ever.
func (c *caches) broken(k *kind, err error) {
	switch {
	case apierrors.IsForbidden(err):
		c.log.Error("the role of this process does not allow to list and watch a kind", "kind", k.name, "resource", k.resource.GroupResource().String(), "error", err)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsNotFound(err):
		c.log.Debug("watch ended", "kind", k.name, "error", err)
	default:
		c.log.Warn("watch ended; trying again", "kind", k.name, "error", err)
	}
}

// away tells, now and then, of an API server that cannot be reached: every kind
// asks for it all the time.
func (c *caches) away(k *kind, err error) {
	c.mu.Lock()
	again := time.Since(c.toldAway) < tellAway
	if !again {
		c.toldAway = time.Now()
	}
	c.mu.Unlock()
	if !again {
		c.log.Warn("the API server cannot be reached; trying again", "kind", k.name, "error", err)
	}
}

const tellAway = 30 * time.Second

func (c *caches) unsynced() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, w := range c.watches {
		if !w.handler.HasSynced() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *caches) bundleVersion() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bundle
}

func (c *caches) indexer(kind string) cache.Indexer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watches[kind]; w != nil {
		return w.informer.GetIndexer()
	}
	return nil
}

// sizes are the numbers of objects by kind.
func (c *caches) sizes() map[string]int {
	out := map[string]int{}
	for _, k := range c.kinds {
		if ix := c.indexer(k.name); ix != nil {
			out[k.name] = len(ix.ListKeys())
		}
	}
	return out
}

// list are the objects of one kind. They are shared and only read.
func list[T any](c *caches, kind string) []*T {
	ix := c.indexer(kind)
	if ix == nil {
		return nil
	}
	all := ix.List()
	out := make([]*T, 0, len(all))
	for _, o := range all {
		if t, ok := o.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

func find[T any](c *caches, kind string, name types.NamespacedName) *T {
	ix := c.indexer(kind)
	if ix == nil {
		return nil
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.String()
	}
	o, ok, err := ix.GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	t, _ := o.(*T)
	return t
}

// objects is what a translation reads: all but pods and endpoints.
func (c *caches) objects() *kube.Objects {
	return &kube.Objects{
		GatewayClasses:     list[gatewayv1.GatewayClass](c, "GatewayClass"),
		Gateways:           list[gatewayv1.Gateway](c, "Gateway"),
		ListenerSets:       list[gatewayv1.ListenerSet](c, "ListenerSet"),
		HTTPRoutes:         list[gatewayv1.HTTPRoute](c, "HTTPRoute"),
		GRPCRoutes:         list[gatewayv1.GRPCRoute](c, "GRPCRoute"),
		ReferenceGrants:    list[gatewayv1.ReferenceGrant](c, "ReferenceGrant"),
		BackendTLSPolicies: list[gatewayv1.BackendTLSPolicy](c, "BackendTLSPolicy"),
		InferencePools:     list[infv1.InferencePool](c, "InferencePool"),
		Models:             list[v1alpha1.Model](c, "Model"),
		GatewayPolicies:    list[v1alpha1.GatewayPolicy](c, "GatewayPolicy"),
		Providers:          list[v1alpha1.Provider](c, "Provider"),
		Tenants:            list[v1alpha1.Tenant](c, "Tenant"),
		Keys:               list[v1alpha1.Key](c, "Key"),
		Namespaces:         list[corev1.Namespace](c, "Namespace"),
		Services:           list[corev1.Service](c, "Service"),
		Secrets:            list[corev1.Secret](c, "Secret"),
		ConfigMaps:         list[corev1.ConfigMap](c, "ConfigMap"),
	}
}

// endpoints is what members of sources are computed from.
func (c *caches) endpoints(sources []*kube.Source) *kube.Objects {
	o := &kube.Objects{}
	done := map[string]bool{}
	for _, s := range sources {
		kind, index, key := "Pod", cache.NamespaceIndex, s.Namespace
		if s.Service != "" {
			kind, index, key = "EndpointSlice", serviceIndex, s.Namespace+"/"+s.Service
		}
		ix := c.indexer(kind)
		if ix == nil || done[index+key] {
			continue
		}
		done[index+key] = true
		found, err := ix.ByIndex(index, key)
		if err != nil {
			panic(fmt.Sprintf("controller: the index %s of %s is missing: %v", index, kind, err)) // follow has made it
		}
		for _, f := range found {
			switch f := f.(type) {
			case *corev1.Pod:
				o.Pods = append(o.Pods, f)
			case *discoveryv1.EndpointSlice:
				o.EndpointSlices = append(o.EndpointSlices, f)
			}
		}
	}
	return o
}
