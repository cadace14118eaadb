// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// AddressAnnotation asks for an address, as spec.loadBalancerIP does.
const AddressAnnotation = "rig.penstock.dev/address"

// addresses is who has which address of the pool. The lower half is handed out,
// the upper half is for those who ask for an address of their own, so that the
// one cannot take what the other will want.
type addresses struct {
	pool  netip.Prefix
	next  netip.Addr
	limit netip.Addr // the first address of the upper half
	owner map[netip.Addr]cache.ObjectName
	of    map[cache.ObjectName]netip.Addr
}

func newAddresses(pool netip.Prefix) *addresses {
	limit := pool.Masked().Addr().As4()
	bit := pool.Bits() // the first bit behind the prefix
	limit[bit/8] |= 1 << (7 - bit%8)
	return &addresses{
		pool: pool, next: pool.Masked().Addr(), limit: netip.AddrFrom4(limit),
		owner: map[netip.Addr]cache.ObjectName{}, of: map[cache.ObjectName]netip.Addr{},
	}
}

// take returns the address of a Service: the one that it has, the one that it
// asks for, or the next.
func (a *addresses) take(name cache.ObjectName, asked string) (netip.Addr, error) {
	has, ok := a.of[name]
	if asked == "" {
		if ok {
			return has, nil
		}
		for addr := a.next.Next(); addr.Less(a.limit); addr = addr.Next() {
			if _, taken := a.owner[addr]; !taken {
				a.next = addr
				return addr, a.own(name, addr)
			}
		}
		return netip.Addr{}, fmt.Errorf("no address of %s is free", a.pool)
	}
	addr, err := netip.ParseAddr(asked)
	if err != nil {
		return addr, fmt.Errorf("the address asked for: %w", err)
	}
	if ok && addr == has {
		return addr, nil
	}
	if !a.pool.Contains(addr) || addr == a.pool.Masked().Addr() {
		return netip.Addr{}, fmt.Errorf("%s is not in the pool %s", addr, a.pool)
	}
	if owner, taken := a.owner[addr]; taken {
		return netip.Addr{}, fmt.Errorf("%s belongs to the service %s", addr, owner)
	}
	return addr, a.own(name, addr)
}

func (a *addresses) own(name cache.ObjectName, addr netip.Addr) error {
	a.release(name)
	a.owner[addr], a.of[name] = name, addr
	return nil
}

func (a *addresses) release(name cache.ObjectName) {
	if addr, ok := a.of[name]; ok {
		delete(a.owner, addr)
		delete(a.of, name)
	}
}

// assign gives a Service of type LoadBalancer its address and says so in its
// status. What cannot be given leaves the Service pending, with an event.
func (f *Forwarder) assign(ctx context.Context, name cache.ObjectName, s *v1.Service) (netip.Addr, error) {
	var ingress []v1.LoadBalancerIngress
	var address netip.Addr
	if s.Spec.Type == v1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil {
		if s.Spec.LoadBalancerClass != nil {
			return address, nil // another controller's
		}
		asked := s.Spec.LoadBalancerIP
		if asked == "" {
			asked = s.Annotations[AddressAnnotation]
		}
		var err error
		address, err = f.addresses.take(name, asked)
		if err != nil {
			f.addresses.release(name)
			f.warn(ctx, s, err.Error())
		} else {
			vip := v1.LoadBalancerIPModeVIP
			ingress = []v1.LoadBalancerIngress{{IP: address.String(), IPMode: &vip}}
		}
	} else {
		f.addresses.release(name)
	}
	if sameIngress(s.Status.LoadBalancer.Ingress, ingress) {
		return address, nil
	}
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = ingress
	_, err := f.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return address, err
}

func sameIngress(a, b []v1.LoadBalancerIngress) bool {
	return len(a) == len(b) && (len(a) == 0 || a[0].IP == b[0].IP)
}

func (f *Forwarder) warn(ctx context.Context, s *v1.Service, message string) {
	f.Log.Warn("assign an address", "service", s.Namespace+"/"+s.Name, "err", message)
	now := metav1.NewTime(time.Now())
	_, err := f.Client.CoreV1().Events(s.Namespace).Create(ctx, &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: s.Name + ".", Namespace: s.Namespace},
		InvolvedObject: v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID},
		Reason:         "AllocationFailed", Message: message, Type: v1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: v1.EventSource{Component: "rig"},
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		f.Log.Debug("record an event", "err", err)
	}
}
