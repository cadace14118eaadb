// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/bench"
)

// systemFlags are the flags of bench system.
type systemFlags struct {
	binary   string
	subject  string
	measures []string
	check    bool
	rounds   int
	requests int
	streams  int
	rate     int
	period   time.Duration
}

// common adds the flags that bench peers has too.
func (f *systemFlags) common(fs *pflag.FlagSet) {
	fs.StringVar(&f.binary, "binary", "", "penstock binary to measure (default this one)")
	fs.IntVar(&f.rounds, "rounds", 5, "rounds of each program, alternating")
}

// system is the bench without what is measured, in a folder that the caller
// removes, and this program.
func (f *systemFlags) system(log io.Writer) (s *bench.System, self string, err error) {
	if self, err = os.Executable(); err != nil {
		return nil, "", err
	}
	f.binary = cmp.Or(f.binary, self)
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, "", err
	}
	return &bench.System{
		Dir: dir, Log: log, Rounds: f.rounds, Requests: f.requests, Streams: f.streams, Period: f.period, Rate: f.rate,
		Backend: func(addresses []string, b *bench.Backend) []string {
			return []string{self, "bench", "backend", "--listen", strings.Join(addresses, ","),
				"--chunks", fmt.Sprint(b.Chunks), "--interval", b.Interval.String(), "--metrics-bytes", fmt.Sprint(max(b.MetricsBytes, 4096))}
		},
	}, self, nil
}

func newBenchSystemCommand() *cobra.Command {
	var f systemFlags
	c := &cobra.Command{
		Use:   "system",
		Short: "Measure the gateway as a process: CPU per request and chunk, memory of streams, scraping",
		Long: `Every program runs as a process of its own on this machine, in front of the same
servers, in alternating rounds; CPU time is what the kernel charged to it. nginx
is measured too if it is installed. Linux only.`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	f.common(fs)
	fs.IntVar(&f.requests, "requests", 4000, "requests in a round")
	fs.StringVar(&f.subject, "subject", "penstock", "penstock, or reverse-proxy to try the bench itself")
	fs.StringSliceVar(&f.measures, "measure", []string{"request", "provider", "accounting", "chunk", "streams", "scrape"}, "measurements to run; ledger too, of PostgreSQL at $"+ledgerDSN)
	fs.IntVar(&f.rate, "rate", 1000, "requests a second, of ledger")
	fs.BoolVar(&f.check, "check", false, "fail when a figure is over its budget")
	fs.IntVar(&f.streams, "streams", 9000, "streams to hold open")
	fs.DurationVar(&f.period, "period", 0, "length of a round of streams and of scraping (default 5s and 20s)")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		return runSystem(c, &f, out)
	}
	return c
}

func runSystem(c *cobra.Command, f *systemFlags, out bench.Format) error {
	s, self, err := f.system(c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer os.RemoveAll(s.Dir)
	s.Subject, s.Quiet, s.Baseline = gatewayProxy(f.binary, true), gatewayProxy(f.binary, false), reverseProxy("reverse-proxy", self)
	s.Provider, s.Accounting = providerProxy(f.binary, ""), providerProxy(f.binary, accounted)
	limited, _, _ := strings.Cut(accounted, "ledger:")
	s.NoLedger, s.Ledger = providerProxy(f.binary, limited), providerProxy(f.binary, limited+"ledger: {dsn: \"${"+ledgerDSN+"}\", spool: \"DIR/spool\"}\n")
	s.Ledger.Name, s.NoLedger.Name = "postgres", "without"
	for _, p := range []*bench.Proxy{&s.Accounting, &s.Ledger, &s.NoLedger} {
		p.Header = func(bench.Place) string { return "Authorization: Bearer bench\r\n" }
	}
	if os.Getenv(ledgerDSN) == "" && slices.Contains(f.measures, "ledger") {
		return fmt.Errorf("--measure ledger: set %s to the address of an empty PostgreSQL database", ledgerDSN)
	}
	switch f.subject {
	case "penstock":
	case "reverse-proxy":
		s.Subject, s.Quiet = reverseProxy("subject", self), bench.Proxy{}
	default:
		return fmt.Errorf("--subject %q: penstock or reverse-proxy", f.subject)
	}
	if nginx, err := exec.LookPath("nginx"); err == nil {
		s.Others = append(s.Others, nginxProxy(nginx))
	} else {
		fmt.Fprintln(c.ErrOrStderr(), "nginx is not installed and not measured")
	}
	// A child keeps the limit of open files that is set here: each stream
	// takes two in a gateway.
	if _, err := bench.RaiseFileLimit(uint64(2*f.streams + 500)); err != nil && slices.Contains(f.measures, "streams") {
		return err
	}
	report := bench.SystemReport{Origin: benchOrigin()}
	for _, m := range f.measures {
		run, ok := map[string]func() ([]bench.Figure, error){
			"request":    func() ([]bench.Figure, error) { return s.RequestCost(c.Context()) },
			"provider":   func() ([]bench.Figure, error) { return s.ProviderCost(c.Context()) },
			"accounting": func() ([]bench.Figure, error) { return s.AccountingCost(c.Context()) },
			"ledger":     func() ([]bench.Figure, error) { return s.LedgerWait(c.Context()) },
			"chunk":      func() ([]bench.Figure, error) { return s.ChunkCost(c.Context()) },
			"streams":    func() ([]bench.Figure, error) { return s.StreamMemory(c.Context()) },
			"scrape":     func() ([]bench.Figure, error) { return s.ScrapeCost(c.Context()) },
		}[m]
		if !ok {
			return fmt.Errorf("--measure %q: request, provider, accounting, ledger, chunk, streams and scrape are known", m)
		}
		figures, err := run()
		if err != nil {
			return err
		}
		report.Figures = append(report.Figures, figures...)
	}
	if err := report.Write(c.OutOrStdout(), out); err != nil {
		return err
	}
	if f.check && report.Over() {
		return fmt.Errorf("a figure is over its budget")
	}
	return nil
}

// gatewayProxy runs the gateway with the default profile, metrics and records
// on, as a user would; without scraping where that is measured apart.
func gatewayProxy(binary string, scrape bool) bench.Proxy {
	return bench.Proxy{Name: "penstock", Command: func(at bench.Place) ([]string, error) {
		file := filepath.Join(at.Dir, "penstock.yaml")
		var b strings.Builder
		fmt.Fprintf(&b, "listeners:\n  - {name: bench, address: %q, anonymous: true}\n", at.Listen)
		fmt.Fprintf(&b, "admin: {address: \"off\"}\n")
		fmt.Fprintf(&b, "pools:\n  - name: bench\n    engine: vllm\n    metrics: {off: %v}\n    members:\n      static:\n", !scrape)
		for _, s := range at.Servers {
			fmt.Fprintf(&b, "        - %q\n", s)
		}
		fmt.Fprintf(&b, "models:\n  - name: bench\n    targets: [{pool: bench}]\n")
		fmt.Fprintf(&b, "records: {path: %q}\n", filepath.Join(at.Dir, "records.jsonl"))
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			return nil, err
		}
		return []string{binary, "run", "-c", file}, nil
	}}
}

// providerProxy runs the gateway with a key and a model at a provider, which the
// first server stands for. further are lines of the configuration, in which DIR is
// a folder; with them it asks for keys.
func providerProxy(binary, further string) bench.Proxy {
	return bench.Proxy{Name: "penstock", Command: func(at bench.Place) ([]string, error) {
		file := filepath.Join(at.Dir, "penstock-provider.yaml")
		text := fmt.Sprintf(`listeners: [{name: bench, address: %q, anonymous: %v}]
admin: {address: "off"}
providers: [{name: bench, baseURL: "http://%s/v1", credentials: [{secret: bench-key}]}]
models: [{name: bench, targets: [{provider: bench, model: bench-1}]}]
records: {path: %q}
%s`, at.Listen, further == "", at.Servers[0], filepath.Join(at.Dir, "records.jsonl"), strings.ReplaceAll(further, "DIR", at.Dir))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		return []string{binary, "run", "-c", file}, nil
	}}
}

// ledgerDSN names the variable with the database to measure: an address may have a
// password.
const ledgerDSN = "PENSTOCK_BENCH_DSN"

// accounted has limits on four levels, prices and a ledger. The hash is that of the
// key "bench".
const accounted = `
tenants:
  - {name: bench, limits: [{usd: 1000000, per: month}]}
  - {name: team, parent: bench, limits: [{tokens: 1000000000, per: 1m}]}
  - {name: project, parent: bench/team, limits: [{concurrency: 1000}], keys: [{name: key, hash: "sha256:1b32c28cb38c05480eccc1bd60ff97029b57a05c96718b96dad7e9d84894f549", limits: [{requests: 10000000, per: 1m}]}]}
prices: {table: [{provider: bench, model: bench-1, rates: {input: 1, output: 4}}]}
ledger: {path: "DIR/ledger.db"}
`

func reverseProxy(name, self string) bench.Proxy {
	return bench.Proxy{Name: name, Command: func(at bench.Place) ([]string, error) {
		return []string{self, "bench", "reverse-proxy", "--listen", at.Listen, "--server", strings.Join(at.Servers, ",")}, nil
	}}
}

// nginxProxy runs nginx in the foreground with one worker and connections to
// the servers kept.
func nginxProxy(binary string) bench.Proxy {
	return bench.Proxy{Name: "nginx", Command: func(at bench.Place) ([]string, error) {
		dir := at.Dir
		var b strings.Builder
		fmt.Fprintf(&b, "daemon off;\nworker_processes 1;\nworker_rlimit_nofile 20000;\npid %s/nginx.pid;\nerror_log stderr warn;\n", dir)
		fmt.Fprintf(&b, "events { worker_connections 10000; }\nhttp {\n  access_log off;\n")
		for _, t := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			fmt.Fprintf(&b, "  %s_temp_path %s/%s;\n", t, dir, t)
		}
		fmt.Fprintf(&b, "  keepalive_requests 1000000;\n  upstream servers {\n")
		for _, s := range at.Servers {
			fmt.Fprintf(&b, "    server %s;\n", s)
		}
		fmt.Fprintf(&b, "    keepalive 1024;\n    keepalive_requests 1000000;\n  }\n  server {\n    listen %s;\n    location / {\n", at.Listen)
		fmt.Fprintf(&b, "      proxy_pass http://servers;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }\n  }\n}\n")
		file := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			return nil, err
		}
		return []string{binary, "-p", dir, "-c", file}, nil
	}}
}
