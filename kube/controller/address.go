// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// AddressPool hands out an address of its own to each Gateway, where no load
// balancer does. Only the control loop uses it.
type AddressPool struct {
	prefix   netip.Prefix
	owners   map[netip.Addr]types.NamespacedName
	given    map[types.NamespacedName][]netip.Addr
	unusable map[types.NamespacedName][]string
}

// NewAddressPool is the pool of the addresses of prefix. Of IPv4 the first,
// which names the network, and the last, which is its broadcast, are no part of
// it.
func NewAddressPool(prefix netip.Prefix) *AddressPool {
	return &AddressPool{prefix: prefix.Masked()}
}

// assign decides anew who has what. First come addresses that are asked for,
// then those that Gateways have (here, or as had says, or by their status),
// then new ones: nobody loses an address to one who does not name it.
func (p *AddressPool) assign(gateways []*gatewayv1.Gateway, had func(*gatewayv1.Gateway) string) {
	before := p.given
	p.owners = map[netip.Addr]types.NamespacedName{}
	p.given = map[types.NamespacedName][]netip.Addr{}
	p.unusable = map[types.NamespacedName][]string{}
	for _, g := range gateways {
		name := nameOf(g)
		for _, text := range requested(g) {
			a, err := netip.ParseAddr(text)
			if err != nil || !p.take(name, a.Unmap()) {
				p.unusable[name] = append(p.unusable[name], text)
			}
		}
	}
	wanting := slices.DeleteFunc(slices.Clone(gateways), func(g *gatewayv1.Gateway) bool {
		return len(p.given[nameOf(g)]) > 0 || len(requested(g)) > 0
	})
	wanting = slices.DeleteFunc(wanting, func(g *gatewayv1.Gateway) bool {
		var old []netip.Addr
		old = append(old, before[nameOf(g)]...)
		texts := []string{had(g)}
		for _, a := range g.Status.Addresses {
			texts = append(texts, a.Value)
		}
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil {
				old = append(old, a.Unmap())
			}
		}
		return slices.ContainsFunc(old, func(a netip.Addr) bool { return p.take(nameOf(g), a) })
	})
	a := p.prefix.Addr()
	for _, g := range wanting {
		for ; p.prefix.Contains(a); a = a.Next() {
			if p.take(nameOf(g), a) {
				break
			}
		}
	}
}

// take gives an address of the pool that is free.
func (p *AddressPool) take(name types.NamespacedName, a netip.Addr) bool {
	if !p.prefix.Contains(a) || p.reserved(a) {
		return false
	}
	if owner, taken := p.owners[a]; taken {
		return owner == name
	}
	p.owners[a] = name
	p.given[name] = append(p.given[name], a)
	return true
}

func (p *AddressPool) reserved(a netip.Addr) bool {
	if !a.Is4() || p.prefix.Bits() >= 31 {
		return false
	}
	return a == p.prefix.Addr() || !p.prefix.Contains(a.Next())
}

// of are the addresses of a Gateway, and those that it asks for in vain.
func (p *AddressPool) of(name types.NamespacedName) (given, unusable []string) {
	for _, a := range p.given[name] {
		given = append(given, a.String())
	}
	return given, p.unusable[name]
}
