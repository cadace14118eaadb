// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
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
say so. SIGINT or SIGTERM stops accepting, lets open streams end (limits.drain)
and then exits; a second signal exits at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runGateway(ctx, stop, path)
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", "penstock.yaml", "configuration file")
	return cmd
}

// runGateway serves until ctx ends, then drains. release gives the signals
// back, so that a second one ends the process.
func runGateway(ctx context.Context, release func(), path string) error {
	var level slog.LevelVar
	again := make(chan string, 1)
	go config.Watch(ctx, path, func() { offer(again, "file") }) // before the first look at it
	cfg, err := loadConfig(path)
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, &level)
	g := newGateway(log, path)
	if err := g.reload(cfg, nil); err != nil {
		return err
	}
	for name, addr := range g.proxy.Addresses() {
		log.Info("listening", "listener", name, "address", addr)
	}
	log.Info("admin", "address", g.admin.addr(), "ops", g.ops.addr())

	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-hup:
			if err := g.records.Load().Reopen(); err != nil { // after a log rotation
				log.Error("records not reopened; the old file stays", "error", err)
			}
			offer(again, "SIGHUP")
		case why := <-again:
			next, err := loadConfig(path)
			if err = g.reload(next, err); err != nil {
				log.Error("configuration refused; the old one stays", "why", why, "error", err)
			} else {
				level.Set(levelOf(next.Log.Level))
			}
		case <-ctx.Done():
			release()
			return shutdown(g)
		}
	}
}

func offer(c chan string, why string) {
	select {
	case c <- why:
	default:
	}
}

func shutdown(g *gateway) error {
	limit := g.cfg.Load().Limits.Drain.D()
	g.log.Info("draining", "open", g.proxy.Open(), "limit", limit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	cut := g.close(ctx)
	g.log.Info("ended", "took", time.Since(start).Round(time.Millisecond), "streamsCut", cut)
	if cut > 0 {
		return fmt.Errorf("%d streams were cut after %s", cut, limit)
	}
	return nil
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
