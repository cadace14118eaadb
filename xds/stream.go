// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// stream is one client on the server. What it has is compared with what there
// is whenever something has changed and the client has answered; between the
// two nothing is queued, so a slow client costs no memory and misses only
// states that are past.
type stream struct {
	server  *Server
	scope   *scope
	gateway Gateway
	name    string
	since   time.Time
	grpc    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	wake    chan struct{} // capacity 1
	nonces  int
	slow    time.Time // no members are sent before

	// Guarded by scope.mu.
	config  book
	members book
}

// book is what one client has of one type.
type book struct {
	subscribed bool
	has        map[string]string // versions, those under way included
	refused    map[string]refusal
	sent       *sending // not answered yet; nil: none
}

type refusal struct{ version, err string }

// sending is one response under way.
type sending struct {
	nonce   string
	changed map[string]string // versions sent
	before  map[string]string // what the client had of those
	at      time.Time         // of the oldest change within
}

func newStream(s *Server, c *scope, g Gateway, name string, ads discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) *stream {
	return &stream{
		server: s, scope: c, gateway: g, name: name, since: time.Now(), grpc: ads, wake: make(chan struct{}, 1),
		config:  book{has: map[string]string{}, refused: map[string]refusal{}},
		members: book{has: map[string]string{}, refused: map[string]refusal{}},
	}
}

func (st *stream) poke() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// run serves the stream until the client leaves, leading is closed or the
// client's certificate ends.
func (st *stream) run(leading <-chan struct{}, ends time.Time) error {
	// The client learns that it is accepted before there is anything to send.
	if err := st.grpc.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(st.grpc.Context())
	defer cancel()
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	gone := make(chan error, 1)
	go func() {
		for {
			r, err := st.grpc.Recv()
			if err != nil {
				gone <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	expired := time.NewTimer(time.Until(ends))
	defer expired.Stop()
	paced := time.NewTimer(time.Hour)
	defer paced.Stop()
	for {
		select {
		case err := <-gone:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-leading:
			return errNotLeader()
		case <-st.scope.removed:
			return status.Errorf(codes.Unavailable, "Gateway %s is no longer served", st.gateway)
		case <-expired.C:
			return status.Error(codes.Unauthenticated, "the client certificate has ended")
		case r := <-requests:
			if err := st.request(r); err != nil {
				return err
			}
		case <-st.wake:
		case <-paced.C:
		}
		wait, err := st.send()
		if err != nil {
			return err
		}
		if wait > 0 {
			paced.Reset(wait)
		}
	}
}

// request takes a subscription or the answer to a response.
func (st *stream) request(r *discoveryv3.DeltaDiscoveryRequest) error {
	st.scope.mu.Lock()
	b := st.bookOf(r.GetTypeUrl())
	if b == nil {
		st.scope.mu.Unlock()
		return status.Errorf(codes.InvalidArgument, "resource type %q is not served here", r.GetTypeUrl())
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != "*" {
			st.scope.mu.Unlock()
			return status.Errorf(codes.InvalidArgument, "subscribe to *, not to %q", name)
		}
	}
	if !b.subscribed {
		b.subscribed = true
		for name, version := range r.GetInitialResourceVersions() {
			b.has[name] = version
		}
	}
	replies := st.answerLocked(r, b)
	st.scope.mu.Unlock()
	for _, reply := range replies {
		st.server.o.Replied(reply)
	}
	return nil
}

func (st *stream) bookOf(typeURL string) *book {
	switch typeURL {
	case ConfigType:
		return &st.config
	case MembersType:
		return &st.members
	}
	return nil
}

// answerLocked settles the response that r answers. A refusal names resources
// in google.rpc.BadRequest; without names it is of all.
func (st *stream) answerLocked(r *discoveryv3.DeltaDiscoveryRequest, b *book) (replies []Reply) {
	sent := b.sent
	if sent == nil || r.GetResponseNonce() != sent.nonce {
		return nil
	}
	b.sent = nil
	refused := map[string]string{}
	if e := r.GetErrorDetail(); e != nil {
		for _, d := range status.FromProto(e).Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok {
				for _, v := range bad.GetFieldViolations() {
					refused[v.GetField()] = v.GetDescription()
				}
			}
		}
		if len(refused) == 0 {
			for name := range sent.changed {
				refused[name] = e.GetMessage()
			}
		}
	}
	result := "ack"
	for name, version := range sent.changed {
		reply := Reply{Gateway: st.gateway, Client: st.name, Type: r.GetTypeUrl(), Resource: name, Version: version, Err: bounded(refused[name])}
		_, was := b.refused[name]
		if _, no := refused[name]; no {
			result = "nack"
			reply.Err = cmp.Or(reply.Err, "refused without a reason")
			b.refused[name] = refusal{version, reply.Err}
			if before, had := sent.before[name]; had {
				b.has[name] = before
			} else {
				delete(b.has, name)
			}
			st.server.o.Log.Warn("a gateway refuses a resource", "gateway", st.gateway.String(), "client", st.name,
				"type", short(reply.Type), "resource", name, "version", version, "error", reply.Err)
		} else {
			delete(b.refused, name)
		}
		if reply.Err != "" || was || r.GetTypeUrl() == ConfigType {
			replies = append(replies, reply)
		}
	}
	st.server.o.Metrics.reply(r.GetTypeUrl(), result, sent.at)
	return replies
}

// maxError bounds an error that a client sends.
const maxError = 4 << 10

func bounded(s string) string {
	if len(s) > maxError {
		return s[:maxError] + "…"
	}
	return s
}

// send sends what the client lacks and may have now. wait says when to look
// again, 0 is not before something changes.
func (st *stream) send() (wait time.Duration, err error) {
	st.scope.mu.Lock()
	members, wait := st.membersLocked()
	cfg := st.configLocked()
	clients := len(st.scope.streams)
	st.scope.mu.Unlock()
	for _, r := range []*discoveryv3.DeltaDiscoveryResponse{members, cfg} { // see the package comment for the order
		if r == nil {
			continue
		}
		size := 0
		for _, res := range r.GetResources() {
			size += len(res.GetResource().GetValue())
		}
		st.server.o.Metrics.response(r.GetTypeUrl(), size)
		if err := st.grpc.Send(r); err != nil {
			return 0, err
		}
		if r == members {
			st.slow = time.Now().Add(max(st.server.o.Pace, time.Duration(float64(size)*float64(clients)/sendRate*float64(time.Second))))
		}
	}
	return wait, nil
}

// maxBatch is about how many bytes of members go into one response.
const maxBatch = 4 << 20

// membersLocked is the next response of members, or nil. A new configuration
// does not wait for the pace.
func (st *stream) membersLocked() (r *discoveryv3.DeltaDiscoveryResponse, wait time.Duration) {
	b, c := &st.members, st.scope
	if !b.subscribed || b.sent != nil {
		return nil, 0
	}
	var changed []*resource
	size := 0
	for name, res := range c.members {
		if size < maxBatch && b.lacks(name, res.version) { // the answer brings us back for the rest
			changed = append(changed, res)
			size += len(res.value.GetValue())
		}
	}
	var removed []string
	if st.settledLocked() {
		for name := range b.has {
			if c.members[name] == nil {
				removed = append(removed, name)
			}
		}
	}
	if len(changed)+len(removed) == 0 {
		return nil, 0
	}
	if wait = time.Until(st.slow); wait > 0 && !st.configDueLocked() {
		return nil, wait
	}
	return st.responseLocked(MembersType, b, changed, removed), 0
}

// settledLocked says that the client serves the configuration of now: members
// that are gone from here are of no use there. One that was refused leaves the
// client with an older one, whose pools stay.
func (st *stream) settledLocked() bool {
	c := st.scope.config
	return c != nil && st.config.sent == nil && st.config.has[ConfigName] == c.version
}

func (st *stream) configDueLocked() bool {
	b, c := &st.config, st.scope.config
	return b.subscribed && b.sent == nil && c != nil && b.lacks(ConfigName, c.version)
}

// configLocked is the configuration, when the client lacks it and has been sent
// the members of its pools.
func (st *stream) configLocked() *discoveryv3.DeltaDiscoveryResponse {
	if !st.configDueLocked() {
		return nil
	}
	if st.members.subscribed {
		for _, set := range st.scope.config.sets {
			if m := st.scope.members[set]; m != nil && st.members.lacks(set, m.version) {
				return nil // under way is another version; its answer brings us back
			}
		}
	}
	return st.responseLocked(ConfigType, &st.config, []*resource{st.scope.config.resource}, nil)
}

// lacks says that this version is to be sent. What was refused is not sent
// again as long as it is the same; when it is taken back, what the client has
// is sent again, and its answer ends the refusal at both ends.
func (b *book) lacks(name, version string) bool {
	no, refused := b.refused[name]
	return (b.has[name] != version || refused) && no.version != version
}

func (st *stream) responseLocked(typeURL string, b *book, changed []*resource, removed []string) *discoveryv3.DeltaDiscoveryResponse {
	st.nonces++
	sent := &sending{nonce: strconv.Itoa(st.nonces), changed: map[string]string{}, before: map[string]string{}, at: time.Now()}
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: sent.nonce, RemovedResources: removed}
	for _, res := range changed {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: res.name, Version: res.version, Resource: res.value})
		sent.changed[res.name] = res.version
		if old, had := b.has[res.name]; had {
			sent.before[res.name] = old
		}
		b.has[res.name] = res.version
		if res.made.After(st.since) && res.made.Before(sent.at) {
			sent.at = res.made
		}
	}
	for _, name := range removed {
		delete(b.has, name)
		delete(b.refused, name)
	}
	b.sent = sent
	return r
}

func (st *stream) stateLocked() ClientState {
	s := ClientState{Name: st.name, Since: st.since, Version: st.config.has[ConfigName]}
	if sent := st.config.sent; sent != nil {
		s.Version = sent.before[ConfigName]
	}
	if r, ok := st.config.refused[ConfigName]; ok {
		s.Refused, s.Err = r.version, r.err
	}
	return s
}

func peerChain(ctx context.Context) []*x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	return info.State.PeerCertificates
}

func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return fmt.Sprint(p.Addr)
	}
	return "unknown"
}
