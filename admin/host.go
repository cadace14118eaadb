// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// hostAllowed says whether a Host header may reach a loopback listener. A web
// page can have its own name resolve to 127.0.0.1 and then counts as same
// origin with this listener (DNS rebinding): only the Host header tells.
func hostAllowed(header, configured string) bool {
	host := hostOf(header)
	return host != "" && (isLoopback(host) || strings.EqualFold(host, configured))
}

// hostOf is the host of host:port, or of a host alone, without brackets.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}

// isLoopback goes by the text alone: resolving a name here would ask the very
// server that an attacker may own.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}
