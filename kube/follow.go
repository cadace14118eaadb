// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/penstock/penstock/config"
)

// FollowedPool is an InferencePool of a cluster with the pods that it selects,
// as an endpoint picker needs it.
type FollowedPool struct {
	// Protocol is what the members speak.
	Protocol config.Protocol
	// Members are never nil: an empty list is known to be empty.
	Members []config.Member
}

// PoolOptions say what to follow and whom to tell.
type PoolOptions struct {
	Namespace, Name string
	Log             *slog.Logger // nil: none
	// Changed is called, never twice at a time, once the pool was seen and its
	// pods were listed, and after every change since.
	Changed func(FollowedPool)
}

// settleMembers is how long changes are gathered: a roll-out of many pods comes
// as many events. It is well below what a picker's clients notice.
const settleMembers = 20 * time.Millisecond

// FollowPool follows an InferencePool and its pods until ctx ends. Only that
// one pool is read, and of the pods only those it selects.
//
// While the API server is away what was told last stays: it is asked again with
// growing pauses, of at most half a minute. A pool that is deleted has no
// members until it is there again.
func (c *Cluster) FollowPool(ctx context.Context, o PoolOptions) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &follower{
		cluster: c, PoolOptions: o, wake: make(chan struct{}, 1),
		log: o.Log.With("inferencePool", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}.String()),
	}
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(f.log.Handler())) // what the client library says by itself
	pools, err := f.watch(ctx, inferencePools(), func(w *metav1.ListOptions) {
		w.FieldSelector = fields.OneTermEqualSelector("metadata.name", o.Name).String()
	}, &infv1.InferencePool{}, &infv1.InferencePoolList{})
	if err != nil {
		return err
	}
	f.pools = pools
	defer func() { f.pods.stop() }()
	for {
		select {
		case <-ctx.Done():
			f.pools.stop()
			return nil
		case <-f.wake:
		}
		select { // what else comes in this moment is told with it
		case <-ctx.Done():
		case <-time.After(settleMembers):
		}
		f.look(ctx)
	}
}

// follower is the state of one FollowPool. All but wake belongs to its loop.
type follower struct {
	cluster *Cluster
	PoolOptions
	log  *slog.Logger
	wake chan struct{} // holds one while there is something to look at

	pools    *watching
	pods     *watching // of selector; nil while there is none
	selector map[string]string
	told     *FollowedPool // last
	missing  bool          // the log says that there is no such pool
}

func (f *follower) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// look compares what is known with what was told.
func (f *follower) look(ctx context.Context) {
	if !f.pools.synced() {
		return
	}
	pool := f.pool()
	if pool == nil {
		if !f.missing {
			f.missing = true
			f.log.Warn("there is no such InferencePool; waiting for it")
		}
		if f.told != nil {
			f.tell(FollowedPool{Protocol: f.told.Protocol, Members: []config.Member{}})
		}
		return
	}
	f.missing = false
	if selector := selectorOf(pool); f.pods == nil || !maps.Equal(selector, f.selector) {
		f.pods.stop()
		f.pods = nil
		if len(selector) == 0 { // which would be every pod
			f.tell(FollowedPool{Protocol: poolProtocol(pool), Members: []config.Member{}})
			return
		}
		pods, err := f.watch(ctx, coreResource("pods", "Pod"), func(w *metav1.ListOptions) {
			w.LabelSelector = labels.SelectorFromSet(selector).String()
		}, &corev1.Pod{}, &corev1.PodList{})
		if err != nil {
			f.log.Error("pods are not followed", "error", err)
			return
		}
		f.pods, f.selector = pods, selector
	}
	if !f.pods.synced() {
		return // what was told stays until the pods are known
	}
	o := &Objects{}
	for _, p := range f.pods.store.List() {
		o.Pods = append(o.Pods, p.(*corev1.Pod))
	}
	source := &Source{Set: f.Name, Namespace: f.Namespace, Selector: f.selector, Ports: targetPorts(pool)}
	members := Members(o, []*Source{source})[f.Name]
	if members == nil {
		members = []config.Member{}
	}
	f.tell(FollowedPool{Protocol: poolProtocol(pool), Members: members})
}

func (f *follower) pool() *infv1.InferencePool {
	for _, o := range f.pools.store.List() {
		if p := o.(*infv1.InferencePool); p.Name == f.Name && p.Namespace == f.Namespace {
			return p
		}
	}
	return nil
}

func (f *follower) tell(p FollowedPool) {
	if f.told != nil && reflect.DeepEqual(*f.told, p) {
		return
	}
	if f.told == nil || len(f.told.Members) != len(p.Members) {
		f.log.Info("members of the pool", "members", len(p.Members), "protocol", p.Protocol)
	}
	f.told = &p
	f.Changed(p)
}

// poolProtocol is what members speak. A protocol that is not known is a newer
// version's, and HTTP/1.1 is what most servers speak as well.
func poolProtocol(p *infv1.InferencePool) config.Protocol {
	if p.Spec.AppProtocol == infv1.AppProtocolH2C {
		return config.H2C
	}
	return config.HTTP
}

// watching is a kind of object that is being followed.
type watching struct {
	store  cache.Store
	synced func() bool
	cancel context.CancelFunc
}

func (w *watching) stop() {
	if w != nil {
		w.cancel()
	}
}

// watch follows objects of a kind in the follower's namespace and wakes it.
// list makes an empty list of the kind.
func (f *follower) watch(ctx context.Context, r listed, narrow func(*metav1.ListOptions), example, list runtime.Object) (*watching, error) {
	client, err := f.cluster.client(r.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", r, err)
	}
	var failing atomic.Bool // the log says so
	told := func(verb string, err error) error {
		switch {
		case err == nil:
			if failing.Swap(false) {
				f.log.Info("the API server answers again", "resource", r.String())
			}
		case ctx.Err() == nil && !failing.Swap(true):
			f.log.Error("not followed; what is known stays", "error", explainAPI(err, verb, r, f.Namespace))
		}
		return err
	}
	request := func(o metav1.ListOptions) *rest.Request {
		narrow(&o)
		return client.Get().Namespace(f.Namespace).Resource(r.plural).SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.SchemeGroupVersion)
	}
	informer := cache.NewSharedInformer(Patient(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.DeepCopyObject()
			err := request(o).Timeout(clientTimeout).Do(ctx).Into(into)
			return into, told("list", err)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			return w, told("watch", err)
		},
	}, func(error) {}), example, 0)
	if err := informer.SetTransform(slim); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil { // see told
		return nil, err
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.changed() },
		UpdateFunc: func(any, any) { f.changed() },
		DeleteFunc: func(any) { f.changed() },
	}); err != nil {
		return nil, err
	}
	w := &watching{store: informer.GetStore(), synced: informer.HasSynced}
	ctx, w.cancel = context.WithCancel(ctx)
	go informer.RunWithContext(ctx)
	go func() { // an empty list brings no event
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			f.changed()
		}
	}()
	return w, nil
}

// slim takes off what is not read here: of a large fleet it would be most of
// the memory.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	if p, ok := o.(*corev1.Pod); ok {
		p.Spec = corev1.PodSpec{}
		p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, Conditions: p.Status.Conditions}
	}
	return o, nil
}
