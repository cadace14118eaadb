// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
)

// keeper is a store in use. For a shared one it renews leases, and while it is
// away keeps what is to be told to it, and lets requests in on the local share of
// limits that fail open.
//
// A request that a share let in is settled with the share, and told to the store
// as a charge when it is back: once, since each charge has an id that the store
// remembers. A reservation of which it is not known whether the store has it is
// withdrawn then. So nothing counts twice, and what was used does count.
type keeper struct {
	limiter *Limiter
	store   Store
	local   *memory // stands in for a shared store; nil: the store is this process
	timeout time.Duration
	retry   time.Duration
	lease   time.Duration

	holders atomic.Int64 // reservations and calls under way
	retired atomic.Bool
	ending  chan struct{} // closed when retired and nobody holds it
	end     sync.Once

	away    atomic.Bool
	lost    atomic.Bool // the store has lost what was reserved: each lease is to be looked at
	mu      sync.Mutex
	leases  map[uint64]*Lease // in the shared store, by id
	pending []*Settlement
	charges map[uint64]*charge // by the limit's id: what the share has let in since the last round
}

// charge is what was used of a limit while the store was away.
type charge struct {
	group  string
	limit  *Limit
	amount int64
}

// maxPending bounds the settlements that wait for the store.
const maxPending = 200_000

func newKeeper(l *Limiter, store Store, cfg config.Quota) *keeper {
	k := &keeper{limiter: l, store: store, ending: make(chan struct{})}
	if cfg.Redis != nil {
		k.local = &memory{began: time.Now(), standsIn: true}
		k.timeout, k.retry, k.lease = cfg.Redis.Timeout.D(), cfg.Redis.Retry.D(), cfg.Lease.D()
		k.leases = map[uint64]*Lease{}
		go k.work()
	}
	return k
}

// retire closes the store when nobody holds it any more.
func (k *keeper) retire() {
	k.holders.Add(1)
	k.retired.Store(true)
	k.letGo()
}

func (k *keeper) letGo() {
	if k.holders.Add(-1) == 0 && k.retired.Load() {
		k.end.Do(func() {
			close(k.ending)
			if k.local == nil {
				k.store.Close()
			}
		})
	}
}

// reserve asks the store, or the share while it is away.
func (k *keeper) reserve(ctx context.Context, r *Reservation) *Refusal {
	if k.local == nil {
		refusal, _ := k.store.Reserve(ctx, r)
		if refusal == nil {
			r.keeper = k
		}
		return refusal
	}
	if !k.away.Load() {
		bounded, cancel := context.WithTimeout(ctx, k.timeout)
		refusal, err := k.store.Reserve(bounded, r)
		cancel()
		if err == nil {
			if refusal == nil {
				r.keeper, r.local = k, false
				k.leased(r)
			}
			return refusal
		}
		k.later(&Settlement{group: r.group, id: r.id, entries: slices.Clone(r.entries), actual: make([]int64, len(r.entries)), undo: true})
		if ctx.Err() != nil { // the client has left
			return &Refusal{Limit: r.entries[0].limit, Away: true}
		}
		k.failed("reserve", err)
		r.id = k.limiter.next.Add(1) // the old one is withdrawn
	}
	refusal, _ := k.local.Reserve(ctx, r)
	if refusal == nil {
		r.keeper, r.local = k, true
		k.limiter.metrics.local.Inc()
	}
	return refusal
}

func (k *keeper) leased(r *Reservation) {
	k.mu.Lock()
	k.leases[r.id] = &Lease{group: r.group, id: r.id, since: time.Now(), entries: r.entries}
	k.mu.Unlock()
}

// settle tells the store, now or when it is back.
func (k *keeper) settle(r *Reservation, s *Settlement) {
	if k.local == nil {
		k.store.Settle(context.Background(), s)
		return
	}
	if r.local {
		k.local.Settle(context.Background(), s)
		k.charge(r, s.actual)
		return
	}
	k.mu.Lock()
	delete(k.leases, r.id)
	k.mu.Unlock()
	if !k.away.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
		err := k.store.Settle(ctx, s)
		cancel()
		if err == nil {
			if s.lost {
				k.lost.Store(true)
			}
			return
		}
		s.again = true
		k.failed("settle", err)
	}
	k.later(s.clone())
}

// clone is s on its own: its lists belong to a reservation.
func (s *Settlement) clone() *Settlement {
	c := *s
	c.entries, c.actual = slices.Clone(s.entries), slices.Clone(s.actual)
	return &c
}

// later keeps a settlement until the store is back.
func (k *keeper) later(s *Settlement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pending) >= maxPending {
		k.limiter.metrics.dropped.Inc()
		return
	}
	k.pending = append(k.pending, s)
	k.limiter.metrics.pending.Set(float64(len(k.pending)))
}

// charge adds what was used on the share to what the store is to be told. A
// request counts when it has ended.
func (k *keeper) charge(r *Reservation, actual []int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.charges == nil {
		k.charges = map[uint64]*charge{}
	}
	for i := range r.entries {
		l := r.entries[i].limit
		if l.unit == Concurrency || actual[i] == 0 {
			continue
		}
		c := k.charges[l.id]
		if c == nil {
			c = &charge{group: r.group, limit: l}
			k.charges[l.id] = c
		}
		c.amount = min(c.amount+actual[i], most)
	}
}

// bill makes settlements of the charges so far. From then on they do not change,
// so that the store can tell whether it has seen them.
func (k *keeper) bill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	byGroup := map[string]*Settlement{}
	for _, c := range k.charges {
		s := byGroup[c.group]
		if s == nil || len(s.entries) >= mostCharged {
			s = &Settlement{group: c.group, id: k.limiter.next.Add(1), charge: true}
			byGroup[c.group] = s
			k.pending = append(k.pending, s)
		}
		s.entries, s.actual = append(s.entries, entry{limit: c.limit}), append(s.actual, c.amount)
	}
	k.charges = nil
}

// mostCharged is how many limits one call charges.
const mostCharged = 100

// failed notes that the store is away.
func (k *keeper) failed(call string, err error) {
	k.limiter.metrics.errors.WithLabelValues(call).Inc()
	if !k.away.Swap(true) {
		k.limiter.metrics.up.Set(0)
		k.limiter.log.Warn("the store of limits is away: limits refuse, or let their share in, until it is back", "call", call, "error", err)
	}
}

// work renews leases and looks after a store that is away, until the keeper ends.
func (k *keeper) work() {
	tick := time.NewTicker(min(k.retry, k.lease/6))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.look()
		case <-k.ending:
			k.look() // what waits
			k.store.Close()
			return
		}
	}
}

// look is one round of work.
func (k *keeper) look() {
	call := func(what string, f func(context.Context) error) bool {
		ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
		defer cancel()
		if err := f(ctx); err != nil {
			k.failed(what, err)
			return false
		}
		return true
	}
	renew := func(leases []Lease) (gone []Lease, ok bool) {
		ok = call("renew", func(ctx context.Context) (err error) {
			gone, err = k.store.Renew(ctx, leases)
			return err
		})
		return gone, ok
	}
	away := k.away.Load()
	if away {
		if _, ok := renew(nil); !ok {
			return
		}
	}
	all := k.lost.Swap(false) || away
	for _, due := range k.due(all) {
		gone, ok := renew(due)
		for i := range gone {
			ok = ok && k.retake(gone[i].id, call)
		}
		if !ok {
			k.lost.Store(true)
			return
		}
	}
	k.bill()
	for {
		s := k.first()
		if s == nil {
			break
		}
		if !call("settle", func(ctx context.Context) error { return k.store.Settle(ctx, s) }) {
			s.again = true
			return
		}
		k.done()
	}
	if k.away.Swap(false) {
		k.limiter.metrics.up.Set(1)
		k.limiter.log.Info("the store of limits is back")
	}
}

func (k *keeper) first() *Settlement {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pending) == 0 {
		return nil
	}
	return k.pending[0]
}

func (k *keeper) done() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending[0] = nil
	if k.pending = k.pending[1:]; len(k.pending) == 0 {
		k.pending = nil
	}
	k.limiter.metrics.pending.Set(float64(len(k.pending)))
}

// retake takes a reservation again that the store has lost, or given back since its
// lease was over, if its request is still under way. It says no if the store fails.
func (k *keeper) retake(id uint64, call func(string, func(context.Context) error) bool) bool {
	held := func() (l Lease, ok bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if now := k.leases[id]; now != nil {
			l, ok = Lease{group: now.group, id: id, entries: slices.Clone(now.entries)}, true
		}
		return l, ok
	}
	l, ok := held()
	if !ok {
		return true
	}
	if !call("retake", func(ctx context.Context) error {
		_, err := k.store.Reserve(ctx, &Reservation{group: l.group, id: id, entries: l.entries, retake: true})
		return err
	}) {
		return false
	}
	k.limiter.metrics.retaken.Inc()
	if _, ok := held(); !ok { // it was settled meanwhile, perhaps before
		k.later(&Settlement{group: l.group, id: id, entries: l.entries, actual: make([]int64, len(l.entries)), undo: true})
	}
	return true
}

// due are the leases of which more than a third is over, or all, in batches.
func (k *keeper) due(all bool) [][]Lease {
	now := time.Now()
	var list []Lease
	k.mu.Lock()
	for _, l := range k.leases {
		if all || now.Sub(l.since) >= k.lease/3 {
			list, l.since = append(list, Lease{group: l.group, id: l.id}), now
		}
	}
	k.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	return slices.Collect(slices.Chunk(list, mostRenewed))
}

// usage asks the store; while it is away, nobody knows.
func (k *keeper) usage(ctx context.Context, group string, limits []*Limit) ([]State, error) {
	if k.local != nil {
		bounded, cancel := context.WithTimeout(ctx, 4*k.timeout)
		defer cancel()
		ctx = bounded
	}
	return k.store.Usage(ctx, group, limits)
}
