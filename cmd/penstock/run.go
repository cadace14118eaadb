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
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/spf13/cobra"
)

func newRunCommand() *cobra.Command {
	var path string
	var manifests manifestFlags
	var cluster clusterFlags
	cmd := &cobra.Command{
		Use:   "run -c FILE | -f MANIFESTS | --kubernetes",
		Short: "Run the gateway from a configuration file, from Kubernetes manifests, or for a cluster",
		Long: `Run the gateway from a configuration file, or with -f from Kubernetes manifests
without a cluster.

With -f the file, or every .yaml, .yml and .json file below the directory, is
read as the controller reads a cluster: one Gateway with its routes,
InferencePools and Models is served on this machine. Members are the pods and
EndpointSlices of the files, or what the annotation penstock.dev/members of an
InferencePool or Service lists ("127.0.0.1:8001, 127.0.0.1:8002"). What is
refused is printed, with the reason that a controller would write to the status
of the object.

The file is read again when it changes and on SIGHUP. A configuration that is
not valid changes nothing; the log, /readyz and penstock_config_last_reload_successful
say so. SIGINT or SIGTERM turns readiness off (for limits.lameDuck while serving
on, if that is set), stops accepting, lets open streams end (limits.drain) and
then exits; a second signal cuts the streams that are still open.

With --kubernetes in place of a file this process serves the Gateways of a
cluster itself: controller and data plane in one, for small clusters. Each
Gateway gets an address of --address-pool; without one it listens on every
interface, which suits a single Gateway.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if cluster.on {
				return cluster.run(ctx)
			}
			if manifests.path != "" {
				return manifests.run(ctx, stop, cmd, &cluster)
			}
			if err := manifests.refused(cmd); err != nil {
				return err
			}
			p := &process{path: path, watch: watchFile(path), load: func() (*config.Config, error) { return loadConfig(path, config.Options{}) }}
			return p.run(ctx, stop)
		},
	}
	configFlag(cmd, &path)
	flags := cmd.Flags()
	flags.BoolVar(&cluster.on, "kubernetes", false, "serve the Gateways of a Kubernetes cluster; -c is not read")
	flags.StringVar(&cluster.kubeconfig, "kubeconfig", "", "with --kubernetes: `file` that says how to reach the API server; empty: $KUBECONFIG, or as a pod is told")
	flags.StringVar(&cluster.pool, "address-pool", "", "with --kubernetes: `CIDR` of addresses of this machine, of which each Gateway gets one to listen on")
	flags.StringSliceVar(&cluster.addresses, "address", nil, "with --kubernetes and no --address-pool: `address` by which clients reach this machine; may be repeated")
	flags.StringVar(&cluster.service, "service", "", "with --kubernetes: `namespace/name` of the Service by which clients reach this process; Gateways have its address, in place of --address")
	flags.StringVar(&cluster.ops, "ops", ":9902", "with --kubernetes or -f: `address` of /metrics, /healthz and /readyz; off: none; with -f that is the default")
	flags.StringVar(&cluster.level, "log-level", "info", "with --kubernetes or -f: debug, info, warn or error")
	flags.StringVar(&cluster.format, "log-format", "text", "with --kubernetes or -f: text or json")
	manifests.add(cmd)
	return quiet(cmd)
}

// process is a gateway that reads its own configuration, again whenever
// something says that it may have changed.
type process struct {
	path string // named in readiness
	load func() (*config.Config, error)
	// watch calls changed after a change of what load reads.
	watch func(ctx context.Context, changed func())
	// begin is called once, before the first configuration is applied; nil:
	// nothing is to be done. end is called at the end, after a drain.
	begin func(ctx context.Context, g *gateway, again func(why string)) (end func(), err error)
	// applied is called after what load gave last was put in force; nil: nothing
	// is to be done.
	applied func()
	// flagOf is the flag that gives an address, by its key; nil: there are none.
	flagOf func(key string) string
	// instead is that of the gateway.
	instead func(cfg *config.Config, key string) string
}

// watchFile is the watch of a configuration file.
func watchFile(path string) func(context.Context, func()) {
	return func(ctx context.Context, changed func()) { config.Watch(ctx, path, changed) }
}

// heapFloor counts as live memory, in bytes. It is never touched, and so takes
// none; but garbage of that size may come together before it is collected. A
// gateway or picker has little that lives and makes 20 to 40 KB of garbage a
// request: collected every 200 requests or so, that would cost a fifth of its
// CPU.
const heapFloor = 32 << 20

// holdFloor puts the floor under the heap of this process until release.
func holdFloor() (release func()) {
	floor := make([]byte, heapFloor)
	return func() { runtime.KeepAlive(floor) }
}

// run serves until ctx ends, then drains. release gives the signals back.
func (p *process) run(ctx context.Context, release func()) error {
	defer holdFloor()()
	var level slog.LevelVar
	hup := make(chan os.Signal, 1) // before anything slow: unhandled it ends the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	again := make(chan string, 1)
	if p.watch != nil {
		go p.watch(ctx, func() { offer(again, "file") }) // before the first look at it
	}
	cfg, err := p.load()
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, &level)
	g := newGateway(log, p.path)
	g.flagOf, g.instead = p.flagOf, p.instead
	end := func() {}
	if p.begin != nil {
		if end, err = p.begin(ctx, g, func(why string) { offer(again, why) }); err != nil {
			return err
		}
	}
	if err := g.reload(cfg, nil); err != nil {
		return err
	}
	if p.applied != nil {
		p.applied()
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
			next, err := p.load()
			if err = g.reload(next, err); err != nil {
				logRefusal(log, why, err)
			} else {
				level.Set(levelOf(next.Log.Level))
				if p.applied != nil {
					p.applied()
				}
			}
		case <-ctx.Done():
			err := shutdown(g, release)
			end()
			return err
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
	limit := g.drainLimit()
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
	if lame := g.lameDuck(); lame > 0 {
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
