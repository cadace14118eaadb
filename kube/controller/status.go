// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/kube"
)

// key names an object of a watched kind.
type key struct {
	kind string
	types.NamespacedName
}

// statusWriter writes what translations say into the status of objects, a few
// at a time and apart from the control loop.
type statusWriter struct {
	c      *Controller
	log    *slog.Logger
	events *events
	kinds  map[string]*kind
	places chan struct{} // one per write at a time
	wake   chan struct{}

	mu      sync.Mutex
	wanted  map[key]*kube.Status
	settled map[key]settled
	looking map[key]bool // to be compared with what stands there
	busy    map[key]bool // being written
}

// settled is a status that is known to stand in an object.
type settled struct {
	status  *kube.Status
	version string // resourceVersion of the object
}

const (
	writesAtATime  = 8
	writeTime      = 15 * time.Second
	writeConflicts = 5
	writeAgain     = 5 * time.Second
)

func newStatusWriter(c *Controller) *statusWriter {
	w := &statusWriter{
		c: c, log: c.log, events: newEvents(c), kinds: map[string]*kind{},
		places: make(chan struct{}, writesAtATime), wake: make(chan struct{}, 1),
		wanted: map[key]*kube.Status{}, settled: map[key]settled{}, looking: map[key]bool{}, busy: map[key]bool{},
	}
	for i := range c.caches.kinds {
		w.kinds[c.caches.kinds[i].name] = &c.caches.kinds[i]
	}
	return w
}

// want takes the statuses of a translation. Those of objects that it does not
// tell of are left as they are. An object of another version is looked at again:
// it may be another one of the same name.
func (w *statusWriter) want(all []*kube.Status) {
	w.mu.Lock()
	next := make(map[key]*kube.Status, len(all))
	for _, s := range all {
		k := key{s.Kind, s.NamespacedName}
		next[k] = s
		if old := w.settled[k]; old.status == nil || !reflect.DeepEqual(old.status, s) || old.version != w.version(k) {
			w.looking[k] = true
		} else {
			w.settled[k] = settled{s, old.version}
		}
	}
	for k := range w.settled {
		if next[k] == nil {
			delete(w.settled, k)
		}
	}
	w.wanted = next
	w.mu.Unlock()
	poke(w.wake)
}

// look says that the status of an object has changed, perhaps by somebody else.
func (w *statusWriter) look(k key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted[k] != nil {
		w.looking[k] = true
		poke(w.wake)
	}
}

// run writes until ctx ends, and returns when nothing is being written.
func (w *statusWriter) run(ctx context.Context) {
	var writing sync.WaitGroup
	defer writing.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for {
			k, s, ok := w.next()
			if !ok {
				break
			}
			select {
			case <-ctx.Done():
				return
			case w.places <- struct{}{}:
			}
			writing.Go(func() {
				defer func() { <-w.places }()
				err := w.write(ctx, k, s)
				w.mu.Lock()
				delete(w.busy, k)
				if w.looking[k] {
					poke(w.wake) // it has changed meanwhile
				}
				w.mu.Unlock()
				if err != nil && ctx.Err() == nil {
					w.log.Warn("status not written; trying again", "kind", k.kind, "object", k.String(), "error", err)
					time.AfterFunc(writeAgain, func() { w.look(k) })
				}
			})
		}
	}
}

// next is an object to be looked at that is not being written.
func (w *statusWriter) next() (key, *kube.Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.looking {
		if w.busy[k] {
			continue
		}
		delete(w.looking, k)
		s := w.wanted[k]
		if s == nil {
			continue
		}
		w.busy[k] = true
		return k, s, true
	}
	return key{}, nil, false
}

// write makes the status of an object as it is wanted. It begins with the object
// as it was watched, which costs nothing where nothing has changed; after a
// conflict it reads it.
func (w *statusWriter) write(ctx context.Context, k key, s *kube.Status) error {
	kd := w.kinds[k.kind]
	if kd == nil {
		return fmt.Errorf("kind %s is not known", k.kind)
	}
	o := w.watched(k)
	if o == nil {
		return nil
	}
	if w.isSettled(k, s, o.GetResourceVersion()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	for attempt := 0; ; attempt++ {
		before := o.DeepCopyObject().(object)
		changed, err := s.Merge(o, metav1.Now())
		if err != nil {
			return err
		}
		if !changed {
			if o.GetGeneration() == s.Generation {
				w.settle(k, s, o.GetResourceVersion())
			}
			return nil
		}
		err = w.c.api.update(ctx, kd.resource, o, "status")
		switch {
		case err == nil:
			w.c.o.Metrics.wrote(k.kind, "ok")
			w.events.of(k, before, o)
			return nil // it is settled when the watch shows it
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err) && attempt < writeConflicts:
			w.c.o.Metrics.wrote(k.kind, "conflict")
		default:
			w.c.o.Metrics.wrote(k.kind, "failed")
			return err
		}
		fresh := reflect.New(reflect.TypeOf(kd.sample).Elem()).Interface().(object)
		if err := w.c.api.get(ctx, kd.resource, k.NamespacedName, fresh); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
		o = fresh
	}
}

func (w *statusWriter) isSettled(k key, s *kube.Status, version string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.settled[k]
	return old.status == s && old.version == version
}

func (w *statusWriter) settle(k key, s *kube.Status, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled[k] = settled{s, version}
}

// watched is a copy of an object as it was watched; nil: it is gone.
func (w *statusWriter) watched(k key) object {
	if o := w.cached(k); o != nil {
		return o.DeepCopyObject().(object)
	}
	return nil
}

// version is the resourceVersion of an object as it was watched.
func (w *statusWriter) version(k key) string {
	if o := w.cached(k); o != nil {
		return o.GetResourceVersion()
	}
	return ""
}

// cached is an object as it was watched, which is shared; nil: it is gone.
func (w *statusWriter) cached(k key) object {
	ix := w.c.caches.indexer(k.kind)
	if ix == nil {
		return nil
	}
	name := k.Name
	if k.Namespace != "" {
		name = k.NamespacedName.String()
	}
	o, ok, err := ix.GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return o.(object)
}
