// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proxy

import (
	"math"
	"syscall"
)

// fileLimit is how many files the process may have open; the runtime has
// raised it to the hard limit.
func fileLimit() int64 {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || uint64(l.Cur) > math.MaxInt32 {
		return math.MaxInt32
	}
	return int64(l.Cur)
}
