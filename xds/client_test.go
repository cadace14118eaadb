// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A client waits ever longer for a controller that is not there, and not long
// for one of which only the leader is missing.
func TestPauses(t *testing.T) {
	away := errors.New("connection refused")
	for _, c := range []struct {
		errs []error
		want time.Duration // after the last
	}{
		{[]error{away}, firstPause},
		{[]error{away, away}, 2 * firstPause},
		{slices.Repeat([]error{away}, 20), longestPause},
		{slices.Repeat([]error{errFollower}, 20), leaderPause},
		{append(slices.Repeat([]error{away}, 20), errFollower), leaderPause},
		{append(slices.Repeat([]error{away}, 20), fmt.Errorf("%w: reset", errServed)), firstPause},
	} {
		pause := time.Duration(0)
		for _, err := range c.errs {
			pause = pauseAfter(err, pause)
		}
		if pause != c.want {
			t.Errorf("after %d failures, the last %v: %s, want %s", len(c.errs), c.errs[len(c.errs)-1], pause, c.want)
		}
	}
}
