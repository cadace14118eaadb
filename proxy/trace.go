// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
)

// This file is what a request knows of traces. Spans are made of its record, when
// it has ended (package usage/otlp): until then it only carries ids.

// traceOf is the trace of a request with header h; none if traces are off. Then
// what the client says of its own passes through to the servers.
func (t *table) traceOf(h http.Header) usage.Trace {
	if t == nil || t.cfg.Telemetry.Off() {
		return usage.Trace{}
	}
	c := &t.cfg.Telemetry.Traces
	return usage.ReadTrace(h.Get("Traceparent"), h.Get("Tracestate"), c.Sample, c.Parent == config.ParentFollow)
}

// systemOf is the name of a provider as OpenTelemetry's gen_ai.provider.name has
// it (semantic-conventions-genai 1.42). quirks: that of a compatible server.
func systemOf(d config.ProviderKind, quirks string) string {
	switch d {
	case config.ProviderAzure:
		return "azure.ai.openai"
	case config.ProviderGemini:
		return "gcp.gemini"
	case config.ProviderVertex:
		return "gcp.vertex_ai"
	case config.ProviderBedrock:
		return "aws.bedrock"
	case config.ProviderOpenAI:
		switch quirks {
		case "mistral":
			return "mistral_ai"
		case "xai":
			return "x_ai"
		case "moonshot":
			return "moonshot_ai"
		case "":
			return "openai"
		}
		return quirks
	}
	return string(d)
}

// engineOf stands in the place of a provider's name where a pool serves, for
// which the conventions have none.
func engineOf(p *config.Pool) string {
	if p.Engine == "" || p.Engine == config.Auto {
		return "pool"
	}
	return string(p.Engine)
}
