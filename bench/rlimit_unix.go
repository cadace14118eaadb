// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package bench

import (
	"fmt"
	"syscall"
)

// RaiseFileLimit makes room for n open files, beyond the hard limit too where
// the process may. It returns the limit in force.
func RaiseFileLimit(n uint64) (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if uint64(l.Cur) >= n {
		return uint64(l.Cur), nil
	}
	want := syscall.Rlimit{Cur: n, Max: max(l.Max, n)}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err != nil {
		return uint64(l.Cur), fmt.Errorf("raise the limit of open files to %d: %w", n, err)
	}
	return n, nil
}
