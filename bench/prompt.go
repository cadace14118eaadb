// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

// Segment is a run of tokens that always occurs whole: a system prompt, a
// document, one message. Equal IDs have equal tokens, different IDs have
// different ones.
type Segment struct {
	ID     uint64
	Tokens int
}

// Prompt is a chain of segments. Its tokens are never stored: block hashes and
// text are derived.
type Prompt []Segment

// Tokens is the length of the prompt.
func (p Prompt) Tokens() int {
	n := 0
	for _, s := range p {
		n += s.Tokens
	}
	return n
}

// Blocks appends to dst the chained hash of every full block of size tokens:
// two prompts agree in block i exactly if they agree in all tokens up to its
// end.
func (p Prompt) Blocks(dst []uint64, size int) []uint64 {
	h := uint64(size)
	fill := 0 // tokens in the open block
	for _, s := range p {
		for at := 0; at < s.Tokens; {
			n := min(size-fill, s.Tokens-at)
			h = mix(h ^ mix(s.ID+uint64(at)<<32+uint64(n)))
			at += n
			if fill += n; fill == size {
				dst = append(dst, h)
				fill = 0
			}
		}
	}
	return dst
}

// TextBytes is the length of a token as text: three letters and a space, so
// that a server that counts words and one that counts four bytes a token agree
// with [Prompt.Tokens].
const TextBytes = 4

const letters = "abcdefghijklmnopqrstuvwxyz234567"

// AppendText appends the prompt as text, [TextBytes] for each token.
func (p Prompt) AppendText(dst []byte) []byte {
	for _, s := range p {
		dst = s.appendText(dst)
	}
	return dst
}

func (s Segment) appendText(dst []byte) []byte {
	var bits uint64
	for i := range s.Tokens {
		if i%4 == 0 { // 15 bits a token, four tokens from one hash
			bits = mix(s.ID ^ uint64(i+1)*0x9e3779b97f4a7c15)
		}
		dst = append(dst, letters[bits&31], letters[bits>>5&31], letters[bits>>10&31], ' ')
		bits >>= 15
	}
	return dst
}

// mix is the finaliser of MurmurHash3: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
