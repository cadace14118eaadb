// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/xds"
)

// saved is a gateway that has got its configuration, saved it and ended.
func saved(t testing.TB, c *controller) *gateway {
	t.Helper()
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("a"))
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has("a") })
	eventually(t, "state", func() bool { _, err := os.Stat(g.file()); return err == nil })
	g.stop()
	return g
}

func (g *gateway) file() string { return filepath.Join(g.state, xds.StateFile) }

// again is the same gateway after a restart.
func (c *controller) again(g *gateway) *gateway {
	next := &gateway{target: &target{}, t: g.t, token: g.token, state: g.state}
	next.run(c.options4("p", next))
	return next
}

func TestStartWithoutController(t *testing.T) {
	c := newController(t)
	g := saved(t, c)
	info, err := os.Stat(g.file())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	c.stop()
	start := time.Now()
	g = c.again(g)
	eventually(t, "configuration", func() bool { return g.has("a") })
	t.Logf("serving after %s", time.Since(start))
	if s := g.client.Status(); s.Connected || !s.Saved || s.Version == "" {
		t.Errorf("status %+v", s)
	}
	if len(g.lacked) > 0 {
		t.Errorf("applied without members: %v", g.lacked)
	}
	if cfg, m, _, _ := g.view(); m["a"][0].Address != "10.0.0.1:1" || cfg.Pools[0].APIKey.Reveal() != "secret-a" {
		t.Errorf("members %v", m)
	}
	eventually(t, "failure", func() bool { return g.client.Status().Error != "" })
	// The controller comes back with the same, then with more.
	c.start()
	c.server.Lead(true)
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("a"))
	eventually(t, "connection", func() bool { return g.client.Status().Connected })
	c.server.SetMembers(gw, "b", members("10.0.0.2:1"))
	c.server.Publish(gw, configOf("a", "b"))
	eventually(t, "more", func() bool { return g.has("a", "b") })
	if _, _, applies, sets := g.view(); applies != 2 || sets != 2 {
		t.Errorf("%d configurations, %d members; want 2 and 2: what was saved is not sent again", applies, sets)
	}
	if g.client.Status().Saved {
		t.Error("still said to be of a former run")
	}
}

func TestDamagedState(t *testing.T) {
	c := newController(t)
	g := saved(t, c)
	whole, err := os.ReadFile(g.file())
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, text := range map[string][]byte{
		"half": whole[:len(whole)/2], "flipped": flipped, "empty": {}, "other": []byte("hello\nworld"),
	} {
		write(t, g.file(), string(text))
		again := c.again(g)
		eventually(t, name+": configuration from the controller", func() bool { return again.has("a") })
		if again.client.Status().Saved {
			t.Errorf("%s: the damaged state was used", name)
		}
		eventually(t, name+": a new state", func() bool { b, _ := os.ReadFile(g.file()); return bytes.Equal(b, whole) })
		again.stop()
	}
}

// A saved configuration that is refused leaves the gateway without one, and
// with the members that were saved.
func TestSavedConfigurationIsRefused(t *testing.T) {
	c := newController(t)
	g := saved(t, c)
	c.stop()
	again := &gateway{target: &target{refuse: os.ErrExist}, t: t, token: g.token, state: g.state}
	again.run(c.options4("p", again))
	eventually(t, "members", func() bool { _, m, _, _ := again.view(); return m["a"] != nil })
	eventually(t, "failure", func() bool { return again.client.Status().Error != "" })
	if s := again.client.Status(); s.Version != "" || s.Saved {
		t.Errorf("status %+v", s)
	}
	again.mu.Lock()
	again.refuse = nil
	again.mu.Unlock()
	c.start()
	c.server.Lead(true)
	c.server.SetMembers(gw, "a", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("a"))
	eventually(t, "configuration", func() bool { return again.has("a") })
}

func TestNoPlaceForTheState(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	g := &gateway{target: &target{}, t: t, token: t.TempDir() + "/token", state: t.TempDir() + "/gone"}
	write(t, g.token, xds.Audience+"/prod/penstock-public/p")
	g.run(c.options4("p", g))
	eventually(t, "configuration", func() bool { return g.has() })
}

func FuzzState(f *testing.F) {
	c := newController(f)
	g := saved(f, c)
	text, err := os.ReadFile(g.file())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte("penstock-state-1 \n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		again, err := xds.ReformState(text)
		if err != nil {
			return
		}
		if _, err := xds.ReformState(again); err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add(xds.EncodeMembers(members("10.0.0.1:1", "[::1]:2")))
	f.Add([]byte(`{"members":[{"address":"a:1","labels":null,"more":1}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := xds.DecodeMembers(raw)
		if err != nil {
			return
		}
		again, err := xds.DecodeMembers(xds.EncodeMembers(list))
		if err != nil || len(again) != len(list) {
			t.Fatalf("%v: %v", err, again)
		}
		if !bytes.Equal(xds.EncodeMembers(list), xds.EncodeMembers(again)) {
			t.Fatal("not stable")
		}
	})
}
