// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc"
)

// pickerBackends are the pools as picker listeners ask them.
func pickerBackends(pools map[string]*pooled) map[string]extproc.Backend {
	out := map[string]extproc.Backend{}
	for name, p := range pools {
		b := extproc.Backend{Pool: p.pool, Picker: p.picker()}
		if s := p.scheduler; s != nil {
			b.TellServed = func() bool { return s.Profile().TellsServed() }
		}
		out[name] = b
	}
	return out
}

// eppFlags are those of penstock epp; the names are the reference picker's.
type eppFlags struct {
	config  string
	grpc    int
	health  int
	metrics int
	pool    string
	secure  bool
	certs   string
	drain   time.Duration
	cluster eppCluster
	zap     zapFlags
	set     *pflag.FlagSet // tells which were given
}

// The ports of the reference picker.
const (
	pickerPort  = 9002
	healthPort  = 9003
	metricsPort = 9090
)

func newEPPCommand() *cobra.Command {
	f := &eppFlags{}
	cmd := &cobra.Command{
		Use:   "epp -c FILE | --pool-name NAME --pool-namespace NAMESPACE",
		Short: "Run pools as an endpoint picker for other gateways",
		Long: `Run pools as an endpoint picker for other gateways (Envoy, Istio, and all that
speak the Endpoint Picker Protocol).

With --pool-namespace it serves an InferencePool of Kubernetes: its members are
the ready pods that the pool selects, each with every target port that is active
there, and follow changes at once. The cluster is that of --kubeconfig, of
KUBECONFIG, or the one this runs in. How members are chosen is --profile, a file
in the shape of EndpointPickerConfig (--config-file), or with -c a whole
configuration with a pool of that name whose members are {external: true}.
Flags are those of the reference picker. Health is NOT_SERVING until the pool
was seen and its pods were listed. Every replica serves, unless
--ha-enable-leader-election lets one alone be ready.

Without --pool-namespace it serves pickerListeners of the file and no listeners for clients. A file
without pickerListeners and with one pool, or --pool-name, stands for one
listener on the default ports. Flags for ports and TLS go with one listener.

The file is read again when it changes and on SIGHUP, as by penstock run.
SIGTERM turns health to NOT_SERVING (for limits.lameDuck while serving on, if
that is set), stops accepting and lets open streams end.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			f.set = cmd.Flags()
			return f.run(ctx, stop)
		},
	}
	configFlag(cmd, &f.config)
	flags := cmd.Flags()
	flags.IntVar(&f.grpc, "grpc-port", pickerPort, "`port` of the ext_proc service")
	flags.IntVar(&f.health, "grpc-health-port", healthPort, "`port` of gRPC health in plaintext; 0: none, the ext_proc port answers too")
	flags.IntVar(&f.metrics, "metrics-port", metricsPort, "`port` of /metrics, /healthz and /readyz; 0: none")
	flags.StringVar(&f.pool, "pool-name", "", "serve this `pool` alone; with --pool-namespace the InferencePool of that name")
	flags.BoolVar(&f.secure, "secure-serving", true, "TLS on the ext_proc port, self-signed unless --cert-path")
	flags.StringVar(&f.certs, "cert-path", "", "`directory` with tls.crt and tls.key, read again when they change")
	flags.DurationVar(&f.drain, "drain", 0, "longest wait for open streams at the end (default limits.drain)")
	f.cluster.add(flags)
	f.zap.add(flags)
	cmd.AddCommand(newProbeCommand())
	return quiet(cmd)
}

func (f *eppFlags) run(ctx context.Context, release func()) error {
	for _, port := range []struct {
		flag  string
		value int
		least int
	}{{"grpc-port", f.grpc, 1}, {"grpc-health-port", f.health, 0}, {"metrics-port", f.metrics, 0}} {
		if port.value < port.least || port.value > 65535 {
			return usageError("--%s %d is not a port", port.flag, port.value)
		}
	}
	if f.certs != "" && !f.secure {
		return usageError("--cert-path means TLS, --secure-serving=false means none; leave out one of them")
	}
	if f.inCluster() {
		return f.runInCluster(ctx, release)
	}
	if err := f.cluster.refused(f.set); err != nil {
		return err
	}
	p := &process{path: f.config, watch: watchFile(f.config), load: f.load, flagOf: f.flagOf}
	return p.run(ctx, release)
}

// flagOf is the flag of the address with that key of the configuration, or "".
func (f *eppFlags) flagOf(key string) string {
	switch {
	case key == "ops.address":
		return "--metrics-port"
	case strings.HasPrefix(key, "pickerListeners[") && strings.HasSuffix(key, ".health"):
		return "--grpc-health-port"
	case strings.HasPrefix(key, "pickerListeners["):
		return "--grpc-port"
	}
	return ""
}

// load reads the file and keeps of it what a picker needs.
func (f *eppFlags) load() (*config.Config, error) {
	cfg, err := loadConfig(f.config, config.Options{Unlistened: true})
	if err != nil {
		return nil, err
	}
	return f.picker(cfg)
}

// picker is what a picker needs of cfg, with the flags in force.
func (f *eppFlags) picker(cfg *config.Config) (*config.Config, error) {
	var err error
	out := *cfg
	if out.PickerListeners, err = f.listeners(cfg); err != nil {
		return nil, err
	}
	out.Listeners, out.Routes = nil, nil
	keepPools(&out)
	if f.set.Changed("drain") {
		out.Limits.Drain = config.Duration(f.drain)
	}
	switch {
	case f.set.Changed("metrics-port") && f.metrics == 0:
		out.Ops.Address = ""
	case f.set.Changed("metrics-port"), out.Ops.Address == "":
		out.Ops.Address = fmt.Sprintf(":%d", f.metrics)
	}
	f.zap.apply(&out.Log, f.set)
	return &out, nil
}

// listeners are those of the file, or the one that the flags describe.
func (f *eppFlags) listeners(cfg *config.Config) ([]config.PickerListener, error) {
	list := slices.Clone(cfg.PickerListeners)
	names := make([]string, 0, len(cfg.Pools))
	for i := range cfg.Pools {
		names = append(names, cfg.Pools[i].Name)
	}
	name := f.pool
	switch {
	case name != "":
		if !slices.Contains(names, name) {
			return nil, usageError("--pool-name %s: %s has no such pool; it has %s", name, f.config, strings.Join(names, ", "))
		}
		list = slices.DeleteFunc(list, func(l config.PickerListener) bool { return l.Pool != name })
	case len(list) == 0 && len(names) == 1:
		name = names[0]
	case len(list) == 0:
		return nil, usageError("%s has %d pools and no pickerListeners; choose one with --pool-name (%s), or add pickerListeners", f.config, len(names), strings.Join(names, ", "))
	}
	if len(list) == 0 {
		list = []config.PickerListener{{
			Pool: name, Address: fmt.Sprintf(":%d", f.grpc), Health: f.healthAddress(), Streams: defaultStreams,
		}}
	}
	var given []string
	f.set.Visit(func(flag *pflag.Flag) {
		if slices.Contains([]string{"grpc-port", "grpc-health-port", "secure-serving", "cert-path"}, flag.Name) {
			given = append(given, "--"+flag.Name)
		}
	})
	if len(given) > 0 && len(list) > 1 {
		return nil, usageError("%s: %s has %d pickerListeners; choose one with --pool-name, or write it in the file", strings.Join(given, ", "), f.config, len(list))
	}
	for i := range list {
		f.override(&list[i])
	}
	return list, nil
}

// defaultStreams is the default of pickerListeners[].streams.
const defaultStreams = 100_000

func (f *eppFlags) healthAddress() string {
	if f.health == 0 {
		return "off"
	}
	return fmt.Sprintf(":%d", f.health)
}

// override puts the flags that were given in the place of what the file says.
func (f *eppFlags) override(l *config.PickerListener) {
	if f.set.Changed("grpc-port") {
		l.Address = fmt.Sprintf(":%d", f.grpc)
	}
	if f.set.Changed("grpc-health-port") {
		l.Health = f.healthAddress()
	}
	if f.set.Changed("secure-serving") {
		if l.Plaintext = !f.secure; l.Plaintext {
			l.TLS = nil
		}
	}
	if f.certs != "" {
		l.Plaintext, l.TLS = false, &config.ServerTLS{Cert: filepath.Join(f.certs, "tls.crt"), Key: filepath.Join(f.certs, "tls.key")}
	}
}

// keepPools leaves the pools that are picked from, and of the models what they
// serve.
func keepPools(c *config.Config) {
	picked := func(name string) bool {
		return slices.ContainsFunc(c.PickerListeners, func(l config.PickerListener) bool { return l.Pool == name })
	}
	all := c.Models
	c.Pools = slices.DeleteFunc(slices.Clone(c.Pools), func(p config.Pool) bool { return !picked(p.Name) })
	c.Models = nil
	for _, m := range all {
		if m.Alias == "" {
			m.Targets = slices.DeleteFunc(slices.Clone(m.Targets), func(t config.Target) bool {
				return !picked(t.Pool) || t.Weight != nil && *t.Weight == 0
			})
			if len(m.Targets) == 0 {
				continue
			}
		}
		c.Models = append(c.Models, m)
	}
	reached := (&config.Config{Models: c.Models}).Resolver() // aliases of what has gone go too
	c.Models = slices.DeleteFunc(slices.Clone(c.Models), func(m config.Model) bool { return reached(m.Name) == nil })
}
