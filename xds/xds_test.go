// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

// TestMain fails when a test leaves goroutines behind.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for range 300 {
		if runtime.NumGoroutine() <= before+1 {
			os.Exit(code)
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", buf[:runtime.Stack(buf, true)])
	os.Exit(1)
}

var gw = xds.Gateway{Namespace: "prod", Name: "public"}

// reviewer accepts tokens of the form NAMESPACE/ACCOUNT/POD for one audience.
type reviewer struct {
	calls atomic.Int64
	away  atomic.Bool // the API that would be asked
}

func (r *reviewer) Review(_ context.Context, token, audience string) (xds.Account, error) {
	r.calls.Add(1)
	if r.away.Load() {
		return xds.Account{}, errors.New("the API server is away")
	}
	parts := strings.Split(token, "/")
	if len(parts) != 4 || parts[0] != audience {
		return xds.Account{}, fmt.Errorf("%w: not for audience %s", xds.ErrToken, audience)
	}
	if parts[3] == "expired" {
		return xds.Account{}, fmt.Errorf("%w: expired", xds.ErrToken)
	}
	return xds.Account{Namespace: parts[1], Name: parts[2], Pod: parts[3]}, nil
}

func gatewayOf(a xds.Account) (xds.Gateway, error) {
	name, ok := strings.CutPrefix(a.Name, "penstock-")
	if !ok {
		return xds.Gateway{}, errors.New("is of no Gateway")
	}
	return xds.Gateway{Namespace: a.Namespace, Name: name}, nil
}

// controller is a control plane that can be killed and started again on its
// address.
type controller struct {
	t         testing.TB
	authority *xds.Authority
	reviewer  *reviewer
	address   string
	ca        string // file
	options   xds.ServerOptions
	server    *xds.Server
	ended     chan struct{}

	mu      sync.Mutex
	replies []xds.Reply
}

func newController(t testing.TB, change ...func(*xds.ServerOptions)) *controller {
	t.Helper()
	c := &controller{t: t, reviewer: &reviewer{}, address: "127.0.0.1:0", ca: filepath.Join(t.TempDir(), "ca.crt")}
	var err error
	if c.authority, err = xds.NewAuthority(t.Context(), xds.AuthorityOptions{}); err != nil {
		t.Fatal(err)
	}
	write(t, c.ca, string(c.authority.Bundle()))
	c.options = xds.ServerOptions{
		Log: logger(t), Authority: c.authority, Reviewer: c.reviewer, GatewayOf: gatewayOf, Names: []string{"127.0.0.1", "localhost"},
		Replied: func(r xds.Reply) {
			c.mu.Lock()
			c.replies = append(c.replies, r)
			c.mu.Unlock()
		},
	}
	for _, f := range change {
		f(&c.options)
	}
	c.start()
	c.server.Lead(true)
	t.Cleanup(c.stop)
	return c
}

func (c *controller) start() {
	c.t.Helper()
	var l net.Listener
	var err error
	for range 100 { // the port of the one that died may take a moment
		if l, err = net.Listen("tcp", c.address); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = l.Addr().String()
	c.server = xds.NewServer(c.options)
	server, ended := c.server, make(chan struct{})
	c.ended = ended
	go func() {
		defer close(ended)
		if err := server.Serve(l); err != nil {
			c.t.Error(err)
		}
	}()
}

func (c *controller) stop() {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	c.server.Close(gone)
	<-c.ended
}

func (c *controller) reply(f func(xds.Reply) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.replies {
		if f(r) {
			return true
		}
	}
	return false
}

// target notes what a gateway is given.
type target struct {
	mu      sync.Mutex
	cfg     *config.Config
	members map[string][]config.Member
	applies int
	sets    int
	removed []string
	refuse  error
	lacked  []string // external pools that had no members when they were applied
	changed func(pool string, members []config.Member)
}

func (g *target) Apply(cfg *config.Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refuse != nil {
		return g.refuse
	}
	for _, p := range cfg.Pools {
		if _, ok := g.members[p.Name]; p.Members.External && !ok {
			g.lacked = append(g.lacked, p.Name)
		}
	}
	g.cfg = cfg
	g.applies++
	return nil
}

func (g *target) SetMembers(pool string, members []config.Member) {
	g.mu.Lock()
	if g.members == nil {
		g.members = map[string][]config.Member{}
	}
	g.members[pool] = members
	g.sets++
	changed := g.changed
	g.mu.Unlock()
	if changed != nil {
		changed(pool, members)
	}
}

func (g *target) RemoveMembers(pool string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.members, pool)
	g.removed = append(g.removed, pool)
}

// view is the target at one moment.
func (g *target) view() (cfg *config.Config, members map[string][]config.Member, applies, sets int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cfg, maps.Clone(g.members), g.applies, g.sets
}

func (g *target) has(names ...string) bool {
	cfg, _, _, _ := g.view()
	if cfg == nil || len(cfg.Pools) != len(names) {
		return false
	}
	for i, n := range names {
		if cfg.Pools[i].Name != n {
			return false
		}
	}
	return true
}

// gateway is a client with its files.
type gateway struct {
	*target
	t      testing.TB
	token  string // file
	state  string // directory
	client *xds.Client
	stop   func()
}

func (c *controller) options4(pod string, g *gateway) xds.ClientOptions {
	return xds.ClientOptions{Address: c.address, TokenFile: g.token, CAFile: c.ca, StateDir: g.state, Node: pod, Target: g.target, Log: logger(c.t)}
}

func (c *controller) gateway(of xds.Gateway, pod string) *gateway {
	c.t.Helper()
	dir := c.t.TempDir()
	g := &gateway{target: &target{}, t: c.t, token: filepath.Join(dir, "token"), state: dir}
	write(c.t, g.token, fmt.Sprintf("%s/%s/penstock-%s/%s\n", xds.Audience, of.Namespace, of.Name, pod))
	g.run(c.options4(pod, g))
	return g
}

func (g *gateway) run(o xds.ClientOptions) {
	g.client = xds.NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.client.Run(ctx)
	}()
	g.stop = sync.OnceFunc(func() { cancel(); <-done })
	g.t.Cleanup(g.stop)
}

// configOf is a configuration with pools whose members come from outside.
func configOf(pools ...string) *config.Config {
	c := &config.Config{}
	for _, p := range pools {
		c.Pools = append(c.Pools, config.Pool{Name: p, Members: config.Members{External: true}, APIKey: "secret-" + config.Secret(p)})
	}
	c.SetDefaults()
	return c
}

func members(addresses ...string) (list []config.Member) {
	for _, a := range addresses {
		list = append(list, config.Member{Address: a, Labels: map[string]string{"zone": "a"}})
	}
	return list
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 6000 { // a machine may be busy
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("did not happen: %s", what)
}

// logger shows the log of a test that failed.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(&lines{t: t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type lines struct {
	t    testing.TB
	mu   sync.Mutex
	text strings.Builder
	once sync.Once
}

func (l *lines) Write(b []byte) (int, error) {
	l.once.Do(func() {
		l.t.Cleanup(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.t.Failed() {
				l.t.Log("\n" + l.text.String()[:min(l.text.Len(), 20000)])
			}
		})
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// fleet is many members, as a pool of some size has them.
func fleet(n int, last string) []config.Member {
	list := make([]config.Member, n)
	for i := range list {
		list[i] = config.Member{Address: fmt.Sprintf("10.1.%d.%d:8000", i/250, i%250+1), Labels: map[string]string{"topology.kubernetes.io/zone": "eu-1a"}}
	}
	list[n-1].Address = last
	return list
}

func TestConfigAndMembersArrive(t *testing.T) {
	c := newController(t)
	c.server.SetMembers(gw, "llama", members("10.0.0.1:8000", "10.0.0.2:8000"))
	c.server.Publish(gw, configOf("llama"))
	g := c.gateway(gw, "pod-1")
	eventually(t, "configuration", func() bool { return g.has("llama") })
	cfg, list, _, _ := g.view()
	if key := cfg.Pools[0].APIKey.Reveal(); key != "secret-llama" {
		t.Errorf("key %q", key)
	}
	if m := list["llama"]; len(m) != 2 || m[1].Address != "10.0.0.2:8000" || m[1].Labels["zone"] != "a" {
		t.Errorf("members %v", m)
	}
	c.server.SetMembers(gw, "llama", nil)
	eventually(t, "no members", func() bool { _, m, _, _ := g.view(); return len(m["llama"]) == 0 })
	eventually(t, "ack", func() bool {
		s := c.server.Status(gw)
		return len(s.Clients) == 1 && s.Clients[0].Name == "pod-1" && s.Version != "" && s.Clients[0].Version == s.Version
	})
	if !c.reply(func(r xds.Reply) bool { return r.Type == xds.ConfigType && r.Client == "pod-1" && r.Err == "" }) {
		t.Errorf("replies %v", c.replies)
	}
	if s := g.client.Status(); !s.Connected || s.Version == "" || s.Saved {
		t.Errorf("status %+v", s)
	}
	if len(g.lacked) > 0 {
		t.Errorf("without members: %v", g.lacked)
	}
}
