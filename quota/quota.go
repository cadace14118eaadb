// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package quota counts what requests may use and have used, and refuses what
// would be too much.
//
// A request reserves the most that it may use of every limit on its path, all of
// them or none ([Limiter.Reserve]), and settles once with what it has used
// ([Reservation.Settle]). A [Store] keeps the counts: the memory of this process,
// or a Redis that several gateways share.
//
// It leaves to others who asks (auth), what a prompt is estimated to have and an
// answer to cost (proxy, usage), and how a refusal reads (proxy, llm).
//
// Always: no check without the reservation in the same step; a reservation that
// is never settled ends by its lease; no count is negative; sums saturate.
package quota

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/config"
)

// Unit is what a limit counts.
type Unit uint8

// The units. Money is counted in billionths of a dollar: a request's cost is
// rounded to the nearest.
const (
	Requests Unit = iota
	Input
	Output
	Tokens
	Weighted
	USD
	Concurrency
	units
)

var unitNames = [units]string{"requests", "input", "output", "tokens", "weighted", "usd", "concurrency"}

// String is the unit as the configuration has it.
func (u Unit) String() string { return unitNames[u] }

// NanoPerUSD is how many units of account a dollar has.
const NanoPerUSD = 1e9

const (
	nano = NanoPerUSD
	pico = 1000 // picodollars of one of them
)

// most is the largest amount: whole numbers are exact up to there in a Redis
// script too, whose numbers are doubles, and sums of many do not overflow here.
const most = 1 << 53

// Amounts are what a request uses, or may use. The counts of tokens do not
// overlap.
type Amounts struct {
	Requests    int64
	Input       int64 // neither read from a cache nor written to one
	Cached      int64
	CacheWrite  int64
	Output      int64 // without reasoning
	Reasoning   int64
	Picodollars int64
}

// Use is what a request has used of one model.
type Use struct {
	Model string
	Amounts
}

// add adds b, what another model has used for the same request.
func (a *Amounts) add(b *Amounts) {
	a.Requests = max(a.Requests, b.Requests)
	a.Input, a.Cached, a.CacheWrite = a.Input+b.Input, a.Cached+b.Cached, a.CacheWrite+b.CacheWrite
	a.Output, a.Reasoning, a.Picodollars = a.Output+b.Output, a.Reasoning+b.Reasoning, a.Picodollars+b.Picodollars
}

// Limit is a config.Limit of a node, compiled. Immutable but for a cache.
type Limit struct {
	id      uint64 // of what is counted, whatever the amount: 0 is none
	node    string
	unit    Unit
	amount  int64
	kind    config.LimitWindow // "" for concurrency
	length  time.Duration      // of bucket and sliding windows
	zone    *time.Location
	word    string // of the calendar
	per     string // as it was written
	models  []string
	weights config.Weights
	shadow  bool
	soft    int64 // from which on it warns; 0: never
	debt    bool
	open    bool    // fail open
	share   float64 // then

	period atomic.Pointer[period] // of the calendar, the newest that was asked for
}

// Node is a level of a path with its limits.
type Node struct {
	name   string
	limits []*Limit
}

// NewNode compiles the limits of a node. Names are unique among nodes; limits are
// valid. Two nodes of one name count together, so that a node may be compiled
// again and again.
func NewNode(name string, limits []config.Limit) *Node {
	n := &Node{name: name}
	for i := range limits {
		n.limits = append(n.limits, newLimit(name, &limits[i]))
	}
	return n
}

// Name is the node's name.
func (n *Node) Name() string { return n.name }

// Limits are the limits of the node, in the order of the configuration.
func (n *Node) Limits() []*Limit { return n.limits }

func newLimit(node string, c *config.Limit) *Limit {
	l := &Limit{
		node: node, per: c.Per, models: c.Models, zone: time.UTC, share: c.Share,
		shadow: c.Mode == config.LimitShadow, debt: c.Oversize == config.OversizeDebt, open: c.OnStoreFailure == config.LimitFailOpen,
	}
	for u, name := range unitNames {
		if name == c.Unit() {
			l.unit = Unit(u)
		}
	}
	amount := c.Amount()
	if l.unit == USD {
		amount = math.Round(amount * nano)
	}
	l.amount = int64(min(max(amount, 0), most))
	l.kind, l.length, l.word = c.Span()
	if z, err := time.LoadLocation(c.Zone); err == nil {
		l.zone = z
	}
	l.weights = config.Weights{Input: 1, Cached: 1, CacheWrite: 1, Output: 1, Reasoning: 1}
	if c.Weights != nil {
		l.weights = *c.Weights
	}
	if c.Soft > 0 {
		l.soft = max(1, int64(math.Ceil(c.Soft*float64(l.amount))))
	}
	// The rest may change without forgetting what was used.
	l.id = xxhash.Sum64String(strings.Join([]string{
		node, l.unit.String(), string(l.kind), l.length.String(), l.word, l.zone.String(), strings.Join(l.models, "\x00"), strconv.FormatBool(l.shadow),
	}, "\x01"))
	return l
}

// Node is the name of the node that the limit is of.
func (l *Limit) Node() string { return l.node }

// Unit is what it counts.
func (l *Limit) Unit() Unit { return l.unit }

// Amount is how much it allows: in billionths of a dollar with USD.
func (l *Limit) Amount() int64 { return l.amount }

// Shadow says that it refuses nothing.
func (l *Limit) Shadow() bool { return l.shadow }

// String names the limit as people know it: "acme/search: 200000 tokens per 1m".
func (l *Limit) String() string { return l.node + ": " + l.What() }

// What is the limit without its node: "200000 tokens per 1m, models gpt-*".
func (l *Limit) What() string {
	var b strings.Builder
	b.WriteString(l.Text(l.amount))
	if l.kind != "" {
		b.WriteString(" per " + l.per)
	}
	if len(l.models) > 0 {
		b.WriteString(", models " + strings.Join(l.models, " "))
	}
	if l.shadow {
		b.WriteString(" (shadow)")
	}
	return b.String()
}

// Text is an amount with its unit: "500 USD", "200000 tokens".
func (l *Limit) Text(amount int64) string {
	switch l.unit {
	case USD:
		return strconv.FormatFloat(float64(amount)/nano, 'f', -1, 64) + " USD"
	case Input, Output:
		return fmt.Sprintf("%d %s tokens", amount, l.unit)
	case Weighted:
		return fmt.Sprintf("%d weighted tokens", amount)
	case Concurrency:
		return fmt.Sprintf("%d requests at a time", amount)
	}
	return fmt.Sprintf("%d %s", amount, l.unit)
}

// applies says that requests for the model count.
func (l *Limit) applies(model string) bool {
	if len(l.models) == 0 {
		return true
	}
	for _, p := range l.models {
		if config.MatchName(p, model) {
			return true
		}
	}
	return false
}

// of is how much of the limit a uses.
func (l *Limit) of(a *Amounts) int64 {
	switch l.unit {
	case Requests:
		return bounded(a.Requests)
	case Input:
		return a.input()
	case Output:
		return a.output()
	case Tokens:
		return min(a.input()+a.output(), most)
	case Weighted:
		w := &l.weights
		sum := float64(bounded(a.Input))*w.Input + float64(bounded(a.Cached))*w.Cached + float64(bounded(a.CacheWrite))*w.CacheWrite +
			float64(bounded(a.Output))*w.Output + float64(bounded(a.Reasoning))*w.Reasoning
		return int64(min(math.Ceil(sum-1e-9), most))
	case USD:
		n := max(a.Picodollars, 0)
		return min(n/pico+(n%pico+pico/2)/pico, most)
	}
	return 1
}

func (a *Amounts) input() int64 {
	return min(bounded(a.Input)+bounded(a.Cached)+bounded(a.CacheWrite), most)
}

func (a *Amounts) output() int64 { return min(bounded(a.Output)+bounded(a.Reasoning), most) }

// bounded takes what a provider may claim into the range of what can be.
func bounded(n int64) int64 { return min(max(n, 0), most) }

// allows is the amount that a store counts with: a share of it while it stands in
// for another one.
func (l *Limit) allows(standsIn bool) int64 {
	if !standsIn {
		return l.amount
	}
	return int64(float64(l.amount) * l.share)
}
