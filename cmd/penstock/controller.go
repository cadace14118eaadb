// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube/controller"
	"github.com/penstock/penstock/xds"
)

// controllerFlags are those of penstock controller.
type controllerFlags struct {
	kubeconfig  string
	namespace   string
	elect       bool
	listen      string
	advertise   string
	image       string
	pullPolicy  string
	serviceType string
	replicas    int32
	pool        string
	ops         string
	level       string
	format      string
}

func newControllerCommand() *cobra.Command {
	f := &controllerFlags{}
	cmd := &cobra.Command{
		Use:   "controller --image IMAGE",
		Short: "Run the controller for Kubernetes",
		Long: `Run the controller for Kubernetes: it serves Gateways whose GatewayClass names
the controller penstock.dev/gateway-controller.

It reads the objects of the Gateway API, of its inference extension and
Penstock's own, provisions a Deployment and a Service of "penstock gateway" for
each Gateway, sends these processes their configuration and the members of
their pools (--listen), and writes status. Of several replicas one leads.

Definitions of kinds that are not installed are looked for again; the log names
them. SIGTERM gives the lead to another replica. Gateways serve on without any
controller.`,
		Example: "  penstock controller --image registry.example.com/penstock:1.0 --address-pool 192.0.2.0/28",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; empty: $KUBECONFIG, or as a pod is told")
	flags.StringVar(&f.namespace, "namespace", "", "`namespace` of the controller, for its Lease and its authority; empty: that of its pod, or penstock-system")
	flags.BoolVar(&f.elect, "leader-elect", true, "agree with other replicas on one that leads")
	flags.StringVar(&f.listen, "listen", ":9443", "`address` on which gateways get their configuration")
	flags.StringVar(&f.advertise, "advertise", "", "`address`, host:port, by which gateways reach the controller; empty: penstock-controller.NAMESPACE.svc and the port of --listen")
	flags.StringVar(&f.image, "image", os.Getenv("PENSTOCK_IMAGE"), "`image` of the processes of Gateways, with penstock as its entry point; default $PENSTOCK_IMAGE")
	flags.StringVar(&f.pullPolicy, "image-pull-policy", "", "Always, IfNotPresent or Never; empty: by the tag, as Kubernetes does")
	flags.StringVar(&f.serviceType, "service-type", "LoadBalancer", "`type` of the Services of Gateways: LoadBalancer, NodePort or ClusterIP")
	flags.Int32Var(&f.replicas, "replicas", 2, "`number` of processes of a Gateway whose parameters say nothing")
	flags.StringVar(&f.pool, "address-pool", "", "`CIDR` of which each Gateway gets an address of its own, where no load balancer gives any")
	flags.StringVar(&f.ops, "ops", ":9902", "`address` of /metrics, /healthz and /readyz; off: none")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "text", "text or json")
	return quiet(cmd)
}

func (f *controllerFlags) check() error {
	f.namespace = cmp.Or(f.namespace, ownNamespace())
	_, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return usageError("--listen %s is not an address", f.listen)
	}
	if f.advertise == "" {
		f.advertise = net.JoinHostPort("penstock-controller."+f.namespace+".svc", port)
	}
	if host, port, err := net.SplitHostPort(f.advertise); err != nil || host == "" || port == "" {
		return usageError("--advertise %s is not host:port", f.advertise)
	}
	if f.image == "" {
		return usageError("--image is missing: the image of the processes of Gateways")
	}
	if !slices.Contains([]string{"LoadBalancer", "NodePort", "ClusterIP"}, f.serviceType) {
		return usageError("--service-type %s is none of LoadBalancer, NodePort, ClusterIP", f.serviceType)
	}
	if f.replicas < 1 {
		return usageError("--replicas %d is less than 1", f.replicas)
	}
	if f.format != "text" && f.format != "json" {
		return usageError("--log-format %s is neither text nor json", f.format)
	}
	var level slog.Level
	if level.UnmarshalText([]byte(f.level)) != nil {
		return usageError("--log-level %s is none of debug, info, warn, error", f.level)
	}
	_, err = addressPool(f.pool)
	return err
}

// addressPool is nil for an empty text.
func addressPool(text string) (*controller.AddressPool, error) {
	if text == "" {
		return nil, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, usageError("--address-pool %s is not a CIDR such as 192.0.2.0/28", text)
	}
	return controller.NewAddressPool(prefix), nil
}

// ownNamespace is that of the pod that this is.
func ownNamespace() string {
	text, _ := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	return cmp.Or(os.Getenv("POD_NAMESPACE"), strings.TrimSpace(string(text)), "penstock-system")
}

// names are those of the controller's certificate.
func (f *controllerFlags) names() []string {
	host, _, _ := net.SplitHostPort(f.advertise)
	service := "penstock-controller." + f.namespace + ".svc"
	names := []string{host, service, service + ".cluster.local"}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *controllerFlags) run(ctx context.Context) error {
	if err := f.check(); err != nil {
		return err
	}
	var level slog.LevelVar
	log := newLogger(config.Log{Level: f.level, Format: f.format}, &level)
	controller.LogTo(log)
	cluster, err := controller.Connect(f.kubeconfig, "penstock-controller/"+version)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "server", cluster.Host(), "namespace", f.namespace)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	authority := newAuthority(ctx, log, cluster.Store(f.namespace))
	if authority == nil {
		return nil // told to end before there was one
	}
	var c *controller.Controller
	server := xds.NewServer(xds.ServerOptions{
		Log: log, Metrics: xds.NewServerInstruments(reg), Authority: authority, Names: f.names(),
		Reviewer:  cluster.Reviewer(),
		GatewayOf: func(a xds.Account) (xds.Gateway, error) { return c.GatewayOf(a) },
		Replied:   func(r xds.Reply) { c.Replied(r.Gateway) },
	})
	pool, err := addressPool(f.pool)
	if err != nil {
		return err
	}
	o := controller.Options{
		Cluster: cluster, Publisher: server, Log: log, Metrics: controller.NewInstruments(reg),
		Namespace: f.namespace, Pool: pool, Check: checkContent, Elect: f.elect,
		Provision: &controller.Provision{
			Image: f.image, PullPolicy: f.pullPolicy, Controller: f.advertise, Audience: xds.Audience,
			Bundle: authority.Bundle, ServiceType: f.serviceType, Replicas: f.replicas,
		},
		Lead: func(ctx context.Context, lead bool) error {
			if lead { // another replica may have renewed it
				if _, err := authority.Renew(ctx); err != nil {
					return err
				}
			}
			server.Lead(lead)
			return nil
		},
	}
	c = controller.New(o)
	side, err := listenSide(f.ops, opsWrite, func(string) http.Handler {
		return admin.Ops(admin.Options{Log: log, Registry: reg, Ready: controllerReady(c)})
	})
	if err != nil {
		return fmt.Errorf("ops: %w", err)
	}
	side.start()
	defer side.close()
	log.Info("listening", "listener", "gateways", "address", listener.Addr().String(), "advertised", f.advertise)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(listener)
		stop()
	}()
	go renewAuthority(ctx, log, authority, c)
	err = c.Run(ctx)
	closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	server.Close(closing)
	log.Info("ended")
	return cmp.Or(err, <-served)
}

// newAuthority tries until it has one or ctx ends: the API server may come
// later than this process.
func newAuthority(ctx context.Context, log *slog.Logger, store xds.Store) *xds.Authority {
	for {
		a, err := xds.NewAuthority(ctx, xds.AuthorityOptions{Store: store})
		if err == nil {
			return a
		}
		if ctx.Err() == nil {
			log.Error("no authority yet; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

// renewAuthority takes over what another replica has renewed, or renews it.
func renewAuthority(ctx context.Context, log *slog.Logger, authority *xds.Authority, c *controller.Controller) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := authority.Renew(ctx)
		if err != nil {
			log.Error("the authority is not renewed; trying again in an hour", "error", err)
		}
		if changed {
			log.Info("the authority has a new certificate")
			c.AuthoritiesChanged()
		}
	}
}

// controllerReady is readiness: a replica that does not lead is ready to.
func controllerReady(c *controller.Controller) func() admin.Readiness {
	started := time.Now()
	return func() admin.Readiness {
		r := admin.Readiness{Ready: c.Synced(), Version: version, StartedAt: started}
		if !r.Ready {
			r.Reason = "the cluster has not been read yet"
		}
		return r
	}
}
