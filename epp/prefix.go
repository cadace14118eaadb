// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/llm"
)

// The approximate prefix index remembers which member was sent which prompt
// prefix, as a stand-in for what the members' own caches hold.
//
// A prompt is cut into blocks of 256 bytes, 64 tokens at four bytes a token (a
// token id is its four bytes). The hash of a block covers all blocks before it,
// so equal hashes mean equal prefixes. Only full blocks count.
const (
	blockBytes  = 256
	blockTokens = 64
	// maxBlocks of a request are hashed: 131,072 tokens, over all its prompts.
	maxBlocks = 2048
	// unknownCapacity is the number of blocks remembered for a member that does
	// not report its cache: two million tokens. Too large is harmless, too small
	// is fatal: a prefix that the server holds and the index has forgotten is
	// computed again elsewhere and evicts others there.
	unknownCapacity = 31250
	// maxEntries bounds the index over all members. An entry is one block on one
	// member; as measured it takes 118 bytes when no other member holds the block
	// and 33 when a hundred do. At the bound that is 0.93 GiB; a pool of 100
	// members with 300,000 tokens each needs 55 MiB at most.
	maxEntries = 8 << 20
	// inlineHolders of a block are kept as a list, more as a bit set.
	inlineHolders = 6
	maxSlots      = 1 << 16
)

// chains are the block hashes of a request: the prompts one after another.
type chains struct {
	hash  []uint64
	ends  []int    // where each prompt that has a full block ends in hash
	place []uint32 // where a lookup found each block, 0 nowhere; may be out of date
}

// hasher cuts a byte stream into blocks. The way the stream is split into
// writes makes no difference.
type hasher struct {
	digest xxhash.Digest
	fill   int // bytes of the unfinished block
	out    []uint64
	limit  int
	feed   func([]byte) bool // write, bound once: no allocation per prompt
}

func newHasher() *hasher {
	h := &hasher{}
	h.feed = h.write
	return h
}

// start begins a prompt. Prompts of different models, adapters and salts share
// nothing.
func (h *hasher) start(seed uint64) {
	h.digest.ResetWithSeed(seed)
	h.fill = 0
}

// write takes the next bytes and says whether it wants more.
func (h *hasher) write(p []byte) bool {
	for len(p) > 0 && len(h.out) < h.limit {
		n := min(blockBytes-h.fill, len(p))
		h.digest.Write(p[:n])
		h.fill += n
		p = p[n:]
		if h.fill == blockBytes {
			sum := h.digest.Sum64()
			h.out = append(h.out, sum)
			h.digest.ResetWithSeed(sum)
			h.fill = 0
		}
	}
	return len(h.out) < h.limit
}

// seedOf is where the chains of a model (or adapter) and a cache salt start.
func (h *hasher) seedOf(model, salt string) uint64 {
	h.digest.ResetWithSeed(xxhash.Sum64String(model))
	h.digest.WriteString(salt)
	return h.digest.Sum64()
}

// hash fills c with the block hashes of every prompt.
func (h *hasher) hash(c *chains, p *llm.Prompt, model, salt string, limit int) {
	h.out, c.ends, h.limit = c.hash[:0], c.ends[:0], limit
	if p != nil {
		seed := h.seedOf(model, salt)
		for i := range p.Len() {
			if len(h.out) >= limit {
				break
			}
			before := len(h.out)
			h.start(seed)
			p.Bytes(i, h.feed)
			if len(h.out) > before {
				c.ends = append(c.ends, len(h.out))
			}
		}
	}
	c.hash, h.out = h.out, nil
	c.place = resized(c.place, len(c.hash))
	clear(c.place)
}

// clone is a copy that outlives the scratch: the one part of a pick's memory
// that grows with the prompt, twelve bytes a block.
func (c *chains) clone() chains {
	if len(c.hash) == 0 {
		return chains{}
	}
	return chains{hash: slices.Clone(c.hash), ends: slices.Clone(c.ends), place: slices.Clone(c.place)}
}

// tick is time for the index, in sixteenths of a second since its start.
type tick uint32

const ticksPerSecond = 16

// index is the prefix index of one scheduler. Its lock is held for a lookup
// (shared) or an insert (exclusive), some 30 to 60 ns a block, and by nothing
// that waits.
type index struct {
	mu     sync.RWMutex
	byHash map[uint64]uint32
	blocks []block    // slab; place 0 is not used
	free   []uint32   // places in blocks
	sets   [][]uint64 // slab of bit sets over slots
	spare  []int32    // places in sets
	slots  []*holder  // nil: free
	size   int        // entries
	total  float64    // requests, forgotten like the heat of a block
	at     tick
}

// block is one distinct prefix, 64 bytes without pointers. heat counts the
// requests that contained it, with a forgetting time of a minute.
type block struct {
	hash    uint64
	heat    float32
	at      tick
	set     int32                 // place in sets; -1: the holders are in few
	holders uint16                // 0: not in use
	few     [inlineHolders]uint16 // slots
	nodes   [inlineHolders]uint32 // the entry of each of few
}

// holder is what the index knows of one member: its blocks, least recently
// used first out. Guarded by the index's lock.
type holder struct {
	slot  int
	dead  bool // gone or restarted: takes nothing any more
	limit int
	nodes []node            // slab; nodes[0] is the head of the ring: next newest, prev oldest
	free  uint32            // head of the list of free nodes, by next
	used  int               // nodes in the ring
	many  map[uint32]uint32 // block → node, of the blocks whose holders are a bit set
}

type node struct {
	block      uint32
	prev, next uint32
	by         uint32 // the pick that added it and nobody has confirmed since; 0: none
}

func newIndex() *index {
	return &index{byHash: map[uint64]uint32{}, blocks: make([]block, 1)}
}

// join gives a member a place. It returns nil when there are too many.
func (x *index) join(limit int) *holder {
	h := &holder{limit: limit, nodes: make([]node, 1), many: map[uint32]uint32{}}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, other := range x.slots {
		if other == nil {
			h.slot = i
			x.slots[i] = h
			return h
		}
	}
	if len(x.slots) == maxSlots {
		return nil
	}
	h.slot = len(x.slots)
	x.slots = append(x.slots, h)
	return h
}

// leave forgets a member. The lock is given up now and then on the way: a full
// member takes milliseconds.
func (x *index) leave(h *holder) {
	if h == nil {
		return
	}
	for done := false; !done; {
		x.mu.Lock()
		if h.dead && x.slots[h.slot] != h {
			x.mu.Unlock()
			return
		}
		h.dead = true
		for range 1024 {
			oldest := h.nodes[0].prev
			if oldest == 0 {
				x.slots[h.slot] = nil
				done = true
				break
			}
			x.drop(h, oldest)
		}
		x.mu.Unlock()
	}
}

// resize sets how many blocks a member is believed to hold.
func (x *index) resize(h *holder, limit int) {
	if h == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	h.limit = limit
	for h.used > h.limit {
		x.drop(h, h.nodes[0].prev)
	}
}

// len is the number of entries: blocks, counted once for every member.
func (x *index) len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.size
}

// walk is the scratch and the result of a lookup, per slot.
type walk struct {
	alive, next []uint64
	matched     []int32   // blocks held from the start of each prompt without a gap
	saved       []float64 // their price in tokens
	price       float64   // of all blocks
}

// lookup walks the chains and finds what each slot holds of them. A member
// counts only up to its first gap. price is that of computing every block
// anew: 64 tokens each, less for a hot block that too few members hold (see
// priceOf). members is the size of the pool.
func (x *index) lookup(c *chains, w *walk, members int, now tick) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	words := (len(x.slots) + 63) / 64
	w.alive = resized(w.alive, words)
	w.next = resized(w.next, words)
	w.matched = resized(w.matched, len(x.slots))
	w.saved = resized(w.saved, len(x.slots))
	clear(w.matched)
	clear(w.saved)
	w.price = 0
	total := x.total * forget(now, x.at)
	start := 0
	for _, end := range c.ends {
		x.walkOne(c.hash[start:end], c.place[start:end], w, float64(members), total, now)
		start = end
	}
}

func (x *index) walkOne(hashes []uint64, places []uint32, w *walk, members, total float64, now tick) {
	depth, cum := 0, 0.0
	alive, next := w.alive, w.next
	clear(alive)
	for i, hash := range hashes {
		place, ok := x.byHash[hash]
		if !ok {
			break
		}
		places[i] = place
		b := &x.blocks[place]
		x.holdersOf(b, next)
		if i > 0 {
			left := uint64(0)
			for k, set := range alive {
				next[k] &= set
				left |= next[k]
				for gone := set &^ next[k]; gone != 0; gone &= gone - 1 {
					w.credit(k<<6+bits.TrailingZeros64(gone), i, cum)
				}
			}
			if left == 0 {
				clear(alive)
				break
			}
		}
		alive, next = next, alive
		cum += b.priceOf(members, total, now)
		depth = i + 1
	}
	for k, set := range alive {
		for ; set != 0; set &= set - 1 {
			w.credit(k<<6+bits.TrailingZeros64(set), depth, cum)
		}
	}
	w.price += cum + float64(blockTokens*(len(hashes)-depth))
}

func (w *walk) credit(slot, blocks int, price float64) {
	w.matched[slot] += int32(blocks)
	w.saved[slot] += price
}

// holdersOf writes the members that hold b into set.
func (x *index) holdersOf(b *block, set []uint64) {
	clear(set)
	if b.set >= 0 {
		copy(set, x.sets[b.set])
		return
	}
	for _, slot := range b.few[:b.holders] {
		set[slot>>6] |= 1 << (slot & 63)
	}
}

// Heat. A prefix that draws a share of all requests should be held by about
// that share of the members, times heatSpread. While too few hold it, a copy is
// an investment and its blocks are cheap for those that lack them:
//
//	want = heatSpread * members * share;  price = 64 * (have/want)^2
//
// so that a viral prefix gets its copies before queues force them. Constants
// from the simulator study behind the default profile.
const (
	heatSpread = 2.5
	heatLeast  = 8
	heatForget = 60 // seconds
)

func (b *block) priceOf(members, total float64, now tick) float64 {
	if b.heat < heatLeast {
		return blockTokens
	}
	heat := float64(b.heat) * forget(now, b.at)
	want, have := heatSpread*members*heat/total, float64(b.holders)
	if heat < heatLeast || want <= have {
		return blockTokens
	}
	return blockTokens * (have / want) * (have / want)
}

func forget(now, then tick) float64 {
	if now <= then {
		return 1
	}
	return math.Exp(-float64(now-then) / (heatForget * ticksPerSecond))
}

// find returns where a block is, or 0. The place that a lookup has left in c
// saves a search.
func (x *index) find(c *chains, i int) uint32 {
	if p := c.place[i]; p != 0 && x.blocks[p].hash == c.hash[i] && x.blocks[p].holders > 0 {
		return p
	}
	c.place[i] = x.byHash[c.hash[i]]
	return c.place[i]
}

// heatUp counts one request. The lock is held.
func (x *index) heatUp(c *chains, now tick) {
	x.total = x.total*forget(now, x.at) + 1
	x.at = now
	last, factor := now, 1.0
	for i := range c.hash {
		place := x.find(c, i)
		if place == 0 {
			continue
		}
		b := &x.blocks[place]
		if b.at != last {
			last, factor = b.at, forget(now, b.at)
		}
		b.heat = b.heat*float32(factor) + 1
		b.at = now
	}
}

// insert notes that h will hold the chains, in the name of pick (not 0). It is
// done at the pick, before the request leaves, so that siblings that come right
// after it find them. The first block of a prompt becomes the newest, so that
// eviction eats a chain from its end, as engines do. heat: count the request.
func (x *index) insert(h *holder, c *chains, pick uint32, now tick, heat bool) {
	if h == nil || len(c.hash) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.dead {
		return
	}
	start, room := 0, h.limit
	for _, end := range c.ends {
		n := min(end-start, room)
		for i := start + n - 1; i >= start; i-- {
			x.touch(h, c, i, pick, now)
		}
		room -= n
		start = end
	}
	if heat {
		x.heatUp(c, now)
	}
}

func (x *index) touch(h *holder, c *chains, i int, pick uint32, now tick) {
	place := x.find(c, i)
	if place != 0 {
		if n := x.entry(h, place); n != 0 {
			if h.nodes[n].by != pick {
				h.nodes[n].by = 0
			}
			if h.nodes[0].next != n {
				h.unlink(n)
				h.pushFront(n)
			}
			return
		}
	}
	if h.used >= h.limit {
		x.drop(h, h.nodes[0].prev)
		place = x.find(c, i)
	}
	if place == 0 {
		place = x.newBlock(c.hash[i], now)
		c.place[i] = place
	}
	n := h.free
	if n != 0 {
		h.free = h.nodes[n].next
	} else {
		n = uint32(len(h.nodes))
		h.nodes = append(h.nodes, node{})
	}
	h.nodes[n] = node{block: place, by: pick}
	h.pushFront(n)
	h.used++
	x.size++
	x.hold(place, h, n)
}

// entry is h's node of a block, or 0.
func (x *index) entry(h *holder, place uint32) uint32 {
	b := &x.blocks[place]
	if b.set >= 0 {
		return h.many[place]
	}
	for k, slot := range b.few[:b.holders] {
		if int(slot) == h.slot {
			return b.nodes[k]
		}
	}
	return 0
}

// depth is the number of blocks that h holds of the chains, without a gap.
func (x *index) depth(h *holder, c *chains) int {
	if h == nil {
		return 0
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	held, start := 0, 0
	for _, end := range c.ends {
		for _, hash := range c.hash[start:end] {
			place := x.byHash[hash]
			if place == 0 || x.entry(h, place) == 0 {
				break
			}
			held++
		}
		start = end
	}
	return held
}

// held is the number of a member's blocks and its bound.
func (x *index) held(h *holder) (blocks, limit int) {
	if h == nil {
		return 0, 0
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return h.used, h.limit
}

// withdraw takes back what pick added and no other pick has used since: its
// request never reached the member.
func (x *index) withdraw(h *holder, c *chains, pick uint32) {
	if h == nil || len(c.hash) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.dead {
		return
	}
	for i := range c.hash {
		if place := x.find(c, i); place != 0 {
			if n := x.entry(h, place); n != 0 && h.nodes[n].by == pick {
				x.drop(h, n)
			}
		}
	}
}

// drop removes one entry.
func (x *index) drop(h *holder, n uint32) {
	place := h.nodes[n].block
	h.unlink(n)
	h.nodes[n].next, h.free = h.free, n
	h.used--
	x.size--
	x.release(place, h)
	if b := &x.blocks[place]; b.holders == 0 {
		delete(x.byHash, b.hash)
		x.free = append(x.free, place)
	}
}

func (x *index) newBlock(hash uint64, now tick) uint32 {
	var place uint32
	if n := len(x.free); n > 0 {
		place = x.free[n-1]
		x.free = x.free[:n-1]
	} else {
		place = uint32(len(x.blocks))
		x.blocks = append(x.blocks, block{})
	}
	x.blocks[place] = block{hash: hash, set: -1, at: now}
	x.byHash[hash] = place
	return place
}

// hold adds a holder to a block that does not have it, with its entry.
func (x *index) hold(place uint32, h *holder, n uint32) {
	b := &x.blocks[place]
	if b.set < 0 && b.holders < inlineHolders {
		b.few[b.holders], b.nodes[b.holders] = uint16(h.slot), n
		b.holders++
		return
	}
	if b.set < 0 {
		b.set = x.newSet()
		for k, slot := range b.few {
			x.setBit(b.set, int(slot))
			x.slots[slot].many[place] = b.nodes[k]
		}
	}
	x.setBit(b.set, h.slot)
	h.many[place] = n
	b.holders++
}

// release takes a holder from a block that has it. A set that has become small
// turns into a list again.
func (x *index) release(place uint32, h *holder) {
	b := &x.blocks[place]
	b.holders--
	if b.set < 0 {
		k := slices.Index(b.few[:b.holders+1], uint16(h.slot))
		b.few[k], b.nodes[k] = b.few[b.holders], b.nodes[b.holders]
		return
	}
	set := x.sets[b.set]
	set[h.slot>>6] &^= 1 << (h.slot & 63)
	delete(h.many, place)
	if b.holders > inlineHolders/2 {
		return
	}
	n := 0
	for k, word := range set {
		for ; word != 0; word &= word - 1 {
			other := x.slots[k<<6+bits.TrailingZeros64(word)]
			b.few[n], b.nodes[n] = uint16(other.slot), other.many[place]
			delete(other.many, place)
			n++
		}
	}
	x.spare = append(x.spare, b.set)
	b.set = -1
}

func (x *index) newSet() int32 {
	if n := len(x.spare); n > 0 {
		place := x.spare[n-1]
		x.spare = x.spare[:n-1]
		clear(x.sets[place])
		return place
	}
	x.sets = append(x.sets, nil)
	return int32(len(x.sets) - 1)
}

func (x *index) setBit(place int32, slot int) {
	if words := slot>>6 + 1; len(x.sets[place]) < words {
		grown := make([]uint64, (len(x.slots)+63)/64)
		copy(grown, x.sets[place])
		x.sets[place] = grown
	}
	x.sets[place][slot>>6] |= 1 << (slot & 63)
}

func (h *holder) unlink(n uint32) {
	a := h.nodes[n]
	h.nodes[a.prev].next = a.next
	h.nodes[a.next].prev = a.prev
}

func (h *holder) pushFront(n uint32) {
	first := h.nodes[0].next
	h.nodes[n].prev, h.nodes[n].next = 0, first
	h.nodes[first].prev = n
	h.nodes[0].next = n
}

// resized returns s with length n; the content is of no account.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
