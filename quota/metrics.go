// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import "github.com/prometheus/client_golang/prometheus"

// Instruments are the Prometheus metrics of limits (penstock_quota_…). Labels are
// units, never names of tenants.
type Instruments struct {
	refusals, shadows, warnings [units]prometheus.Counter
	away                        prometheus.Counter
	open                        prometheus.Gauge
	errors                      *prometheus.CounterVec
	up                          prometheus.Gauge
	local                       prometheus.Counter
	pending                     prometheus.Gauge
	dropped                     prometheus.Counter
	retaken                     prometheus.Counter
}

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_quota_" + name, Help: help}, []string{label})
	}
	refusals := vec("refusals_total", "Requests, attempts with a credential, and fallbacks to a model, that a limit refused, by its unit.", "unit")
	shadows := vec("shadow_refusals_total", "Requests that a limit in shadow mode would have refused, by its unit.", "unit")
	warnings := vec("soft_warnings_total", "Requests that found a limit above its soft threshold, by its unit.", "unit")
	in := &Instruments{
		errors: vec("store_errors_total", "Calls to the store of limits that failed, by call.", "call"),
		away: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_quota_away_refusals_total",
			Help: "Requests refused because the store of limits was away."}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_quota_reservations_open",
			Help: "Reservations of this gateway that have not settled."}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_quota_store_up",
			Help: "1 while the store of limits can be asked."}),
		local: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_quota_local_requests_total",
			Help: "Requests let in on the local share of their limits while the store was away."}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_quota_settlements_pending",
			Help: "Settlements that wait for the store of limits to come back."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_quota_settlements_dropped_total",
			Help: "Settlements that were given up because too many waited for the store."}),
		retaken: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_quota_retaken_total",
			Help: "Reservations that were taken again because the store had lost them."}),
	}
	for u, name := range unitNames {
		in.refusals[u], in.shadows[u], in.warnings[u] = refusals.WithLabelValues(name), shadows.WithLabelValues(name), warnings.WithLabelValues(name)
	}
	in.up.Set(1)
	if reg != nil {
		reg.MustRegister(refusals, shadows, warnings, in.errors, in.away, in.open, in.up, in.local, in.pending, in.dropped, in.retaken)
	}
	return in
}

func (in *Instruments) refused(f *Refusal) {
	if f.Away {
		in.away.Inc()
		return
	}
	in.refusals[f.Limit.unit].Inc()
}

func (in *Instruments) reserved(r *Reservation) {
	in.open.Inc()
	for i := range r.entries {
		e := &r.entries[i]
		if e.over {
			in.shadows[e.limit.unit].Inc()
		}
		if e.limit.soft > 0 && e.used >= e.limit.soft {
			in.warnings[e.limit.unit].Inc()
		}
	}
}

func (in *Instruments) settled() { in.open.Dec() }
