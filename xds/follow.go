// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/config"
)

// follower is a client's side of one stream.
type follower struct {
	client  *Client
	ads     discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	applied chan applied // capacity 1
	busy    bool         // a configuration is being applied
}

// applied is what became of a configuration.
type applied struct {
	nonce string
	saved saved
	err   error
}

// renewal is what became of an attempt to renew the certificate.
type renewal struct {
	credential
	err error
}

func (c *Client) subscriptions() []*discoveryv3.DeltaDiscoveryRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	members := map[string]string{}
	for pool, s := range c.state.Members {
		members[pool] = s.Version
	}
	configs := map[string]string{}
	if v := c.state.Config.Version; v != "" {
		configs[ConfigName] = v
	}
	node := &corev3.Node{Id: c.o.Node, UserAgentName: "penstock"}
	return []*discoveryv3.DeltaDiscoveryRequest{
		{Node: node, TypeUrl: MembersType, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: members},
		{TypeUrl: ConfigType, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: configs},
	}
}

// follow takes what the controller sends until the stream ends, or until the
// certificate has been renewed and another stream is to be opened with it.
func (f *follower) follow(ctx context.Context, address string) error {
	c := f.client
	responses := make(chan *discoveryv3.DeltaDiscoveryResponse)
	gone := make(chan error, 1)
	go func() {
		for {
			r, err := f.ads.Recv()
			if err != nil {
				gone <- err
				return
			}
			select {
			case responses <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	due := time.NewTimer(max(time.Until(c.creds.renewAt()), time.Second/2))
	defer due.Stop()
	renewals := make(chan renewal, 1)
	var next *credential // to be used once no configuration is being applied
	for {
		select {
		case err := <-gone:
			return fmt.Errorf("%w: %w", errServed, err)
		case r := <-responses:
			if err := f.take(r); err != nil {
				return fmt.Errorf("%w: %w", errServed, err)
			}
		case a := <-f.applied:
			f.busy = false
			if err := f.ads.Send(c.settle(a)); err != nil {
				return fmt.Errorf("%w: %w", errServed, failure(f.ads, err))
			}
		case <-due.C:
			go func() { // the controller may take its time; members go on
				k, err := c.obtain(ctx, address)
				renewals <- renewal{k, err}
			}()
		case r := <-renewals:
			if r.err != nil {
				c.log.Warn("the certificate is not renewed yet", "ends", c.creds.ends, "error", r.err)
				due.Reset(c.creds.again())
				continue
			}
			next = &r.credential
		}
		if next != nil && !f.busy { // the answer to a configuration belongs to this stream
			c.creds = *next
			return errRenewed
		}
	}
}

// wait lets a configuration that is being applied come to its end: what became
// of it must be known before the next stream says what is there.
func (f *follower) wait() {
	if f.busy {
		f.client.settle(<-f.applied)
	}
}

// take handles one response and answers it. A configuration is applied beside,
// and answered when that is done: members go on meanwhile.
func (f *follower) take(r *discoveryv3.DeltaDiscoveryResponse) error {
	switch r.GetTypeUrl() {
	case MembersType:
		return f.ads.Send(f.client.takeMembers(r))
	case ConfigType:
		if f.busy {
			return status.Error(codes.Internal, "a configuration came before the answer to the one before it")
		}
		for _, res := range r.GetResources() {
			if res.GetName() != ConfigName {
				continue
			}
			f.busy = true
			a := applied{nonce: r.GetNonce(), saved: saved{Version: res.GetVersion(), Value: res.GetResource().GetValue()}}
			go func() {
				a.err = f.client.apply(a.saved.Value)
				f.applied <- a
			}()
			return nil
		}
		// A configuration that is taken back: what is in force stays, since
		// nothing else is known to be right.
	}
	return f.ads.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

func (c *Client) apply(value []byte) error {
	cfg, err := config.Decode(value)
	if err != nil {
		return err
	}
	return c.o.Target.Apply(cfg)
}

// settle notes what became of a configuration and is the answer.
func (c *Client) settle(a applied) *discoveryv3.DeltaDiscoveryRequest {
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: ConfigType, ResponseNonce: a.nonce}
	if a.err != nil {
		c.o.Metrics.updates.WithLabelValues(short(ConfigType), "refused").Inc()
		c.log.Error("configuration refused; the old one stays", "version", a.saved.Version, "error", a.err)
		c.mu.Lock()
		c.status.Refused, c.status.RefusedAt = a.err.Error(), time.Now()
		c.mu.Unlock()
		answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: bounded(a.err.Error())}
		return answer
	}
	c.o.Metrics.updates.WithLabelValues(short(ConfigType), "applied").Inc()
	c.o.Metrics.contact.SetToCurrentTime()
	c.mu.Lock()
	c.state.Config = a.saved
	c.status.Version, c.status.Applied, c.status.Saved = a.saved.Version, time.Now(), false
	c.status.Refused, c.status.RefusedAt = "", time.Time{}
	c.mu.Unlock()
	c.save()
	return answer
}

// takeMembers hands on what can be read. The rest is refused by name, and what
// was there before stays.
func (c *Client) takeMembers(r *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: MembersType, ResponseNonce: r.GetNonce()}
	bad := &errdetails.BadRequest{}
	for _, res := range r.GetResources() {
		value := res.GetResource().GetValue()
		list, err := decodeMembers(value)
		if err != nil {
			c.o.Metrics.updates.WithLabelValues(short(MembersType), "refused").Inc()
			c.log.Error("members refused; the old ones stay", "pool", res.GetName(), "error", err)
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: res.GetName(), Description: err.Error()})
			continue
		}
		c.o.Metrics.updates.WithLabelValues(short(MembersType), "applied").Inc()
		c.mu.Lock()
		c.state.Members[res.GetName()] = saved{Version: res.GetVersion(), Value: value}
		c.mu.Unlock()
		c.o.Target.SetMembers(res.GetName(), list)
	}
	for _, name := range r.GetRemovedResources() {
		c.mu.Lock()
		delete(c.state.Members, name)
		c.mu.Unlock()
		c.o.Target.RemoveMembers(name)
	}
	c.o.Metrics.contact.SetToCurrentTime()
	c.save()
	if len(bad.FieldViolations) > 0 {
		s, err := status.New(codes.InvalidArgument, fmt.Sprintf("members of %d pools cannot be read", len(bad.FieldViolations))).WithDetails(bad)
		if err != nil {
			s = status.New(codes.InvalidArgument, "members cannot be read")
		}
		answer.ErrorDetail = s.Proto()
	}
	return answer
}
