// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/sim"
)

// raceFlags are the flags of bench race.
type raceFlags struct {
	workloads []string
	policies  []string
	loads     []float64
	seeds     int
	firstSeed uint64
	preset    string
	gateways  int
	workers   int
	list      bool
	capacity  bool
}

func newBenchRaceCommand() *cobra.Command {
	var f raceFlags
	c := &cobra.Command{
		Use:   "race",
		Short: "Run picking policies against each other in virtual time",
		Long: `Run picking policies against each other on simulated servers in virtual time:
minutes of load take seconds, and the same seed gives the same result.

Goodput is the share of requests that were answered within the workload's
limits for the first token and the time per token; hit is the share of prompt
tokens from prefix caches; max/median compares the busiest server to the
middle one.`,
		Args: cobra.NoArgs,
		Example: `  penstock bench race --workload 1-b2b,3-hot --policy default,lmetric,ref-round-robin --load 0.9
  penstock bench race --load 0.7,0.9,1.05 --seeds 3 -o markdown`,
	}
	fs := c.Flags()
	fs.StringSliceVar(&f.workloads, "workload", []string{"all"}, "workloads, or all")
	fs.StringSliceVar(&f.policies, "policy", []string{"default", "ref-round-robin", "ref-least-inflight"}, "built-in picker profiles and reference policies (ref-…), or all")
	fs.Float64SliceVar(&f.loads, "load", []float64{0.9}, "loads; 1 is the workload's nominal rate")
	fs.IntVar(&f.seeds, "seeds", 1, "how many seeds; tables show the mean over them")
	fs.Uint64Var(&f.firstSeed, "seed", 1, "the first seed")
	fs.StringVar(&f.preset, "preset", "qwen32b", "simulated engine; see penstock sim --help")
	fs.IntVar(&f.gateways, "gateways", 1, "gateways in front of the servers, which share nothing")
	fs.IntVar(&f.workers, "workers", min(runtime.NumCPU(), 2), "runs at a time")
	fs.BoolVar(&f.capacity, "capacity", false, "search for the highest load with 90 % goodput instead")
	fs.BoolVar(&f.list, "list", false, "list the workloads and the reference policies")
	for _, name := range []string{"workload", "policy", "load"} { // as they are typed
		f := fs.Lookup(name)
		f.DefValue = strings.Trim(strings.ReplaceAll(f.DefValue, "0.900000", "0.9"), "[]")
	}
	format := benchFormat(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, err := format()
		if err != nil {
			return err
		}
		if f.list {
			return listRace(c)
		}
		return runRace(c, &f, out)
	}
	return c
}

func listRace(c *cobra.Command) error {
	t := bench.Table{Head: []string{"workload", "servers", "req/s at load 1", "about"}}
	for _, w := range bench.Workloads() {
		t.Rows = append(t.Rows, []string{w.Name, fmt.Sprint(w.Servers), fmt.Sprintf("%.1f", w.Rate), w.About})
	}
	if err := t.Write(c.OutOrStdout(), bench.Text); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), "reference policies:", strings.Join(referenceNames(), ", "))
	return err
}

func referenceNames() []string {
	var names []string
	for name := range bench.References() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func runRace(c *cobra.Command, f *raceFlags, out bench.Format) error {
	preset, err := sim.LookupPreset(f.preset)
	if err != nil {
		return err
	}
	var seeds []uint64
	for i := range f.seeds {
		seeds = append(seeds, f.firstSeed+uint64(i))
	}
	runs, err := raceRuns(f, preset)
	if err != nil {
		return err
	}
	start := time.Now()
	if f.capacity {
		s := bench.Capacities{Runs: runs, Seeds: seeds, Low: 0.2, High: 2, Steps: 6, Workers: f.workers, Progress: func(x bench.Capacity) {
			fmt.Fprintf(c.ErrOrStderr(), "%4.0fs  %s %s: %.2f\n", time.Since(start).Seconds(), x.Workload, x.Policy, x.Load)
		}}
		report := bench.CapacityReport{Origin: benchOrigin(), Preset: preset.Name, Seeds: seeds}
		if report.Capacities, err = s.Do(c.Context()); err != nil {
			return err
		}
		return report.Write(c.OutOrStdout(), out)
	}
	s := bench.Series{Workers: f.workers}
	for _, r := range runs {
		for _, r.Load = range f.loads {
			for _, r.Seed = range seeds {
				s.Runs = append(s.Runs, r)
			}
		}
	}
	s.Progress = func(done int, r *bench.Result) {
		fmt.Fprintf(c.ErrOrStderr(), "%d/%d  %4.0fs  %s %s load %g seed %d: goodput %.1f %%, %d requests\n",
			done, len(s.Runs), time.Since(start).Seconds(), r.Workload, r.Policy, r.Load, r.Seed, 100*r.Goodput(), r.Offered)
	}
	report := bench.RaceReport{Origin: benchOrigin(), Preset: preset.Name, Seeds: seeds}
	if report.Results, err = s.Do(c.Context()); err != nil {
		return err
	}
	return report.Write(c.OutOrStdout(), out)
}

// raceRuns is every policy on every workload; load and seed are left open.
func raceRuns(f *raceFlags, preset sim.Preset) ([]bench.Run, error) {
	workloads := bench.Workloads()
	if !slices.Equal(f.workloads, []string{"all"}) {
		workloads = nil
		for _, name := range f.workloads {
			w, err := benchWorkload(name)
			if err != nil {
				return nil, err
			}
			workloads = append(workloads, w)
		}
	}
	policies := f.policies
	if slices.Equal(policies, []string{"all"}) {
		policies = append(epp.Builtins(), referenceNames()...)
	}
	var runs []bench.Run
	for _, name := range policies {
		policy, err := racePolicy(name)
		if err != nil {
			return nil, err
		}
		for _, w := range workloads {
			runs = append(runs, bench.Run{Policy: name, New: policy, Workload: w, Preset: preset, Gateways: f.gateways})
		}
	}
	return runs, nil
}

// racePolicy finds a reference policy or a built-in picker profile.
func racePolicy(name string) (func(bench.Fleet) bench.Chooser, error) {
	if policy, ok := bench.References()[name]; ok {
		return policy, nil
	}
	cfg, ok := epp.Builtin(name)
	if !ok {
		return nil, usageError("no policy %q: neither a built-in picker profile nor one of %s", name, strings.Join(referenceNames(), ", "))
	}
	profile, err := epp.Compile(cfg)
	if err != nil {
		return nil, fmt.Errorf("picker profile %s: %w", name, err)
	}
	return func(f bench.Fleet) bench.Chooser { return newSchedulerChooser(profile, f) }, nil
}

// raceModel is the model that every request of a race asks for.
const raceModel = "m"

// schedulerChooser races the scheduler as it runs in a gateway: requests are
// read from a body, metrics are set on pool members, health hears of attempts;
// only the clock is virtual.
type schedulerChooser struct {
	scheduler *epp.Scheduler
	pool      *pool.Pool
	preset    sim.Preset
	now       time.Duration
	addresses []string
	picks     map[uint64]*racePick
}

// racePick is a pick that is not settled.
type racePick struct {
	result *epp.Result
	member *pool.Member
	prompt int
	tokens int
}

// raceEpoch is the wall clock at virtual time zero.
func raceEpoch() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }

func newSchedulerChooser(profile *epp.Profile, f bench.Fleet) *schedulerChooser {
	c := &schedulerChooser{preset: f.Preset, picks: map[uint64]*racePick{}}
	clock := func() time.Time { return raceEpoch().Add(c.now) }
	var members []config.Member
	for i := range f.Servers {
		a := fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
		c.addresses = append(c.addresses, a)
		members = append(members, config.Member{Address: a})
	}
	p, err := pool.New(config.Pool{Name: "race", Members: config.Members{Static: members}}, pool.Options{Now: clock})
	if err != nil {
		panic(fmt.Sprintf("bench race: a pool of constant members: %v", err))
	}
	c.pool = p
	c.scheduler = epp.New(p, profile, epp.Options{Now: clock, Seed: f.Seed, Explain: -1})
	return c
}

func (c *schedulerChooser) Pick(now time.Duration, r *bench.Request) int {
	c.now = now
	body := bench.CompletionBody(r.Prompt, raceModel, 0, true)
	parsed, problem := llm.Read(llm.OpCompletions, "application/json", body, llm.Limits{})
	if problem != nil {
		panic("bench race: a body of its own making: " + problem.Error())
	}
	q := &epp.Request{
		ID: fmt.Sprint(r.ID), Method: http.MethodPost, Path: "/v1/completions", Op: llm.OpCompletions,
		Model: raceModel, Prompt: &parsed.Prompt, Stream: true, Body: func() []byte { return body },
	}
	for _, n := range r.Tried {
		q.Tried = append(q.Tried, c.addresses[n])
	}
	result, err := c.scheduler.Pick(context.Background(), q)
	if err != nil {
		return -1
	}
	if len(result.Endpoints) == 0 {
		result.Done(epp.Outcome{Err: errors.New("refused")})
		return -1
	}
	n := slices.Index(c.addresses, result.Endpoints[0])
	pick := &racePick{result: result, member: c.pool.Lookup(result.Endpoints[0]), prompt: r.Prompt.Tokens()}
	c.picks[r.ID] = pick
	if result.Observer != nil {
		result.Observer.Attempt(pick.member)
	}
	return n
}

func (c *schedulerChooser) Output(now time.Duration, r *bench.Request, tokens int) {
	c.now = now
	pick := c.picks[r.ID]
	if o := pick.result.Observer; o != nil {
		if pick.tokens == 0 {
			o.Head(http.StatusOK, http.Header{})
		}
		o.Chunk(nil, tokens-pick.tokens)
	}
	pick.tokens = tokens
}

func (c *schedulerChooser) Done(now time.Duration, r *bench.Request, e bench.Ending) {
	c.now = now
	pick := c.picks[r.ID]
	delete(c.picks, r.ID)
	out := epp.Outcome{Err: errors.New("failed")}
	switch e.Outcome {
	case bench.Answered:
		out = epp.Outcome{Usage: llm.Usage{Input: pick.prompt - e.Cached, Output: e.Output, CacheRead: e.Cached, Source: llm.Reported}}
		pick.member.Report(pool.OK)
	case bench.Refused:
		pick.member.Report(pool.Refused)
	case bench.Broken:
		pick.member.Report(pool.Reset)
	}
	if o := pick.result.Observer; o != nil {
		o.End(nil)
	}
	pick.result.Done(out)
}

func (c *schedulerChooser) Scrape(now time.Duration, server int, g sim.Gauges) {
	c.now = now
	c.pool.Lookup(c.addresses[server]).SetMetrics(&pool.Metrics{
		At:      raceEpoch().Add(now),
		Has:     pool.HasWaiting | pool.HasRunning | pool.HasKVUsage | pool.HasCacheConfig | pool.HasPrefix,
		Waiting: float64(g.Waiting), Running: float64(g.Running), KVUsage: g.KVUsage,
		BlockSize: c.preset.BlockSize, NumBlocks: c.preset.NumBlocks,
		PrefixQueries: float64(g.PrefixQueries), PrefixHits: float64(g.PrefixHits),
	})
}

// Health is left to the pool: it hears of refused attempts as in a gateway.
func (c *schedulerChooser) Health(now time.Duration, _ int, _ bool) { c.now = now }
