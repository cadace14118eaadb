// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// Health of a credential at a model.
//
// What takes it out at once: a rate limit, for the time that the provider asks
// for, or Cooldown.For, which doubles with each further one; a model that is not
// known there. An exhausted or refused account takes the credential out at every
// model, for Cooldown.Max; what it may not do, only at the one model, since
// permissions are given by model. What takes it out in a row: Cooldown.After failures of the
// provider without an answer in between, for Cooldown.For, doubling up to Max.
// What never does: faults of the request, clients that leave. A failure that may
// be of the request's own making counts once for each request, and again for
// every tenth time that the same one fails: so one prompt at which a server fails
// does not take the credential from everybody as long as others have answers, and
// a server that is down is noticed also where all ask for the same.
//
// How it ends: by the clock, asked when it matters. Then it is half open: one
// request goes first, and the others as soon as that one has an answer, or after
// a rate limit is not refused at once.
//
// Failures that arrive while it is out are of requests from before: they count
// once. A hint that lasts longer counts always.
//
// Everything here is under Provider.mu.

// health is what is known of a credential at a model, or at all of them.
type health struct {
	until  time.Time // out until then; zero: never was, or is back
	reason Class     // of the time out
	trial  bool      // after until, one request goes first
	probe  time.Time // end of the lease of the one that goes first; zero: none goes

	failures int      // in a row
	repeats  int      // failures in the row of a request that had failed in it
	failed   []uint64 // the newest requests that failed in the row and may be at fault, at most maxFailed
	trips    int      // times out in a row

	latency  time.Duration // to the first output, exponentially weighted; 0: none was seen
	inFlight int
	used     time.Time
	limits   [2]Limit // by bucketKind; of requests and tokens
}

// Limit is a rate limit as the last answer told it. The numbers are as old as
// that answer.
type Limit struct {
	Limit     float64   `json:"limit"`
	Remaining float64   `json:"remaining"`
	Reset     time.Time `json:"reset,omitzero"`
	At        time.Time `json:"at,omitzero"` // zero: nothing is known
}

const (
	// maxModels bounds the models that are told apart at one credential. Those
	// beyond share their health.
	maxModels = 1024
	// probeLease is how long a probe may go without a word, before another
	// request may be one.
	probeLease = time.Minute
	// limitLease is the same after a rate limit, which is told at once: silence
	// for so long says that there is room again, long before an answer ends.
	limitLease = 2 * time.Second
	// newSample is the weight of the newest latency.
	newSample = 0.3
	// jitter spreads the end of a time out that nobody has named.
	jitter = 0.1
	// maxTrips bounds the doubling.
	maxTrips = 30
	// maxFailed bounds the requests that are told apart in a row of failures.
	maxFailed = 16
	// repeatsCount is how many failures of the same request count as one more.
	repeatsCount = 10
)

// of is the health of the credential at a model.
func (c *Credential) of(model string, now time.Time) *health {
	if h := c.models[model]; h != nil {
		return h
	}
	if len(c.models) >= maxModels {
		for name, h := range c.models { // any that nobody needs
			if h.inFlight == 0 && (h.reason == ModelNotFound || !now.Before(h.until) && now.Sub(h.used) > time.Hour) {
				delete(c.models, name)
				break
			}
		}
	}
	if len(c.models) >= maxModels {
		model = "" // they share one
		if h := c.models[model]; h != nil {
			return h
		}
	}
	h := &health{used: now}
	c.models[model] = h
	return h
}

// fitness is whether a credential may be used.
type fitness uint8

const (
	ready fitness = iota
	halfOpen
	probing // half open, and the first request has not come back
	cooling
)

// String is the state as `penstock get targets` shows it.
func (f fitness) String() string {
	return [...]string{"ready", "half-open", "probing", "cooling"}[f]
}

func (h *health) fitness(now time.Time) fitness {
	switch {
	case h.until.IsZero():
		return ready
	case now.Before(h.until):
		return cooling
	case !h.trial:
		return ready
	case now.Before(h.probe):
		return probing
	case h.reason == RateLimit && !h.probe.IsZero():
		return ready
	}
	return halfOpen
}

// fitness of the credential at a model, and when it is back.
func (c *Credential) fitness(h *health, now time.Time) (fitness, time.Time) {
	f, until := h.fitness(now), h.until
	if w := c.whole.fitness(now); w > f || w == f && c.whole.until.After(until) {
		f, until = w, c.whole.until
	}
	return f, until
}

// Pick chooses a credential for a model, by weight among those that are fit and
// not tried yet. With an affinity (0: none) equal ones get the same credential
// while it is fit, so that a prompt finds the provider's cache. If all are out,
// it is the one that is back first, and the time until then. nil: every
// credential is tried.
//
// The first request after a time out is a probe: it has to be reported by
// [Provider.Observe], or an [Attempt], or the credential stays half open for a
// minute.
func (p *Provider) Pick(model string, tried []*Credential, affinity uint64) (*Credential, time.Duration) {
	now := time.Now()
	for _, c := range p.credentials {
		c.look() // a new secret may have made it fit
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var best, least *Credential
	var bestKey float64
	var leastRank rank
	for _, c := range p.credentials {
		if slices.Contains(tried, c) {
			continue
		}
		h := c.of(model, now)
		r := c.rank(h, now)
		if r.fitness <= halfOpen && c.weight > 0 {
			if key := c.key(affinity); best == nil || key < bestKey {
				best, bestKey = c, key
			}
		}
		// With weight 0 it is for when no other is left.
		if least == nil || r.less(leastRank) {
			least, leastRank = c, r
		}
	}
	if least == nil {
		return nil, 0
	}
	wait := time.Duration(0)
	if best == nil {
		best = least
		switch leastRank.fitness {
		case cooling:
			wait = leastRank.until.Sub(now)
		case probing:
			wait = time.Second // another request is the probe; nobody knows for how long
		}
	}
	h := best.of(model, now)
	best.whole.lease(now)
	h.lease(now)
	h.used = now
	return best, wait
}

// Named is the credential of that name unless it is among tried: for what one
// account alone can do.
func (p *Provider) Named(name string, tried []*Credential) *Credential {
	for _, c := range p.credentials {
		if c.name == name && !slices.Contains(tried, c) {
			return c
		}
	}
	return nil
}

// Fit is Named for a request that another account could serve too: nil unless it
// could be picked, and is then as if it were.
func (p *Provider) Fit(name, model string, tried []*Credential) *Credential {
	c := p.Named(name, tried)
	if c == nil {
		return nil
	}
	c.look()
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	h := c.of(model, now)
	if f, _ := c.fitness(h, now); f > halfOpen {
		return nil
	}
	c.whole.lease(now)
	h.lease(now)
	h.used = now
	return c
}

// Accounts are the names of the credentials, at least one.
func (p *Provider) Accounts() []string {
	names := make([]string, len(p.credentials))
	for i, c := range p.credentials {
		names[i] = c.name
	}
	return names
}

// rank orders credentials of which none is fit: the least is the least bad.
type rank struct {
	fitness  fitness
	hopeless bool // waiting will hardly help
	until    time.Time
}

func (c *Credential) rank(h *health, now time.Time) rank {
	f, until := c.fitness(h, now)
	reason := h.reason
	if c.whole.fitness(now) == cooling {
		reason = c.whole.reason
	}
	return rank{f, reason == Auth || reason == Forbidden || reason == Quota || reason == ModelNotFound, until}
}

func (r rank) less(s rank) bool {
	switch {
	case r.fitness != s.fitness:
		return r.fitness < s.fitness
	case r.hopeless != s.hopeless:
		return s.hopeless
	}
	return r.until.Before(s.until)
}

func (h *health) lease(now time.Time) {
	if h.fitness(now) != halfOpen {
		return
	}
	h.probe = now.Add(probeLease)
	if h.reason == RateLimit {
		h.probe = now.Add(limitLease)
	}
}

// key orders credentials: the least is taken. Keys are exponentially distributed
// by weight, so that each is least as often as its weight says; with an affinity
// they depend on nothing else (rendezvous hashing).
func (c *Credential) key(affinity uint64) float64 {
	u := rand.Float64()
	if affinity != 0 {
		u = float64(mix(affinity^c.hash())>>11) / (1 << 53)
	}
	return -math.Log1p(-u) / float64(c.weight)
}

// hash of the name; the same in every process, so that gateways agree.
func (c *Credential) hash() uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(c.name) {
		h = (h ^ uint64(c.name[i])) * 1099511628211
	}
	return h
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Observe tells what an attempt came to; once per attempt. h is the header of
// the answer (nil: there was none), latency the time to the first output, 0 if
// there was none.
func (p *Provider) Observe(c *Credential, model string, v Verdict, h http.Header, latency time.Duration) {
	now := time.Now()
	p.metrics.observed(c, v, latency)
	p.mu.Lock()
	defer p.mu.Unlock()
	x := c.of(model, now)
	p.learn(c, x, h, now, v.Class == OK)
	if v.Class == OK && latency > 0 {
		if x.latency == 0 {
			x.latency = latency
		} else {
			x.latency += time.Duration(newSample * float64(latency-x.latency))
		}
	}
	scope, at := v.Class.Cools(), x
	if scope == ScopeCredential {
		at, model = &c.whole, ""
	}
	switch {
	case v.Class == Canceled || v.Class == Deadline || v.Class == Unsupported:
		// Nothing is known; another request may be the probe.
		x.probe, c.whole.probe = time.Time{}, time.Time{}
	case v.Class == ModelNotFound && x == c.models[""]:
		// Clients may make names up: those that share their health suffer nothing by it.
	case scope != ScopeNone:
		p.cool(c, at, model, v, now)
		c.whole.probe = time.Time{}
	case v.Class.Counts():
		p.failed(c, x, model, v, now)
	default: // it works, even if it does not like the request
		x.back(now)
		c.whole.back(now)
	}
}

// back closes the circuit, if it is not out for a reason that came later.
func (h *health) back(now time.Time) {
	h.failures, h.repeats, h.failed = 0, 0, nil
	if h.fitness(now) == cooling {
		return
	}
	h.until, h.probe, h.trial, h.trips = time.Time{}, time.Time{}, false, 0
}

// failed counts a failure of the provider.
func (p *Provider) failed(c *Credential, x *health, model string, v Verdict, now time.Time) {
	f, _ := c.fitness(x, now)
	if f == cooling {
		return // of a request from before
	}
	if v.Class.Doubtful() && x.again(v.Request) && x.repeats%repeatsCount != 0 {
		x.probe, c.whole.probe = time.Time{}, time.Time{} // another request may be the probe
		return
	}
	x.failures++
	trial := f != ready
	switch {
	case v.Wait > 0 && v.Class == Overloaded:
		p.cool(c, x, model, v, now)
	case trial || x.failures >= p.cfg.Cooldown.After:
		v.Wait = 0 // only a rate limit, or no room, is a matter of waiting
		p.cool(c, x, model, v, now)
	}
	if trial {
		c.whole.probe = time.Time{}
	}
}

// again notes a request that failed, and says that it has failed before in this
// row.
func (h *health) again(request uint64) bool {
	if request == 0 {
		return false
	}
	if slices.Contains(h.failed, request) {
		h.repeats++
		return true
	}
	if len(h.failed) == maxFailed {
		h.failed = slices.Delete(h.failed, 0, 1)
	}
	h.failed = append(h.failed, request)
	return false
}

// cool takes c out, at one model or, where that is empty, at all.
func (p *Provider) cool(c *Credential, h *health, model string, v Verdict, now time.Time) {
	already := h.fitness(now) == cooling
	wait := v.Wait
	switch {
	case v.Class == Quota || v.Class == Auth || v.Class == Forbidden:
		wait = max(wait, p.cfg.Cooldown.Max.D())
	case wait > 0:
	case already:
		return // of a request from before
	default:
		wait = p.backoff(h.trips)
	}
	until := now.Add(wait)
	if already && !until.After(h.until.Add(wait/10)) {
		return // the same news
	}
	if !already {
		h.trips = min(h.trips+1, maxTrips)
	}
	h.until, h.reason, h.trial, h.probe, h.failures = until, v.Class, true, time.Time{}, 0
	p.metrics.cooled(c, v.Class)
	level := slog.LevelWarn
	if v.Class == RateLimit && wait < time.Second {
		level = slog.LevelDebug // there may be many
	}
	p.log.Log(context.Background(), level, "credential cools down", "credential", c.name, "model", model, "reason", v.Class.String(), "code", v.Code, "status", v.Status, "wait", wait.Round(time.Millisecond))
}

// backoff is the time out after so many others in a row.
func (p *Provider) backoff(trips int) time.Duration {
	d, most := p.cfg.Cooldown.For.D(), p.cfg.Cooldown.Max.D()
	for range trips {
		if d >= most {
			break
		}
		d *= 2
	}
	return min(time.Duration(float64(d)*(1+jitter*rand.Float64())), most)
}

// learn reads the rate limits of an answer. One that is used up takes the
// credential out before the provider has to say so; in an error it is a part of
// the hint.
func (p *Provider) learn(c *Credential, x *health, h http.Header, now time.Time, cool bool) {
	if len(h) == 0 || p.quirks.Limits == LimitsNone && first(h, "X-Ratelimit-Remaining") == "" && first(h, "X-Ratelimit-Remaining-Requests") == "" {
		return
	}
	clock := clock(h)
	for i := range buckets {
		b := buckets[i]
		text := first(h, b.remaining)
		if text == "" {
			continue
		}
		left, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(left) || math.IsInf(left, 0) {
			continue
		}
		wait := time.Duration(0)
		if b.reset != "" {
			wait = until(first(h, b.reset), clock)
		}
		if b.kind < otherBucket {
			limit, _ := strconv.ParseFloat(first(h, b.limit), 64)
			if math.IsNaN(limit) || math.IsInf(limit, 0) {
				limit = 0
			}
			x.limits[b.kind] = Limit{Limit: limit, Remaining: left, Reset: now.Add(wait), At: now}
		}
		if cool && left <= 0 && wait > 0 && now.Add(wait).After(x.until) {
			if x.fitness(now) != cooling {
				p.metrics.cooled(c, RateLimit)
			}
			// No trial afterwards: the answer was good.
			x.until, x.reason, x.trial, x.probe = now.Add(wait), RateLimit, false, time.Time{}
		}
	}
}

// forgive lets a credential back whose secret is another now.
func (p *Provider) forgive(c *Credential) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range c.models {
		if h.reason == Auth || h.reason == Forbidden {
			h.until, h.trips, h.trial = time.Time{}, 0, false
		}
	}
	c.whole = health{}
}

// inherit takes over what the provider before knew of credentials that are the
// same.
func (p *Provider) inherit(old *Provider) {
	if old.cfg.Dialect != p.cfg.Dialect || old.base != p.base {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	for _, c := range p.credentials {
		i := slices.IndexFunc(old.credentials, func(o *Credential) bool { return o.name == c.name && o.same(c) })
		if i < 0 {
			continue
		}
		o := old.credentials[i]
		c.whole = o.whole
		c.whole.probe = time.Time{} // the one that went first answers to the old one
		for model, h := range o.models {
			copied := *h
			copied.inFlight, copied.probe, copied.failed = 0, time.Time{}, slices.Clone(h.failed) // those under way end at the old one
			c.models[model] = &copied
		}
	}
}

func (c *Credential) same(d *Credential) bool {
	a, b := c.secret.Load(), d.secret.Load()
	return c.accessKeyID == d.accessKeyID && (a == nil) == (b == nil) && (a == nil || a.value == b.value)
}

// Attempt is one request in flight at a credential. It counts once.
type Attempt struct {
	provider   *Provider
	credential *Credential
	model      string
	at         *health // that counts it
	ended      atomic.Bool
}

// Begin counts a request in flight, until its End.
func (p *Provider) Begin(c *Credential, model string) *Attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := c.of(model, time.Now())
	h.inFlight++
	return &Attempt{provider: p, credential: c, model: model, at: h}
}

// Answered tells of the head of a 2xx, whose end may be far: its rate limits
// count from now on, and a credential that was half open is let back.
func (a *Attempt) Answered(h http.Header) {
	now := time.Now()
	p := a.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range []*health{a.at, &a.credential.whole} {
		if f := x.fitness(now); f == probing || f == halfOpen {
			// Trips stay until the answer has shown an output: a server that
			// only sends heads does not begin anew.
			x.until, x.probe = time.Time{}, time.Time{}
		}
	}
	p.learn(a.credential, a.at, h, now, true)
}

// End is [Provider.Observe] for the attempt. Only the first call counts.
func (a *Attempt) End(v Verdict, h http.Header, latency time.Duration) {
	if a.ended.Swap(true) {
		return
	}
	p := a.provider
	p.mu.Lock()
	a.at.inFlight--
	p.mu.Unlock()
	p.Observe(a.credential, a.model, v, h, latency)
}
