// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"context"
	"log/slog"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
	"github.com/prometheus/client_golang/prometheus"
)

// CONTRACT of the package towards proxy, admin and cmd. The bodies are still
// to be written; the names and meanings are settled.

// Profile is a compiled picker profile: immutable, shared.
type Profile struct{}

// Builtin returns the EndpointPickerConfig of a built-in profile (default,
// llm-d-sticky, llm-d-blend, lmetric, least-request, round-robin, random, …).
func Builtin(name string) (*config.EndpointPickerConfig, bool) { panic("to be written") }

// Compile checks an EndpointPickerConfig strictly: an unknown plug-in type, an
// unknown parameter or a section that is not supported is a *config.Problem
// whose Path is relative to cfg.
func Compile(cfg *config.EndpointPickerConfig) (*Profile, error) { panic("to be written") }

// Instruments are the Prometheus metrics of all schedulers
// (penstock_pool_picks_total and others).
type Instruments struct{}

func NewInstruments(reg prometheus.Registerer) *Instruments { panic("to be written") }

// Options of a Scheduler; the zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments
	Now     func() time.Time // virtual time; nil: time.Now
	Seed    uint64           // of ties; 0: random
	Explain int              // picks kept for explanation; 0: 1024; <0: none
}

// Scheduler is the Picker in this process: one per pool.
type Scheduler struct{}

func New(p *pool.Pool, profile *Profile, o Options) *Scheduler { panic("to be written") }

// SetProfile swaps the profile; index, learnt speeds and counts stay.
func (s *Scheduler) SetProfile(p *Profile) { panic("to be written") }

func (s *Scheduler) Pick(ctx context.Context, r *Request) (*Result, error) { panic("to be written") }

// Explain decides as Pick would and changes nothing.
func (s *Scheduler) Explain(r *Request) *Explanation { panic("to be written") }

// Recent returns the newest explanations first, at most n; Find one by request id.
func (s *Scheduler) Recent(n int) []*Explanation { panic("to be written") }
func (s *Scheduler) Find(requestID string) *Explanation {
	panic("to be written")
}

// Explanation is one decision as a table: a row per candidate.
type Explanation struct {
	RequestID    string        `json:"requestId"`
	At           time.Time     `json:"at"`
	Took         time.Duration `json:"tookNs"`
	Pool         string        `json:"pool"`
	Profile      string        `json:"profile"`
	Model        string        `json:"model"`
	PromptTokens int           `json:"promptTokens"` // estimated
	Reason       string        `json:"reason"`
	Picked       []string      `json:"picked"`
	DryRun       bool          `json:"dryRun,omitempty"`
	Columns      []Column      `json:"columns"`
	Candidates   []Candidate   `json:"candidates"` // best first; the refused last
	Omitted      int           `json:"omitted,omitempty"`
}

// Column is one scorer of the table.
type Column struct {
	Name   string  `json:"name"`
	Weight float64 `json:"weight"`
}

// Candidate is one row.
type Candidate struct {
	Endpoint      string    `json:"endpoint"`
	State         string    `json:"state"`
	RefusedBy     string    `json:"refusedBy,omitempty"` // filter
	Why           string    `json:"why,omitempty"`
	Scores        []float64 `json:"scores,omitempty"` // per column, 0..1 before the weight
	Total         float64   `json:"total"`
	MatchedTokens int       `json:"matchedTokens"` // of the prompt, by the prefix index
	Requests      int64     `json:"requests"`      // in flight, own count
	Queued        int64     `json:"queuedTokens"`
	Waiting       float64   `json:"waiting"` // scraped; meaningful only when Metrics is fresh or stale
	Running       float64   `json:"running"`
	KVUsage       float64   `json:"kvUsage"`
	Metrics       string    `json:"metrics"` // fresh, stale, unknown
}
