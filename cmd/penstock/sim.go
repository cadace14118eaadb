// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/sim"
)

// simFlags are the flags of penstock sim as they were typed.
type simFlags struct {
	address  string
	port     int
	servers  int
	preset   string
	provider bool
	faults   string
	config   sim.Config // of every server; its preset is changed by:
	maxSeqs  int
	maxQueue int
	kvBlocks int
	maxLoRAs int
	managed  sim.ProviderConfig
	awsKeys  []string
}

func newSimCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run simulated model servers, or a simulated provider",
		Long: `Run simulated model servers in OpenAI form on consecutive ports: batching,
paged KV cache, prefix reuse, LoRA slots, metrics under the names of each engine
and faults on demand (GET and POST /sim/faults, GET /sim/stats). No GPU.

With --provider they are managed providers, in the shape of the API that --shape
names: as strict with requests, with its errors, headers and usage, with faults
at every place of an answer. GET /sim/stats shows what arrived, credentials
hashed. In a user's last message "use tools" calls tools, "please refuse" gets a
refusal and "say: X" gets X.

Prints one line per server and runs until SIGINT or SIGTERM.`,
		Example: `  penstock sim --servers 4 --port 8000 --preset llama8b --speedup 10
  penstock sim --engine sglang --faults '{"slow": 5}'
  penstock sim --provider --api-key secret --rpm 60
  penstock sim --provider --shape bedrock --access-key AKIASIM:secret --region eu-west-1
  penstock sim --provider --shape anthropic --faults '{"errorEvent": "output", "after": 3}'
  penstock sim --provider --faults '{"script": [{"status": 429, "retryAfter": 2}, {"cut": "headers"}]}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bad := givenOf(cmd, "shape", "api-key", "access-key", "region", "cache-min", "snapshot", "quirk", "keep-bodies", "rpm", "tpm", "ttft", "itl"); bad != nil && !f.provider {
				return usageError("sim: for servers %s; add --provider", meaningless(bad))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "127.0.0.1", "address to listen on")
	flags.IntVar(&f.port, "port", 8000, "port of the first server; 0 for any")
	flags.IntVar(&f.servers, "servers", 1, "number of servers, on consecutive ports")
	flags.StringVar(&f.preset, "preset", "tiny", "cost model: tiny, llama8b, qwen32b or qwen32b-slow")
	flags.StringVar(&f.config.Model, "model", "sim-model", "model name")
	flags.StringSliceVar(&f.config.Aliases, "alias", nil, "further names of the model")
	flags.StringSliceVar(&f.config.Adapters, "adapters", nil, "LoRA adapters")
	flags.StringVar(&f.config.Engine, "engine", "vllm", "engine whose metrics are shown: vllm, sglang or trtllm")
	flags.StringVar(&f.config.MetricNames, "metric-names", "new", "metric names: new or old")
	flags.IntVar(&f.config.Ranks, "ranks", 1, "tensor parallel ranks in SGLang's metrics")
	flags.IntVar(&f.config.PadMetrics, "pad-metrics", 0, "pad the metrics page to this many KB")
	flags.Float64Var(&f.config.Speedup, "speedup", 1, "run this many times faster than the preset")
	flags.Uint64Var(&f.config.Seed, "seed", 0, "seed of answers and faults")
	flags.IntVar(&f.config.MaxModelLen, "max-model-len", 0, "tokens of a sequence; 0 for what the cache holds")
	flags.DurationVar(&f.config.StartupDelay, "startup-delay", 0, "answer 503 for so long at first")
	flags.IntVar(&f.maxSeqs, "max-num-seqs", 0, "running sequences; 0 for the preset's")
	flags.IntVar(&f.maxQueue, "max-waiting", 0, "waiting sequences, more are refused with 429; 0 for no bound")
	flags.IntVar(&f.kvBlocks, "kv-blocks", 0, "KV cache blocks; 0 for the preset's")
	flags.IntVar(&f.maxLoRAs, "max-loras", -1, "LoRA slots; -1 for the preset's")
	flags.StringVar(&f.faults, "faults", "", "faults as JSON, as POST /sim/faults takes them")
	flags.BoolVar(&f.provider, "provider", false, "simulate a managed provider instead of servers")
	flags.StringVar(&f.managed.Shape, "shape", "openai", "provider: API, one of "+strings.Join(sim.Shapes(), ", "))
	flags.StringSliceVar(&f.managed.Keys, "api-key", nil, "provider: accepted API keys; none for any")
	flags.StringArrayVar(&f.awsKeys, "access-key", nil, "provider: accepted `ID:SECRET[:SESSIONTOKEN]` of signatures, shape bedrock")
	flags.StringVar(&f.managed.Region, "region", "us-east-1", "provider: region in signatures, shape bedrock")
	flags.IntVar(&f.managed.CacheMin, "cache-min", 1024, "provider: tokens of the shortest prefix that is cached; -1 for no caching")
	flags.StringVar(&f.managed.Snapshot, "snapshot", "", "provider: what answers add to the model's name")
	flags.StringSliceVar(&f.managed.Quirks, "quirk", nil, "provider: what OpenAI's shape refuses or adds, of "+strings.Join(sim.Quirks(), ", "))
	flags.BoolVar(&f.managed.KeepBodies, "keep-bodies", false, "provider: show the bodies of requests in the stats")
	flags.IntVar(&f.managed.RequestsPerMinute, "rpm", 0, "provider: requests per minute and key; 0 for no limit")
	flags.IntVar(&f.managed.TokensPerMinute, "tpm", 0, "provider: tokens per minute and key; 0 for no limit")
	flags.DurationVar(&f.managed.TTFT, "ttft", 200*time.Millisecond, "provider: median time to first token")
	flags.DurationVar(&f.managed.ITL, "itl", 10*time.Millisecond, "provider: median time between tokens")
	return cmd
}

// simServer is a sim.Server or a sim.Provider.
type simServer interface {
	Listen(addr string) (string, error)
	Close(ctx context.Context) error
}

// simDrain is how long running answers may take to end after a signal.
const simDrain = 5 * time.Second

func (f *simFlags) run(ctx context.Context, out io.Writer) (err error) {
	if err := f.complete(); err != nil {
		return usageError("%w", err)
	}
	var running []simServer
	defer func() {
		drain, cancel := context.WithTimeout(context.Background(), simDrain)
		defer cancel()
		for _, s := range running {
			if e := s.Close(drain); e != nil && !errors.Is(e, context.DeadlineExceeded) {
				err = errors.Join(err, e)
			}
		}
	}()
	for i := range f.servers {
		s, what := f.server(i)
		running = append(running, s)
		port := f.port
		if port != 0 {
			port += i
		}
		addr, err := s.Listen(net.JoinHostPort(f.address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "http://%s %s\n", addr, what)
	}
	<-ctx.Done()
	return nil
}

// complete checks the flags and builds what they mean.
func (f *simFlags) complete() error {
	if f.servers < 1 {
		return fmt.Errorf("sim: --servers: %d is less than 1", f.servers)
	}
	p, err := sim.LookupPreset(f.preset)
	if err != nil {
		return err
	}
	if f.maxSeqs > 0 {
		p.MaxSequences = f.maxSeqs
	}
	if f.kvBlocks > 0 {
		p.NumBlocks = f.kvBlocks
	}
	if f.maxLoRAs >= 0 {
		p.MaxLoRAs = f.maxLoRAs
	}
	p.MaxWaiting = f.maxQueue
	f.config.Preset = p
	if f.faults != "" {
		if f.config.Faults, err = sim.ReadFaults(strings.NewReader(f.faults)); err != nil {
			return err
		}
	}
	if f.provider {
		return f.completeProvider()
	}
	return f.config.Check()
}

// completeProvider builds what the flags of a provider mean.
func (f *simFlags) completeProvider() error {
	for _, k := range f.awsKeys {
		id, secret, _ := strings.Cut(k, ":")
		secret, token, _ := strings.Cut(secret, ":")
		f.managed.AccessKeys = append(f.managed.AccessKeys, sim.AccessKey{ID: id, Secret: secret, SessionToken: token})
	}
	c := &f.managed
	c.Models = append([]string{f.config.Model}, f.config.Aliases...)
	c.MaxModelLen, c.Seed, c.Faults = f.config.MaxModelLen, f.config.Seed, f.config.Faults
	return c.Check()
}

func (f *simFlags) server(i int) (simServer, string) {
	if f.provider {
		c := f.managed
		c.Name = "provider-" + strconv.Itoa(i)
		return sim.NewProvider(c), fmt.Sprintf("%s model %s shape %s", c.Name, f.config.Model, c.Shape)
	}
	c := f.config
	c.Name = "sim-" + strconv.Itoa(i)
	return sim.New(c), fmt.Sprintf("%s model %s engine %s preset %s", c.Name, c.Model, c.Engine, c.Preset.Name)
}
