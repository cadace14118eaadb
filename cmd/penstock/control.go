// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

// gatewayFlags are those of penstock gateway.
type gatewayFlags struct {
	controller string
	token      string
	ca         string
	state      string
	ops        string
	format     string
}

func newGatewayCommand() *cobra.Command {
	f := &gatewayFlags{}
	cmd := &cobra.Command{
		Use:   "gateway --controller ADDR",
		Short: "Run a gateway that a controller configures",
		Long: `Run a gateway that a controller configures: the data plane of one Gateway of
Kubernetes. It reads no file of its own and holds no credential for the cluster.

It proves itself to the controller with a token (--token-file), gets a
certificate for an hour, and receives its configuration and the members of its
pools. What it has stays in force however long the controller is away, and with
--state-dir over a restart too. A configuration that cannot be used changes
nothing; the controller is told why.

/readyz on --ops is 200 when there is a configuration; with ?verbose it says
since when the controller is out of reach. SIGTERM drains, as with penstock run.`,
		Example: "  penstock gateway --controller penstock-controller.penstock-system.svc:9443 --state-dir /var/lib/penstock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, stop)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.controller, "controller", "", "`address` of the controller, host:port; the host is the name in its certificate")
	flags.StringVar(&f.token, "token-file", "/var/run/secrets/penstock/token", "`file` with the service account token, audience "+xds.Audience)
	flags.StringVar(&f.ca, "ca-file", "/var/run/penstock/ca/ca.crt", "PEM `file` with the authorities that the controller's certificate is checked against")
	flags.StringVar(&f.state, "state-dir", "", "`directory` for the last good state, which holds secrets: a volume in memory; empty: none is kept")
	flags.StringVar(&f.ops, "ops", ":9902", "`address` of /metrics, /healthz and /readyz; off: that of the configuration")
	flags.StringVar(&f.format, "log-format", "text", "text or json; the level is the configuration's")
	return quiet(cmd)
}

func (f *gatewayFlags) run(ctx context.Context, release func()) error {
	if err := f.check(); err != nil {
		return err
	}
	defer holdFloor()()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	var level slog.LevelVar
	log := newLogger(config.Log{Format: f.format}, &level)
	g := newGateway(log, "")
	g.instead = insteadOfGateway
	host, _ := os.Hostname() // a name in the controller's log
	c := newControl(g, &level, f.ops, xds.ClientOptions{
		Address: f.controller, TokenFile: f.token, CAFile: f.ca, StateDir: f.state, Node: host,
	})
	if err := c.listen(); err != nil {
		return err
	}
	var following sync.WaitGroup
	following.Go(func() { c.client.Run(ctx) })
	for {
		select {
		case <-hup:
			if err := g.records.Load().Reopen(); err != nil { // after a log rotation
				log.Error("records not reopened; the old file stays", "error", err)
			}
		case <-ctx.Done():
			following.Wait()
			return shutdown(g, release)
		}
	}
}

func (f *gatewayFlags) check() error {
	if f.controller == "" {
		return usageError("--controller is missing: the address of the controller, host:port")
	}
	if host, port, err := net.SplitHostPort(f.controller); err != nil || host == "" || port == "" {
		return usageError("--controller %s is not host:port", f.controller)
	}
	if f.format != "text" && f.format != "json" {
		return usageError("--log-format %s is neither text nor json", f.format)
	}
	if f.state != "" {
		if st, err := os.Stat(f.state); err != nil || !st.IsDir() {
			return usageError("--state-dir %s is not a directory", f.state)
		}
	}
	return nil
}

// control is a gateway under a controller: what the controller sends goes
// through it.
type control struct {
	g      *gateway
	client *xds.Client
	level  *slog.LevelVar
	ops    string // in place of the configuration's; "": the configuration's
}

func newControl(g *gateway, level *slog.LevelVar, ops string, o xds.ClientOptions) *control {
	if ops == "off" {
		ops = ""
	}
	c := &control{g: g, level: level, ops: ops}
	o.Target, o.Log, o.Metrics = c, g.log, xds.NewClientInstruments(g.reg)
	c.client = xds.NewClient(o)
	g.control = c
	g.acceptFeed()
	return c
}

// listen opens the ops interface, which answers before there is a configuration
// and stays when one comes.
func (c *control) listen() error {
	s, err := listenSide(c.ops, opsWrite, c.g.opsHandler)
	if err != nil {
		return fmt.Errorf("ops: %w", err)
	}
	c.g.mu.Lock()
	c.g.ops = s
	c.g.mu.Unlock()
	s.start()
	if s != nil {
		c.g.log.Info("listening", "listener", "ops", "address", s.addr())
	}
	return nil
}

// Apply is the way of a file's configuration too: checked whole, built whole,
// then swapped in.
func (c *control) Apply(cfg *config.Config) error {
	if c.ops != "" {
		cfg.Ops.Address = c.ops
	}
	err := cfg.Validate()
	if problems := checkPickers(cfg); err == nil && len(problems) > 0 {
		err = config.Problems(problems)
	}
	first := c.g.cfg.Load() == nil
	if err := c.g.reload(cfg, err); err != nil {
		return err
	}
	c.level.Set(levelOf(cfg.Log.Level))
	if first {
		for name, addr := range c.g.proxy.Addresses() {
			c.g.log.Info("listening", "listener", name, "address", addr)
		}
	}
	return nil
}

// SetMembers takes the way of all members from outside; see feed.
func (c *control) SetMembers(pool string, members []config.Member) {
	c.g.feed(map[string][]config.Member{pool: members})
}

// RemoveMembers forgets those of a pool that no configuration has any more.
func (c *control) RemoveMembers(pool string) {
	c.g.feed(map[string][]config.Member{pool: nil})
}

// status is the controller as readiness shows it; nil without one.
func (c *control) status() *admin.ControllerStatus {
	if c == nil {
		return nil
	}
	s := c.client.Status()
	out := &admin.ControllerStatus{
		Address: s.Controller, Connected: s.Connected, Since: s.Since, Error: s.Error,
		Version: s.Version, Saved: s.Saved, Refused: s.Refused,
	}
	if !s.RefusedAt.IsZero() {
		out.RefusedAt = &s.RefusedAt
	}
	return out
}

// reason is why there is no configuration yet.
func (c *control) reason() string {
	if c == nil {
		return "no configuration is loaded"
	}
	s := c.client.Status()
	why := cmp.Or(s.Refused, s.Error, "it has sent none")
	why, _, _ = strings.Cut(why, "\n")
	return "no configuration from the controller yet: " + why
}

// drainLimit is limits.drain, and the least where no configuration came.
func (g *gateway) drainLimit() time.Duration {
	if cfg := g.cfg.Load(); cfg != nil {
		return cfg.Limits.Drain.D()
	}
	return time.Second
}

// lameDuck is limits.lameDuck, and nothing where no configuration came.
func (g *gateway) lameDuck() time.Duration {
	if cfg := g.cfg.Load(); cfg != nil {
		return cfg.Limits.LameDuck.D()
	}
	return 0
}
