// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"
)

// A gateway that is out of file descriptors or ports has no word on its
// members: it would eject every one of them.
func TestOwnLimitsBlameNobody(t *testing.T) {
	for errno, own := range map[syscall.Errno]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.EADDRNOTAVAIL: true, syscall.ENOBUFS: true, syscall.ECONNREFUSED: false,
	} {
		a := &attempt{ctx: context.Background()}
		f := a.classify(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", errno)})
		if f.blame == own || !f.retry || own != (f.reply.Status == 503) {
			t.Errorf("%v: blame %v, retry %v, status %d", errno, f.blame, f.retry, f.reply.Status)
		}
	}
}
