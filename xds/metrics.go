// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ServerInstruments are the metrics of a control plane.
type ServerInstruments struct {
	gateways     prometheus.Gauge
	clients      prometheus.Gauge
	responses    *prometheus.CounterVec
	bytes        *prometheus.CounterVec
	replies      *prometheus.CounterVec
	propagation  *prometheus.HistogramVec
	certificates *prometheus.CounterVec
}

// NewServerInstruments registers the metrics with reg; nil: nowhere.
func NewServerInstruments(reg prometheus.Registerer) *ServerInstruments {
	m := &ServerInstruments{
		gateways: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_xds_gateways",
			Help: "Gateways whose configuration is served."}),
		clients: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_xds_clients",
			Help: "Gateway processes that are connected."}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_xds_responses_total",
			Help: "Responses sent, by type of resource (config, members)."}, []string{"type"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_xds_response_bytes_total",
			Help: "Bytes of resources sent, by type."}, []string{"type"}),
		replies: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_xds_replies_total",
			Help: "Answers of gateways, by type and result: ack, or nack when something was refused."}, []string{"type", "result"}),
		propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_xds_propagation_seconds",
			Help:    "From a change to its being in force at one gateway, by type; the gathering of changes included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"type"}),
		certificates: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_xds_certificates_total",
			Help: "Requests of gateways for a certificate, by result: issued or refused."}, []string{"result"}),
	}
	if reg != nil {
		reg.MustRegister(m.gateways, m.clients, m.responses, m.bytes, m.replies, m.propagation, m.certificates)
	}
	return m
}

func (m *ServerInstruments) response(typeURL string, size int) {
	m.responses.WithLabelValues(short(typeURL)).Inc()
	m.bytes.WithLabelValues(short(typeURL)).Add(float64(size))
}

func (m *ServerInstruments) reply(typeURL, result string, since time.Time) {
	m.replies.WithLabelValues(short(typeURL), result).Inc()
	if result == "ack" {
		m.propagation.WithLabelValues(short(typeURL)).Observe(time.Since(since).Seconds())
	}
}

func (m *ServerInstruments) certificate(result string) { m.certificates.WithLabelValues(result).Inc() }

// ClientInstruments are the metrics of a gateway that has a control plane.
type ClientInstruments struct {
	connected   prometheus.Gauge
	contact     prometheus.Gauge
	updates     *prometheus.CounterVec
	failures    prometheus.Counter
	certificate prometheus.Gauge
	saved       *prometheus.CounterVec
}

// NewClientInstruments registers the metrics with reg; nil: nowhere.
func NewClientInstruments(reg prometheus.Registerer) *ClientInstruments {
	m := &ClientInstruments{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_controller_connected",
			Help: "1 while the controller is reached, else 0."}),
		contact: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_controller_last_update_timestamp_seconds",
			Help: "When the controller last sent something that was taken."}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_controller_updates_total",
			Help: "Resources from the controller, by type (config, members) and result: applied or refused."}, []string{"type", "result"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_controller_failures_total",
			Help: "Attempts to reach the controller that failed, and connections that broke."}),
		certificate: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_controller_certificate_expiry_timestamp_seconds",
			Help: "When the certificate ends by which this gateway proves itself; 0: it has none."}),
		saved: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_controller_state_saves_total",
			Help: "Savings of the last good state, by result: ok or failed."}, []string{"result"}),
	}
	if reg != nil {
		reg.MustRegister(m.connected, m.contact, m.updates, m.failures, m.certificate, m.saved)
	}
	return m
}
