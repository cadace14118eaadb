// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

// Tasks is what the tasks of an answer came to.
type Tasks struct {
	Tasks     int64 `json:"tasks"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	Unknown   int64 `json:"unknown"`  // nobody has said how they went
	Cost      Money `json:"cost"`     // of all of them, whatever became of them
	Unpriced  int64 `json:"unpriced"` // rows of them without a known cost
	// PerSuccess is the cost of all tasks for each that succeeded; nil: none did.
	PerSuccess *Money `json:"costPerSuccess"`
}
