// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// maxLedgerWait is how much longer 99 of 100 requests may take with a ledger.
const maxLedgerWait = 1.05

// LedgerWait is what a ledger adds to the time of requests: an open loop of Rate
// requests a second, each a row, in alternating rounds of Period with Ledger and
// with NoLedger. The budget is for 5,000 rows a second.
func (s *System) LedgerWait(ctx context.Context) ([]Figure, error) {
	proxies := []Proxy{s.Ledger, s.NoLedger}
	list, _, stop, err := s.begin(ctx, &Backend{}, poolSize, proxies)
	if err != nil {
		return nil, err
	}
	defer stop()
	turn := Turn{Prompt: Prompt{{ID: 1, Tokens: 470}}}
	body := ChatBody(&turn, "bench", 200, false)
	period := s.Period
	if period == 0 {
		period = 5 * time.Second
	}
	n := int(period.Seconds() * float64(s.rate()))
	s.logf("time of requests with a ledger, %d rows a second, %v a round", s.rate(), period)
	quantiles := []struct {
		name string
		at   float64
	}{{"median", .5}, {"99 of 100", .99}}
	values := make([][2][]float64, len(quantiles)) // ms by round
	for range orDefault(s.Rounds, 5) {
		for i, p := range list {
			began := time.Now()
			waits, err := pace(ctx, p.address, body, n, s.rate())
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", proxies[i].Name, err)
			}
			if rate := float64(n) / time.Since(began).Seconds(); rate < .95*float64(s.rate()) {
				return nil, fmt.Errorf("bench: %s takes %.0f requests a second on this machine and not %d; ask for fewer with --rate", proxies[i].Name, rate, s.rate())
			}
			slices.Sort(waits)
			for q := range quantiles {
				values[q][i] = append(values[q][i], waits[int(quantiles[q].at*float64(n-1))].Seconds()*1000)
			}
			s.logf("  %-14s p50 %.2f ms, p99 %.2f ms", proxies[i].Name, waits[n/2].Seconds()*1000, waits[int(.99*float64(n-1))].Seconds()*1000)
		}
	}
	var out []Figure
	for q := range quantiles {
		without := medianOf(values[q][1])
		for i := range proxies {
			v := medianOf(values[q][i])
			f := Figure{Measure: "time with a ledger, " + quantiles[q].name, Proxy: proxies[i].Name, Unit: "ms", Value: v, Rounds: values[q][i], Ratio: v / without}
			if i == 0 && quantiles[q].at == .99 {
				f.Budget, f.Over = fmt.Sprintf("<= %.2f x without", maxLedgerWait), f.Ratio > maxLedgerWait
				f.Note = fmt.Sprintf("%d rows a second", s.rate())
			}
			out = append(out, f)
		}
	}
	return out, nil
}
