// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/xds"
)

// feed is the path of endpoints: from a pod or an endpoint slice that changes
// to the members of the pools that it is in, with no translation in between.
type feed struct {
	c    *Controller
	wake chan struct{}

	// sending is held while members are computed and sent, so that what is sent
	// last is what was read last. It is taken before mu.
	sending sync.Mutex

	mu      sync.Mutex
	sets    map[string]*set                 // by name
	pods    map[string][]*set               // by namespace, sets of pods
	slices  map[types.NamespacedName][]*set // by Service
	touch   map[*set]bool                   // to be computed anew
	waiting time.Time                       // since when the first of them waits
}

// set are the members of one source, and the Gateways that have it.
type set struct {
	source   *kube.Source
	gateways []types.NamespacedName
}

// Changes of endpoints gather for a moment: a roll-out changes many pods, each
// several times.
const (
	feedQuiet = 5 * time.Millisecond
	feedMost  = 50 * time.Millisecond
)

func newFeed(c *Controller) *feed {
	return &feed{c: c, wake: make(chan struct{}, 1), sets: map[string]*set{}, touch: map[*set]bool{}}
}

func (f *feed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		if !gather(ctx, f.wake, feedQuiet, feedMost) {
			return
		}
		f.send()
	}
}

// touched notes the sets that a change concerns: those that the object was in
// and those that it is in. A kind that has come or gone concerns all.
func (f *feed) touched(kind string, old, new object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.touch)
	if old == nil && new == nil {
		for _, s := range f.sets {
			f.touch[s] = true
		}
	}
	for _, o := range []object{old, new} {
		switch o := o.(type) {
		case *corev1.Pod:
			for _, s := range f.pods[o.Namespace] {
				if selects(s.source.Selector, o.Labels) {
					f.touch[s] = true
				}
			}
		case *discoveryv1.EndpointSlice:
			for _, s := range f.slices[types.NamespacedName{Namespace: o.Namespace, Name: serviceOf(o)}] {
				f.touch[s] = true
			}
		}
	}
	if len(f.touch) == 0 {
		return
	}
	if before == 0 {
		f.waiting = time.Now()
	}
	poke(f.wake)
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return len(selector) > 0
}

// send computes the sets that have been touched and publishes them.
func (f *feed) send() {
	f.sending.Lock()
	defer f.sending.Unlock()
	f.mu.Lock()
	sets := make([]*set, 0, len(f.touch))
	for s := range f.touch {
		sets = append(sets, s)
	}
	clear(f.touch)
	since := f.waiting
	f.mu.Unlock()
	if len(sets) == 0 {
		return
	}
	f.publish(sets)
	f.c.o.Metrics.fed(len(sets), time.Since(since))
	f.c.log.Debug("members", "sets", len(sets), "took", time.Since(since).String())
}

func (f *feed) publish(sets []*set) {
	sources := make([]*kube.Source, len(sets))
	for i, s := range sets {
		sources[i] = s.source
	}
	members := kube.Members(f.c.caches.endpoints(sources), sources)
	for _, s := range sets {
		list := members[s.source.Set]
		if list == nil {
			list = []config.Member{} // known to be none
		}
		for _, g := range s.gateways {
			f.c.o.Publisher.SetMembers(xds.Gateway(g), s.source.Set, list)
		}
	}
}

// follow takes the sources of a translation. Members of sources that are new,
// or that another Gateway has now too, are published before it returns; those
// that no configuration has any more go when the caller calls what it returns.
func (f *feed) follow(gateways []*kube.Gateway) (forget func()) {
	f.sending.Lock()
	defer f.sending.Unlock()
	next := map[string]*set{}
	for _, g := range gateways {
		for _, s := range g.Sources {
			if next[s.Set] == nil {
				next[s.Set] = &set{source: s}
			}
			next[s.Set].gateways = append(next[s.Set].gateways, g.NamespacedName)
		}
		if g.Config == nil {
			f.keep(next, g.NamespacedName)
		}
	}
	pods, services := map[string][]*set{}, map[types.NamespacedName][]*set{}
	for _, s := range next {
		if s.source.Service == "" {
			pods[s.source.Namespace] = append(pods[s.source.Namespace], s)
		} else {
			at := types.NamespacedName{Namespace: s.source.Namespace, Name: s.source.Service}
			services[at] = append(services[at], s)
		}
	}
	f.mu.Lock()
	before := f.sets
	touched := f.touch
	f.sets, f.pods, f.slices, f.touch = next, pods, services, map[*set]bool{}
	var fresh []*set
	for name, s := range next {
		old := before[name]
		if old == nil || touched[old] || !reflect.DeepEqual(old.source, s.source) || !slices.Equal(old.gateways, s.gateways) {
			fresh = append(fresh, s)
		}
	}
	f.mu.Unlock()
	f.publish(fresh)
	return func() {
		for name, s := range before {
			for _, g := range s.gateways {
				if next[name] == nil || !slices.Contains(next[name].gateways, g) {
					f.c.o.Publisher.RemoveMembers(xds.Gateway(g), name)
				}
			}
		}
	}
}

// keep leaves a Gateway that is not accepted any more the sets that it has:
// what runs there goes on, with members that come and go.
func (f *feed) keep(next map[string]*set, g types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, s := range f.sets {
		if !slices.Contains(s.gateways, g) {
			continue
		}
		if next[name] == nil {
			next[name] = &set{source: s.source}
		}
		next[name].gateways = append(next[name].gateways, g)
	}
}
