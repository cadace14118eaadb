// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/spf13/cobra"
)

func newRunCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run the gateway from a configuration file",
		Long: `Run the gateway from a configuration file.

The file is read again when it changes and on SIGHUP. A configuration that is
not valid changes nothing; the log, /readyz and penstock_config_last_reload_successful
say so. SIGINT or SIGTERM turns readiness off (for limits.lameDuck while serving
on, if that is set), stops accepting, lets open streams end (limits.drain) and
then exits; a second signal cuts the streams that are still open.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runGateway(ctx, stop, path, func() (*config.Config, error) { return loadConfig(path, config.Options{}) }, nil)
		},
	}
	configFlag(cmd, &path)
	return quiet(cmd)
}

// runGateway serves what load reads from the file at path until ctx ends, then
// drains. release gives the signals back; flagOf is the flag that gives an
// address, by its key, nil where there are no such flags.
func runGateway(ctx context.Context, release func(), path string, load func() (*config.Config, error), flagOf func(key string) string) error {
	var level slog.LevelVar
	hup := make(chan os.Signal, 1) // before anything slow: unhandled it ends the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	again := make(chan string, 1)
	go config.Watch(ctx, path, func() { offer(again, "file") }) // before the first look at it
	cfg, err := load()
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, &level)
	g := newGateway(log, path)
	g.flagOf = flagOf
	if err := g.reload(cfg, nil); err != nil {
		return err
	}
	for name, addr := range g.proxy.Addresses() {
		log.Info("listening", "listener", name, "address", addr)
	}
	for _, a := range g.pickers.Addresses() {
		log.Info("listening", "listener", "picker", "pool", a.Pool, "address", a.Address, "tls", a.TLS, "health", cmp.Or(a.Health, "off"))
	}
	for _, side := range []struct {
		what   string
		server *sideServer
	}{{"admin", g.admin}, {"ops", g.ops}} {
		if side.server != nil {
			log.Info("listening", "listener", side.what, "address", side.server.addr())
		}
	}

	for {
		select {
		case <-hup:
			if err := g.records.Load().Reopen(); err != nil { // after a log rotation
				log.Error("records not reopened; the old file stays", "error", err)
			}
			offer(again, "SIGHUP")
		case why := <-again:
			next, err := load()
			if err = g.reload(next, err); err != nil {
				logRefusal(log, why, err)
			} else {
				level.Set(levelOf(next.Log.Level))
			}
		case <-ctx.Done():
			return shutdown(g, release)
		}
	}
}

// logRefusal writes a line per problem.
func logRefusal(log *slog.Logger, why string, err error) {
	problems, content := problemsOf(err)
	if !content {
		log.Error("configuration refused; the old one stays", "why", why, "error", err)
	}
	for _, p := range problems {
		log.Error("configuration refused; the old one stays", "why", why, "error", p)
	}
}

func offer(c chan string, why string) {
	select {
	case c <- why:
	default:
	}
}

// shutdown drains within limits.drain or until a second signal, then cuts what
// is left. A third signal has its default effect: release was called.
func shutdown(g *gateway, release func()) error {
	limits := g.cfg.Load().Limits
	limit := limits.Drain.D()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	second := make(chan os.Signal, 1)
	signal.Notify(second, syscall.SIGINT, syscall.SIGTERM)
	release()
	defer signal.Stop(second)
	go func() {
		select {
		case <-second:
			signal.Stop(second)
			cancel()
		case <-ctx.Done():
		}
	}()
	if lame := limits.LameDuck.D(); lame > 0 {
		g.log.Info("not ready any more, and serving on; a second signal ends it", "for", span(lame))
		g.fade()
		select {
		case <-time.After(lame):
		case <-ctx.Done():
		}
	}
	drain, ended := context.WithTimeout(ctx, limit)
	defer ended()
	g.log.Info("draining; a second signal cuts what is open", "open", g.proxy.Open()+g.pickers.Open(), "limit", span(limit))
	start := time.Now()
	cut := g.close(drain)
	took := time.Since(start)
	g.log.Info("ended", "took", took.Round(time.Millisecond).String(), "streamsCut", cut)
	if cut > 0 {
		return fmt.Errorf("cut %d of the open requests after %s", cut, took.Round(time.Millisecond))
	}
	return nil
}

// span is a duration without empty parts: 10m, not 10m0s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func newLogger(c config.Log, level *slog.LevelVar) *slog.Logger {
	level.Set(levelOf(c.Level))
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

func levelOf(name string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo
	}
	return l
}
