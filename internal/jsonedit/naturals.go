// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Lists of token ids are as long as the texts that they stand for, and the
// lengths of their numbers are what a processor cannot predict. So they are
// read eight bytes at a time, without a branch for each digit. A word that was
// read has '0' taken off each byte (by ^), and a mark is the highest bit of a
// byte in a word.

// Naturals reads the array at the cursor if all its elements are integers from
// 0 to limit, and tells how many there are. If there is anything else it says
// no and does nothing: reading element by element then tells what.
func (s *Scanner) Naturals(limit int) (count int, ok bool) {
	if s.Peek() != Array || s.depth >= s.max {
		return 0, false
	}
	data := s.data
	again := 0 // the count from which on plain numbers are looked for
	for i := s.pos + 1; ; i++ {
		if limit >= maxPlain && count >= again {
			end := plainNaturals(data, i)
			count += bytes.Count(data[i:end], []byte{','})
			if end == i {
				again = count + 8 // a list of another form is not tried at each number
			}
			i = end
		}
		// One number of any form: the last one, or what the above leaves.
		for i < len(data) && (data[i] == ' ' || data[i] == '\n') {
			i++
		}
		start, n := i, 0
		for i < len(data) && data[i]-'0' <= 9 {
			n = n*10 + int(data[i]-'0')
			i++
		}
		size := i - start
		if size == 0 || size > 18 || n > limit || (data[start] == '0' && size > 1) {
			return 0, false
		}
		count++
		for i < len(data) && (data[i] == ' ' || data[i] == '\n') {
			i++
		}
		switch {
		case i < len(data) && data[i] == ',':
		case i < len(data) && data[i] == ']':
			s.pos = i + 1
			s.first = false
			return count, true
		default:
			return 0, false
		}
	}
}

// maxPlain is the largest number that plainNaturals passes.
const maxPlain = 9999999

// plainNaturals passes numbers of at most seven digits, each with a comma
// directly behind it and perhaps spaces behind that, from the beginning of an
// element on. It returns the offset behind the last such comma, or i.
//
// Nothing in a step depends on where a number ended but the marks of the word
// before, so that a processor works at several words at once.
func plainNaturals(data []byte, i int) int {
	start := i
	lastOthers, lastZeros := uint64(highs), uint64(0) // as behind a comma
	for i+8 <= len(data) {
		word := binary.LittleEndian.Uint64(data[i:i+8:i+8]) ^ '0'*ones
		others := notDigits(word)
		behind := others<<8 | lastOthers>>56 // what stands behind one that is no digit
		// Such a byte directly behind a digit is a comma, any other a space.
		commas := others &^ behind
		want := others>>3 | commas>>4 | commas>>5 // ' '^'0' is a mark>>3, ','^'0' has the other two bits as well
		all := others<<1 - others>>7              // 0xFF for each mark
		// The digits after the last mark of the word before and those up to the
		// first mark of this one are at most seven if that mark is not higher. A
		// word of digits only fails at the next mark.
		if word&all != want || others&-others > lastOthers {
			break
		}
		// A first digit that is 0 is the last one. Few are.
		zeros := behind &^ others &^ (word&^highs + 0x7F*ones)
		if zeros|lastZeros != 0 && (zeros<<8|lastZeros>>56)&^others != 0 {
			break
		}
		lastOthers, lastZeros = others, zeros
		i += 8
	}
	for i > start && data[i-1] != ',' {
		i--
	}
	return i
}

// notDigits marks the bytes of word that are no decimal digits. It has no other
// bit set.
func notDigits(word uint64) uint64 {
	return (word&^highs + (0x80-10)*ones | word) & highs
}

// AppendNaturals appends the numbers of an array that consists of natural
// numbers as Naturals or a walk has found it, four bytes each, little endian,
// until less than four bytes of dst's capacity are left. It returns what is
// left of the array.
func AppendNaturals(dst, array []byte) (_, rest []byte) {
	n, i := len(dst), 0
	dst = dst[:cap(dst)]
	for n+4 <= len(dst) {
		for i < len(array) && array[i]-'0' > 9 {
			i++
		}
		if i == len(array) {
			break
		}
		if i+8 <= len(array) {
			word := binary.LittleEndian.Uint64(array[i:i+8:i+8]) ^ '0'*ones
			// This bit tells commas and white space from digits. It does not tell
			// the closing bracket, which has nothing behind it.
			if separators := word & (0x10 * ones); separators != 0 {
				size := bits.TrailingZeros64(separators) / 8
				binary.LittleEndian.PutUint32(dst[n:n+4:n+4], decimal(word, size))
				n, i = n+4, i+1+size // what follows a number is none
				continue
			}
		}
		value := uint32(0)
		for ; i < len(array) && array[i]-'0' <= 9; i++ {
			value = value*10 + uint32(array[i]-'0')
		}
		binary.LittleEndian.PutUint32(dst[n:], value)
		n += 4
	}
	return dst[:n], array[i:]
}

// decimal is the value of the first size bytes of word, digits all: 1 to 7.
func decimal(word uint64, size int) uint32 {
	word <<= uint(64-8*size) % 64 // zeros in front of the first digit
	word = word*10 + word>>8      // pairs, in every other byte
	const pairs = 0x000000FF000000FF
	return uint32((word&pairs*(100+1000000<<32) + word>>16&pairs*(1+10000<<32)) >> 32)
}
