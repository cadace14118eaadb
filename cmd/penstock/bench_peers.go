// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
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
between client and server, time, requests per second, and memory. Linux only.
Envoy is left out aloud if --envoy names none.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.binary, "binary", "", "penstock binary to measure (default this one)")
	fs.StringSliceVar(&f.measures, "measure", []string{"cost", "memory"}, "measurements to run")
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
			Baseline: reverseProxy("reverse-proxy", self),
			Backend: func(addresses []string, b *bench.Backend) []string {
				return []string{self, "bench", "backend", "--listen", strings.Join(addresses, ","), "--interval", b.Interval.String(), "--metrics-bytes", "4096"}
			}}
		inProcess := gatewayProxy(f.binary, true)
		inProcess.Name = "penstock, picker in process"
		off, usual := remoteProxy("penstock + epp, response off", f.binary, "off"), remoteProxy("penstock + epp", f.binary, "headers")
		peers := []bench.Peer{
			{Proxy: inProcess},
			{Proxy: off, Ask: bench.BudgetAskOff, Pick: bench.BudgetPick, Timed: true},
			{Proxy: usual, Ask: bench.BudgetAskDefault, Timed: true},
			{Proxy: remoteProxy("penstock + epp, response full", f.binary, "full")},
		}
		if envoy != "" {
			peers = append(peers, bench.Peer{Proxy: envoyProxy(f.binary, envoy)})
		} else {
			fmt.Fprintln(c.ErrOrStderr(), "*** there is no Envoy (--envoy, e2e/envoy/install.sh): it is not measured ***")
		}
		report := bench.SystemReport{Origin: benchOrigin()}
		for _, m := range f.measures {
			run, ok := map[string]func() ([]bench.Figure, error){
				"cost":   func() ([]bench.Figure, error) { return s.PeerCost(c.Context(), peers) },
				"memory": func() ([]bench.Figure, error) { return s.PeerMemory(c.Context(), []bench.Proxy{off, usual}) },
			}[m]
			if !ok {
				return fmt.Errorf("--measure %q: cost and memory are known", m)
			}
			figures, err := run()
			if err != nil {
				return err
			}
			report.Figures = append(report.Figures, figures...)
		}
		return report.Write(c.OutOrStdout(), out)
	}
	return c
}

// pickerProgram is our picker for the servers.
func pickerProgram(binary string) func(at bench.Place) ([]string, error) {
	return func(at bench.Place) ([]string, error) {
		var b strings.Builder
		fmt.Fprintf(&b, "admin: {address: \"off\"}\npools:\n  - name: bench\n    engine: vllm\n    members:\n      static:\n")
		for _, s := range at.Servers {
			fmt.Fprintf(&b, "        - %q\n", s)
		}
		fmt.Fprintf(&b, "models:\n  - {name: bench, targets: [{pool: bench}]}\npickerListeners:\n  - {pool: bench, address: %q, health: \"off\", plaintext: true}\n", at.Picker)
		file := filepath.Join(at.Dir, "picker.yaml")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			return nil, err
		}
		return []string{binary, "epp", "-c", file, "--metrics-port", "0"}, nil
	}
}

// remoteProxy is the gateway with a picker in another process.
func remoteProxy(name, binary, response string) bench.Proxy {
	return bench.Proxy{Name: name, Picker: pickerProgram(binary), Command: func(at bench.Place) ([]string, error) {
		argv, err := gatewayProxy(binary, false).Command(at)
		if err != nil {
			return nil, err
		}
		file := argv[len(argv)-1]
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		remote := fmt.Sprintf("    picker: {remote: {address: %q, response: {mode: %q}}}\n    members:\n", at.Picker, response)
		return argv, os.WriteFile(file, []byte(strings.Replace(string(text), "    members:\n", remote, 1)), 0o600)
	}}
}

// envoyProxy is Envoy with our picker, configured as examples/envoy shows.
func envoyProxy(binary, envoy string) bench.Proxy {
	return bench.Proxy{Name: "Envoy + epp", Picker: pickerProgram(binary), Command: func(at bench.Place) ([]string, error) {
		text, err := envoyConfig(at.Listen, at.Picker, at.Servers)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(at.Dir, "envoy.yaml")
		return []string{envoy, "-c", file, "--use-dynamic-base-id", "-l", "warning"}, os.WriteFile(file, []byte(text), 0o600)
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
