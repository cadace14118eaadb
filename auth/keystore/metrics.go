// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package keystore

import "github.com/prometheus/client_golang/prometheus"

// Instruments are the Prometheus metrics of the store. A nil one counts nothing.
type Instruments struct {
	reachable prometheus.Gauge
	edits     *prometheus.CounterVec
}

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		reachable: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_keystore_reachable",
			Help: "1 if the store of keys answered when it was asked last, 0 if not, or if there is none."}),
		edits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_keystore_edits_total",
			Help: "Edits of tenants and keys by action."}, []string{"action"}),
	}
	if reg != nil {
		reg.MustRegister(in.reachable, in.edits)
	}
	return in
}

func (in *Instruments) up(is bool) {
	if in == nil {
		return
	}
	if is {
		in.reachable.Set(1)
		return
	}
	in.reachable.Set(0)
}

func (in *Instruments) edited(action string) {
	if in != nil {
		in.edits.WithLabelValues(action).Inc()
	}
}
