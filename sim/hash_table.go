// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

// hashTable maps block hashes to blocks: open addressing with linear probing.
// The engine spends most of its time here, where this takes less than half of
// the time of a map (BenchmarkEngine). Keys are not 0 and are well mixed in
// their low bits, which [ChainHash] sees to.
type hashTable struct {
	keys   []uint64 // 0: empty
	blocks []int32
	mask   uint64
	shift  int
}

// newHashTable has room for n entries at a load of at most one half.
func newHashTable(n int) hashTable {
	bits := 1
	for 1<<bits < 2*n {
		bits++
	}
	size := 1 << bits
	return hashTable{make([]uint64, size), make([]int32, size), uint64(size - 1), 64 - bits}
}

// home is where the search for a key begins: Fibonacci hashing, since callers
// may bring hashes that differ in few bits.
func (t *hashTable) home(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> t.shift }

func (t *hashTable) get(key uint64) (block int32, ok bool) {
	if key == 0 {
		return 0, false
	}
	for i := t.home(key); ; i = (i + 1) & t.mask {
		switch t.keys[i] {
		case key:
			return t.blocks[i], true
		case 0:
			return 0, false
		}
	}
}

// add puts a new entry; false if the key is there already.
func (t *hashTable) add(key uint64, block int32) bool {
	i := t.home(key)
	for ; t.keys[i] != 0; i = (i + 1) & t.mask {
		if t.keys[i] == key {
			return false
		}
	}
	t.keys[i], t.blocks[i] = key, block
	return true
}

// remove takes an entry out and moves those behind it up, so that no search
// meets a gap before its key (Knuth, TAOCP 6.4, algorithm R).
func (t *hashTable) remove(key uint64) {
	i := t.home(key)
	for t.keys[i] != key {
		if t.keys[i] == 0 {
			return
		}
		i = (i + 1) & t.mask
	}
	for j := (i + 1) & t.mask; t.keys[j] != 0; j = (j + 1) & t.mask {
		// The entry at j may move to i unless its home lies in (i, j].
		if (j-t.home(t.keys[j]))&t.mask >= (j-i)&t.mask {
			t.keys[i], t.blocks[i] = t.keys[j], t.blocks[j]
			i = j
		}
	}
	t.keys[i] = 0
}
