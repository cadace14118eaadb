// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// meters are the distributions that the metrics page shows, in wall time.
type meters struct {
	mu         sync.Mutex
	ttft       histogram
	itl        histogram
	e2e        histogram
	success    map[string]int64 // by finish reason
	loras      []loraSeries
	lastOutput int64     // output tokens at the page before
	lastPage   time.Time // when that was
}

// loraSeries is one label set of the LoRA metric and when it was last true, in
// Unix seconds.
type loraSeries struct {
	running, waiting string
	at               float64
}

// staleLoraSeries is how many label sets the page keeps: engines never drop
// old ones, and a reader must take the newest.
const staleLoraSeries = 8

func newMeters() *meters {
	return &meters{
		ttft: histogram{bounds: []float64{
			.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
		}},
		itl: histogram{bounds: []float64{
			.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
		}},
		e2e: histogram{bounds: []float64{
			.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
		}},
		success: map[string]int64{"stop": 0, "length": 0, "abort": 0},
	}
}

func (m *meters) firstToken(d time.Duration) { m.observe(&m.ttft, d) }
func (m *meters) token(d time.Duration)      { m.observe(&m.itl, d) }
func (m *meters) total(d time.Duration)      { m.observe(&m.e2e, d) }

func (m *meters) observe(h *histogram, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h.observe(d.Seconds())
}

func (m *meters) finished(reason string) {
	if reason == "tool_calls" {
		reason = "stop"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.success[reason]++
}

// meterValues is a copy for the page.
type meterValues struct {
	ttft, itl, e2e histogram
	success        map[string]int64
	loras          []loraSeries
	throughput     float64 // output tokens/s since the page before
}

func (m *meters) read(now time.Time, output int64) meterValues {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := meterValues{
		ttft: m.ttft.clone(), itl: m.itl.clone(), e2e: m.e2e.clone(),
		success: maps.Clone(m.success), loras: slices.Clone(m.loras),
	}
	if passed := now.Sub(m.lastPage).Seconds(); !m.lastPage.IsZero() && passed > 0 {
		v.throughput = float64(output-m.lastOutput) / passed
	}
	m.lastPage, m.lastOutput = now, output
	return v
}

// lora records the label set that is true now.
func (m *meters) lora(running, waiting string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := float64(now.UnixMicro()) / 1e6
	for i := range m.loras {
		if m.loras[i].running == running && m.loras[i].waiting == waiting {
			m.loras[i].at = at
			return
		}
	}
	if len(m.loras) == staleLoraSeries {
		m.loras = m.loras[1:]
	}
	m.loras = append(m.loras, loraSeries{running, waiting, at})
}

// histogram counts per bucket, not cumulated; one more bucket than bounds.
type histogram struct {
	bounds []float64
	counts []int64
	sum    float64
}

func (h *histogram) observe(v float64) {
	if h.counts == nil {
		h.counts = make([]int64, len(h.bounds)+1)
	}
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
}

func (h *histogram) clone() histogram {
	c := *h
	c.counts = slices.Clone(h.counts)
	if c.counts == nil {
		c.counts = make([]int64, len(h.bounds)+1)
	}
	return c
}
