// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import "slices"

// Access is what a role must grant on one resource. Tests hold the calls that
// are made, and the roles in deploy/, to these tables: neither may have more.
type Access struct {
	Group, Resource string
	Verbs           []string
	// Why is for the reader of a role.
	Why string
}

// PickerAccess is what "penstock epp --pool-namespace" asks of its namespace.
// elect: it takes part in an election.
func PickerAccess(elect bool) []Access {
	table := []Access{
		{inferenceGroup, "inferencepools", []string{"list", "watch"}, "the pool that is picked from: its selector, ports and protocol"},
		{"", "pods", []string{"list", "watch"}, "the members: addresses and readiness"},
	}
	if elect {
		table = append(table, Access{"coordination.k8s.io", "leases", []string{"get", "create", "update"}, "who leads"})
	}
	return table
}

// Grants says whether a table has a verb on a resource.
func Grants(table []Access, group, resource, verb string) bool {
	return slices.ContainsFunc(table, func(a Access) bool {
		return a.Group == group && a.Resource == resource && slices.Contains(a.Verbs, verb)
	})
}
