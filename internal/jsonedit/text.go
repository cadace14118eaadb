// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	faultString    = "unfinished string"
	faultControl   = "control character in a string"
	faultEscape    = "invalid escape"
	faultSurrogate = "unpaired surrogate"
	faultUTF8      = "invalid UTF-8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// special has the high bit set in each byte of w that ends a plain run: a
// quote, a backslash, a control character or a byte outside ASCII. Bytes above
// the lowest such byte may be set wrongly (the subtractions borrow).
func special(w uint64) uint64 {
	return ((w - 0x20*ones) | ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones) | w) & highs
}

// plain is the offset of the first byte at or after i that ends a plain run,
// or the length of data.
func plain(data []byte, i int) int {
	for i+8 <= len(data) {
		if m := special(binary.LittleEndian.Uint64(data[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(data) {
		if c := data[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			break
		}
		i++
	}
	return i
}

// EndOfRun is the offset of the first quote or backslash at or after i, or the
// length of data: for readers of text that comes in parts.
func EndOfRun(data []byte, i int) int {
	for i+8 <= len(data) {
		w := binary.LittleEndian.Uint64(data[i:])
		quote, backslash := w^'"'*ones, w^'\\'*ones
		if m := ((quote-ones)&^quote | (backslash-ones)&^backslash) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(data) && data[i] != '"' && data[i] != '\\' {
		i++
	}
	return i
}

// text reads the string literal whose opening quote is at the cursor.
func (s *Scanner) text() Text {
	data := s.data
	start := s.pos + 1
	saved := 0 // bytes that the escapes take beyond what they stand for
	i := start
	for {
		i = plain(data, i)
		if i >= len(data) {
			s.fail(s.pos, faultString)
			return Text{}
		}
		switch c := data[i]; {
		case c == '"':
			s.pos = i + 1
			return Text{Span{start, i}, i - start - saved}
		case c == '\\':
			if i+1 < len(data) && simple[data[i+1]] != 0 {
				i += 2
				saved++
				continue
			}
			n, size := escape(data[i:])
			if n == 0 {
				fault := faultEscape
				if size != 0 {
					fault = faultSurrogate
				}
				s.fail(i, fault)
				return Text{}
			}
			i += n
			saved += n - size
		case c < ' ':
			s.fail(i, faultControl)
			return Text{}
		default:
			end := runes(data, i)
			if end < 0 {
				s.fail(-end-1, faultUTF8)
				return Text{}
			}
			i = end
		}
	}
}

// runes passes the characters outside ASCII at i. It returns the offset of the
// next ASCII byte, or, for invalid UTF-8 at offset x, -x-1.
func runes(data []byte, i int) int {
	for i < len(data) {
		c := data[i]
		switch {
		case c < utf8.RuneSelf:
			return i
		case c < 0xE0:
			if c < 0xC2 || i+1 >= len(data) || data[i+1]&0xC0 != 0x80 {
				return -i - 1
			}
			i += 2
		case c < 0xF0:
			if i+2 >= len(data) || data[i+1]&0xC0 != 0x80 || data[i+2]&0xC0 != 0x80 ||
				(c == 0xE0 && data[i+1] < 0xA0) || (c == 0xED && data[i+1] > 0x9F) {
				return -i - 1
			}
			i += 3
		default:
			if c > 0xF4 || i+3 >= len(data) ||
				data[i+1]&0xC0 != 0x80 || data[i+2]&0xC0 != 0x80 || data[i+3]&0xC0 != 0x80 ||
				(c == 0xF0 && data[i+1] < 0x90) || (c == 0xF4 && data[i+1] > 0x8F) {
				return -i - 1
			}
			i += 4
		}
	}
	return i
}

// simple maps the letter of a two-byte escape to the byte it stands for.
var simple = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escape is the length of the \uXXXX escape at the start of data and of what
// it stands for in UTF-8. n is 0 if it is invalid; size then tells an unpaired
// surrogate (1) from the rest (0).
func escape(data []byte) (n, size int) {
	r, n := unicodeEscape(data)
	switch {
	case n == 0:
		return 0, 0
	case r < 0:
		return 0, 1
	}
	return n, utf8.RuneLen(r)
}

// unicodeEscape decodes \uXXXX, or a pair of them that forms one character.
// n is 0 if there is none; r is -1 for an unpaired surrogate.
func unicodeEscape(data []byte) (r rune, n int) {
	r, ok := hex4(data)
	switch {
	case !ok:
		return 0, 0
	case r < 0xD800 || r > 0xDFFF:
		return r, 6
	case r >= 0xDC00:
		return -1, 6
	}
	low, ok := hex4(data[6:])
	if !ok || low < 0xDC00 || low > 0xDFFF {
		return -1, 6
	}
	return (r-0xD800)<<10 | (low - 0xDC00) + 0x10000, 12
}

// hex4 decodes the \uXXXX at the start of data.
func hex4(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	r := rune(0)
	for _, c := range data[2:6] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// Unescape appends to dst what literal (a valid string literal without its
// quotes) stands for, and returns the part of literal that is left. It stops
// early only when dst has no room for the next piece: it never grows dst.
func Unescape(dst, literal []byte) (out, rest []byte) {
	for len(literal) > 0 {
		run := bytes.IndexByte(literal, '\\')
		if run < 0 {
			run = len(literal)
		}
		if run > 0 {
			run = min(run, cap(dst)-len(dst))
			if run == 0 {
				return dst, literal
			}
			dst = append(dst, literal[:run]...)
			literal = literal[run:]
			continue
		}
		if cap(dst)-len(dst) < utf8.UTFMax {
			return dst, literal
		}
		if len(literal) < 2 {
			return dst, nil // not a valid literal
		}
		if c := simple[literal[1]]; c != 0 {
			dst = append(dst, c)
			literal = literal[2:]
			continue
		}
		r, n := unicodeEscape(literal)
		if n == 0 || r < 0 {
			return dst, nil // not a valid literal
		}
		dst = utf8.AppendRune(dst, r)
		literal = literal[n:]
	}
	return dst, nil
}

// Value is the string that t stands for in data, as a copy.
func (t Text) Value(data []byte) string {
	if !t.Escaped() {
		return string(t.Of(data))
	}
	out, _ := Unescape(make([]byte, 0, t.Size+utf8.UTFMax), t.Of(data))
	return string(out)
}
