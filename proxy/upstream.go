// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/internal/h1"
	"github.com/penstock/penstock/pool"
)

// upstream is the connections to the members of pools with one protocol and
// one TLS identity. HTTP/1.1 in the clear, which most model servers speak, has
// connections of the gateway's own; the rest is the standard library's. Neither
// retries by itself: bodies have no GetBody (see attempt.outbound).
type upstream struct {
	scheme    string
	transport interface {
		http.RoundTripper
		CloseIdleConnections()
	}
}

// upstreamKey tells which pools may share connections.
type upstreamKey struct {
	protocol config.Protocol
	tls      certs.Client
}

// Bounds of the upstream side.
const (
	// idleUpstream is below the 5 s after which uvicorn, which most engines
	// run behind, closes an idle connection: a request sent into that close is
	// lost.
	idleUpstream = 4 * time.Second
	dialCeiling  = 30 * time.Second // a dial ends even when nobody waits for it any more
	maxIdle      = 16384            // of a pool's members together; HTTP/1.1 in the clear: of one member
	maxAnswer    = 256 << 10        // bytes of an answer's headers
)

// upstreamFor finds or builds the upstream of a pool. built holds those of the
// configuration under construction.
func (s *Server) upstreamFor(p *config.Pool, built map[upstreamKey]*upstream) (*upstream, error) {
	key := upstreamKey{protocol: p.Protocol}
	if p.TLS != nil {
		key.tls = pool.Identity(p.TLS)
	}
	if u := built[key]; u != nil {
		return u, nil
	}
	u := s.upstreams[key]
	// Files behind a TLS identity may have changed: such an upstream is new
	// with each configuration.
	if u == nil || key.tls != (certs.Client{}) {
		var err error
		if u, err = newUpstream(key); err != nil {
			return nil, err
		}
	}
	built[key] = u
	return u, nil
}

func newUpstream(key upstreamKey) (*upstream, error) {
	dialer := net.Dialer{Timeout: dialCeiling, KeepAlive: 15 * time.Second}
	if key.protocol == config.HTTP || key.protocol == "" {
		return &upstream{scheme: "http", transport: &h1.Transport{
			Dialer: dialer, IdleTimeout: idleUpstream, MaxIdle: maxIdle, MaxHeader: maxAnswer,
		}}, nil
	}
	t := &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true, // or it would ask for gzip on its own
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleUpstream,
		MaxResponseHeaderBytes: maxAnswer,
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
	u := &upstream{scheme: "http", transport: t}
	switch key.protocol {
	case config.H2C:
		t.Protocols.SetUnencryptedHTTP2(true)
		t.IdleConnTimeout = 90 * time.Second
	case config.HTTPS:
		u.scheme = "https"
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
		conf, err := key.tls.Config()
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig = conf
	default:
		return nil, fmt.Errorf("protocol %q is not one of http, h2c, https", key.protocol)
	}
	return u, nil
}

func (u *upstream) roundTrip(r *http.Request) (*http.Response, error) {
	return u.transport.RoundTrip(r)
}

func (u *upstream) closeIdle() { u.transport.CloseIdleConnections() }
