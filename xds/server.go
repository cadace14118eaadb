// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/penstock/penstock/config"
)

// ServerOptions are what a Server needs from its surroundings. Authority,
// Reviewer and GatewayOf must be set.
type ServerOptions struct {
	Log       *slog.Logger
	Metrics   *ServerInstruments // nil: none
	Authority *Authority
	Reviewer  TokenReviewer
	// GatewayOf says which Gateway a service account serves; an error is the
	// reason why none.
	GatewayOf func(Account) (Gateway, error)
	Audience  string   // of tokens; "": [Audience]
	Names     []string // hosts and addresses by which gateways reach this server
	// CertificateLife is the life of a gateway's certificate, which it renews
	// after two thirds. Default one hour.
	CertificateLife time.Duration
	// Pace is the least time between two sendings of members to one client, in
	// which changes gather; the first change after a pause is sent at once.
	// Default 50ms.
	Pace time.Duration
	// Replied is told what a client has accepted or refused. It must not block
	// and not call the Server.
	Replied func(Reply)
}

// Reply is what became of one resource at one client. Reported are all replies
// about configurations, and of members those that were refused and the first
// that was accepted after.
type Reply struct {
	Gateway  Gateway
	Client   string // its pod, or its address
	Type     string // ConfigType or MembersType
	Resource string
	Version  string
	Err      string // why it was refused; empty: it is in force
}

// Server is the control plane's side. Until [Server.Lead] it refuses everybody.
type Server struct {
	o       ServerOptions
	grpc    *grpc.Server
	reviews chan struct{} // a place for each review under way
	warned  atomic.Int64  // when a refused certificate was logged last, Unix nanoseconds

	mu       sync.Mutex // guards what follows; taken before scope.mu
	gateways map[Gateway]*scope
	leading  chan struct{} // closed when leading ends; nil: not leading
	closing  bool
}

// NewServer returns a server that nobody can reach before [Server.Serve].
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewServerInstruments(nil)
	}
	if o.Replied == nil {
		o.Replied = func(Reply) {}
	}
	o.Audience = cmp.Or(o.Audience, Audience)
	o.CertificateLife = cmp.Or(o.CertificateLife, time.Hour)
	o.Pace = cmp.Or(o.Pace, 50*time.Millisecond)
	s := &Server{o: o, gateways: map[Gateway]*scope{}, reviews: make(chan struct{}, maxReviews)}
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(o.Authority.ServerTLS(o.Names...))),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(64<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingAnswer, MaxConnectionIdle: time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, adsServer{server: s})
	s.grpc.RegisterService(signDesc(), s)
	return s
}

// Bounds of the server.
const (
	handshakeTime  = 20 * time.Second // many may come at once: to time out would make them come again
	maxConnections = 8192
	maxStreams     = 8       // of one connection; a gateway has one, for a moment two
	maxRequest     = 4 << 20 // a client names every version that it has
	pingAfter      = 10 * time.Second
	pingAnswer     = 5 * time.Second
	// sendRate is how many bytes of members the clients of one Gateway are sent
	// in a second: where lists are long and clients many, changes gather longer.
	sendRate = 64 << 20
)

// Serve answers on l until [Server.Close].
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(netutil.LimitListener(l, maxConnections))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Close ends every stream with a status that sends clients elsewhere, and
// returns when all have ended or ctx has.
func (s *Server) Close(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.Lead(false)
	done := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// Lead says whether this replica is the one to ask. One that does not lead
// refuses, and clients turn to the next; it takes nothing, and what was
// published is forgotten when leading ends: another replica knows better from
// then on, and should this one lead again, nobody must get what is old by then.
// So a controller publishes everything once it leads, not before.
func (s *Server) Lead(lead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case lead && s.leading == nil && !s.closing:
		s.leading = make(chan struct{})
	case !lead && s.leading != nil:
		close(s.leading)
		s.leading = nil
		clear(s.gateways)
		s.o.Metrics.gateways.Set(0)
	}
}

func (s *Server) leads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading != nil
}

func errNotLeader() error {
	return status.Error(codes.Unavailable, notLeading)
}

// Publish makes cfg the configuration of g. It is served once every set of
// members that it expects from here is known (see [Server.SetMembers]), and from then on is the
// only one: one that was published meanwhile is never seen. Sets
// that it no longer has are forgotten. cfg must be complete (see
// [config.Config.SetDefaults]) and is not looked at after. The error is of one
// that is too large to be sent, or of a server that does not lead; then nothing
// changes.
func (s *Server) Publish(g Gateway, cfg *config.Config) error {
	value := cfg.Encode()
	if len(value) > maxMessage/2 {
		return fmt.Errorf("the configuration of %s is too large to be sent: %s, at most %s", g, config.Size(len(value)), config.Size(maxMessage/2))
	}
	next := &published{resource: newResource(ConfigType, ConfigName, value)}
	next.sets = externalSets(cfg)
	c := s.scope(g)
	if c == nil {
		return errors.New("this replica does not lead")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil && c.config != nil && c.config.version == next.version && slices.Equal(c.config.sets, next.sets) {
		return nil
	}
	c.next = next
	c.promoteLocked()
	c.wakeLocked()
	return nil
}

// SetMembers replaces a set of members: those of the pool of that name, or the
// endpoints of its remote picker under the name that [config.PickerSet] makes
// of the pool's. It may be of a configuration still to be published.
func (s *Server) SetMembers(g Gateway, set string, members []config.Member) {
	next := newResource(MembersType, set, encodeMembers(members))
	c := s.scope(g)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.members[set]; old != nil && old.version == next.version {
		return
	}
	c.members[set] = next
	c.promoteLocked()
	c.wakeLocked()
}

// RemoveMembers forgets a set that no configuration has. One that a
// configuration has goes with it, see [Server.Publish].
func (s *Server) RemoveMembers(g Gateway, set string) {
	c := s.scope(g)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range []*published{c.config, c.next} {
		if p != nil && slices.Contains(p.sets, set) {
			return
		}
	}
	delete(c.members, set)
	c.wakeLocked()
}

// Remove forgets a Gateway. Its clients keep what they have and are refused.
func (s *Server) Remove(g Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.gateways[g]; c != nil {
		delete(s.gateways, g)
		close(c.removed)
		s.o.Metrics.gateways.Set(float64(len(s.gateways)))
	}
}

// GatewayStatus is how far a Gateway's clients are.
type GatewayStatus struct {
	Version string   // of the configuration that is served; empty: none yet
	Waiting []string // sets of members without which the newest configuration is withheld
	Clients []ClientState
}

// ClientState is one client.
type ClientState struct {
	Name    string // its pod, or its address
	Since   time.Time
	Version string // of the configuration in force there; empty: none
	Refused string // the version that it refused last and has not got over; empty: none
	Err     string // why
}

// Status tells of one Gateway.
func (s *Server) Status(g Gateway) GatewayStatus {
	s.mu.Lock()
	c := s.gateways[g]
	s.mu.Unlock()
	if c == nil {
		return GatewayStatus{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out GatewayStatus
	if c.config != nil {
		out.Version = c.config.version
	}
	out.Waiting = c.waitingLocked()
	for st := range c.streams {
		out.Clients = append(out.Clients, st.stateLocked())
	}
	slices.SortFunc(out.Clients, func(a, b ClientState) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.Since.Compare(b.Since)) })
	return out
}

// scope is what one Gateway is served, and its clients.
type scope struct {
	removed chan struct{} // closed with the Gateway

	mu      sync.Mutex
	config  *published // nil: none that may be seen
	next    *published // withheld, see Publish
	members map[string]*resource
	streams map[*stream]struct{}
}

// resource is one value under its version. It never changes, so that all
// clients are sent the same bytes.
type resource struct {
	name, version string
	value         *anypb.Any
	made          time.Time
}

// published is a configuration with the sets of members that it needs.
type published struct {
	*resource
	sets []string // names; see externalSets
}

func newResource(typeURL, name string, value []byte) *resource {
	return &resource{name: name, version: versionOf(value), value: packed(typeURL, value), made: time.Now()}
}

// scope finds or makes the scope of g; nil: this server does not lead.
func (s *Server) scope(g Gateway) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leading == nil {
		return nil
	}
	c := s.gateways[g]
	if c == nil {
		c = &scope{removed: make(chan struct{}), members: map[string]*resource{}, streams: map[*stream]struct{}{}}
		s.gateways[g] = c
		s.o.Metrics.gateways.Set(float64(len(s.gateways)))
	}
	return c
}

func (c *scope) waitingLocked() (sets []string) {
	if c.next == nil {
		return nil
	}
	for _, p := range c.next.sets {
		if c.members[p] == nil {
			sets = append(sets, p)
		}
	}
	return sets
}

// promoteLocked shows the withheld configuration when nothing is missing.
func (c *scope) promoteLocked() {
	if c.next == nil || len(c.waitingLocked()) > 0 {
		return
	}
	old := c.config
	c.config, c.next = c.next, nil
	if old == nil {
		return
	}
	for _, p := range old.sets {
		if !slices.Contains(c.config.sets, p) {
			delete(c.members, p)
		}
	}
}

func (c *scope) wakeLocked() {
	for st := range c.streams {
		st.poke()
	}
}

// adsServer is the ADS service of a Server.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

// DeltaAggregatedResources serves one gateway.
func (a adsServer) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s := a.server
	gateway, instance, ends, err := s.o.Authority.verify(peerChain(g.Context()))
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	name := cmp.Or(instance, peerAddress(g.Context()))
	s.mu.Lock()
	leading, c := s.leading, s.gateways[gateway]
	s.mu.Unlock()
	if leading == nil {
		return errNotLeader()
	}
	if c == nil {
		// The certificate may be of an hour ago; or the controller has not got
		// to this Gateway yet.
		return status.Errorf(codes.Unavailable, "Gateway %s is not served here (yet)", gateway)
	}
	st := newStream(s, c, gateway, name, g)
	c.mu.Lock()
	c.streams[st] = struct{}{}
	c.mu.Unlock()
	s.o.Metrics.clients.Inc()
	defer func() {
		c.mu.Lock()
		delete(c.streams, st)
		c.mu.Unlock()
		s.o.Metrics.clients.Dec()
	}()
	s.o.Log.Debug("gateway connected", "gateway", gateway.String(), "client", name)
	err = st.run(leading, ends)
	s.o.Log.Debug("gateway left", "gateway", gateway.String(), "client", name, "reason", fmt.Sprint(err))
	return err
}

// Gateways are those that are served, sorted.
func (s *Server) Gateways() []Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.gateways), func(a, b Gateway) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
