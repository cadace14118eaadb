// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import "slices"

// Access is what a role must grant on one resource. Tests hold the calls that
// are made, and the roles in deploy/, to these tables: neither may have more.
type Access struct {
	Group, Resource string
	Verbs           []string
	// Names of objects that it is for; none: all.
	Names []string
	// Why is for the reader of a role.
	Why string
}

const leaseGroup = "coordination.k8s.io"

// PickerAccess is what "penstock epp --pool-namespace" asks of its namespace.
// elect: it takes part in an election.
func PickerAccess(elect bool) []Access {
	table := []Access{
		{Group: inferenceGroup, Resource: "inferencepools", Verbs: []string{"list", "watch"}, Why: "the pool that is picked from: its selector, ports and protocol"},
		{Resource: "pods", Verbs: []string{"list", "watch"}, Why: "the members: addresses and readiness"},
	}
	if elect {
		table = append(table, Access{Group: leaseGroup, Resource: "leases", Verbs: []string{"get", "create", "update"}, Why: "who leads"})
	}
	return table
}

// translated are the objects that a translation reads, and those with a status
// of ours, in every namespace.
func translated() []Access {
	var table []Access
	add := func(group, why string, status bool, resources ...string) {
		for _, r := range resources {
			table = append(table, Access{Group: group, Resource: r, Verbs: []string{"get", "list", "watch"}, Why: why})
			if status {
				table = append(table, Access{Group: group, Resource: r + "/status", Verbs: []string{"update"}, Why: "what became of it"})
			}
		}
	}
	add(gatewayGroup, "what is served, and how", true, "gatewayclasses", "gateways", "httproutes", "grpcroutes", "listenersets", "backendtlspolicies")
	add(inferenceGroup, "pools of model servers", true, "inferencepools")
	add("penstock.dev", "models and policies; who may ask, and managed APIs", true, "models", "gatewaypolicies", "providers", "tenants", "keys")
	for _, a := range []Access{
		{Group: gatewayGroup, Resource: "referencegrants", Why: "who may refer across namespaces"},
		{Resource: "namespaces", Why: "labels, by which listeners admit routes"},
		{Resource: "services", Why: "ports of backends, addresses of Gateways"},
		{Resource: "secrets", Why: "certificates of listeners, and credentials that are labelled as such; types that hold neither are not asked for"},
		{Resource: "configmaps", Why: "authorities, lists of prices, and parameters of Gateways"},
		{Resource: "pods", Why: "members of pools"},
		{Group: "discovery.k8s.io", Resource: "endpointslices", Why: "members of Services and replicas of pickers"},
		{Group: "apps", Resource: "deployments", Why: "what is provisioned for Gateways"},
	} {
		a.Verbs = []string{"list", "watch"}
		table = append(table, a)
	}
	return append(table,
		Access{Resource: "events", Verbs: []string{"create"}, Why: "what a person should know"},
		Access{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verbs: []string{"get"}, Names: []string{"gatewayclasses.gateway.networking.k8s.io"}, Why: "the version of the Gateway API"})
}

// LocalAccess is what "penstock run --kubernetes" asks of every namespace: it
// reads and writes status, and makes nothing.
func LocalAccess() []Access { return translated() }

// ControllerAccess is what "penstock controller" asks of every namespace.
func ControllerAccess() []Access {
	table := translated()
	for _, r := range []struct{ group, resource string }{
		{"", "serviceaccounts"}, {"", "configmaps"}, {"", "services"}, {"apps", "deployments"},
		{"policy", "poddisruptionbudgets"}, {"autoscaling", "horizontalpodautoscalers"},
	} {
		table = append(table, Access{Group: r.group, Resource: r.resource, Verbs: []string{"get", "create", "patch", "delete"}, Why: "made for each Gateway, by server-side apply, in its namespace"})
	}
	return append(table, Access{Group: "authentication.k8s.io", Resource: "tokenreviews", Verbs: []string{"create"}, Why: "whose gateway it is that asks for its configuration"})
}

// ControllerOwnAccess is what it asks of its own namespace beside.
func ControllerOwnAccess() []Access {
	return []Access{
		{Resource: "secrets", Verbs: []string{"create"}, Why: "the authority that signs certificates of gateways"},
		{Resource: "secrets", Verbs: []string{"get", "update"}, Names: []string{"penstock-authority"}, Why: "the same, once it is there"},
		{Group: leaseGroup, Resource: "leases", Verbs: []string{"get", "create", "update"}, Why: "who leads"},
	}
}

// Grants says whether a table has a verb on a resource.
func Grants(table []Access, group, resource, verb string) bool {
	return slices.ContainsFunc(table, func(a Access) bool {
		return a.Group == group && a.Resource == resource && slices.Contains(a.Verbs, verb)
	})
}
