// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "testing"

// A server that counts nothing of an answer which says something has counted
// nothing of the prompt either.
func TestCountsOfNothingAreNotBelieved(t *testing.T) {
	for _, c := range []struct {
		told   Usage
		tokens int
		want   Usage
	}{
		{Usage{Source: Reported}, 50, Usage{Input: 7, Output: 50, Source: Estimated}},
		{Usage{Source: Reported, Input: 9}, 50, Usage{Input: 9, Output: 50, Source: Estimated}},
		{Usage{Source: Reported, Output: 3}, 50, Usage{Output: 3, Source: Reported}},
		{Usage{Source: Reported}, 0, Usage{Source: Reported}},
	} {
		got := c.told.ended(c.tokens, true, true).WithPrompt(7)
		if got.Input != c.want.Input || got.Output != c.want.Output || got.Source != c.want.Source {
			t.Errorf("%+v, %d tokens: %+v, want %+v", c.told, c.tokens, got, c.want)
		}
	}
}
