// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy is a program to be measured as a process of its own.
type Proxy struct {
	Name string
	// Command writes what the program needs into at.Dir and returns its command
	// line: it shall listen at at.Listen and spread requests over at.Servers.
	Command func(at Place) (argv []string, err error)
	// Picker is the same for a second program, which the first asks at
	// at.Picker and which is started before it. nil: there is none.
	Picker func(at Place) (argv []string, err error)
	// Header is what the head of each request says to the program: lines, each
	// with its end. nil: nothing.
	Header func(at Place) string
}

// Place is where a proxy runs.
type Place struct {
	Dir     string // for its files
	Listen  string
	Picker  string // address of its picker
	Servers []string
}

// System measures whole processes on this machine against each other in one
// run. The first of Proxies is the subject, Baseline what its cost is compared
// with.
type System struct {
	Subject Proxy
	// Quiet is the subject without scraping: what it spends by the second,
	// which ScrapeCost measures, is not to be laid on the chunks that happen
	// to pass. No command: the subject itself.
	Quiet    Proxy
	Provider Proxy // the subject with a managed provider in place of its pool
	// Accounting is Provider with a key, limits, prices and a ledger.
	Accounting Proxy
	// Ledger is Accounting with the ledger to be measured, NoLedger without one.
	Ledger, NoLedger Proxy
	Baseline         Proxy
	Others           []Proxy // measured too, without a budget
	// Backend is the command line of a [Backend] process that listens at the
	// addresses.
	Backend func(addresses []string, b *Backend) []string
	Dir     string // for scratch files
	Log     io.Writer

	Rounds   int           // 0: 5
	Requests int           // of one round; 0: 4000
	Period   time.Duration // of one round of streams, and of the scraping; 0: 5 s and 20 s
	Streams  int           // held open; 0: 9000
	Rate     int           // of requests to peers, a second; 0: 1000
}

// Budgets of the system benches.
const (
	maxRequestRatio  = 1.3                   // CPU per request over the baseline's
	maxProviderRatio = 1.4                   // likewise, by way of a provider
	maxChunk         = 20 * time.Microsecond // or the baseline's in the same run, whichever is more
	maxStreamMemory  = 600 << 20
	maxAccounting    = 12 * time.Microsecond // more than without
	maxScrapeShare   = 0.15                  // of a core
)

// Figure is one measured value.
type Figure struct {
	Measure string    `json:"measure"`
	Proxy   string    `json:"proxy"`
	Value   float64   `json:"value"` // median of the rounds
	Unit    string    `json:"unit"`
	Rounds  []float64 `json:"rounds,omitempty"`
	Ratio   float64   `json:"ratioToBaseline,omitempty"`
	Budget  string    `json:"budget,omitempty"`
	Over    bool      `json:"overBudget,omitempty"`
	Note    string    `json:"note,omitempty"`
}

const poolSize = 4 // servers behind each proxy

// running is a proxy under way.
type running struct {
	Proxy
	*process
	picker  *process // nil: it has none
	address at
}

// at is where a proxy is, and what it wants to have in the head of each request.
type at struct {
	address string
	header  string // lines
}

// message is a request for a chat.
func (a at) message(body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.address, a.header, len(body))
	return append(b.Bytes(), body...)
}

// begin starts a backend process and the proxies in front of it. stop ends all.
func (s *System) begin(ctx context.Context, b *Backend, servers int, proxies []Proxy) (list []*running, counters string, stop func(), err error) {
	var started []*process
	end := func() {
		for _, p := range slices.Backward(started) {
			p.stop()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	addresses, err := freeAddresses(servers + 2*len(proxies))
	if err != nil {
		return nil, "", nil, err
	}
	listen, addresses := addresses[:2*len(proxies)], addresses[2*len(proxies):]
	start := func(name, dir, address string, argv []string, err error) (*process, error) {
		if err != nil {
			return nil, err
		}
		p, err := startProcess(ctx, name, dir, address, argv)
		if err == nil {
			started = append(started, p)
		}
		return p, err
	}
	if _, err = start("backend", s.Dir, addresses[0], s.Backend(addresses, b), nil); err != nil {
		return nil, "", nil, err
	}
	for i, x := range proxies {
		at := Place{Listen: listen[2*i], Picker: listen[2*i+1], Servers: addresses}
		if at.Dir, err = os.MkdirTemp(s.Dir, "proxy"); err != nil {
			return nil, "", nil, err
		}
		r := &running{Proxy: x, address: atOf(x, at)}
		if x.Picker != nil {
			argv, err := x.Picker(at)
			if r.picker, err = start(x.Name+": the picker", at.Dir, at.Picker, argv, err); err != nil {
				return nil, "", nil, err
			}
		}
		argv, err := x.Command(at)
		if r.process, err = start(x.Name, at.Dir, at.Listen, argv, err); err != nil {
			return nil, "", nil, err
		}
		list = append(list, r)
	}
	return list, "http://" + addresses[0] + "/counters", end, nil
}

func atOf(x Proxy, p Place) at {
	a := at{address: p.Listen}
	if x.Header != nil {
		a.header = x.Header(p)
	}
	return a
}

func (s *System) all() []Proxy {
	return append([]Proxy{s.Subject, s.Baseline}, s.Others...)
}

func (s *System) logf(format string, args ...any) {
	if s.Log != nil {
		fmt.Fprintf(s.Log, format+"\n", args...)
	}
}

// rounds measures each proxy in turn, A B A B, so that whatever else the
// machine does meets all alike.
func (s *System) rounds(list []*running, warm func(*running) error, one func(*running) (float64, error)) (map[string][]float64, error) {
	out := map[string][]float64{}
	for _, p := range list {
		if err := warm(p); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
		}
	}
	for range orDefault(s.Rounds, 5) {
		for _, p := range list {
			v, err := one(p)
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
			}
			s.logf("  %-14s %8.1f us", p.Name, v)
			out[p.Name] = append(out[p.Name], v)
		}
	}
	return out, nil
}

// figures are the medians, the subject's first.
func (s *System) figures(measure, unit string, values map[string][]float64) []Figure {
	base := medianOf(values[s.Baseline.Name])
	var out []Figure
	for _, p := range s.all() {
		v := values[p.Name]
		f := Figure{Measure: measure, Proxy: p.Name, Unit: unit, Value: medianOf(v), Rounds: v}
		if base > 0 {
			f.Ratio = f.Value / base
		}
		out = append(out, f)
	}
	return out
}

func medianOf(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return median(v)
}

// RequestCost is the CPU time of each proxy for a POST of 2 KB that is answered
// with 1 KB, HTTP/1.1 with keep-alive.
func (s *System) RequestCost(ctx context.Context) ([]Figure, error) {
	return s.requestCost(ctx, "cpu per request", s.all(), maxRequestRatio)
}

// ProviderCost is RequestCost for the gateway in front of a managed provider that
// speaks the client's dialect.
func (s *System) ProviderCost(ctx context.Context) ([]Figure, error) {
	proxies := s.all()
	proxies[0] = s.Provider
	return s.requestCost(ctx, "cpu per request, provider", proxies, maxProviderRatio)
}

func (s *System) requestCost(ctx context.Context, measure string, proxies []Proxy, bound float64) ([]Figure, error) {
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, proxies)
	if err != nil {
		return nil, err
	}
	defer stop()
	n := orDefault(s.Requests, 4000)
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", 200, false)
	s.logf("%s, %d B in, %d requests a round", measure, len(body), n)
	drive := func(p *running, n int) error { return drive(ctx, p.address, body, n, 8) }
	values, err := s.rounds(list,
		func(p *running) error { return drive(p, n/2) },
		func(p *running) (float64, error) {
			return p.cost(n, func() error { return drive(p, n) })
		})
	if err != nil {
		return nil, err
	}
	out := s.figures(measure, "us", values)
	out[0].Budget = fmt.Sprintf("<= %.1f x %s", bound, s.Baseline.Name)
	out[0].Over = out[0].Ratio > bound
	return out, nil
}

// AccountingCost is what a key, limits, prices and a ledger add to ProviderCost,
// the writer of the ledger included.
func (s *System) AccountingCost(ctx context.Context) ([]Figure, error) {
	long := *s // what it adds is little beside the whole
	long.Rounds, long.Requests = 2*orDefault(s.Rounds, 5)+1, 2*orDefault(s.Requests, 4000)
	long.Subject, long.Baseline, long.Others = s.Accounting, s.Provider, nil
	long.Baseline.Name = "without"
	out, err := long.requestCost(ctx, "cpu per request, accounting", long.all(), maxProviderRatio)
	if err != nil {
		return nil, err
	}
	bound := float64(maxAccounting.Microseconds())
	out[0].Budget = fmt.Sprintf("<= %.0f us more than without", bound)
	out[0].Over = out[0].Value-out[1].Value > bound
	out[0].Note = fmt.Sprintf("%.1f us more", out[0].Value-out[1].Value)
	return out, nil
}

// cost is the CPU time of a process during f for each of n, in microseconds.
func (p *process) cost(n int, f func() error) (float64, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return float64((after - before).Microseconds()) / float64(n), err
}

// ChunkCost is the CPU time of each proxy for one event of 160 bytes in a long
// stream.
func (s *System) ChunkCost(ctx context.Context) ([]Figure, error) {
	const interval = 5 * time.Millisecond
	period := s.Period
	if period == 0 {
		period = 5 * time.Second
	}
	b := &Backend{Interval: interval, Chunks: int(period / interval)}
	proxies := s.all()
	if s.Quiet.Command != nil {
		proxies[0] = s.Quiet
	}
	list, _, stop, err := s.begin(ctx, b, poolSize, proxies)
	if err != nil {
		return nil, err
	}
	defer stop()
	const streams = 32
	s.logf("cpu per chunk, %d streams, %v between chunks", streams, interval)
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", b.Chunks, true)
	run := func(p *running) error { return drive(ctx, p.address, body, streams, streams) }
	// The kernel takes most of it, for both, so the ratio is close to 1 and one
	// round says little.
	long := *s
	long.Rounds = 2*orDefault(s.Rounds, 5) + 1
	values, err := long.rounds(list, func(*running) error { return nil },
		func(p *running) (float64, error) { return p.cost(streams*b.Chunks, func() error { return run(p) }) })
	if err != nil {
		return nil, err
	}
	out := s.figures("cpu per streamed chunk", "us", values)
	bound := max(float64(maxChunk.Microseconds()), out[1].Value)
	out[0].Budget = fmt.Sprintf("<= %.0f us or %s", float64(maxChunk.Microseconds()), s.Baseline.Name)
	out[0].Over = out[0].Value > bound
	return out, nil
}

// StreamMemory is the memory of the subject while it holds many streams open.
func (s *System) StreamMemory(ctx context.Context) ([]Figure, error) {
	n := orDefault(s.Streams, 9000)
	b := &Backend{Interval: 10 * time.Second}
	list, _, stop, err := s.begin(ctx, b, poolSize, []Proxy{s.Subject})
	if err != nil {
		return nil, err
	}
	defer stop()
	p := list[0]
	idle, err := p.memory()
	if err != nil {
		return nil, err
	}
	s.logf("memory with %d open streams", n)
	var memory int64
	streams := Streams{URL: "http://" + p.address.address, Model: "bench", N: n, Steady: func(open int) {
		s.logf("  %d open", open)
		for range 10 { // the largest of a while
			m, err2 := p.memory()
			if err2 != nil {
				err = err2
			}
			memory = max(memory, m)
			if !sleep(ctx, time.Second) {
				return
			}
		}
	}}
	r, err2 := streams.Do(ctx)
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	f := Figure{Measure: fmt.Sprintf("memory, %d streams open", n), Proxy: p.Name, Unit: "MiB",
		Value: float64(memory) / (1 << 20), Budget: fmt.Sprintf("< %d MiB", maxStreamMemory>>20),
		Over: memory >= maxStreamMemory || r.Held < n,
		Note: fmt.Sprintf("%d held, %.0f MiB idle, %d KiB a stream, failures %v", r.Held, float64(idle)/(1<<20), (memory-idle)/int64(max(r.Held, 1))>>10, r.Failures)}
	return []Figure{f}, nil
}

// ScrapeCost is the share of a core that the subject needs to read the metrics
// of many servers, each a page of 64 KB.
func (s *System) ScrapeCost(ctx context.Context) ([]Figure, error) {
	const servers = 100
	period := s.Period
	if period == 0 {
		period = 20 * time.Second
	}
	list, counters, stop, err := s.begin(ctx, &Backend{MetricsBytes: 64 << 10}, servers, []Proxy{s.Subject})
	if err != nil {
		return nil, err
	}
	defer stop()
	p := list[0]
	s.logf("cpu of scraping %d servers over %v", servers, period)
	sleep(ctx, 3*time.Second) // until it has settled
	before, err := readCounters(counters)
	if err != nil {
		return nil, err
	}
	start, err := p.cpu()
	if err != nil {
		return nil, err
	}
	at := time.Now()
	sleep(ctx, period)
	end, err := p.cpu()
	if err != nil {
		return nil, err
	}
	took := time.Since(at)
	after, err := readCounters(counters)
	if err != nil {
		return nil, err
	}
	share := (end - start).Seconds() / took.Seconds()
	rate := float64(after.Scrapes-before.Scrapes) / took.Seconds()
	f := Figure{Measure: fmt.Sprintf("scraping %d servers", servers), Proxy: p.Name, Unit: "core", Value: share,
		Budget: fmt.Sprintf("<= %.2f core", maxScrapeShare), Over: share > maxScrapeShare || rate == 0,
		Note: fmt.Sprintf("%.0f pages/s of 64 KB, one server each %.0f ms", rate, 1000*servers/max(rate, 0.001))}
	if rate > 0 {
		f.Note += fmt.Sprintf(", %.0f us a page", share/rate*1e6)
	}
	return []Figure{f}, nil
}

func readCounters(url string) (c Counters, err error) {
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return c, err
	}
	defer res.Body.Close()
	return c, json.NewDecoder(res.Body).Decode(&c)
}

// drive makes n requests over a number of connections and reads every answer
// to its end. It knows just enough of HTTP to cost little beside what it drives.
func drive(ctx context.Context, to at, body []byte, n, connections int) error {
	message := to.message(body)
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() { errs[i] = driveOne(ctx, to.address, message, &left) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func driveOne(ctx context.Context, address string, message []byte, left *atomic.Int64) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	r := bufio.NewReaderSize(c, 16<<10)
	for left.Add(-1) >= 0 {
		if _, err := c.Write(message); err != nil {
			return err
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
			return errors.New("status " + strconv.Itoa(res.StatusCode) + ": " + strings.TrimSpace(string(text)))
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		res.Body.Close()
	}
	return nil
}
