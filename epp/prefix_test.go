// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// blocksOf is the chain of a byte stream written in pieces of the sizes given,
// again and again.
func blocksOf(data []byte, limit int, sizes ...byte) []uint64 {
	h := newHasher()
	h.limit = limit
	h.start(h.seedOf("m", "salt"))
	for k := 0; len(data) > 0; k++ {
		n := len(data)
		if len(sizes) > 0 {
			n = min(n, int(sizes[k%len(sizes)])+k/len(sizes)%2) // sizes of 0 still go on
		}
		if !h.feed(data[:n]) {
			break
		}
		data = data[n:]
	}
	return h.out
}

func FuzzPrefixHash(f *testing.F) {
	f.Add([]byte("short"), []byte{1})
	f.Add(make([]byte, 256), []byte{255, 1})
	f.Add(make([]byte, 1000), []byte{0, 3, 200})
	f.Add(slices.Repeat([]byte("penstock"), 300), []byte{7, 31, 32, 33, 64})
	f.Fuzz(func(t *testing.T, data, sizes []byte) {
		whole := blocksOf(data, maxBlocks)
		if want := min(maxBlocks, len(data)/blockBytes); len(whole) != want {
			t.Fatalf("%d bytes gave %d blocks, want %d", len(data), len(whole), want)
		}
		if split := blocksOf(data, maxBlocks, sizes...); !slices.Equal(split, whole) {
			t.Errorf("split by %v: %x, whole %x", sizes, split, whole)
		}
		// A prefix of the stream has a prefix of the chain; a changed byte
		// changes its block and all after it.
		if n := len(data) / 2; !slices.Equal(blocksOf(data[:n], maxBlocks), whole[:n/blockBytes]) {
			t.Error("the first half's blocks are not the first of the whole")
		}
		if len(whole) > 0 {
			at := len(data) / 3
			other := slices.Clone(data)
			other[at]++
			for i, h := range blocksOf(other, maxBlocks) {
				if same := h == whole[i]; same != (i < at/blockBytes) {
					t.Errorf("byte %d changed; block %d equal: %v", at, i, same)
				}
			}
		}
		if limited := blocksOf(data, 2, sizes...); !slices.Equal(limited, whole[:min(2, len(whole))]) {
			t.Errorf("a limit of 2 gave %d blocks", len(limited))
		}
	})
}

func TestPrefixHashSeed(t *testing.T) {
	h := newHasher()
	seen := map[uint64]string{}
	for _, seed := range [][2]string{{"a", ""}, {"b", ""}, {"a", "s"}, {"as", ""}, {"", "as"}, {"a", "t"}} {
		sum := h.seedOf(seed[0], seed[1])
		if other, twice := seen[sum]; twice {
			t.Errorf("model %q salt %q starts like %s", seed[0], seed[1], other)
		}
		seen[sum] = seed[0] + "/" + seed[1]
	}
}

// naive is the index as plain as can be: per member a list, newest first.
type naive struct {
	limit int
	list  []uint64
	by    map[uint64]uint32
}

func (n *naive) insert(c *chains, pick uint32) {
	start, room := 0, n.limit
	for _, end := range c.ends {
		k := min(end-start, room)
		for i := start + k - 1; i >= start; i-- {
			h := c.hash[i]
			if at := slices.Index(n.list, h); at >= 0 {
				n.list = slices.Delete(n.list, at, at+1)
				if n.by[h] != pick {
					n.by[h] = 0
				}
			} else {
				n.by[h] = pick
				n.trim(n.limit - 1)
			}
			n.list = slices.Insert(n.list, 0, h)
		}
		room -= k
		start = end
	}
}

func (n *naive) trim(limit int) {
	for len(n.list) > limit {
		n.remove(len(n.list) - 1)
	}
}

func (n *naive) remove(at int) {
	delete(n.by, n.list[at])
	n.list = slices.Delete(n.list, at, at+1)
}

func (n *naive) withdraw(c *chains, pick uint32) {
	for _, h := range c.hash {
		if at := slices.Index(n.list, h); at >= 0 && n.by[h] == pick {
			n.remove(at)
		}
	}
}

func (n *naive) matched(c *chains) int {
	held, start := 0, 0
	for _, end := range c.ends {
		for _, h := range c.hash[start:end] {
			if !slices.Contains(n.list, h) {
				break
			}
			held++
		}
		start = end
	}
	return held
}

// randomChains draws prompts from a tree of prefixes: the block at depth d of
// branch b is known by both, and branches fork from lower ones.
func randomChains(r *rand.Rand) *chains {
	c := &chains{}
	for range 1 + r.IntN(2) {
		branch, depth := r.IntN(6), 1+r.IntN(12)
		for d := range depth {
			c.hash = append(c.hash, uint64(1000*(branch>>(2-min(2, d/4)))+d+1))
		}
		c.ends = append(c.ends, len(c.hash))
	}
	c.place = make([]uint32, len(c.hash))
	return c
}

// TestIndexModel runs random operations on the index and on the naive one, with
// few and with many members (lists and bit sets of holders).
func TestIndexModel(t *testing.T) {
	for _, members := range []int{1, 5, 130} {
		r := rand.New(rand.NewPCG(uint64(members), 7))
		x := newIndex()
		var holders []*holder
		var models []*naive
		join := func() (*holder, *naive) {
			limit := 1 + r.IntN(40)
			return x.join(limit), &naive{limit: limit, by: map[uint64]uint32{}}
		}
		for range members {
			h, m := join()
			holders, models = append(holders, h), append(models, m)
		}
		var recent []*chains
		for step := range 6000 {
			i, c, pick := r.IntN(members), randomChains(r), uint32(step+1)
			if len(recent) > 0 && r.IntN(2) == 0 {
				c = recent[r.IntN(len(recent))] // places of an earlier lookup, out of date
				if r.IntN(3) == 0 {
					c = &chains{hash: c.hash, ends: c.ends} // or none
				}
			}
			switch op := r.IntN(20); {
			case op < 12:
				x.insert(holders[i], c, pick, tick(step), true)
				models[i].insert(c, pick)
				if r.IntN(3) == 0 {
					x.withdraw(holders[i], c, pick)
					models[i].withdraw(c, pick)
				}
			case op == 12:
				models[i].limit = 1 + r.IntN(40)
				models[i].trim(models[i].limit)
				x.resize(holders[i], models[i].limit)
			case op == 13:
				gone := holders[i]
				x.leave(gone)
				holders[i], models[i] = join()
				x.insert(gone, c, pick, tick(step), false) // comes too late
			default:
				if c.place == nil {
					continue
				}
				checkLookup(t, x, c, holders, models, tick(step))
				recent = append(recent, c)
			}
			if t.Failed() {
				t.Fatalf("members %d, step %d", members, step)
			}
		}
		size := 0
		for i, m := range models {
			size += len(m.list)
			if got, limit := x.held(holders[i]); got != len(m.list) || limit != m.limit {
				t.Errorf("member %d holds %d of %d, want %d of %d", i, got, limit, len(m.list), m.limit)
			}
		}
		if x.len() != size {
			t.Errorf("index holds %d entries, want %d", x.len(), size)
		}
		for _, h := range holders {
			x.leave(h)
		}
		if x.len() != 0 || len(x.byHash) != 0 || len(x.free) != len(x.blocks)-1 || len(x.spare) != len(x.sets) {
			t.Errorf("after all left: %d entries, %d blocks, %d of %d places free, %d of %d sets",
				x.len(), len(x.byHash), len(x.free), len(x.blocks)-1, len(x.spare), len(x.sets))
		}
	}
}

func checkLookup(t *testing.T, x *index, c *chains, holders []*holder, models []*naive, now tick) {
	t.Helper()
	var w walk
	x.lookup(c, &w, 1, now) // one member: nothing is hot
	for i, m := range models {
		want := m.matched(c)
		if got := int(w.matched[holders[i].slot]); got != want {
			t.Errorf("member %d matches %d blocks, want %d", i, got, want)
		}
		if got := x.depth(holders[i], c); got != want {
			t.Errorf("member %d has depth %d, want %d", i, got, want)
		}
		if saved := w.saved[holders[i].slot]; saved > float64(want*blockTokens) || saved < 0 {
			t.Errorf("member %d saves %v tokens of %d blocks", i, saved, want)
		}
	}
}

// TestIndexGap: a member counts up to its first gap, however much it holds
// behind it.
func TestIndexGap(t *testing.T) {
	x := newIndex()
	h := x.join(100)
	c := &chains{hash: []uint64{1, 2, 3, 4, 5}, ends: []int{5}, place: make([]uint32, 5)}
	x.insert(h, c, 1, 0, false)
	x.drop(h, x.entry(h, x.byHash[3]))
	var w walk
	x.lookup(c, &w, 1, 0)
	if diff := cmp.Diff([]int32{2}, w.matched); diff != "" {
		t.Error(diff)
	}
	if w.price != 5*blockTokens || w.saved[0] != 2*blockTokens {
		t.Errorf("price %v, saved %v", w.price, w.saved)
	}
}

// TestIndexHeat: blocks of a prefix that draws much and is held by few get
// cheap for the others, and dear again as copies appear and as time passes.
func TestIndexHeat(t *testing.T) {
	x := newIndex()
	const members = 8
	var holders []*holder
	for range members {
		holders = append(holders, x.join(100))
	}
	hot := &chains{hash: []uint64{1, 2}, ends: []int{2}, place: make([]uint32, 2)}
	price := func(now tick) float64 {
		var w walk
		x.lookup(hot, &w, members, now)
		return w.price / 2
	}
	for k := range heatLeast {
		if got := price(0); got != blockTokens {
			t.Fatalf("price %v after %d requests", got, k)
		}
		x.insert(holders[0], hot, uint32(k+1), 0, true)
	}
	want := blockTokens / (heatSpread * members) / (heatSpread * members) // have 1, share 1
	if got := price(0); math.Abs(got-want) > 1e-9 {
		t.Errorf("price of a hot block is %v, want %v", got, want)
	}
	x.insert(holders[1], hot, 100, 0, false)
	if got := price(0); math.Abs(got-4*want) > 1e-9 {
		t.Errorf("price with two copies is %v, want %v", got, 4*want)
	}
	if got := price(60 * ticksPerSecond); got != blockTokens {
		t.Errorf("price after a minute is %v", got)
	}
}

// TestIndexMemory holds what the comment at maxEntries states, by the sizes of
// the slabs.
func TestIndexMemory(t *testing.T) {
	x := newIndex()
	h := x.join(10000)
	c := &chains{ends: []int{10000}, place: make([]uint32, 10000)}
	for i := range 10000 {
		c.hash = append(c.hash, uint64(i)*7919+1)
	}
	for pick := range uint32(3) {
		x.insert(h, c, pick+1, 0, true)
		x.withdraw(h, c, pick+1)
		x.insert(h, c, pick+1, 0, true)
	}
	if len(h.nodes) > 10001 || len(x.blocks) > 10001 {
		t.Errorf("10000 entries use %d nodes and %d blocks", len(h.nodes), len(x.blocks))
	}
}
