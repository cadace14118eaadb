// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package jsonedit

import "unicode/utf8"

// Edit replaces the bytes of a span by Text. An empty span inserts.
type Edit struct {
	Span
	Text []byte
}

// Apply makes all edits at once and returns a new slice of exactly the needed
// length. The edits must be in order and must not overlap; several insertions
// at one place come out in the order given.
func Apply(data []byte, edits ...Edit) []byte {
	size := len(data)
	for _, e := range edits {
		size += len(e.Text) - e.Len()
	}
	out := make([]byte, 0, size)
	from := 0
	for _, e := range edits {
		out = append(out, data[from:e.Start]...)
		out = append(out, e.Text...)
		from = e.End
	}
	return append(out, data[from:]...)
}

// Insert is the edit that adds a member as the last of object, the span of an
// object in data. member is its text: a quoted name, a colon and a value.
func Insert(data []byte, object Span, member string) Edit {
	inside := NewScanner(data[object.Start:object.End], 1)
	inside.Object()
	text := make([]byte, 0, len(member)+1)
	if inside.space(); inside.pos < object.Len()-1 {
		text = append(text, ',')
	}
	end := object.End - 1
	return Edit{Span{end, end}, append(text, member...)}
}

// AppendString appends s as a string literal. Invalid UTF-8 in s becomes
// U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		i++
	}
	return append(dst, '"')
}
