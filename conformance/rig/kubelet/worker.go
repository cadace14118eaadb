// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/conformance/rig/sandbox"
)

// worker takes one pod from its first namespace to its last status.
type worker struct {
	k         *Kubelet
	namespace string

	updates chan struct{} // a newer pod object
	sources chan struct{} // a Secret or ConfigMap of the namespace changed
	dirty   chan struct{} // the status is to be written again

	// stopping is closed when the pod is to end gracefully, killed when the
	// grace is over, gone when the object no longer exists.
	stopping, killed, gone chan struct{}

	// mu guards what follows; containers have locks of their own, which are
	// taken after this one, never before.
	mu         sync.Mutex
	pod        *v1.Pod
	place      *sandbox.Pod
	started    metav1.Time
	inits      []*container
	mains      []*container
	initDone   bool
	problem    string // why the pod cannot start yet
	stopOnce   sync.Once
	killOnce   sync.Once
	goneOnce   sync.Once
	graceTimer *time.Timer
	grace      time.Duration // of the last deletion
}

func newWorker(k *Kubelet, pod *v1.Pod) *worker {
	w := &worker{
		k: k, namespace: pod.Namespace, pod: pod, started: metav1.Now(),
		updates: make(chan struct{}, 1), sources: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
		stopping: make(chan struct{}), killed: make(chan struct{}), gone: make(chan struct{}),
	}
	for i := range pod.Spec.InitContainers {
		w.inits = append(w.inits, newContainer(w, &pod.Spec.InitContainers[i], true))
	}
	for i := range pod.Spec.Containers {
		w.mains = append(w.mains, newContainer(w, &pod.Spec.Containers[i], false))
	}
	return w
}

// update takes a newer object. A deletion starts the grace period; a second
// deletion may shorten it.
func (w *worker) update(pod *v1.Pod) {
	w.mu.Lock()
	w.pod = pod
	if pod.DeletionTimestamp != nil {
		// The stamp of the deletion is rounded to the second, so the grace is
		// counted from now.
		grace := time.Duration(0)
		if s := pod.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		if w.graceTimer == nil {
			w.graceTimer = time.AfterFunc(grace, w.kill)
		} else if grace < w.grace {
			w.graceTimer.Reset(grace)
		}
		w.grace = grace
	}
	w.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		w.stop()
	}
	signal(w.updates)
}

// abandon ends the pod without grace.
func (w *worker) abandon() {
	w.goneOnce.Do(func() { close(w.gone) })
	w.stop()
	w.kill()
}

func (w *worker) stop() { w.stopOnce.Do(func() { close(w.stopping) }) }
func (w *worker) kill() { w.killOnce.Do(func() { close(w.killed) }) }

func (w *worker) current() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// run is the whole life of the pod.
func (w *worker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// life ends when the pod is to stop: nothing new starts after it.
	life, endLife := context.WithCancel(ctx)
	defer endLife()
	go func() {
		select {
		case <-w.stopping:
			endLife()
		case <-life.Done():
		}
	}()
	var reports sync.WaitGroup
	reports.Go(func() { w.report(ctx) })

	if w.alreadyOver() {
		w.waitDeletion(ctx)
	} else {
		w.live(life, ctx)
	}
	if ctx.Err() != nil {
		return // the rig ends; the kernel removes what is left
	}
	w.tearDown()
	signal(w.dirty)
	w.waitDeletion(ctx)
	w.removeObject(ctx)
	cancel()
	reports.Wait()
	os.RemoveAll(w.k.podFolder(w.current().UID))
	// The kubelet forgets this worker when it sees that the object is gone: an
	// older sight of the pod must not start it again.
}

// live runs the containers until the pod is stopped or all of them have ended
// for good.
func (w *worker) live(life, ctx context.Context) {
	volumes := newVolumes(w)
	if err := w.prepare(life, volumes); err != nil {
		return
	}
	var upkeep sync.WaitGroup
	// Volumes are kept current until the last container has ended.
	upkeepCtx, endUpkeep := context.WithCancel(ctx)
	upkeep.Go(func() { volumes.keepCurrent(upkeepCtx) })
	defer upkeep.Wait()
	defer endUpkeep()

	var running, sidecars sync.WaitGroup
	mainsOver := make(chan struct{})
	ok := true
	for _, c := range w.inits {
		if c.sidecar() {
			// It ends after the main containers, or with the pod's grace.
			sidecars.Go(func() { c.run(life, mainsOver) })
			if ok = c.waitStarted(life); !ok {
				break
			}
			continue
		}
		if ok = c.run(life, w.stopping); !ok {
			break
		}
	}
	if ok && life.Err() == nil {
		w.mu.Lock()
		w.initDone = true
		w.mu.Unlock()
		signal(w.dirty)
		for _, c := range w.mains {
			running.Go(func() { c.run(life, w.stopping) })
		}
	}
	running.Wait()
	close(mainsOver)
	sidecars.Wait()
}

// prepare makes the network and the volumes. What a volume names may be created
// after the pod, so a failure is tried again when a source or the pod changes,
// and from time to time for what is not watched.
func (w *worker) prepare(life context.Context, volumes *volumes) error {
	for {
		err := w.tryPrepare(life, volumes)
		w.mu.Lock()
		if err != nil {
			w.problem = err.Error()
		} else {
			w.problem = ""
		}
		w.mu.Unlock()
		signal(w.dirty)
		if err == nil {
			return nil
		}
		var permanent *unsupportedError
		if errors.As(err, &permanent) {
			w.k.events.warn(life, w.current(), "FailedMount", err.Error())
			<-life.Done()
		}
		select {
		case <-life.Done():
			return life.Err()
		case <-w.sources:
		case <-w.updates:
		case <-time.After(time.Second):
		}
	}
}

func (w *worker) tryPrepare(ctx context.Context, volumes *volumes) error {
	pod := w.current()
	if w.place == nil {
		place := w.k.Network.Host()
		if !pod.Spec.HostNetwork {
			var err error
			if place, err = w.k.Network.Add(); err != nil {
				return err
			}
		}
		w.mu.Lock()
		w.place = place
		w.mu.Unlock()
	}
	if err := w.writeEtc(pod); err != nil {
		return err
	}
	return volumes.refresh(ctx)
}

// writeEtc makes the files that name the pod and the cluster's DNS.
func (w *worker) writeEtc(pod *v1.Pod) error {
	dir := filepath.Join(w.k.podFolder(pod.UID), "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	resolv := fmt.Sprintf("search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", pod.Namespace, w.k.DNS)
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost\n" + fmt.Sprintf("%s\t%s\n", w.place.Addr, hostname(pod))
	for _, alias := range pod.Spec.HostAliases {
		for _, name := range alias.Hostnames {
			hosts += alias.IP + "\t" + name + "\n"
		}
	}
	for name, content := range map[string]string{
		"resolv.conf": resolv, "hosts": hosts, "hostname": hostname(pod) + "\n",
		"passwd": "root:x:0:0:root:/:/\nnonroot:x:65532:65532:nonroot:/:/\n", "group": "root:x:0:\nnonroot:x:65532:\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func hostname(pod *v1.Pod) string {
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	return pod.Name
}

// tearDown removes the network; the folder stays until the object is gone.
func (w *worker) tearDown() {
	w.mu.Lock()
	place := w.place
	w.mu.Unlock()
	if place == nil {
		return
	}
	if err := place.Close(); err != nil {
		w.k.Log.Warn("remove the network of a pod", "pod", w.current().Name, "err", err)
	}
}

// alreadyOver tells whether the pod had ended before this kubelet saw it.
func (w *worker) alreadyOver() bool {
	phase := w.current().Status.Phase
	return phase == v1.PodSucceeded || phase == v1.PodFailed
}

// waitDeletion waits until somebody wants the object gone.
func (w *worker) waitDeletion(ctx context.Context) {
	select {
	case <-w.stopping:
	case <-ctx.Done():
	}
}

// removeObject confirms to the API server that the pod has ended, once the last
// status is written.
func (w *worker) removeObject(ctx context.Context) {
	pod := w.current()
	if err := w.writeStatus(ctx); apierrors.IsNotFound(err) {
		return
	}
	for {
		err := w.k.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil {
			return
		}
		w.k.Log.Warn("delete a pod that has ended", "pod", pod.Name, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (w *worker) container(name string) *container {
	for _, c := range slices.Concat(w.inits, w.mains) {
		if c.spec.Name == name {
			return c
		}
	}
	return nil
}
