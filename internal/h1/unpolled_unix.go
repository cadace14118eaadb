// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package h1

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Unpolled is a connection that the runtime's poller does not watch. The poller
// wakes a thread for all that arrives, whoever waits for it; a caller that asks
// on many connections and reads when it chooses to needs no waking. What has not
// come when it reads is looked for again after naps of up to longNap, so much
// later it may learn of an answer or of the end of its context.
//
// All but the deadlines belongs to one goroutine. Read and write deadline are one.
type Unpolled struct {
	fd            int // does not block; -1: closed
	local, remote net.Addr
	until         atomic.Int64 // the deadline, in ns since 1970; 0: none
	asleep        time.Duration
}

const (
	shortNap = 250 * time.Microsecond
	longNap  = 10 * time.Millisecond
)

// Unpoll takes tcp out of the poller. Afterwards, unless it fails, tcp is closed
// and the connection goes on in the one that is returned.
func Unpoll(tcp net.Conn) (*Unpolled, error) {
	s, ok := tcp.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	u := &Unpolled{local: tcp.LocalAddr(), remote: tcp.RemoteAddr()}
	if gone := raw.Control(func(fd uintptr) {
		u.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); gone != nil {
		return nil, gone
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	tcp.Close()
	return u, nil
}

// Asleep is how long the connection has napped, in all.
func (u *Unpolled) Asleep() time.Duration { return u.asleep }

// repeat calls f until it says that it is done, with naps between.
func (u *Unpolled) repeat(f func(fd uintptr) (done bool)) error {
	for nap := shortNap; ; nap = min(2*nap, longNap) {
		if u.fd < 0 {
			return net.ErrClosed
		}
		left := longNap
		if until := u.until.Load(); until != 0 {
			if left = time.Until(time.Unix(0, until)); left <= 0 {
				return os.ErrDeadlineExceeded
			}
		}
		if f(uintptr(u.fd)) {
			return nil
		}
		began := time.Now()
		time.Sleep(min(nap, left))
		u.asleep += time.Since(began)
	}
}

// transfer reads or writes once, when that is possible.
func (u *Unpolled) transfer(what string, f func(fd int, p []byte) (int, error), p []byte) (n int, err error) {
	ended := u.repeat(func(fd uintptr) bool {
		for {
			if n, err = f(int(fd), p); err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	})
	switch {
	case ended != nil:
		return 0, ended
	case err != nil:
		return 0, os.NewSyscallError(what, err)
	}
	return n, nil
}

func (u *Unpolled) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := u.transfer("read", syscall.Read, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (u *Unpolled) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = u.transfer("write", syscall.Write, p[n:])
		n += more
	}
	return n, err
}

func (u *Unpolled) Close() error {
	if u.fd < 0 {
		return net.ErrClosed
	}
	fd := u.fd
	u.fd = -1
	return os.NewSyscallError("close", syscall.Close(fd))
}

func (u *Unpolled) LocalAddr() net.Addr  { return u.local }
func (u *Unpolled) RemoteAddr() net.Addr { return u.remote }

// SetDeadline may be called at any time by anyone. One in the past interrupts.
func (u *Unpolled) SetDeadline(t time.Time) error {
	ns := int64(0)
	if !t.IsZero() {
		ns = t.UnixNano()
	}
	u.until.Store(ns)
	return nil
}

func (u *Unpolled) SetReadDeadline(t time.Time) error  { return u.SetDeadline(t) }
func (u *Unpolled) SetWriteDeadline(t time.Time) error { return u.SetDeadline(t) }

// SyscallConn gives the descriptor to functions of the goroutine that owns u.
func (u *Unpolled) SyscallConn() (syscall.RawConn, error) { return rawUnpolled{u}, nil }

type rawUnpolled struct{ u *Unpolled }

func (r rawUnpolled) Control(f func(fd uintptr)) error {
	return r.u.repeat(func(fd uintptr) bool { f(fd); return true })
}
func (r rawUnpolled) Read(f func(fd uintptr) (done bool)) error  { return r.u.repeat(f) }
func (r rawUnpolled) Write(f func(fd uintptr) (done bool)) error { return r.u.repeat(f) }
