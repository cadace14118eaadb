// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package sse cuts a byte stream into server-sent events (WHATWG HTML, section
// 9.2.6) as it arrives, split at any byte.
//
// [Scanner.Feed] takes bytes, [Scanner.Next] yields the events that are whole,
// with their raw bytes, so that a caller can pass, drop or edit them. What the
// data means is for the caller; id and retry fields are passed over.
//
// Always: the raw bytes of all events in order, with the line feed that Feed
// reports, are exactly the bytes fed; an event that lies whole in one input is
// not copied; no more than one unfinished event is held, and that is bounded.
package sse

import "bytes"

// DefaultLimit bounds one event. Images and audio come base64-coded in one.
const DefaultLimit = 16 << 20

// keepCapacity is the buffer that a stream keeps between events.
const keepCapacity = 64 << 10

// Event is one event, or a stretch of comment lines, or an empty line. Its
// slices are valid until the next call of Feed or Close.
type Event struct {
	Raw     []byte // all bytes, including the empty line that ends it
	Type    []byte // the event field; nil if there is none
	Data    []byte // the data fields, joined by line feeds
	HasData bool   // there is a data field
	// Over: the event is over the limit. Raw is it or a part of it, in order;
	// nothing else is set. The rest follows in further parts.
	Over bool

	pieces []piece // where the lines of Data lie in Raw
	offset int     // of Data in Raw, if pieces is nil
}

// piece is the value of one of several data fields.
type piece struct{ data, raw int }

// RawOffset is the place in Raw of byte i of Data.
func (e *Event) RawOffset(i int) int {
	if e.pieces == nil {
		return e.offset + i
	}
	last := e.pieces[0]
	for _, p := range e.pieces {
		if p.data > i {
			break
		}
		last = p
	}
	return last.raw + i - last.data
}

// Scanner is one stream. The zero value is ready.
type Scanner struct {
	Limit int // bytes of one event; 0: DefaultLimit

	held   []byte  // the beginning of an event that earlier inputs left
	src    []byte  // held with the input, or the input alone
	pos    int     // where the event being read begins in src
	event  fields  // of the event being read
	joined []byte  // the data of that event, if it has several data fields
	pieces []piece // of joined

	started  bool // a line was seen: no byte order mark any more
	expectLF bool // the last event ended in CR: a LF that follows belongs to it

	over     bool // inside an event over the limit
	lineOpen bool // over: the current line has bytes
	afterCR  bool // over: the last byte was the CR of a line
}

// fields is what is known of an event. Offsets count from its first byte, so
// that they survive the move to held.
type fields struct {
	line       int // beginning of the current line
	seen       int // no line ends before this
	dataStart  int
	dataEnd    int
	dataLines  int
	typeStart  int
	typeEnd    int
	typeExists bool
}

// Feed takes the next bytes; the events of the last input must have been read.
// It returns 1 if the first byte is the LF of a CR LF whose CR ended the last
// event (it belongs to that one, and no later event has it), else 0.
func (s *Scanner) Feed(in []byte) int {
	lf := 0
	if s.expectLF && len(in) > 0 {
		s.expectLF = false
		if in[0] == '\n' {
			in, lf = in[1:], 1
		}
	}
	if len(s.held) > 0 {
		s.held = append(s.held, in...)
		s.src = s.held
	} else {
		s.src = in
	}
	s.pos = 0
	return lf
}

// Next is the next whole event of the input. When there is none, the beginning
// of an unfinished one is kept for the next input.
func (s *Scanner) Next() (Event, bool) {
	if s.over {
		return s.nextPart()
	}
	rest := s.src[s.pos:]
	for {
		end, next, found := lineEnd(rest, s.event.seen)
		if !found {
			return s.keep(rest, len(rest))
		}
		if end == s.event.line {
			s.started = true
			s.expectLF = next == len(rest) && rest[next-1] == '\r'
			return s.take(rest[:next]), true
		}
		if next == len(rest) && rest[next-1] == '\r' {
			// Whether the line ends here or with a LF, the next input tells.
			return s.keep(rest, end)
		}
		s.field(rest, rest[s.event.line:end])
		s.event.line, s.event.seen = next, next
	}
}

// MidEvent says whether the bytes given out end inside an event. With held,
// those that are kept back count as given out.
func (s *Scanner) MidEvent(held bool) bool { return s.over || held && len(s.held) > 0 }

// Between says that the bytes fed so far end between two events: a caller that
// knows the next events may then leave them out of what it feeds.
func (s *Scanner) Between() bool {
	return s.started && !s.over && !s.expectLF && len(s.held) == 0 && s.src == nil
}

// Close yields the unfinished event at the end of the stream, if there is one.
// Servers leave out the last empty line, so its data counts.
func (s *Scanner) Close() (Event, bool) {
	raw := s.held
	if len(raw) == 0 {
		return Event{}, false
	}
	s.held, s.src, s.pos = nil, nil, 0
	if line := bytes.TrimSuffix(raw[s.event.line:], []byte{'\r'}); len(line) > 0 {
		s.field(raw, line)
	}
	return s.take(raw), true
}

// lineEnd finds the first line terminator at or after from: the line ends at
// end, the next one begins at next.
func lineEnd(b []byte, from int) (end, next int, found bool) {
	window := b[from:]
	lf := bytes.IndexByte(window, '\n')
	if lf >= 0 {
		window = window[:lf]
	}
	if cr := bytes.IndexByte(window, '\r'); cr >= 0 {
		next = from + cr + 1
		if cr+1 == lf {
			next++
		}
		return from + cr, next, true
	}
	return from + lf, from + lf + 1, lf >= 0
}

// field notes the data or event field that line, a line of raw, may be.
func (s *Scanner) field(raw, line []byte) {
	start := s.event.line
	end := start + len(line)
	if !s.started {
		s.started = true
		if rest, ok := bytes.CutPrefix(line, []byte("\xEF\xBB\xBF")); ok {
			line = rest
			start += 3
		}
	}
	name, value := line, end
	if colon := bytes.IndexByte(line, ':'); colon >= 0 {
		name, value = line[:colon], start+colon+1
		if value < end && raw[value] == ' ' {
			value++
		}
	}
	switch string(name) {
	case "event":
		s.event.typeStart, s.event.typeEnd, s.event.typeExists = value, end, true
	case "data":
		switch s.event.dataLines {
		case 0:
			s.event.dataStart, s.event.dataEnd = value, end
		case 1:
			s.joined = append(s.joined[:0], raw[s.event.dataStart:s.event.dataEnd]...)
			s.pieces = append(s.pieces[:0], piece{0, s.event.dataStart})
			fallthrough
		default:
			s.joined = append(s.joined, '\n')
			s.pieces = append(s.pieces, piece{len(s.joined), value})
			s.joined = append(s.joined, raw[value:end]...)
		}
		s.event.dataLines++
	}
}

// take yields the event of these raw bytes and moves past it.
func (s *Scanner) take(raw []byte) Event {
	e, f := Event{Raw: raw}, &s.event
	switch {
	case len(raw) > s.limit():
		e.Over = true
	case f.dataLines == 1:
		e.Data, e.offset = raw[f.dataStart:f.dataEnd], f.dataStart
	case f.dataLines > 1:
		e.Data, e.pieces = s.joined, s.pieces
	}
	if !e.Over {
		e.HasData = f.dataLines > 0
		if f.typeExists {
			e.Type = raw[f.typeStart:f.typeEnd]
		}
	}
	s.pos += len(raw)
	s.event = fields{}
	return e
}

func (s *Scanner) limit() int {
	if s.Limit > 0 {
		return s.Limit
	}
	return DefaultLimit
}

// keep holds the unfinished event back, or gives it out if it is over the
// limit. No line of it ends before seen.
func (s *Scanner) keep(rest []byte, seen int) (Event, bool) {
	s.event.seen = seen
	if len(rest) > s.limit() {
		s.over = true
		s.afterCR = seen < len(rest)
		s.lineOpen = s.event.line < len(rest) && !s.afterCR
		s.event = fields{}
		s.release()
		return Event{Raw: rest, Over: true}, true
	}
	switch {
	case len(rest) == 0 && cap(s.held) > keepCapacity:
		s.held = nil
	case s.pos > 0 || len(s.held) == 0: // else src is held: nothing to move
		s.held = append(s.held[:0], rest...)
	}
	s.src, s.pos = nil, 0
	return Event{}, false
}

// release lets the memory of a large event go once it has been given out.
func (s *Scanner) release() { s.held, s.src, s.pos = nil, nil, 0 }

// nextPart gives out a further part of an event over the limit.
func (s *Scanner) nextPart() (Event, bool) {
	rest := s.src[s.pos:]
	if len(rest) == 0 {
		return Event{}, false
	}
	at := 0
	if s.afterCR && rest[0] == '\n' {
		at = 1
	}
	s.afterCR = false
	for {
		end, next, found := lineEnd(rest, at)
		if !found {
			s.lineOpen = s.lineOpen || at < len(rest)
			s.src, s.pos = nil, 0
			return Event{Raw: rest, Over: true}, true
		}
		lastCR := next == len(rest) && rest[next-1] == '\r'
		if end == at && !s.lineOpen {
			s.expectLF = lastCR
			s.over = false
			s.pos += next
			return Event{Raw: rest[:next], Over: true}, true
		}
		s.lineOpen = false
		s.afterCR = lastCR
		at = next
	}
}
