// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet is the one node of the rig: it takes every pod of the API
// server and runs its containers as local processes, each pod in a network
// namespace of its own. It does what a gateway and the conformance suites can
// observe of a node (addresses, probes, environment, volumes and their updates,
// tokens, restarts, graceful termination, logs, status) and leaves out what
// they cannot: images, cgroups, scheduling, exec.
//
// [Kubelet.Start] watches pods and gives each to a worker of its own
// (worker.go), which takes the pod from its first namespace to its last status;
// container.go is the life of one container. A worker is the only writer of its
// pod's status.
package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock/penstock/conformance/rig/program"
	"github.com/penstock/penstock/conformance/rig/sandbox"
)

// NodeName is the name of the only node.
const NodeName = "rig"

// Config is what the kubelet works with.
type Config struct {
	Client  kubernetes.Interface
	Network *sandbox.Network
	Images  *program.Table
	Dir     string     // root folders and volumes of the pods
	NodeIP  netip.Addr // of the bridge; logs are served there
	DNS     netip.Addr // what /etc/resolv.conf of a pod names
	// API is the host and port of the Service kubernetes, as pods are told.
	API netip.AddrPort
	Log *slog.Logger
}

// Kubelet runs the pods.
type Kubelet struct {
	Config
	secrets    corelisters.SecretLister
	configMaps corelisters.ConfigMapLister
	events     *eventWriter

	mu      sync.Mutex
	workers map[types.UID]*worker
}

// New makes a kubelet; the informers of factory are started by the caller.
func New(config Config, factory informers.SharedInformerFactory) *Kubelet {
	k := &Kubelet{
		Config:     config,
		secrets:    factory.Core().V1().Secrets().Lister(),
		configMaps: factory.Core().V1().ConfigMaps().Lister(),
		events:     &eventWriter{client: config.Client, log: config.Log},
		workers:    map[types.UID]*worker{},
	}
	return k
}

// Start registers the node and runs pods until ctx ends.
func (k *Kubelet) Start(ctx context.Context, factory informers.SharedInformerFactory) error {
	port, err := k.serveLogs(ctx)
	if err != nil {
		return fmt.Errorf("serve logs: %w", err)
	}
	if err := k.register(ctx, port); err != nil {
		return fmt.Errorf("register the node: %w", err)
	}
	// The sources of volumes must be known before the first pod asks for them.
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Secrets().Informer(), factory.Core().V1().ConfigMaps().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    k.sourceChanged,
			UpdateFunc: func(_, changed any) { k.sourceChanged(changed) },
			DeleteFunc: k.sourceChanged,
		}); err != nil {
			return err
		}
	}
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.observe(ctx, o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { k.observe(ctx, o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			k.forget(o.(*v1.Pod).UID)
		},
	}); err != nil {
		return err
	}
	return nil
}

// observe hands a pod to its worker, and binds it first when it has no node.
func (k *Kubelet) observe(ctx context.Context, pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		if pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 {
			go k.bind(ctx, pod)
		}
		return
	}
	if pod.Spec.NodeName != NodeName {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.workers[pod.UID]
	if w == nil {
		w = newWorker(k, pod)
		k.workers[pod.UID] = w
		go w.run(ctx)
	}
	w.update(pod)
}

// forget ends a pod whose object is gone: at once, there is nobody to report to.
func (k *Kubelet) forget(uid types.UID) {
	k.mu.Lock()
	w := k.workers[uid]
	delete(k.workers, uid)
	k.mu.Unlock()
	if w != nil {
		w.abandon()
	}
}

func (k *Kubelet) bind(ctx context.Context, pod *v1.Pod) {
	err := k.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: NodeName},
	}, metav1.CreateOptions{})
	// A conflict is an earlier binding of the same pod, seen late.
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		k.Log.Warn("bind", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}

// sourceChanged lets the workers that use a Secret or ConfigMap look again.
func (k *Kubelet) sourceChanged(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	var namespace string
	switch o := o.(type) {
	case *v1.Secret:
		namespace = o.Namespace
	case *v1.ConfigMap:
		namespace = o.Namespace
	default:
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		if w.namespace == namespace {
			signal(w.sources)
		}
	}
}

// podFolder is where a pod's files are.
func (k *Kubelet) podFolder(uid types.UID) string { return filepath.Join(k.Dir, string(uid)) }

// register creates the node. Its condition never changes and nobody checks for
// heartbeats.
func (k *Kubelet) register(ctx context.Context, port int32) error {
	plenty := v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse("1000"),
		v1.ResourceMemory:           resource.MustParse("10Ti"),
		v1.ResourceEphemeralStorage: resource.MustParse("10Ti"),
		v1.ResourcePods:             resource.MustParse("10000"),
	}
	now := metav1.Now()
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{
			v1.LabelHostname: NodeName, v1.LabelOSStable: "linux",
			v1.LabelTopologyZone: "rig-a", v1.LabelTopologyRegion: "rig",
		}},
		Status: v1.NodeStatus{
			Capacity: plenty, Allocatable: plenty,
			Addresses: []v1.NodeAddress{
				{Type: v1.NodeInternalIP, Address: k.NodeIP.String()}, {Type: v1.NodeHostName, Address: NodeName},
			},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}},
			NodeInfo:        v1.NodeSystemInfo{OperatingSystem: "linux", ContainerRuntimeVersion: "rig://0"},
			Conditions: []v1.NodeCondition{{
				Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "pods are local processes",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	created, err := k.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Status = node.Status
	_, err = k.Client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	// The API server taints new nodes until a controller has seen them ready.
	created, err = k.Client.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	created.Spec.Taints = nil
	_, err = k.Client.CoreV1().Nodes().Update(ctx, created, metav1.UpdateOptions{})
	return err
}

// signal wakes a receiver that looks at the whole state: one wake-up stands for
// many.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// eventWriter records what a person asks for with kubectl describe.
type eventWriter struct {
	client kubernetes.Interface
	log    *slog.Logger
}

func (e *eventWriter) warn(ctx context.Context, pod *v1.Pod, reason, message string) {
	e.log.Warn(reason, "pod", pod.Namespace+"/"+pod.Name, "message", message)
	now := metav1.NewTime(time.Now())
	_, err := e.client.CoreV1().Events(pod.Namespace).Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Reason: reason, Message: message, Type: v1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source: v1.EventSource{Component: "kubelet", Host: NodeName},
	}, metav1.CreateOptions{})
	// A namespace that is being deleted takes no events.
	if err != nil && ctx.Err() == nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		e.log.Warn("record an event", "err", err)
	}
}
