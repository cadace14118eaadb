// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// readGateways judges the Gateways of our classes and their own listeners.
func (t *translation) readGateways() {
	for _, g := range byAge(t.objects.Gateways) {
		class, ok := t.classes[string(g.Spec.GatewayClassName)]
		if !ok {
			continue
		}
		s := &scope{
			Gateway: g, name: nameOf(g), observed: t.opts.Observed[nameOf(g)],
			uses:     map[string]*backend{},
			pools:    map[types.NamespacedName]*poolUse{},
			services: map[types.NamespacedName]bool{},
		}
		t.scopes[s.name] = s
		s.rejected = class.rejected
		s.infra = Infrastructure{
			Addresses:   slices.Clone(g.Spec.Addresses),
			Labels:      map[string]string{gatewayv1.GatewayNameLabelKey: g.Name},
			Annotations: map[string]string{},
			Parameters:  class.params,
		}
		t.infrastructure(s)
		s.addresses()
		t.clientCertificate(s)
		for i := range g.Spec.Listeners {
			s.own = t.addListener(s, nil, s.own, &g.Spec.Listeners[i])
		}
		settle(nil, s.own)
		for _, l := range s.own {
			t.resolveListener(l)
		}
		if s.rejected == nil && !slices.ContainsFunc(s.own, (*listener).accepted) {
			s.rejected = &problem{string(gatewayv1.GatewayReasonListenersNotValid), "no listener can be served: " + listenerFaults(s.own)}
		}
	}
}

// infrastructure takes over spec.infrastructure.
func (t *translation) infrastructure(s *scope) {
	in := s.Spec.Infrastructure
	if in == nil {
		return
	}
	for k, v := range in.Labels {
		// The label by which objects are found is not the user's to change.
		if string(k) != gatewayv1.GatewayNameLabelKey {
			s.infra.Labels[string(k)] = string(v)
		}
	}
	for k, v := range in.Annotations {
		s.infra.Annotations[string(k)] = string(v)
	}
	ref := in.ParametersRef
	if ref == nil {
		return
	}
	params, bad := t.parameters(kindRef{string(ref.Group), string(ref.Kind), types.NamespacedName{Namespace: s.Namespace, Name: ref.Name}})
	if bad != nil {
		s.rejected = bad
		return
	}
	s.infra.Parameters = params.over(s.infra.Parameters)
}

// addresses judges the addresses asked for. A type that is not known makes the
// Gateway not accepted, one that cannot be had makes it not programmed.
func (s *scope) addresses() {
	for _, a := range s.Spec.Addresses {
		switch kind := deref(a.Type, gatewayv1.IPAddressType); kind {
		case gatewayv1.IPAddressType:
			if _, err := netip.ParseAddr(a.Value); err != nil && a.Value != "" && s.unusable == nil {
				s.unusable = &problem{string(gatewayv1.GatewayReasonAddressNotUsable), fmt.Sprintf("%q is not an IP address", a.Value)}
			}
		default:
			if s.rejected == nil {
				s.rejected = &problem{string(gatewayv1.GatewayReasonUnsupportedAddress), fmt.Sprintf("addresses of type %s are not supported; use IPAddress", kind)}
			}
		}
	}
	for _, a := range s.observed.Unusable {
		if s.unusable == nil && slices.ContainsFunc(s.Spec.Addresses, func(want gatewayv1.GatewaySpecAddress) bool { return want.Value == a }) {
			s.unusable = &problem{string(gatewayv1.GatewayReasonAddressNotUsable), "address " + a + " cannot be had"}
		}
	}
}

// clientCertificate resolves what the Gateway shows to backends that ask.
func (t *translation) clientCertificate(s *scope) {
	if s.Spec.TLS == nil || s.Spec.TLS.Backend == nil || s.Spec.TLS.Backend.ClientCertificateRef == nil {
		return
	}
	from := kindRef{gatewayGroup, kindGateway, s.name}
	s.client, s.clientBad = t.keyPairRef(from, *s.Spec.TLS.Backend.ClientCertificateRef, string(gatewayv1.GatewayReasonInvalidClientCertificateRef))
}

// listenerFaults says what is wrong with the listeners that are not served.
func listenerFaults(list []*listener) string {
	var out []string
	for _, l := range list {
		switch {
		case l.refused != nil:
			out = append(out, l.name+": "+l.refused.message)
		case l.unresolved != nil:
			out = append(out, l.name+": "+l.unresolved.message)
		}
	}
	return strings.Join(out, "; ")
}

// gatewayStatus is the status of a Gateway once everything is attached.
func (t *translation) gatewayStatus(s *scope) {
	gen := s.Generation
	st := t.status(kindGateway, s.Gateway)
	accepted := condition(string(gatewayv1.GatewayConditionAccepted), gen, s.rejected, string(gatewayv1.GatewayReasonAccepted), "the Gateway is served")
	// "MUST set a ListenersNotValid condition when the Gateway contains
	// Conflicted Listeners whether or not they accept the Gateway": as the
	// reason, that is, of Accepted.
	if faulty := faulty(s.own); s.rejected == nil && len(faulty) > 0 {
		accepted.Reason, accepted.Message = string(gatewayv1.GatewayReasonListenersNotValid), "not all listeners are served: "+truncate(listenerFaults(faulty), 16384)
	}
	st.Conditions = append(st.Conditions, accepted,
		condition(string(gatewayv1.GatewayConditionProgrammed), gen, s.notProgrammed(), string(gatewayv1.GatewayReasonProgrammed), "configuration has been sent to the data plane"))

	resolved := s.clientBad
	if resolved == nil {
		resolved = unresolvedListeners(s.own)
	}
	st.Conditions = append(st.Conditions, condition(string(gatewayv1.GatewayConditionResolvedRefs), gen, resolved, string(gatewayv1.GatewayReasonResolvedRefs), "all references are resolved"))
	if len(s.insecure) > 0 {
		// True is what warns: the reason and polarity are the specification's.
		st.Conditions = append(st.Conditions, condition(string(gatewayv1.GatewayConditionInsecureFrontendValidationMode), gen, nil,
			string(gatewayv1.GatewayReasonConfigurationChanged), "clients without a valid certificate are let in (AllowInsecureFallback) at "+strings.Join(s.insecure, ", ")))
	}
	if s.rejected == nil {
		st.Addresses = slices.Clone(s.observed.Addresses)
	}
	for _, l := range s.own {
		st.Listeners = append(st.Listeners, l.status(gen))
	}
	attached := int32(0)
	for _, set := range s.sets {
		if set.rejected == nil {
			attached++
		}
	}
	st.AttachedListenerSets = &attached
}

// unresolvedListeners says what is wrong with the first listener whose references
// are not resolved, and how many there are.
func unresolvedListeners(list []*listener) *problem {
	var first *listener
	n := 0
	for _, l := range list {
		if l.unresolved == nil {
			continue
		}
		if n++; first == nil {
			first = l
		}
	}
	if first == nil {
		return nil
	}
	text := "references of listener " + first.name + " are not resolved: " + truncate(first.unresolved.message, 16384)
	if n > 1 {
		text += fmt.Sprintf("; and those of %d more listeners", n-1)
	}
	return &problem{string(gatewayv1.GatewayReasonListenersNotResolved), text}
}

func faulty(list []*listener) []*listener {
	var out []*listener
	for _, l := range list {
		if !l.served() {
			out = append(out, l)
		}
	}
	return out
}

// notProgrammed is why no traffic can be expected to be served, or nil.
func (s *scope) notProgrammed() *problem {
	switch {
	case s.rejected != nil:
		return &problem{string(gatewayv1.GatewayReasonInvalid), "the Gateway is not accepted: " + s.rejected.message}
	case s.unusable != nil:
		return s.unusable
	case !slices.ContainsFunc(s.listeners(), (*listener).served):
		return &problem{string(gatewayv1.GatewayReasonInvalid), "no listener can be served: " + listenerFaults(s.own)}
	case len(s.observed.Addresses) == 0:
		return &problem{string(gatewayv1.GatewayReasonAddressNotAssigned), s.because("no address is assigned yet")}
	case s.observed.Refused != "":
		return &problem{string(gatewayv1.GatewayReasonInvalid), s.observed.Refused}
	case !s.observed.Ready:
		return &problem{string(gatewayv1.GatewayReasonPending), s.because("no process serves the Gateway yet")}
	}
	return nil
}

// because adds what is in the way of the infrastructure.
func (s *scope) because(text string) string {
	if why := s.observed.Unprovisioned; why != "" {
		text += ": " + truncate(why, 16384)
	}
	return text
}

// configListeners joins the listeners that share a port, and notes the ports.
func (s *scope) configListeners() []config.Listener {
	byPort := map[int32][]*listener{}
	for _, l := range s.listeners() {
		if l.served() {
			byPort[l.port] = append(byPort[l.port], l)
		}
	}
	s.infra.Ports = nil
	for port := range byPort {
		s.infra.Ports = append(s.infra.Ports, port)
	}
	slices.Sort(s.infra.Ports)
	var out []config.Listener
	for _, port := range s.infra.Ports {
		c := config.Listener{
			Name:        byPort[port][0].configName(),
			Address:     net.JoinHostPort(s.observed.Bind, strconv.Itoa(int(port))),
			Anonymous:   !s.keyed, // there are no keys in the Gateway API
			AllowRemote: !s.keyed && s.providersPolicy().Anonymous,
		}
		for _, l := range byPort[port] {
			c.Sections = append(c.Sections, config.Section{Name: l.section, Host: l.host, TLS: l.tls})
		}
		out = append(out, c)
	}
	return out
}
