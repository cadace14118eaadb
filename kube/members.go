// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/config"
)

// activePorts are the annotations by which a pod says which of the pool's ports
// it serves; the first that is there counts. Without one it serves all, with an
// empty one none.
func activePorts() []string {
	return []string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}
}

// podLabel is a label of members beside those of their pods: the pod's name.
const podLabel = "penstock.dev/pod"

// Members are the members of each source's set, in the order of their
// addresses: every set has an entry, if an empty one. Of the objects only Pods and
// EndpointSlices are read, and those of other namespaces may be left out.
func Members(o *Objects, sources []*Source) map[string][]config.Member {
	// Pods are found by one label of each selector, so that the cost is that of
	// the pods and not that of pods times pools.
	pods := map[podKey][]*corev1.Pod{}
	slicesOf := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for _, s := range sources {
		if s.Service != "" {
			slicesOf[types.NamespacedName{Namespace: s.Namespace, Name: s.Service}] = nil
		} else {
			pods[s.podKey()] = nil
		}
	}
	for _, p := range o.Pods {
		if p == nil || !isReady(p) {
			continue
		}
		for k, v := range p.Labels {
			at := podKey{p.Namespace, k, v}
			if list, ok := pods[at]; ok {
				pods[at] = append(list, p)
			}
		}
	}
	for _, e := range o.EndpointSlices {
		if e == nil {
			continue
		}
		at := types.NamespacedName{Namespace: e.Namespace, Name: e.Labels[discoveryv1.LabelServiceName]}
		if list, ok := slicesOf[at]; ok {
			slicesOf[at] = append(list, e)
		}
	}
	out := make(map[string][]config.Member, len(sources))
	for _, s := range sources {
		var list []config.Member
		if s.Service != "" {
			list = s.endpoints(slicesOf[types.NamespacedName{Namespace: s.Namespace, Name: s.Service}])
		} else {
			list = s.pods(pods[s.podKey()])
		}
		slices.SortFunc(list, compareMembers)
		if list == nil {
			list = []config.Member{} // there are none, which is something to tell
		}
		out[s.Set] = slices.CompactFunc(list, func(a, b config.Member) bool { return a.Address == b.Address })
	}
	return out
}

// compareMembers orders by address, and two that claim one address so that the
// same always wins.
func compareMembers(a, b config.Member) int {
	return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Labels[podLabel], b.Labels[podLabel]))
}

// podKey is a label of pods in a namespace.
type podKey struct{ namespace, label, value string }

// podKey is one label of the selector; without a selector it is no label at
// all, which no pod has.
func (s *Source) podKey() podKey {
	at := podKey{namespace: s.Namespace}
	for k, v := range s.Selector {
		if at.label == "" || k < at.label {
			at.label, at.value = k, v
		}
	}
	return at
}

// isReady says that a pod takes requests: ready, with an address, and not on
// its way out.
func isReady(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.PodIP == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// pods are the members of an InferencePool: each active port of each pod. Of a
// pod with two addresses (dual stack) the first counts, or it would be there
// twice.
func (s *Source) pods(list []*corev1.Pod) []config.Member {
	var out []config.Member
	for _, p := range list {
		if len(s.Selector) == 0 || !matches(p.Labels, s.Selector) {
			continue
		}
		labels := memberLabels(p)
		for _, port := range s.Ports {
			if serves(p, port) {
				out = append(out, config.Member{Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))), Labels: labels})
			}
		}
	}
	return out
}

func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func serves(p *corev1.Pod, port int32) bool {
	for _, key := range activePorts() {
		text, ok := p.Annotations[key]
		if !ok {
			continue
		}
		for word := range strings.SplitSeq(text, ",") {
			if n, err := strconv.ParseInt(strings.TrimSpace(word), 10, 32); err == nil && int32(n) == port {
				return true
			}
		}
		return false
	}
	return true
}

// memberLabels are those of a pod, by which pickers filter, and its name. The
// zone is the label topology.kubernetes.io/zone, which pods inherit from their
// nodes (Kubernetes 1.35).
func memberLabels(p *corev1.Pod) map[string]string {
	out := make(map[string]string, len(p.Labels)+1)
	for k, v := range p.Labels {
		switch k {
		case "pod-template-hash", "controller-revision-hash", "pod-template-generation":
			// Of no use to a picker, and different after every roll-out.
		default:
			out[k] = v
		}
	}
	out[podLabel] = p.Name
	return out
}

// endpoints are the addresses behind a port of a Service: those that are ready,
// or, where all are going away, those that still serve (as kube-proxy does).
func (s *Source) endpoints(list []*discoveryv1.EndpointSlice) []config.Member {
	var ready, ending []config.Member
	for _, e := range list {
		if e.AddressType != discoveryv1.AddressTypeIPv4 && e.AddressType != discoveryv1.AddressTypeIPv6 {
			continue // names could lead anywhere
		}
		port := s.slicePort(e)
		if port == 0 {
			continue
		}
		for i := range e.Endpoints {
			ep := &e.Endpoints[i]
			c := ep.Conditions
			to := &ready
			switch {
			case !deref(c.Ready, true) && deref(c.Serving, false) && deref(c.Terminating, false):
				to = &ending
			case !deref(c.Ready, true) || deref(c.Terminating, false):
				continue
			}
			for _, address := range ep.Addresses[:min(len(ep.Addresses), 1)] { // "consumers should use the first"
				*to = append(*to, config.Member{Address: net.JoinHostPort(address, strconv.Itoa(int(port))), Labels: endpointLabels(ep)})
			}
		}
	}
	if ready == nil {
		return ending
	}
	return ready
}

// slicePort is the port of a slice that the Service's port has there: by its
// name, for the numbers may differ per slice.
func (s *Source) slicePort(e *discoveryv1.EndpointSlice) int32 {
	for _, p := range e.Ports {
		if deref(p.Name, "") == s.Port && p.Port != nil && deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && *p.Port > 0 && *p.Port <= 65535 {
			return *p.Port
		}
	}
	return 0
}

func endpointLabels(ep *discoveryv1.Endpoint) map[string]string {
	out := map[string]string{}
	if zone := deref(ep.Zone, ""); zone != "" {
		out[corev1.LabelTopologyZone] = zone
	}
	if ref := ep.TargetRef; ref != nil && ref.Kind == "Pod" && ref.Name != "" {
		out[podLabel] = ref.Name
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
