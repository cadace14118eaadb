// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/sse"
)

// pattern is the newest event with content, but for the content. A server
// sends hundreds of events that differ in that string only; one with the same
// bytes around it tells the same and need not be read again.
type pattern struct {
	before, after []byte // all of the event before and after the text of the string
	edited        []byte // what goes out for before; empty: itself
}

// maxPattern bounds what a tap keeps of an event, in bytes.
const maxPattern = 4 << 10

// known passes the events at the front of in that follow the pattern and
// returns what is left of in.
func (t *Tap) known(in []byte) []byte {
	p := &t.pattern
	rest := in
	for len(p.before) > 0 && bytes.HasPrefix(rest, p.before) {
		text := rest[len(p.before):]
		n := bytes.IndexByte(text, '"')
		if n <= 0 || !bytes.HasPrefix(text[n:], p.after) || !plainText(text[:n]) {
			break
		}
		end := n + len(p.after)
		if len(p.edited) > 0 {
			t.pass(p.edited)
			t.pass(text[:end])
		}
		t.found.tokens++
		t.dropped = false
		rest = text[end:]
	}
	if len(p.edited) == 0 && len(rest) > 0 { // else the caller passes in itself
		t.pass(in[:len(in)-len(rest)])
	}
	return rest
}

// plainText says that b is the text of a JSON string without escapes.
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

// learn keeps the shape of e, which was read as c: it carried the content of
// one choice and nothing else that the tap looks at. Where the string is not
// plain to see, or more than one line makes the event, nothing is learnt.
func (t *Tap) learn(e *sse.Event, c *chunk) {
	p := &t.pattern
	p.before = p.before[:0]
	data := e.Data
	key := []byte(`"content":"`)
	if bytes.Count(data, key) != 1 {
		if key = []byte(`"text":"`); bytes.Count(data, key) != 1 {
			return
		}
	}
	start := bytes.Index(data, key) + len(key)
	end := start + bytes.IndexByte(data[start:], '"')
	if end <= start || !plainText(data[start:end]) || c.model.End > start {
		return
	}
	raw := e.Raw
	if bytes.HasPrefix(raw, []byte("\xEF\xBB\xBF")) {
		return // a byte order mark begins a stream, and is a part of a name elsewhere
	}
	if len(raw)-(end-start) > maxPattern || e.RawOffset(end)-e.RawOffset(start) != end-start || raw[len(raw)-1] != '\n' {
		return
	}
	p.before = append(p.before, raw[:e.RawOffset(start)]...)
	p.after = append(p.after[:0], raw[e.RawOffset(end):]...)
	p.edited = p.edited[:0]
	if t.renames(c, data) {
		p.edited = append(p.edited, raw[:e.RawOffset(c.model.Start)]...)
		p.edited = append(p.edited, t.model...)
		p.edited = append(p.edited, raw[e.RawOffset(c.model.End-1)+1:e.RawOffset(start)]...)
	}
}
