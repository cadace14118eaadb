// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// bytesPerToken is the whole tokenizer: four bytes make a token, whose id is
// their little-endian value. Each segment of a prompt (a role, a content part)
// is padded to whole tokens with zero bytes, so that a conversation that goes
// on has the tokens of its beginning, whatever the lengths.
const bytesPerToken = 4

// tokens is text cut into tokens; its length is a multiple of bytesPerToken.
type tokens []byte

func (t tokens) count() int { return len(t) / bytesPerToken }

// segment appends text and pads it.
func (t tokens) segment(text string) tokens {
	t = append(t, text...)
	for len(t)%bytesPerToken != 0 {
		t = append(t, 0)
	}
	return t
}

// ids are the token ids.
func (t tokens) ids() []uint32 {
	ids := make([]uint32, t.count())
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint32(t[i*bytesPerToken:])
	}
	return ids
}

func tokensOf(ids []uint32) tokens {
	t := make(tokens, 0, len(ids)*bytesPerToken)
	for _, id := range ids {
		t = binary.LittleEndian.AppendUint32(t, id)
	}
	return t
}

// text is the inverse of segment, without the padding.
func (t tokens) text() string {
	return strings.ToValidUTF8(strings.ReplaceAll(string(t), "\x00", ""), "\uFFFD")
}

// chain hashes the full blocks. The salt tells apart what must not be shared.
func (t tokens) chain(salt string, blockSize int) []uint64 {
	size := blockSize * bytesPerToken
	parent := uint64(0)
	if salt != "" {
		parent = HashText(0, salt)
	}
	chain := make([]uint64, 0, len(t)/size)
	for ; len(t) >= size; t = t[size:] {
		parent = ChainHash(parent, HashText(0, []byte(t[:size])))
		chain = append(chain, parent)
	}
	return chain
}

// output is what a sequence will say: one piece per token.
type output struct {
	pieces []string
	finish string // stop | length | tool_calls
	stop   string // the stop string that ended it
}

func (o *output) text(upTo int) string {
	return strings.Join(o.pieces[:min(upTo, len(o.pieces))], "")
}

// bounds are the limits of one output.
type bounds struct {
	most, least int
	ignoreEOS   bool // say exactly most tokens
	stop        []string
}

// compose writes a deterministic output. Its natural length follows a
// histogram with a mean of about 250 tokens; the words are syllables of three
// letters, one token each. An output that came to its own end ends with "end.".
func compose(seed uint64, b bounds) output {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	n := naturalLength(rng)
	n = max(n, b.least)
	out := output{finish: "stop"}
	if b.ignoreEOS || n > b.most {
		n, out.finish = b.most, "length"
	}
	const consonants, vowels = "bdfghjklmnprstvz", "aeiou"
	out.pieces = make([]string, n)
	for i := range out.pieces {
		r := rng.Uint32()
		out.pieces[i] = string([]byte{
			consonants[r%16], vowels[r>>4%5], consonants[r>>8%16], ' ',
		})
	}
	if out.finish == "stop" {
		out.pieces[n-1] = "end."
	}
	return out.stopAt(b.stop)
}

func naturalLength(rng *rand.Rand) int {
	histogram := []struct{ percent, low, high int }{
		{20, 8, 32}, {30, 32, 128}, {20, 128, 256}, {15, 256, 512}, {10, 512, 1024}, {5, 1024, 2048},
	}
	p := rng.IntN(100)
	for _, bucket := range histogram {
		if p < bucket.percent {
			return bucket.low + rng.IntN(bucket.high-bucket.low)
		}
		p -= bucket.percent
	}
	return 1
}

// stopAt ends the output before the first stop string. The tokens of the stop
// string are generated, and counted, but not shown.
func (o output) stopAt(stops []string) output {
	text := o.text(len(o.pieces))
	cut, end := -1, 0
	for _, s := range stops {
		if at := strings.Index(text, s); s != "" && at >= 0 && (cut < 0 || at < cut) {
			cut, end, o.stop = at, at+len(s), s
		}
	}
	if cut < 0 {
		return o
	}
	at := 0
	for i, piece := range o.pieces {
		o.pieces[i] = piece[:max(0, min(len(piece), cut-at))]
		at += len(piece)
		if at >= end {
			o.pieces = o.pieces[:i+1]
			break
		}
	}
	o.finish = "stop"
	return o
}

// split cuts text into tokens, never inside of a character.
func split(text string) []string {
	var pieces []string
	for len(text) > 0 {
		n := 0
		for n < len(text) && n < bytesPerToken {
			_, size := utf8.DecodeRuneInString(text[n:])
			n += size
		}
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	return pieces
}
