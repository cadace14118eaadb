// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/penstock/penstock/usage/ledger/spool"
)

// A row in the spool is the number of this form, the row's numbers and texts, and
// at the end its names, which the reader looks up as they are.
const rowForm = 1

// frames are rows in the form of the spool.
type frames struct {
	bytes []byte
	rows  int
	room  []Row // for the rows of one item
}

func (f *frames) reset() { f.bytes, f.rows = f.bytes[:0], 0 }

// add appends the rows of an item.
func (f *frames) add(it *item) {
	if it.record != nil {
		f.room = rowsOf(f.room[:0], it.record)
	} else {
		it.outcome.clean()
		f.room = append(f.room[:0], *it.outcome)
	}
	for i := range f.room {
		start := len(f.bytes)
		f.bytes = appendRow(spool.Begin(f.bytes), &f.room[i])
		spool.Seal(f.bytes[start:])
	}
	f.rows += len(f.room)
	clear(f.room) // which would keep the record's texts
}

// appendRow appends the payload of r.
func appendRow(b []byte, r *Row) []byte {
	b = append(b, rowForm)
	b = binary.AppendVarint(b, r.At)
	b = appendText(b, r.Request)
	b = appendText(b, r.Task)
	b = binary.AppendVarint(b, r.Attempt)
	for _, n := range r.Counts.all() {
		b = binary.AppendVarint(b, *n)
	}
	b = appendAmount(b, r.Cost)
	b = appendAmount(b, r.Avoided)
	b = binary.AppendVarint(b, r.TTFT)
	b = binary.AppendVarint(b, r.Total)
	return appendNames(b, &r.Names)
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendAmount(b []byte, a Amount) []byte {
	if !a.Known {
		return append(b, 0)
	}
	return binary.AppendVarint(append(b, 1), a.Pico)
}

func appendNames(b []byte, n *Names) []byte {
	b = binary.AppendVarint(b, n.Status)
	for _, s := range n.texts() {
		b = appendText(b, *s)
	}
	return b
}

// errFrame is a payload that is none of ours.
var errFrame = errors.New("not a row of this version")

// entry is a row as the spool has it. names is the encoded form of its Names and
// aliases the buffer that was read.
type entry struct {
	Row
	names []byte
}

// scan reads values one after another; the first that is not there ends it.
type scan struct {
	b   []byte
	bad bool
}

func (s *scan) varint() int64 {
	v, n := binary.Varint(s.b)
	if n <= 0 {
		s.bad, s.b = true, nil
		return 0
	}
	s.b = s.b[n:]
	return v
}

func (s *scan) text() string {
	v, n := binary.Uvarint(s.b)
	if n <= 0 || v > uint64(len(s.b)-n) {
		s.bad, s.b = true, nil
		return ""
	}
	t := string(s.b[n : n+int(v)])
	s.b = s.b[n+int(v):]
	return t
}

func (s *scan) amount() Amount {
	if len(s.b) == 0 {
		s.bad = true
		return Amount{}
	}
	known := s.b[0] == 1
	s.b = s.b[1:]
	if !known {
		return Amount{}
	}
	return Amount{Pico: s.varint(), Known: true}
}

// readPayload reads all of a row but its names.
func readPayload(b []byte, e *entry) error {
	if len(b) == 0 || b[0] != rowForm {
		return errFrame
	}
	s := scan{b: b[1:]}
	e.At, e.Request, e.Task, e.Attempt = s.varint(), s.text(), s.text(), s.varint()
	for _, n := range e.Counts.all() {
		*n = s.varint()
	}
	e.Cost, e.Avoided = s.amount(), s.amount()
	e.TTFT, e.Total = s.varint(), s.varint()
	if s.bad {
		return errFrame
	}
	e.names = s.b
	return nil
}

func readNames(b []byte) (Names, error) {
	var n Names
	s := scan{b: b}
	n.Status = s.varint()
	for _, t := range n.texts() {
		*t = s.text()
	}
	if s.bad || len(s.b) > 0 {
		return n, errFrame
	}
	return n, nil
}

// namesID is the number by which the rows of a database refer to names: it
// follows from them alone, so that gateways agree without asking each other. A
// client chooses some of them, and so the hash is one that cannot be aimed.
func namesID(encoded []byte) int64 {
	sum := sha256.Sum256(encoded)
	return int64(binary.LittleEndian.Uint64(sum[:8]) &^ (1 << 63))
}
