// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/config"
)

// Target is what a client feeds. SetMembers and RemoveMembers may be called
// while Apply runs; neither is called twice at a time.
type Target interface {
	// Apply puts a configuration in force, whole, or changes nothing and says
	// why. It is not called twice at a time.
	Apply(cfg *config.Config) error
	// SetMembers replaces the members of a pool, which the configuration in
	// force may not have yet: a later one will.
	SetMembers(pool string, members []config.Member)
	// RemoveMembers says that no configuration has this pool any more.
	RemoveMembers(pool string)
}

// ClientOptions are what a Client needs. Address, TokenFile, CAFile and Target
// must be set.
type ClientOptions struct {
	Address   string // of the controller, host:port; resolved to every address at each attempt
	TokenFile string // the service account token; read anew for each certificate
	CAFile    string // PEM, whom to trust as the controller; read anew for each connection
	StateDir  string // where the last good state is kept; "": nowhere
	Node      string // the name of this process in the controller's log
	Target    Target
	Log       *slog.Logger
	Metrics   *ClientInstruments // nil: none
	// Lookup resolves the host of Address; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
}

// Client is the gateway's side. It tries for ever, and what it has stays in
// force however long the controller is away.
type Client struct {
	o     ClientOptions
	log   *slog.Logger
	creds credential    // only the goroutine of Run uses it
	saves chan struct{} // something is to be saved; capacity 1
	last  string        // the address that served last

	mu     sync.Mutex
	state  state
	status ClientStatus
	told   []string // failures that the log has, since there was a connection
}

// ClientStatus is what is known of the controller and its configuration.
type ClientStatus struct {
	Controller string    // the address configured
	Connected  bool      // accepted by a controller that leads
	Since      time.Time // when it became so, or ceased to be
	Error      string    // why there is no connection; empty while there is one
	Version    string    // of the configuration in force; empty: none
	Applied    time.Time
	Saved      bool   // the configuration is of a former run, and no other came since
	Refused    string // why the newest configuration is not in force; empty: it is
	RefusedAt  time.Time
}

// NewClient returns a client that does nothing before [Client.Run].
func NewClient(o ClientOptions) *Client {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Metrics == nil {
		o.Metrics = NewClientInstruments(nil)
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupHost
	}
	return &Client{
		o: o, log: o.Log, saves: make(chan struct{}, 1), state: state{Members: map[string]saved{}},
		status: ClientStatus{Controller: o.Address, Since: time.Now()},
	}
}

// Status is the state of this moment.
func (c *Client) Status() ClientStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// The times of a client.
const (
	firstPause    = 500 * time.Millisecond // after a failed round; doubles
	longestPause  = 15 * time.Second       // while nobody answers
	leaderPause   = 2 * time.Second        // while replicas answer, none of which leads
	answerTime    = 20 * time.Second       // of a controller that is asked to accept a stream or to sign
	lookupTime    = 5 * time.Second
	saveEvery     = time.Second // at most, while members change
	clientPing    = 10 * time.Second
	clientPingEnd = 5 * time.Second
)

// Run starts from what was saved, if anything was, then follows the controller
// until ctx ends.
func (c *Client) Run(ctx context.Context) {
	c.restore()
	var saver sync.WaitGroup
	saver.Go(func() { c.keepSaved(ctx) })
	defer saver.Wait()
	pause := time.Duration(0)
	for ctx.Err() == nil {
		err := c.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRenewed) {
			continue
		}
		pause = pauseAfter(err, pause)
		if !sleep(ctx, time.Duration((0.5+rand.Float64())*float64(pause))) {
			return
		}
	}
}

// pauseAfter is the wait after a round that failed with err, where last was the
// wait before it, or 0. Replicas that do not lead are a sign that one soon will,
// or that another connection to the same address gets to it.
func pauseAfter(err error, last time.Duration) time.Duration {
	switch {
	case last == 0, errors.Is(err, errServed): // it was there a moment ago
		return firstPause
	case errors.Is(err, errFollower):
		return min(2*last, leaderPause)
	}
	return min(2*last, longestPause)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

var (
	errServed   = errors.New("the connection broke") // after the controller had accepted it
	errRenewed  = errors.New("the certificate was renewed")
	errFollower = errors.New("no replica leads")
)

// round tries every address of the controller until one has served.
func (c *Client) round(ctx context.Context) error {
	addresses, err := c.addresses(ctx)
	if err != nil {
		c.disconnected(fmt.Errorf("resolve %s: %w", c.o.Address, err))
		return err
	}
	var refusal error // the leader's
	follower := false
	for _, a := range addresses {
		err = c.session(ctx, a)
		if ctx.Err() != nil || errors.Is(err, errRenewed) {
			return err
		}
		isFollower := err != nil && strings.Contains(err.Error(), notLeading)
		if refusal == nil || !isFollower { // else the leader's word stands
			c.disconnected(fmt.Errorf("%s: %w", a, err))
		}
		if errors.Is(err, errServed) {
			return err
		}
		if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unauthenticated {
			refusal = err
		}
		follower = follower || isFollower
	}
	switch {
	case refusal != nil:
		return refusal
	case follower:
		return errFollower
	}
	return err
}

// notLeading is what a replica answers that does not lead.
const notLeading = "this replica does not lead; ask another"

// addresses are where the controller may be, the one that served last first and
// the others in any order: only the leader serves.
func (c *Client) addresses(ctx context.Context) ([]string, error) {
	host, port, err := net.SplitHostPort(c.o.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	hosts, err := c.o.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(hosts))
	for i, h := range hosts {
		out[i] = net.JoinHostPort(h, port)
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	if i := slices.Index(out, c.last); i > 0 {
		out[0], out[i] = out[i], out[0]
	}
	return out, nil
}

func (c *Client) disconnected(err error) {
	c.o.Metrics.connected.Set(0)
	c.o.Metrics.failures.Inc()
	c.mu.Lock()
	was, same := c.status.Connected, slices.Contains(c.told, err.Error())
	if was {
		c.status.Since = time.Now()
	}
	if !same && len(c.told) < 16 { // what changes with every try is told no more then
		c.told = append(c.told, err.Error())
	} else {
		same = true
	}
	c.status.Connected, c.status.Error = false, err.Error()
	c.mu.Unlock()
	switch {
	case was:
		c.log.Warn("the controller is out of reach; what is in force stays", "error", err)
	case !same: // an outage may be long: once is enough, for each replica
		c.log.Warn("the controller cannot be reached", "error", err)
	}
}

func (c *Client) connected(address string) {
	c.o.Metrics.connected.Set(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.status.Connected {
		c.log.Info("connected to the controller", "address", address)
		c.status.Connected, c.status.Since, c.status.Error = true, time.Now(), ""
		c.told = nil
	}
	c.last = address
}

// dial makes a connection that is used by one session. No proxy: the controller
// is near, and the token is for nobody else.
func (c *Client) dial(address string, own *tls.Certificate) (*grpc.ClientConn, error) {
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	if own != nil {
		conf.Certificates = []tls.Certificate{*own}
	}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: clientPingEnd}))
}

// session is one connection to one replica of the controller.
func (c *Client) session(ctx context.Context, address string) error {
	err := c.serve(ctx, address)
	if status.Code(err) == codes.Unauthenticated && !errors.Is(err, errServed) && c.creds.usable() {
		c.creds = credential{} // the authority is another one now
		err = c.serve(ctx, address)
	}
	return err
}

func (c *Client) serve(ctx context.Context, address string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.creds.due() {
		k, err := c.obtain(ctx, address)
		switch {
		case err == nil:
			c.creds = k
		case !c.creds.usable():
			return err
		}
	}
	conn, err := c.dial(address, c.creds.pair)
	if err != nil {
		return err
	}
	defer conn.Close()
	ads, err := c.open(ctx, cancel, conn)
	if err != nil {
		return err
	}
	c.connected(address)
	f := &follower{client: c, ads: ads, applied: make(chan applied, 1)}
	defer f.wait()
	return f.follow(ctx, address)
}

// open subscribes, with what is there already, and waits until the controller
// has accepted the stream. Members come first: see answering in stream.go.
func (c *Client) open(ctx context.Context, cancel func(), conn *grpc.ClientConn) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, error) {
	late := time.AfterFunc(answerTime, cancel)
	defer late.Stop()
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range c.subscriptions() {
		if err := ads.Send(r); err != nil {
			return nil, failure(ads, err)
		}
	}
	if md, err := ads.Header(); err != nil || md == nil {
		return nil, failure(ads, cmp.Or(err, errors.New("no answer")))
	}
	if !late.Stop() {
		return nil, errors.New("no answer in time")
	}
	return ads, nil
}

// failure is why a stream has ended, which gRPC tells a reader alone.
func failure(ads discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, err error) error {
	if _, cause := ads.Recv(); cause != nil {
		return cause
	}
	return err
}
