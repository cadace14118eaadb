// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "fmt"

// Audit recounts the references and the free list of an engine.
func Audit(e *Engine) error {
	refs := make([]int32, len(e.blocks.refs))
	for _, s := range e.running {
		if s.computed > s.tokens() || len(s.blocks) < e.blocksFor(s.computed) {
			return fmt.Errorf("sequence %d: %d tokens computed of %d in %d blocks", s.req.ID, s.computed, s.tokens(), len(s.blocks))
		}
		for _, b := range s.blocks {
			refs[b]++
		}
	}
	for _, s := range e.waiting {
		if s.blocks != nil {
			return fmt.Errorf("waiting sequence %d holds blocks", s.req.ID)
		}
	}
	free := map[int32]bool{}
	head := int32(len(refs))
	for b := e.blocks.next[head]; b != head; b = e.blocks.next[b] {
		free[b] = true
	}
	if len(free) != e.blocks.free {
		return fmt.Errorf("%d blocks in the free list, counted %d", len(free), e.blocks.free)
	}
	for b, n := range refs {
		if n != e.blocks.refs[b] || free[int32(b)] != (n == 0) {
			return fmt.Errorf("block %d: %d references, recorded %d, free %v", b, n, e.blocks.refs[b], free[int32(b)])
		}
	}
	for h, b := range e.blocks.byHash {
		if e.blocks.hash[b] != h {
			return fmt.Errorf("hash %x names block %d, which holds %x", h, b, e.blocks.hash[b])
		}
	}
	if len(e.byID) != len(e.running)+len(e.waiting) {
		return fmt.Errorf("%d ids, %d running, %d waiting", len(e.byID), len(e.running), len(e.waiting))
	}
	return nil
}
