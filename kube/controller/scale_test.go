// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package controller

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/xds"
)

// TestScale holds the memory of a controller of a large cluster below a bound,
// and says how long it takes to begin. It makes thousands of objects: make
// bench-cluster.
func TestScale(t *testing.T) {
	const routes, pools, podsPerPool = 1000, 200, 25
	c := newCluster(t)
	c.objects()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: c.namespace}
	}
	type item struct {
		gvr schema.GroupVersionResource
		o   object
	}
	work := make(chan item)
	var making sync.WaitGroup
	for range 16 {
		making.Go(func() {
			for i := range work {
				if err := c.create(context.Background(), i.gvr, i.o, i.o); err != nil {
					t.Error(err)
				}
				if p, ok := i.o.(*corev1.Pod); ok {
					p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.Annotations["ip"], PodIPs: []corev1.PodIP{{IP: p.Annotations["ip"]}},
						Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
					if err := c.update(context.Background(), i.gvr, p, "status"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	c.pod("first", "10.98.0.1") // waits for the service account
	for i := range pools {
		name := fmt.Sprint("pool-", i)
		pool := &infv1.InferencePool{ObjectMeta: meta(name)}
		pool.Spec.Selector.MatchLabels = map[infv1.LabelKey]infv1.LabelValue{"app": infv1.LabelValue(name)}
		pool.Spec.TargetPorts = []infv1.Port{{Number: 8000}}
		pool.Spec.EndpointPickerRef = &infv1.EndpointPickerRef{Name: "picker", Port: &infv1.Port{Number: 9002}}
		work <- item{schema.GroupVersion(infv1.GroupVersion).WithResource("inferencepools"), pool}
		for j := range podsPerPool {
			p := &corev1.Pod{ObjectMeta: meta(fmt.Sprint(name, "-", j))}
			p.Labels = map[string]string{"app": name, "pod-template-hash": "5d8c7f9b6d", "app.kubernetes.io/name": "vllm", "app.kubernetes.io/version": "0.12.0"}
			p.Annotations = map[string]string{"ip": fmt.Sprintf("10.%d.%d.%d", 100+i/100, i%100, j+1), "note": strings.Repeat("x", 500)}
			p.Spec.NodeName = "elsewhere"
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: "vllm", Args: []string{strings.Repeat("--flag=value ", 40)}}}
			work <- item{corev1.SchemeGroupVersion.WithResource("pods"), p}
		}
	}
	for i := range routes {
		r := &gatewayv1.HTTPRoute{ObjectMeta: meta(fmt.Sprint("route-", i))}
		r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "public"}}
		r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))}
		ref := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
			Group: new(gatewayv1.Group("inference.networking.k8s.io")), Kind: new(gatewayv1.Kind("InferencePool")), Name: gatewayv1.ObjectName(fmt.Sprint("pool-", i%pools)),
		}}
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: ref}}}}
		work <- item{gateways("httproutes"), r}
	}
	close(work)
	making.Wait()

	began := time.Now()
	p := newPlane()
	c.start(p, nil)
	gateway := xds.Gateway{Namespace: c.namespace, Name: "public"}
	c.until("the configuration is published", func() (string, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		cfg := p.configs[gateway]
		return "", cfg != nil && len(cfg.HTTPRoutes) > routes && len(p.members) > pools
	})
	first := time.Since(began)
	last := &gatewayv1.HTTPRoute{}
	for i := range routes {
		name := nameOf(&metav1.ObjectMeta{Name: fmt.Sprint("route-", i), Namespace: c.namespace})
		c.until("every route has its status", func() (string, bool) {
			err := c.get(context.Background(), gateways("httproutes"), name, last)
			return fmt.Sprint(err), err == nil && len(last.Status.Parents) == 1
		})
	}
	written := time.Since(began)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, _ := os.ReadFile("/proc/self/status")
	resident := ""
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") {
			resident = strings.Join(strings.Fields(line)[1:], " ")
		}
	}
	t.Logf("%d pods, %d routes, %d pools: published after %s, all status after %s; heap %d MiB, most resident ever %s, translation %s",
		pools*podsPerPool, routes, pools, first, written, m.HeapAlloc>>20, resident, p.c.current().lasting)
	if m.HeapAlloc > 150<<20 {
		t.Errorf("the heap is %d MiB after a collection", m.HeapAlloc>>20)
	}
	c.members(p, gateway.String()+" "+c.namespace+"/llama")
}
