// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errSum is a frame whose bytes are not those that were written; the next one can
// be read.
var errSum = errors.New("a row has changed on the disk")

// reader reads the frames of a segment one after another.
type reader struct {
	r      io.Reader
	source int64
	first  int64
	offset int64 // of the next frame
	seq    int64 // of the next row
	buf    []byte
	have   int // bytes of buf
	at     int // of them read
}

// newReader reads the header.
func newReader(r io.Reader) (*reader, error) {
	d := &reader{r: r, buf: make([]byte, 256<<10)}
	b, err := d.need(segmentHead)
	if err != nil {
		return nil, err
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
func (d *reader) need(n int) ([]byte, error) {
	for d.have-d.at < n {
		if d.at > 0 {
			copy(d.buf, d.buf[d.at:d.have])
			d.have -= d.at
			d.at = 0
		}
		k, err := d.r.Read(d.buf[d.have:])
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

// next is the payload of the next frame, until the next call. After errSum the
// frame counts as read.
func (d *reader) next() ([]byte, error) {
	head, err := d.need(frameHead)
	if err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head))
	sum := binary.LittleEndian.Uint32(head[4:])
	if n == 0 || n > maxPayload {
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
		return nil, errSum
	}
	return frame[frameHead:], nil
}
