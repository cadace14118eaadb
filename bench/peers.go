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

// peerRate is the load at which peers are compared, in requests per second.
const peerRate = 1000

// peerConnections is how many connections carry it.
const peerConnections = 64

// PeerCost compares ways to have a request picked for, the first of peers with
// the others: CPU of everything between client and server, time added, and
// requests per second at saturation. An open loop of peerRate requests a
// second, each of 2 KB with an answer of 1 KB, in alternating rounds.
func (s *System) PeerCost(ctx context.Context, peers []Proxy) ([]Figure, error) {
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, peers)
	if err != nil {
		return nil, err
	}
	defer stop()
	period := s.Period
	if period == 0 {
		period = 4 * time.Second
	}
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", 200, false)
	s.logf("peers at %d requests per second, %d B in", peerRate, len(body))
	type measured struct{ cpu, p50, p99, most []float64 }
	all := map[string]*measured{}
	for _, p := range list {
		all[p.Name] = &measured{}
		if err := drive(ctx, p.address, body, 2000, 8); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
		}
	}
	for range orDefault(s.Rounds, 5) {
		for _, p := range list {
			m := all[p.Name]
			var waits []time.Duration
			n := int(period.Seconds() * peerRate)
			cpu, err := p.cost(n, func() (err error) {
				waits, err = pace(ctx, p.address, body, n, peerRate)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
			}
			began := time.Now()
			most := orDefault(s.Requests, 4000)
			if err := drive(ctx, p.address, body, most, peerConnections); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", p.Name, err)
			}
			slices.Sort(waits)
			at := func(q float64) float64 { return waits[int(q*float64(len(waits)-1))].Seconds() * 1000 }
			m.cpu, m.p50, m.p99 = append(m.cpu, cpu), append(m.p50, at(.5)), append(m.p99, at(.99))
			m.most = append(m.most, float64(most)/time.Since(began).Seconds())
			s.logf("  %-34s %8.1f us  p50 %.2f ms  p99 %.2f ms  %.0f requests/s", p.Name, cpu, at(.5), at(.99), m.most[len(m.most)-1])
		}
	}
	var out []Figure
	add := func(measure, unit string, of func(*measured) []float64) {
		first := medianOf(of(all[list[0].Name]))
		for _, p := range list {
			v := of(all[p.Name])
			out = append(out, Figure{Measure: measure, Proxy: p.Name, Unit: unit, Value: medianOf(v), Rounds: v, Ratio: medianOf(v) / first})
		}
	}
	add("cpu per request, all processes", "us", func(m *measured) []float64 { return m.cpu })
	add("time, median", "ms", func(m *measured) []float64 { return m.p50 })
	add("time, 99 of 100", "ms", func(m *measured) []float64 { return m.p99 })
	add("requests at saturation", "1/s", func(m *measured) []float64 { return m.most })
	return out, nil
}

// pace makes n requests at a rate, each begun on time however slow the others
// are, and returns how long each took from the time at which it was due.
func pace(ctx context.Context, address string, body []byte, n, rate int) ([]time.Duration, error) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", address, len(body))
	message := append(head.Bytes(), body...)
	due := make(chan time.Time, n)
	waits := make([][]time.Duration, peerConnections)
	errs := make([]error, peerConnections)
	var wg sync.WaitGroup
	for i := range peerConnections {
		wg.Go(func() { waits[i], errs[i] = paceOne(ctx, address, message, due) })
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
