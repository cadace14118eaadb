// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/xds"
)

// tokens is a reviewer that knows one token.
type tokens struct{}

func (tokens) Review(_ context.Context, token, audience string) (xds.Account, error) {
	if token != "the token" || audience != xds.Audience {
		return xds.Account{}, fmt.Errorf("%w: nobody's", xds.ErrToken)
	}
	return xds.Account{Namespace: "prod", Name: "public", Pod: "public-1"}, nil
}

var gatewayName = xds.Gateway{Namespace: "prod", Name: "public"}

// plane is a control plane around one process of penstock gateway.
type plane struct {
	t         *testing.T
	authority *xds.Authority
	address   string
	server    *xds.Server
	ended     chan error
	dir       string
	public    string // addresses of the gateway
	ops       string
}

func newPlane(t *testing.T) *plane {
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, dir: t.TempDir(), address: "127.0.0.1:" + ports[0], public: "127.0.0.1:" + ports[1], ops: "127.0.0.1:" + ports[2]}
	if p.authority, err = xds.NewAuthority(t.Context(), xds.AuthorityOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ca.crt": string(p.authority.Bundle()), "token": "the token\n"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(p.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p
}

func (p *plane) start() {
	p.t.Helper()
	p.server = xds.NewServer(xds.ServerOptions{
		Authority: p.authority, Reviewer: tokens{}, Names: []string{"127.0.0.1"},
		GatewayOf: func(a xds.Account) (xds.Gateway, error) {
			if a.Name != gatewayName.Name {
				return xds.Gateway{}, errors.New("is of no Gateway")
			}
			return gatewayName, nil
		},
	})
	var l net.Listener
	settled(p.t, "the controller's port", func() (err error) { l, err = net.Listen("tcp", p.address); return err })
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.server.Serve(l) }()
	p.server.Lead(true)
}

// stop is a controller that is killed: nothing is said to anybody.
func (p *plane) stop() {
	if p.server == nil {
		return
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	p.server.Close(gone)
	if err := <-p.ended; err != nil {
		p.t.Error(err)
	}
	p.server = nil
}

// publish is one model on pools; more follows in the document.
func (p *plane) publish(pool, more string) {
	p.t.Helper()
	cfg, err := config.Parse("gateway.yaml", fmt.Appendf(nil, `
listeners: [{name: public, address: %q, anonymous: true, debugHeaders: true}]
admin: {address: "off"}
limits: {drain: 5s}
pools: [{name: %s, members: {external: true}}]
models: [{name: chat, targets: [{pool: %s, model: up}]}]
%s
`, p.public, pool, pool, more))
	if err != nil {
		p.t.Fatal(err)
	}
	p.server.Publish(gatewayName, cfg)
}

func (p *plane) members(pool string, servers ...string) {
	var list []config.Member
	for _, s := range servers {
		list = append(list, config.Member{Address: s})
	}
	p.server.SetMembers(gatewayName, pool, list)
}

func (p *plane) gateway() *program {
	return start(p.t, filepath.Join(binDir, "penstock"), "gateway", "--controller", p.address, "--token-file", filepath.Join(p.dir, "token"),
		"--ca-file", filepath.Join(p.dir, "ca.crt"), "--state-dir", filepath.Join(p.dir, "state"), "--ops", p.ops)
}

func (p *plane) ask() (server string, err error) {
	r, err := http.Post("http://"+p.public+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%d %s %v", r.StatusCode, body, err)
	}
	return r.Header.Get("X-Penstock-Endpoint"), nil
}

func (p *plane) ready() (status int, r admin.Readiness, err error) {
	res, err := http.Get("http://" + p.ops + "/readyz?verbose")
	if err != nil {
		return 0, r, err
	}
	defer res.Body.Close()
	return res.StatusCode, r, json.NewDecoder(res.Body).Decode(&r)
}

// settled waits until f has no error.
func settled(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func simulated(t *testing.T, name string) string {
	preset := sim.Tiny()
	preset.MaxSequences, preset.NumBlocks = 64, 16384
	s := sim.New(sim.Config{Name: name, Model: "up", Preset: preset})
	address, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return address
}

// The life of a gateway under a controller: it waits, is configured, follows,
// refuses what cannot be, and serves on while the controller is away, over its
// own restart too. No request fails but for those before the first configuration.
func TestGatewayUnderController(t *testing.T) {
	p := newPlane(t)
	one, two := simulated(t, "one"), simulated(t, "two")
	g := p.gateway()
	settled(t, "readiness without a controller", func() error {
		status, r, err := p.ready()
		if err != nil || status != http.StatusServiceUnavailable || r.Controller == nil || r.Controller.Connected || !strings.Contains(r.Reason, "from the controller yet") {
			return fmt.Errorf("%d %+v %v", status, r, err)
		}
		return nil
	})
	p.start()
	p.publish("llama", "")
	p.members("llama", one)
	settled(t, "first answer", func() error { _, err := p.ask(); return err })
	if status, r, err := p.ready(); err != nil || status != http.StatusOK || !r.Controller.Connected || r.Controller.Version == "" {
		t.Fatalf("%d %+v %v", status, r, err)
	}

	var asked, failed atomic.Int64
	var traffic sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				if _, err := p.ask(); err != nil {
					failed.Add(1)
					t.Errorf("request failed: %v", err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	quiet := sync.OnceFunc(func() { close(stop); traffic.Wait() })
	defer quiet()

	p.members("llama", two)
	served := func(want string) func() error {
		return func() error {
			if got, err := p.ask(); err != nil || got != want {
				return fmt.Errorf("%s served, want %s; %v", got, want, err)
			}
			return nil
		}
	}
	settled(t, "another member", served(two))
	p.members("qwen", one)
	p.publish("qwen", "")
	settled(t, "another pool", served(one))

	// What cannot be changes nothing.
	p.publish("qwen", "records: {path: /nonexistent/records}")
	settled(t, "refusal", func() error {
		s := p.server.Status(gatewayName)
		if len(s.Clients) != 1 || !strings.Contains(s.Clients[0].Err, "/nonexistent") || s.Clients[0].Name != "public-1" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	p.publish("qwen", "")
	settled(t, "repair", func() error {
		if s := p.server.Status(gatewayName); s.Clients[0].Err != "" || s.Clients[0].Version != s.Version {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})

	p.stop()
	settled(t, "out of touch", func() error {
		status, r, err := p.ready()
		if err != nil || status != http.StatusOK || r.Controller.Connected || r.Controller.Error == "" {
			return fmt.Errorf("%d %+v %v", status, r.Controller, err)
		}
		return nil
	})
	time.Sleep(time.Second)
	p.start()
	p.members("qwen", two)
	p.publish("qwen", "")
	settled(t, "members after the restart", served(two))
	quiet()
	t.Logf("%d requests, %d failed", asked.Load(), failed.Load())

	// Both away, then the gateway alone comes back.
	time.Sleep(1500 * time.Millisecond) // the members are saved
	p.stop()
	g.ends(t)
	g = p.gateway()
	settled(t, "an answer from the saved state", served(two))
	if _, r, err := p.ready(); err != nil || !r.Controller.Saved || r.Controller.Connected {
		t.Errorf("%+v %v", r.Controller, err)
	}
	if text := g.log.String(); strings.Contains(text, "the token") {
		t.Errorf("the token is in the log:\n%s", text)
	}
	g.ends(t)
}

// ends tells the gateway to stop and wants it to drain.
func (p *program) ends(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.log)
	}
	if !strings.Contains(p.log.String(), "streamsCut=0") {
		t.Errorf("no drain:\n%s", p.log)
	}
}
