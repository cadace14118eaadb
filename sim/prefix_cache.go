// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "sync"

// prefixCache remembers the prompts of each key and model, as providers do.
type prefixCache struct {
	least int // tokens; shorter prefixes are not cached
	mu    sync.Mutex
	seen  map[uint64]struct{} // chained hashes of blocks, salted by key and model
	order []uint64            // a ring of what is in seen
	next  int
}

const (
	mostPrefixes     = 1 << 16
	prefixBlockSize  = 16  // tokens
	prefixesPerEntry = 128 // tokens: cached numbers are multiples of it when no mark says otherwise
)

// look says how many tokens of a prompt are known and how many become known,
// and remembers the prompt. With marks, caching ends at the last of them;
// without, at the last full step.
func (c *prefixCache) look(salt string, prompt tokens, marks []int, marked bool) (read, written int) {
	end := prompt.count()
	if marked {
		if len(marks) == 0 {
			return 0, 0
		}
		end = marks[len(marks)-1]
	}
	if end < c.least {
		return 0, 0
	}
	chain := prompt[:end*bytesPerToken].chain(salt, prefixBlockSize)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[uint64]struct{}{}
	}
	known := 0
	for _, h := range chain {
		if _, ok := c.seen[h]; !ok {
			break
		}
		known++
	}
	for _, h := range chain[known:] {
		c.add(h)
	}
	read = known * prefixBlockSize
	if known == len(chain) {
		read = end
	}
	if !marked {
		read = min(read, prompt.count()-1) // the last token is always computed
		read -= read % prefixesPerEntry
	}
	if read < c.least {
		read = 0
	}
	if marked {
		written = end - read
	}
	return read, written
}

func (c *prefixCache) add(h uint64) {
	if _, ok := c.seen[h]; ok {
		return
	}
	c.seen[h] = struct{}{}
	if len(c.order) < mostPrefixes {
		c.order = append(c.order, h)
		return
	}
	delete(c.seen, c.order[c.next])
	c.order[c.next] = h
	c.next = (c.next + 1) % mostPrefixes
}
