// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

// Nodes calls f for the nodes of every tenant, of the configuration and of the
// store, and for those of the configuration's keys. A store's keys may be a
// million: theirs are not among them.
func (d *Directory) Nodes(f func(*Node)) {
	for _, n := range d.nodes {
		f(n)
	}
	if d.stored != nil {
		for path, n := range *d.stored.tenants.Load() {
			if d.nodes[path] == nil {
				f(n)
			}
		}
	}
	for _, id := range d.list {
		f(id.Nodes[len(id.Nodes)-1])
	}
}
