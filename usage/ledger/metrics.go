// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments tell of rows on their way.
type Instruments struct {
	written prometheus.Counter
	dropped *prometheus.CounterVec
	errors  *prometheus.CounterVec
	waiting prometheus.Gauge
	bytes   prometheus.Gauge
	lag     prometheus.Gauge
	pruned  prometheus.Counter
}

// The reasons for which a row is lost.
const (
	dropFull    = "full"
	dropSpool   = "spool"
	dropClosed  = "closed"
	dropDamaged = "damaged"
	dropRefused = "refused"
)

// Where it may fail.
const (
	stageSpool    = "spool"
	stageDatabase = "database"
	stagePrune    = "retention"
)

// NewInstruments registers the metrics; a nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		written: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_ledger_rows_written_total",
			Help: "Rows that the database of the ledger has taken."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_ledger_rows_dropped_total",
			Help: "Rows lost, by reason: full (ledger.buffer), spool (ledger.spoolSize), closed, damaged (changed on the disk), refused (by the database)."}, []string{"reason"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_ledger_errors_total",
			Help: "Failures by stage: spool, database, retention. The rows wait and are tried again."}, []string{"stage"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_ledger_rows_waiting",
			Help: "Rows in the spool that the database has not taken."}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_ledger_spool_bytes",
			Help: "Size of the spool."}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_ledger_lag_seconds",
			Help: "Age of the oldest row that the database has not taken, as of the last batch."}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_ledger_rows_pruned_total",
			Help: "Rows deleted because they were older than ledger.retention."}),
	}
	for _, reason := range []string{dropFull, dropSpool, dropClosed, dropDamaged, dropRefused} {
		in.dropped.WithLabelValues(reason)
	}
	for _, stage := range []string{stageSpool, stageDatabase, stagePrune} {
		in.errors.WithLabelValues(stage)
	}
	if reg != nil {
		reg.MustRegister(in.written, in.dropped, in.errors, in.waiting, in.bytes, in.lag, in.pruned)
	}
	return in
}

func (in *Instruments) drop(reason string, n int) {
	if n > 0 {
		in.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

func (in *Instruments) failed(stage string) { in.errors.WithLabelValues(stage).Inc() }

func (in *Instruments) waits(rows, bytes int64) {
	in.waiting.Set(float64(rows))
	in.bytes.Set(float64(bytes))
}

// behind tells when the oldest row that waits was settled; 0: none waits.
func (in *Instruments) behind(at int64) {
	if at == 0 {
		in.lag.Set(0)
		return
	}
	in.lag.Set(max(0, time.Since(time.UnixMicro(at)).Seconds()))
}
