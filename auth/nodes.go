// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

// Nodes calls f for the nodes of every key of the configuration; those that
// several keys have come several times.
func (d *Directory) Nodes(f func(*Node)) {
	for _, id := range d.list {
		for _, n := range id.Nodes {
			f(n)
		}
	}
}
