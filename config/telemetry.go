// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Telemetry is what is sent to an OpenTelemetry collector.
type Telemetry struct {
	OTLP    OTLP        `yaml:"otlp"`
	Traces  Traces      `yaml:"traces"`
	Metrics OTLPMetrics `yaml:"metrics"`
	// Records sends the record of each request as a log record.
	Records bool `yaml:"records"`
	// Resource are attributes of the gateway as a whole, beside service.name and
	// service.version.
	Resource map[string]string `yaml:"resource"`
	Buffer   int               `yaml:"buffer" default:"4096" min:"16" max:"1000000"` // records that wait to be sent
}

// OTLP is where the collector is.
type OTLP struct {
	Endpoint string            `yaml:"endpoint"`                                 // http://host:4317; empty: nothing is sent
	Protocol string            `yaml:"protocol" default:"grpc" enum:"grpc|http"` // http: protobuf, at /v1/traces and so on
	Headers  map[string]Secret `yaml:"headers"`
	TLS      *ClientTLS        `yaml:"tls"` // of an https endpoint; nil: the system's authorities
	Timeout  Duration          `yaml:"timeout" default:"10s" min:"100ms" max:"1m"`
}

// Traces says which requests are traced, where there is a collector.
type Traces struct {
	Sample float64 `yaml:"sample" default:"0.01" min:"0" max:"1"`        // share of the requests that begin a trace
	Parent string  `yaml:"parent" default:"follow" enum:"follow|ignore"` // what a client's own decision means
}

// ParentFollow lets a client's traceparent decide whether its request is traced.
const ParentFollow = "follow"

// OTLPMetrics says how metrics are sent.
type OTLPMetrics struct {
	Interval Duration `yaml:"interval" default:"0s" min:"0s" max:"1h"` // 0s: they are not
	// GenAI adds metrics under the names of the semantic conventions for generative
	// AI: the latest ones, those of before autumn 2026, or both.
	GenAI string `yaml:"genAI" default:"latest" enum:"off|old|latest|both"`
}

// Values of OTLPMetrics.GenAI.
const (
	GenAIOld    = "old"
	GenAILatest = "latest"
	GenAIBoth   = "both"
)

// Off says that there is no collector.
func (t *Telemetry) Off() bool { return t.OTLP.Endpoint == "" }

func (v *validator) telemetry() {
	t := &v.c.Telemetry
	if t.Off() {
		const hint = "name the collector, such as http://otel-collector:4317"
		if t.Records {
			v.fail("telemetry.records", "needs telemetry.otlp.endpoint", hint)
		}
		if t.Metrics.Interval > 0 {
			v.fail("telemetry.metrics.interval", "needs telemetry.otlp.endpoint", hint)
		}
		return
	}
	u, err := url.Parse(t.OTLP.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		v.fail("telemetry.otlp.endpoint", fmt.Sprintf("%q is not the address of a collector", t.OTLP.Endpoint), "write http://host:4317, or https:// with TLS")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		v.fail("telemetry.otlp.endpoint", "has more than scheme, host and path", "put credentials into telemetry.otlp.headers")
	case t.OTLP.Protocol == "grpc" && strings.Trim(u.Path, "/") != "":
		v.fail("telemetry.otlp.endpoint", "has a path, which gRPC does not use", "remove it, or say protocol: http")
	case t.OTLP.TLS != nil && u.Scheme != "https":
		v.fail("telemetry.otlp.tls", "is for an https endpoint", "write https://, or remove it")
	}
	for _, name := range slices.Sorted(maps.Keys(t.OTLP.Headers)) {
		if !headerName(name) {
			v.fail("telemetry.otlp.headers", fmt.Sprintf("%q is not the name of a header", name), "use letters, digits and -")
		}
	}
}
