// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/penstock/penstock/config"
)

// Limiter takes and settles reservations. It is the way to a store, and what
// holds while a shared one is away.
type Limiter struct {
	log     *slog.Logger
	metrics *Instruments
	next    atomic.Uint64 // ids of reservations
	keeper  atomic.Pointer[keeper]
}

// Options are what a Limiter needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments // nil: none
}

// NewLimiter returns a limiter that counts in memory; see [Limiter.Use].
func NewLimiter(o Options) *Limiter {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewInstruments(nil)
	}
	l := &Limiter{log: o.Log, metrics: o.Metrics}
	l.keeper.Store(newKeeper(l, NewMemory(), config.Quota{}))
	return l
}

// Use makes store, which cfg has asked for, the one for what is reserved from now
// on. What was reserved in the one before is settled there; then it is closed.
func (l *Limiter) Use(store Store, cfg config.Quota) {
	l.keeper.Swap(newKeeper(l, store, cfg)).retire()
}

// hold is the keeper in use; it is to be let go.
func (l *Limiter) hold() *keeper {
	for {
		k := l.keeper.Load()
		k.holders.Add(1)
		if !k.retired.Load() {
			return k
		}
		k.letGo()
	}
}

// Reserve takes for a request, of all limits on the path that count one of the
// two names of its model, what it may use at the most: of all or of none. Path is
// outermost first; its first node names the group. r must be unused, or settled.
func (l *Limiter) Reserve(ctx context.Context, r *Reservation, path []*Node, models [2]string, a *Amounts) *Refusal {
	return l.reserve(ctx, r, path, a, func(limit *Limit) bool { return limit.applies(models[0]) || limit.applies(models[1]) })
}

// ReserveMore takes for a request that another model is to serve now what it may
// use there: of the limits that count that model and none of those that were
// reserved for before. The reservation ends by [Reservation.SettleEach].
func (l *Limiter) ReserveMore(ctx context.Context, r *Reservation, path []*Node, model string, before []string, a *Amounts) *Refusal {
	return l.reserve(ctx, r, path, a, func(limit *Limit) bool {
		return limit.applies(model) && !slices.ContainsFunc(before, limit.applies)
	})
}

func (l *Limiter) reserve(ctx context.Context, r *Reservation, path []*Node, a *Amounts, counts func(*Limit) bool) *Refusal {
	r.entries = r.room[:0]
	for _, n := range path {
		for _, limit := range n.limits {
			if counts(limit) {
				r.entries = append(r.entries, entry{limit: limit, amount: limit.of(a)})
			}
		}
	}
	if len(r.entries) == 0 {
		return nil
	}
	r.group, r.id = path[0].name, l.next.Add(1)
	k := l.hold()
	if refusal := k.reserve(ctx, r); refusal != nil {
		k.letGo()
		l.metrics.refused(refusal)
		return refusal
	}
	l.metrics.reserved(r)
	return nil
}

// Settle ends the reservation: a is what was used in place of what was reserved.
// Only the first call counts.
func (r *Reservation) Settle(a *Amounts) {
	r.settle(func(limit *Limit) int64 { return limit.of(a) })
}

// SettleEach is [Reservation.Settle] where several models have served: each limit
// counts what those have used that it counts. The request is one all the same.
func (r *Reservation) SettleEach(uses []Use) {
	r.settle(func(limit *Limit) int64 {
		var sum Amounts
		for i := range uses {
			if limit.applies(uses[i].Model) {
				sum.add(&uses[i].Amounts)
			}
		}
		return limit.of(&sum)
	})
}

func (r *Reservation) settle(used func(*Limit) int64) {
	if r.keeper == nil {
		return
	}
	r.end = Settlement{group: r.group, id: r.id, entries: r.entries, actual: r.actual[:0]}
	for i := range r.entries {
		r.end.actual = append(r.end.actual, used(r.entries[i].limit))
	}
	k := r.keeper
	r.keeper = nil
	k.settle(r, &r.end)
	k.letGo()
	k.limiter.metrics.settled()
}

// States tells how the limits stood when the reservation was made, with it.
func (r *Reservation) States(f func(State)) {
	for i := range r.entries {
		f(r.entries[i].state())
	}
}

// Warnings are the limits of which so much is in use that they warn, and the
// shadow limits that would have refused.
func (r *Reservation) Warnings(soft, shadow func(State)) {
	for i := range r.entries {
		e := &r.entries[i]
		if e.over {
			shadow(e.state())
		}
		if e.limit.soft > 0 && e.used >= e.limit.soft {
			soft(e.state())
		}
	}
}

func (e *entry) state() State {
	return State{Limit: e.limit, Used: e.used, Reserved: e.amount, Reset: e.reset}
}

// Usage tells how much of the limits of nodes is in use. The nodes are of one
// group, the name of its outermost node.
func (l *Limiter) Usage(ctx context.Context, group string, nodes []*Node) ([]State, error) {
	var limits []*Limit
	for _, n := range nodes {
		limits = append(limits, n.limits...)
	}
	if len(limits) == 0 {
		return nil, nil
	}
	k := l.hold()
	defer k.letGo()
	return k.usage(ctx, group, limits)
}

// Close lets go of the store once everything is settled.
func (l *Limiter) Close() { l.keeper.Load().retire() }
