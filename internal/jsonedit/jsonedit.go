// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package jsonedit reads JSON text in one pass without building values, and
// edits it in place of marshalling it again.
//
// A [Scanner] is a cursor: the caller walks the members and elements that it
// knows and skips the rest; both validate what they pass. [Apply] splices
// [Edit]s in at the spans that a scan gave. What fields mean, and which of
// them may occur twice, is for the caller.
//
// Always: a document that was scanned to [Scanner.Finish] is valid RFC 8259
// text in valid UTF-8 without unpaired surrogates, nested no deeper than the
// bound; scanning allocates nothing; bytes outside an edit stay as they are.
package jsonedit

import (
	"fmt"
	"iter"
)

// Span is a part of the scanned bytes, from Start up to but not including End.
type Span struct{ Start, End int }

// Len is the number of bytes in s.
func (s Span) Len() int { return s.End - s.Start }

// Of is the part of data that s covers.
func (s Span) Of(data []byte) []byte { return data[s.Start:s.End] }

// Text is a string literal without its quotes. Size is its length in bytes
// once unescaped.
type Text struct {
	Span
	Size int
}

// Escaped says whether the literal differs from the string it stands for.
func (t Text) Escaped() bool { return t.Size != t.Len() }

// Quoted is the literal with its quotes.
func (t Text) Quoted() Span { return Span{t.Start - 1, t.End + 1} }

// Kind is the kind of a value, known from its first byte.
type Kind uint8

// The kinds. Invalid also stands for the end of the text.
const (
	Invalid Kind = iota
	Object
	Array
	String
	Number
	True
	False
	Null
)

// DefaultDepth is the bound on nesting where the caller gives none.
const DefaultDepth = 128

// maxDepth bounds what a caller may ask for: Skip recurses.
const maxDepth = 10000

// Scanner is a cursor over one JSON text. After a fault every method does
// nothing and says no; Err tells the first one. The zero value is not usable.
type Scanner struct {
	data  []byte
	pos   int
	depth int // open containers
	max   int
	first bool // the next member or element is the first of its container
	fault string
	at    int // byte offset of the fault
}

// NewScanner starts at the beginning of data. Containers may nest depth deep
// (0: DefaultDepth).
func NewScanner(data []byte, depth int) Scanner {
	if depth <= 0 {
		depth = DefaultDepth
	}
	return Scanner{data: data, max: min(depth, maxDepth)}
}

// SyntaxError says what is wrong with a text and at which byte.
type SyntaxError struct {
	Offset int
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Reason)
}

// Err is the first fault, a *SyntaxError, or nil.
func (s *Scanner) Err() error {
	if s.fault == "" {
		return nil
	}
	return &SyntaxError{Offset: s.at, Reason: s.fault}
}

// Failed says whether Err has something to tell, without allocating it.
func (s *Scanner) Failed() bool { return s.fault != "" }

// Pos is the offset of the next unread byte.
func (s *Scanner) Pos() int { return s.pos }

func (s *Scanner) fail(at int, fault string) {
	if s.fault == "" {
		s.fault, s.at = fault, at
		s.pos = len(s.data)
	}
}

const (
	faultEnd     = "unexpected end of the text"
	faultValue   = "a value should begin here"
	faultComma   = "a comma or a closing bracket should be here"
	faultKey     = "a member name should be here"
	faultColon   = "a colon should be here"
	faultDepth   = "nested too deep"
	faultMore    = "text after the value"
	faultNumber  = "not a number"
	faultLiteral = "not a literal"
)

func (s *Scanner) space() {
	i, data := s.pos, s.data
	for i < len(data) && data[i] <= ' ' && (data[i] == ' ' || data[i] == '\n' || data[i] == '\r' || data[i] == '\t') {
		i++
	}
	s.pos = i
}

// kinds maps the first byte of a value to its kind.
var kinds = [256]Kind{
	'{': Object, '[': Array, '"': String, 't': True, 'f': False, 'n': Null, '-': Number,
	'0': Number, '1': Number, '2': Number, '3': Number, '4': Number,
	'5': Number, '6': Number, '7': Number, '8': Number, '9': Number,
}

// Peek is the kind of the value at the cursor. It passes white space only.
func (s *Scanner) Peek() Kind {
	s.space()
	if s.pos >= len(s.data) {
		return Invalid
	}
	return kinds[s.data[s.pos]]
}

// Object enters the object at the cursor; the caller then calls NextMember
// until it says no. It says no, and does nothing, if there is another value.
func (s *Scanner) Object() bool { return s.Peek() == Object && s.enter() }

// Array enters the array at the cursor; the caller then calls NextElement
// until it says no. It says no, and does nothing, if there is another value.
func (s *Scanner) Array() bool { return s.Peek() == Array && s.enter() }

func (s *Scanner) enter() bool {
	if s.depth >= s.max {
		s.fail(s.pos, faultDepth)
		return false
	}
	s.depth++
	s.pos++
	s.first = true
	return true
}

// NextMember reads up to the value of the next member of the object that the
// cursor is in. The caller must consume that value. At the end of the object
// it leaves the object and says no.
func (s *Scanner) NextMember() (Text, bool) {
	if !s.next('}') {
		return Text{}, false
	}
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		s.unexpected(faultKey)
		return Text{}, false
	}
	key := s.text()
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != ':' {
		s.unexpected(faultColon)
		return Text{}, false
	}
	s.pos++
	return key, true
}

// Members are the keys of the object at the cursor; another value is passed over.
// For each the loop must consume the value, or end for good.
func (s *Scanner) Members() iter.Seq[Text] {
	return func(yield func(Text) bool) {
		if !s.Object() {
			s.Skip()
			return
		}
		for {
			if key, ok := s.NextMember(); !ok || !yield(key) {
				return
			}
		}
	}
}

// NextElement says whether the array that the cursor is in has another
// element, which the caller must then consume. At the end it leaves the array.
func (s *Scanner) NextElement() bool { return s.next(']') }

// next passes the comma before a further item, or the closing bracket.
func (s *Scanner) next(end byte) bool {
	s.space()
	if s.pos >= len(s.data) {
		s.unexpected(faultEnd)
		return false
	}
	c := s.data[s.pos]
	if c == end {
		s.pos++
		s.depth--
		s.first = false
		return false
	}
	if s.first {
		s.first = false
		return true
	}
	if c != ',' {
		s.unexpected(faultComma)
		return false
	}
	s.pos++
	s.space()
	return true
}

func (s *Scanner) unexpected(fault string) {
	if s.pos >= len(s.data) {
		fault = faultEnd
	}
	s.fail(s.pos, fault)
}

// Text reads the string at the cursor. It says no, and does nothing, if there
// is another value.
func (s *Scanner) Text() (Text, bool) {
	if s.Peek() != String {
		return Text{}, false
	}
	t := s.text()
	return t, s.fault == ""
}

// Number reads the number at the cursor. It says no, and does nothing, if
// there is another value.
func (s *Scanner) Number() (Span, bool) {
	if s.Peek() != Number {
		return Span{}, false
	}
	start := s.pos
	s.number()
	return Span{start, s.pos}, s.fault == ""
}

// Skip passes the value at the cursor, whatever it is, and validates it.
func (s *Scanner) Skip() Span {
	kind := s.Peek()
	start := s.pos
	switch kind {
	case Object:
		if s.enter() {
			for {
				if _, ok := s.NextMember(); !ok {
					break
				}
				s.Skip()
			}
		}
	case Array:
		if s.enter() {
			for s.NextElement() {
				s.Skip()
			}
		}
	case String:
		s.text()
	case Number:
		s.number()
	case True:
		s.literal("true")
	case False:
		s.literal("false")
	case Null:
		s.literal("null")
	default:
		s.unexpected(faultValue)
	}
	return Span{start, s.pos}
}

// Finish says whether the text ended with the value just read and without a
// fault.
func (s *Scanner) Finish() bool {
	s.space()
	if s.fault == "" && s.pos < len(s.data) {
		s.fail(s.pos, faultMore)
	}
	return s.fault == ""
}

func (s *Scanner) literal(want string) {
	if end := s.pos + len(want); end <= len(s.data) && string(s.data[s.pos:end]) == want {
		s.pos = end
		return
	}
	s.fail(s.pos, faultLiteral)
}

// number follows the grammar of RFC 8259 section 6.
func (s *Scanner) number() {
	i, data := s.pos, s.data
	if data[i] == '-' {
		i++
	}
	whole := i
	i = digits(data, i)
	if i == whole || (data[whole] == '0' && i > whole+1) {
		s.fail(s.pos, faultNumber)
		return
	}
	if i < len(data) && data[i] == '.' {
		fraction := i + 1
		if i = digits(data, fraction); i == fraction {
			s.fail(s.pos, faultNumber)
			return
		}
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		if i++; i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		exponent := i
		if i = digits(data, exponent); i == exponent {
			s.fail(s.pos, faultNumber)
			return
		}
	}
	s.pos = i
}

func digits(data []byte, i int) int {
	for i < len(data) && data[i]-'0' <= 9 {
		i++
	}
	return i
}

// Int is the value of a number that is written as an integer (no fraction, no
// exponent) and fits; otherwise it says no.
func Int(number []byte) (int, bool) {
	negative := len(number) > 0 && number[0] == '-'
	if negative {
		number = number[1:]
	}
	if len(number) == 0 || len(number) > 18 {
		return 0, false
	}
	n := 0
	for _, c := range number {
		if c-'0' > 9 {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}
