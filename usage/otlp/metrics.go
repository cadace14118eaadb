// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
)

// sendMetrics sends one report. What cannot be gathered is told and left out.
func (e *Exporter) sendMetrics(start time.Time) {
	families, err := e.gather.Gather()
	if err != nil {
		e.log.Warn("some metrics cannot be gathered", "error", err)
	}
	now := uint64(time.Now().UnixNano())
	var out []*metricspb.Metric
	for _, f := range families {
		if m := metricOf(f, uint64(start.UnixNano()), now); m != nil {
			out = append(out, m)
		}
	}
	scope := &commonpb.InstrumentationScope{Name: "github.com/penstock/penstock"}
	e.send(signalMetrics, 1, func(ctx context.Context) (int64, error) {
		return e.client.measures(ctx, []*metricspb.ResourceMetrics{{
			Resource: e.resource, ScopeMetrics: []*metricspb.ScopeMetrics{{Scope: scope, Metrics: out}},
		}})
	})
}

// metricOf is a family of Prometheus in OTLP, cumulative since start. nil: it has
// no form there.
func metricOf(f *dto.MetricFamily, start, now uint64) *metricspb.Metric {
	m := &metricspb.Metric{Name: f.GetName(), Description: f.GetHelp(), Unit: unitOf(f.GetName())}
	numbers := func(value func(*dto.Metric) float64) (points []*metricspb.NumberDataPoint) {
		for _, x := range f.Metric {
			points = append(points, &metricspb.NumberDataPoint{
				Attributes: labels(x), StartTimeUnixNano: start, TimeUnixNano: now, Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: value(x)},
			})
		}
		return points
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{
			IsMonotonic: true, AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
			DataPoints: numbers(func(x *dto.Metric) float64 { return x.GetCounter().GetValue() }),
		}}
	case dto.MetricType_GAUGE:
		m.Data = &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: numbers(func(x *dto.Metric) float64 { return x.GetGauge().GetValue() })}}
	case dto.MetricType_UNTYPED:
		m.Data = &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: numbers(func(x *dto.Metric) float64 { return x.GetUntyped().GetValue() })}}
	case dto.MetricType_HISTOGRAM:
		h := &metricspb.Histogram{AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}
		for _, x := range f.Metric {
			h.DataPoints = append(h.DataPoints, histogramOf(x, start, now))
		}
		m.Data = &metricspb.Metric_Histogram{Histogram: h}
	case dto.MetricType_SUMMARY:
		s := &metricspb.Summary{}
		for _, x := range f.Metric {
			p := &metricspb.SummaryDataPoint{Attributes: labels(x), StartTimeUnixNano: start, TimeUnixNano: now, Count: x.GetSummary().GetSampleCount(), Sum: x.GetSummary().GetSampleSum()}
			for _, q := range x.GetSummary().GetQuantile() {
				p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
			}
			s.DataPoints = append(s.DataPoints, p)
		}
		m.Data = &metricspb.Metric_Summary{Summary: s}
	default:
		return nil
	}
	return m
}

// histogramOf turns cumulative buckets into counts of each, with one more for what
// lies above all bounds.
func histogramOf(x *dto.Metric, start, now uint64) *metricspb.HistogramDataPoint {
	h := x.GetHistogram()
	p := &metricspb.HistogramDataPoint{
		Attributes: labels(x), StartTimeUnixNano: start, TimeUnixNano: now, Count: h.GetSampleCount(), Sum: h.SampleSum,
	}
	before := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			break
		}
		p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
		p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-before)
		before = b.GetCumulativeCount()
	}
	p.BucketCounts = append(p.BucketCounts, h.GetSampleCount()-before)
	return p
}

func labels(x *dto.Metric) []*commonpb.KeyValue {
	var out []*commonpb.KeyValue
	for _, l := range x.GetLabel() {
		out = append(out, text(l.GetName(), l.GetValue()))
	}
	return list(out...)
}

// unitOf is the unit that a name ends in, as UCUM writes it.
func unitOf(name string) string {
	if strings.HasPrefix(name, "gen_ai.") {
		if strings.Contains(name, "token") && !strings.Contains(name, "time_") {
			return "{token}"
		}
		return "s"
	}
	name = strings.TrimSuffix(name, "_total")
	for _, u := range [...]struct{ suffix, unit string }{
		{"_seconds", "s"}, {"_bytes", "By"}, {"_tokens", "{token}"}, {"_usd", "{USD}"}, {"_ratio", "1"},
	} {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return ""
}
