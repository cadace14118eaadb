// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"sync"
)

// Series is a list of runs.
type Series struct {
	Runs     []Run
	Workers  int                            // at a time; 0: 1
	Progress func(done int, result *Result) // one call at a time
}

// Do runs them; the results are in the order of the runs. When ctx ends, the
// runs under way are finished and no more begin.
func (s *Series) Do(ctx context.Context) ([]*Result, error) {
	results := make([]*Result, len(s.Runs))
	todo := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range max(s.Workers, 1) {
		wg.Go(func() {
			for i := range todo {
				results[i] = s.Runs[i].Do()
				mu.Lock()
				done++
				if s.Progress != nil {
					s.Progress(done, results[i])
				}
				mu.Unlock()
			}
		})
	}
	for i := 0; i < len(s.Runs) && ctx.Err() == nil; i++ {
		select {
		case todo <- i:
		case <-ctx.Done():
		}
	}
	close(todo)
	wg.Wait()
	return results, ctx.Err()
}
