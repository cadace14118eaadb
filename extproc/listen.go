// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
)

// ListenersOptions are what Listeners need from their surroundings. The zero
// value works.
type ListenersOptions struct {
	Log     *slog.Logger
	Metrics *ServerInstruments // nil: none
	// Ready is asked by health besides what it knows itself: a picker may know
	// its members and yet be one that is not to be asked. nil: always.
	Ready func() bool
}

// Listeners are the picker listeners of one process.
type Listeners struct {
	log     *slog.Logger
	metrics *ServerInstruments
	ready   func() bool
	bodies  atomic.Int64 // bytes of request bodies held
	watches atomic.Int64 // of health

	mu      sync.Mutex // guards what follows; held only by Prepare, Commit, Drain and Addresses
	list    []*listener
	closing sync.WaitGroup // listeners on their way out
}

// NewListeners returns none; Prepare gives them a configuration.
func NewListeners(o ListenersOptions) *Listeners {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewServerInstruments(nil)
	}
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	ls := &Listeners{log: o.Log, metrics: o.Metrics, ready: o.Ready}
	o.Metrics.heldBy(&ls.bodies)
	return ls
}

// ListenersChange is a configuration that was built whole and not swapped in
// yet. Either Commit or Abort must be called, once.
type ListenersChange struct {
	of     *Listeners
	cfg    *config.Config
	next   []*listener
	rules  []*rules
	opened []*listener
}

// Prepare builds what cfg needs, new sockets included. When it fails nothing
// has changed. backends has an entry for every pool.
func (ls *Listeners) Prepare(cfg *config.Config, backends map[string]Backend) (*ListenersChange, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	c := &ListenersChange{of: ls, cfg: cfg}
	free := slices.Clone(ls.list)
	for i := range cfg.PickerListeners {
		lc := cfg.PickerListeners[i]
		b, ok := backends[lc.Pool]
		if !ok {
			c.Abort()
			return nil, fmt.Errorf("pickerListeners[%d]: pool %s has no backend", i, lc.Pool)
		}
		r := newRules(cfg, b, ls.metrics)
		k := slices.IndexFunc(free, func(l *listener) bool { return l.keeps(lc, cfg.Limits) })
		var l *listener
		if k >= 0 {
			l = free[k]
			free = slices.Delete(free, k, k+1)
		} else {
			var err error
			if l, err = ls.open(lc, cfg.Limits, r); err != nil {
				c.Abort()
				return nil, fmt.Errorf("pickerListeners[%d]: %w", i, err)
			}
			c.opened = append(c.opened, l)
		}
		c.next, c.rules = append(c.next, l), append(c.rules, r)
	}
	return c, nil
}

// Commit swaps the configuration in. Streams under way end under the old one;
// listeners that are gone stop accepting and drain in the background.
func (c *ListenersChange) Commit() {
	ls := c.of
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i, l := range c.next {
		l.server.rules.Store(c.rules[i])
	}
	for _, l := range ls.list {
		if slices.Contains(c.next, l) {
			continue
		}
		l.retire() // before another one accepts on the same address
		ls.closing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Limits.Drain.D())
			defer cancel()
			if cut := l.drain(ctx); cut > 0 {
				ls.log.Warn("picker streams cut after a listener was removed", "pool", l.pool(), "address", l.cfg.Address, "streams", cut)
			}
		})
	}
	for _, l := range c.opened {
		l.serve()
	}
	ls.list = c.next
}

// Abort gives back what Prepare took.
func (c *ListenersChange) Abort() {
	for _, l := range c.opened {
		l.closeSockets()
	}
}

// ListenerAddress is where a picker listener is bound.
type ListenerAddress struct {
	Pool    string
	Address string
	Health  string // "": none of its own
	TLS     string // files, self-signed or none
	Fault   string // why the newest certificate is not in use; "": it is
}

// Addresses are the bound addresses, in the order of the configuration.
func (ls *Listeners) Addresses() (out []ListenerAddress) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.list {
		a := ListenerAddress{Pool: l.pool(), Address: l.socket.Addr().String(), TLS: "self-signed"}
		if l.healthSocket != nil {
			a.Health = l.healthSocket.Addr().String()
		}
		switch {
		case l.cfg.Plaintext:
			a.TLS = "none"
		case l.cfg.TLS != nil:
			a.TLS, a.Fault = "files", l.files.Fault()
		}
		out = append(out, a)
	}
	return out
}

// Open is the number of streams under way.
func (ls *Listeners) Open() (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.list {
		n += int(l.server.open.Load())
	}
	return n
}

// Fade says by health that no more is served, and serves on: gateways should
// have gone elsewhere before a Drain.
func (ls *Listeners) Fade() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.list {
		l.server.fading.Store(true)
	}
}

// Drain says by health that no more is served, stops accepting, and waits until
// every stream has ended or ctx ends; then it cuts the rest and returns how
// many.
func (ls *Listeners) Drain(ctx context.Context) int {
	ls.mu.Lock()
	list := ls.list
	ls.mu.Unlock()
	var wg sync.WaitGroup
	var cut atomic.Int64
	for _, l := range list {
		wg.Go(func() { cut.Add(int64(l.drain(ctx))) })
	}
	wg.Wait()
	ls.closing.Wait()
	return int(cut.Load())
}

// listener is one address of a pool's picker, with the one of its health.
type listener struct {
	log     *slog.Logger
	cfg     config.PickerListener // as it was opened; see pool
	message int                   // bytes of one message
	headers uint32
	server  *Server
	files   *certs.Server // nil: no certificate in files

	grpc         *grpc.Server
	socket       net.Listener
	healthGRPC   *grpc.Server // nil: none of its own
	healthSocket net.Listener
	draining     chan struct{}
	once         sync.Once // closes draining
}

// pool is the name of the pool that is picked from: a reload may change it.
func (l *listener) pool() string { return l.server.rules.Load().counts.pool }

// Bounds of a listener.
const (
	minMessage     = 4 << 20 // gRPC's usual bound
	maxConnections = 4096    // gateways keep one or a few each
	handshakeTime  = 10 * time.Second
	peerSilence    = 30 * time.Second // then it is asked whether it is there
	peerAnswer     = 20 * time.Second
	mostPings      = 5 * time.Second // a peer may ask as often
	spareStreams   = 1024
	// connWindow is for the streams of a connection together, window (dial.go)
	// for each: bytes that a gateway may send unread. Set, they do not grow by
	// themselves; for that gRPC would send a ping after nearly every message.
	connWindow = 4 << 20
	// Goroutines that serve one stream after another: their stacks have grown
	// already. Streams beyond them have goroutines of their own.
	streamWorkers = 128
)

// messageLimit is the size of one message: a gateway that buffers sends a whole
// body in one.
func messageLimit(l config.Limits) int {
	return int(max(minMessage, min(int64(l.Body)+int64(l.Headers)+minMessage/4, math.MaxInt32)))
}

// keeps says that l serves lc as it is.
func (l *listener) keeps(lc config.PickerListener, limits config.Limits) bool {
	a, b := l.cfg, lc
	a.Pool, b.Pool = "", ""
	return reflect.DeepEqual(a, b) && l.message == messageLimit(limits) && l.headers == headerLimit(limits)
}

func headerLimit(l config.Limits) uint32 { return uint32(min(int64(l.Headers), math.MaxInt32)) }

// open binds lc, or takes over the sockets of listeners that have the addresses
// already. It does not serve before serve.
func (ls *Listeners) open(lc config.PickerListener, limits config.Limits, r *rules) (*listener, error) {
	l := &listener{
		log: ls.log, cfg: lc, message: messageLimit(limits), headers: headerLimit(limits), draining: make(chan struct{}),
		server: &Server{log: ls.log, metrics: ls.metrics, bodies: &ls.bodies, limit: int64(lc.Streams)},
	}
	l.server.rules.Store(r)
	secure, err := l.credentials()
	if err != nil {
		return nil, err
	}
	if l.socket, err = ls.socket(lc.Address); err != nil {
		return nil, err
	}
	if lc.Health != "off" && lc.Health != "" {
		if l.healthSocket, err = ls.socket(lc.Health); err != nil {
			l.closeSockets()
			return nil, fmt.Errorf("health: %w", err)
		}
	}
	l.grpc = grpc.NewServer(append(l.options(), secure, grpc.ForceServerCodecV2(newCodec()), grpc.NumStreamWorkers(streamWorkers), grpc.InTapHandle(leashes),
		grpc.MaxConcurrentStreams(uint32(min(int64(lc.Streams)+spareStreams, math.MaxUint32))), // see Server.Process
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(connWindow), grpc.MaxRecvMsgSize(l.message))...)
	extprocv3.RegisterExternalProcessorServer(l.grpc, l.server)
	healthv1.RegisterHealthServer(l.grpc, &health{server: l.server, may: ls.ready, draining: l.draining, ends: true, watches: &ls.watches})
	if l.healthSocket != nil {
		l.healthGRPC = grpc.NewServer(append(l.options(), grpc.MaxConcurrentStreams(maxWatches), grpc.MaxRecvMsgSize(64<<10))...)
		healthv1.RegisterHealthServer(l.healthGRPC, &health{server: l.server, may: ls.ready, draining: l.draining, watches: &ls.watches})
	}
	return l, nil
}

func (l *listener) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTime),
		grpc.WaitForHandlers(true), // what they charge is settled when a drain returns
		grpc.MaxHeaderListSize(l.headers),
		// A gateway that is gone without a word must give back what it charges.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: peerSilence, Timeout: peerAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: mostPings, PermitWithoutStream: true}),
	}
}

// credentials are the listener's TLS, always with HTTP/2 by ALPN, without which
// gRPC clients refuse to talk.
func (l *listener) credentials() (grpc.ServerOption, error) {
	if l.cfg.Plaintext {
		return grpc.EmptyServerOption{}, nil
	}
	var conf *tls.Config
	var err error
	if t := l.cfg.TLS; t != nil {
		l.files = &certs.Server{
			Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA,
			CertPEM: t.CertPEM, KeyPEM: t.KeyPEM.Reveal(), ClientCAPEM: t.ClientCAPEM, AcceptInvalid: t.AcceptInvalid,
			Protocols: []string{"h2"}, Complain: func(err error) {
				l.log.Error("certificate not reloaded; the old one stays", "cert", t.Cert, "error", err)
			},
		}
		conf, err = l.files.Config()
	} else {
		own := &certs.SelfSigned{Name: "penstock endpoint picker", Protocols: []string{"h2"}}
		conf, err = own.Config()
	}
	if err != nil {
		return nil, err
	}
	return grpc.Creds(&telling{credentials.NewTLS(conf), &seldom{}, func(peer net.Addr, cause string, more int64) {
		l.log.Warn("a gateway could not speak TLS to the picker", "pool", l.pool(), "listener", l.cfg.Address, "peer", peer.String(), "error", cause, "moreSince", more)
	}}), nil
}

// telling is TLS that tells of handshakes that failed, but not of peers that
// connect and say nothing, as probes of a port do.
type telling struct {
	credentials.TransportCredentials
	often *seldom
	tell  func(peer net.Addr, cause string, more int64)
}

// ServerHandshake is part of credentials.TransportCredentials.
func (c *telling) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil && !errors.Is(err, io.EOF) {
		if more, ok := c.often.now(); ok {
			c.tell(raw.RemoteAddr(), causeOf(err), more)
		}
	}
	return conn, info, err
}

// Clone is part of credentials.TransportCredentials.
func (c *telling) Clone() credentials.TransportCredentials {
	return &telling{c.TransportCredentials.Clone(), c.often, c.tell}
}

// seldom bounds a line of the log to one a second.
type seldom struct{ last, left atomic.Int64 }

// now says that the line may be written, and how many were left out before it.
func (s *seldom) now() (more int64, ok bool) {
	now := time.Now().Unix()
	if last := s.last.Load(); last != now && s.last.CompareAndSwap(last, now) {
		return s.left.Swap(0), true
	}
	s.left.Add(1)
	return 0, false
}

// socket binds address, or takes it over from a listener that has it: no
// connection is refused in between.
func (ls *Listeners) socket(address string) (net.Listener, error) {
	for _, old := range ls.list {
		for _, had := range []struct {
			address string
			socket  net.Listener
		}{{old.cfg.Address, old.socket}, {old.cfg.Health, old.healthSocket}} {
			tcp, ok := had.socket.(*net.TCPListener)
			if !ok || had.address != address || tcp.Addr().String() != address && portOf(address) == "0" {
				continue
			}
			f, err := tcp.File()
			if err != nil {
				return nil, err
			}
			defer f.Close()
			return net.FileListener(f)
		}
	}
	return net.Listen("tcp", address)
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

func (l *listener) closeSockets() {
	for _, s := range []net.Listener{l.socket, l.healthSocket} {
		if s != nil {
			s.Close()
		}
	}
}

func (l *listener) serve() {
	run := func(s *grpc.Server, socket net.Listener, what string) {
		err := s.Serve(netutil.LimitListener(socket, maxConnections))
		select {
		case <-l.draining:
		default:
			l.log.Error("picker listener ended", "what", what, "pool", l.pool(), "address", socket.Addr().String(), "error", err)
		}
	}
	go run(l.grpc, l.socket, "ext_proc")
	if l.healthGRPC != nil {
		go run(l.healthGRPC, l.healthSocket, "health")
	}
}

// retire stops accepting, for a listener that a reload has replaced or removed.
// Streams stay; probes are to find whoever has the health address now.
func (l *listener) retire() {
	l.once.Do(func() { close(l.draining) })
	l.socket.Close()
	if l.healthGRPC != nil {
		l.healthGRPC.Stop()
	}
}

// drain ends the listener: see Listeners.Drain. The health port answers until
// the last stream has ended.
func (l *listener) drain(ctx context.Context) (cut int) {
	l.once.Do(func() { close(l.draining) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.grpc.GracefulStop()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		cut = int(l.server.open.Load())
		l.grpc.Stop()
		<-ended
	}
	if l.healthGRPC != nil {
		l.healthGRPC.Stop()
	}
	return cut
}
