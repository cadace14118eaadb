// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
)

func newBenchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure picking policies, a gateway under load, or its own cost",
		Long: `race runs picking policies against each other in virtual time; load drives a
running gateway or server over HTTP; system measures the gateway as a process
against a plain reverse proxy. Progress goes to standard error, the report to
standard output.`,
	}
	c.AddCommand(newBenchRaceCommand(), newBenchLoadCommand(), newBenchSystemCommand(), newBenchPeersCommand(), newBenchGatewaysCommand(),
		newBenchReverseProxyCommand(), newBenchBackendCommand())
	return c
}

// benchOrigin names the version that the linker set, which package bench does
// not know.
func benchOrigin() bench.Origin {
	o := bench.ThisProgram()
	o.Version = thisBuild().Version
	return o
}

// benchFormat adds the flag -o.
func benchFormat(c *cobra.Command) func() (bench.Format, error) {
	name := c.Flags().StringP("output", "o", string(bench.Text), "table, markdown or json")
	return func() (bench.Format, error) { return bench.ParseFormat(*name) }
}

// benchWorkload finds a workload, or says which there are.
func benchWorkload(name string) (bench.Workload, error) {
	w, ok := bench.WorkloadNamed(name)
	if !ok {
		var names []string
		for _, w := range bench.Workloads() {
			names = append(names, w.Name)
		}
		return w, usageError("no workload %q; there are %s", name, strings.Join(names, ", "))
	}
	return w, nil
}

// loadFlags are the flags of bench load besides those of [bench.Load].
type loadFlags struct {
	workload    string
	headers     []string
	openStreams int
	hold        time.Duration
}

func newBenchLoadCommand() *cobra.Command {
	var l bench.Load
	var f loadFlags
	c := &cobra.Command{
		Use:   "load --url URL --model NAME",
		Short: "Drive a gateway or server with sessions of a workload over HTTP",
		Long: `Drive a gateway or a server with sessions of a workload over HTTP and report
what came of it. Exit code 1 if a request failed.

An answer counts as untruthful when it hid that it broke off: it ended without
its proper end and without an error. TTFT, the time to the first token, and
TPOT, the time per further token, are measured with --stream; without it TTFT
is the time to the answer.`,
		Args: cobra.NoArgs,
		Example: `  penstock bench load --url http://127.0.0.1:8080 --model chat --workload 2-chat --concurrency 16 --requests 500 --stream
  penstock bench load --url http://127.0.0.1:8080 --model chat --open-streams 1000 --hold 30s --max-output 30000`,
	}
	fs := c.Flags()
	fs.StringVar(&l.URL, "url", "http://127.0.0.1:8080", "base of the API, with or without /v1")
	fs.StringVar(&l.Model, "model", "", "model to ask for")
	fs.StringVar(&f.workload, "workload", "2-chat", "workload; penstock bench race --list has them")
	fs.Uint64Var(&l.Seed, "seed", 1, "seed of the sessions")
	fs.BoolVar(&l.Stream, "stream", false, "ask for streams")
	fs.BoolVar(&l.Legacy, "completions", false, "use /v1/completions")
	fs.StringArrayVar(&f.headers, "header", nil, "NAME: VALUE to send, may be repeated")
	fs.IntVar(&l.Concurrency, "concurrency", 0, "sessions at a time, each next one when one ends (default 8 unless --rate)")
	fs.Float64Var(&l.Rate, "rate", 0, "requests per second, started on time however slow the answers")
	fs.Float64Var(&l.Think, "think", 0, "factor on the users' pauses; 0 is none")
	fs.IntVar(&l.Requests, "requests", 0, "end after so many")
	fs.DurationVar(&l.Duration, "duration", 0, "begin nothing new after it (default 30s unless --requests)")
	fs.DurationVar(&l.FirstByte, "first-byte", time.Minute, "longest wait for an answer to begin")
	fs.IntVar(&l.MaxOutput, "max-output", 0, "most tokens to ask for; 0 is as the workload says, with --open-streams a million")
	fs.IntVar(&f.openStreams, "open-streams", 0, "instead, open so many streams and hold them")
	fs.DurationVar(&f.hold, "hold", 10*time.Second, "how long to hold the streams of --open-streams")
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		if l.Model == "" {
			return usageError("--model is missing; GET %s/v1/models lists the names", l.URL)
		}
		l.URL = strings.TrimSuffix(strings.TrimRight(l.URL, "/"), "/v1") // as clients write it
		if f.openStreams > 0 {
			return runStreams(c, &l, f, out)
		}
		return runLoad(c, &l, f, out)
	}
	return c
}

func runLoad(c *cobra.Command, l *bench.Load, f loadFlags, out bench.Format) error {
	var err error
	if l.Workload, err = benchWorkload(f.workload); err != nil {
		return err
	}
	if l.Rate > 0 && l.Concurrency > 0 {
		return usageError("--rate and --concurrency exclude each other")
	}
	if l.Rate == 0 && l.Concurrency == 0 {
		l.Concurrency = 8
	}
	if l.Requests == 0 && l.Duration == 0 {
		l.Duration = 30 * time.Second
	}
	l.Header = http.Header{}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return usageError("--header %q: want NAME: VALUE", h)
		}
		l.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	l.Progress = func(done, failed int) {
		if done%100 == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "%d done, %d failed\n", done, failed)
		}
	}
	r := bench.LoadReport{Origin: benchOrigin(), LoadResult: l.Do(c.Context())}
	if err := r.Write(c.OutOrStdout(), out); err != nil {
		return err
	}
	if n := r.Requests - r.Succeeded; n > 0 {
		return fmt.Errorf("%d of %d requests failed", n, r.Requests)
	}
	return nil
}

func runStreams(c *cobra.Command, l *bench.Load, f loadFlags, out bench.Format) error {
	s := bench.Streams{URL: l.URL, Model: l.Model, N: f.openStreams, Hold: f.hold, Output: l.MaxOutput, Progress: func(open, failed int) {
		if open%1000 == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "%d open, %d failed\n", open, failed)
		}
	}}
	result, err := s.Do(c.Context())
	if err != nil {
		return err
	}
	r := bench.StreamsReport{Origin: benchOrigin(), StreamsResult: result}
	if err := r.Write(c.OutOrStdout(), out); err != nil {
		return err
	}
	if r.Held < r.Asked {
		return fmt.Errorf("%d of %d streams were still open at the end", r.Held, r.Asked)
	}
	return nil
}

func newBenchReverseProxyCommand() *cobra.Command {
	var listen string
	var servers []string
	c := &cobra.Command{
		Use:    "reverse-proxy --listen ADDRESS --server ADDRESS,…",
		Short:  "run the plain reverse proxy that bench system compares with",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			return bench.ReverseProxy(c.Context(), l, servers)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen at")
	c.Flags().StringSliceVar(&servers, "server", nil, "servers to spread requests over")
	return c
}

func newBenchBackendCommand() *cobra.Command {
	var b bench.Backend
	var listen []string
	c := &cobra.Command{
		Use:    "backend --listen ADDRESS,…",
		Short:  "run the constant server that bench system measures with",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			listeners, err := listenAll(c.Context(), listen)
			if err != nil {
				return err
			}
			return b.Serve(c.Context(), listeners)
		},
	}
	fs := c.Flags()
	fs.StringSliceVar(&listen, "listen", nil, "addresses to listen at")
	fs.IntVar(&b.AnswerBytes, "answer-bytes", 1024, "of a JSON answer")
	fs.IntVar(&b.ChunkBytes, "chunk-bytes", 160, "of an event of a stream")
	fs.IntVar(&b.Chunks, "chunks", 0, "of a stream; 0 is without end")
	fs.DurationVar(&b.Interval, "interval", 10*time.Millisecond, "between chunks")
	fs.IntVar(&b.MetricsBytes, "metrics-bytes", 4096, "of the metrics page")
	return c
}

func listenAll(ctx context.Context, addresses []string) ([]net.Listener, error) {
	var out []net.Listener
	var lc net.ListenConfig
	for _, a := range addresses {
		l, err := lc.Listen(ctx, "tcp", a)
		if err != nil {
			for _, l := range out {
				l.Close()
			}
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}
