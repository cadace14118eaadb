// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A segment of the spool is a header and frames. A frame is the length of its
// payload and that payload's CRC-32C, four bytes each, little endian, and the
// payload: the form of the row, its numbers and texts, and at the end its names,
// which the reader looks up as they are.
const (
	frameHead   = 8
	maxPayload  = 16 << 10
	segmentHead = 32
	magic       = "PNSTKLG1"
	rowForm     = 1
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// appendFrame appends r as a frame.
func appendFrame(b []byte, r *Row) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHead)...)
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
	b = appendNames(b, &r.Names)
	payload := b[start+frameHead:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], checksum(payload))
	return b
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
