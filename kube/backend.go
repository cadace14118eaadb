// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// backend is a pool that routes lead to: a port of a Service, or an
// InferencePool.
type backend struct {
	pool    config.Pool
	picker  *config.Picker // a profile of the pool's own
	sources []*Source
	status  int // answered in place of the pool; 0: the pool serves

	object kindRef
	picked types.NamespacedName // the Service of an endpoint picker; or none
	tls    *tlsPolicy           // that the connection to a Service is made by
	poolUse
}

// poolUse is what is known of an InferencePool on one Gateway.
type poolUse struct {
	unresolved *problem // endpointPickerRef
	attached   bool     // through a route that is attached
}

// use notes that a route of the Gateway leads to a backend. One that is not
// attached counts for the status of an InferencePool alone.
func (s *scope) use(b *backend, attached bool) {
	if b.object.kind == kindInferencePool {
		u := s.pools[b.object.NamespacedName]
		if u == nil {
			u = &poolUse{unresolved: b.unresolved}
			s.pools[b.object.NamespacedName] = u
		}
		u.attached = u.attached || attached
	}
	if !attached {
		return
	}
	for _, service := range []types.NamespacedName{b.service(), b.picked} {
		if service.Name != "" {
			s.services[service] = true
		}
	}
	if b.status == 0 {
		s.uses[b.pool.Name] = b
	}
}

func (b *backend) service() types.NamespacedName {
	if b.object.kind == kindService {
		return b.object.NamespacedName
	}
	return types.NamespacedName{}
}

// resolveBackend follows a backendRef of a route.
func (t *translation) resolveBackend(from kindRef, ref gatewayv1.BackendObjectReference, grpc bool) (*backend, *problem) {
	to := kindRef{string(deref(ref.Group, "")), string(deref(ref.Kind, kindService)), types.NamespacedName{
		Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(from.Namespace))), Name: string(ref.Name),
	}}
	switch {
	case to.group == "" && to.kind == kindService, to.group == inferenceGroup && to.kind == kindInferencePool:
	default:
		return nil, &problem{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf("%s of group %q is not supported as a backend; refer to a Service or an InferencePool", to.kind, to.group)}
	}
	// Before anything else of it is looked at: who may not refer to an object
	// must not learn of it.
	if !t.permitted(from, to) {
		return nil, &problem{string(gatewayv1.RouteReasonRefNotPermitted), notPermitted(from, to)}
	}
	if to.kind == kindInferencePool {
		// "port is ignored" there, set or not.
		b, bad := t.inferencePool(to)
		if bad == nil && grpc && b.pool.Protocol != config.H2C {
			return nil, &problem{string(gatewayv1.RouteReasonUnsupportedProtocol), fmt.Sprintf("InferencePool %s has no appProtocol for gRPC; it needs kubernetes.io/h2c", to.NamespacedName)}
		}
		return b, bad
	}
	return t.serviceBackend(to, ref.Port, grpc)
}

// servicePort is the port of a Service, TCP only.
func servicePort(s *corev1.Service, port int32) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Port == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) {
			return p
		}
	}
	return nil
}

func (t *translation) serviceBackend(to kindRef, number *int32, grpc bool) (*backend, *problem) {
	notFound := func(format string, args ...any) (*backend, *problem) {
		return nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf(format, args...)}
	}
	svc, ok := t.services[to.NamespacedName]
	switch {
	case !ok:
		return notFound("there is no Service %s", to.NamespacedName)
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		// It could name anything, the gateway's own neighbours included
		// (CVE-2021-25740): "SHOULD NOT support".
		return nil, &problem{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf("Service %s is of type ExternalName, which is not supported", to.NamespacedName)}
	case number == nil:
		return notFound("the backendRef to Service %s says no port", to.NamespacedName)
	}
	port := servicePort(svc, *number)
	if port == nil {
		return notFound("Service %s has no TCP port %d", to.NamespacedName, *number)
	}
	policy := t.tlsPolicyFor(to.NamespacedName, port.Name)
	protocol, bad := serviceProtocol(port, policy, grpc)
	if bad != nil {
		return nil, bad
	}
	name := servicePool(to.NamespacedName, *number, grpc && protocol == config.H2C && port.AppProtocol == nil)
	if b, ok := t.backends[name]; ok {
		return b, nil
	}
	b := &backend{
		pool: config.Pool{
			Name: name, Plain: true, Protocol: protocol, Members: config.Members{External: true},
			Metrics: config.Metrics{Off: true}, Picker: config.PickerRef{Profile: "default"},
		},
		object:  to,
		tls:     policy,
		sources: []*Source{{Set: name, Namespace: to.Namespace, Service: to.Name, Port: port.Name}},
	}
	if policy != nil {
		if b.pool.TLS = policy.clientTLS(); b.pool.TLS == nil {
			// "Connections using an invalid CACertificateRef MUST fail, and the
			// client MUST receive an HTTP 5xx": never plaintext instead.
			b.status = 500
		}
	}
	t.backends[name] = b
	return b, nil
}

// serviceProtocol is how the port of a Service is spoken to. Without
// appProtocol the kind of route decides; a BackendTLSPolicy decides on TLS.
func serviceProtocol(port *corev1.ServicePort, policy *tlsPolicy, grpc bool) (config.Protocol, *problem) {
	refuse := func(why string) (config.Protocol, *problem) {
		return "", &problem{string(gatewayv1.RouteReasonUnsupportedProtocol), fmt.Sprintf("appProtocol %q %s", *port.AppProtocol, why)}
	}
	protocol := config.HTTP
	if grpc {
		protocol = config.H2C
	}
	// Names without a domain are those of IANA, in any case.
	switch p := strings.ToLower(deref(port.AppProtocol, "")); p {
	case "":
	case "http":
		if grpc {
			return refuse("is not one for gRPC")
		}
	case "kubernetes.io/ws":
		if grpc {
			return refuse("is not one for gRPC")
		}
	case "kubernetes.io/h2c", "h2c", "http2", "grpc":
		protocol = config.H2C
	case "kubernetes.io/wss", "https", "tls":
		switch {
		case policy == nil:
			return refuse("needs a BackendTLSPolicy, which says whom to trust")
		case grpc && p == "kubernetes.io/wss":
			return refuse("is not one for gRPC")
		}
	default:
		return refuse("is not supported")
	}
	if policy != nil {
		protocol = config.HTTPS
	}
	return protocol, nil
}

// missingPool is a pool without members: requests for a model whose target is
// not to be had get 503, as those of a pool that has no ready member.
func (t *translation) missingPool(name types.NamespacedName) *backend {
	key := long(name.Namespace, name.Name, "missing")
	b, ok := t.backends[key]
	if !ok {
		b = &backend{
			pool: config.Pool{Name: key, Members: config.Members{External: true}, Metrics: config.Metrics{Off: true}, Picker: config.PickerRef{Profile: "default"}},
			// It selects nothing, so that the set is known to be empty: a configuration
			// waits for sets that are not known.
			sources: []*Source{{Set: key, Namespace: name.Namespace}},
		}
		t.backends[key] = b
	}
	return b
}

// sortedNames are the keys of a set of objects.
func sortedNames[V any](m map[types.NamespacedName]V) []types.NamespacedName {
	out := make([]types.NamespacedName, 0, len(m))
	for n := range m {
		out = append(out, n)
	}
	slices.SortFunc(out, compareNames)
	return out
}
