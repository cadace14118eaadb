// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the Prometheus metrics of who asks. A nil one counts nothing.
type Instruments struct {
	failures *prometheus.CounterVec
}

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
// stored counts the keys of a store.
func NewInstruments(reg prometheus.Registerer, stored func() int) *Instruments {
	in := &Instruments{failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_auth_failures_total",
		Help: "Requests refused for their key, by reason: missing, unknown, mistyped (wrong checksum), early, expired, disabled, source (not from this address), stale (the store was out of reach too long), throttled (too many wrong keys from one address)."}, []string{"reason"})}
	for _, why := range []reason{missing, unknown, mistyped, tooEarly, expired, disabled, foreign, stale, "throttled"} {
		in.failures.WithLabelValues(string(why)) // so that rates begin at 0
	}
	if reg != nil {
		reg.MustRegister(in.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_auth_stored_keys",
			Help: "Keys of the store that this gateway knows."}, func() float64 { return float64(stored()) }))
	}
	return in
}

func (in *Instruments) failed(why string) {
	if in != nil {
		in.failures.WithLabelValues(why).Inc()
	}
}
