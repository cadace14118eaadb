// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/binary"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/internal/jsonedit"
)

// Prompt is the view of a body that prefix hashing reads: one or more
// prompts, each a sequence of pieces in the order in which the engine's chat
// template puts them (tools, then messages: role and content parts).
//
// The bytes of a chat are: the tools as they were sent; the instructions of
// the Responses API; then for each message a mark, its role and its content
// parts. A separator that no UTF-8 text can hold ends each of them, so that
// two chats with the same bytes have the same parts.
type Prompt struct {
	body         []byte
	tools        jsonedit.Span
	instructions jsonedit.Text
	pieces       []piece
	each         bool // each piece is a prompt of its own

	textBytes int // of all text once unescaped, tools included
	ids       int // token ids
	media     int
}

// piece is a part of a prompt in the body.
type piece struct {
	kind pieceKind
	low  bool // a picture in low detail
	text jsonedit.Text
}

type pieceKind uint8

const (
	pieceRole  pieceKind = iota // begins a message; the role may be empty
	pieceText                   // a content part
	pieceRaw                    // JSON as it was sent
	pieceMedia                  // a URL, base64 data or a file id
	piecePlain                  // a whole prompt of text
	pieceIDs                    // a whole prompt of token ids: the array
)

// Bytes that no UTF-8 text holds keep the pieces apart.
const (
	markMessage = 0xFE
	markEnd     = 0xFF
)

// MediaTokens is what an image or another medium counts in a prompt, near
// what a small picture costs in current models. Its hash is repeated for four
// times as many bytes, so that it weighs in a prefix as it does in Tokens.
const MediaTokens = 256

// Len is the number of prompts (an array of prompts has several, of which the
// first maxPieces are viewed; chat one; a body without a prompt none).
func (p *Prompt) Len() int {
	switch {
	case p.each:
		return len(p.pieces)
	case len(p.pieces) > 0 || p.tools.Len() > 0 || p.instructions.Len() > 0:
		return 1
	}
	return 0
}

// Tokens estimates the tokens of all prompts: token ids exactly, text at four
// bytes a token, each medium at MediaTokens.
func (p *Prompt) Tokens() int { return (p.textBytes+3)/4 + p.ids + p.media*MediaTokens }

// gatherSize bounds the buffer in which short and escaped pieces are gathered.
const gatherSize = 4096

// gathers keeps buffers between calls of Bytes: what is passed to a function
// value cannot live on the stack.
var gathers = sync.Pool{New: func() any { return new([gatherSize]byte) }}

// Bytes calls yield with the unescaped bytes of prompt i in order, in pieces
// of any size; a token id is its four bytes, little endian; media (image and
// audio URLs or data) are a hash of their content. The pieces are valid only
// during the call. It stops when yield returns false. It does not allocate.
func (p *Prompt) Bytes(i int, yield func([]byte) bool) {
	if i < 0 || i >= p.Len() {
		return
	}
	buf := gathers.Get().(*[gatherSize]byte)
	defer gathers.Put(buf)
	g := gather{body: p.body, yield: yield, buf: buf[:0]}
	if p.each {
		g.piece(&p.pieces[i])
		g.flush()
		return
	}
	if p.tools.Len() > 0 {
		g.literal(jsonedit.Text{Span: p.tools, Size: p.tools.Len()})
		g.mark(markEnd)
	}
	if p.instructions.Len() > 0 {
		g.literal(p.instructions)
		g.mark(markEnd)
	}
	for i := range p.pieces {
		if g.stopped {
			return
		}
		g.piece(&p.pieces[i])
	}
	g.flush()
}

// gather joins short pieces and passes long ones on without a copy.
type gather struct {
	body    []byte
	yield   func([]byte) bool
	buf     []byte // capacity gatherSize
	stopped bool
}

func (g *gather) flush() {
	if len(g.buf) > 0 && !g.stopped {
		g.stopped = !g.yield(g.buf)
	}
	g.buf = g.buf[:0]
}

func (g *gather) mark(b byte) {
	if len(g.buf) == cap(g.buf) {
		g.flush()
	}
	g.buf = append(g.buf, b)
}

func (g *gather) piece(p *piece) {
	switch p.kind {
	case piecePlain:
		g.literal(p.text)
	case pieceIDs:
		g.tokenIDs(p.text.Of(g.body))
	case pieceMedia:
		g.medium(p.text.Of(g.body))
		g.mark(markEnd)
	case pieceRole:
		g.mark(markMessage)
		g.literal(p.text)
		g.mark(markEnd)
	default:
		g.literal(p.text)
		g.mark(markEnd)
	}
}

// literal passes what a string literal stands for.
func (g *gather) literal(t jsonedit.Text) {
	rest := t.Of(g.body)
	if !t.Escaped() && len(rest) >= gatherSize/4 {
		g.flush()
		if !g.stopped {
			g.stopped = !g.yield(rest)
		}
		return
	}
	for len(rest) > 0 && !g.stopped {
		if t.Escaped() {
			g.buf, rest = jsonedit.Unescape(g.buf, rest)
		} else {
			n := min(len(rest), cap(g.buf)-len(g.buf))
			g.buf, rest = append(g.buf, rest[:n]...), rest[n:]
		}
		if len(rest) > 0 {
			g.flush()
		}
	}
}

// medium stands for content that is a hash of it. A literal that is escaped
// in another way is another medium, which costs a prefix hit and no more.
func (g *gather) medium(content []byte) {
	hash := xxhash.Sum64(content)
	for range MediaTokens / 2 {
		if cap(g.buf)-len(g.buf) < 8 {
			g.flush()
		}
		g.buf = binary.LittleEndian.AppendUint64(g.buf, hash)
	}
}

// tokenIDs passes an array of numbers that Read has validated.
func (g *gather) tokenIDs(array []byte) {
	for len(array) > 0 && !g.stopped {
		if g.buf, array = jsonedit.AppendNaturals(g.buf, array); len(array) > 0 {
			g.flush()
		}
	}
}
