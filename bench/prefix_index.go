// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

// indexBlock is the grain of [prefixIndex] in tokens.
const indexBlock = 64

// prefixIndex remembers which blocks were sent to one server: bounded, least
// recently used block out first.
type prefixIndex struct {
	slots map[uint64]int32
	ring  []indexEntry // doubly linked through prev and next; 0 is the sentinel
}

type indexEntry struct {
	hash       uint64
	prev, next int32
}

func newPrefixIndex(blocks int) prefixIndex {
	return prefixIndex{slots: map[uint64]int32{}, ring: make([]indexEntry, 1, blocks+1)}
}

func (x *prefixIndex) clear() {
	clear(x.slots)
	x.ring = x.ring[:1]
	x.ring[0] = indexEntry{}
}

// match is the number of leading blocks that are known.
func (x *prefixIndex) match(blocks []uint64) int {
	for i, h := range blocks {
		if _, ok := x.slots[h]; !ok {
			return i
		}
	}
	return len(blocks)
}

// insert makes the blocks the newest, the first of them last to go.
func (x *prefixIndex) insert(blocks []uint64) {
	for i := len(blocks) - 1; i >= 0; i-- {
		h := blocks[i]
		slot, ok := x.slots[h]
		switch {
		case ok:
			x.unlink(slot)
		case len(x.ring) < cap(x.ring):
			slot = int32(len(x.ring))
			x.ring = append(x.ring, indexEntry{})
		default:
			slot = x.ring[0].prev // the oldest
			delete(x.slots, x.ring[slot].hash)
			x.unlink(slot)
		}
		x.slots[h] = slot
		newest := x.ring[0].next
		x.ring[slot] = indexEntry{hash: h, prev: 0, next: newest}
		x.ring[newest].prev = slot
		x.ring[0].next = slot
	}
}

func (x *prefixIndex) unlink(slot int32) {
	e := x.ring[slot]
	x.ring[e.prev].next = e.next
	x.ring[e.next].prev = e.prev
}
