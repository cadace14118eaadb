// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// inferencePool is the backend for an InferencePool that may be referred to.
func (t *translation) inferencePool(to kindRef) (*backend, *problem) {
	p, ok := t.pools[to.NamespacedName]
	if !ok {
		return nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("there is no InferencePool %s", to.NamespacedName)}
	}
	name := objectName(to.NamespacedName)
	if b, ok := t.backends[name]; ok {
		return b, nil
	}
	protocol := config.HTTP
	switch p.Spec.AppProtocol {
	case "", infv1.AppProtocolHTTP:
	case infv1.AppProtocolH2C:
		protocol = config.H2C
	default:
		return nil, &problem{string(gatewayv1.RouteReasonUnsupportedProtocol), fmt.Sprintf("InferencePool %s: appProtocol %q is not supported", to.NamespacedName, p.Spec.AppProtocol)}
	}
	b := &backend{
		pool:   config.Pool{Name: name, Protocol: protocol, Members: config.Members{External: true}, Picker: config.PickerRef{Profile: "default"}},
		object: to,
		sources: []*Source{{
			Set: name, Namespace: to.Namespace, Selector: selectorOf(p), Ports: targetPorts(p),
		}},
	}
	t.picker(p, b)
	if policy := t.poolPolicies[to.NamespacedName]; policy != nil {
		policy.apply(t, b)
	}
	t.backends[name] = b
	return b, nil
}

func selectorOf(p *infv1.InferencePool) map[string]string {
	out := make(map[string]string, len(p.Spec.Selector.MatchLabels))
	for k, v := range p.Spec.Selector.MatchLabels {
		out[string(k)] = string(v)
	}
	return out
}

// targetPorts are those of a pool; each port of each pod is a member.
func targetPorts(p *infv1.InferencePool) []int32 {
	var out []int32
	for _, port := range p.Spec.TargetPorts {
		if n := int32(port.Number); n >= 1 && n <= 65535 && !slices.Contains(out, n) && len(out) < 8 {
			out = append(out, n)
		}
	}
	return out
}

// picker follows endpointPickerRef. Without one the gateway's own picker
// chooses. With one that leads nowhere the pool stays closed: requests must not
// reach its members unpicked, whatever failureMode says of a picker that fails.
func (t *translation) picker(p *infv1.InferencePool, b *backend) {
	ref := p.Spec.EndpointPickerRef
	if ref == nil {
		return
	}
	remote := &config.RemotePicker{
		External:    true,
		FailureMode: config.FailClose,
		// Pickers sign certificates of their own at every start and publish
		// none: encryption without identity is all that can be had by default.
		TLS: &config.ClientTLS{InsecureSkipVerify: true},
	}
	b.pool.Picker = config.PickerRef{Profile: "default", Remote: remote}
	service, port, bad := t.pickerService(p.Namespace, ref)
	if bad != nil {
		b.unresolved = bad
		b.status = 503
		return
	}
	if ref.FailureMode == infv1.EndpointPickerFailOpen {
		remote.FailureMode = config.FailOpen
	}
	b.picked = service
	b.sources = append(b.sources, &Source{Set: config.PickerSet(b.pool.Name), Namespace: service.Namespace, Service: service.Name, Port: port})
	if policy := t.tlsPolicyFor(service, port); policy != nil {
		tls := policy.clientTLS()
		if tls == nil {
			// A picker that cannot be trusted is one that fails, closed.
			b.status = 503
			b.unresolved = &problem{string(infv1.InferencePoolReasonInvalidExtensionRef), "endpointPickerRef: the BackendTLSPolicy " + policy.Name + " of its Service is not valid"}
			return
		}
		remote.TLS = tls
	}
}

// pickerService is the Service and the name of its port that endpointPickerRef
// means. The Service is always in the pool's namespace.
func (t *translation) pickerService(namespace string, ref *infv1.EndpointPickerRef) (types.NamespacedName, string, *problem) {
	name := types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}
	invalid := func(format string, args ...any) (types.NamespacedName, string, *problem) {
		return name, "", &problem{string(infv1.InferencePoolReasonInvalidExtensionRef), "endpointPickerRef: " + fmt.Sprintf(format, args...)}
	}
	if group := deref(ref.Group, ""); group != "" || ref.Kind != "" && ref.Kind != kindService {
		return invalid("%s of group %q is not supported; refer to a Service", ref.Kind, group)
	}
	if ref.Port == nil {
		return invalid("port is required for a Service")
	}
	svc, ok := t.services[name]
	switch {
	case !ok:
		return invalid("there is no Service %s", name)
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return invalid("Service %s is of type ExternalName, which must not be used", name)
	}
	port := servicePort(svc, int32(ref.Port.Number))
	if port == nil {
		return invalid("Service %s has no TCP port %d; it is the port of the Service that counts, not a pod's", name, ref.Port.Number)
	}
	return name, port.Name, nil
}

// poolStatuses writes an entry per Gateway whose routes lead to a pool: "one
// entry per Gateway, not per route", and none once no route does.
func (t *translation) poolStatuses() {
	scopes := t.ordered()
	for _, p := range byAge(t.objects.InferencePools) {
		var parents []infv1.ParentStatus
		for _, s := range scopes {
			u := s.pools[nameOf(p)]
			if u == nil || len(parents) == 32 {
				continue
			}
			var accepted *problem
			if !u.attached {
				accepted = &problem{string(infv1.InferencePoolReasonHTTPRouteNotAccepted), "no route of the Gateway that leads to the pool is accepted"}
			}
			parents = append(parents, infv1.ParentStatus{
				ParentRef: infv1.ParentReference{
					Group: new(infv1.Group(gatewayGroup)), Kind: kindGateway,
					Name: infv1.ObjectName(s.name.Name), Namespace: infv1.Namespace(s.Namespace),
				},
				ControllerName: ControllerName,
			})
			last := &parents[len(parents)-1]
			last.Conditions = append(last.Conditions,
				condition(string(infv1.InferencePoolConditionAccepted), p.Generation, accepted, string(infv1.InferencePoolReasonAccepted), "routes of the Gateway lead to the pool"),
				condition(string(infv1.InferencePoolConditionResolvedRefs), p.Generation, u.unresolved, string(infv1.InferencePoolReasonResolvedRefs), "all references are resolved"))
		}
		ours := func(p infv1.ParentStatus) bool { return p.ControllerName == ControllerName }
		if parents != nil || slices.ContainsFunc(p.Status.Parents, ours) {
			t.status(kindInferencePool, p).Pools = parents
		}
	}
}
