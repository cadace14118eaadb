// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
)

// SLOs count how requests do by the objectives of a configuration. A nil SLOs
// counts nothing.
type SLOs struct {
	list []*slo
}

// slo is one objective and what was counted. Its counts stay over reloads that
// leave it as it is.
type slo struct {
	cfg       config.SLO
	good, bad prometheus.Counter

	mu      sync.Mutex
	minutes [burnMinutes]minute // a ring by the minute of the clock
}

// burnMinutes is how far back burn rates look in the gateway itself.
const burnMinutes = 6 * 60

type minute struct {
	number    int64 // since 1970; what is older is void
	good, bad int64
}

// SLOInstruments are the metrics of objectives.
type SLOInstruments struct {
	requests *prometheus.CounterVec
	target   *prometheus.GaugeVec
}

// NewSLOInstruments registers the metrics; a nil reg keeps them unregistered.
func NewSLOInstruments(reg prometheus.Registerer) *SLOInstruments {
	in := &SLOInstruments{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_slo_requests_total",
			Help: "Requests that an objective speaks of, by how they did: good, bad."}, []string{"slo", "result"}),
		target: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_slo_target_ratio",
			Help: "Share of its requests that an objective wants to be good."}, []string{"slo"}),
	}
	if reg != nil {
		reg.MustRegister(in.requests, in.target)
	}
	return in
}

// NewSLOs compiles objectives. What old has counted for those that are the same is
// kept.
func NewSLOs(list []config.SLO, old *SLOs, in *SLOInstruments) *SLOs {
	s := &SLOs{}
	for i := range list {
		cfg := list[i]
		if old != nil {
			if j := slices.IndexFunc(old.list, func(o *slo) bool { return sameSLO(&o.cfg, &cfg) }); j >= 0 {
				s.list = append(s.list, old.list[j])
				continue
			}
		}
		s.list = append(s.list, &slo{cfg: cfg, good: in.requests.WithLabelValues(cfg.Name, "good"), bad: in.requests.WithLabelValues(cfg.Name, "bad")})
	}
	in.target.Reset()
	for i := range list {
		in.target.WithLabelValues(list[i].Name).Set(list[i].Target)
	}
	if old != nil { // objectives that are gone leave no series behind
		for _, o := range old.list {
			if !slices.ContainsFunc(list, func(c config.SLO) bool { return c.Name == o.cfg.Name }) {
				in.requests.DeletePartialMatch(prometheus.Labels{"slo": o.cfg.Name})
			}
		}
	}
	return s
}

func sameSLO(a, b *config.SLO) bool {
	return a.Name == b.Name && a.Objective == b.Objective && a.Under == b.Under && a.Target == b.Target &&
		slices.Equal(a.Models, b.Models) && slices.Equal(a.Tenants, b.Tenants)
}

// Observe counts a request that has ended.
func (s *SLOs) Observe(rec *Record) {
	if s == nil {
		return
	}
	for _, o := range s.list {
		if !matchesAny(o.cfg.Models, rec.ModelAsked) || !matchesAny(o.cfg.Tenants, rec.Tenant) {
			continue
		}
		good, counts := o.judge(rec)
		if !counts {
			continue
		}
		if good {
			o.good.Inc()
		} else {
			o.bad.Inc()
		}
		number := rec.Time.Unix() / 60
		o.mu.Lock()
		if m := &o.minutes[uint64(number)%burnMinutes]; m.number <= number { // else a request that took hours
			if m.number != number {
				*m = minute{number: number}
			}
			if good {
				m.good++
			} else {
				m.bad++
			}
		}
		o.mu.Unlock()
	}
}

// judge says whether a request was good, and whether the objective speaks of it:
// what a client did wrong, or left, says nothing of the service.
func (o *slo) judge(rec *Record) (good, counts bool) {
	under := o.cfg.Under.D().Seconds()
	switch o.cfg.Objective {
	case config.ObjectiveTTFT:
		return rec.TTFT <= under, rec.TTFT > 0
	case config.ObjectiveTPOT:
		return rec.TPOT <= under, rec.TPOT > 0
	}
	switch {
	case rec.Operation == "" || rec.ModelAsked == "", rec.Status/100 == 4:
		return false, false
	}
	return rec.Status < 500 && rec.ErrorClass == "", true
}

func matchesAny(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(patterns, func(p string) bool { _, ok := config.MatchStar(p, name); return ok })
}

// Burn is how an objective did lately.
type Burn struct {
	config.SLO
	Windows []BurnWindow
}

// BurnWindow is a stretch of time up to now. A rate of 1 uses up exactly what the
// objective allows; 0 with no requests.
type BurnWindow struct {
	Span      time.Duration
	Good, Bad int64
	Rate      float64
}

// Burns are the burn rates over five minutes, an hour and six hours, as this
// gateway has seen them since it began.
func (s *SLOs) Burns(now time.Time) (out []Burn) {
	if s == nil {
		return nil
	}
	for _, o := range s.list {
		b := Burn{SLO: o.cfg}
		for _, span := range [...]time.Duration{5 * time.Minute, time.Hour, burnMinutes * time.Minute} {
			b.Windows = append(b.Windows, o.window(now, span))
		}
		out = append(out, b)
	}
	return out
}

func (o *slo) window(now time.Time, span time.Duration) BurnWindow {
	w := BurnWindow{Span: span}
	newest := now.Unix() / 60
	oldest := newest - int64(span/time.Minute)
	o.mu.Lock()
	for i := range o.minutes {
		if m := &o.minutes[i]; m.number > oldest && m.number <= newest {
			w.Good += m.good
			w.Bad += m.bad
		}
	}
	o.mu.Unlock()
	if all := w.Good + w.Bad; all > 0 {
		w.Rate = float64(w.Bad) / float64(all) / (1 - o.cfg.Target)
	}
	return w
}
