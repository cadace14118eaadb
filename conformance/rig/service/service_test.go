// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

func TestAddresses(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("10.245.0.0/30")) // .1 to give out, .2 and .3 to ask for
	one, two, three := cache.NewObjectName("ns", "one"), cache.NewObjectName("ns", "two"), cache.NewObjectName("ns", "three")
	take := func(name cache.ObjectName, asked, want string) {
		t.Helper()
		got, err := a.take(name, asked)
		if want == "" {
			if err == nil {
				t.Errorf("%s asks for %q and gets %s", name, asked, got)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%s asks for %q and gets %s, %v; want %s", name, asked, got, err, want)
		}
	}
	take(one, "", "10.245.0.1")
	take(one, "", "10.245.0.1")
	take(two, "", "")
	take(two, "10.245.0.1", "")
	take(two, "10.245.0.3", "10.245.0.3")
	take(three, "10.245.0.3", "")
	take(three, "10.245.0.4", "")
	take(three, "10.245.0.0", "")
	take(three, "somewhere", "")
	a.release(two)
	take(three, "10.245.0.3", "10.245.0.3")
	take(one, "10.245.0.2", "10.245.0.2") // moves
	a.release(one)
}

func TestReadyEndpoints(t *testing.T) {
	yes, no := new(true), new(false)
	endpoint := func(addr string, ready, terminating *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: ready, Terminating: terminating}}
	}
	slice := func(port string, number int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: new(v1.ProtocolTCP)}}, Endpoints: endpoints}
	}
	got := readyEndpoints([]*discoveryv1.EndpointSlice{
		slice("web", 8080, endpoint("10.0.0.2", yes, nil), endpoint("10.0.0.1", nil, no), endpoint("10.0.0.3", no, nil), endpoint("10.0.0.4", yes, yes)),
		slice("web", 8081, endpoint("10.0.0.5", yes, no)),
		slice("web", 8080, endpoint("10.0.0.1", yes, no)), // the same again
		slice("admin", 9000, endpoint("10.0.0.6", yes, no)),
	}, "web")
	want := []netip.AddrPort{
		netip.MustParseAddrPort("10.0.0.1:8080"), netip.MustParseAddrPort("10.0.0.2:8080"), netip.MustParseAddrPort("10.0.0.5:8081"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
