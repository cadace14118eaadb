// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Place is where in an answer a fault happens: "start" before the headers,
// "headers" after them, "preamble" before the first output (after what opens a
// stream), "output" after some events of output, at the end at the latest. In
// an answer that is no stream "preamble" and "output" are in the middle.
type Place string

// ProviderFaults are faults of a [Provider] alone; those of Rate's kind.
type ProviderFaults struct {
	// Cut resets the connection, Stall sends nothing more for the time For, 0
	// for ever, Malformed sends an event that cannot be read, ErrorEvent ends
	// the stream with an event of the class Error (in Bedrock's an exception
	// frame).
	Cut        Place `json:"cut,omitzero"`
	Stall      Place `json:"stall,omitzero"`
	Malformed  Place `json:"malformed,omitzero"`
	ErrorEvent Place `json:"errorEvent,omitzero"`
	// After is how many events of output come before the place "output"; 0: 1.
	After int      `json:"after,omitzero"`
	For   Duration `json:"for,omitzero"`
	// Error answers with an error as the shape words it, by class: see
	// [Classes]. Without ErrorEvent it is the whole answer.
	Error string `json:"error,omitzero"`
	// Hints are the forms in which an error says how long to wait, RetryAfter
	// seconds: see [Hints]. None: Retry-After in seconds.
	Hints []string `json:"hints,omitempty"`
	// Wire are forms of the answer: see [Wires].
	Wire []string `json:"wire,omitempty"`
	// Finish ends an answer half-way: "filter", "refusal" or "length"; or
	// "empty": no content and a reason that says nothing.
	Finish string `json:"finish,omitzero"`
	// Model and Key are the only ones that the faults concern; "": all.
	Model string `json:"model,omitzero"`
	Key   string `json:"key,omitzero"`
	// Script are the faults of the next requests, one each, in place of these.
	Script []Faults `json:"script,omitempty"`
}

// Classes are the names of errors.
func Classes() []string {
	return []string{
		"invalid", "auth", "billing", "permission", "path", "model", "timeout", "tooLarge", "unprocessable",
		"rate", "quota", "server", "unavailable", "overloaded", "filter", "context",
	}
}

// Hints are the forms of a wait: the header Retry-After in seconds or as a
// date, retry-after-ms, x-ratelimit-*, Anthropic's headers, Google's RetryInfo
// in the body, or the message alone.
func Hints() []string {
	return []string{"seconds", "date", "ms", "ratelimit", "anthropic", "google", "text", "none"}
}

// Wires are forms of an answer: compressed; every byte alone; a body in three
// pieces with pauses; an answer that is no stream to a stream request; 200 with
// an error as body; an HTML page (with Status, else 502); 200 and nothing; a
// stream without its end; arguments of tools repeated whole after their deltas
// (OpenAI's chat); arguments that come whole at the end only, and errors as
// response.failed in place of error (Responses); text and a tool in one delta.
// And odd but valid streams, which a client must read: comments between events,
// lines that end in CRLF, a last event without its blank line, and chunks of
// chat without choices, delta or id.
func Wires() []string {
	return []string{
		"gzip", "split", "pieces", "json", "error200", "html", "empty", "noEnd", "repeatArguments", "doneOnly", "failedEvent", "together",
		"comments", "crlf", "unterminated", "oddChunks",
	}
}

func (f *ProviderFaults) check() error {
	for _, p := range []Place{f.Cut, f.Stall, f.Malformed, f.ErrorEvent} {
		switch p {
		case "", "start", "headers", "preamble", "output":
		default:
			return fmt.Errorf("sim: faults: place: %q is not start, headers, preamble or output", p)
		}
	}
	switch {
	case f.Malformed == "start" || f.ErrorEvent == "start":
		return fmt.Errorf("sim: faults: place: there is no event before the headers")
	case f.After < 0 || f.For < 0:
		return fmt.Errorf("sim: faults: negative value")
	case f.Error != "" && !slices.Contains(Classes(), f.Error):
		return fmt.Errorf("sim: faults: error: %q is not one of %v", f.Error, Classes())
	}
	for _, h := range f.Hints {
		if !slices.Contains(Hints(), h) {
			return fmt.Errorf("sim: faults: hint: %q is not one of %v", h, Hints())
		}
	}
	for _, w := range f.Wire {
		if !slices.Contains(Wires(), w) {
			return fmt.Errorf("sim: faults: wire: %q is not one of %v", w, Wires())
		}
	}
	switch f.Finish {
	case "", "filter", "refusal", "length", "empty":
	default:
		return fmt.Errorf("sim: faults: finish: %q is not filter, refusal, length or empty", f.Finish)
	}
	for i := range f.Script {
		s := &f.Script[i]
		if len(s.Script) > 0 || s.Refuse > 0 || s.Crash > 0 || s.Hang {
			return fmt.Errorf("sim: faults: script[%d]: refuse, crash, hang and script are not for one request", i)
		}
		if err := s.Check(); err != nil {
			return fmt.Errorf("script[%d]: %w", i, err)
		}
	}
	return nil
}

// concerns says whether the faults are for a request.
func (f *ProviderFaults) concerns(model, key string) bool {
	return (f.Model == "" || f.Model == model) && (f.Key == "" || f.Key == key)
}

func (f *ProviderFaults) wire(name string) bool { return slices.Contains(f.Wire, name) }
