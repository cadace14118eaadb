// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// peerRate is the load at which peers are compared unless System.Rate says
// otherwise, in requests per second.
const peerRate = 1000

// peerConnections is how many connections carry it.
const peerConnections = 64

// Budgets of a request with a remote pick. Those of CPU were made where
// budgetProxy is what a reverse proxy takes; machines differ in speed, so the
// same share of what the baseline takes in the same run is allowed too.
const (
	BudgetAskOff     = 60 * time.Microsecond  // in the gateway, response phase off
	BudgetAskDefault = 110 * time.Microsecond // with the default response phase
	BudgetPick       = 60 * time.Microsecond  // in the picker, without the response phase

	budgetProxy   = 80 * time.Microsecond
	budgetMedian  = 1.0 // ms added
	budgetP99     = 5.0 // ms added
	budgetStreams = 60  // MiB for idleStreams, each side
	idleStreams   = 1000
	budgetBody    = 45 // MB for a body of largeBody in the gateway
	largeBody     = 20_000_000
)

// Peer is a way to have a request picked for.
type Peer struct {
	Proxy
	// Ask is the budget of what the gateway takes more than the first peer, Pick
	// that of what the picker takes; 0: none.
	Ask, Pick time.Duration
	Timed     bool    // the time that it adds has a budget
	Multiple  float64 // of the first peer's CPU that its own should be, a goal; 0: none
}

// peerRun is a peer under way and what its rounds have brought.
type peerRun struct {
	Peer
	*running
	own, picker    []float64 // CPU of a request, µs
	p50, p99, most []float64 // ms, and requests per second at saturation
}

// PeerCost compares ways to have a request picked for, the first of peers with
// the others: CPU of everything between client and server, time added, and
// requests per second at saturation. An open loop of Rate requests a
// second, each of 2 KB with an answer of 1 KB, in alternating rounds, the
// Baseline among them.
func (s *System) PeerCost(ctx context.Context, peers []Peer) ([]Figure, error) {
	peers = append(slices.Clone(peers), Peer{Proxy: s.Baseline})
	var proxies []Proxy
	for _, p := range peers {
		proxies = append(proxies, p.Proxy)
	}
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, proxies)
	if err != nil {
		return nil, err
	}
	defer stop()
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", 200, false)
	s.logf("peers at %d requests per second, %d B in", s.rate(), len(body))
	var runs []*peerRun
	for i, p := range list {
		runs = append(runs, &peerRun{Peer: peers[i], running: p})
		if err := drive(ctx, p.address, body, 2000, 8); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", peers[i].Name, err)
		}
	}
	for range orDefault(s.Rounds, 5) {
		for _, r := range runs {
			if err := s.peerRound(ctx, r, body); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", r.Peer.Name, err)
			}
		}
	}
	return peerFigures(runs), nil
}

func (s *System) rate() int { return orDefault(s.Rate, peerRate) }

func (s *System) peerRound(ctx context.Context, r *peerRun, body []byte) error {
	period := s.Period
	if period == 0 {
		period = 4 * time.Second
	}
	n := int(period.Seconds() * float64(s.rate()))
	var waits []time.Duration
	run := func() (err error) {
		waits, err = pace(ctx, r.address, body, n, s.rate())
		return err
	}
	asks := run
	var picker float64
	if r.running.picker != nil {
		asks = func() (err error) {
			picker, err = r.running.picker.cost(n, run)
			return err
		}
	}
	own, err := r.cost(n, asks)
	if err != nil {
		return err
	}
	began, most := time.Now(), orDefault(s.Requests, 4000)
	if err := drive(ctx, r.address, body, most, peerConnections); err != nil {
		return err
	}
	rate := float64(most) / time.Since(began).Seconds()
	slices.Sort(waits)
	at := func(q float64) float64 { return waits[int(q*float64(len(waits)-1))].Seconds() * 1000 }
	r.own, r.picker = append(r.own, own), append(r.picker, picker)
	r.p50, r.p99, r.most = append(r.p50, at(.5)), append(r.p99, at(.99)), append(r.most, rate)
	s.logf("  %-30s %6.0f us, picker %4.0f us, p50 %.2f ms, p99 %.2f ms, %.0f requests/s", r.Peer.Name, own, picker, at(.5), at(.99), rate)
	return nil
}

// peerFigures are the medians; ratios are to the first peer, of what is added
// to the baseline, which is the last.
// GatewayCost compares gateways in front of one managed provider, the last of
// them the Baseline: CPU and time of a request, what it adds to the baseline's
// time, requests per second at saturation, and memory after that. No budgets: it is
// for a table.
func (s *System) GatewayCost(ctx context.Context, gateways []Proxy) (out []Figure, err error) {
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, append(slices.Clone(gateways), s.Baseline))
	if err != nil {
		return nil, err
	}
	defer stop()
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", 200, false)
	s.logf("gateways at %d requests per second, %d B in", s.rate(), len(body))
	var runs []*peerRun
	for _, p := range list {
		runs = append(runs, &peerRun{Peer: Peer{Proxy: p.Proxy}, running: p})
		if err := drive(ctx, p.address, body, 1000, 8); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
		}
	}
	for range orDefault(s.Rounds, 5) {
		for _, r := range runs {
			if err := s.peerRound(ctx, r, body); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", r.Peer.Name, err)
			}
		}
	}
	base := runs[len(runs)-1]
	each := func(measure, unit string, of func(*peerRun) float64) {
		for _, r := range runs {
			out = append(out, Figure{Measure: measure, Proxy: r.Peer.Name, Unit: unit, Value: of(r), Ratio: of(r) / of(base)})
		}
	}
	each("cpu per request", "us", func(r *peerRun) float64 { return medianOf(r.own) })
	for _, of := range []struct {
		name string
		list func(*peerRun) []float64
	}{{"median", func(r *peerRun) []float64 { return r.p50 }}, {"99 of 100", func(r *peerRun) []float64 { return r.p99 }}} {
		for _, r := range runs {
			out = append(out, Figure{Measure: "time added, " + of.name, Proxy: r.Peer.Name, Unit: "ms", Value: medianOf(of.list(r)) - medianOf(of.list(base))})
		}
	}
	each("requests at saturation", "1/s", func(r *peerRun) float64 { return medianOf(r.most) })
	for _, r := range runs {
		held, err := r.memory()
		if err != nil {
			return nil, err
		}
		out = append(out, Figure{Measure: "memory afterwards", Proxy: r.Peer.Name, Unit: "MiB", Value: float64(held) / (1 << 20)})
	}
	return out, nil
}

func peerFigures(runs []*peerRun) (out []Figure) {
	first, base := runs[0], medianOf(runs[len(runs)-1].own)
	each := func(measure, unit string, of func(*peerRun) float64) {
		for _, r := range runs {
			out = append(out, Figure{Measure: measure, Proxy: r.Peer.Name, Unit: unit, Value: of(r), Ratio: of(r) / of(first)})
		}
	}
	each("cpu per request, all processes", "us", func(r *peerRun) float64 { return medianOf(r.own) + medianOf(r.picker) })
	for i, r := range runs {
		if r.Multiple > 0 {
			out[i].Budget, out[i].Over = fmt.Sprintf(">= %.0f x %s (a goal)", r.Multiple, first.Peer.Name), out[i].Ratio < r.Multiple
		}
	}
	cpu := func(measure string, r *peerRun, value float64, budget time.Duration) {
		f := Figure{Measure: measure, Proxy: r.Peer.Name, Unit: "us", Value: value, Ratio: value / base, Note: "ratio to " + runs[len(runs)-1].Peer.Name}
		if budget > 0 {
			share := budget.Seconds() / budgetProxy.Seconds()
			f.Budget = fmt.Sprintf("<= %d us or ratio %.2f", budget.Microseconds(), share)
			f.Over = value > float64(budget.Microseconds()) && f.Ratio > share
		}
		out = append(out, f)
	}
	for _, r := range runs[1:] {
		if r.running.picker != nil && r.Ask > 0 {
			cpu("cpu per request, the gateway's more", r, medianOf(r.own)-medianOf(first.own), r.Ask)
		}
	}
	for _, r := range runs[1:] {
		if r.running.picker != nil {
			cpu("cpu per request, the picker's", r, medianOf(r.picker), r.Pick)
		}
	}
	timed := func(from int, of func(*peerRun) float64, budget float64) {
		for i, r := range runs {
			if f := &out[from+i]; r.Timed {
				f.Budget, f.Over = fmt.Sprintf("<= %.0f ms more", budget), of(r)-of(first) > budget
			}
		}
	}
	p50, p99 := func(r *peerRun) float64 { return medianOf(r.p50) }, func(r *peerRun) float64 { return medianOf(r.p99) }
	each("time, median", "ms", p50)
	timed(len(out)-len(runs), p50, budgetMedian)
	each("time, 99 of 100", "ms", p99)
	timed(len(out)-len(runs), p99, budgetP99)
	each("requests at saturation", "1/s", func(r *peerRun) float64 { return medianOf(r.most) })
	return out
}

// PeerMemory is what gateway and picker hold more while idleStreams are open
// between them, and while one body of largeBody passes.
func (s *System) PeerMemory(ctx context.Context, peers []Proxy) (out []Figure, err error) {
	for _, p := range peers {
		streams, err := s.peerStreams(ctx, p)
		if err != nil {
			return nil, err
		}
		body, err := s.peerBody(ctx, p)
		if err != nil {
			return nil, err
		}
		out = append(append(out, streams...), body...)
	}
	return out, nil
}

func (s *System) peerStreams(ctx context.Context, p Proxy) (out []Figure, err error) {
	list, _, stop, err := s.begin(ctx, &Backend{Interval: 10 * time.Second}, poolSize, []Proxy{p})
	if err != nil {
		return nil, err
	}
	defer stop()
	r := list[0]
	s.logf("%s: memory with %d open streams", p.Name, idleStreams)
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 16}}}
	if err := drive(ctx, r.address, ChatBody(&turn, "bench", 1, false), 1000, 8); err != nil {
		return nil, err
	}
	sides := []*process{r.process, r.picker}
	var before, most [2]int64
	read := func(to *[2]int64) {
		for i, side := range sides {
			m, fail := side.memory()
			err = errors.Join(err, fail)
			to[i] = max(to[i], m)
		}
	}
	read(&before)
	streams := Streams{URL: "http://" + r.address.address, Model: "bench", N: idleStreams, Steady: func(int) {
		for range 5 {
			read(&most)
			sleep(ctx, time.Second)
		}
	}}
	held, failed := streams.Do(ctx)
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	for i, side := range []string{"gateway", "picker"} {
		more := most[i] - before[i]
		out = append(out, Figure{Measure: fmt.Sprintf("memory, %d idle streams, %s", idleStreams, side), Proxy: p.Name, Unit: "MiB", Value: float64(more) / (1 << 20),
			Budget: fmt.Sprintf("<= %d MiB", budgetStreams), Over: more > budgetStreams<<20 || held.Held < idleStreams,
			Note: fmt.Sprintf("%d held, %.0f MiB before", held.Held, float64(before[i])/(1<<20))})
	}
	return out, nil
}

func (s *System) peerBody(ctx context.Context, p Proxy) (out []Figure, err error) {
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, []Proxy{p})
	if err != nil {
		return nil, err
	}
	defer stop()
	r := list[0]
	s.logf("%s: memory for a body of %d B", p.Name, largeBody)
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 16}}}
	small := ChatBody(&turn, "bench", 1, false)
	if err := drive(ctx, r.address, small, 1000, 8); err != nil {
		return nil, err
	}
	large := bytes.Replace(small, []byte(`"content":"`), append([]byte(`"content":"`), bytes.Repeat([]byte("word "), largeBody/5)...), 1)
	if len(large) < largeBody {
		return nil, fmt.Errorf("bench: the large body has %d bytes", len(large))
	}
	sides := []*process{r.process, r.picker}
	var before [2]int64
	for i, side := range sides {
		if before[i], err = side.memory(); err != nil {
			return nil, err
		}
	}
	if err := drive(ctx, r.address, large, 1, 1); err != nil {
		return nil, err
	}
	for i, side := range []string{"gateway", "picker"} {
		peak, err := sides[i].peak()
		if err != nil {
			return nil, err
		}
		f := Figure{Measure: fmt.Sprintf("memory, body of %d MB, %s", largeBody/1_000_000, side), Proxy: p.Name, Unit: "MB", Value: float64(peak-before[i]) / 1e6,
			Note: fmt.Sprintf("the peak beyond the %.0f MB before", float64(before[i])/1e6)}
		if i == 0 {
			f.Budget, f.Over = fmt.Sprintf("<= %d MB", budgetBody), f.Value > budgetBody
		}
		out = append(out, f)
	}
	return out, nil
}

// pace makes n requests at a rate, each begun on time however slow the others
// are, and returns how long each took from the time at which it was due.
func pace(ctx context.Context, to at, body []byte, n, rate int) ([]time.Duration, error) {
	message := to.message(body)
	due := make(chan time.Time, n)
	waits := make([][]time.Duration, peerConnections)
	errs := make([]error, peerConnections)
	var wg sync.WaitGroup
	for i := range peerConnections {
		wg.Go(func() { waits[i], errs[i] = paceOne(ctx, to.address, message, due) })
	}
	began := time.Now()
	for i := range n {
		at := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if d := time.Until(at); d > 0 {
			time.Sleep(d)
		}
		due <- at
	}
	close(due)
	wg.Wait()
	return slices.Concat(waits...), errors.Join(errs...)
}

func paceOne(ctx context.Context, address string, message []byte, due <-chan time.Time) (waits []time.Duration, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	r := bufio.NewReaderSize(c, 16<<10)
	for at := range due {
		if _, err := c.Write(message); err != nil {
			return waits, err
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return waits, err
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return waits, err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return waits, errors.New(res.Status)
		}
		waits = append(waits, time.Since(at))
	}
	return waits, nil
}
