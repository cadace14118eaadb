// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Streams opens many streams and holds them.
type Streams struct {
	URL    string
	Model  string
	N      int
	Hold   time.Duration // after the last one has its first token
	Ramp   int           // opened at a time; 0: 64
	Output int           // tokens asked for; 0: a million
	// Steady is called once all that could be opened are open; the streams
	// stay open while it runs.
	Steady   func(open int)
	Progress func(open, failed int)
}

// StreamsResult counts streams.
type StreamsResult struct {
	Asked    int             `json:"asked"`
	Opened   int             `json:"opened"`   // had a first token
	Held     int             `json:"held"`     // still open at the end of the hold
	Finished int             `json:"finished"` // ended properly before
	Chunks   int64           `json:"chunks"`
	Failures map[Failure]int `json:"failures"`
	Example  string          `json:"example,omitempty"`
	OpenedIn float64         `json:"openedInSeconds"`
}

// spareFiles are those of the process besides the streams' sockets.
const spareFiles = 100

// Do opens, holds and closes them.
func (s *Streams) Do(ctx context.Context) (*StreamsResult, error) {
	if limit, err := RaiseFileLimit(uint64(s.N + spareFiles)); err != nil {
		return nil, fmt.Errorf("bench: %d streams need as many open files, the limit is %d; raise it with ulimit -n", s.N, limit)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTransport(s.N)
	t.ReadBufferSize, t.WriteBufferSize = 1024, 1024
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t}
	output := s.Output
	if output == 0 {
		output = 1_000_000
	}
	url := strings.TrimRight(s.URL, "/") + "/v1/chat/completions"
	r := &StreamsResult{Asked: s.N, Failures: map[Failure]int{}}
	var (
		mu       sync.Mutex
		failures int
		wg       sync.WaitGroup
		opening  sync.WaitGroup
		chunks   atomic.Int64
		closing  atomic.Bool
	)
	ramp := s.Ramp
	if ramp == 0 {
		ramp = 64
	}
	places := make(chan struct{}, ramp)
	start := time.Now()
	for i := range s.N {
		if !enter(ctx, places) {
			break
		}
		opening.Add(1)
		wg.Go(func() {
			turn := Turn{Prompt: Prompt{{ID: uint64(i) + 1, Tokens: 16}}}
			opened := sync.OnceFunc(func() { <-places; opening.Done() })
			first := true
			x := send(ctx, client, url, nil, endless(ChatBody(&turn, s.Model, output, true)), true, patience, func() {
				chunks.Add(1)
				if first {
					first = false
					mu.Lock()
					r.Opened++
					n, failed := r.Opened, failures
					mu.Unlock()
					opened()
					if s.Progress != nil {
						s.Progress(n, failed)
					}
				}
			})
			opened()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case closing.Load() && x.Chunks > 0 && x.Failure == FailCut:
				r.Held++
			case x.Failure == "":
				r.Finished++
			default:
				r.Failures[x.Failure]++
				failures++
				if r.Example == "" {
					r.Example = x.Detail
				}
			}
		})
	}
	opening.Wait()
	mu.Lock()
	open := r.Opened
	mu.Unlock()
	r.OpenedIn = time.Since(start).Seconds()
	if s.Steady != nil {
		s.Steady(open)
	}
	sleep(ctx, s.Hold)
	closing.Store(true)
	cancel()
	wg.Wait()
	r.Chunks = chunks.Load()
	return r, nil
}

// endless asks that the answer does not end before max_tokens; vLLM, SGLang
// and the simulator know the key.
func endless(body []byte) []byte {
	return append(body[:len(body)-1], ",\"ignore_eos\":true}"...)
}

// enter takes a place unless ctx ends before.
func enter(ctx context.Context, places chan<- struct{}) bool {
	select {
	case places <- struct{}{}:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
