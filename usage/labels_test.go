// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"sync"
	"testing"
)

// TestLabels gives many goroutines the same 100 values, of which 30 may stand.
func TestLabels(t *testing.T) {
	l := Labels{Most: 30}
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				v := fmt.Sprint("tenant-", i)
				got := l.Of(v)
				if got != v && got != OtherLabel {
					t.Errorf("%s stands as %s", v, got)
				}
				mu.Lock()
				seen[got] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 31 || !seen[OtherLabel] {
		t.Errorf("%d labels stand, want 30 and other", len(seen))
	}
	for v := range seen {
		if l.Of(v) != v {
			t.Errorf("%s does not stay", v)
		}
	}
	if l.Of("") != "" {
		t.Error("no value is no label")
	}
}
