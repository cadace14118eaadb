// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// file is a segment that grows. Where the system can, its room is taken from the
// disk when it begins and its pages are in memory: a row is there with a copy, and
// the kernel has it when the process is killed. A full disk shows when the segment
// begins, and not at a page.
type file struct {
	f       *os.File
	room    int64  // bytes
	pages   []byte // room of them; nil: it is written by calls
	broken  bool   // nothing more is written
	retired bool   // it is closed when it was synced
}

// createFile begins a segment.
func createFile(path string, head []byte) (*file, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
	if err != nil {
		return nil, err
	}
	c := &file{f: f, room: segmentBytes}
	if c.pages, err = pagesOf(f); err == nil {
		if c.pages != nil {
			c.room = int64(len(c.pages))
		}
		err = c.write(0, head)
	}
	if err != nil {
		_ = c.cut(0)
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return c, nil
}

// fits says that n more bytes go behind the first size.
func (c *file) fits(size int64, n int) bool { return !c.broken && size+int64(n) <= c.room }

// write writes frames at a place. Their first word, the length of the first one,
// comes last: a reader sees all of them or none.
func (c *file) write(at int64, frames []byte) error {
	if c.pages != nil {
		return fill(c.pages[at:], frames)
	}
	n, err := c.f.WriteAt(frames, at)
	if err == nil && n < len(frames) {
		err = io.ErrShortWrite
	}
	return err
}

// fill copies into pages of a file, which a disk may fail to bring.
func fill(pages, frames []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("the disk takes no page: %v", p)
		default:
			panic(p)
		}
	}()
	copy(pages[4:len(frames)], frames[4:])
	copy(pages[:4], frames[:4])
	return nil
}

// cut ends the file behind size bytes and lets go of its pages.
func (c *file) cut(size int64) error {
	if c.pages != nil {
		if err := unmap(c.pages); err != nil {
			return err
		}
		c.pages = nil
	}
	return c.f.Truncate(size)
}
