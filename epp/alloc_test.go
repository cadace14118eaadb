// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package epp_test

import (
	"net/http"
	"testing"

	"github.com/penstock/penstock/epp"
)

// TestAllocations: a pick allocates a fixed amount and the prompt's hashes.
// (The race detector empties pools at random.)
func TestAllocations(t *testing.T) {
	p := newPool(t, 50)
	s := epp.New(p, builtin(t, "default"), epp.Options{Explain: 8}) // soon full: its storage is reused
	for _, size := range []int{0, 8000, 300_000} {
		r := request(t, text(1, size))
		got := testing.AllocsPerRun(200, func() {
			res, err := s.Pick(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			res.Observer.Head(http.StatusOK, nil)
			res.Done(epp.Outcome{})
		})
		// The result, the closure that settles it, the charge; three slices of
		// the chain. One more for what the scratch loses to a collection.
		if got > 7 {
			t.Errorf("a pick with %d bytes of prompt allocates %v times", size, got)
		}
	}
}
