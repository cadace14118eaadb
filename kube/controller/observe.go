// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/xds"
)

// Local is where Gateways are served that no processes are provisioned for:
// this one serves them.
type Local struct {
	// Addresses by which clients reach this machine, where there is no pool of
	// addresses.
	Addresses []string
	// Namespace and name of the Service by which clients reach this process, in
	// place of Addresses; empty: there is none.
	Namespace, Service string
}

// reachedBy says whether clients reach this process by a Service, whoever made
// it.
func (l *Local) reachedBy(k *kind, o object) bool {
	return l != nil && k.name == "Service" && o.GetNamespace() == l.Namespace && o.GetName() == l.Service
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ourGateways are those whose class names us, oldest first: who was there first
// keeps an address.
func ourGateways(o *kube.Objects) []*gatewayv1.Gateway {
	ours := map[string]bool{}
	for _, c := range o.GatewayClasses {
		if c.Spec.ControllerName == kube.ControllerName {
			ours[c.Name] = true
		}
	}
	var out []*gatewayv1.Gateway
	for _, g := range o.Gateways {
		if ours[string(g.Spec.GatewayClassName)] {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *gatewayv1.Gateway) int {
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(nameOf(a).String(), nameOf(b).String())
	})
	return out
}

// observe brings up to date what is known of each Gateway's processes and
// addresses.
func (t *term) observe(ours []*gatewayv1.Gateway) {
	if t.c.o.Pool != nil {
		t.c.o.Pool.assign(ours, func(g *gatewayv1.Gateway) string {
			if s := t.service(g); s != nil {
				return s.Annotations[addressAnnotation]
			}
			return ""
		})
	}
	for _, g := range ours {
		name := nameOf(g)
		s := t.served[name]
		if s == nil {
			s = &served{since: time.Now()}
			if programmed(g) { // by the leader before, whose processes run on
				s.observed.Ready, s.patience = true, leaderPatience
			}
			t.served[name] = s
		}
		ready, refused, _ := t.readiness(name, s)
		s.observed = kube.Observed{Ready: ready, Refused: refused, Unprovisioned: t.provision.collision(name)}
		t.addresses(g, &s.observed)
	}
}

func programmed(g *gatewayv1.Gateway) bool {
	return slices.ContainsFunc(g.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == string(gatewayv1.GatewayConditionProgrammed) && c.Status == metav1.ConditionTrue
	})
}

// readiness says whether a process serves the newest configuration and none
// refuses it. waiting says that this is as it was before, and that an answer is
// still to be expected.
func (t *term) readiness(name types.NamespacedName, s *served) (ready bool, refused string, waiting bool) {
	status := t.c.o.Publisher.Status(xds.Gateway(name))
	p := progressOf(status)
	switch {
	case s.fault != "":
		return false, s.fault, false
	case len(status.Waiting) > 0 && time.Since(s.since) >= s.patience:
		return false, "the configuration is withheld: nothing is known yet of the members of " + strings.Join(status.Waiting, ", "), false
	case p.refused > 0:
		return false, fmt.Sprintf("%d of %d processes refuse the configuration: %s", p.refused, p.refused+p.current+p.behind, p.fault), false
	case p.current > 0:
		return true, "", false
	case time.Since(s.since) < s.patience:
		return s.observed.Ready, s.observed.Refused, true
	}
	return false, "", false
}

// progress is how far the processes of a Gateway are.
type progress struct {
	current int    // have the newest configuration in force
	refused int    // refuse it
	behind  int    // have not answered yet
	fault   string // why the first of them refuses
}

func progressOf(s xds.GatewayStatus) (p progress) {
	for _, c := range s.Clients {
		switch s.Version {
		case "":
			p.behind++
		case c.Version:
			p.current++
		case c.Refused:
			p.refused++
			if p.fault == "" {
				p.fault = c.Name + ": " + c.Err
			}
		default:
			p.behind++
		}
	}
	return p
}

// service is the Service of a Gateway's processes.
func (t *term) service(g *gatewayv1.Gateway) *corev1.Service {
	if local := t.c.o.Local; local != nil {
		return find[corev1.Service](t.c.caches, "Service", types.NamespacedName{Namespace: local.Namespace, Name: local.Service})
	}
	if t.c.o.Provision == nil {
		return nil
	}
	s := find[corev1.Service](t.c.caches, "Service", infraName(g))
	if s == nil || s.Labels[managedBy] != managedByUs {
		return nil
	}
	return s
}

// addresses notes where a Gateway can be reached.
func (t *term) addresses(g *gatewayv1.Gateway, to *kube.Observed) {
	add := func(kind gatewayv1.AddressType, value string) {
		to.Addresses = append(to.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: value})
	}
	if pool := t.c.o.Pool; pool != nil {
		given, unusable := pool.of(nameOf(g))
		to.Unusable = unusable
		for _, a := range given {
			add(gatewayv1.IPAddressType, a)
		}
		if t.c.o.Local != nil && len(given) > 0 {
			to.Bind = given[0]
		}
		return
	}
	if local := t.c.o.Local; local != nil && local.Service == "" {
		for _, a := range local.Addresses {
			add(gatewayv1.IPAddressType, a)
		}
		to.Unusable = unusable(g, local.Addresses)
		return
	}
	s := t.service(g)
	if s == nil {
		return
	}
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				add(gatewayv1.IPAddressType, in.IP)
			} else if in.Hostname != "" {
				add(gatewayv1.HostnameAddressType, in.Hostname)
			}
		}
	default:
		for _, ip := range s.Spec.ClusterIPs {
			if ip != corev1.ClusterIPNone && ip != "" {
				add(gatewayv1.IPAddressType, ip)
			}
		}
	}
	if len(to.Addresses) > 0 {
		values := make([]string, len(to.Addresses))
		for i, a := range to.Addresses {
			values[i] = a.Value
		}
		to.Unusable = unusable(g, values)
		return
	}
	// A load balancer that cannot give the address asked for gives none, and
	// says so in an event at best: after a while that is the answer.
	if asked := requested(g); len(asked) > 0 && time.Since(s.CreationTimestamp.Time) > addressPatience {
		to.Unusable = asked
	}
}

const addressPatience = 20 * time.Second

// requested are the addresses that a Gateway asks for by value.
func requested(g *gatewayv1.Gateway) (out []string) {
	for _, a := range g.Spec.Addresses {
		if a.Value != "" && (a.Type == nil || *a.Type == gatewayv1.IPAddressType) {
			out = append(out, a.Value)
		}
	}
	return out
}

// unusable are the addresses asked for that are not among those there are.
func unusable(g *gatewayv1.Gateway, have []string) []string {
	return slices.DeleteFunc(requested(g), func(want string) bool {
		ip, err := netip.ParseAddr(want)
		return err == nil && slices.ContainsFunc(have, func(a string) bool {
			got, err := netip.ParseAddr(a)
			return err == nil && got == ip
		})
	})
}
