// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// TraceID and SpanID are the ids of W3C Trace Context. All zero: none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Trace is where a request stands in a distributed trace
// (https://www.w3.org/TR/trace-context/). The zero value: traces are off.
type Trace struct {
	ID      TraceID `json:"traceId,omitzero"`
	Span    SpanID  `json:"spanId,omitzero"`       // of the request in this gateway
	Parent  SpanID  `json:"parentSpanId,omitzero"` // the client's; zero: the trace begins here
	Sampled bool    `json:"sampled,omitempty"`
	State   string  `json:"-"` // tracestate, as it came
}

// MarshalText is the id in lower-case hexadecimal.
func (id TraceID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// MarshalText is the id in lower-case hexadecimal.
func (id SpanID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads what MarshalText writes.
func (id *TraceID) UnmarshalText(b []byte) error { return unhex(id[:], b) }

// UnmarshalText reads what MarshalText writes.
func (id *SpanID) UnmarshalText(b []byte) error { return unhex(id[:], b) }

func unhex(to, from []byte) error {
	if len(from) != hex.EncodedLen(len(to)) {
		return hex.ErrLength
	}
	_, err := hex.Decode(to, from)
	return err
}

func (id TraceID) String() string { return hex.EncodeToString(id[:]) }
func (id SpanID) String() string  { return hex.EncodeToString(id[:]) }

// maxTraceState bounds a tracestate that is passed on; a longer one is dropped,
// as the standard allows from 512 bytes on.
const maxTraceState = 512

// ReadTrace is the trace that a request belongs to by its headers, with a span of
// its own; of a new trace if they name none, or not validly. A new one is sampled
// with the share that is given, and so are others if follow is false.
func ReadTrace(parent, state string, share float64, follow bool) Trace {
	var t Trace
	named := t.read(parent)
	binary.LittleEndian.PutUint64(t.Span[:], rand.Uint64()|1)
	if !named {
		binary.LittleEndian.PutUint64(t.ID[:], rand.Uint64())
		binary.LittleEndian.PutUint64(t.ID[8:], rand.Uint64()|1)
	} else if len(state) <= maxTraceState {
		t.State = state
	}
	if !named || !follow {
		// By the id, so that gateways behind each other decide alike.
		t.Sampled = float64(binary.BigEndian.Uint64(t.ID[8:])>>11) < share*(1<<53)
	}
	return t
}

// read takes a traceparent, and says whether it was one.
func (t *Trace) read(s string) bool {
	s = strings.TrimSpace(s)
	// version-traceid-parentid-flags; later versions may have more behind it.
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || len(s) > 55 && (s[:2] == "00" || s[55] != '-') || s[:2] == "ff" {
		return false
	}
	var flags, version [1]byte
	var id TraceID
	var parent SpanID
	for _, part := range [...]struct {
		to   []byte
		from string
	}{{version[:], s[:2]}, {id[:], s[3:35]}, {parent[:], s[36:52]}, {flags[:], s[53:55]}} {
		if strings.ToLower(part.from) != part.from {
			return false
		}
		if _, err := hex.Decode(part.to, []byte(part.from)); err != nil {
			return false
		}
	}
	if id == (TraceID{}) || parent == (SpanID{}) {
		return false
	}
	t.ID, t.Parent, t.Sampled = id, parent, flags[0]&1 != 0
	return true
}

// Child is the id of a span below the request's: n tells them apart, from 1. It
// follows from the request's own, so that what was told to a server at the time
// can be told to a collector later.
func (t *Trace) Child(n int) (id SpanID) {
	// The finalizer of SplitMix64: ids that differ in one bit look unrelated.
	z := binary.LittleEndian.Uint64(t.Span[:]) + uint64(n)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	binary.LittleEndian.PutUint64(id[:], z^z>>31|1)
	return id
}

// Header is the traceparent for a server that is called under span.
func (t *Trace) Header(span SpanID) string {
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, t.ID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	if t.Sampled {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}
