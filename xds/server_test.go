// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

func TestRefusalThenRepair(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has() })
	g.mu.Lock()
	g.refuse = errors.New("listeners[0]: address already in use")
	g.mu.Unlock()
	c.server.SetMembers(gw, "llama", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("llama"))
	eventually(t, "refusal", func() bool {
		s := c.server.Status(gw)
		return len(s.Clients) == 1 && s.Clients[0].Refused == s.Version && strings.Contains(s.Clients[0].Err, "already in use") && s.Clients[0].Version != s.Version
	})
	if !c.reply(func(r xds.Reply) bool {
		return r.Gateway == gw && r.Client == "p" && r.Resource == xds.ConfigName && strings.Contains(r.Err, "already in use")
	}) {
		t.Errorf("replies %v", c.replies)
	}
	if s := g.client.Status(); !strings.Contains(s.Refused, "already in use") || s.Version == "" || !g.has() {
		t.Errorf("status %+v", s)
	}
	// It is not sent again as long as it is the same, and members go on.
	c.server.SetMembers(gw, "llama", members("10.0.0.2:1"))
	eventually(t, "members", func() bool {
		_, m, _, _ := g.view()
		return len(m["llama"]) == 1 && m["llama"][0].Address == "10.0.0.2:1"
	})
	g.mu.Lock()
	g.refuse = nil
	g.mu.Unlock()
	c.server.Publish(gw, configOf()) // taken back: it is what is in force there
	eventually(t, "no refusal", func() bool {
		s := c.server.Status(gw)
		return s.Clients[0].Err == "" && s.Clients[0].Version == s.Version && g.client.Status().Refused == ""
	})
	c.server.SetMembers(gw, "llama", members("10.0.0.2:1"))
	c.server.SetMembers(gw, "other", members("10.0.0.3:1"))
	c.server.Publish(gw, configOf("llama", "other"))
	eventually(t, "repaired configuration", func() bool { return g.has("llama", "other") })
	eventually(t, "no refusal", func() bool {
		s := c.server.Status(gw)
		return s.Clients[0].Err == "" && s.Clients[0].Version == s.Version
	})
	if g.client.Status().Refused != "" {
		t.Error("the client still tells of a refusal")
	}
}

// Members come before the configuration that names their pool and go after the
// one that does not.
func TestMakeBeforeBreak(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf("a")) // withheld: nobody knows the members of a
	if s := c.server.Status(gw); s.Version != "" || !slices.Equal(s.Waiting, []string{"a"}) {
		t.Errorf("status %+v", s)
	}
	g := c.gateway(gw, "p")
	eventually(t, "connection", func() bool { return g.client.Status().Connected })
	time.Sleep(100 * time.Millisecond)
	if cfg, _, _, _ := g.view(); cfg != nil {
		t.Error("a configuration without its members")
	}
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	eventually(t, "a", func() bool { return g.has("a") })

	stop := make(chan struct{}) // the members of a change all the time
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				c.server.SetMembers(gw, "a", members(fmt.Sprintf("10.0.0.%d:1", i%250+1)))
			}
		}
	})
	for i := range 30 {
		name := fmt.Sprintf("b%d", i)
		if i%2 == 0 {
			c.server.Publish(gw, configOf("a", name))
			c.server.SetMembers(gw, name, members("10.0.1.1:1"))
		} else {
			c.server.SetMembers(gw, name, members("10.0.1.1:1"))
			c.server.Publish(gw, configOf("a", name))
		}
		eventually(t, name, func() bool { return g.has("a", name) })
	}
	close(stop)
	churn.Wait()
	eventually(t, "nothing that is gone", func() bool { _, m, _, _ := g.view(); return len(m) == 2 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lacked) > 0 {
		t.Errorf("applied without members: %v", g.lacked)
	}
	for i, name := range g.removed {
		if name == "a" || g.cfg.Pools[1].Name == name {
			t.Errorf("removed[%d] %s, which is in use", i, name)
		}
	}
}

// The endpoints of a remote picker are a set like the members of its pool.
func TestPickersAreSets(t *testing.T) {
	c := newController(t)
	cfg := configOf("a")
	cfg.Pools[0].Picker.Remote = &config.RemotePicker{External: true}
	cfg.SetDefaults()
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.Publish(gw, cfg)
	if s := c.server.Status(gw); !slices.Equal(s.Waiting, []string{config.PickerSet("a")}) {
		t.Errorf("status %+v", s)
	}
	g := c.gateway(gw, "p")
	c.server.SetMembers(gw, config.PickerSet("a"), members("10.0.0.9:9002"))
	eventually(t, "configuration", func() bool { return g.has("a") })
	if _, m, _, _ := g.view(); len(m) != 2 {
		t.Errorf("members %v", m)
	}
	c.server.Publish(gw, configOf("a"))
	eventually(t, "the picker's to go", func() bool { _, m, _, _ := g.view(); return len(m) == 1 })
}

// A refused configuration leaves the old one in force there, with the members
// of a pool that the new one no longer has.
func TestRefusalKeepsMembers(t *testing.T) {
	c := newController(t)
	c.server.SetMembers(gw, "old", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("old"))
	g := c.gateway(gw, "p")
	eventually(t, "old", func() bool { return g.has("old") })
	g.mu.Lock()
	g.refuse = errors.New("no")
	g.mu.Unlock()
	c.server.Publish(gw, configOf())
	eventually(t, "refusal", func() bool { return c.server.Status(gw).Clients[0].Err == "no" })
	c.server.SetMembers(gw, "stray", members("10.0.0.9:1"))
	eventually(t, "another set", func() bool { _, m, _, _ := g.view(); return m["stray"] != nil })
	if _, m, _, _ := g.view(); m["old"] == nil || len(g.removed) > 0 {
		t.Errorf("members %v, removed %v", m, g.removed)
	}
	c.server.RemoveMembers(gw, "stray")
	g.mu.Lock()
	g.refuse = nil
	g.mu.Unlock()
	c.server.SetMembers(gw, "new", members("10.0.0.2:1"))
	c.server.Publish(gw, configOf("new"))
	eventually(t, "old and stray to go", func() bool { _, m, _, _ := g.view(); return g.has("new") && len(m) == 1 })
}

// A controller that was restarted, and so gives the same content the same
// version, sends what has changed meanwhile and nothing else.
func TestReconnectSendsNothingAgain(t *testing.T) {
	c := newController(t)
	publish := func() {
		c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
		c.server.SetMembers(gw, "b", members("10.0.0.2:1"))
		c.server.Publish(gw, configOf("a", "b"))
	}
	publish()
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has("a", "b") })
	for range 3 {
		c.stop()
		eventually(t, "loss", func() bool { return !g.client.Status().Connected })
		if !g.has("a", "b") {
			t.Fatal("the configuration is gone")
		}
		c.start()
		c.server.Lead(true)
		publish()
		eventually(t, "connection", func() bool { return g.client.Status().Connected })
	}
	c.server.SetMembers(gw, "b", members("10.0.0.3:1"))
	eventually(t, "change", func() bool { _, m, _, _ := g.view(); return m["b"][0].Address == "10.0.0.3:1" })
	if _, _, applies, sets := g.view(); applies != 1 || sets != 3 {
		t.Errorf("%d configurations, %d members; want 1 and 3", applies, sets)
	}
	if n := c.reviewer.calls.Load(); n != 1 {
		t.Errorf("%d certificates for one that lasts", n)
	}
}

// A controller that knows nothing yet takes nothing away.
func TestEmptyControllerTakesNothing(t *testing.T) {
	c := newController(t)
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.SetMembers(gw, "b", members("10.0.0.2:1"))
	c.server.Publish(gw, configOf("a", "b"))
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has("a", "b") })
	c.stop()
	c.start()
	c.server.Lead(true)
	c.server.Publish(gw, configOf("a", "b")) // the members follow only later
	c.server.SetMembers(gw, "a", members("10.0.0.5:1"))
	eventually(t, "change", func() bool { _, m, _, _ := g.view(); return m["a"][0].Address == "10.0.0.5:1" })
	if _, m, _, _ := g.view(); len(m["b"]) != 1 || !g.has("a", "b") {
		t.Errorf("members %v", m)
	}
}

// Only the leader answers; when it changes, clients find the new one.
func TestLeaderChanges(t *testing.T) {
	c := newController(t)
	c.server.Lead(false)
	if err := c.server.Publish(gw, configOf()); err == nil {
		t.Error("a replica that does not lead takes a configuration")
	}
	g := c.gateway(gw, "p")
	eventually(t, "refusal", func() bool { return strings.Contains(g.client.Status().Error, "does not lead") })
	c.server.Lead(true)
	c.server.Publish(gw, configOf())
	eventually(t, "configuration", func() bool { return g.has() })
	c.server.Lead(false)
	eventually(t, "loss", func() bool { return !g.client.Status().Connected })
	if len(c.server.Gateways()) != 0 {
		t.Error("what was published is not forgotten")
	}
	c.server.Lead(true)
	c.server.SetMembers(gw, "a", nil)
	c.server.Publish(gw, configOf("a"))
	eventually(t, "new configuration", func() bool { return g.has("a") })
	c.server.Remove(gw)
	eventually(t, "the end", func() bool { return strings.Contains(g.client.Status().Error, "served") })
}

// One of two addresses leads: the client goes on to it.
func TestSeveralReplicas(t *testing.T) {
	leader := newController(t)
	port := leader.address[strings.LastIndex(leader.address, ":"):]
	follower := newController(t, func(o *xds.ServerOptions) { o.Authority = leader.authority })
	follower.stop()
	follower.address = "127.0.0.2" + port
	follower.options.Names = append(follower.options.Names, "localhost")
	follower.start()
	leader.server.Publish(gw, configOf())
	g := &gateway{target: &target{}, t: t, token: t.TempDir() + "/token"}
	write(t, g.token, xds.Audience+"/prod/penstock-public/p")
	o := leader.options4("p", g)
	o.Lookup = func(context.Context, string) ([]string, error) { return []string{"127.0.0.2", "127.0.0.1"}, nil }
	g.run(o)
	eventually(t, "configuration", func() bool { return g.has() })
	follower.server.Lead(true)
	follower.server.SetMembers(gw, "a", nil)
	follower.server.Publish(gw, configOf("a"))
	leader.stop()
	eventually(t, "the other", func() bool { return g.has("a") })
}

// A client that does not answer is sent one response of a type and then, when
// it does, the newest state alone.
func TestSlowClientGetsTheNewest(t *testing.T) {
	c := newController(t)
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("a"))
	stream, err := ads(t, c, xds.Certify(t, c.authority, gw, "slow", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.MembersType})
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		c.server.SetMembers(gw, "a", members(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250+1)))
	}
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.MembersType, ResponseNonce: "of another stream"}) // settles nothing
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.MembersType, ResponseNonce: first.GetNonce()})
	second, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	list, err := xds.DecodeMembers(second.GetResources()[0].GetResource().GetValue())
	if err != nil || len(list) != 1 || list[0].Address != "10.1.3.250:1" {
		t.Errorf("%v, %v", list, err)
	}
}

// 300 changes a second reach a gateway as at most one sending per pace, and the
// last one always.
func TestChurnIsCoalesced(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := newController(t, func(o *xds.ServerOptions) { o.Metrics = xds.NewServerInstruments(reg) })
	c.server.SetMembers(gw, "a", nil)
	c.server.Publish(gw, configOf("a"))
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has("a") })
	const changes, seconds = 600, 2
	tick := time.NewTicker(time.Second * seconds / changes)
	defer tick.Stop()
	start := time.Now()
	for i := range changes {
		<-tick.C
		c.server.SetMembers(gw, "a", members(fmt.Sprintf("10.0.%d.%d:1", i/250, i%250+1)))
	}
	took := time.Since(start)
	eventually(t, "the last", func() bool { _, m, _, _ := g.view(); return len(m["a"]) == 1 && m["a"][0].Address == "10.0.2.100:1" })
	_, _, _, sets := g.view()
	if most := int(took/(50*time.Millisecond)) + 3; sets > most || sets < 3 {
		t.Errorf("%d sendings in %s, want at most %d", sets, took, most)
	}
	t.Logf("%d changes in %s: %d sendings", changes, took.Round(time.Millisecond), sets)
	if c.reply(func(r xds.Reply) bool { return r.Type == xds.MembersType }) {
		t.Error("accepted members are reported")
	}
}

// Members that cannot be read are refused by pool; the other pools go on.
func TestUnreadableMembers(t *testing.T) {
	c := newController(t)
	c.server.SetMembers(gw, "bad", []config.Member{{Address: ""}})
	c.server.SetMembers(gw, "good", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("good"))
	g := c.gateway(gw, "p")
	eventually(t, "good", func() bool { return g.has("good") })
	eventually(t, "reply", func() bool {
		return c.reply(func(r xds.Reply) bool { return r.Resource == "bad" && strings.Contains(r.Err, "no address") })
	})
	if c.reply(func(r xds.Reply) bool { return r.Resource == "good" }) {
		t.Errorf("replies %v", c.replies)
	}
	c.server.SetMembers(gw, "bad", members("10.0.0.2:1"))
	eventually(t, "repaired", func() bool { _, m, _, _ := g.view(); return len(m["bad"]) == 1 })
	eventually(t, "reply", func() bool {
		return c.reply(func(r xds.Reply) bool { return r.Resource == "bad" && r.Err == "" })
	})
}

// More members than fit one message come in several, and the configuration
// after the last of them.
func TestManyPools(t *testing.T) {
	c := newController(t)
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("p%02d", i))
		c.server.SetMembers(gw, names[i], fleet(2000, fmt.Sprintf("h%d:1", i)))
	}
	if err := c.server.Publish(gw, configOf(names...)); err != nil {
		t.Fatal(err)
	}
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has(names...) })
	if _, m, _, _ := g.view(); len(m) != 30 || len(g.lacked) > 0 {
		t.Errorf("%d pools, without members: %v", len(m), g.lacked)
	}
}

func TestTooLarge(t *testing.T) {
	c := newController(t)
	cfg := configOf()
	cfg.Pools = []config.Pool{{Name: strings.Repeat("x", 40<<20)}}
	if err := c.server.Publish(gw, cfg); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Error(err)
	}
	if s := c.server.Status(gw); s.Version != "" {
		t.Errorf("status %+v", s)
	}
}
