// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/binary"
	"hash/crc32"
)

// This file reads application/vnd.amazon.eventstream: frames of a prelude (the
// length of all and of the headers, and a CRC of both), headers, a payload and a
// CRC of all before it. Numbers are big endian.

const (
	framePrelude = 12       // bytes before the headers
	frameLeast   = 16       // bytes of a frame without headers and payload
	maxFrame     = 16 << 20 // bytes; that of the services too
)

// frame is one message of an event stream. Its slices are valid until the next
// call of the scanner.
type frame struct {
	message   []byte // event, exception or error
	event     []byte // type of the event
	exception []byte // type of the exception
	code      []byte // of an error
	text      []byte // of an error
	payload   []byte
}

// frameScanner cuts a stream into frames, split at any byte. The zero value is
// ready.
type frameScanner struct {
	in    []byte // what the caller fed last, not yet read
	held  []byte // the beginning of an unfinished frame
	fault string // what is wrong with the stream; "": nothing
}

// feed takes the next bytes; the frames of the last input must have been read.
func (f *frameScanner) feed(in []byte) { f.in = in }

// next is the next whole frame. When there is none, the rest is kept.
func (f *frameScanner) next() (frame, bool) {
	if f.fault != "" {
		return frame{}, false
	}
	if len(f.held) == 0 {
		n, ok := f.length(f.in)
		if ok && len(f.in) >= n {
			raw := f.in[:n]
			f.in = f.in[n:]
			return f.parse(raw)
		}
		f.held = append(f.held, f.in...)
		f.in = nil
		return frame{}, false
	}
	if missing := framePrelude - len(f.held); missing > 0 {
		f.hold(missing)
	}
	n, ok := f.length(f.held)
	if !ok {
		return frame{}, false
	}
	if f.hold(n - len(f.held)); len(f.held) < n {
		return frame{}, false
	}
	raw := f.held
	f.held = f.held[:0]
	if cap(raw) > keepOut {
		f.held = nil
	}
	return f.parse(raw)
}

// hold takes n bytes more, or as many as there are.
func (f *frameScanner) hold(n int) {
	n = min(n, len(f.in))
	f.held = append(f.held, f.in[:n]...)
	f.in = f.in[n:]
}

// mid says that the stream ends inside a frame.
func (f *frameScanner) mid() bool { return len(f.held) > 0 }

// length checks a prelude and gives the length of its frame; false: there is no
// whole prelude, or it is wrong.
func (f *frameScanner) length(b []byte) (int, bool) {
	if len(b) < framePrelude || f.fault != "" {
		return 0, false
	}
	total, headers := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	switch {
	case crc32.ChecksumIEEE(b[:8]) != binary.BigEndian.Uint32(b[8:]):
		f.fault = "a frame whose prelude has another checksum"
	case total > maxFrame:
		f.fault = "a frame over the limit"
	case total < frameLeast || headers > total-frameLeast:
		f.fault = "a frame of an impossible length"
	}
	return int(total), f.fault == ""
}

// parse reads a whole frame.
func (f *frameScanner) parse(raw []byte) (m frame, ok bool) {
	end := len(raw) - 4
	if crc32.ChecksumIEEE(raw[:end]) != binary.BigEndian.Uint32(raw[end:]) {
		f.fault = "a frame with another checksum"
		return m, false
	}
	headers := framePrelude + int(binary.BigEndian.Uint32(raw[4:]))
	m.payload = raw[headers:end]
	for b := raw[framePrelude:headers]; len(b) > 0; {
		name, value, rest, ok := frameHeader(b)
		if !ok {
			f.fault = "a frame with malformed headers"
			return m, false
		}
		b = rest
		switch string(name) {
		case ":message-type":
			m.message = value
		case ":event-type":
			m.event = value
		case ":exception-type":
			m.exception = value
		case ":error-code":
			m.code = value
		case ":error-message":
			m.text = value
		}
	}
	return m, true
}

// headerSizes are the sizes of values by their type; -1: two bytes tell it. Types:
// true, false, int8, int16, int32, int64, bytes, string, timestamp, UUID.
var headerSizes = [...]int{0, 0, 1, 2, 4, 8, -1, -1, 8, 16}

// frameHeader reads one header. Values other than strings come out as bytes.
func frameHeader(b []byte) (name, value, rest []byte, ok bool) {
	n := int(b[0])
	if len(b) < 1+n+1 {
		return nil, nil, nil, false
	}
	name, b = b[1:1+n], b[1+n:]
	if int(b[0]) >= len(headerSizes) {
		return nil, nil, nil, false
	}
	size := headerSizes[b[0]]
	if b = b[1:]; size < 0 {
		if len(b) < 2 {
			return nil, nil, nil, false
		}
		size, b = int(binary.BigEndian.Uint16(b)), b[2:]
	}
	if len(b) < size {
		return nil, nil, nil, false
	}
	return name, b[:size], b[size:], true
}

// frameEvents reads the frames of one dialect.
type frameEvents interface {
	eventReader
	frame(m *frame, to *relay)
}

// frameReader reads a stream of frames.
type frameReader struct {
	scanner frameScanner
	last    frame
	reader  frameEvents
}

func (r *frameReader) feed(in []byte, to *relay) {
	r.scanner.feed(in)
	for !to.ended {
		m, ok := r.scanner.next()
		if !ok {
			break
		}
		r.last = m
		r.reader.frame(&r.last, to)
	}
	if r.scanner.fault != "" && !to.ended {
		to.fail("the server sent " + r.scanner.fault)
	}
}

func (r *frameReader) close(to *relay) {
	if !r.scanner.mid() {
		r.reader.end(to)
	}
}
