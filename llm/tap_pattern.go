// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"unicode/utf8"
)

// pattern is the newest event with content, but for the content. A server
// sends hundreds of events that differ in that string only; one with the same
// bytes around it tells the same and need not be read again.
type pattern struct {
	prefix, suffix []byte // all before and after the text of the string
	chunk          chunk
}

// maxPattern bounds what a tap keeps of an event, in bytes.
const maxPattern = 4 << 10

// matches says whether data is the pattern with another text: one that is not
// empty, has no escapes and is valid in a JSON string.
func (p *pattern) matches(data []byte) bool {
	n := len(data) - len(p.suffix)
	if len(p.prefix) == 0 || n <= len(p.prefix) || !bytes.HasPrefix(data, p.prefix) || !bytes.HasSuffix(data, p.suffix) {
		return false
	}
	return plainText(data[len(p.prefix):n])
}

func plainText(b []byte) bool {
	ascii := byte(0)
	for _, c := range b {
		if c < ' ' || c == '"' || c == '\\' {
			return false
		}
		ascii |= c
	}
	return ascii < utf8.RuneSelf || utf8.Valid(b)
}

// learn keeps the shape of an event that was read as c: it carried the content
// of one choice and nothing else that the tap looks at. Where the string is
// not plain to see, nothing is learnt.
func (p *pattern) learn(data []byte, c chunk) {
	p.prefix = p.prefix[:0]
	key := []byte(`"content":"`)
	if bytes.Count(data, key) != 1 {
		if key = []byte(`"text":"`); bytes.Count(data, key) != 1 {
			return
		}
	}
	start := bytes.Index(data, key) + len(key)
	end := start + bytes.IndexByte(data[start:], '"')
	if end <= start || len(data)-(end-start) > maxPattern || !plainText(data[start:end]) || c.model.End > start {
		return
	}
	p.prefix = append(p.prefix, data[:start]...)
	p.suffix = append(p.suffix[:0], data[end:]...)
	p.chunk = c
}
