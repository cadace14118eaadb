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

// newBenchGatewaysCommand compares gateways in front of a managed provider.
func newBenchGatewaysCommand() *cobra.Command {
	var f systemFlags
	var portkey, node, litellm string
	c := &cobra.Command{
		Use:   "gateways",
		Short: "Compare this gateway with others in front of the same managed provider",
		Long: `Compare this gateway with others in front of the same simulated provider: CPU of a
request, time added to a plain reverse proxy's, requests per second, memory. Each
is a process of its own; one run, alternating rounds. Linux only. What --portkey
and --litellm do not name is left out aloud.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	f.common(fs)
	fs.StringVar(&portkey, "portkey", "", "start script of Portkey's gateway (npm @portkey-ai/gateway; default $PORTKEY)")
	fs.StringVar(&node, "node", "node", "Node.js, which runs it")
	fs.StringVar(&litellm, "litellm", "", "program of LiteLLM's proxy (PyPI litellm[proxy]; default $LITELLM)")
	fs.IntVar(&f.requests, "requests", 1500, "requests of a round at saturation")
	fs.DurationVar(&f.period, "period", 4*time.Second, "length of a round at --rate")
	fs.IntVar(&f.rate, "rate", 25, "requests per second; all gateways must be able to take them")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		if portkey == "" {
			portkey = os.Getenv("PORTKEY") // not a default, which would show in the reference
		}
		if litellm == "" {
			litellm = os.Getenv("LITELLM")
		}
		s, self, err := f.system(c.ErrOrStderr())
		if err != nil {
			return err
		}
		defer os.RemoveAll(s.Dir)
		s.Baseline = reverseProxy("reverse-proxy", self)
		gateways := []bench.Proxy{providerProxy(f.binary, "")}
		if portkey != "" {
			gateways = append(gateways, portkeyProxy(node, portkey))
		} else {
			fmt.Fprintln(c.ErrOrStderr(), "*** there is no Portkey gateway (--portkey, e2e/portkey/install.sh): it is not measured ***")
		}
		if litellm != "" {
			gateways = append(gateways, litellmProxy(litellm))
		} else {
			fmt.Fprintln(c.ErrOrStderr(), "*** there is no LiteLLM proxy (--litellm, e2e/litellm/install.sh): it is not measured ***")
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

// litellmProxy is LiteLLM's proxy with one worker and no database, logging
// errors only. It sees nothing of this process's environment.
func litellmProxy(program string) bench.Proxy {
	return bench.Proxy{
		Name: "litellm",
		Command: func(at bench.Place) ([]string, error) {
			host, port, err := net.SplitHostPort(at.Listen)
			if err != nil {
				return nil, err
			}
			file := filepath.Join(at.Dir, "litellm.yaml")
			text := fmt.Sprintf(`model_list:
  - model_name: bench
    litellm_params: {model: openai/bench, api_base: "http://%s/v1", api_key: bench-key}
litellm_settings: {telemetry: false, set_verbose: false}
`, at.Servers[0])
			return []string{"env", "-i", "PATH=/usr/bin:/bin", "HOME=" + at.Dir, "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True",
				program, "--config", file, "--host", host, "--port", port, "--num_workers", "1", "--telemetry", "False"}, os.WriteFile(file, []byte(text), 0o600)
		},
	}
}
