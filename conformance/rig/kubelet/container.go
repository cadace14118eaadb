// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/conformance/rig/sandbox"
)

// A container that ends waits before it starts again: this long at first, twice
// as long each time, and from the beginning after it has run for a while. The
// figures are a tenth of a real kubelet's, so that a test of a crash is short.
const (
	firstBackOff  = time.Second
	longestBack   = 30 * time.Second
	backOffForget = time.Minute
)

// container is one container of a pod over all its restarts.
type container struct {
	w       *worker
	spec    *v1.Container
	init    bool
	started chan struct{} // closed when it has been started once, by its startup probe if it has one

	mu          sync.Mutex
	state, last v1.ContainerState
	restarts    int32
	ready       bool
	isStarted   bool
	startedOnce sync.Once
	process     *sandbox.Process
	log, oldLog *logBuffer
}

func newContainer(w *worker, spec *v1.Container, init bool) *container {
	c := &container{w: w, spec: spec, init: init, started: make(chan struct{})}
	c.state.Waiting = &v1.ContainerStateWaiting{Reason: "PodInitializing"}
	if len(w.pod.Spec.InitContainers) == 0 {
		c.state.Waiting.Reason = "ContainerCreating"
	}
	return c
}

func (c *container) sidecar() bool {
	return c.init && c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// restartsAfter tells whether a container that ended with code starts again.
func (c *container) restartsAfter(pod *v1.Pod, code int32) bool {
	switch policy := pod.Spec.RestartPolicy; {
	case c.sidecar():
		return true
	case policy == v1.RestartPolicyNever:
		return false
	case policy == v1.RestartPolicyOnFailure, c.init:
		return code != 0
	default:
		return true
	}
}

// run starts the container, again whenever its policy says so, until it has
// ended for good or stop is closed, and tells whether it ended well. After life
// has ended nothing starts.
func (c *container) run(life context.Context, stop <-chan struct{}) bool {
	backOff := firstBackOff
	for life.Err() == nil {
		begun := time.Now()
		process, err := c.start(life)
		if err != nil {
			if !c.waitProblem(life, stop, err) {
				return false
			}
			continue
		}
		reason := c.watch(life, process, stop)
		code := c.setTerminated(process, reason)
		if isClosed(stop) || life.Err() != nil || !c.restartsAfter(c.w.current(), code) {
			return code == 0
		}
		if time.Since(begun) > backOffForget {
			backOff = firstBackOff
		}
		c.setWaiting("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting the container after it ended with code %d", backOff, code))
		select {
		case <-life.Done():
			return false
		case <-stop:
			return false
		case <-time.After(backOff):
		}
		backOff = min(2*backOff, longestBack)
		c.mu.Lock()
		c.restarts++
		c.mu.Unlock()
	}
	return false
}

// waitProblem shows why the container cannot start and waits for a reason to
// try again.
func (c *container) waitProblem(life context.Context, stop <-chan struct{}, err error) bool {
	reason := "CreateContainerConfigError"
	if e, ok := err.(*startError); ok {
		reason = e.reason
	}
	if c.setWaiting(reason, err.Error()) {
		c.w.k.events.warn(life, c.w.current(), reason, c.spec.Name+": "+err.Error())
	}
	select {
	case <-life.Done():
		return false
	case <-stop:
		return false
	case <-c.w.sources:
	case <-time.After(2 * time.Second): // sources wakes one of the containers only
	}
	return true
}

// startError carries the reason that the container's status shows.
type startError struct {
	reason string
	err    error
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// start runs the program once.
func (c *container) start(ctx context.Context) (*sandbox.Process, error) {
	pod := c.w.current()
	program, err := c.w.k.Images.Lookup(c.spec.Image)
	if err != nil {
		return nil, &startError{"ErrImagePull", err}
	}
	env, err := c.w.environment(pod, c.spec)
	if err != nil {
		return nil, err
	}
	if err := refuseExec(c.spec); err != nil {
		return nil, err
	}
	// Each start has an empty root folder, as an image gives it.
	root := filepath.Join(c.w.k.podFolder(pod.UID), "containers", c.spec.Name)
	if err := os.RemoveAll(root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	mounts, err := c.w.mounts(pod, c.spec, env)
	if err != nil {
		return nil, err
	}
	spec := &sandbox.Container{
		Root: root, Program: program.Path, Dir: c.spec.WorkingDir, Hostname: hostname(pod), Mounts: mounts,
		Args: slices.Concat(program.Args, containerArgs(c.spec, env)),
		Env:  env.list(),
	}
	secure(spec, pod, c.spec)

	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log := newLogBuffer()
	c.mu.Lock()
	if c.log != nil {
		c.oldLog = c.log
	}
	c.log = log
	c.mu.Unlock()
	go log.collect(read)
	process, err := c.w.place.Start(spec, write)
	write.Close()
	if err != nil {
		return nil, &startError{"RunContainerError", err}
	}
	c.mu.Lock()
	c.process = process
	c.ready = false
	c.isStarted = c.spec.StartupProbe == nil
	c.state = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}
	if c.isStarted && c.spec.ReadinessProbe == nil {
		c.ready = true
	}
	isStarted := c.isStarted
	c.mu.Unlock()
	if isStarted {
		c.startedOnce.Do(func() { close(c.started) })
	}
	signal(c.w.dirty)
	return process, nil
}

// containerArgs is what goes behind the name of the program. The first word of
// command is the program in the image, for which the table's stands.
func containerArgs(c *v1.Container, env *environment) []string {
	var args []string
	if len(c.Command) > 1 {
		args = append(args, c.Command[1:]...)
	}
	args = append(args, c.Args...)
	for i := range args {
		args[i] = env.expand(args[i])
	}
	return args
}

func refuseExec(c *v1.Container) error {
	for _, p := range []*v1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p != nil && p.Exec != nil {
			return fmt.Errorf("a probe by exec is not possible here: the container holds no other program")
		}
	}
	if c.Lifecycle != nil && (c.Lifecycle.PostStart != nil || c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Exec != nil) {
		return fmt.Errorf("of life-cycle hooks only preStop with sleep or httpGet is possible here")
	}
	return nil
}

// secure takes over of the security contexts what a process alone can have.
func secure(spec *sandbox.Container, pod *v1.Pod, c *v1.Container) {
	var uid, gid *int64
	var nonRoot *bool
	var groups []int
	if s := pod.Spec.SecurityContext; s != nil {
		uid, gid, nonRoot = s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot
		for _, g := range s.SupplementalGroups {
			groups = append(groups, int(g))
		}
		if s.FSGroup != nil {
			groups = append(groups, int(*s.FSGroup))
		}
	}
	if s := c.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			uid = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			gid = s.RunAsGroup
		}
		if s.RunAsNonRoot != nil {
			nonRoot = s.RunAsNonRoot
		}
		spec.ReadOnlyRoot = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
		spec.DropCaps = s.Capabilities != nil && slices.Contains(s.Capabilities.Drop, "ALL")
	}
	if uid == nil && nonRoot != nil && *nonRoot {
		uid = new(nobody)
	}
	if uid == nil && gid == nil && len(groups) == 0 {
		return
	}
	u := &sandbox.User{Groups: groups}
	if uid != nil {
		u.UID = int(*uid)
	}
	if gid != nil {
		u.GID = int(*gid)
	}
	spec.User = u
}

// nobody is the user of images that are made for runAsNonRoot.
const nobody int64 = 65532

// watch probes a running container until it ends, and ends it when the pod
// stops or the container is found dead. It returns why, if it was ended.
func (c *container) watch(life context.Context, process *sandbox.Process, stop <-chan struct{}) string {
	ctx, endProbes := context.WithCancel(context.WithoutCancel(life))
	defer endProbes()
	unhealthy := make(chan string, 1)
	var probes sync.WaitGroup
	probes.Go(func() { c.probe(ctx, unhealthy) })
	defer probes.Wait()
	defer endProbes()
	reason := ""
	select {
	case <-process.Done():
		return reason
	case <-stop:
	case reason = <-unhealthy:
		c.w.k.events.warn(ctx, c.w.current(), "Unhealthy", c.spec.Name+": "+reason)
	}
	c.terminate(process)
	return reason
}

// terminate runs preStop, asks the process to end, and kills it when the grace
// is over. The grace of a pod that is being deleted counts from the deletion.
func (c *container) terminate(process *sandbox.Process) {
	killed := c.w.killed
	if !isClosed(c.w.stopping) {
		own := make(chan struct{})
		timer := time.AfterFunc(grace(c.w.current()), func() { close(own) })
		defer timer.Stop()
		killed = own
	}
	if h := c.spec.Lifecycle; h != nil && h.PreStop != nil {
		c.preStop(h.PreStop, killed, process.Done())
	}
	late := isClosed(killed)
	process.Signal(syscall.SIGTERM)
	select {
	case <-process.Done():
		return
	case <-killed:
	}
	if late {
		// A preStop that took the whole grace leaves the process two seconds, as
		// from a real kubelet, unless the object is gone.
		select {
		case <-process.Done():
			return
		case <-c.w.gone:
		case <-time.After(2 * time.Second):
		}
	}
	process.Signal(syscall.SIGKILL)
	<-process.Done()
}

func grace(pod *v1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

func (c *container) preStop(h *v1.LifecycleHandler, killed, over <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		switch {
		case h.Sleep != nil:
			select {
			case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
			case <-ctx.Done():
			}
		case h.HTTPGet != nil:
			if err := c.httpGet(ctx, h.HTTPGet, nil); err != nil && ctx.Err() == nil {
				c.w.k.events.warn(ctx, c.w.current(), "FailedPreStopHook", err.Error())
			}
		}
	}()
	select {
	case <-done:
	case <-killed:
	case <-over:
	}
}

// waitStarted tells whether a sidecar has come up; false when the pod stops
// first.
func (c *container) waitStarted(life context.Context) bool {
	select {
	case <-c.started:
		return true
	case <-life.Done():
		return false
	}
}

func (c *container) setReady(ready bool) {
	c.mu.Lock()
	changed := c.ready != ready
	c.ready = ready
	c.mu.Unlock()
	if changed {
		signal(c.w.dirty)
	}
}

func (c *container) setStarted() {
	c.mu.Lock()
	c.isStarted = true
	c.ready = c.spec.ReadinessProbe == nil
	c.mu.Unlock()
	c.startedOnce.Do(func() { close(c.started) })
	signal(c.w.dirty)
}

// setWaiting tells whether the state is another than before. What ended last
// moves to the last state.
func (c *container) setWaiting(reason, message string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.state.Waiting; w != nil && w.Reason == reason && w.Message == message {
		return false
	}
	if c.state.Terminated != nil {
		c.last = c.state
	}
	c.state = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}
	signal(c.w.dirty)
	return true
}

func (c *container) setTerminated(process *sandbox.Process, message string) int32 {
	code, sig := process.Exit()
	t := &v1.ContainerStateTerminated{ExitCode: code, Signal: sig, Reason: "Error", Message: message, FinishedAt: metav1.Now()}
	if code == 0 {
		t.Reason = "Completed"
	}
	c.mu.Lock()
	if c.state.Running != nil {
		t.StartedAt = c.state.Running.StartedAt
	}
	c.state = v1.ContainerState{Terminated: t}
	c.ready, c.isStarted, c.process = false, false, nil
	c.mu.Unlock()
	signal(c.w.dirty)
	return code
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
