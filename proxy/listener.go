// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
)

// listener is one bound address with its server.
type listener struct {
	server  *Server
	name    string
	cfg     config.Listener
	limits  config.Limits
	socket  net.Listener
	http    *http.Server
	ctx     context.Context // of every request on it
	cut     context.CancelCauseFunc
	open    atomic.Int64 // exchanges under way
	conns   atomic.Int64 // connections, idle ones too
	retired atomic.Bool

	identities atomic.Pointer[identities] // nil: plaintext
	debug      atomic.Bool                // show the endpoint in response headers
	routing    atomic.Bool                // and the target, the attempts and the fallback
	anonymous  atomic.Bool                // lets anybody in
	upgrades   atomic.Pointer[[]string]   // paths on which an Upgrade is passed on
}

// openListener binds lc, or takes over the socket of the listener that has the
// address already: no connection is refused in between.
func (s *Server) openListener(lc config.Listener, limits config.Limits) (*listener, error) {
	l := &listener{server: s, name: lc.Name, cfg: lc, limits: limits}
	var err error
	if l.socket, err = s.socketFor(lc.Address); err != nil {
		return nil, err
	}
	l.ctx, l.cut = context.WithCancelCause(context.Background())
	http2 := speaksHTTP2(&lc)
	l.http = &http.Server{
		Handler:                      http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(l, w, r) }),
		ReadHeaderTimeout:            limits.HeaderTimeout.D(),
		IdleTimeout:                  limits.KeepAlive.D(),
		MaxHeaderBytes:               int(limits.Headers),
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return l.ctx },
		ConnState:                    l.count,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Protocols:                    new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: limits.Streams,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     limits.WriteIdle.D(),
		},
	}
	l.http.Protocols.SetHTTP1(true)
	if !encrypts(&lc) {
		l.http.Protocols.SetUnencryptedHTTP2(http2)
		return l, nil
	}
	l.http.Protocols.SetHTTP2(http2)
	l.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: l.choose, NextProtos: []string{"http/1.1"}}
	if http2 {
		l.http.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
	}
	return l, nil
}

func (s *Server) socketFor(address string) (net.Listener, error) {
	for _, old := range s.listeners {
		tcp, ok := old.socket.(*net.TCPListener)
		if !ok || old.cfg.Address != address && tcp.Addr().String() != address {
			continue
		}
		f, err := tcp.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return net.FileListener(f)
	}
	return net.Listen("tcp", address)
}

// keeps says that l serves lc as it is; update carries the rest over: sections,
// certificates and what is said of each answer.
func (l *listener) keeps(lc config.Listener, limits config.Limits) bool {
	a, b := l.cfg, lc
	x, y := l.limits, limits
	return a.Address == b.Address && speaksHTTP2(&a) == speaksHTTP2(&b) && encrypts(&a) == encrypts(&b) &&
		x.HeaderTimeout == y.HeaderTimeout && x.UploadIdle == y.UploadIdle && x.KeepAlive == y.KeepAlive &&
		x.Headers == y.Headers && x.Streams == y.Streams && x.WriteIdle == y.WriteIdle
}

func (l *listener) update(lc config.Listener, ids *identities) {
	l.identities.Store(ids)
	l.debug.Store(lc.DebugHeaders)
	l.routing.Store(lc.RoutingHeaders == nil || *lc.RoutingHeaders)
	l.anonymous.Store(lc.Anonymous)
	l.upgrades.Store(&lc.UpgradePaths)
}

func (l *listener) allowsUpgrade(path string) bool {
	paths := l.upgrades.Load()
	return paths != nil && slices.Contains(*paths, path)
}

// bounded accepts while there is room for a connection: clients that only sit
// there must not take the files that connections to members need.
type bounded struct {
	net.Listener
	l *listener
}

func (b bounded) Accept() (net.Conn, error) {
	for warned := false; b.l.server.full() && !b.l.retired.Load(); time.Sleep(5 * time.Millisecond) {
		if !warned {
			warned = true
			b.l.server.metrics.full.Inc()
			b.l.server.log.Warn("no room for more client connections; new ones wait", "listener", b.l.name, "limits.connections", b.l.server.room())
		}
	}
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &patient{Conn: c, header: b.l.limits.HeaderTimeout.D(), silence: time.Now().Add(b.l.limits.KeepAlive.D())}, nil
}

// full says that no client connection should be accepted now.
func (s *Server) full() bool { return s.conns.Load() >= s.room() }

// room is the number of client connections that there may be.
func (s *Server) room() int64 {
	room := s.files/2 - 64
	if t := s.table.Load(); t != nil {
		room = min(room, int64(t.cfg.Limits.Connections))
	}
	return max(room, 1)
}

func (l *listener) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.conns.Add(1)
		l.server.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		l.conns.Add(-1)
		l.server.conns.Add(-1)
	}
}

func (l *listener) serve() {
	var err error
	if l.http.TLSConfig != nil {
		err = l.http.ServeTLS(bounded{l.socket, l}, "", "")
	} else {
		err = l.http.Serve(bounded{l.socket, l})
	}
	if !errors.Is(err, http.ErrServerClosed) && !l.retired.Load() {
		l.server.log.Error("listener ended", "listener", l.name, "error", err)
	}
}

// retire takes the listener out of service: it accepts nothing more, and each
// answer tells its client to use another connection. Idle connections stay
// until their time is up: closing them would lose the requests that are being
// written on them at this moment.
func (l *listener) retire() {
	l.retired.Store(true)
	l.socket.Close()
}

// drain ends a listener that a reload has replaced or removed.
func (l *listener) drain(limit time.Duration) {
	l.retire()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l.await(ctx, &l.conns)
	if cut := l.shutdown(ctx); cut > 0 {
		l.server.log.Warn("streams cut after a listener was removed", "listener", l.name, "streams", cut)
	}
}

// await waits until n is zero or ctx ends.
func (l *listener) await(ctx context.Context, n *atomic.Int64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ending := l.server.ending
	// A connection that was accepted just now may not be counted yet: what is
	// zero must stay zero for a while.
	for quiet := 0; quiet < 3; {
		select {
		case <-tick.C:
			quiet++
		case <-ctx.Done():
			return
		case <-ending:
			n, ending = &l.open, nil // the process ends: idle connections are not waited for
		}
		if n.Load() > 0 {
			quiet = 0
		}
	}
}

// shutdown retires the listener and waits for its exchanges to end; when ctx
// ends first it cuts those that are left, each with an error in its stream, and
// returns their number.
func (l *listener) shutdown(ctx context.Context) (cut int) {
	l.retire()
	l.await(ctx, &l.open)
	cut = int(l.open.Load())
	l.cut(errDrained)
	grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	l.http.Shutdown(grace)
	l.http.Close()
	l.server.metrics.cut.Add(float64(cut))
	return cut
}
