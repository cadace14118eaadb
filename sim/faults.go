// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"
)

// Faults are what a simulated server does wrong. The zero value is none. They
// come by Config, by [Server.SetFaults] or as JSON by POST /sim/faults; paths
// below /sim/ never fail. A POST replaces all faults by those that it names.
type Faults struct {
	// Refuse closes the listener for this long, once: connections are refused,
	// idle ones close, running answers go on.
	Refuse Duration `json:"refuse,omitzero"`
	// Crash resets all connections, empties the engine and refuses connections
	// for this long, once; the start-up delay follows.
	Crash Duration `json:"crash,omitzero"`
	// Hang accepts requests, health checks too, and never answers while it is
	// on. The requests that it caught stay caught until their clients leave.
	Hang bool `json:"hang,omitzero"`
	// Slow multiplies the time of every step; 0 is 1.
	Slow float64 `json:"slow,omitzero"`

	// Rate is the share of requests that the faults below befall; 0 is all.
	Rate float64 `json:"rate,omitzero"`
	// Status answers with this error status; RetryAfter is its header in
	// seconds, 0 for no header.
	Status     int `json:"status,omitzero"`
	RetryAfter int `json:"retryAfter,omitzero"`
	// CutAfter resets the connection after this many events of a stream, or
	// instead of a whole answer.
	CutAfter int `json:"cutAfter,omitzero"`
	// Garbage sends bytes that are neither JSON nor UTF-8 within the answer.
	Garbage bool `json:"garbage,omitzero"`
	// Usage falsifies the usage: "missing", "zero", "huge", "negative", and of
	// a provider "double", and "every" for the usage so far in every event.
	Usage string `json:"usage,omitzero"`
	// Early answers 200 before the request body was read, and closes.
	Early bool `json:"early,omitzero"`
	// Endless sends "headers", "events" or one "line" of an event without end,
	// until the client leaves.
	Endless string `json:"endless,omitzero"`

	ProviderFaults
}

// Check says what is wrong with the values.
func (f *Faults) Check() error {
	switch {
	case f.Refuse < 0 || f.Crash < 0 || f.Slow < 0 || f.RetryAfter < 0 || f.CutAfter < 0:
		return fmt.Errorf("sim: faults: negative value")
	case f.Rate < 0 || f.Rate > 1:
		return fmt.Errorf("sim: faults: rate: %v is not between 0 and 1", f.Rate)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("sim: faults: status: %d is not an error status", f.Status)
	}
	switch f.Usage {
	case "", "missing", "zero", "huge", "negative", "double", "every":
	default:
		return fmt.Errorf("sim: faults: usage: %q is not missing, zero, huge, negative, double or every", f.Usage)
	}
	switch f.Endless {
	case "", "headers", "events", "line":
	default:
		return fmt.Errorf("sim: faults: endless: %q is not headers, events or line", f.Endless)
	}
	return f.ProviderFaults.check()
}

// perRequest is the part that Rate governs.
func (f Faults) perRequest() Faults {
	f.Refuse, f.Crash, f.Hang = 0, 0, false
	return f
}

// Duration is a time.Duration written as "1.5s" in JSON.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// faultBox holds the faults in force and deals them out to requests.
type faultBox struct {
	mu     sync.Mutex
	faults Faults
	seed   uint64
	dealt  uint64
	server bool // of a [Server]
}

func (b *faultBox) set(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.Refuse, f.Crash = 0, 0 // they happen once, when they are set
	b.faults = f
}

func (b *faultBox) get() Faults {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

// refuses says that the faults are not for this kind of simulation.
func (b *faultBox) refuses(f *Faults) error {
	if b.server && (!reflect.ValueOf(f.ProviderFaults).IsZero() || f.Usage == "double" || f.Usage == "every") {
		return errors.New("sim: faults: some of them are for providers only")
	}
	return nil
}

// deal gives the faults of one request: the next of the script, or else what
// stands; deterministic in seed and order.
func (b *faultBox) deal(model, key string) Faults {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.faults
	if len(f.Script) > 0 && f.Script[0].concerns(model, key) {
		f = b.faults.Script[0]
		b.faults.Script = b.faults.Script[1:]
	}
	f.Script = nil
	if !f.concerns(model, key) {
		return Faults{}
	}
	if f.Rate > 0 && f.Rate < 1 {
		b.dealt++
		if float64(mix(b.seed+b.dealt)>>11)/(1<<53) >= f.Rate {
			return Faults{Slow: f.Slow}
		}
	}
	return f.perRequest()
}

// before does what a fault does in place of the handler and says whether it did.
func (f *Faults) before(w http.ResponseWriter, r *http.Request, closing <-chan struct{}) bool {
	switch {
	case f.Early:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, `{"id":"early","object":"chat.completion","choices":[]}`+"\n")
	case f.Status != 0:
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
		writeError(w, &apiError{Status: f.Status, Message: "injected fault", Type: statusType(f.Status)})
	case f.Endless == "headers":
		endlessHeaders(w, closing)
	case f.Endless != "":
		endlessEvents(w, r, f.Endless == "line", closing)
	default:
		return false
	}
	return true
}

// endlessHeaders never comes to the end of the header. Over HTTP/2 it can only
// reset the stream.
func endlessHeaders(w http.ResponseWriter, closing <-chan struct{}) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
	for i := 0; err == nil; i++ {
		select {
		case <-closing:
			return
		default:
		}
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, err = fmt.Fprintf(conn, "x-filler-%d: %064d\r\n", i, i)
	}
}

// endlessEvents streams events, or one event, without end.
func endlessEvents(w http.ResponseWriter, r *http.Request, oneLine bool, closing <-chan struct{}) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := []byte(`data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"on "}}]}` + "\n\n")
	if oneLine {
		_, _ = io.WriteString(w, "data: ")
		chunk = make([]byte, 4096)
		for i := range chunk {
			chunk[i] = 'x'
		}
	}
	out := http.NewResponseController(w)
	for {
		select {
		case <-closing:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		default:
		}
		if _, err := w.Write(chunk); err != nil || out.Flush() != nil {
			return
		}
	}
}

// cut resets the connection, or the stream over HTTP/2.
func cut(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
	}
	panic(http.ErrAbortHandler)
}

// garbage is no UTF-8, no JSON and holds a NUL.
const garbage = "\xff\xfe\x00{]\xc3\x28garbage"

// falsify is the usage as the fault has it; nil is none.
func (f *Faults) falsify(u *usage) *usage {
	switch f.Usage {
	case "missing":
		return nil
	case "zero":
		return &usage{}
	case "huge":
		return newUsage(counts{prompt: 1 << 53, cached: 1 << 52, output: 1 << 53})
	case "negative":
		return newUsage(counts{prompt: -u.PromptTokens, output: -u.CompletionTokens})
	}
	return u
}

// ReadFaults decodes the JSON form strictly and checks it.
func ReadFaults(r io.Reader) (f Faults, err error) {
	dec := json.NewDecoder(io.LimitReader(r, 1<<16))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return Faults{}, fmt.Errorf("sim: faults: %w", err)
	}
	return f, f.Check()
}
