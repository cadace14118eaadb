// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

// eventHeap is a binary heap of events by time, then by order of making.
type eventHeap struct {
	heap []event
	seq  uint64
}

func (h *eventHeap) len() int { return len(h.heap) }

func (h *eventHeap) less(i, j int) bool {
	a, b := &h.heap[i], &h.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *eventHeap) push(e event) {
	h.seq++
	e.seq = h.seq
	h.heap = append(h.heap, e)
	for i := len(h.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.heap[i], h.heap[parent] = h.heap[parent], h.heap[i]
		i = parent
	}
}

func (h *eventHeap) pop() event {
	top := h.heap[0]
	end := len(h.heap) - 1
	h.heap[0] = h.heap[end]
	h.heap = h.heap[:end]
	for i := 0; ; {
		child := 2*i + 1
		if child >= end {
			return top
		}
		if child+1 < end && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return top
		}
		h.heap[i], h.heap[child] = h.heap[child], h.heap[i]
		i = child
	}
}
