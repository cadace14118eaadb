// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/usage"
)

const (
	trafficSeconds = 600
	trafficMinute  = 60
	// Times to the first token are counted in classes, each a quarter wider than
	// the one below; a quantile is off by 12 % at most.
	waitClasses = 48
	waitLeast   = 0.001 // seconds; the last class begins at 36
	waitGrowth  = 1.25
)

// traffic counts what ends, by the second, for the last ten minutes. It takes
// 160 KiB.
type traffic struct {
	mu      sync.Mutex
	seconds [trafficSeconds]second // by Unix second
}

type second struct {
	at                              int64
	requests, failed, refused, left int
	unpriced                        int
	input, output                   int
	cost                            float64
	waits                           [waitClasses]uint32
}

func (t *traffic) note(r *usage.Record, now time.Time) {
	at := now.Unix()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.seconds[at%trafficSeconds]
	if s.at != at {
		*s = second{at: at}
	}
	s.requests++
	switch {
	case r.Status >= 500:
		s.failed++
	case r.Status == 499:
		s.left++
	case r.Status >= 400:
		s.refused++
	}
	s.input += inputOf(r)
	s.output += r.Counts.Output + r.Counts.Reasoning
	if r.Cost.Known {
		s.cost += usdOf(r)
	} else {
		s.unpriced++
	}
	if r.TTFT > 0 {
		s.waits[waitClass(r.TTFT)]++
	}
}

func waitClass(seconds float64) int {
	if seconds <= waitLeast {
		return 0
	}
	return min(waitClasses-1, int(math.Log(seconds/waitLeast)/math.Log(waitGrowth)))
}

// add counts what is in other too.
func (s *second) add(other *second) {
	s.requests += other.requests
	s.failed += other.failed
	s.refused += other.refused
	s.left += other.left
	s.unpriced += other.unpriced
	s.input += other.input
	s.output += other.output
	s.cost += other.cost
	for i, n := range other.waits {
		s.waits[i] += n
	}
}

// quantile is in seconds; 0: there is none.
func (s *second) quantile(q float64) float64 {
	var all uint32
	for _, n := range s.waits {
		all += n
	}
	rank := uint32(math.Ceil(q * float64(all)))
	for i, n := range s.waits {
		if n >= rank && n > 0 {
			return waitLeast * math.Pow(waitGrowth, float64(i)+0.5)
		}
		rank -= min(rank, n)
	}
	return 0
}

func (s *second) point() admin.TrafficPoint {
	return admin.TrafficPoint{
		At: s.at, Requests: s.requests, Failed: s.failed, Refused: s.refused, Left: s.left, Input: s.input, Output: s.output, Cost: s.cost,
		TTFT50: s.quantile(0.5), TTFT90: s.quantile(0.9),
	}
}

// points are the last n whole seconds, oldest first.
func (t *traffic) points(now time.Time, n int64) []admin.TrafficPoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]admin.TrafficPoint, 0, n)
	for at := max(0, now.Unix()-n); at < now.Unix(); at++ {
		s := second{at: at}
		if kept := &t.seconds[at%trafficSeconds]; kept.at == at {
			s = *kept
		}
		out = append(out, s.point())
	}
	return out
}

// minute is the sum of the last n whole seconds.
func (t *traffic) minute(now time.Time, n int64) (sum second) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.seconds {
		if s := &t.seconds[i]; s.at >= now.Unix()-n && s.at < now.Unix() {
			sum.add(s)
		}
	}
	return sum
}

const (
	shownErrors = 6
	shownModels = 8
	shownNewest = 5 // seconds; a console that misses an update or two has no gap
	recentAge   = 5 * time.Minute
)

func (g *gateway) trafficNow() admin.TrafficNow {
	now := time.Now()
	seconds := min(trafficMinute, max(1, int64(now.Sub(g.started).Seconds())))
	sum := g.traffic.minute(now, seconds)
	out := admin.TrafficNow{
		Minute: sum.point(), Seconds: int(seconds), Unpriced: sum.unpriced, Open: g.proxy.Open(), Newest: g.traffic.points(now, shownNewest),
	}
	out.Errors, out.Models = countRecent(g.newestRecords(), now.Add(-recentAge))
	return out
}

// countRecent is the errors and the models of what ended since, of records that begin
// with the newest: the most frequent ones first.
func countRecent(records []*usage.Record, since time.Time) (faults []admin.ErrorCount, models []admin.ModelCount) {
	byClass, byModel, waits := map[string]*admin.ErrorCount{}, map[string]*admin.ModelCount{}, map[string]*second{}
	for _, r := range records {
		if r.Time.Before(since) {
			continue
		}
		if r.Status >= 400 {
			class := cmp.Or(r.ErrorClass, statusText(r.Status))
			e := byClass[class]
			if e == nil {
				e = &admin.ErrorCount{Class: class, Last: r.Time, ID: r.RequestID, Text: clip(r.Error, 200)}
				byClass[class] = e
			}
			e.Count++
		}
		if r.ModelUsed == "" && !chose(r) {
			continue // names that are no models are not counted as such
		}
		m := byModel[r.ModelAsked]
		if m == nil {
			m = &admin.ModelCount{Model: r.ModelAsked}
			byModel[r.ModelAsked], waits[r.ModelAsked] = m, &second{}
		}
		m.Requests++
		if r.Status >= 500 {
			m.Failed++
		}
		m.Output += r.Counts.Output + r.Counts.Reasoning
		m.Cost += usdOf(r)
		if r.TTFT > 0 {
			waits[r.ModelAsked].waits[waitClass(r.TTFT)]++
		}
	}
	faults, models = []admin.ErrorCount{}, []admin.ModelCount{}
	for _, e := range byClass {
		faults = append(faults, *e)
	}
	for name, m := range byModel {
		m.TTFT50 = waits[name].quantile(0.5)
		models = append(models, *m)
	}
	slices.SortFunc(faults, func(a, b admin.ErrorCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Class, b.Class))
	})
	slices.SortFunc(models, func(a, b admin.ModelCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Model, b.Model))
	})
	return faults[:min(len(faults), shownErrors)], models[:min(len(models), shownModels)]
}
