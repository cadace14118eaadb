// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc/extproctest"
	"github.com/penstock/penstock/xds"
)

// externalConfig has pools whose members come from the controller.
func externalConfig(t *testing.T, pools ...string) *config.Config {
	t.Helper()
	text := "listeners: [{name: public, address: \"127.0.0.1:0\", anonymous: true}]\nadmin: {address: \"off\"}\nlimits: {drain: 1s}\npools:\n"
	for _, p := range pools {
		text += fmt.Sprintf("  - {name: %s, members: {external: true}, metrics: {off: true}}\n", p)
	}
	text += fmt.Sprintf("models: [{name: chat, targets: [{pool: %s}]}]\n", pools[0])
	cfg, err := config.Parse("gateway.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func testControl(t *testing.T) *control {
	g := newGateway(slog.New(slog.DiscardHandler), "")
	var level slog.LevelVar
	t.Cleanup(func() { g.close(t.Context()) })
	return newControl(g, &level, "off", xds.ClientOptions{Address: "127.0.0.1:1"})
}

// Members that come while a configuration is being built are not lost, and a
// pool is never seen without those that came before it.
func TestMembersAndConfigurationsTogether(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		c := testControl(t)
		c.SetMembers("a", []config.Member{{Address: "10.0.0.1:1"}})
		stop, empty := make(chan struct{}), 0
		var both sync.WaitGroup
		both.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c.SetMembers("a", []config.Member{{Address: fmt.Sprintf("10.0.0.%d:1", i%250+1)}})
				time.Sleep(100 * time.Microsecond)
			}
		})
		both.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, name := range c.g.poolNames() {
					if p := c.g.pooled(name); p != nil && len(p.pool.Snapshot().Members) == 0 {
						empty++
					}
				}
			}
		})
		for i := range 60 {
			pools := []string{"a"}
			if i%2 == 0 {
				pools = append(pools, fmt.Sprintf("b%d", i))
				c.SetMembers(pools[1], []config.Member{{Address: "10.0.1.1:1"}})
			}
			if err := c.Apply(externalConfig(t, pools...)); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		both.Wait()
		c.SetMembers("a", []config.Member{{Address: "10.9.9.9:1"}})
		if m := c.g.pooled("a").pool.Snapshot().Members; len(m) != 1 || m[0].Address() != "10.9.9.9:1" {
			t.Errorf("members %v", m)
		}
		if empty > 0 {
			t.Errorf("a pool was seen without members %d times", empty)
		}
	})
	waitFor(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
}

// What a file would be refused for, a controller's configuration is too.
func TestControllersConfigurationIsChecked(t *testing.T) {
	c := testControl(t)
	good := externalConfig(t, "a")
	if err := c.Apply(good); err != nil {
		t.Fatal(err)
	}
	bad := externalConfig(t, "a")
	bad.Pools[0].Picker.Profile = "nobody"
	if err := c.Apply(bad); err == nil || !strings.Contains(err.Error(), `there is no picker "nobody"`) {
		t.Error(err)
	}
	if c.g.cfg.Load() != good || c.status().Connected {
		t.Error("something changed")
	}
	if r := c.g.readiness(); !r.Ready || r.Config.Error == "" {
		t.Errorf("%+v", r)
	}
	// From a file to the controller and back.
	static := externalConfig(t, "a")
	static.Pools[0].Members = config.Members{Static: []config.Member{{Address: "10.0.0.7:1"}}, Refresh: static.Pools[0].Members.Refresh}
	if err := c.Apply(static); err != nil {
		t.Fatal(err)
	}
	c.SetMembers("a", []config.Member{{Address: "10.0.0.8:1"}}) // not of an external pool
	if m := c.g.pooled("a").pool.Snapshot().Members; len(m) != 1 || m[0].Address() != "10.0.0.7:1" {
		t.Errorf("members %v", m)
	}
	if err := c.Apply(externalConfig(t, "a")); err != nil {
		t.Fatal(err)
	}
	if m := c.g.pooled("a").pool.Snapshot().Members; len(m) != 1 || m[0].Address() != "10.0.0.8:1" {
		t.Errorf("members %v", m)
	}
	c.RemoveMembers("a")
	if m := c.g.pooled("a").pool.Snapshot().Members; len(m) != 1 {
		t.Errorf("members %v", m)
	}
}

// A picker elsewhere whose addresses come from the controller is asked where
// they are, from the first request on.
func TestExternalPickerIsTold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[]}`)
	}))
	t.Cleanup(server.Close)
	member := strings.TrimPrefix(server.URL, "http://")
	one, two := extproctest.Start(t, extproctest.Good(member), nil), extproctest.Start(t, extproctest.Good(member), nil)
	c := testControl(t)
	cfg := externalConfig(t, "ns/a")
	r := config.RemotePicker{External: true}
	cfg.Pools[0].Picker.Remote = &r
	cfg.SetDefaults()
	c.SetMembers("ns/a", []config.Member{{Address: member}})
	c.SetMembers(config.PickerSet("ns/a"), []config.Member{{Address: one.Address}})
	if err := c.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	ask := func() int {
		res, err := http.Post("http://"+c.g.proxy.Addresses()["public"]+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code := ask(); code != http.StatusOK || one.Streams.Load() != 1 {
		t.Fatalf("%d, %d streams", code, one.Streams.Load())
	}
	c.SetMembers(config.PickerSet("ns/a"), []config.Member{{Address: two.Address}})
	waitFor(t, "the other picker", func() bool { ask(); return two.Streams.Load() > 0 })
	c.SetMembers(config.PickerSet("ns/a"), []config.Member{})
	waitFor(t, "no picker", func() bool { return ask() == http.StatusServiceUnavailable })
}
