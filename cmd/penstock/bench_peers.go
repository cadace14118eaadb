// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
)

// newBenchPeersCommand compares ways to have a picker.
func newBenchPeersCommand() *cobra.Command {
	var f systemFlags
	var envoy, example string
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
	f.common(fs)
	fs.StringSliceVar(&f.measures, "measure", []string{"cost", "memory"}, "measurements to run")
	fs.StringVar(&envoy, "envoy", "", "Envoy binary (default $ENVOY)")
	fs.StringVar(&example, "envoy-config", "examples/envoy/envoy.yaml", "the example that Envoy is configured by")
	fs.IntVar(&f.requests, "requests", 4000, "requests of a round at saturation")
	fs.DurationVar(&f.period, "period", 4*time.Second, "length of a round at --rate")
	fs.IntVar(&f.rate, "rate", 1000, "requests per second; the budgets of time are for 1,000 where a reverse proxy takes 80 us of CPU")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		envoy = cmp.Or(envoy, os.Getenv("ENVOY")) // not a default, which would show in the reference
		s, self, err := f.system(c.ErrOrStderr())
		if err != nil {
			return err
		}
		defer os.RemoveAll(s.Dir)
		s.Baseline = reverseProxy("reverse-proxy", self)
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
			peers = append(peers, bench.Peer{Proxy: envoyProxy(f.binary, envoy, example), Multiple: 5})
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

// envoyProxy is Envoy with our picker, configured by the example.
func envoyProxy(binary, envoy, example string) bench.Proxy {
	return bench.Proxy{Name: "Envoy + epp", Picker: pickerProgram(binary), Command: func(at bench.Place) ([]string, error) {
		text, err := envoyConfig(example, at.Listen, at.Picker, at.Servers)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(at.Dir, "envoy.yaml")
		return []string{envoy, "-c", file, "--use-dynamic-base-id", "-l", "warning"}, os.WriteFile(file, []byte(text), 0o600)
	}}
}

// envoyConfig is the example with these addresses, and with a picker in
// plaintext.
func envoyConfig(example, listen, picker string, servers []string) (string, error) {
	text, err := os.ReadFile(example)
	if err != nil {
		return "", fmt.Errorf("%w; run this in the repository, or name the file with --envoy-config", err)
	}
	socket := func(address string) string {
		host, port, _ := net.SplitHostPort(address)
		return fmt.Sprintf("{address: %s, port_value: %s}", host, port)
	}
	var members strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&members, "              - endpoint: {address: {socket_address: %s}}\n", socket(s))
	}
	out := string(text)
	for _, edit := range []struct{ old, new string }{
		{`\{address: 127\.0\.0\.1, port_value: 10000\}`, socket(listen)},
		{`\{address: 127\.0\.0\.1, port_value: 10001\}`, socket("127.0.0.1:0")}, // of Envoy's administration
		{`\{address: 127\.0\.0\.1, port_value: 9002\}`, socket(picker)},
		{`(?m)(^ *- endpoint: .*port_value: 80\d\d\b.*\n)+`, members.String()},
		{`(?m)^      transport_socket:.*\n(        .*\n)+`, ""},
	} {
		found := regexp.MustCompile(edit.old).FindAllStringIndex(out, -1)
		if len(found) != 1 {
			return "", fmt.Errorf("%s matches %q %d times, not once", example, edit.old, len(found))
		}
		out = out[:found[0][0]] + edit.new + out[found[0][1]:]
	}
	return out, nil
}
