// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit

import (
	"encoding/binary"
	"math/bits"
)

// Naturals reads the array at the cursor if all its elements are integers from
// 0 to limit, and tells how many there are. If there is anything else it says
// no and does nothing: reading element by element then tells what.
func (s *Scanner) Naturals(limit int) (count int, ok bool) {
	if s.Peek() != Array || s.depth >= s.max {
		return 0, false
	}
	data := s.data
	for i := s.pos + 1; ; i++ {
		// The plain ones: at most seven digits, a comma, perhaps a space.
		for limit >= 9999999 && i+8 <= len(data) {
			others := notDigits(binary.LittleEndian.Uint64(data[i:]))
			size := bits.TrailingZeros64(others) / 8
			if others == 0 || size == 0 || data[i+size] != ',' || data[i] == '0' && size > 1 {
				break
			}
			count++
			if i += size + 1; i < len(data) && data[i] == ' ' {
				i++
			}
		}
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

// Numbers of a long list are taken eight bytes at a time, without a branch for
// each digit: their lengths are what a processor cannot predict.
const each = 0x0101010101010101

// notDigits marks the bytes of x that are no decimal digits: it has the highest
// bit of each of those set, and no other.
func notDigits(x uint64) uint64 {
	x ^= '0' * each // a byte below 10 is a digit
	return (x&^(0x80*each) + (0x80-10)*each | x) & (0x80 * each)
}

// decimal is the value of the first size bytes of x, digits all; size is 0 to 7.
func decimal(x uint64, size int) uint32 {
	x = (x ^ '0'*each) << (64 - 8*size) // zeros in front of the first digit
	x = x*10 + x>>8                     // pairs, in every other byte
	const pairs = 0x000000FF000000FF
	return uint32((x&pairs*(100+1000000<<32) + x>>16&pairs*(1+10000<<32)) >> 32)
}

// AppendNaturals appends the numbers of an array that Naturals has read, four
// bytes each, little endian, until less than four bytes of dst's capacity are
// left. It returns what is left of the array.
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
			x := binary.LittleEndian.Uint64(array[i:])
			if others := notDigits(x); others != 0 {
				size := bits.TrailingZeros64(others) / 8
				binary.LittleEndian.PutUint32(dst[n:], decimal(x, size))
				n, i = n+4, i+size+1 // what follows a number is none
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
