// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

// Snapshot is the membership of a pool at one moment. Immutable.
type Snapshot struct {
	Version uint64
	Members []*Member // ordered by address; every listed member, whatever its state

	byAddress map[string]*Member
}
