// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// pagesOf takes room for a segment from the disk, as much as there is, and maps it;
// nil: this file system does not do that.
func pagesOf(f *os.File) ([]byte, error) {
	size := segmentBytes
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size))
		if err == nil {
			break
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil, nil
		case errors.Is(err, unix.ENOSPC) && size/2 >= leastBytes:
			if err := f.Truncate(0); err != nil { // some keep what they had found
				return nil, err
			}
			size /= 2
		default:
			return nil, os.NewSyscallError("fallocate", err)
		}
	}
	pages, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, f.Truncate(0)
	}
	return pages, nil
}

func unmap(pages []byte) error { return unix.Munmap(pages) }
