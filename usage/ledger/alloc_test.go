// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package ledger_test

import (
	"testing"

	"github.com/penstock/penstock/usage/ledger"
)

// TestAppendAllocates holds Append to what a request may cost. Under the race
// detector sync.Pool drops what it is given at random, so this is run without.
func TestAppendAllocates(t *testing.T) {
	cfg := settings(t)
	cfg.Buffer = 1000 // full, the queue grows no more
	l, err := ledger.Open(cfg, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	r := benchRecords(1)[0]
	if n := testing.AllocsPerRun(10_000, func() { l.Append(r) }); n > 1 {
		t.Errorf("Append allocates %.1f times", n)
	}
}
