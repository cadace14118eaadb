// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// This file counts requests under the names of the semantic conventions for
// generative AI. The gateway is a client of whoever serves a request, so the
// gen_ai.client metrics are per attempt, and a server for whoever asks, so the
// gen_ai.server ones are per request. Several were renamed in autumn 2026
// (semantic-conventions-genai #374 and #521): which names are sent is
// telemetry.metrics.genAI.

// mostModels bounds the names of models in these metrics.
const mostModels = 1000

// genAI are the metrics of the conventions. nil: none.
type genAI struct {
	reg    *prometheus.Registry
	models usage.Labels

	duration, chunk, inputs, outputs *prometheus.HistogramVec // per attempt; under the latest names
	tokens                           map[string]*prometheus.CounterVec
	oldDuration, oldChunk, oldTokens *prometheus.HistogramVec // nil: the old names are not sent
	request, first, perToken         *prometheus.HistogramVec // per request
}

func newGenAI(which string) *genAI {
	latest, old := which == config.GenAILatest || which == config.GenAIBoth, which == config.GenAIOld || which == config.GenAIBoth
	if !latest && !old {
		return nil
	}
	g := &genAI{reg: prometheus.NewRegistry(), models: usage.Labels{Most: mostModels}}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, append(attemptLabels(), labels...))
		g.reg.MustRegister(h)
		return h
	}
	seconds := []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36}
	first := []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60}
	amounts := []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
	if latest {
		g.duration = histogram("gen_ai.client.inference.duration", "Duration of a call of a model.", seconds, "error.type")
		g.chunk = histogram("gen_ai.client.inference.time_to_first_chunk", "From a call of a model to the first chunk of its answer.", first)
		g.inputs = histogram("gen_ai.client.inference.operation.input_tokens", "Tokens of the input of a call.", amounts)
		g.outputs = histogram("gen_ai.client.inference.operation.output_tokens", "Tokens of the output of a call.", amounts)
		g.tokens = map[string]*prometheus.CounterVec{}
		for _, kind := range [...]string{"input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens", "reasoning.output_tokens"} {
			c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gen_ai.client.inference.usage." + kind, Help: "Tokens of calls of models: " + kind + "."},
				append(attemptLabels(), "gen_ai.token.modality"))
			g.reg.MustRegister(c)
			g.tokens[kind] = c
		}
	}
	if old {
		g.oldDuration = histogram("gen_ai.client.operation.duration", "Duration of a call of a model.", seconds, "error.type")
		g.oldChunk = histogram("gen_ai.client.operation.time_to_first_chunk", "From a call of a model to the first chunk of its answer.", first)
		g.oldTokens = histogram("gen_ai.client.token.usage", "Tokens of a call of a model.", amounts, "gen_ai.token.type")
	}
	g.request = histogram("gen_ai.server.request.duration", "Duration of a request to the gateway.", seconds, "error.type")
	g.first = histogram("gen_ai.server.time_to_first_token", "From a request to the gateway to the first token of its answer.", first)
	g.perToken = histogram("gen_ai.server.time_per_output_token", "Mean time between the tokens of a stream.",
		[]float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5})
	return g
}

// attemptLabels are on each of the metrics, in this order.
func attemptLabels() []string {
	return []string{"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}
}

// observe counts a request.
func (g *genAI) observe(rec *usage.Record) {
	if g == nil || rec.Operation == "" || len(rec.Tries) == 0 {
		return
	}
	operation := operationOf(rec.Operation)
	last := &rec.Tries[len(rec.Tries)-1]
	model := g.models.Of(modelOf(rec, last))
	failed := rec.ErrorClass
	if failed == "" && rec.Status >= http.StatusBadRequest {
		failed = http.StatusText(rec.Status)
	}
	g.request.WithLabelValues(operation, last.System, model, failed).Observe(rec.Total)
	if rec.TTFT > 0 {
		g.first.WithLabelValues(operation, last.System, model).Observe(rec.TTFT)
	}
	if rec.TPOT > 0 {
		g.perToken.WithLabelValues(operation, last.System, model).Observe(rec.TPOT)
	}
	for i := range rec.Tries {
		t := &rec.Tries[i]
		seconds, counts, chunk := t.Seconds, (*usage.Counts)(nil), 0.
		if t.Used != nil {
			counts = &t.Used.Counts
		}
		if t == last && t.Error == "" {
			seconds = rec.Total - t.At
			if counts == nil {
				counts = &rec.Counts
			}
			if rec.Stream && rec.TTFT > 0 {
				chunk = max(rec.TTFT-t.At, 0)
			}
		}
		g.attempt([]string{operation, t.System, g.models.Of(modelOf(rec, t))}, t.Error, seconds, chunk, counts)
	}
}

// attempt counts a call of a model.
func (g *genAI) attempt(labels []string, failed string, seconds, chunk float64, c *usage.Counts) {
	with := func(more string) []string { return append(labels[:3:3], more) }
	told := c != nil && c.Source != llm.Nothing
	if g.duration != nil {
		g.duration.WithLabelValues(with(failed)...).Observe(seconds)
		if chunk > 0 {
			g.chunk.WithLabelValues(labels...).Observe(chunk)
		}
		if told {
			g.inputs.WithLabelValues(labels...).Observe(float64(c.Prompt()))
			g.outputs.WithLabelValues(labels...).Observe(float64(c.Completion()))
			g.add("input_tokens", labels, c.Prompt()-c.AudioInput-c.ImageInput, c.AudioInput, c.ImageInput)
			g.add("output_tokens", labels, c.Completion()-c.AudioOutput-c.ImageOutput, c.AudioOutput, c.ImageOutput)
			g.add("cache_read.input_tokens", labels, c.CacheRead, 0, 0)
			g.add("cache_write.input_tokens", labels, c.Written(), 0, 0)
			g.add("reasoning.output_tokens", labels, c.Reasoning, 0, 0)
		}
	}
	if g.oldDuration != nil {
		g.oldDuration.WithLabelValues(with(failed)...).Observe(seconds)
		if chunk > 0 {
			g.oldChunk.WithLabelValues(labels...).Observe(chunk)
		}
		if told {
			g.oldTokens.WithLabelValues(with("input")...).Observe(float64(c.Prompt()))
			g.oldTokens.WithLabelValues(with("output")...).Observe(float64(c.Completion()))
		}
	}
}

// add counts tokens of a kind by their modality.
func (g *genAI) add(kind string, labels []string, text, audio, image int) {
	for _, m := range [...]struct {
		name string
		n    int
	}{{"text", text}, {"audio", audio}, {"image", image}} {
		if m.n > 0 {
			g.tokens[kind].WithLabelValues(append(labels[:3:3], m.name)...).Add(float64(m.n))
		}
	}
}

// modelOf is the name of the model that an attempt asked for.
func modelOf(rec *usage.Record, t *usage.Attempt) string {
	if _, model, ok := strings.Cut(t.Target, "/"); ok {
		return model
	}
	if rec.ModelUsed != "" {
		return rec.ModelUsed
	}
	return rec.ModelAsked
}
