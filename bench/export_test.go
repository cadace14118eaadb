// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import "time"

// CPUTime, ReadStream and EventOrder show what is behind the interface to the
// external tests.
func CPUTime(stat []byte) (time.Duration, error) { return cpuTime(stat) }

// ReadStream reads a stream as a client of [Load] does.
func ReadStream(r readerFunc) *Exchange {
	x := &Exchange{}
	x.readStream(r, func() {})
	return x
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// EventOrder pushes events at the times and returns the order of their pops,
// as indexes.
func EventOrder(at []time.Duration) []int {
	var h eventHeap
	for i, t := range at {
		h.push(event{at: t, n: i})
	}
	var out []int
	for h.len() > 0 {
		out = append(out, h.pop().n)
	}
	return out
}
