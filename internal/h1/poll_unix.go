// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package h1

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

const canPoll = true

// lookAgain is how long after a piece of a stream the connection is looked at
// once more although nothing has announced more bytes.
//
// The runtime's poller reports edges, and one report may stand for the arrival
// of bytes and for the end of the connection after them. A reader that takes
// the bytes and does not read on until nothing is left would then wait for
// ever. So a stream that breaks off is noticed after this time at the latest;
// one that ends as it should tells its end in its bytes.
const lookAgain = time.Second

// poll hands the pieces of the body to f as they come. It returns f's error, or
// nil once b.err is set.
//
// RawConn.Read calls its function when there may be something to read, and
// waits for more when that returns false, without asking the kernel in vain.
func (b *Body) poll(buf []byte, f func([]byte) error) (failed error) {
	c := b.c
	came, armed := true, false // since the last look; the next look has a time
	var end error              // what the body ends with; told after the poller has let go of the connection
	read := func(fd uintptr) (done bool) {
		for {
			room := b.room(buf)
			n, err := syscall.Read(int(fd), room)
			switch {
			case err == syscall.EINTR:
				continue
			case err == syscall.EAGAIN:
				return false
			case n == 0 && err == nil:
				err = io.EOF
			}
			came = true
			drained := n < len(room)
			if n, end = b.strip(buf[:max(n, 0)], err); n > 0 {
				failed = f(buf[:n])
			}
			switch {
			case end != nil, failed != nil, !armed:
				return true
			case drained:
				return false
			case c.ended() != nil: // only waiting is interrupted, and a fast server leaves nothing to wait for
				return true
			}
		}
	}
	for b.err == nil && failed == nil {
		next := c.until // after a look that found nothing the end has a report of its own
		if armed = came; armed {
			if look := time.Now().Add(lookAgain); next.IsZero() || look.Before(next) {
				next = look
			}
		}
		came, c.timed = false, true
		c.tcp.SetReadDeadline(next)
		err := c.ended() // asked after the deadline was moved, which may have undone the interruption
		if err == nil {
			err = c.raw.Read(read)
		}
		if err != nil && end == nil && (!errors.Is(err, os.ErrDeadlineExceeded) || c.ended() != nil || c.late()) {
			_, end = b.strip(nil, err)
		}
		if end != nil {
			b.end(end)
		}
	}
	return failed
}

// unasked is nil if the connection is open and has nothing to say.
func (c *Conn) unasked() error {
	if c.raw == nil {
		return nil
	}
	var said error
	err := c.raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN:
		case err != nil:
			said = err
		case n == 0:
			said = io.EOF
		default:
			said = errUnasked
		}
		return true
	})
	if err != nil {
		return err
	}
	return said
}

// glance reads from a connection without waiting.
type glance struct{ c *Conn }

func (g glance) Read(p []byte) (n int, err error) {
	if g.c.raw == nil {
		return 0, errNothing
	}
	failed := g.c.raw.Read(func(fd uintptr) bool {
		for {
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case failed != nil:
		return 0, failed
	case err == syscall.EAGAIN:
		return 0, errNothing
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
