// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// tlsPolicy is a BackendTLSPolicy with what it refers to.
type tlsPolicy struct {
	*gatewayv1.BackendTLSPolicy
	lost       []string // targets that another policy has
	held       bool     // it has a target
	invalid    *problem // nobody can be trusted by it
	unresolved *problem
	tls        *config.ClientTLS
}

// readTLSPolicies finds which policy holds for each Service and port: the
// oldest, then by name, wins.
func (t *translation) readTLSPolicies() {
	type target struct {
		service types.NamespacedName
		section string
	}
	winners := map[target]bool{}
	for _, p := range byAge(t.objects.BackendTLSPolicies) {
		policy := &tlsPolicy{BackendTLSPolicy: p}
		for _, ref := range p.Spec.TargetRefs {
			if ref.Group != "" || ref.Kind != kindService {
				continue // another implementation's
			}
			at := target{types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)}, string(deref(ref.SectionName, ""))}
			if winners[at] {
				policy.lost = append(policy.lost, strings.TrimSuffix(at.service.Name+"/"+at.section, "/"))
			} else {
				winners[at] = true
				policy.held = true
			}
			if list := t.tlsPolicies[at.service]; !slices.Contains(list, policy) {
				t.tlsPolicies[at.service] = append(list, policy)
			}
		}
		if policy.held || policy.lost != nil {
			t.resolveTLSPolicy(policy)
		}
	}
}

func (t *translation) resolveTLSPolicy(p *tlsPolicy) {
	v := &p.Spec.Validation
	invalid := func(format string, args ...any) {
		p.invalid = &problem{string(gatewayv1.PolicyReasonInvalid), fmt.Sprintf(format, args...)}
	}
	out := &config.ClientTLS{ServerName: strings.ToLower(string(v.Hostname))}
	if !isPreciseHost(out.ServerName) {
		invalid("validation.hostname %q is not a host name", v.Hostname)
		return
	}
	for _, san := range v.SubjectAltNames {
		name := ""
		switch {
		case san.Type == gatewayv1.HostnameSubjectAltNameType && isHost(strings.ToLower(string(san.Hostname))):
			name = "dns:" + strings.ToLower(string(san.Hostname))
		case san.Type == gatewayv1.URISubjectAltNameType && san.URI != "" && isText(string(san.URI)):
			name = "uri:" + string(san.URI)
		default:
			invalid("validation.subjectAltNames: one of type %q is not complete", san.Type)
			return
		}
		if !slices.Contains(out.SubjectAltNames, name) {
			out.SubjectAltNames = append(out.SubjectAltNames, name)
		}
	}
	known := deref(v.WellKnownCACertificates, "")
	switch {
	case len(v.CACertificateRefs) == 0 && known == gatewayv1.WellKnownCACertificatesSystem:
		p.tls = out // no authority of its own: those of the system
		return
	case len(v.CACertificateRefs) == 0 || known != "":
		invalid("validation: set one of caCertificateRefs and wellKnownCACertificates: System")
		return
	}
	bundles, bad := t.bundles(kindRef{gatewayGroup, kindBackendTLSPolicy, nameOf(p)}, v.CACertificateRefs)
	if bad != nil {
		p.unresolved = bad
	}
	if bundles == nil {
		p.invalid = &problem{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), "no certificate authority is valid: " + p.unresolved.message}
		return
	}
	out.CAPEM = strings.Join(bundles, "")
	p.tls = out
}

// tlsPolicyFor is the policy for a port of a Service: one that names the port
// comes before one for the whole Service. The lists are in order of precedence.
func (t *translation) tlsPolicyFor(service types.NamespacedName, port string) *tlsPolicy {
	var whole *tlsPolicy
	for _, p := range t.tlsPolicies[service] {
		for _, ref := range p.Spec.TargetRefs {
			if ref.Group != "" || ref.Kind != kindService || string(ref.Name) != service.Name {
				continue
			}
			switch section := string(deref(ref.SectionName, "")); {
			case section == port && port != "":
				return p
			case section == "" && whole == nil:
				whole = p
			}
		}
	}
	return whole
}

// clientTLS is how a connection is made by the policy; nil: none may be.
func (p *tlsPolicy) clientTLS() *config.ClientTLS {
	if p.invalid != nil {
		return nil
	}
	return p.tls
}

// tlsPolicyStatuses writes an entry per Gateway with a route that leads to a
// target of the policy.
func (t *translation) tlsPolicyStatuses() {
	ancestors := map[*tlsPolicy][]*scope{}
	for _, s := range t.ordered() {
		for _, service := range sortedNames(s.services) {
			for _, p := range t.tlsPolicies[service] {
				if !slices.Contains(ancestors[p], s) {
					ancestors[p] = append(ancestors[p], s)
				}
			}
		}
	}
	for _, list := range t.tlsPolicies {
		for _, p := range list {
			if _, ok := ancestors[p]; !ok {
				ancestors[p] = nil
			}
		}
	}
	known := map[types.NamespacedName]bool{}
	for p, scopes := range ancestors {
		known[nameOf(p)] = true
		t.policyStatus(kindBackendTLSPolicy, p.BackendTLSPolicy, p.Status.Ancestors, scopes, p.conditions())
	}
	for _, p := range byAge(t.objects.BackendTLSPolicies) {
		if !known[nameOf(p)] {
			t.policyStatus(kindBackendTLSPolicy, p, p.Status.Ancestors, nil, nil)
		}
	}
}

func (p *tlsPolicy) conditions() []metav1.Condition {
	accepted, message := p.invalid, "connections to the backend are made by this policy"
	if lost := strings.Join(p.lost, ", "); lost != "" {
		if !p.held {
			accepted = &problem{string(gatewayv1.PolicyReasonConflicted), "an older BackendTLSPolicy holds for " + lost}
		}
		message += ", but for " + lost + ", where an older one holds"
	}
	return []metav1.Condition{
		condition(string(gatewayv1.PolicyConditionAccepted), p.Generation, accepted, string(gatewayv1.PolicyReasonAccepted), message),
		condition(string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), p.Generation, p.unresolved, string(gatewayv1.BackendTLSPolicyReasonResolvedRefs), "all references are resolved"),
	}
}

// policyStatus writes the entries of a policy, at most the 16 that the schema
// has room for.
func (t *translation) policyStatus(kind string, o metav1.Object, previous []gatewayv1.PolicyAncestorStatus, scopes []*scope, conditions []metav1.Condition) {
	ours := func(a gatewayv1.PolicyAncestorStatus) bool { return a.ControllerName == ControllerName }
	if len(scopes) == 0 && !slices.ContainsFunc(previous, ours) {
		return
	}
	st := t.status(kind, o)
	for _, s := range scopes[:min(len(scopes), 16)] {
		st.Ancestors = append(st.Ancestors, gatewayv1.PolicyAncestorStatus{
			AncestorRef: gatewayv1.ParentReference{
				Group: new(gatewayv1.Group(gatewayGroup)), Kind: new(gatewayv1.Kind(kindGateway)),
				Namespace: new(gatewayv1.Namespace(s.Namespace)), Name: gatewayv1.ObjectName(s.name.Name),
			},
			ControllerName: ControllerName,
			Conditions:     slices.Clone(conditions),
		})
	}
}
