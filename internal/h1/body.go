// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"errors"
	"io"
	"net/http"
)

// Body is the body of an answer. It is for one goroutine; to interrupt a Read
// end the request's context.
type Body struct {
	c       *Conn         // nil after the end
	early   *bufio.Reader // what came with the head; nil once that is read
	framing framing
	left    int64     // of a body framed by its length
	chunks  dechunker // of a chunked one
	trailer *http.Header
	closing bool  // the connection ends with this answer
	err     error // of every further Read
}

// framing is how the end of a body is told (RFC 9112 §6.3).
type framing int8

const (
	byLength framing = iota
	byChunks
	byClose
)

// errClosed is what reading after Close gives.
var errClosed = errors.New("h1: read on closed body")

// Read fills p with what has come, waiting for at least one byte. It returns
// io.EOF, with the last bytes where they came together, only at the proper end,
// io.ErrUnexpectedEOF where the connection ended before it.
func (b *Body) Read(p []byte) (int, error) {
	for b.err == nil && len(p) > 0 {
		var n int
		var err error
		if b.early != nil {
			n = b.readEarly(p)
		} else {
			n, err = b.c.tcp.Read(b.room(p))
		}
		n, end := b.strip(p[:n], err)
		if end != nil {
			b.end(end)
		}
		if n > 0 {
			return n, b.err
		}
	}
	return 0, b.err
}

// room is the part of p that may be filled from the connection.
func (b *Body) room(p []byte) []byte {
	if b.framing == byLength && b.left < int64(len(p)) {
		return p[:b.left]
	}
	return p
}

// readEarly takes from what came with the head.
func (b *Body) readEarly(p []byte) int {
	n := 0
	if b.early.Buffered() > 0 {
		n, _ = b.early.Read(b.room(p)) // of the buffer alone: p is not read into past it
	}
	if b.early.Buffered() == 0 {
		b.dropEarly()
	}
	return n
}

func (b *Body) dropEarly() (dirty bool) {
	if b.early == nil {
		return false
	}
	dirty = b.early.Buffered() > 0
	dropReader(b.early)
	b.early = nil
	return dirty
}

// strip turns raw bytes, and the error that came with them, into bytes of the
// body, in place. It returns their number, and what the body ends with if this
// is the end.
func (b *Body) strip(raw []byte, err error) (n int, end error) {
	n = len(raw)
	switch b.framing {
	case byClose:
		return n, err
	case byLength:
		if b.left -= int64(n); b.left == 0 {
			return n, io.EOF
		}
	case byChunks:
		used := 0
		if n, used, end = b.chunks.decode(raw); end != nil {
			return n, end
		}
		if b.chunks.done() {
			b.closing = b.closing || used < len(raw)
			return n, b.endOfChunks()
		}
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *Body) endOfChunks() error {
	h, err := b.chunks.trailer()
	if err != nil {
		return err
	}
	if len(h) > 0 && *b.trailer == nil {
		*b.trailer = http.Header{}
	}
	for name, values := range h {
		(*b.trailer)[name] = values
	}
	return io.EOF
}

// end gives the connection back, or closes it if the answer is not whole.
func (b *Body) end(err error) {
	c := b.c
	if ctxErr := c.ended(); err != io.EOF && ctxErr != nil {
		err = ctxErr
	}
	b.c, b.err = nil, err
	dirty := b.dropEarly()
	if err != io.EOF {
		c.Close()
		return
	}
	c.release(dirty || b.closing)
}

// Close ends the connection if the answer was not read to its end.
func (b *Body) Close() error {
	if b.c != nil {
		b.end(errClosed)
	}
	return nil
}

// Each reads the body to its end and hands every piece to f as it comes, in
// buf, whose contents are f's until it returns. It returns nil at the proper
// end, f's error, or what Read would return. A piece that fills buf is followed
// by another; each costs one system call, where Read needs two: one that finds
// nothing and waits, and one that reads.
func (b *Body) Each(buf []byte, f func(piece []byte) error) error {
	for b.err == nil {
		if canPoll && b.early == nil && b.c.raw != nil && b.framing != byClose {
			if err := b.poll(buf, f); err != nil {
				return err
			}
			continue
		}
		n, _ := b.Read(buf)
		if n > 0 {
			if err := f(buf[:n]); err != nil {
				return err
			}
		}
	}
	if b.err == io.EOF {
		return nil
	}
	return b.err
}
