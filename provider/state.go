// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import "time"

// TargetState is how a provider is at a model, as JSON for `penstock get
// targets` and for choosing among targets.
type TargetState struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// State is that of the fittest credential: ready, half-open, probing, cooling.
	State       string            `json:"state"`
	Until       time.Time         `json:"until,omitzero"`   // of cooling: when the first is back
	Reason      string            `json:"reason,omitempty"` // of cooling
	LatencyMS   float64           `json:"latencyMs,omitempty"`
	InFlight    int               `json:"inFlight"`
	Credentials []CredentialState `json:"credentials"`
}

// Ready says whether a request may be sent without waiting.
func (s TargetState) Ready() bool { return s.State == "ready" || s.State == "half-open" }

// CredentialState is one credential at a model.
type CredentialState struct {
	Name      string    `json:"name"`
	Weight    int       `json:"weight"`
	State     string    `json:"state"`
	Until     time.Time `json:"until,omitzero"`
	Reason    string    `json:"reason,omitempty"`
	Failures  int       `json:"failures"` // in a row
	Trips     int       `json:"trips"`    // times out in a row
	LatencyMS float64   `json:"latencyMs,omitempty"`
	InFlight  int       `json:"inFlight"`
	Requests  *Limit    `json:"requests,omitempty"` // the provider's limits; nil: it names none
	Tokens    *Limit    `json:"tokens,omitempty"`
	Fault     string    `json:"fault,omitempty"` // of the secret's file: the last good value is in use
}

// State is how the provider is at a model.
func (p *Provider) State(model string) TargetState {
	for _, c := range p.credentials {
		c.look()
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := TargetState{Provider: p.name, Model: model, Credentials: make([]CredentialState, 0, len(p.credentials))}
	best := cooling + 1
	for _, c := range p.credentials {
		h := c.models[model]
		if h == nil {
			h = &health{}
		}
		f, until := c.fitness(h, now)
		reason := h.reason
		if c.whole.fitness(now) == f && !c.whole.until.IsZero() && c.whole.until.Equal(until) {
			reason = c.whole.reason
		}
		cs := CredentialState{
			Name: c.name, Weight: c.weight, State: f.String(), Failures: h.failures, Trips: max(h.trips, c.whole.trips),
			LatencyMS: milliseconds(h.latency), InFlight: h.inFlight,
		}
		if f != ready {
			cs.Reason = reason.String()
		}
		if f == cooling {
			cs.Until = until
		}
		if l := h.limits[requestBucket]; !l.At.IsZero() {
			cs.Requests = &l
		}
		if l := h.limits[tokenBucket]; !l.At.IsZero() {
			cs.Tokens = &l
		}
		if fault := c.fault.Load(); fault != nil {
			cs.Fault = *fault
		}
		s.Credentials = append(s.Credentials, cs)
		s.InFlight += h.inFlight
		if h.latency > 0 && (s.LatencyMS == 0 || cs.LatencyMS < s.LatencyMS) {
			s.LatencyMS = cs.LatencyMS
		}
		if f < best || f == best && f == cooling && until.Before(s.Until) {
			best, s.State, s.Until, s.Reason = f, cs.State, cs.Until, cs.Reason
		}
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Ready says whether a request for a model may be sent without waiting: it is
// State for choosing among targets, and does not allocate.
func (p *Provider) Ready(model string) bool {
	for _, c := range p.credentials {
		c.look() // one that is out is not picked, and would not learn of a new secret
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.credentials {
		if f, _ := c.fitness(c.of(model, now), now); f <= halfOpen {
			return true
		}
	}
	return false
}
