// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/kube"
)

// eppCluster are the flags of a picker for an InferencePool of Kubernetes.
type eppCluster struct {
	namespace   string
	group       string
	kubeconfig  string
	profile     string
	configFile  string
	configText  string
	engine      string
	admin       string
	elect       bool
	testPlugins bool
}

// forCluster are flags that mean nothing for a picker that is configured by a file alone.
func forCluster() []string {
	return []string{"pool-group", "profile", "config-file", "config-text", "engine", "admin-address", "ha-enable-leader-election", "test-plugins", "endpoint-target-ports"}
}

func (k *eppCluster) add(flags *pflag.FlagSet) {
	flags.StringVar(&k.namespace, "pool-namespace", "", "`namespace` of the InferencePool (default that of the kubeconfig or of this pod)")
	flags.StringVar(&k.group, "pool-group", inferenceGroup, "API `group` of the pool")
	flags.StringVar(&k.kubeconfig, "kubeconfig", "", "`file` that says how to reach the cluster")
	flags.StringVar(&k.profile, "profile", "default", "picker `profile` of the InferencePool, one of the built-in ones")
	flags.StringVar(&k.configFile, "config-file", "", "`file` with the picker profile, an EndpointPickerConfig; read again when it changes")
	flags.StringVar(&k.configText, "config-text", "", "the same as `text`")
	flags.StringVar(&k.engine, "engine", "auto", "what the members run: vllm, sglang, trtllm or auto")
	flags.StringVar(&k.admin, "admin-address", "127.0.0.1:9901", "`address` of the admin interface; off: none")
	flags.BoolVar(&k.elect, "ha-enable-leader-election", false, "let one replica alone be ready, by a Lease")
	flags.BoolVar(&k.testPlugins, "test-plugins", false, "add the plug-ins of the conformance suite: header-based-testing-filter, destination-endpoint-served-verifier; never in production")
	flags.StringSlice("endpoint-target-ports", nil, "accepted and ignored: the `ports` are the pool's")
	flags.Bool("health-checking", true, "accepted and ignored: the ext_proc port always answers health checks")
}

const inferenceGroup = "inference.networking.k8s.io"

// refused says which flags mean nothing without a cluster.
func (k *eppCluster) refused(set *pflag.FlagSet) error {
	for _, name := range forCluster() {
		if set.Changed(name) {
			return usageError("--%s is for an InferencePool of Kubernetes: add --pool-namespace", name)
		}
	}
	return nil
}

// inCluster says that the pool is one of Kubernetes.
func (f *eppFlags) inCluster() bool {
	return f.set.Changed("pool-namespace") || f.set.Changed("kubeconfig")
}

func (f *eppFlags) checkCluster() error {
	k := &f.cluster
	var ways []string
	for _, name := range []string{"config", "profile", "config-file", "config-text"} {
		if f.set.Changed(name) {
			ways = append(ways, "--"+name)
		}
	}
	switch {
	case f.pool == "":
		return usageError("--pool-name is missing: the name of the InferencePool")
	case k.group != inferenceGroup:
		return usageError("--pool-group %s is not supported; the InferencePool is one of %s", k.group, inferenceGroup)
	case len(ways) > 1:
		return usageError("%s each say how members are chosen; give one of them", strings.Join(ways, " and "))
	}
	return nil
}

// clusterPicker is a picker for one InferencePool.
type clusterPicker struct {
	*eppFlags
	protocol atomic.Pointer[config.Protocol]
	seen     atomic.Bool
	leads    atomic.Bool
}

func (f *eppFlags) runInCluster(ctx context.Context, release func()) error {
	if err := f.checkCluster(); err != nil {
		return err
	}
	cluster, err := kube.Connect(f.cluster.kubeconfig, "", "penstock-epp/"+version)
	if err != nil {
		return usageError("%w", err)
	}
	f.cluster.namespace = cmp.Or(f.cluster.namespace, cluster.Namespace)
	c := &clusterPicker{eppFlags: f}
	c.protocol.Store(new(config.HTTP))
	p := &process{load: c.load, flagOf: f.flagOf, begin: func(ctx context.Context, g *gateway, again func(string)) (func(), error) {
		return c.begin(ctx, cluster, g, again)
	}}
	switch {
	case f.set.Changed("config"):
		p.path, p.watch = f.config, watchFile(f.config)
	case f.cluster.configFile != "":
		p.path, p.watch = f.cluster.configFile, watchFile(f.cluster.configFile)
	}
	return p.run(ctx, release)
}

// begin follows the pool, and takes part in an election. Both end with ctx: who
// drains has given up the lease already, and streams that end need no new
// members.
func (c *clusterPicker) begin(ctx context.Context, cluster *kube.Cluster, g *gateway, again func(string)) (end func(), err error) {
	for _, name := range []string{"endpoint-target-ports", "health-checking"} {
		if c.set.Changed(name) {
			g.log.Warn("flag ignored", "flag", "--"+name, "why", c.set.Lookup(name).Usage)
		}
	}
	c.zap.tell(g.log, c.set)
	if c.cluster.testPlugins {
		g.log.Warn("plug-ins for tests are on: clients choose members by a header")
	}
	g.acceptFeed()
	g.closed = c.closed
	var running sync.WaitGroup
	running.Go(func() {
		err := cluster.FollowPool(ctx, kube.PoolOptions{
			Namespace: c.cluster.namespace, Name: c.pool, Log: g.log,
			Changed: func(p kube.FollowedPool) {
				g.feed(map[string][]config.Member{c.pool: p.Members})
				if before := c.protocol.Swap(&p.Protocol); *before != p.Protocol {
					again("protocol of the pool")
				}
				c.seen.Store(true)
			},
		})
		if err != nil {
			g.log.Error("the pool is not followed", "error", err)
		}
	})
	if c.cluster.elect {
		host, _ := os.Hostname()
		running.Go(func() {
			err := cluster.Elect(ctx, kube.Election{
				Namespace: c.cluster.namespace, Name: "penstock-epp-" + c.pool, Log: g.log,
				Identity: cmp.Or(os.Getenv("POD_NAME"), host) + "_" + rand.Text()[:8],
				Changed:  c.leads.Store,
				Keep:     true, // two pickers for a while know less of each other, none would refuse everything
			})
			if err != nil {
				g.log.Error("no part in the election", "error", err)
			}
		})
	}
	return running.Wait, nil
}

// closed is why this replica is not to be asked.
func (c *clusterPicker) closed() string {
	switch {
	case !c.seen.Load():
		return fmt.Sprintf("the InferencePool %s/%s and its pods were not seen yet", c.cluster.namespace, c.pool)
	case c.cluster.elect && !c.leads.Load():
		return "another replica leads"
	}
	return ""
}

// load is the configuration of the picker: of a file, or made of flags.
func (c *clusterPicker) load() (*config.Config, error) {
	cfg, err := c.document()
	if err != nil {
		return nil, err
	}
	if cfg, err = c.picker(cfg); err != nil {
		return nil, err
	}
	p := &cfg.Pools[0]
	if !p.Members.External {
		return nil, usageError("%s: pools: the members of %s are those of the InferencePool; write members: {external: true}", c.config, p.Name)
	}
	p.Protocol = *c.protocol.Load()
	if c.cluster.testPlugins {
		return cfg, addTestPlugins(cfg, p)
	}
	return cfg, nil
}

func (c *clusterPicker) document() (*config.Config, error) {
	if c.set.Changed("config") {
		return loadConfig(c.config, config.Options{Unlistened: true})
	}
	k, name, profile := &c.cluster, "flags", c.cluster.profile
	var picker string
	switch {
	case k.configFile != "":
		file, err := filepath.Abs(k.configFile)
		if err != nil {
			return nil, err
		}
		picker, profile = fmt.Sprintf("pickers: [{name: configured, file: %q}]\n", file), "configured"
	case k.configText != "":
		indented := strings.ReplaceAll(strings.TrimRight(k.configText, "\n"), "\n", "\n      ")
		picker, name, profile = "pickers:\n  - name: configured\n    config:\n      "+indented+"\n", "--config-text", "configured"
	}
	text := fmt.Appendf(nil, "%spools: [{name: %q, members: {external: true}, engine: %q, picker: {profile: %q}}]\npickerListeners: [{pool: %[2]q}]\nadmin: {address: %[5]q}\n",
		picker, c.pool, k.engine, profile, k.admin)
	return config.ParseWith(name, text, config.Options{Check: checkContent})
}

// addTestPlugins gives the pool's profile the plug-ins that the conformance
// suite of the Gateway API Inference Extension wants of a picker.
func addTestPlugins(cfg *config.Config, p *config.Pool) error {
	base, err := pickerConfig(cfg, p.Picker.Profile)
	if err != nil {
		return err
	}
	const steering, served, name = "header-based-testing-filter", "destination-endpoint-served-verifier", "with-test-plugins"
	with := *base
	with.Plugins = slices.Clone(base.Plugins)
	for _, kind := range []string{steering, served} {
		if !slices.ContainsFunc(with.Plugins, func(g config.Plugin) bool { return g.Type == kind }) {
			with.Plugins = append(with.Plugins, config.Plugin{Type: kind})
		}
	}
	with.SchedulingProfiles = slices.Clone(base.SchedulingProfiles)
	for i := range with.SchedulingProfiles {
		s := &with.SchedulingProfiles[i]
		if !slices.ContainsFunc(s.Plugins, func(r config.PluginRef) bool { return r.PluginRef == steering }) {
			s.Plugins = append([]config.PluginRef{{PluginRef: steering}}, s.Plugins...)
		}
	}
	if _, err := epp.Compile(&with); err != nil {
		return fmt.Errorf("--test-plugins: %w", err)
	}
	cfg.Pickers = append(slices.Clone(cfg.Pickers), config.Picker{Name: name, Config: &with})
	p.Picker.Profile = name
	return nil
}
