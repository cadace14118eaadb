// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"sync"
	"sync/atomic"
)

// Labels bounds the values of a label that somebody else chooses: the first ones
// stand as they are, all others as [OtherLabel].
type Labels struct {
	Most  int // how many stand as they are
	known sync.Map
	count atomic.Int64
}

// OtherLabel stands for the values beyond the bound.
const OtherLabel = "other"

// Of is the label for value.
func (l *Labels) Of(value string) string {
	if _, ok := l.known.Load(value); ok || value == "" {
		return value
	}
	for n := l.count.Load(); n < int64(l.Most); n = l.count.Load() {
		if l.count.CompareAndSwap(n, n+1) {
			if _, had := l.known.LoadOrStore(value, true); had {
				l.count.Add(-1)
			}
			return value
		}
	}
	return OtherLabel
}
