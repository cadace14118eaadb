// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/pool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// replicas are the processes behind a picker's address: one connection to each
// address that the name resolves to. A resolver that fails keeps the last good
// set.
type replicas struct {
	cfg     config.RemotePicker
	log     *slog.Logger
	changed func(ready, all int)
	resolve func(ctx context.Context, host string) ([]string, error)

	list atomic.Pointer[[]*replica]
	turn atomic.Uint64
	told atomic.Pointer[[]string] // the addresses, where the control plane has them
	news chan struct{}            // told is another one; capacity 1
	stop context.CancelFunc
	runs sync.WaitGroup

	stamp  string                 // of the certificate files
	bad    string                 // of those that could not be read
	failed bool                   // the last resolution
	lost   atomic.Pointer[string] // why it did; nil: it did not
}

// replica is one address.
type replica struct {
	address string
	conn    *grpc.ClientConn
	health  *grpc.ClientConn       // conn, or that of another port
	state   atomic.Int32           // a standing
	why     atomic.Pointer[string] // the last error; nil: none since it was ready
	open    atomic.Int64           // streams
	check   chan struct{}          // look at once; capacity 1
	stop    context.CancelFunc
	done    chan struct{}
}

// standing is what is known of a replica.
type standing int32

const (
	unchecked standing = iota // asked only while nobody is ready
	ready
	notReady
)

func (s standing) String() string { return [...]string{"unchecked", "ready", "not ready"}[s] }

const (
	// window is for streams and connections: a body should not wait for the
	// picker's permission every 64 KiB.
	window = 1 << 20
	// lingering is how long the streams of an address that has gone may go on.
	lingering = 30 * time.Minute
)

func newReplicas(cfg config.RemotePicker, log *slog.Logger, changed func(ready, all int)) (*replicas, error) {
	r := &replicas{cfg: cfg, log: log, changed: changed, resolve: net.DefaultResolver.LookupHost, news: make(chan struct{}, 1)}
	r.told.Store(&[]string{})
	if _, err := r.credentials(); err != nil {
		return nil, err
	}
	r.list.Store(&[]*replica{})
	return r, nil
}

func (r *replicas) credentials() (credentials.TransportCredentials, error) {
	if r.cfg.TLS == nil {
		return insecure.NewCredentials(), nil
	}
	conf, err := r.identity().Config()
	if err != nil {
		return nil, err
	}
	conf.NextProtos = []string{"h2"}
	return credentials.NewTLS(conf), nil
}

// identity is the TLS that is configured.
func (r *replicas) identity() certs.Client {
	c := pool.Identity(r.cfg.TLS)
	if c.ServerName == "" && !r.cfg.External {
		c.ServerName, _, _ = net.SplitHostPort(r.cfg.Address) // addresses are dialled, the name is proven
	}
	return c
}

// start resolves the address for the first time, which may take as long as a
// pick, and keeps it resolved.
func (r *replicas) start() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	first, cancel := context.WithTimeout(ctx, r.cfg.Timeout.D())
	r.refresh(first)
	cancel()
	r.runs.Go(func() {
		tick := time.NewTicker(r.cfg.Refresh.D())
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-r.news:
			}
			asked, cancel := context.WithTimeout(ctx, r.cfg.Refresh.D())
			r.refresh(asked)
			cancel()
		}
	})
}

// close ends everything; streams that are open get no more than lingering.
func (r *replicas) close() {
	r.stop()
	r.runs.Wait()
	for _, p := range *r.list.Swap(&[]*replica{}) {
		p.retire()
	}
}

// tell replaces the addresses of an external picker.
func (r *replicas) tell(addresses []string) {
	r.told.Store(&addresses)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// find is where the picker is now, host:port each. Only a name is wrong to
// lead nowhere.
func (r *replicas) find(ctx context.Context) ([]string, error) {
	if r.cfg.External {
		return slices.Clone(*r.told.Load()), nil
	}
	host, port, _ := net.SplitHostPort(r.cfg.Address)
	ips, err := r.resolve(ctx, host)
	if err == nil && len(ips) == 0 {
		err = errNoAddress
	}
	found := make([]string, len(ips))
	for i, ip := range ips {
		found[i] = net.JoinHostPort(ip, port)
	}
	return found, err
}

var errNoAddress = errors.New("no address is known")

// refresh follows the addresses and the certificate files.
func (r *replicas) refresh(ctx context.Context) {
	found, err := r.find(ctx)
	if ctx.Err() == context.Canceled {
		return
	}
	if err != nil {
		if !r.failed {
			r.log.Warn("the picker's address cannot be resolved; the last known addresses stay", "address", r.cfg.Address, "error", err)
		}
		why := err.Error()
		r.failed = true
		r.lost.Store(&why)
		return
	}
	r.lost.Store(nil)
	if r.failed {
		r.log.Info("the picker's address is resolved again", "address", r.cfg.Address)
		r.failed = false
	}
	slices.Sort(found)
	found = slices.Compact(found)
	old := *r.list.Load()
	if r.cfg.TLS != nil {
		if stamp := r.identity().Stamp(); stamp != r.stamp {
			if _, err := r.credentials(); err != nil {
				why := "the picker's TLS files cannot be read; the old identity stays: " + err.Error()
				r.lost.Store(&why)
				if r.bad != stamp {
					r.log.Warn("the picker's TLS files cannot be read; the old identity stays", "address", r.cfg.Address, "error", err)
				}
				r.bad = stamp
			} else {
				r.stamp, old = stamp, nil // all connections anew
			}
		}
	}
	var next []*replica
	for _, address := range found {
		i := slices.IndexFunc(old, func(p *replica) bool { return p.address == address })
		if i >= 0 {
			next = append(next, old[i])
			continue
		}
		p, err := r.dial(address)
		if err != nil {
			r.log.Warn("no connection to the picker can be made", "address", address, "error", err)
			continue
		}
		next = append(next, p)
	}
	for _, p := range *r.list.Swap(&next) {
		if !slices.Contains(next, p) {
			p.retire()
		}
	}
	r.report()
}

func (r *replicas) dial(address string) (*replica, error) {
	creds, err := r.credentials()
	if err != nil {
		return nil, err
	}
	options := func(c credentials.TransportCredentials) []grpc.DialOption {
		return []grpc.DialOption{
			grpc.WithTransportCredentials(c),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(r.cfg.MaxMessage))),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
			grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
			grpc.WithNoProxy(),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
				MinConnectTimeout: 2 * time.Second,
			}),
		}
	}
	conn, err := grpc.NewClient(passthrough+address, options(creds)...)
	if err != nil {
		return nil, err
	}
	p := &replica{address: address, conn: conn, health: conn, check: make(chan struct{}, 1), done: make(chan struct{})}
	if port := r.cfg.Health.Port; port != 0 {
		ip, _, _ := net.SplitHostPort(address)
		if p.health, err = grpc.NewClient(passthrough+net.JoinHostPort(ip, strconv.Itoa(port)), options(insecure.NewCredentials())...); err != nil {
			conn.Close()
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	conn.Connect()
	go p.watch(ctx, r)
	return p, nil
}

// watch keeps the replica's standing until ctx ends.
func (p *replica) watch(ctx context.Context, r *replicas) {
	defer close(p.done)
	var lost chan struct{}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.check:
		case <-lost:
			lost = nil
		}
		s, err := p.look(ctx, r)
		if ctx.Err() != nil {
			return
		}
		p.set(r, s, err)
		if lost == nil {
			// A connection that breaks is looked at without waiting for the tick.
			lost = make(chan struct{})
			go func(state connectivity.State, lost chan struct{}) {
				if p.conn.WaitForStateChange(ctx, state) {
					close(lost)
				}
			}(p.conn.GetState(), lost)
		}
		tick.Reset(r.cfg.Health.Interval.D())
	}
}

// look asks the replica how it is; the error is why it is not ready.
func (p *replica) look(ctx context.Context, r *replicas) (standing, error) {
	limit := r.cfg.Health.Timeout.D()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	question := &grpc_health_v1.HealthCheckRequest{Service: r.cfg.Health.Service}
	p.conn.Connect()
	for state := p.conn.GetState(); state != connectivity.Ready; state = p.conn.GetState() {
		if state == connectivity.TransientFailure {
			// Only a call tells why.
			_, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, question)
			if err == nil {
				err = errors.New("the connection was lost")
			}
			return notReady, err
		}
		if !p.conn.WaitForStateChange(ctx, state) {
			return notReady, fmt.Errorf("no connection within %s", limit)
		}
	}
	if r.cfg.Health.Off {
		return ready, nil
	}
	where := p.health.Target()[len(passthrough):]
	res, err := grpc_health_v1.NewHealthClient(p.health).Check(ctx, question)
	switch status.Code(err) {
	case codes.OK:
		if res.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return ready, nil
		}
		return notReady, fmt.Errorf("the health of %q on %s is %s", question.Service, where, res.GetStatus())
	case codes.Unimplemented, codes.NotFound:
		return ready, nil // it does not speak of its health; it can be connected to
	case codes.DeadlineExceeded:
		return notReady, fmt.Errorf("no answer about its health on %s within %s (picker.remote.health)", where, limit)
	}
	return notReady, fmt.Errorf("health on %s: %s (picker.remote.health)", where, causeOf(err))
}

// passthrough makes gRPC dial an address as it is.
const passthrough = "passthrough:///"

// set notes what was seen; err is why it is not ready.
func (p *replica) set(r *replicas, s standing, err error) {
	if err != nil {
		why := causeOf(err)
		p.why.Store(&why)
	} else {
		p.why.Store(nil)
	}
	if was := standing(p.state.Swap(int32(s))); was == s {
		return
	}
	switch s {
	case ready:
		r.log.Info("picker is ready", "address", p.address)
	case notReady:
		address := r.cfg.Address
		if r.cfg.External { // then it is the name of a set
			address = p.address
		}
		r.log.Warn("picker is not ready", "address", p.address, "error", causeOf(err), "hint", hint(&r.cfg, address, err))
	}
	r.report()
}

// broke notes that a stream could not be had: the replica is not asked again
// before it was looked at.
func (p *replica) broke(r *replicas, err error) {
	p.set(r, notReady, err)
	select {
	case p.check <- struct{}{}:
	default:
	}
}

// ReplicaStatus is what is known of one address of a picker elsewhere.
type ReplicaStatus struct {
	Address string
	State   string // ready, not ready, unchecked
	Streams int64
	Error   string // the last one; "": none since it was ready
}

// status is the state of every replica; failed is why the name has no (new)
// addresses.
func (r *replicas) status() (list []ReplicaStatus, failed string) {
	for _, p := range *r.list.Load() {
		s := ReplicaStatus{Address: p.address, State: standing(p.state.Load()).String(), Streams: p.open.Load()}
		if why := p.why.Load(); why != nil {
			s.Error = *why
		}
		list = append(list, s)
	}
	if lost := r.lost.Load(); lost != nil {
		failed = *lost
	}
	return list, failed
}

// notReady says why nobody can be asked, for the text of a failure.
func (r *replicas) notReady() error {
	list, failed := r.status()
	var why []string
	for _, s := range list {
		if s.Error != "" && len(why) < maxReplicas {
			why = append(why, s.Address+": "+s.Error)
		}
	}
	if failed == "" && len(list) == 0 {
		failed = errNoAddress.Error()
	}
	if failed != "" {
		why = append(why, failed)
	}
	text := "no replica of " + r.cfg.Address + " is ready"
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return errors.New(text)
}

// retire stops the checks and closes the connection once its streams have
// ended.
func (p *replica) retire() {
	p.stop()
	go func() {
		<-p.done
		for end := time.Now().Add(lingering); p.open.Load() > 0 && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		if p.health != p.conn {
			p.health.Close()
		}
		p.conn.Close()
	}()
}

func (r *replicas) report() {
	list := *r.list.Load()
	n := 0
	for _, p := range list {
		if standing(p.state.Load()) == ready {
			n++
		}
	}
	r.changed(n, len(list))
}

// choose takes the ready replica with the fewest streams, ties in turn; if none
// is ready, one that has not been looked at yet. nil: nobody.
func (r *replicas) choose(not []*replica) *replica {
	list := *r.list.Load()
	if len(list) == 0 {
		return nil
	}
	start := int(r.turn.Add(1) % uint64(len(list)))
	var best *replica
	for _, want := range []standing{ready, unchecked} {
		for i := range list {
			p := list[(start+i)%len(list)]
			if standing(p.state.Load()) == want && !slices.Contains(not, p) && (best == nil || p.open.Load() < best.open.Load()) {
				best = p
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}
