// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the metrics of a controller.
type Instruments struct {
	leader      prometheus.Gauge
	objects     *prometheus.GaugeVec
	gateways    prometheus.Gauge
	events      *prometheus.CounterVec
	translation prometheus.Histogram
	members     prometheus.Histogram
	sets        prometheus.Counter
	writes      *prometheus.CounterVec
	applies     *prometheus.CounterVec
	leftOut     prometheus.Counter
}

// NewInstruments registers the metrics with reg; nil: nowhere.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	m := &Instruments{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_kube_leader",
			Help: "1 while this replica leads, else 0."}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_kube_objects",
			Help: "Objects that are watched, by kind, as of the last translation."}, []string{"kind"}),
		gateways: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_kube_gateways",
			Help: "Gateways of the controller's classes."}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_kube_changes_total",
			Help: "Changes of objects that a translation reads, by kind."}, []string{"kind"}),
		translation: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "penstock_kube_translation_seconds",
			Help: "Duration of a translation of all objects.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		members: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "penstock_kube_members_seconds",
			Help: "From a change of a pod or endpoint to the publishing of the members, the gathering of changes included.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		sets: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_kube_member_sets_total",
			Help: "Sets of members computed anew for a change of pods or endpoints."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_kube_status_writes_total",
			Help: "Writes of status, by kind and result: ok, conflict (which is tried again) or failed."}, []string{"kind", "result"}),
		applies: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_kube_applies_total",
			Help: "Objects applied for Gateways, by resource and result: ok or failed."}, []string{"resource", "result"}),
		leftOut: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_kube_events_left_out_total",
			Help: "Events not written because there were too many at a time."}),
	}
	if reg != nil {
		reg.MustRegister(m.leader, m.objects, m.gateways, m.events, m.translation, m.members, m.sets, m.writes, m.applies, m.leftOut)
	}
	return m
}

func (m *Instruments) event(kind string) { m.events.WithLabelValues(kind).Inc() }

func (m *Instruments) translated(took time.Duration, sizes map[string]int, gateways int) {
	m.translation.Observe(took.Seconds())
	m.gateways.Set(float64(gateways))
	for kind, n := range sizes {
		m.objects.WithLabelValues(kind).Set(float64(n))
	}
}

func (m *Instruments) fed(sets int, took time.Duration) {
	m.sets.Add(float64(sets))
	m.members.Observe(took.Seconds())
}

func (m *Instruments) wrote(kind, result string) { m.writes.WithLabelValues(kind, result).Inc() }

func (m *Instruments) provisioned(resource, result string) {
	m.applies.WithLabelValues(resource, result).Inc()
}

func (m *Instruments) eventLeftOut() { m.leftOut.Inc() }
