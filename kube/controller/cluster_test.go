// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/xds"
)

// clusterSwitch names a kubeconfig of a cluster that may be written to: that of
// conformance/rig/rig.sh run. Its controllers are needed, its pods are not.
const clusterSwitch = "PENSTOCK_TEST_KUBECONFIG"

// cluster is a real API server with a namespace of the test's own.
type cluster struct {
	*testing.T
	*api
	namespace string
}

func newCluster(t *testing.T) *cluster {
	file := os.Getenv(clusterSwitch)
	if file == "" {
		t.Fatal("no API server: make test-cluster brings one up")
	}
	connected, err := Connect(file, "penstock-test")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t, connected.api, fmt.Sprintf("ctl-%x", time.Now().UnixNano()&0xffffffff)}
	c.make(namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}})
	t.Cleanup(func() {
		if err := c.remove(context.Background(), namespaces(), types.NamespacedName{Name: c.namespace}, ""); err != nil {
			t.Error(err)
		}
	})
	return c
}

func namespaces() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("namespaces")
}

func gateways(plural string) schema.GroupVersionResource {
	return schema.GroupVersion(gatewayv1.GroupVersion).WithResource(plural)
}

func (c *cluster) make(gvr schema.GroupVersionResource, o object) {
	c.Helper()
	if err := c.create(c.Context(), gvr, o, o); err != nil && !apierrors.IsAlreadyExists(err) {
		c.Fatalf("make %s %s: %v", gvr.Resource, o.GetName(), err)
	}
}

// until waits for what a condition says to come true.
func (c *cluster) until(what string, is func() (string, bool)) {
	c.Helper()
	var now string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var ok bool
		if now, ok = is(); ok {
			return
		}
	}
	c.Fatalf("%s: not so: %s", what, now)
}

// condition is "STATUS REASON" of a condition of a Gateway.
func (c *cluster) condition(gateway, kind string) string {
	g := &gatewayv1.Gateway{}
	if err := c.get(context.Background(), gateways("gateways"), types.NamespacedName{Namespace: c.namespace, Name: gateway}, g); err != nil {
		return err.Error()
	}
	for _, s := range g.Status.Conditions {
		if s.Type == kind && s.ObservedGeneration == g.Generation {
			return string(s.Status) + " " + s.Reason + ": " + s.Message
		}
	}
	return "none of this generation"
}

// plane is a publisher whose one process takes or refuses at will.
type plane struct {
	mu      sync.Mutex
	c       *Controller
	configs map[xds.Gateway]*config.Config
	version map[xds.Gateway]string
	members map[string][]string
	at      map[string]time.Time
	refuse  string
	deaf    bool
	count   int
}

func newPlane() *plane {
	return &plane{configs: map[xds.Gateway]*config.Config{}, version: map[xds.Gateway]string{}, members: map[string][]string{}, at: map[string]time.Time{}}
}

func (p *plane) Publish(g xds.Gateway, cfg *config.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	version := fmt.Sprintf("%x", cfg.Encode())
	if p.version[g] != version {
		p.count++
	}
	p.configs[g], p.version[g] = cfg, version
	go p.c.Replied(g)
	return nil
}

func (p *plane) SetMembers(g xds.Gateway, set string, members []config.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []string{}
	for _, m := range members {
		list = append(list, m.Address)
	}
	p.members[g.String()+" "+set], p.at[g.String()+" "+set] = list, time.Now()
}

func (p *plane) RemoveMembers(g xds.Gateway, set string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, g.String()+" "+set)
}

func (p *plane) Remove(g xds.Gateway) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.configs, g)
	delete(p.version, g)
}

func (p *plane) Status(g xds.Gateway) xds.GatewayStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := xds.GatewayStatus{Version: p.version[g]}
	if s.Version == "" || p.deaf {
		return s
	}
	one := xds.ClientState{Name: "pod-1", Version: s.Version}
	if p.refuse != "" {
		one = xds.ClientState{Name: "pod-1", Refused: s.Version, Err: p.refuse}
	}
	s.Clients = append(s.Clients, one)
	return s
}

func (p *plane) set(change func(*plane)) {
	p.mu.Lock()
	change(p)
	gateways := slices.Collect(maps.Keys(p.configs))
	p.mu.Unlock()
	for _, g := range gateways {
		p.c.Replied(g)
	}
}

// start runs a controller until stop is called.
func (c *cluster) start(p *plane, pool *AddressPool, change ...func(*Options)) (stop func()) {
	o := Options{
		Cluster: &Cluster{c.api}, Publisher: p, Namespace: c.namespace, Pool: pool, Elect: true, Lease: 2 * time.Second,
		Provision: &Provision{Image: "penstock:test", Controller: "controller.example:9443", Audience: xds.Audience, Bundle: func() []byte { return []byte("AUTHORITIES") }, ServiceType: "LoadBalancer", Replicas: 1},
	}
	if os.Getenv("PENSTOCK_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for _, f := range change {
		f(&o)
	}
	p.c = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.Error(err)
		}
	})
	c.Cleanup(stop)
	return stop
}

// objects makes a Gateway with a route to a pool.
func (c *cluster) objects() {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: c.namespace}
	}
	c.make(gateways("gatewayclasses"), &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: "penstock-test"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: kube.ControllerName},
	})
	g := &gatewayv1.Gateway{ObjectMeta: meta("public")}
	g.Spec.GatewayClassName = "penstock-test"
	g.Spec.Listeners = []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}}
	c.make(gateways("gateways"), g)
	pool := &infv1.InferencePool{ObjectMeta: meta("llama")}
	pool.Spec.Selector.MatchLabels = map[infv1.LabelKey]infv1.LabelValue{"app": "llama"}
	pool.Spec.TargetPorts = []infv1.Port{{Number: 8000}}
	pool.Spec.EndpointPickerRef = &infv1.EndpointPickerRef{Name: "picker", Port: &infv1.Port{Number: 9002}}
	picker := &corev1.Service{ObjectMeta: meta("picker")}
	picker.Spec.Ports = []corev1.ServicePort{{Port: 9002}}
	c.make(corev1.SchemeGroupVersion.WithResource("services"), picker)
	c.make(schema.GroupVersion(infv1.GroupVersion).WithResource("inferencepools"), pool)
	r := &gatewayv1.HTTPRoute{ObjectMeta: meta("llama")}
	r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "public"}}
	ref := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Group: new(gatewayv1.Group("inference.networking.k8s.io")), Kind: new(gatewayv1.Kind("InferencePool")), Name: "llama",
	}}
	r.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: ref}}}}
	c.make(gateways("httproutes"), r)
}

// pod makes one that is ready without a node that runs it.
func (c *cluster) pod(name, ip string) {
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: map[string]string{"app": "llama"}}}
	p.Spec.NodeName = "elsewhere" // where nobody touches its status
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	c.until("pod "+name, func() (string, bool) { // the namespace's service account comes by and by
		err := c.create(context.Background(), gvr, p, p)
		return fmt.Sprint(err), err == nil
	})
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := c.update(context.Background(), gvr, p, "status"); err != nil {
		c.Fatal(err)
	}
}

// TestCluster follows a Gateway through its life at a real API server.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	c.objects()
	p := newPlane()
	stop := c.start(p, nil)
	gateway := xds.Gateway{Namespace: c.namespace, Name: "public"}
	set := gateway.String() + " " + c.namespace + "/llama"
	name := types.NamespacedName{Namespace: c.namespace, Name: "public-penstock-test"}

	c.until("the Gateway is accepted", func() (string, bool) {
		now := c.condition("public", "Accepted")
		return now, strings.HasPrefix(now, "True")
	})
	for _, gvr := range provisioned()[:5] {
		c.until(gvr.Resource+" is provisioned", func() (string, bool) {
			o := sampleOf(gvr)
			err := c.get(context.Background(), gvr, name, o)
			return fmt.Sprint(err), err == nil && o.GetLabels()[gatewayv1.GatewayNameLabelKey] == "public" && len(o.GetOwnerReferences()) == 1
		})
	}
	// The rig's load balancer gives an address; elsewhere there may be none.
	c.until("the Gateway is programmed", func() (string, bool) {
		now := c.condition("public", "Programmed")
		return now, strings.HasPrefix(now, "True")
	})
	c.members(p, set)
	c.refusal(p)
	c.foreign()
	c.idle(p)
	c.repaired(name)
	c.listener(name)
	c.again(name)

	// What runs is left alone when the controller goes, and is taken up again.
	stop()
	p2 := newPlane()
	p2.deaf = true // processes find the new leader by and by
	c.start(p2, nil)
	c.until("the next leader publishes", func() (string, bool) {
		return "", p2.Status(gateway).Version != ""
	})
	time.Sleep(time.Second)
	if now := c.condition("public", "Programmed"); !strings.HasPrefix(now, "True") {
		t.Errorf("after a change of leaders the Gateway is %s", now)
	}
	p2.set(func(p *plane) { p.deaf = false })

	if err := c.remove(context.Background(), gateways("gateways"), types.NamespacedName(gateway), ""); err != nil {
		t.Fatal(err)
	}
	for _, gvr := range provisioned()[:5] {
		c.until(gvr.Resource+" is gone with the Gateway", func() (string, bool) {
			o := sampleOf(gvr)
			err := c.get(context.Background(), gvr, name, o)
			return fmt.Sprint(err), apierrors.IsNotFound(err) || err == nil && o.GetDeletionTimestamp() != nil
		})
	}
	c.until("the Gateway is published no more", func() (string, bool) { return "", p2.Status(gateway).Version == "" })
}

// members measures the way of a pod, with and without a translation.
func (c *cluster) members(p *plane, set string) {
	c.Helper()
	p.mu.Lock()
	before := p.count
	p.mu.Unlock()
	var took []time.Duration
	for i := range 5 {
		ip := fmt.Sprintf("10.99.0.%d", i+1)
		began := time.Now()
		c.pod(fmt.Sprint("llama-", i), ip)
		c.until("pod "+ip+" is a member", func() (string, bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Sprint(p.members[set]), slices.Contains(p.members[set], ip+":8000")
		})
		p.mu.Lock()
		took = append(took, p.at[set].Sub(began))
		p.mu.Unlock()
	}
	began := time.Now()
	if err := c.remove(context.Background(), corev1.SchemeGroupVersion.WithResource("pods"), types.NamespacedName{Namespace: c.namespace, Name: "llama-0"}, ""); err != nil {
		c.Fatal(err)
	}
	c.until("a pod that goes is no member", func() (string, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Sprint(p.members[set]), !slices.Contains(p.members[set], "10.99.0.1:8000")
	})
	slices.Sort(took)
	c.Logf("a pod is a member after %v, creation and status included; one that goes is none after %s", took, time.Since(began))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count != before {
		c.Errorf("pods changed the configuration %d times", p.count-before)
	}
}

// refusal: why a process refuses a configuration stands in the condition.
func (c *cluster) refusal(p *plane) {
	c.Helper()
	p.set(func(p *plane) { p.refuse = "listener http-80: address in use" })
	c.until("a refusal is told", func() (string, bool) {
		now := c.condition("public", "Programmed")
		return now, strings.HasPrefix(now, "False Invalid: 1 of 1 processes refuse") && strings.Contains(now, "address in use")
	})
	p.set(func(p *plane) { p.refuse = "" })
	c.until("the refusal is over", func() (string, bool) {
		now := c.condition("public", "Programmed")
		return now, strings.HasPrefix(now, "True")
	})
	c.until("an event tells of the refusal", func() (string, bool) {
		list := &corev1.EventList{}
		client, err := c.group(corev1.SchemeGroupVersion)
		if err == nil {
			err = client.Get().Namespace(c.namespace).Resource("events").Do(context.Background()).Into(list)
		}
		return fmt.Sprint(err, len(list.Items)), slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Type == "Warning" && e.InvolvedObject.Name == "public" && strings.Contains(e.Message, "address in use")
		})
	})
}

// foreign: conditions and entries of others stay, and ours come back.
func (c *cluster) foreign() {
	c.Helper()
	at := types.NamespacedName{Namespace: c.namespace, Name: "llama"}
	r := &gatewayv1.HTTPRoute{}
	c.until("somebody else writes status", func() (string, bool) {
		if err := c.get(context.Background(), gateways("httproutes"), at, r); err != nil {
			return err.Error(), false
		}
		r.Status.Parents = []gatewayv1.RouteParentStatus{{
			ControllerName: "example.com/other", ParentRef: gatewayv1.ParentReference{Name: "public"},
			Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Other", LastTransitionTime: metav1.Now()}},
		}}
		err := c.update(context.Background(), gateways("httproutes"), r, "status")
		return fmt.Sprint(err), err == nil
	})
	c.until("our entry is back beside that of another", func() (string, bool) {
		if err := c.get(context.Background(), gateways("httproutes"), at, r); err != nil {
			return err.Error(), false
		}
		text, _ := json.Marshal(r.Status)
		return string(text), len(r.Status.Parents) == 2 && r.Status.Parents[0].ControllerName == "example.com/other" && r.Status.Parents[1].ControllerName == kube.ControllerName
	})
}

// idle: where nothing changes, nothing is written.
func (c *cluster) idle(p *plane) {
	c.Helper()
	versions := func() (out []string) {
		g, r := &gatewayv1.Gateway{}, &gatewayv1.HTTPRoute{}
		for gvr, o := range map[schema.GroupVersionResource]object{gateways("gateways"): g, gateways("httproutes"): r} {
			name := types.NamespacedName{Namespace: c.namespace, Name: map[bool]string{true: "public", false: "llama"}[o == object(g)]}
			if err := c.get(context.Background(), gvr, name, o); err != nil {
				c.Fatal(err)
			}
		}
		return []string{g.ResourceVersion, r.ResourceVersion}
	}
	time.Sleep(500 * time.Millisecond)
	before := versions()
	for range 5 {
		p.c.current().rebuild()
		time.Sleep(100 * time.Millisecond)
	}
	if after := versions(); !slices.Equal(before, after) {
		c.Errorf("translations that change nothing have written status: %v, then %v", before, after)
	}
}

// repaired: what somebody changes of ours is set right.
func (c *cluster) repaired(name types.NamespacedName) {
	c.Helper()
	gvr := appsv1.SchemeGroupVersion.WithResource("deployments")
	d := &appsv1.Deployment{}
	c.until("somebody changes the Deployment", func() (string, bool) {
		if err := c.get(context.Background(), gvr, name, d); err != nil {
			return err.Error(), false
		}
		d.Spec.Template.Spec.Containers[0].Image = "example.com/other"
		err := c.update(context.Background(), gvr, d)
		return fmt.Sprint(err), err == nil
	})
	c.until("the Deployment is set right", func() (string, bool) {
		if err := c.get(context.Background(), gvr, name, d); err != nil {
			return err.Error(), false
		}
		return d.Spec.Template.Spec.Containers[0].Image, d.Spec.Template.Spec.Containers[0].Image == "penstock:test"
	})
}

// listener: another listener is another port of the Service.
func (c *cluster) listener(name types.NamespacedName) {
	c.Helper()
	c.until("a listener is added", func() (string, bool) {
		g := &gatewayv1.Gateway{}
		if err := c.get(context.Background(), gateways("gateways"), types.NamespacedName{Namespace: c.namespace, Name: "public"}, g); err != nil {
			return err.Error(), false
		}
		g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{Name: "more", Port: 8080, Protocol: gatewayv1.HTTPProtocolType})
		err := c.update(context.Background(), gateways("gateways"), g)
		return fmt.Sprint(err), err == nil
	})
	c.until("the Service has its port", func() (string, bool) {
		s := &corev1.Service{}
		err := c.get(context.Background(), corev1.SchemeGroupVersion.WithResource("services"), name, s)
		return fmt.Sprint(err, s.Spec.Ports), len(s.Spec.Ports) == 2
	})
	c.until("the Gateway is programmed in its new generation", func() (string, bool) {
		now := c.condition("public", "Programmed")
		return now, strings.HasPrefix(now, "True")
	})
}

// again: an object that comes at once after one of the same name is another one.
func (c *cluster) again(name types.NamespacedName) {
	c.Helper()
	route, pool, gateway := &gatewayv1.HTTPRoute{}, &infv1.InferencePool{}, &gatewayv1.Gateway{}
	remade := func(gvr schema.GroupVersionResource, of string, o object, clear func()) {
		at := types.NamespacedName{Namespace: c.namespace, Name: of}
		if err := c.get(context.Background(), gvr, at, o); err != nil {
			c.Fatal(err)
		}
		o.SetUID("")
		o.SetResourceVersion("")
		clear()
		if err := c.remove(context.Background(), gvr, at, ""); err != nil {
			c.Fatal(err)
		}
		if err := c.create(context.Background(), gvr, o, o); err != nil {
			c.Fatal(err)
		}
	}
	pools := schema.GroupVersion(infv1.GroupVersion).WithResource("inferencepools")
	for range 10 {
		remade(gateways("httproutes"), "llama", route, func() { route.Status = gatewayv1.HTTPRouteStatus{} })
		remade(pools, "llama", pool, func() { pool.Status = infv1.InferencePoolStatus{} })
		c.until("route and pool that came again have their status", func() (string, bool) {
			r, p := &gatewayv1.HTTPRoute{}, &infv1.InferencePool{}
			if err := c.get(context.Background(), gateways("httproutes"), nameOf(route), r); err != nil {
				return err.Error(), false
			}
			if err := c.get(context.Background(), pools, nameOf(pool), p); err != nil {
				return err.Error(), false
			}
			return fmt.Sprintf("%d and %d parents", len(r.Status.Parents), len(p.Status.Parents)), len(r.Status.Parents) == 1 && len(p.Status.Parents) == 1
		})
	}
	remade(gateways("gateways"), "public", gateway, func() { gateway.Status = gatewayv1.GatewayStatus{} })
	c.until("the Gateway that came again is programmed", func() (string, bool) {
		now := c.condition("public", "Programmed")
		return now, strings.HasPrefix(now, "True")
	})
	// What belonged to the old one is collected by the cluster, at its own pace.
	owned := 0
	c.until("all that is provisioned belongs to the new Gateway", func() (string, bool) {
		for _, gvr := range provisioned()[:5] {
			o := sampleOf(gvr)
			if err := c.get(context.Background(), gvr, name, o); err != nil {
				owned = 0
				return err.Error(), false
			}
			if r := o.GetOwnerReferences(); len(r) != 1 || r[0].UID != gateway.GetUID() || o.GetDeletionTimestamp() != nil {
				owned = 0
				return fmt.Sprintf("%s: %v, deleted %v", gvr.Resource, r, o.GetDeletionTimestamp()), false
			}
		}
		owned++
		return "", owned > 500
	})
}

// In one process a Gateway's address is that of the Service before it.
func TestClusterOneProcess(t *testing.T) {
	c := newCluster(t)
	c.objects()
	front := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front", Namespace: c.namespace}}
	front.Spec.Type = corev1.ServiceTypeLoadBalancer
	front.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	c.make(corev1.SchemeGroupVersion.WithResource("services"), front)
	c.start(newPlane(), nil, func(o *Options) {
		o.Provision, o.Local = nil, &Local{Addresses: []string{"192.0.2.9"}, Namespace: c.namespace, Service: "front"}
	})
	c.until("the Gateway has the address of the Service", func() (string, bool) {
		g, s := &gatewayv1.Gateway{}, &corev1.Service{}
		if err := c.get(context.Background(), gateways("gateways"), types.NamespacedName{Namespace: c.namespace, Name: "public"}, g); err != nil {
			return err.Error(), false
		}
		if err := c.get(context.Background(), corev1.SchemeGroupVersion.WithResource("services"), nameOf(front), s); err != nil {
			return err.Error(), false
		}
		given, has := s.Status.LoadBalancer.Ingress, g.Status.Addresses
		return fmt.Sprintf("%v, %v", given, has), len(given) == 1 && len(has) == 1 && has[0].Value == given[0].IP
	})
}
