// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package sandbox makes the places in which pods and their containers run: a
// bridge with a network namespace for each pod, and for each container a
// process of its own PID, mount and UTS namespace below a root folder. It knows
// nothing of Kubernetes; package kubelet says what to run.
//
// Start reading at [Network] for addresses and at [Container] for processes.
// Everything lives in the namespaces of the calling process, which the rig has
// made for itself: when its PID namespace ends, the kernel removes all of it.
package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Network is the bridge of the pods and the addresses on it.
type Network struct {
	gateway netip.Addr   // the bridge's own address, the pods' default route
	prefix  netip.Prefix // of the bridge and the pods

	mu   sync.Mutex
	next netip.Addr // where the search for a free address goes on
	used map[netip.Addr]bool
}

// NewNetwork sets up the network namespace of the calling process: its loopback
// device, a bridge that holds gateway, and for each range of local a route that
// makes every address of it this machine's own, so that a listener may be
// opened on any of them without adding the address first.
func NewNetwork(gateway netip.Prefix, local ...netip.Prefix) (*Network, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("set lo up: %w", err)
	}
	for _, p := range local {
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: ipNet(p.Masked()),
			Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		if err := netlink.RouteAdd(route); err != nil {
			return nil, fmt.Errorf("make %s local: %w", p, err)
		}
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("add the bridge %s: %w", bridgeName, err)
	}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(gateway)}); err != nil {
		return nil, fmt.Errorf("give %s to the bridge: %w", gateway, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("set the bridge up: %w", err)
	}
	if err := allowLowPorts(); err != nil {
		return nil, err
	}
	first := gateway.Addr().As4()
	first[2], first[3] = first[2]+1, 0 // 10.244.0.x stays free for the rig itself
	return &Network{
		gateway: gateway.Addr(), prefix: gateway.Masked(),
		next: netip.AddrFrom4(first), used: map[netip.Addr]bool{},
	}, nil
}

const bridgeName = "br0"

// Pod is a network namespace with one address on the bridge.
type Pod struct {
	Addr netip.Addr

	network *Network
	link    string   // the bridge's end of the veth pair
	netns   *os.File // nil for the rig's own namespace
}

// Host is the place of a pod with hostNetwork: the rig's own namespace.
func (n *Network) Host() *Pod { return &Pod{Addr: n.gateway} }

// Add makes a namespace with the next free address.
func (n *Network) Add() (*Pod, error) {
	addr, err := n.take()
	if err != nil {
		return nil, err
	}
	ns, err := newNamespace()
	if err != nil {
		n.release(addr)
		return nil, err
	}
	a := addr.As4()
	p := &Pod{Addr: addr, network: n, netns: ns, link: fmt.Sprintf("pod%d.%d", a[2], a[3])}
	if err := p.connect(); err != nil {
		p.Close()
		return nil, fmt.Errorf("connect %s to the bridge: %w", addr, err)
	}
	return p, nil
}

// Close removes the namespace's device and address. Processes that are still in
// the namespace keep it, without a way out.
func (p *Pod) Close() error {
	if p.netns == nil {
		return nil
	}
	// The peer in the pod goes with it.
	if link, err := netlink.LinkByName(p.link); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("remove %s: %w", p.link, err)
		}
	}
	p.network.release(p.Addr)
	return p.netns.Close()
}

func (p *Pod) connect() error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: p.link}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(p.netns.Fd()),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add a veth pair: %w", err)
	}
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(veth, bridge); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(p.netns.Fd()))
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "eth0" {
			addr := ipNet(netip.PrefixFrom(p.Addr, p.network.prefix.Bits()))
			if err := inside.AddrAdd(link, &netlink.Addr{IPNet: addr}); err != nil {
				return err
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return err
		}
	}
	return inside.RouteAdd(&netlink.Route{Gw: p.network.gateway.AsSlice()})
}

// take hands out addresses in turn, so that one just given back is not at once
// another pod's: a connection meant for the old pod must not reach a new one.
func (n *Network) take() (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 1 << 16 {
		n.next = n.next.Next()
		if !n.prefix.Contains(n.next) {
			first := n.gateway.As4()
			first[2], first[3] = first[2]+1, 0
			n.next = netip.AddrFrom4(first)
			continue
		}
		if last := n.next.As4()[3]; last == 0 || last == 255 || n.used[n.next] {
			continue
		}
		n.used[n.next] = true
		return n.next, nil
	}
	return netip.Addr{}, fmt.Errorf("no address of %s is free", n.prefix)
}

func (n *Network) release(a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, a)
}

// newNamespace makes a network namespace that nothing but the returned file
// keeps alive.
func newNamespace() (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result)
	go func() {
		// The thread goes into the namespace and is never unlocked: the runtime
		// ends it with this goroutine, so no other code can run in there.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("make a network namespace: %w", err)}
			return
		}
		ns, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err == nil {
			err = allowLowPorts()
		}
		done <- result{ns, err}
	}()
	r := <-done
	return r.ns, r.err
}

// allowLowPorts lets every user of the calling thread's network namespace
// listen below 1024, as container engines do.
func allowLowPorts() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o644)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
