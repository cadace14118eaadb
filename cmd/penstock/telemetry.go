// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/otlp"
)

// sinks are where the record of each request goes, beside the ledger.
type sinks struct {
	recent  recent
	refused recent // those that were refused before a target was chosen, so that a flood of them leaves the others
	traffic traffic
	records atomic.Pointer[usage.Log]     // nil: off
	otlp    atomic.Pointer[otlp.Exporter] // nil: off
	slos    atomic.Pointer[usage.SLOs]    // nil: before the first configuration
}

func (s *sinks) take(r *usage.Record) {
	if chose(r) {
		s.recent.note(r)
	} else {
		s.refused.put(clipped(r))
	}
	s.traffic.note(r, time.Now())
	s.records.Load().Emit(r)
	s.otlp.Load().Emit(r)
	s.slos.Load().Observe(r)
}

// openTelemetry makes ready what is sent to a collector of cfg, or keeps what is
// there.
func (g *gateway) openTelemetry(cfg *config.Config, undo, commits *[]func()) error {
	if old := g.cfg.Load(); old != nil && reflect.DeepEqual(old.Telemetry, cfg.Telemetry) {
		return nil
	}
	var secure *tls.Config
	if strings.HasPrefix(cfg.Telemetry.OTLP.Endpoint, "https:") {
		var err error
		if secure, err = pool.Identity(cfg.Telemetry.OTLP.TLS).Config(); err != nil {
			return fmt.Errorf("telemetry.otlp.%w", err)
		}
	}
	e, err := otlp.Open(cfg.Telemetry, otlp.Options{
		Log: g.log, Metrics: g.otlpMetrics, TLS: secure, Gather: g.reg, Version: version, Picks: g.picksOf,
	})
	if err != nil {
		return err
	}
	*undo = append(*undo, e.Close)
	*commits = append(*commits, func() {
		if before := g.otlp.Swap(e); before != nil {
			go before.Close()
		}
	})
	return nil
}

// picksOf are the decisions for a request that are still in the rings of the
// pickers, for its trace.
func (g *gateway) picksOf(requestID string) (out []otlp.Pick) {
	for _, e := range g.findPicks(requestID) {
		out = append(out, pickOf(e))
	}
	return out
}

func pickOf(e *epp.Explanation) otlp.Pick {
	p := otlp.Pick{At: e.At, Took: e.Took, Pool: e.Pool, Profile: e.Profile, Reason: e.Reason, Picked: e.SentTo()}
	for i := range e.Candidates {
		c := &e.Candidates[i]
		row := otlp.Candidate{Endpoint: c.Endpoint, RefusedBy: c.RefusedBy, Score: c.Total}
		for j, score := range c.Scores {
			if row.Scores == nil {
				row.Scores = map[string]float64{}
			}
			row.Scores[e.Columns[j].Name] = score
		}
		p.Candidates = append(p.Candidates, row)
	}
	return p
}
