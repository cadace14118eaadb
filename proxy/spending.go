// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
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
	may := x.mayUse(cost)
	defer func(began time.Time) { x.record.Reserve = time.Since(began).Seconds() }(time.Now())
	if x.over = x.server.limits.limiter.Reserve(x.r.Context(), &x.taken, path, [2]string{x.record.ModelAsked, x.model.name}, &may); x.over != nil {
		return x.overLimit(x.over)
	}
	x.taken.Warnings(func(s quota.State) {
		x.record.Warned = append(x.record.Warned, fmt.Sprintf("%s: %d%% in use", s.Limit, s.Percent()))
	}, func(s quota.State) {
		x.record.Shadow = append(x.record.Shadow, s.Limit.String())
	})
	return nil
}

// mayUse is the most that the request may use: the estimated prompt, the bound on
// the answer, and a cost in picodollars.
func (x *exchange) mayUse(cost int64) quota.Amounts {
	a := quota.Amounts{Requests: 1, Picodollars: cost}
	if a.Output = int64(x.outputBound(x.target)); a.Output > 0 || x.op.Embeds() { // what is not read has no tokens that could be told
		a.Input = int64(x.estimate(x.target))
	}
	return a
}

// settleLimits puts what was used in the place of what was reserved: of the client's
// limits what all attempts have used, of the credential's what the last has.
func (x *exchange) settleLimits() {
	if !x.taken.Active() && !x.lent.Active() {
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
		}
	}
	all.Picodollars = rec.Cost.Pico
	if rec.Attempts > 0 { // else nobody was asked: it costs nothing
		all.Requests, last.Requests = 1, 1
	}
	x.taken.Settle(&all)
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
	may := x.mayUse(x.bid(tg).Pico)
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
	x.taken.States(func(s quota.State) {
		if k := headerOf(s.Limit.Unit(), anthropic); k >= 0 && !s.Limit.Shadow() && (tightest[k].Limit == nil || s.Percent() > tightest[k].Percent()) {
			tightest[k] = s
		}
	})
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

func tellLimit(h http.Header, anthropic bool, s quota.State) {
	k := headerOf(s.Limit.Unit(), anthropic)
	if k < 0 {
		return
	}
	kind := [...]string{"Requests", "Tokens", "Input-Tokens", "Output-Tokens"}[k]
	limit, left := strconv.FormatInt(s.Limit.Amount(), 10), strconv.FormatInt(s.Left(), 10)
	if anthropic {
		h.Set("Anthropic-Ratelimit-"+kind+"-Limit", limit)
		h.Set("Anthropic-Ratelimit-"+kind+"-Remaining", left)
		h.Set("Anthropic-Ratelimit-"+kind+"-Reset", now().Add(s.Reset+time.Second-1).UTC().Format(time.RFC3339))
		return
	}
	h.Set("X-Ratelimit-Limit-"+kind, limit)
	h.Set("X-Ratelimit-Remaining-"+kind, left)
	h.Set("X-Ratelimit-Reset-"+kind, ((s.Reset + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String())
}
