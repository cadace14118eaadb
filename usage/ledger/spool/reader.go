// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// A segment is a header, frames, and zeros up to its end. A frame is the length of
// its payload and that payload's CRC-32C, four bytes each, little endian, and the
// payload, of one byte at least.
const (
	frameHead   = 8
	segmentHead = 32
	magic       = "PNSTKLG1"
	// MostPayload bounds a row.
	MostPayload = 16 << 10
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// Begin appends the room for the head of a frame, behind which its payload goes.
func Begin(b []byte) []byte { return append(b, make([]byte, frameHead)...) }

// Seal ends the frame that is all of b.
func Seal(b []byte) {
	payload := b[frameHead:]
	binary.LittleEndian.PutUint32(b, uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[4:], checksum(payload))
}

// header begins a segment.
func header(source, first int64) []byte {
	b := make([]byte, segmentHead)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], uint64(source))
	binary.LittleEndian.PutUint64(b[16:], uint64(first))
	binary.LittleEndian.PutUint32(b[24:], checksum(b[:24]))
	return b
}

// ErrSum is a frame whose bytes are not those that were written; the next one can
// be read.
var ErrSum = errors.New("a row has changed on the disk")

// errBlank is a place where nothing was written.
var errBlank = errors.New("nothing was written here")

// Reader reads the frames of a segment one after another.
type Reader struct {
	r      io.Reader
	source int64
	first  int64
	offset int64 // of the next frame
	seq    int64 // of the next row
	end    int64 // nothing behind it is read: it may be half written
	buf    []byte
	have   int // bytes of buf
	at     int // of them read
}

const readAhead = 64 << 10

// Open opens a segment at the place up to which it was taken.
func (g *Segment) Open() (*Reader, error) {
	f, err := os.Open(g.Path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(g.Taken.Offset, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return &Reader{r: f, source: g.Source, first: g.First, offset: g.Taken.Offset, seq: g.Taken.Seq, end: g.Size, buf: make([]byte, readAhead)}, nil
}

// Extend says that the segment has grown.
func (d *Reader) Extend(size int64) { d.end = max(d.end, size) }

// At is the place of the next frame.
func (d *Reader) At() Position { return Position{d.offset, d.seq} }

// Close closes the file.
func (d *Reader) Close() {
	if c, ok := d.r.(io.Closer); ok {
		c.Close()
	}
}

// newReader reads the header, and goes as far as r does.
func newReader(r io.Reader) (*Reader, error) {
	d := &Reader{r: r, buf: make([]byte, readAhead), end: 1<<63 - 1}
	b, err := d.need(segmentHead)
	if err != nil {
		return nil, err
	}
	if blank(b) {
		return nil, errBlank
	}
	if string(b[:8]) != magic || binary.LittleEndian.Uint32(b[24:]) != checksum(b[:24]) {
		return nil, errors.New("not a segment of the ledger's spool")
	}
	d.source = int64(binary.LittleEndian.Uint64(b[8:]))
	d.first = int64(binary.LittleEndian.Uint64(b[16:]))
	if d.source < 0 || d.first < 0 || d.first > 1<<62 {
		return nil, errors.New("not a segment of the ledger's spool")
	}
	d.at += segmentHead
	d.offset, d.seq = segmentHead, d.first
	return d, nil
}

// need makes n bytes readable, and does not take them: io.EOF when there is
// nothing more, io.ErrUnexpectedEOF when there is less.
func (d *Reader) need(n int) ([]byte, error) {
	for d.have-d.at < n {
		if d.at > 0 {
			copy(d.buf, d.buf[d.at:d.have])
			d.have -= d.at
			d.at = 0
		}
		room := min(int64(len(d.buf)-d.have), d.end-d.offset-int64(d.have))
		k, err := 0, io.EOF
		if room > 0 {
			k, err = d.r.Read(d.buf[d.have : d.have+int(room)])
		}
		d.have += k
		if k > 0 {
			continue
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		if err == io.EOF && d.have > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return d.buf[d.at : d.at+n], nil
}

// Next is the payload of the next frame, until the next call. After [ErrSum] the
// frame counts as read.
func (d *Reader) Next() ([]byte, error) {
	head, err := d.need(frameHead)
	if err == io.ErrUnexpectedEOF && blank(d.buf[d.at:d.have]) {
		err = errBlank // too short for another one
	}
	if err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head))
	sum := binary.LittleEndian.Uint32(head[4:])
	switch {
	case n == 0:
		return nil, errBlank
	case n > MostPayload:
		return nil, fmt.Errorf("a row of %d bytes cannot be", n)
	}
	frame, err := d.need(frameHead + n)
	if err != nil {
		return nil, err
	}
	d.at += frameHead + n
	d.offset += int64(frameHead + n)
	d.seq++
	if checksum(frame[frameHead:]) != sum {
		return nil, ErrSum
	}
	return frame[frameHead:], nil
}

func blank(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// rest says how the segment ends behind a place where nothing was written: io.EOF
// if nothing follows, io.ErrUnexpectedEOF if it may be what was being written when
// the process ended.
func (d *Reader) rest() error {
	last, at := 0, 0
	for {
		b, err := d.need(1)
		if err != nil {
			break
		}
		b = b[:d.have-d.at]
		for i, c := range b {
			if c != 0 {
				last = at + i
			}
		}
		at += len(b)
		d.at += len(b)
	}
	switch {
	case last == 0:
		return io.EOF
	case last < MostPut:
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w, and something behind it", errBlank)
}
