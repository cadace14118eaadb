// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// appendRecord appends r as encoding/json writes it, to the byte, at a fifth of
// what that costs: a record is written for each request. The tags of the types say
// what is to be here.
func appendRecord(b []byte, r *Record) ([]byte, error) {
	w := line{b: append(b, '{')}
	w.key("time")
	w.b = append(w.b, '"')
	var err error
	if w.b, err = r.Time.AppendText(w.b); err != nil {
		return b, err
	}
	w.b = append(w.b, '"')
	w.text("requestId", r.RequestID)
	w.text("listener", r.Listener)
	w.some("route", r.Route)
	w.some("rule", r.Rule)
	w.text("client", r.Client)
	w.text("method", r.Method)
	w.text("path", r.Path)
	w.some("operation", r.Operation)
	w.some("modelAsked", r.ModelAsked)
	w.some("modelUsed", r.ModelUsed)
	w.trace(&r.Trace)
	w.routing(&r.Routing)
	w.some("pool", r.Pool)
	w.some("endpointPicked", r.Picked)
	w.some("endpointServed", r.Served)
	w.some("pickOutcome", r.PickOutcome)
	w.number("attempts", int64(r.Attempts))
	w.key("stream")
	w.b = strconv.AppendBool(w.b, r.Stream)
	w.number("status", int64(r.Status))
	w.some("errorClass", r.ErrorClass)
	w.some("error", r.Error)
	w.key("tokens")
	w.counts(&r.Counts)
	w.some("serviceTier", r.ServiceTier)
	w.cost("costUSD", r.Cost)
	if r.Avoided != nil {
		w.cost("avoidedUSD", *r.Avoided)
	}
	w.some("prices", r.Prices)
	w.some("unpriced", r.Unpriced)
	w.some("finishReason", r.Finish)
	w.seconds("readSeconds", r.Read, true)
	w.seconds("reserveSeconds", r.Reserve, true)
	w.seconds("ttftSeconds", r.TTFT, true)
	w.seconds("tpotSeconds", r.TPOT, true)
	w.seconds("totalSeconds", r.Total, false)
	w.number("bytesIn", r.BytesIn)
	w.number("bytesOut", r.BytesOut)
	w.some("user", r.User)
	w.some("task", r.Task)
	w.some("taskOutcome", r.Outcome)
	if w.err != nil {
		return b, w.err
	}
	return append(w.b, '}', '\n'), nil
}

// line is a record that is being written.
type line struct {
	b   []byte
	err error // the first one
}

func (w *line) key(name string) {
	if last := w.b[len(w.b)-1]; last != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *line) text(name, s string) {
	w.key(name)
	w.quote(s)
}

// some is text that is left out if it is empty.
func (w *line) some(name, s string) {
	if s != "" {
		w.text(name, s)
	}
}

func (w *line) quote(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			w.quoteSlowly(s)
			return
		}
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, s...)
	w.b = append(w.b, '"')
}

func (w *line) quoteSlowly(s string) {
	var quoted bytes.Buffer
	e := json.NewEncoder(&quoted)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil && w.err == nil {
		w.err = err
	}
	w.b = append(w.b, bytes.TrimSuffix(quoted.Bytes(), []byte{'\n'})...)
}

func (w *line) number(name string, n int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, n, 10)
}

func (w *line) someNumber(name string, n int) {
	if n != 0 {
		w.number(name, int64(n))
	}
}

// seconds writes f as ECMAScript does, as encoding/json.
func (w *line) seconds(name string, f float64, omitZero bool) {
	if omitZero && f == 0 {
		return
	}
	w.key(name)
	if math.IsInf(f, 0) || math.IsNaN(f) {
		if w.err == nil {
			w.err = fmt.Errorf("%s: JSON has no number %v", name, f)
		}
		return
	}
	if abs := math.Abs(f); abs == 0 || abs >= 1e-6 && abs < 1e21 {
		w.b = strconv.AppendFloat(w.b, f, 'f', -1, 64)
		return
	}
	w.b = strconv.AppendFloat(w.b, f, 'e', -1, 64)
	if n := len(w.b); n >= 4 && w.b[n-4] == 'e' && w.b[n-3] == '-' && w.b[n-2] == '0' {
		w.b[n-2] = w.b[n-1]
		w.b = w.b[:n-1]
	}
}

func (w *line) texts(name string, list []string) {
	if len(list) == 0 {
		return
	}
	w.key(name)
	for i, s := range list {
		w.between(i)
		w.quote(s)
	}
	w.b = append(w.b, ']')
}

// between goes before the element i of a list.
func (w *line) between(i int) {
	if i == 0 {
		w.b = append(w.b, '[')
	} else {
		w.b = append(w.b, ',')
	}
}

func (w *line) routing(r *Routing) {
	w.some("tenant", r.Tenant)
	w.some("key", r.Key)
	w.some("tier", r.Tier)
	w.some("alias", r.Alias)
	w.some("provider", r.Provider)
	w.some("fallback", r.Fallback)
	if len(r.Tries) > 0 {
		w.key("tries")
		for i := range r.Tries {
			w.between(i)
			w.attempt(&r.Tries[i])
		}
		w.b = append(w.b, ']')
	}
	w.some("bound", r.Bound)
	if len(r.Skipped) > 0 {
		w.key("skipped")
		for i := range r.Skipped {
			w.between(i)
			w.b = append(w.b, '{')
			w.text("target", r.Skipped[i].Target)
			w.text("reason", r.Skipped[i].Reason)
			w.b = append(w.b, '}')
		}
		w.b = append(w.b, ']')
	}
	w.texts("dropped", r.Dropped)
	w.some("limit", r.Limit)
	w.texts("limitWarned", r.Warned)
	w.texts("limitShadow", r.Shadow)
}

func (w *line) trace(t *Trace) {
	if *t == (Trace{}) {
		return
	}
	w.key("trace")
	w.b = append(w.b, '{')
	w.id("traceId", t.ID[:])
	w.id("spanId", t.Span[:])
	w.id("parentSpanId", t.Parent[:])
	if t.Sampled {
		w.key("sampled")
		w.b = append(w.b, "true"...)
	}
	w.b = append(w.b, '}')
}

// id is bytes in hexadecimal, left out if all are zero.
func (w *line) id(name string, id []byte) {
	for _, c := range id {
		if c != 0 {
			w.key(name)
			w.b = append(w.b, '"')
			w.b = append(hex.AppendEncode(w.b, id), '"')
			return
		}
	}
}

func (w *line) attempt(t *Attempt) {
	w.b = append(w.b, '{')
	w.text("target", t.Target)
	w.some("server", t.Server)
	w.some("system", t.System)
	w.some("error", t.Error)
	w.seconds("atSeconds", t.At, false)
	w.seconds("pickSeconds", t.Pick, true)
	w.seconds("seconds", t.Seconds, false)
	if t.Used != nil {
		w.key("used")
		w.b = append(w.b, '{')
		w.key("tokens")
		w.counts(&t.Used.Counts)
		w.cost("costUSD", t.Used.Cost)
		w.b = append(w.b, '}')
	}
	w.b = append(w.b, '}')
}

func (w *line) counts(c *llm.Usage) {
	w.b = append(w.b, '{')
	w.number("input", int64(c.Input))
	w.someNumber("cacheRead", c.CacheRead)
	w.someNumber("cacheWrite", c.CacheWrite)
	w.someNumber("cacheWrite1h", c.CacheWrite1h)
	w.someNumber("audioInput", c.AudioInput)
	w.someNumber("imageInput", c.ImageInput)
	w.number("output", int64(c.Output))
	w.someNumber("reasoning", c.Reasoning)
	w.someNumber("audioOutput", c.AudioOutput)
	w.someNumber("imageOutput", c.ImageOutput)
	w.someNumber("images", c.Images)
	w.someNumber("searches", c.Searches)
	w.someNumber("units", c.Units)
	w.someNumber("millis", c.Millis)
	w.text("source", c.Source.String())
	w.b = append(w.b, '}')
}

func (w *line) cost(name string, c Cost) {
	w.key(name)
	if !c.Known {
		w.b = append(w.b, "null"...)
		return
	}
	w.b = config.USD(c.Pico).Append(w.b)
}
