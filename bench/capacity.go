// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// enoughGood is the goodput at which a load still counts as carried.
const enoughGood = 0.9

// Capacity is the highest load at which a policy keeps nine requests in ten
// within the SLO, on the mean of the seeds.
type Capacity struct {
	Policy   string  `json:"policy"`
	Workload string  `json:"workload"`
	Load     float64 `json:"load"` // of the workload's nominal rate; bounds of the search if beyond
}

// Capacities searches for the capacity of each run by bisection between the
// loads low and high, in steps that end with (high-low)/2^steps; the run's own
// Load and Seed do not matter.
type Capacities struct {
	Runs      []Run
	Seeds     []uint64
	Low, High float64
	Steps     int
	Workers   int
	Progress  func(Capacity) // one call at a time
}

// Do returns them in the order of the runs.
func (c *Capacities) Do(ctx context.Context) ([]Capacity, error) {
	out := make([]Capacity, len(c.Runs))
	todo := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range max(c.Workers, 1) {
		wg.Go(func() {
			for i := range todo {
				out[i] = c.search(ctx, c.Runs[i])
				mu.Lock()
				if c.Progress != nil {
					c.Progress(out[i])
				}
				mu.Unlock()
			}
		})
	}
	for i := range c.Runs {
		if ctx.Err() == nil {
			todo <- i
		}
	}
	close(todo)
	wg.Wait()
	return out, ctx.Err()
}

func (c *Capacities) search(ctx context.Context, r Run) Capacity {
	low, high := c.Low, c.High
	for range c.Steps {
		if ctx.Err() != nil {
			break
		}
		r.Load = (low + high) / 2
		good, offered := 0, 0
		for _, r.Seed = range c.Seeds {
			x := r.Do()
			good += x.Good
			offered += x.Offered
		}
		if ratio(good, offered) >= enoughGood {
			low = r.Load
		} else {
			high = r.Load
		}
	}
	return Capacity{Policy: r.Policy, Workload: r.Workload.Name, Load: low}
}

// CapacityReport is the result of a search.
type CapacityReport struct {
	Origin     Origin     `json:"origin"`
	Preset     string     `json:"preset"`
	Seeds      []uint64   `json:"seeds"`
	Capacities []Capacity `json:"capacities"`
}

// Write writes a table of policies by workloads.
func (r *CapacityReport) Write(w io.Writer, f Format) error {
	if f == JSON {
		return WriteJSON(w, r)
	}
	fmt.Fprintf(w, "%s; preset %s; seeds %s; virtual time\n\n", r.Origin, r.Preset, joinSeeds(r.Seeds))
	t := Table{Title: fmt.Sprintf("highest load with goodput >= %.0f %%", 100*enoughGood), Head: []string{"policy"}}
	rows, columns := map[string]int{}, map[string]int{}
	for _, x := range r.Capacities {
		if _, ok := columns[x.Workload]; !ok {
			columns[x.Workload] = len(t.Head)
			t.Head = append(t.Head, x.Workload)
		}
	}
	for _, x := range r.Capacities {
		i, ok := rows[x.Policy]
		if !ok {
			i = len(t.Rows)
			rows[x.Policy] = i
			t.Rows = append(t.Rows, make([]string, len(t.Head)))
			t.Rows[i][0] = x.Policy
		}
		t.Rows[i][columns[x.Workload]] = fmt.Sprintf("%.2f", x.Load)
	}
	return t.Write(w, f)
}
