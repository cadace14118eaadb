// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/internal/h1"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
)

// upstream is the connections to the members of pools with one protocol and
// one TLS identity. HTTP/1.1 in the clear, which most model servers speak, has
// connections of the gateway's own; the rest is the standard library's. Neither
// retries by itself: bodies have no GetBody (see attempt.outbound).
type upstream struct {
	scheme    string
	transport transport
	tunnels   transport // for requests that change the protocol; nil: there are none
}

type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// upstreamKey tells which pools may share connections.
type upstreamKey struct {
	protocol config.Protocol
	identity [sha256.Size]byte  // of the TLS side, its files included; zero: none
	provider *provider.Provider // nil: a pool
}

func keyOf(p *config.Pool) (upstreamKey, certs.Client) {
	key, id := upstreamKey{protocol: p.Protocol}, pool.Identity(p.TLS)
	if key.protocol == "" {
		key.protocol = config.HTTP
	}
	if !id.IsZero() {
		key.identity = sha256.Sum256(fmt.Appendf(nil, "%#v %s", id, id.Stamp()))
	}
	return key, id
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
// configuration under construction. A TLS identity whose files have changed is
// another one.
func (s *Server) upstreamFor(p *config.Pool, built map[upstreamKey]*upstream) (*upstream, error) {
	key, id := keyOf(p)
	if u := built[key]; u != nil {
		return u, nil
	}
	u := s.upstreams[key]
	if u == nil {
		var err error
		if u, err = newUpstream(key.protocol, id); err != nil {
			return nil, err
		}
	}
	built[key] = u
	return u, nil
}

// upstreamOf finds or builds the upstream of a provider.
func (s *Server) upstreamOf(p *provider.Provider, built map[upstreamKey]*upstream) *upstream {
	key := upstreamKey{provider: p}
	if u := built[key]; u != nil {
		return u
	}
	u := s.upstreams[key]
	if u == nil {
		u = &upstream{transport: p.Transport()}
	}
	built[key] = u
	return u
}

func newUpstream(protocol config.Protocol, id certs.Client) (*upstream, error) {
	dialer := net.Dialer{Timeout: dialCeiling, KeepAlive: 15 * time.Second}
	switch protocol {
	case config.HTTP:
		t := &h1.Transport{Dialer: dialer, IdleTimeout: idleUpstream, MaxIdle: maxIdle, MaxHeader: maxAnswer}
		return &upstream{scheme: "http", transport: t, tunnels: t}, nil
	case config.H2C:
		t := standardTransport(dialer, nil)
		t.Protocols.SetUnencryptedHTTP2(true)
		t.IdleConnTimeout = 90 * time.Second
		return &upstream{scheme: "http", transport: t}, nil
	case config.HTTPS:
		conf, err := id.Config()
		if err != nil {
			return nil, err
		}
		t := standardTransport(dialer, conf)
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
		tunnels := standardTransport(dialer, conf.Clone()) // HTTP/2 knows no Upgrade
		tunnels.Protocols.SetHTTP1(true)
		return &upstream{scheme: "https", transport: t, tunnels: tunnels}, nil
	}
	return nil, fmt.Errorf("protocol %q is not one of http, h2c, https", protocol)
}

func standardTransport(dialer net.Dialer, conf *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        conf,
		DisableCompression:     true, // or it would ask for gzip on its own
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleUpstream,
		MaxResponseHeaderBytes: maxAnswer,
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
}

var errNoTunnel = errors.New("the pool's protocol knows no change of protocol")

func (u *upstream) roundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") == "" {
		return u.transport.RoundTrip(r)
	}
	if u.tunnels == nil {
		return nil, errNoTunnel
	}
	return u.tunnels.RoundTrip(r)
}

func (u *upstream) closeIdle() {
	u.transport.CloseIdleConnections()
	if u.tunnels != nil && u.tunnels != u.transport {
		u.tunnels.CloseIdleConnections()
	}
}
