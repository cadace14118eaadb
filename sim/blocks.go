// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

// blockStore is the paged KV memory: a fixed number of blocks, each free or
// referenced by one or more running sequences. A block that was computed
// wholly carries the hash of its content and stays findable after its last
// reference is gone, until it is taken for something else.
//
// The free list is intrusive, in the order of reuse: blocks without content
// first, then the least recently released.
type blockStore struct {
	hash       []uint64 // 0: no reusable content
	refs       []int32
	next, prev []int32 // free list; the entry at len(hash) is its head
	byHash     hashTable
	free       int
}

func newBlockStore(n int) *blockStore {
	s := &blockStore{
		hash:   make([]uint64, n),
		refs:   make([]int32, n),
		next:   make([]int32, n+1),
		prev:   make([]int32, n+1),
		byHash: newHashTable(n),
		free:   n,
	}
	for i := range s.next {
		s.next[i] = int32((i + 1) % (n + 1))
		s.prev[i] = int32((i + n) % (n + 1))
	}
	return s
}

// take gives out the free block that is first in the order of reuse and
// forgets what it held. The caller has checked that there is one.
func (s *blockStore) take() int32 {
	b := s.next[len(s.hash)]
	if h := s.hash[b]; h != 0 {
		s.byHash.remove(h)
		s.hash[b] = 0
	}
	s.unlink(b)
	s.refs[b] = 1
	return b
}

// lookup finds the block with this content, free or not.
func (s *blockStore) lookup(hash uint64) (int32, bool) {
	return s.byHash.get(hash)
}

func (s *blockStore) idle(b int32) bool { return s.refs[b] == 0 }

// share adds a reference.
func (s *blockStore) share(b int32) {
	if s.refs[b] == 0 {
		s.unlink(b)
	}
	s.refs[b]++
}

// publish makes a computed block findable. Where another block has the same
// content already, this one stays private, and so does content hashed 0.
func (s *blockStore) publish(b int32, hash uint64) {
	if hash == 0 {
		return
	}
	if s.byHash.add(hash, b) {
		s.hash[b] = hash
	}
}

// release drops the references of one sequence. The end of the chain is reused
// before its beginning, which more prompts can share.
func (s *blockStore) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		s.refs[b]--
		if s.refs[b] > 0 {
			continue
		}
		head := int32(len(s.hash))
		if s.hash[b] == 0 {
			s.link(b, s.next[head])
		} else {
			s.link(b, head)
		}
	}
}

func (s *blockStore) unlink(b int32) {
	s.next[s.prev[b]] = s.next[b]
	s.prev[s.next[b]] = s.prev[b]
	s.free--
}

// link puts b before the entry at.
func (s *blockStore) link(b, at int32) {
	p := s.prev[at]
	s.next[p], s.prev[b] = b, p
	s.next[b], s.prev[at] = at, b
	s.free++
}
