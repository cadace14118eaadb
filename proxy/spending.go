// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage"
)

// This file is what a request takes of limits: of those on the way from the
// tenant to the key, once, before anybody is asked; of a credential's, for each
// attempt with it. What was taken is settled in any case: see [exchange.settle].

// spending is what an exchange has reserved.
type spending struct {
	taken quota.Reservation // of the limits of whoever asks
	lent  quota.Reservation // of the limits of the credential in use
	over  *quota.Refusal    // nil: the client's limits let it in
	full  time.Duration     // until a credential whose limits refused has room again, the soonest; 0: none refused
	// Of the limits that count only models that were fallen back to:
	entered bool // the client's limits let it in: such a model may be fallen back to
	more    []*quota.Reservation
	uses    []quota.Use     // what was used of each
	barred  []usage.Skipped // that have no room for the request
	bar     *quota.Refusal  // the last of them
}

// reserve takes of the client's limits what the request may use, or tells why it
// may not.
func (x *exchange) reserve() *llm.Error {
	var room [8]*quota.Node
	path := x.server.limits.path(room[:0], x)
	if len(path) == 0 {
		return nil
	}
	cost, _ := x.reserveCost() // a fallback may be dearer
	may := x.mayUse(x.target, cost)
	began := time.Now()
	x.over = x.server.limits.limiter.Reserve(x.r.Context(), &x.taken, path, [2]string{x.record.ModelAsked, x.model.name}, &may)
	if x.record.Reserve = time.Since(began).Seconds(); x.over != nil {
		return x.overLimit(x.over)
	}
	x.noteLimits(&x.taken)
	x.entered = true
	if x.within([]*target{x.target}) || x.advance(&failure{class: provider.RateLimit}) { // the target may be a fallback
		return nil
	}
	x.over = x.bar
	return x.overLimit(x.over)
}

// noteLimits puts into the record what limits say that were reserved.
func (x *exchange) noteLimits(r *quota.Reservation) {
	r.Warnings(func(s quota.State) {
		x.record.Warned = append(x.record.Warned, fmt.Sprintf("%s: %d%% in use", s.Limit, s.Percent()))
	}, func(s quota.State) {
		x.record.Shadow = append(x.record.Shadow, s.Limit.String())
	})
}

// within takes what the request may use at the first of targets, and at those
// with it that count as the same model, of the limits that count that model and
// not the one that was asked for. It says no where there is no room: then another
// target is to be asked.
func (x *exchange) within(targets []*target) bool {
	name := targets[0].countsAs(x)
	if !x.entered || name == x.record.ModelAsked || name == x.model.name || slices.ContainsFunc(x.uses, func(u quota.Use) bool { return u.Model == name }) {
		return true
	}
	if slices.ContainsFunc(x.barred, func(s usage.Skipped) bool { return s.Target == name }) {
		return false
	}
	cost := int64(0)
	for _, tg := range targets {
		if tg.countsAs(x) == name {
			cost = max(cost, x.bid(tg).Pico)
		}
	}
	before := []string{x.record.ModelAsked, x.model.name}
	for i := range x.uses {
		before = append(before, x.uses[i].Model)
	}
	var room [8]*quota.Node
	r, may := &quota.Reservation{}, x.mayUse(targets[0], cost)
	if over := x.server.limits.limiter.ReserveMore(x.r.Context(), r, x.server.limits.path(room[:0], x), name, before, &may); over != nil {
		x.bar, x.barred = over, append(x.barred, usage.Skipped{Target: name, Reason: fmt.Sprintf("the limit %s has no room", over.Limit)})
		return false
	}
	x.noteLimits(r)
	x.more, x.uses = append(x.more, r), append(x.uses, quota.Use{Model: name})
	return true
}

// countMore counts an attempt, and what it has used, for the model it went to, if
// that was fallen back to.
func (x *exchange) countMore(used *usage.Used) {
	for i := range x.uses {
		if u := &x.uses[i]; u.Model == x.target.countsAs(x) {
			u.Requests = 1
			if used != nil {
				add(&u.Amounts, &used.Counts)
				u.Picodollars += used.Cost.Pico
			}
		}
	}
}

// mayUse is the most that the request may use: the estimated prompt, the bound on
// the answer, and a cost in picodollars.
func (x *exchange) mayUse(tg *target, cost int64) quota.Amounts {
	a := quota.Amounts{Requests: 1, Picodollars: cost}
	if a.Output = int64(x.outputBound(tg)); a.Output > 0 || x.op.Embeds() { // what is not read has no tokens that could be told
		a.Input = int64(x.estimate(tg))
	}
	return a
}

// settleLimits puts what was used in the place of what was reserved: of the client's
// limits what all attempts have used, of the credential's what the last has.
func (x *exchange) settleLimits() {
	if !x.taken.Active() && !x.lent.Active() && len(x.more) == 0 {
		return
	}
	rec := x.record
	var all, last quota.Amounts
	for i := range rec.Tries {
		if t := &rec.Tries[i]; t.Used != nil && t.Error != "" {
			add(&all, &t.Used.Counts)
		}
	}
	if n := len(rec.Tries); n == 0 || rec.Tries[n-1].Error == "" {
		add(&all, &rec.Counts)
		add(&last, &rec.Counts)
		if n > 0 && rec.Tries[n-1].Used != nil {
			last.Picodollars = rec.Tries[n-1].Used.Cost.Pico
			x.countMore(rec.Tries[n-1].Used)
		}
	}
	all.Picodollars = rec.Cost.Pico
	if rec.Attempts > 0 { // else nobody was asked: it costs nothing
		all.Requests, last.Requests = 1, 1
	}
	x.taken.Settle(&all)
	for _, r := range x.more {
		r.SettleEach(x.uses)
	}
	x.lent.Settle(&last)
}

func add(a *quota.Amounts, c *usage.Counts) {
	a.Input += int64(c.Input) + int64(c.AudioInput) + int64(c.ImageInput)
	a.Cached += int64(c.CacheRead)
	a.CacheWrite += int64(c.Written())
	a.Output += int64(c.Output) + int64(c.AudioOutput) + int64(c.ImageOutput)
	a.Reasoning += int64(c.Reasoning)
}

// reserveAt takes of the limits of credential c what an attempt with it may use.
// It says no where there is no room: then another one is to be asked.
func (x *exchange) reserveAt(tg *target, c *provider.Credential) bool {
	node := tg.limits[c.Name()]
	if node == nil {
		return true
	}
	may := x.mayUse(tg, x.bid(tg).Pico)
	f := x.server.limits.limiter.Reserve(x.r.Context(), &x.lent, []*quota.Node{node}, [2]string{x.record.ModelAsked, tg.named(x)}, &may)
	if f == nil {
		return true
	}
	if f.Wait > 0 && (x.full == 0 || f.Wait < x.full) {
		x.full = f.Wait
	}
	return false
}

// giveBackAttempt gives back what an attempt without an answer had reserved of its
// credential's limits: it counts as a request if it was sent.
func (x *exchange) giveBackAttempt(f *failure) {
	a := quota.Amounts{}
	if f.sent {
		a.Requests = 1
	}
	if n := len(x.record.Tries); n > 0 && x.record.Tries[n-1].Used != nil {
		used := x.record.Tries[n-1].Used
		add(&a, &used.Counts)
		a.Picodollars = used.Cost.Pico
	}
	x.lent.Settle(&a)
}

// limited is the failure of a target whose credentials have no room for the
// request.
func (x *exchange) limited() *failure {
	e := &llm.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "provider_limit",
		Message: "the limits of the gateway's accounts at the provider have no room for this request", Header: retryAfter(x.full),
	}
	return &failure{reply: e, class: provider.RateLimit, limited: true, wait: x.full}
}

func retryAfter(wait time.Duration) http.Header {
	if wait <= 0 {
		return http.Header{}
	}
	return http.Header{"Retry-After": {strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)}}
}

// overLimit is a refusal in words.
func (x *exchange) overLimit(f *quota.Refusal) *llm.Error {
	l := f.Limit
	x.record.Limit = l.String()
	switch {
	case f.Away:
		return llm.Unavailable(fmt.Sprintf("the use of the limit %s cannot be counted now", l), time.Second)
	case f.TooLarge:
		return &llm.Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "request_exceeds_limit",
			Message: fmt.Sprintf("the request may use %s, more than the whole limit %s: ask for less, such as by max_tokens; waiting does not help", l.Text(f.Needed), l),
		}
	}
	e := &llm.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "rate_limit_exceeded", Header: retryAfter(f.Wait)}
	if l.Unit() == quota.USD {
		e.Code = "budget_exceeded"
	}
	e.Message = fmt.Sprintf("the limit %s is reached: the request may use %s, and %s are left", l, l.Text(f.Needed), l.Text(f.Left))
	if l.Unit() == quota.Concurrency {
		e.Message = fmt.Sprintf("the limit %s is reached", l)
	} else if after := e.Header.Get("Retry-After"); after != "" {
		e.Message += "; there is room in " + after + "s"
	}
	return e
}

// tellLimits puts into an answer's head how the client's limits stand, in the
// names that its libraries read.
func (x *exchange) tellLimits(h http.Header) {
	anthropic := x.op.Dialect() == llm.DialectAnthropic
	if f := x.over; f != nil && !f.Away && !f.TooLarge {
		tellLimit(h, anthropic, quota.State{Limit: f.Limit, Used: f.Limit.Amount() - f.Left, Reset: f.Wait})
		return
	}
	var tightest [4]quota.State // by kind of header
	tighter := func(s quota.State) {
		if k := headerOf(s.Limit.Unit(), anthropic); k >= 0 && !s.Limit.Shadow() && (tightest[k].Limit == nil || s.Percent() > tightest[k].Percent()) {
			tightest[k] = s
		}
	}
	x.taken.States(tighter)
	for _, r := range x.more {
		r.States(tighter)
	}
	for _, s := range tightest {
		if s.Limit != nil {
			tellLimit(h, anthropic, s)
		}
	}
	if len(x.record.Warned) > 0 {
		h.Set("X-Penstock-Limit-Warning", strings.Join(x.record.Warned, ", "))
	}
}

// headerOf is the kind of headers that tells of a unit, -1: none does.
func headerOf(u quota.Unit, anthropic bool) int {
	switch {
	case u == quota.Requests:
		return 0
	case u == quota.Tokens || u == quota.Weighted, !anthropic && (u == quota.Input || u == quota.Output):
		return 1
	case u == quota.Input:
		return 2
	case u == quota.Output:
		return 3
	}
	return -1
}

// tellLimit writes three headers, by their canonical names and with the memory of
// one: it is done for each answer.
func tellLimit(h http.Header, anthropic bool, s quota.State) {
	k := headerOf(s.Limit.Unit(), anthropic)
	if k < 0 {
		return
	}
	names := [...][3]string{
		{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
		{"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
		2: {"Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
		3: {"Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
		4: {"Anthropic-Ratelimit-Input-Tokens-Limit", "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
		5: {"Anthropic-Ratelimit-Output-Tokens-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
	}
	var room [96]byte
	b := strconv.AppendInt(room[:0], s.Limit.Amount(), 10)
	limit := len(b)
	b = strconv.AppendInt(b, s.Left(), 10)
	left := len(b)
	if anthropic {
		k += 2
		b = now().Add(s.Reset+time.Second-1).UTC().AppendFormat(b, time.RFC3339)
	} else {
		b = append(b, ((s.Reset + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()...)
	}
	text := string(b)
	values := []string{text[:limit], text[limit:left], text[left:]}
	for i, name := range names[k] {
		h[name] = values[i : i+1 : i+1]
	}
}
