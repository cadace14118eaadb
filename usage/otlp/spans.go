// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// The spans of one request, as they are told:
//
//	POST /v1/chat/completions      server   the request, from its head to its last byte
//	├ read                         internal the client's body
//	├ quota                        internal the limits were asked
//	├ pick                         internal per pick; its events are the candidates
//	├ chat gpt-x                   client   per attempt, as the conventions for generative AI have it
//	└ stream                       internal from the first output on
//
// The numbers of children that are no attempts stand behind those that attempts
// can have; see [usage.Trace.Child].
const (
	childRead = 1_000_000 + iota
	childQuota
	childStream
	childPick // and further ones
)

// spansOf are the spans of a record.
func spansOf(rec *usage.Record, picks []Pick) []*tracepb.Span {
	b := builder{rec: rec}
	b.request()
	if rec.Read > 0 {
		b.child(childRead, "read", 0, rec.Read, number("penstock.request.bytes", rec.BytesIn))
	}
	if rec.Reserve > 0 {
		b.child(childQuota, "quota", rec.Read, rec.Read+rec.Reserve, text("penstock.limit", rec.Limit))
	}
	for i := range picks {
		b.pick(i, &picks[i])
	}
	for i := range rec.Tries {
		b.attempt(i, &rec.Tries[i])
	}
	if n := len(rec.Tries); rec.Stream && n > 0 && rec.Tries[n-1].Error == "" {
		t := &rec.Tries[n-1]
		b.child(childStream, "stream", t.At+t.Seconds, rec.Total, number("penstock.response.bytes", rec.BytesOut), text("error.type", rec.ErrorClass))
	}
	return b.spans
}

type builder struct {
	rec   *usage.Record
	spans []*tracepb.Span
}

// at is a moment of the request, in Unix nanoseconds.
func (b *builder) at(seconds float64) uint64 {
	return uint64(b.rec.Time.UnixNano()) + uint64(max(seconds, 0)*float64(time.Second))
}

// request is the root.
func (b *builder) request() {
	rec := b.rec
	host, port := address(rec.Client)
	s := &tracepb.Span{
		TraceId: rec.Trace.ID[:], SpanId: rec.Trace.Span[:], TraceState: rec.Trace.State,
		Name: rec.Method + " " + rec.Path, Kind: tracepb.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: b.at(0), EndTimeUnixNano: b.at(rec.Total), Flags: flags,
		Attributes: list(
			text("http.request.method", rec.Method), text("url.path", rec.Path), number("http.response.status_code", int64(rec.Status)),
			text("client.address", host), number("client.port", port), text("error.type", rec.ErrorClass),
			text("penstock.request.id", rec.RequestID), text("penstock.listener", rec.Listener), text("penstock.route", rec.Route),
			text("penstock.tenant", rec.Tenant), text("penstock.key", rec.Key), text("penstock.tier", rec.Tier),
			text("penstock.model", rec.ModelAsked), text("penstock.alias", rec.Alias), text("penstock.fallback", rec.Fallback),
			text("penstock.pick.outcome", rec.PickOutcome), text("penstock.limit", rec.Limit), text("penstock.task", rec.Task),
			number("penstock.attempts", int64(rec.Attempts)), text("penstock.prices", rec.Prices),
		),
	}
	if rec.Trace.Parent != (usage.SpanID{}) {
		s.ParentSpanId = rec.Trace.Parent[:]
	}
	if rec.Cost.Known && rec.Counts.Source != llm.Nothing {
		s.Attributes = append(s.Attributes, float("penstock.cost.usd", float64(rec.Cost.Pico)/1e12))
	}
	if rec.TTFT > 0 {
		s.Attributes = append(s.Attributes, float("penstock.time_to_first_token", rec.TTFT))
	}
	if rec.Status >= 500 {
		s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR}
	}
	b.spans = append(b.spans, s)
}

// flags say that the trace is sampled, and that whether a parent is remote is
// known.
const flags = 0x101

func (b *builder) child(n int, name string, from, to float64, attrs ...*commonpb.KeyValue) *tracepb.Span {
	id := b.rec.Trace.Child(n)
	s := &tracepb.Span{
		TraceId: b.rec.Trace.ID[:], SpanId: id[:], ParentSpanId: b.rec.Trace.Span[:], TraceState: b.rec.Trace.State,
		Name: name, Kind: tracepb.Span_SPAN_KIND_INTERNAL, Flags: flags,
		StartTimeUnixNano: b.at(from), EndTimeUnixNano: b.at(max(from, to)), Attributes: list(attrs...),
	}
	b.spans = append(b.spans, s)
	return s
}

// attempt is one call of a server.
func (b *builder) attempt(i int, t *usage.Attempt) {
	rec := b.rec
	operation := operationOf(rec.Operation)
	target, _, _ := strings.Cut(t.Target, "/")
	model := modelOf(rec, t)
	to, last := t.At+t.Seconds, i == len(rec.Tries)-1
	if last && t.Error == "" {
		to = rec.Total
	}
	s := b.child(i+1, operation+" "+model, t.At, to,
		text("gen_ai.operation.name", operation), text("gen_ai.provider.name", t.System), text("gen_ai.request.model", model),
		text("penstock.target", target), text("penstock.server", t.Server), number("penstock.attempt", int64(i+1)),
	)
	s.Kind = tracepb.Span_SPAN_KIND_CLIENT
	if rec.Stream {
		s.Attributes = append(s.Attributes, flag("gen_ai.request.stream"))
	}
	if host, port := address(t.Server); port > 0 {
		s.Attributes = append(s.Attributes, text("server.address", host), number("server.port", port))
	}
	var counts *usage.Counts
	switch {
	case t.Used != nil:
		counts = &t.Used.Counts
	case last && t.Error == "":
		counts = &rec.Counts
	}
	if last && t.Error == "" {
		s.Attributes = append(s.Attributes, list(text("gen_ai.response.model", rec.ModelUsed))...)
		if rec.Finish != "" {
			s.Attributes = append(s.Attributes, texts("gen_ai.response.finish_reasons", rec.Finish))
		}
		if rec.Stream && rec.TTFT > 0 {
			s.Attributes = append(s.Attributes, float("gen_ai.response.time_to_first_chunk", max(rec.TTFT-t.At, 0)))
		}
		if rec.ErrorClass != "" && rec.Status/100 != 4 || rec.Status >= 500 {
			s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR}
			s.Attributes = append(s.Attributes, list(text("error.type", rec.ErrorClass))...)
		}
	}
	if t.Error != "" {
		s.Attributes = append(s.Attributes, text("error.type", t.Error))
		s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR}
	}
	if counts != nil && counts.Source != llm.Nothing {
		s.Attributes = append(s.Attributes, number("gen_ai.usage.input_tokens", int64(counts.Prompt())), number("gen_ai.usage.output_tokens", int64(counts.Completion())))
		for _, a := range []struct {
			name string
			n    int
		}{
			{"gen_ai.usage.cache_read.input_tokens", counts.CacheRead}, {"gen_ai.usage.cache_write.input_tokens", counts.Written()},
			{"gen_ai.usage.reasoning.output_tokens", counts.Reasoning},
		} {
			if a.n > 0 {
				s.Attributes = append(s.Attributes, number(a.name, int64(a.n)))
			}
		}
		s.Attributes = append(s.Attributes, text("penstock.usage.source", counts.Source.String()))
	}
}

// mostCandidates bounds the events of one pick.
const mostCandidates = 32

func (b *builder) pick(i int, p *Pick) {
	from := p.At.Sub(b.rec.Time).Seconds()
	s := b.child(childPick+i, "pick", from, from+p.Took.Seconds(),
		text("penstock.pool", p.Pool), text("penstock.pick.profile", p.Profile), text("penstock.pick.reason", p.Reason), text("penstock.pick.endpoint", p.Picked))
	for j := range p.Candidates {
		if j == mostCandidates {
			s.DroppedEventsCount = uint32(len(p.Candidates) - j)
			break
		}
		c := &p.Candidates[j]
		e := &tracepb.Span_Event{TimeUnixNano: s.EndTimeUnixNano, Name: "candidate", Attributes: list(text("penstock.endpoint", c.Endpoint), text("penstock.refused_by", c.RefusedBy))}
		if c.RefusedBy == "" {
			e.Attributes = append(e.Attributes, float("penstock.score", c.Score))
			for _, name := range sorted(c.Scores) {
				e.Attributes = append(e.Attributes, float("penstock.score."+name, c.Scores[name]))
			}
		}
		s.Events = append(s.Events, e)
	}
}

// operationOf is the conventions' name of an operation.
func operationOf(op string) string {
	switch op {
	case "chat", "responses", "messages":
		return "chat"
	case "completions":
		return "text_completion"
	case "generate":
		return "generate_content"
	case "embeddings", "embed_content", "embed_contents":
		return "embeddings"
	}
	return op
}

// logOf is a record as a log record: its JSON is the body.
func logOf(rec *usage.Record) *logspb.LogRecord {
	body, err := json.Marshal(rec)
	if err != nil { // a float that JSON cannot say
		body = []byte(`{"error":"the record cannot be written as JSON"}`)
	}
	l := &logspb.LogRecord{
		TimeUnixNano: uint64(rec.Time.UnixNano() + int64(rec.Total*float64(time.Second))), ObservedTimeUnixNano: uint64(time.Now().UnixNano()),
		SeverityNumber: logspb.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO", EventName: "penstock.request",
		Body: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: string(body)}},
		Attributes: list(
			text("penstock.request.id", rec.RequestID), text("penstock.tenant", rec.Tenant), text("gen_ai.request.model", rec.ModelAsked),
			number("http.response.status_code", int64(rec.Status)), text("error.type", rec.ErrorClass),
		),
	}
	if rec.Status >= 500 {
		l.SeverityNumber, l.SeverityText = logspb.SeverityNumber_SEVERITY_NUMBER_ERROR, "ERROR"
	}
	if rec.Trace.ID != (usage.TraceID{}) {
		l.TraceId, l.SpanId = rec.Trace.ID[:], rec.Trace.Span[:]
		if rec.Trace.Sampled {
			l.Flags = 1
		}
	}
	return l
}

// address splits host:port; port 0: there is none.
func address(s string) (host string, port int64) {
	h, p, err := net.SplitHostPort(s)
	if err != nil {
		return s, 0
	}
	n, _ := strconv.ParseUint(p, 10, 16)
	return h, int64(n)
}
