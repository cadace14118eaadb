// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/sim"
)

// The demo's shape: four servers whose caches hold a part of the shared
// prompts each and all of them together, so that it matters who gets what.
const (
	demoServers     = 4
	demoModel       = "demo-8b"
	demoBlocks      = 5000 // 80,000 tokens a server, a quarter of the preset's
	demoRequests    = 320  // per picker
	demoConcurrency = 24
	demoLimit       = 25 * time.Second // per picker
)

type demo struct {
	once     bool
	requests int
	out      io.Writer // results
	progress io.Writer
	gateway  *gateway
	servers  []*sim.Server
	members  []string // their addresses, quoted
	rate     float64  // of the requests that go on afterwards
	proxy    string   // addresses
	admin    string
	dir      string // of the ledger and the store of keys, removed at the end
}

func newDemoCommand() *cobra.Command {
	d := &demo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the gateway at work in front of simulated model servers",
		Long: `Show the gateway at work in front of simulated model servers, in one process.

Starts four simulated servers, the gateway on 127.0.0.1:8080 and its admin
interface on 127.0.0.1:9901 (or the next free ports), and drives the same
conversations with shared prompts twice: picked round-robin, then picked by the
default profile. Prints what each came to, then stays up to be tried, with a
little traffic of two tenants to be watched in the console.

With --once it ends after the table: exit 1 if a request failed or if the
default profile saved no prefill tokens against round-robin. Tokens decide;
times are shown and judge nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			d.out, d.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return d.run(ctx)
		},
	}
	cmd.Flags().BoolVar(&d.once, "once", false, "end after the table")
	cmd.Flags().Float64Var(&d.rate, "rate", demoRate, "requests per second that go on afterwards; 0: none")
	cmd.Flags().IntVar(&d.requests, "requests", demoRequests, "requests per picker")
	return quiet(cmd)
}

// demoResult is what one picker came to.
type demoResult struct {
	profile string
	load    *bench.LoadResult
	spread  float64 // most requests on a server / median
}

func (d *demo) run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(d.progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	dir, err := os.MkdirTemp("", "penstock-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d.dir = dir
	d.gateway = newGateway(log, "")
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		d.gateway.close(end)
		stopServers(d.servers)
	}()
	if d.proxy, err = freeAddress(8080); err != nil {
		return err
	}
	if d.admin, err = freeAddress(9901); err != nil {
		return err
	}
	fmt.Fprintf(d.progress, "%d simulated model servers and a gateway in this process; %d requests for each of two pickers, at most %s each.\n",
		demoServers, d.requests, demoLimit)
	var results []demoResult
	for _, profile := range []string{"round-robin", "default"} {
		r, err := d.race(ctx, profile)
		if err != nil {
			return err
		}
		results = append(results, *r)
	}
	d.table(results)
	if err := d.judge(results); err != nil {
		return err
	}
	if err := d.tryIt(ctx); err != nil || d.once {
		return err
	}
	if err := d.goOn(ctx); err != nil {
		return err
	}
	fmt.Fprintln(d.progress, "\nending")
	return nil
}

// configuration is that of the gateway with one profile; more is further keys.
func (d *demo) configuration(profile, more string) string {
	return fmt.Sprintf(`
listeners: [{name: demo, address: %q, anonymous: true, debugHeaders: true}]
admin: {address: %q}
ledger: {path: %q, interval: 100ms}
keys: {store: sqlite, path: %q, pepper: of the demo alone}
pools:
  - name: demo
    members: {static: [%s]}
    engine: vllm
    picker: {profile: %s}
%s
`, d.proxy, d.admin, filepath.Join(d.dir, "ledger.db"), filepath.Join(d.dir, "keys.db"), strings.Join(d.members, ", "), profile, more)
}

// race starts fresh servers and drives the conversations through the gateway
// with one profile.
func (d *demo) race(ctx context.Context, profile string) (*demoResult, error) {
	before := d.servers
	d.servers = nil
	preset := sim.Llama8B()
	preset.NumBlocks = demoBlocks
	var members []string
	for i := range demoServers {
		s := sim.New(sim.Config{Name: "server-" + strconv.Itoa(i+1), Model: demoModel, Preset: preset, Seed: uint64(i)})
		d.servers = append(d.servers, s)
		addr, err := s.Listen("127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		members = append(members, strconv.Quote(addr))
	}
	d.members = members
	cfg, err := config.Parse("demo.yaml", []byte(d.configuration(profile, demoModels+"tenants: [{name: demo}]")))
	if err == nil {
		err = d.gateway.reload(cfg, nil)
	}
	stopServers(before) // after the reload, so that nobody asks them any more
	if err != nil {
		return nil, err
	}
	p := newProgress(d.progress, fmt.Sprintf("%-12s", profile), d.requests)
	load := &bench.Load{
		URL: "http://" + d.proxy, Model: "demo", Workload: demoWorkload(), Seed: 1, Stream: true,
		Concurrency: demoConcurrency, Requests: d.requests, Duration: demoLimit, Progress: p.step,
	}
	r := &demoResult{profile: profile, load: load.Do(ctx)}
	p.end()
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	var counts []float64
	for _, s := range d.servers {
		counts = append(counts, float64(s.Stats().Requests))
	}
	slices.Sort(counts)
	if m := (counts[1] + counts[2]) / 2; m > 0 {
		r.spread = counts[len(counts)-1] / m
	}
	return r, nil
}

// demoWorkload is conversations of a few turns; each of 32 groups of them
// begins with the same 6,000 tokens.
func demoWorkload() bench.Workload {
	return bench.Workload{
		Name: "demo", Rate: 40, Window: time.Minute, Servers: demoServers,
		Sources: []bench.Source{{
			Class: "chat", Share: 1, Kind: bench.Chat, Groups: 32,
			Shared: bench.Length{Min: 6000, Max: 6000}, Own: bench.Length{Min: 60, Max: 200}, Output: bench.Length{Min: 20, Max: 60},
			MinTurns: 2, MaxTurns: 6, MaxContext: 12000, PerSession: 4,
		}},
	}
}

func stopServers(servers []*sim.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, s := range servers {
		s.Close(ctx)
	}
}

func (d *demo) table(results []demoResult) {
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "picker\trequests\tfailed\tTTFT p50\tTTFT p90\tprompt tokens from cache\toutput tokens/s\tmost/median load\t")
	for _, r := range results {
		l := r.load
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%.0f %%\t%.0f\t%.2f\t\n", r.profile, l.Requests, l.Requests-l.Succeeded,
			milliseconds(l.TTFT.P50), milliseconds(l.TTFT.P90),
			100*float64(l.CachedTokens)/float64(max(1, l.PromptTokens)), l.OutputRate, r.spread)
	}
	fmt.Fprintln(d.out)
	w.Flush()
	fmt.Fprintf(d.out, `
TTFT is the time to the first token; load is the requests that a server got. Each server simulates an 8B model
on one H100 with a KV cache of %d tokens. Both pickers had the same conversations.
`, demoBlocks*16)
}

func milliseconds(s float64) string { return fmt.Sprintf("%.0f ms", s*1000) }

// judge is the verdict of --once.
func (d *demo) judge(results []demoResult) error {
	robin, ours := results[0].load, results[1].load
	for _, r := range results {
		if failed := r.load.Requests - r.load.Succeeded; failed > 0 {
			return fmt.Errorf("%d requests failed with picker %s, for example: %s", failed, r.profile, r.load.Example)
		}
	}
	computed := func(l *bench.LoadResult) float64 {
		return float64(l.PromptTokens-l.CachedTokens) / float64(max(1, l.Requests))
	}
	if computed(ours) >= computed(robin) {
		return fmt.Errorf("the default profile saved no prefill: %.0f prompt tokens computed per request, %.0f with round-robin", computed(ours), computed(robin))
	}
	fmt.Fprintf(d.out, "Prompt tokens that had to be computed, per request: %.0f with the default profile, %.0f with round-robin.\n", computed(ours), computed(robin))
	return nil
}

// tryIt sends two requests as a person would, shows why the second went where
// it went, and says what to type next.
func (d *demo) tryIt(ctx context.Context) error {
	document := strings.Repeat("A penstock is a sluice or gate that controls the flow of water to a wheel or a turbine. ", 100)
	var server, content string
	for i, question := range []string{"What is it?", "Where is it used?"} {
		var err error
		if server, content, err = d.ask(ctx, fmt.Sprintf("demo-%d", i+1), document+question); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.out, "\nTwo questions on one long document. The second was answered by %s: %q\n", server, content)
	if x := d.gateway.findPick("demo-2"); x != nil {
		fmt.Fprint(d.out, "Why there:\n\n")
		if err := x.Table(d.out); err != nil {
			return err
		}
	}
	if d.once {
		return nil
	}
	flag := ""
	if d.admin != "127.0.0.1:9901" {
		flag = " --admin " + d.admin
	}
	fmt.Fprintf(d.out, `
The gateway listens on http://%[1]s. Its console is at http://%[2]s/console/ for a browser.
Try in another terminal:

  curl -N http://%[1]s/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Request-Id: mine' \
    -d '{"model": "demo", "stream": true, "max_tokens": 40, "messages": [{"role": "user", "content": "Hello"}]}'
  %[3]s explain mine%[4]s
  %[3]s get members%[4]s
  %[3]s get picks%[4]s
  %[3]s usage --by model,account%[4]s
  %[3]s keys create mine%[4]s
  curl http://%[2]s/metrics

Ctrl-C ends it.
`, d.proxy, d.admin, cmp.Or(os.Args[0], "penstock"), flag)
	return nil
}

// ask sends a chat request and returns who answered and what.
func (d *demo) ask(ctx context.Context, id, content string) (server, answer string, err error) {
	body := fmt.Sprintf(`{"model": "demo", "max_tokens": 12, "messages": [{"role": "user", "content": %q}]}`, content)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.proxy+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return "", "", err
	}
	var reply struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(raw, &reply); err != nil || res.StatusCode != 200 || len(reply.Choices) == 0 {
		return "", "", fmt.Errorf("the gateway answered %s: %s", res.Status, bytes.TrimSpace(raw))
	}
	return res.Header.Get("X-Penstock-Endpoint"), strings.TrimSpace(reply.Choices[0].Message.Content), nil
}

// freeAddress is the first loopback address from port on that can be bound.
func freeAddress(port int) (string, error) {
	for p := port; p < port+100; p++ {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr, nil
		}
	}
	return "", fmt.Errorf("no port between %d and %d is free on 127.0.0.1", port, port+99)
}
