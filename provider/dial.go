// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/penstock/penstock/config"
)

// errAddress is the refusal of an address, before anything is sent to it.
var errAddress = errors.New("address is refused")

// connectCeiling ends a dial for which no bound is configured.
const connectCeiling = 30 * time.Second

// dialer connects to what a name stands for, unless that is an address that
// nothing may be sent to. The check is on the socket, after the last resolution:
// a name cannot change its mind in between.
type dialer struct{ net.Dialer }

// reach is what a dialer connects to besides public addresses.
type reach struct{ private, loopback bool }

func newDialer(to reach, bound time.Duration) dialer {
	return dialer{net.Dialer{
		Timeout: bound, KeepAlive: 15 * time.Second,
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			return checkSocket(network, address, to)
		},
	}}
}

func checkSocket(network, address string, to reach) error {
	if network != "tcp4" && network != "tcp6" && network != "tcp" {
		return fmt.Errorf("%w: network %s", errAddress, network)
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errAddress, address)
	}
	if why := config.RefusedAddress(a.Addr(), to.private || to.loopback && a.Addr().Unmap().IsLoopback()); why != "" {
		return fmt.Errorf("%w: %s %s", errAddress, a.Addr(), why)
	}
	return nil
}

// transport never asks for compression, follows no proxy of the environment,
// and refuses addresses as the dialer does.
func (d dialer) transport() *http.Transport {
	t := &http.Transport{
		DialContext:            d.DialContext,
		DisableCompression:     true,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        60 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	return t
}

func connectBound(cfg config.Provider) time.Duration {
	if d := cfg.Timeouts.Connect.D(); d > 0 {
		return d
	}
	return connectCeiling
}

// DialContext connects to the provider; for transports of the caller's own.
func (p *Provider) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return p.dialer.DialContext(ctx, network, address)
}

// Transport makes connections to the provider, which belong to the caller. It
// follows no redirect and sends nothing twice.
func (p *Provider) Transport() *http.Transport { return p.dialer.transport() }
