// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/llm"
)

// Guard slows whoever tries keys, and makes it seen.
//
// It counts refusals by source: an address, or the /64 of an IPv6 one. Above a
// number of them a minute each further one is answered a second late and with
// 429; when too many wait already, at once. A good key passes whatever others
// behind the same address do: looking one up costs a microsecond, and one of
// Penstock's own 190 random bits is not found by trying. A key of another form,
// which a person may have made up, is looked up only after the wait from a source
// that is over the number, so that few are tried in a second; unless it was good
// from there before, so that a flood keeps nobody out who was in.
type Guard struct {
	log       *slog.Logger
	metrics   *Instruments
	threshold atomic.Int64
	seed      maphash.Seed
	waiting   atomic.Int64
	shards    [guardShards]guardShard
	good      goodKeys
}

const (
	guardShards  = 64
	guardEntries = 512 // sources of one shard: 32,768 in all
	guardDelay   = time.Second
	guardWaiting = 1024 // requests, of all sources
	guardPlaces  = 8    // of one source
	guardWindow  = 60   // seconds
	guardGood    = 1 << 14
)

type guardShard struct {
	mu      sync.Mutex
	sources map[netip.Addr]*source
}

// goodKeys are hashes of sources with keys of other forms that were good from there:
// one in each place, the newest, and 128 KiB in all. The seed of a process makes
// them, so that nobody can tell which share a place or a hash; for whom one holds
// by chance is looked up without a wait, and no more. Wrong keys never come in.
type goodKeys [guardGood]atomic.Uint64

// source is one that has sent wrong keys.
type source struct {
	window  int64 // the minute that is counted, Unix seconds at its begin
	count   int64
	waiting int
	logged  int64 // the minute of the last line
}

// NewGuard lets failures wrong keys a minute pass from one source.
func NewGuard(failures int, log *slog.Logger, m *Instruments) *Guard {
	g := &Guard{log: log, metrics: m, seed: maphash.MakeSeed()}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.SetFailures(failures)
	for i := range g.shards {
		g.shards[i].sources = map[netip.Addr]*source{}
	}
	return g
}

// SetFailures changes the number.
func (g *Guard) SetFailures(n int) { g.threshold.Store(int64(n)) }

// Identify is that of d. Where anybody is let in, refusals are not counted.
func (g *Guard) Identify(d *Directory, r *http.Request, anonymous bool) (*Identity, *llm.Error) {
	key, from := Credential(r), client(r)
	if anonymous {
		id, why := d.find(key, from, time.Now().Unix())
		if why != ok {
			return nil, why.refusal()
		}
		return id, nil
	}
	late, pair := false, uint64(0)
	if !WellFormed(key) {
		pair = g.pair(from, key)
	}
	if pair != 0 && !g.good.has(pair) && g.over(from, time.Now().Unix()) {
		late = true
		if !g.wait(r.Context(), from) {
			g.metrics.failed("throttled")
			return nil, throttled()
		}
	}
	now := time.Now().Unix()
	id, why := d.find(key, from, now)
	if why == ok {
		g.good.put(pair)
		return id, nil
	}
	g.metrics.failed(string(why))
	if why != unknown && why != mistyped || !g.count(from, why, now) {
		return nil, why.refusal() // whoever has a key and may not use it tries nothing
	}
	if !late {
		g.wait(r.Context(), from)
	}
	return nil, throttled()
}

// pair is the hash of a source with a key, never 0.
func (g *Guard) pair(from netip.Addr, key string) uint64 {
	var h maphash.Hash
	h.SetSeed(g.seed)
	a := networkOf(from).As16()
	h.Write(a[:])
	h.WriteString(key[:min(len(key), maxKey)])
	return max(h.Sum64(), 1)
}

func (k *goodKeys) has(pair uint64) bool { return k[pair%guardGood].Load() == pair }

// put notes a pair; 0 is none.
func (k *goodKeys) put(pair uint64) {
	if place := &k[pair%guardGood]; pair != 0 && place.Load() != pair {
		place.Store(pair)
	}
}

// Try checks a secret that is no key, such as an operator's token, at the same
// pace: from a source that is over the number, right is asked after the wait, and
// not at all when too many wait already. late says that the answer is 429.
func (g *Guard) Try(ctx context.Context, from netip.Addr, right func() bool) (ok, late bool) {
	if late = g.over(from, time.Now().Unix()); late && !g.wait(ctx, from) {
		return false, true
	}
	if right() {
		return true, false
	}
	if !g.count(from, unknown, time.Now().Unix()) {
		return false, false
	}
	if !late {
		g.wait(ctx, from)
	}
	return false, true
}

// throttled is the answer to one failure too many.
func throttled() *llm.Error {
	return &llm.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "too_many_invalid_keys",
		Message: "too many requests with a wrong key came from this address; use a right one, or wait a minute",
		Header:  http.Header{"Retry-After": {strconv.Itoa(guardWindow)}},
	}
}

// networkOf is what is counted together.
func networkOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

func (g *Guard) shard(a netip.Addr) *guardShard {
	return &g.shards[maphash.Comparable(g.seed, a)%guardShards]
}

// over says that the source has failed too often in this minute or the last one.
func (g *Guard) over(from netip.Addr, now int64) bool {
	a := networkOf(from)
	s := g.shard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[a]
	return src != nil && now-src.window < guardWindow && src.count > g.threshold.Load()
}

// count notes a failure, and says that it is one too many.
func (g *Guard) count(from netip.Addr, why reason, now int64) bool {
	a := networkOf(from)
	s := g.shard(a)
	s.mu.Lock()
	src := s.sources[a]
	if src == nil {
		if len(s.sources) >= guardEntries {
			s.evict(now)
		}
		src = &source{window: now}
		s.sources[a] = src
	}
	if now-src.window >= guardWindow || now < src.window { // the clock may have been set back
		src.window, src.count = now, 0
	}
	src.count++
	over := src.count > g.threshold.Load()
	tell := over && src.logged != src.window
	if tell {
		src.logged = src.window
	}
	n := src.count
	s.mu.Unlock()
	if tell { // one line a minute of a source
		g.log.Warn("many wrong keys come from one address; they are answered late now", "source", a, "failures", n, "last", string(why))
	}
	return over
}

// evict makes room: sources whose minute is over, else the one that failed least
// of a few, so that a flood of addresses cannot push out one that insists.
func (s *guardShard) evict(now int64) {
	var least netip.Addr
	low, seen := int64(-1), 0
	for a, src := range s.sources {
		if src.waiting > 0 {
			continue
		}
		if now-src.window >= guardWindow {
			delete(s.sources, a)
			continue
		}
		if low < 0 || src.count < low {
			least, low = a, src.count
		}
		if seen++; seen == 16 {
			break
		}
	}
	if len(s.sources) >= guardEntries && low >= 0 {
		delete(s.sources, least)
	}
}

// wait holds a request for a while. false: it does not, since too many wait or
// the client is gone.
func (g *Guard) wait(ctx context.Context, from netip.Addr) bool {
	a := networkOf(from)
	s := g.shard(a)
	if g.waiting.Add(1) > guardWaiting {
		g.waiting.Add(-1)
		return false
	}
	defer g.waiting.Add(-1)
	s.mu.Lock()
	src := s.sources[a]
	if src == nil || src.waiting >= guardPlaces {
		s.mu.Unlock()
		return src == nil // forgotten since: it starts anew
	}
	src.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		src.waiting--
		s.mu.Unlock()
	}()
	t := time.NewTimer(guardDelay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
