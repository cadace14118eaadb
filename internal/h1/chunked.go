// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"net/http"
	"net/textproto"
)

// dechunker takes the framing out of a chunked body (RFC 9112 §7.1). It may be
// fed in pieces of any size. The zero value is ready.
type dechunker struct {
	state chunkState
	size  int64  // of the chunk, what is left of it
	line  int    // bytes of the size line, or of the trailer's, so far
	text  []byte // the trailer
}

type chunkState int8

const (
	atSize      chunkState = iota // before and in the digits
	atBlank                       // in white space after them
	atExt                         // after the semicolon, up to CR
	atSizeLF                      // at the LF of the size line
	atData                        // in the bytes of a chunk
	atDataCR                      // at the CR after them
	atDataLF                      // at the LF after that
	atTrailer                     // in a line of the trailer
	atTrailerLF                   // at its LF
	atEnd
)

const (
	maxSizeLine = 1 << 10  // bytes, extensions included
	maxTrailer  = 32 << 10 // bytes
)

func (d *dechunker) done() bool { return d.state == atEnd }

// decode moves the body's bytes in p to its front. It returns their number and
// how many bytes of p were used: fewer than all only when done.
func (d *dechunker) decode(p []byte) (n, used int, err error) {
	for i := 0; i < len(p); {
		c := p[i]
		switch d.state {
		case atData:
			k := int(min(d.size, int64(len(p)-i)))
			copy(p[n:], p[i:i+k])
			n, i, d.size = n+k, i+k, d.size-int64(k)
			if d.size == 0 {
				d.state = atDataCR
			}
			continue
		case atSize:
			digit := unhex(c)
			if d.line++; d.line > maxSizeLine {
				return n, i, malformed("a chunk size without end")
			}
			switch {
			case digit >= 0 && d.size < 1<<58:
				d.size = d.size<<4 | int64(digit)
			case digit >= 0:
				return n, i, malformed("a chunk of more bytes than can be counted")
			case d.line == 1:
				return n, i, malformed("a chunk without a size")
			case c == '\r':
				d.state = atSizeLF
			case c == ';':
				d.state = atExt
			case c == ' ' || c == '\t':
				d.state = atBlank
			default:
				return n, i, malformed("a chunk size that is not hexadecimal")
			}
		case atBlank:
			if d.line++; d.line > maxSizeLine {
				return n, i, malformed("a chunk size without end")
			}
			switch c {
			case ' ', '\t':
			case ';':
				d.state = atExt
			case '\r':
				d.state = atSizeLF
			default:
				return n, i, malformed("a chunk size that is not hexadecimal")
			}
		case atExt:
			if d.line++; d.line > maxSizeLine {
				return n, i, malformed("a chunk extension without end")
			}
			switch c {
			case '\r':
				d.state = atSizeLF
			case '\n':
				return n, i, malformed("a line feed in a chunk extension")
			}
		case atSizeLF:
			if c != '\n' {
				return n, i, malformed("a carriage return in a chunk size line")
			}
			if d.line, d.state = 0, atData; d.size == 0 {
				d.state = atTrailer
			}
		case atDataCR:
			if c != '\r' {
				return n, i, malformed("a chunk that is longer than its size")
			}
			d.state = atDataLF
		case atDataLF:
			if c != '\n' {
				return n, i, malformed("a chunk that is longer than its size")
			}
			d.state = atSize
		case atTrailer:
			if len(d.text) >= maxTrailer {
				return n, i, malformed("a trailer without end")
			}
			if c == '\r' {
				d.state = atTrailerLF
			} else if c == '\n' {
				return n, i, malformed("a line feed in a trailer")
			} else {
				d.line++
			}
			d.text = append(d.text, c)
		case atTrailerLF:
			if c != '\n' {
				return n, i, malformed("a carriage return in a trailer")
			}
			d.text = append(d.text, c)
			if d.state = atTrailer; d.line == 0 {
				d.state = atEnd
				return n, i + 1, nil
			}
			d.line = 0
		}
		i++
	}
	return n, len(p), nil
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// trailer is what came after the last chunk.
func (d *dechunker) trailer() (http.Header, error) {
	if len(d.text) <= len("\r\n") {
		return nil, nil
	}
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(d.text))).ReadMIMEHeader()
	if err != nil {
		return nil, malformed("a trailer that is no list of fields")
	}
	return http.Header(h), nil
}
