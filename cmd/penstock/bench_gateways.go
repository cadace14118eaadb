// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
)

// newBenchGatewaysCommand compares gateways in front of a managed provider.
func newBenchGatewaysCommand() *cobra.Command {
	var f systemFlags
	var portkey, node string
	c := &cobra.Command{
		Use:   "gateways",
		Short: "Compare this gateway with others in front of the same managed provider",
		Long: `Compare this gateway with others in front of the same simulated provider: CPU of a
request, time added to a plain reverse proxy's, requests per second, memory. Each
is a process of its own; one run, alternating rounds. Linux only. What --portkey
does not name is left out aloud.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	f.common(fs)
	fs.StringVar(&portkey, "portkey", "", "start script of Portkey's gateway (npm @portkey-ai/gateway; default $PORTKEY)")
	fs.StringVar(&node, "node", "node", "Node.js, which runs it")
	fs.IntVar(&f.requests, "requests", 4000, "requests of a round at saturation")
	fs.DurationVar(&f.period, "period", 4*time.Second, "length of a round at --rate")
	fs.IntVar(&f.rate, "rate", 150, "requests per second; all gateways must be able to take them")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		if portkey == "" {
			portkey = os.Getenv("PORTKEY") // not a default, which would show in the reference
		}
		s, self, err := f.system(c.ErrOrStderr())
		if err != nil {
			return err
		}
		defer os.RemoveAll(s.Dir)
		s.Baseline = reverseProxy("reverse-proxy", self)
		gateways := []bench.Proxy{providerProxy(f.binary)}
		if portkey != "" {
			gateways = append(gateways, portkeyProxy(node, portkey))
		} else {
			fmt.Fprintln(c.ErrOrStderr(), "*** there is no Portkey gateway (--portkey, e2e/portkey/install.sh): it is not measured ***")
		}
		figures, err := s.GatewayCost(c.Context(), gateways)
		if err != nil {
			return err
		}
		report := bench.SystemReport{Origin: benchOrigin(), Figures: figures}
		return report.Write(c.OutOrStdout(), out)
	}
	return c
}

// portkeyProxy is Portkey's gateway, told by headers where to go.
func portkeyProxy(node, script string) bench.Proxy {
	return bench.Proxy{
		Name: "portkey",
		Command: func(at bench.Place) ([]string, error) {
			_, port, err := net.SplitHostPort(at.Listen)
			return []string{node, script, "--port=" + port, "--headless"}, err
		},
		Header: func(at bench.Place) string {
			return strings.Join([]string{
				"x-portkey-provider: openai", "x-portkey-custom-host: http://" + at.Servers[0] + "/v1", "Authorization: Bearer bench-key", "",
			}, "\r\n")
		},
	}
}
