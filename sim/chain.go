// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

// Chain returns the chained hashes of all full blocks of the prompt and the
// output. A follow-up whose prompt begins with both starts its own Blocks with
// them and finds in the cache whatever is still there. The last output token is
// sampled but never computed, so a block that ends with it is not cached.
func (r *Request) Chain(blockSize int) []uint64 {
	full := (r.PromptTokens + r.OutputTokens) / blockSize
	chain := make([]uint64, full)
	given := copy(chain, r.Blocks)
	for i := given; i < full; i++ {
		chain[i] = r.derive(last(chain[:i]), i)
	}
	return chain
}

// derive is the hash of block i, whose content the caller did not name.
func (r *Request) derive(parent uint64, i int) uint64 {
	seed := r.Seed
	if seed == 0 {
		seed = r.ID
	}
	return ChainHash(parent, mix(seed)+uint64(i))
}

func last(chain []uint64) uint64 {
	if len(chain) == 0 {
		return 0
	}
	return chain[len(chain)-1]
}

// ChainHash is the hash of a block with the given content after the block
// hashed parent; the first block of a chain has parent 0. It is never 0.
func ChainHash(parent, content uint64) uint64 {
	h := mix(parent*0x9e3779b97f4a7c15 + content)
	if h == 0 {
		return 1
	}
	return h
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of
// the result depends on every bit of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// HashText is the content hash of a piece of text after the state h, 0 at the
// beginning: 64-bit FNV-1a, mixed.
func HashText[T string | []byte](h uint64, text T) uint64 {
	h ^= 0xcbf29ce484222325
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return mix(h)
}
