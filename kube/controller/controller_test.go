// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/xds"
)

// TestGather: what comes in a burst is acted on once it has paused, and a burst
// without a pause after a bounded time.
func TestGather(t *testing.T) {
	for _, c := range []struct {
		every, last, want time.Duration
	}{
		{every: 0, want: 20 * time.Millisecond},
		{every: 10 * time.Millisecond, last: 50 * time.Millisecond, want: 70 * time.Millisecond},
		{every: 10 * time.Millisecond, last: time.Second, want: 200 * time.Millisecond},
		{every: 50 * time.Millisecond, last: time.Second, want: 20 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			wake := make(chan struct{}, 1)
			began := time.Now()
			if c.every > 0 {
				go func() {
					for time.Since(began) < c.last {
						time.Sleep(c.every)
						poke(wake)
					}
				}()
			}
			if !gather(t.Context(), wake, 20*time.Millisecond, 200*time.Millisecond) {
				t.Fatal("gathering was broken off")
			}
			if got := time.Since(began); got != c.want {
				t.Errorf("every %s for %s: gathered for %s, want %s", c.every, c.last, got, c.want)
			}
			synctest.Wait()
			time.Sleep(2 * time.Second)
		})
	}
}

// TestMatters: of each kind what a translation reads, and nothing else.
func TestMatters(t *testing.T) {
	byName := map[string]kind{}
	for _, k := range kinds() {
		byName[k.name] = k
	}
	gateway := func(generation int64, change func(*gatewayv1.Gateway)) object {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "g", Namespace: "ns", Generation: generation}}
		if change != nil {
			change(g)
		}
		return g
	}
	pod := func(ready corev1.ConditionStatus, change func(*corev1.Pod)) object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"app": "x"}}}
		p.Status = corev1.PodStatus{PodIP: "10.0.0.1", Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
		if change != nil {
			change(p)
		}
		return p
	}
	service := func(labels map[string]string, change func(*corev1.Service)) object {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", Labels: labels}}
		change(s)
		return s
	}
	ingress := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	}
	none := func(*corev1.Service) {}
	for _, c := range []struct {
		what     string
		kind     string
		old, new object
		want     bool
	}{
		{"a Gateway's status", "Gateway", gateway(1, nil), gateway(1, func(g *gatewayv1.Gateway) { g.Status.Conditions = []metav1.Condition{{Type: "Other"}} }), false},
		{"a Gateway's spec", "Gateway", gateway(1, nil), gateway(2, nil), true},
		{"a Gateway's labels", "Gateway", gateway(1, nil), gateway(1, func(g *gatewayv1.Gateway) { g.Labels = map[string]string{"a": "b"} }), true},
		{"who wrote a Gateway", "Gateway", gateway(1, nil), gateway(1, func(g *gatewayv1.Gateway) { g.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}} }), false},
		{"a pod's readiness", "Pod", pod("True", nil), pod("False", nil), true},
		{"a pod's other condition", "Pod", pod("True", nil), pod("True", func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled})
		}), false},
		{"a pod's container", "Pod", pod("True", nil), pod("True", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}} }), false},
		{"a pod's end", "Pod", pod("True", nil), pod("True", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), true},
		{"a pod's ports", "Pod", pod("True", nil), pod("True", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"inference.networking.k8s.io/active-ports": "8000"}
		}), true},
		{"a pod's other annotation", "Pod", pod("True", nil), pod("True", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }), false},
		{"the address of somebody's Service", "Service", service(nil, none), service(nil, ingress), false},
		{"the address of our Service", "Service", service(map[string]string{managedBy: managedByUs}, none), service(map[string]string{managedBy: managedByUs}, ingress), true},
		{"a lock in a ConfigMap", "ConfigMap",
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{"leader": "x"}}}, false},
		{"a Secret's other key", "Secret",
			&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("a"), "password": []byte("b")}},
			&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("a"), "password": []byte("c")}}, false},
		{"a Secret's certificate", "Secret",
			&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("a")}},
			&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("b")}}, true},
	} {
		k := byName[c.kind]
		for _, o := range []object{c.old, c.new} {
			stripMeta(o)
			if k.strip != nil {
				k.strip(o)
			}
		}
		if got := k.matters(c.old, c.new); got != c.want {
			t.Errorf("%s: matters is %t, want %t", c.what, got, c.want)
		}
	}
}

// TestAddressPool: an address that is asked for comes first, one that a Gateway
// has stays, and none is given twice.
func TestAddressPool(t *testing.T) {
	pool := NewAddressPool(netip.MustParsePrefix("192.0.2.0/29")) // six addresses
	gateway := func(name string, asked ...string) *gatewayv1.Gateway {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		for _, a := range asked {
			g.Spec.Addresses = append(g.Spec.Addresses, gatewayv1.GatewaySpecAddress{Value: a})
		}
		return g
	}
	had := map[string]string{"old": "192.0.2.3"}
	assign := func(list ...*gatewayv1.Gateway) {
		pool.assign(list, func(g *gatewayv1.Gateway) string { return had[g.Name] })
	}
	check := func(name string, want []string, unusable []string) {
		t.Helper()
		given, bad := pool.of(types.NamespacedName{Namespace: "ns", Name: name})
		if !slices.Equal(given, want) || !slices.Equal(bad, unusable) {
			t.Errorf("%s has %v and cannot have %v, want %v and %v", name, given, bad, want, unusable)
		}
	}
	a, b, old := gateway("a"), gateway("b", "192.0.2.1"), gateway("old")
	assign(a, b, old)
	check("b", []string{"192.0.2.1"}, nil)
	check("old", []string{"192.0.2.3"}, nil)
	check("a", []string{"192.0.2.2"}, nil)
	assign(gateway("c"), a, old, gateway("d", "192.0.2.2"), gateway("far", "203.0.113.1"), gateway("net", "192.0.2.0"))
	check("d", []string{"192.0.2.2"}, nil) // a did not ask for it, d does
	check("c", []string{"192.0.2.1"}, nil)
	check("a", []string{"192.0.2.4"}, nil)
	check("old", []string{"192.0.2.3"}, nil)
	check("far", nil, []string{"203.0.113.1"})
	check("net", nil, []string{"192.0.2.0"})
	var many []*gatewayv1.Gateway
	for i := range 8 {
		many = append(many, gateway(fmt.Sprint("m", i)))
	}
	assign(many...)
	check("m5", []string{"192.0.2.6"}, nil)
	check("m6", nil, nil)
}

func TestAccountOf(t *testing.T) {
	status := func(user string, audiences ...string) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Authenticated: user != "", Audiences: audiences, User: authenticationv1.UserInfo{
			Username: user, Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {"p-1"}},
		}}
	}
	for _, c := range []struct {
		status authenticationv1.TokenReviewStatus
		want   xds.Account
	}{
		{status("system:serviceaccount:ns:name", "us"), xds.Account{Namespace: "ns", Name: "name", Pod: "p-1"}},
		{status("system:serviceaccount:ns:name"), xds.Account{}},
		{status("system:serviceaccount:ns:name", "them"), xds.Account{}},
		{status("", "us"), xds.Account{}},
		{status("admin", "us"), xds.Account{}},
		{status("system:node:ns:name", "us"), xds.Account{}},
		{status("system:serviceaccount:ns:", "us"), xds.Account{}},
		{status("system:serviceaccount:ns:a:b", "us"), xds.Account{}},
	} {
		got, err := accountOf(c.status, "us")
		if got != c.want || (err == nil) != (c.want != xds.Account{}) || err != nil && !errors.Is(err, xds.ErrToken) {
			t.Errorf("%+v: %+v, %v", c.status, got, err)
		}
	}
}

// TestProgress: a process counts by what it says of the newest configuration.
func TestProgress(t *testing.T) {
	got := progressOf(xds.GatewayStatus{Version: "2", Clients: []xds.ClientState{
		{Name: "a", Version: "2"}, {Name: "b", Version: "1"}, {Name: "c", Version: "1", Refused: "2", Err: "no"},
		{Name: "d", Version: "0", Refused: "1", Err: "old"}, {Name: "e"},
	}})
	if want := (progress{current: 1, refused: 1, behind: 3, fault: "c: no"}); got != want {
		t.Errorf("progress is %+v, want %+v", got, want)
	}
	if got := progressOf(xds.GatewayStatus{Clients: []xds.ClientState{{Name: "a"}}}); got.current != 0 {
		t.Errorf("a process without a configuration is current: %+v", got)
	}
}

// TestNews: a person is told what is refused, and that it is no more.
// What is in the way of a Gateway's infrastructure is known until it is gone, and
// only a change leads to another translation.
func TestCollisions(t *testing.T) {
	changes := 0
	p := newProvisioner(&Controller{}, func() { changes++ })
	gw := types.NamespacedName{Namespace: "ai", Name: "models"}
	taken := fmt.Errorf("services ai/models-penstock: %w", errForeign)
	for _, c := range []struct {
		err     error
		want    string
		changes int
	}{
		{nil, "", 0},
		{errors.New("the API server is away"), "", 0},
		{taken, taken.Error(), 1},
		{taken, taken.Error(), 1},
		{nil, "", 2},
	} {
		if p.collided(gw, c.err); p.collision(gw) != c.want || changes != c.changes {
			t.Errorf("after %v: %q, %d changes; want %q, %d", c.err, p.collision(gw), changes, c.want, c.changes)
		}
	}
	if (*provisioner)(nil).collision(gw) != "" {
		t.Error("a collision where nothing is provisioned")
	}
}

func TestNews(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason, message string) map[string]metav1.Condition {
		return map[string]metav1.Condition{"Accepted for gw": {Type: "Accepted", Status: status, Reason: reason, Message: message}}
	}
	for _, c := range []struct {
		what          string
		kind          string
		before, after map[string]metav1.Condition
		want          []newsItem
	}{
		{"a route is accepted", "HTTPRoute", nil, condition("True", "Accepted", "m"), nil},
		{"a Gateway is accepted", "Gateway", nil, condition("True", "Accepted", "m"), []newsItem{{false, "Accepted", "Accepted for gw: m"}}},
		{"a route is refused", "HTTPRoute", nil, condition("False", "NoMatchingParent", "m"), []newsItem{{true, "NoMatchingParent", "Accepted for gw is false: m"}}},
		{"it still is", "HTTPRoute", condition("False", "NoMatchingParent", "m"), condition("False", "NoMatchingParent", "m"), nil},
		{"for another reason", "HTTPRoute", condition("False", "NoMatchingParent", "m"), condition("False", "Other", "n"), []newsItem{{true, "Other", "Accepted for gw is false: n"}}},
		{"it is accepted after all", "HTTPRoute", condition("False", "Other", "n"), condition("True", "Accepted", "m"), []newsItem{{false, "Accepted", "Accepted for gw: m"}}},
		{"a Gateway waits", "Gateway", nil, condition("False", "Pending", "m"), nil},
	} {
		if got := news(c.kind, c.before, c.after); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
