// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import "time"

// LoadResult is what a [Load] came to. Times are in seconds, quantiles over
// the requests that succeeded.
type LoadResult struct {
	URL      string  `json:"url"`
	Workload string  `json:"workload"`
	Seed     uint64  `json:"seed"`
	Stream   bool    `json:"stream"`
	Seconds  float64 `json:"seconds"`

	Requests   int             `json:"requests"`
	Succeeded  int             `json:"succeeded"`
	Failures   map[Failure]int `json:"failures"`
	Untruthful int             `json:"untruthful"`        // failures that the answer hid
	Late       int             `json:"late"`              // sessions that began later than the workload said
	Example    string          `json:"example,omitempty"` // of a failure
	// Examples has the detail of one request of each kind of failure.
	Examples map[Failure]string `json:"examples,omitempty"`

	TTFT  Quantiles `json:"ttft"`
	TPOT  Quantiles `json:"tpot"`
	Total Quantiles `json:"total"`

	PromptTokens int     `json:"promptTokens"`
	CachedTokens int     `json:"cachedTokens"`
	OutputTokens int     `json:"outputTokens"`
	RequestRate  float64 `json:"requestsPerSecond"`
	OutputRate   float64 `json:"outputTokensPerSecond"`
}

func (l *Load) result(took time.Duration) *LoadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &LoadResult{
		URL: l.URL, Workload: l.Workload.Name, Seed: l.Seed, Stream: l.Stream,
		Seconds: took.Seconds(), Requests: len(l.done), Failures: map[Failure]int{}, Examples: map[Failure]string{},
	}
	var ttft, tpot, total []float64
	for _, x := range l.done {
		r.PromptTokens += x.PromptTokens
		r.CachedTokens += x.CachedTokens
		r.OutputTokens += x.OutputTokens
		if x.Failure != "" {
			r.Failures[x.Failure]++
			if !x.Failure.Truthful() {
				r.Untruthful++
			}
			r.Examples[x.Failure] = x.Detail
			if r.Example == "" {
				r.Example = string(x.Failure) + ": " + x.Detail
			}
			continue
		}
		r.Succeeded++
		ttft = append(ttft, x.TTFT.Seconds())
		total = append(total, x.Total.Seconds())
		if d := x.TPOT(); d > 0 && l.Stream {
			tpot = append(tpot, d.Seconds())
		}
	}
	r.TTFT, r.TPOT, r.Total = QuantilesOf(ttft), QuantilesOf(tpot), QuantilesOf(total)
	r.RequestRate = float64(r.Succeeded) / took.Seconds()
	r.OutputRate = float64(r.OutputTokens) / took.Seconds()
	return r
}
