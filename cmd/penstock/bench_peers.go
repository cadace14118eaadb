// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
)

// newBenchPeersCommand compares ways to have a picker.
func newBenchPeersCommand() *cobra.Command {
	var f systemFlags
	var envoy string
	c := &cobra.Command{
		Use:   "peers",
		Short: "Compare the picker in process, in another process, and behind Envoy",
		Long: `Compare what a pick costs in this gateway's process, in another process (Endpoint
Picker Protocol), and in another process behind Envoy: CPU of all processes
between client and server, time, and requests per second. Linux only. Envoy is
left out aloud if --envoy names none.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.binary, "binary", "", "penstock binary to measure (default this one)")
	fs.StringVar(&envoy, "envoy", os.Getenv("ENVOY"), "Envoy binary")
	fs.IntVar(&f.rounds, "rounds", 5, "rounds of each, alternating")
	fs.IntVar(&f.requests, "requests", 4000, "requests of a round at saturation")
	fs.DurationVar(&f.period, "period", 4*time.Second, "length of a round at 1,000 requests per second")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if f.binary == "" {
			f.binary = self
		}
		dir, err := os.MkdirTemp("", "penstock-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		s := &bench.System{Dir: dir, Log: c.ErrOrStderr(), Rounds: f.rounds, Requests: f.requests, Period: f.period,
			Backend: func(addresses []string, b *bench.Backend) []string {
				return []string{self, "bench", "backend", "--listen", strings.Join(addresses, ","), "--metrics-bytes", "4096"}
			}}
		peers := []bench.Proxy{
			gatewayProxy(f.binary, true),
			remoteProxy("penstock + epp, response off", self, f.binary, "off"),
			remoteProxy("penstock + epp", self, f.binary, "headers"),
			remoteProxy("penstock + epp, response full", self, f.binary, "full"),
		}
		peers[0].Name = "penstock, picker in process"
		if envoy != "" {
			peers = append(peers, envoyProxy(self, f.binary, envoy))
		} else {
			fmt.Fprintln(c.ErrOrStderr(), "*** there is no Envoy (--envoy, e2e/envoy/install.sh): it is not measured ***")
		}
		figures, err := s.PeerCost(c.Context(), peers)
		if err != nil {
			return err
		}
		report := bench.SystemReport{Origin: benchOrigin(), Figures: figures}
		return report.Write(c.OutOrStdout(), out)
	}
	return c
}

// pickerFile writes the configuration of a picker for the servers.
func pickerFile(dir, address string, servers []string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "admin: {address: \"off\"}\npools:\n  - name: bench\n    engine: vllm\n    members:\n      static:\n")
	for _, s := range servers {
		fmt.Fprintf(&b, "        - %q\n", s)
	}
	fmt.Fprintf(&b, "models:\n  - {name: bench, targets: [{pool: bench}]}\npickerListeners:\n  - {pool: bench, address: %q, health: \"off\", plaintext: true}\n", address)
	file := filepath.Join(dir, "picker.yaml")
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}

// remoteProxy is the gateway with a picker in another process.
func remoteProxy(name, self, binary, response string) bench.Proxy {
	return bench.Proxy{Name: name, Command: func(dir, listen string, servers []string) ([]string, error) {
		picker, err := freeLoopback()
		if err != nil {
			return nil, err
		}
		pickerConf, err := pickerFile(dir, picker, servers)
		if err != nil {
			return nil, err
		}
		argv, err := gatewayProxy(binary, false).Command(dir, listen, servers)
		if err != nil {
			return nil, err
		}
		file := argv[len(argv)-1]
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		remote := fmt.Sprintf("    picker: {remote: {address: %q, response: {mode: %q}}}\n    members:\n", picker, response)
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), "    members:\n", remote, 1)), 0o600); err != nil {
			return nil, err
		}
		return together(self, picker, []string{binary, "epp", "-c", pickerConf, "--metrics-port", "0"}, argv), nil
	}}
}

// envoyProxy is Envoy with our picker, configured as examples/envoy shows.
func envoyProxy(self, binary, envoy string) bench.Proxy {
	return bench.Proxy{Name: "Envoy + epp", Command: func(dir, listen string, servers []string) ([]string, error) {
		picker, err := freeLoopback()
		if err != nil {
			return nil, err
		}
		pickerConf, err := pickerFile(dir, picker, servers)
		if err != nil {
			return nil, err
		}
		text, err := envoyConfig(listen, picker, servers)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "envoy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		return together(self, picker, []string{binary, "epp", "-c", pickerConf, "--metrics-port", "0"},
			[]string{envoy, "-c", file, "--use-dynamic-base-id", "-l", "warning"}), nil
	}}
}

func envoyConfig(listen, picker string, servers []string) (string, error) {
	socket := func(address string) string {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return address
		}
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	var members strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&members, "              - endpoint: {address: %s}\n", socket(s))
	}
	return strings.NewReplacer("LISTEN", socket(listen), "PICKER", socket(picker), "MEMBERS\n", members.String()).Replace(envoyTemplate), nil
}

// envoyTemplate is examples/envoy/envoy.yaml without what a bench has no use
// for, and with a picker in plaintext.
const envoyTemplate = `static_resources:
  listeners:
    - name: public
      address: LISTEN
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: public
                route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: pool, timeout: 0s}}]}]}
                http_filters:
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service: {envoy_grpc: {cluster_name: picker}, timeout: 10s}
                      message_timeout: 1000s
                      processing_mode: {request_header_mode: SEND, request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND}
                      metadata_options: {forwarding_namespaces: {untyped: [envoy.lb]}, receiving_namespaces: {untyped: [envoy.lb]}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
    - name: pool
      type: STATIC
      load_balancing_policy:
        policies:
          - typed_extension_config:
              name: envoy.load_balancing_policies.override_host
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
                override_host_sources:
                  - header: x-gateway-destination-endpoint
                  - metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}
                selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}
                fallback_policy: {policies: [{typed_extension_config: {name: envoy.load_balancing_policies.round_robin, typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}}}]}
      load_assignment:
        cluster_name: pool
        endpoints:
          - lb_endpoints:
MEMBERS
    - name: picker
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment: {cluster_name: picker, endpoints: [{lb_endpoints: [{endpoint: {address: PICKER}}]}]}
`

func freeLoopback() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// together is the command line of bench together.
func together(self, waitFor string, first, second []string) []string {
	argv := append([]string{self, "bench", "together", "--wait-for", waitFor, "--"}, first...)
	return append(append(argv, "--and"), second...)
}

// newBenchTogetherCommand runs two programs as children of one process, so
// that they are measured as one.
func newBenchTogetherCommand() *cobra.Command {
	var waitFor string
	c := &cobra.Command{
		Use:    "together --wait-for ADDRESS -- COMMAND... --and COMMAND...",
		Short:  "Run two programs as one",
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			i := 0
			for i < len(args) && args[i] != "--and" {
				i++
			}
			if i == 0 || i+1 >= len(args) {
				return usageError("two commands are needed, with --and between them")
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runTogether(ctx, waitFor, args[:i], args[i+1:])
		},
	}
	c.Flags().StringVar(&waitFor, "wait-for", "", "address at which the first must listen before the second starts")
	return c
}

func runTogether(ctx context.Context, waitFor string, first, second []string) error {
	command := func(argv []string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stderr = os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = time.Second
		return cmd
	}
	a := command(first)
	if err := a.Start(); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- a.Wait() }()
	for {
		if conn, err := net.DialTimeout("tcp", waitFor, time.Second); err == nil {
			conn.Close()
			break
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%s ended: %w", first[0], err)
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	b := command(second)
	if err := b.Start(); err != nil {
		return err
	}
	go func() { ended <- b.Wait() }()
	err := <-ended
	if ctx.Err() != nil {
		<-ended
		return nil
	}
	return err
}
