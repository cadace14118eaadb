// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Faults in the records of requests.
var (
	errMalformed = errors.New("malformed event by a fault")
	errEvent     = errors.New("error event by a fault")
)

// frames writes a stream of a shape, with the faults that befall it.
type frames struct {
	c       *call
	header  string // content type
	frame   func(name string, data []byte) []byte
	broken  func(name string) []byte
	w       io.Writer
	zip     *gzip.Writer
	tail    string          // after the last frame
	outputs int             // frames of output so far
	done    map[string]bool // faults that have happened
	sent    int
	stopped bool
}

// sse are server-sent events.
func (c *call) sse() *frames {
	return &frames{
		c: c, header: "text/event-stream; charset=utf-8", w: c.w, done: map[string]bool{},
		frame: func(name string, data []byte) []byte {
			var b bytes.Buffer
			if name != "" {
				b.WriteString("event: " + name + "\n")
			}
			b.WriteString("data: ")
			b.Write(data)
			b.WriteString("\n\n")
			return b.Bytes()
		},
		broken: func(name string) []byte {
			if name != "" {
				name = "event: " + name + "\n"
			}
			return []byte(name + `data: {"broken": [` + "\n\n")
		},
	}
}

func (o *frames) ok() bool { return !o.stopped && o.c.err == nil }

// start writes the header.
func (o *frames) start() {
	h := o.c.w.Header()
	h.Set("Content-Type", o.header)
	h.Set("Cache-Control", "no-cache")
	if o.c.faults.wire("gzip") {
		h.Set("Content-Encoding", "gzip")
		o.zip = gzip.NewWriter(o.c.w)
		o.w = o.zip
	}
	o.c.w.WriteHeader(http.StatusOK)
	o.flush()
	o.happen("headers", "")
}

func (o *frames) flush() {
	if o.zip != nil {
		_ = o.zip.Flush()
	}
	if err := http.NewResponseController(o.c.w).Flush(); err != nil && o.c.err == nil {
		o.c.err = err
	}
}

// happen does the faults of a place. It may not return: a fault cuts the
// connection.
func (o *frames) happen(at Place, name string) {
	f := &o.c.faults
	once := func(what string, place Place) bool {
		if place != at || o.done[what] {
			return false
		}
		o.done[what] = true
		return true
	}
	if once("cut", f.Cut) {
		o.flush()
		o.c.cut()
	}
	if once("stall", f.Stall) && !o.c.stall() {
		o.stopped = true
		if o.c.r.Context().Err() == nil {
			o.c.cut() // or it would look like an end
		}
		return
	}
	if once("malformed", f.Malformed) {
		o.raw(o.broken(name))
		o.stopped = true
		o.c.err = errMalformed
	}
	if once("error", f.ErrorEvent) && o.ok() {
		e := f.faultProblem()
		if f.Error == "" {
			e.class = "overloaded"
		}
		o.c.onFail(e)
		o.stopped = true
		o.c.err = errEvent
	}
}

// send writes one frame; output says that it carries output.
func (o *frames) send(name string, v any, output bool) {
	if !o.ok() {
		return
	}
	f := &o.c.faults
	if output {
		if o.outputs == 0 {
			o.happen("preamble", name)
		}
		if o.outputs == max(1, f.After) {
			o.happen("output", name)
		}
		o.outputs++
	}
	if f.CutAfter > 0 && o.sent >= f.CutAfter {
		o.c.cut()
	}
	if !o.ok() {
		return
	}
	data, isRaw := v.([]byte)
	if !isRaw {
		data = encode(v)
	}
	if f.Garbage && o.sent == 1 {
		data = []byte(garbage)
	}
	o.sent++
	b := o.frame(name, data)
	if strings.HasPrefix(o.header, "text/event-stream") {
		b = o.oddly(b)
	}
	o.raw(b)
}

// oddly writes an event in a form that is odd but valid.
func (o *frames) oddly(b []byte) []byte {
	f := &o.c.faults
	if f.wire("unterminated") { // the blank line comes with the next event
		b = bytes.TrimRight(b, "\r\n")
		if o.sent > 1 {
			b = append([]byte("\n\n"), b...)
		}
	}
	if f.wire("comments") {
		b = append([]byte(": keep-alive\n\n"), b...)
		if f.wire("unterminated") {
			b = append([]byte("\n\n"), b...)
		}
	}
	if f.wire("crlf") {
		b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), []byte("\r\n"))
	}
	return b
}

// last comes before what follows the last token.
func (o *frames) last() {
	if o.outputs == 0 {
		o.happen("preamble", "")
	}
	o.happen("output", "")
}

// end closes what is open.
func (o *frames) end() {
	if o.tail != "" && o.ok() {
		o.raw([]byte(o.tail))
	}
	if o.zip != nil {
		_ = o.zip.Close()
	}
}

// raw writes bytes and flushes them.
func (o *frames) raw(b []byte) {
	step := len(b)
	if o.c.faults.wire("split") {
		step = 1
	}
	for ; len(b) > 0 && o.c.err == nil; b = b[min(step, len(b)):] {
		if _, err := o.w.Write(b[:min(step, len(b))]); err != nil {
			o.c.err = err
			return
		}
		o.flush()
	}
}

// reply writes a whole answer, or what a fault makes of it.
func (c *call) reply(v any) {
	c.w.Header().Set("Content-Type", "application/json")
	c.replyBody(append(encode(v), '\n'))
}

func (c *call) replyBody(b []byte) {
	f := &c.faults
	switch {
	case f.CutAfter > 0:
		c.cut()
	case f.Garbage:
		b = []byte(garbage)
	case f.ErrorEvent != "":
		e := f.faultProblem()
		if f.Error == "" {
			e.class = "overloaded"
		}
		c.refuse(e)
		return
	case f.Malformed != "":
		b = b[:len(b)/2]
	case f.Cut != "" || f.Stall != "" && f.Stall != "start":
		place := f.Cut
		if place == "" {
			place = f.Stall
		}
		c.w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		c.w.WriteHeader(http.StatusOK)
		half := len(b) / 2
		if place == "headers" {
			half = 0
		}
		_, _ = c.w.Write(b[:half])
		_ = http.NewResponseController(c.w).Flush()
		if f.Cut != "" || !c.stall() {
			c.cut()
		}
		_, _ = c.w.Write(b[half:])
		return
	}
	c.writeBody(http.StatusOK, b)
}

// writeBody writes a body in the form that the faults ask for.
func (c *call) writeBody(status int, b []byte) {
	f := &c.faults
	if f.wire("gzip") {
		var z bytes.Buffer
		zip := gzip.NewWriter(&z)
		_, _ = zip.Write(b)
		_ = zip.Close()
		b = z.Bytes()
		c.w.Header().Set("Content-Encoding", "gzip")
	}
	c.w.WriteHeader(status)
	step := max(1, len(b))
	if f.wire("split") {
		step = 1
	} else if f.wire("pieces") {
		step = max(1, (len(b)+2)/3)
	}
	for ; len(b) > 0; b = b[min(step, len(b)):] {
		if _, err := c.w.Write(b[:min(step, len(b))]); err != nil {
			return
		}
		if step > 1 && len(b) > step {
			_ = http.NewResponseController(c.w).Flush()
			if !c.sleep(10 * time.Millisecond) {
				return
			}
		} else if step == 1 {
			_ = http.NewResponseController(c.w).Flush()
		}
	}
}

// fields decodes a body into v, which must be an object, and returns the names
// at its top level.
func fields(body []byte, v any) (names []string, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, json.Unmarshal(body, v)
}
