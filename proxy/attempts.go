// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/usage"
)

// attempts asks one target after another until one begins an answer. All of
// them share the attempts of the model, its retry budget and the total time.
func (x *exchange) attempts() (*answer, *llm.Error) {
	x.service.budget.request()
	x.startPing(x.service.timeouts.FirstPing.D())
	for {
		x.ping.wait()
		a, f := x.try()
		x.ping.back()
		if f == nil {
			return a, nil
		}
		if x.rule != nil || !x.another(f) {
			return x.degraded(f)
		}
	}
}

// try asks the target. Neither an answer nor a failure: the gateway has answered
// itself.
func (x *exchange) try() (*answer, *failure) {
	if x.rule == nil && x.op.Counts() && !x.has(x.target) {
		x.answerCount()
		return nil, nil
	}
	if x.target.provider != nil {
		return x.tryProvider()
	}
	return x.tryPool()
}

// another decides whether a further attempt follows a failure, and at whom: the
// one function that does. The next target comes first, at once; the same one
// again only when nobody is left, after a pause, and if what failed may pass.
func (x *exchange) another(f *failure) bool {
	if why := x.bound(f); why != "" {
		if why != gone && x.others() && f.class.Fallback() != "" {
			x.record.Bound = why
		}
		return false
	}
	if x.goesOn(f) {
		return true
	}
	if f.charged() {
		x.service.budget.giveBack()
	}
	return false
}

// charged says that an attempt after the failure is taken from the budget: whoever
// failed had work with the request. A prompt that is too long, or content that is
// refused, is no sign of load, and goes to a target made for it.
func (f *failure) charged() bool { return f.sent && !f.peculiar() }

// peculiar says that the failure comes of what the request holds.
func (f *failure) peculiar() bool {
	class := config.FallbackClass(f.class.Fallback())
	return class == config.FallbackContextWindow || class == config.FallbackContentPolicy
}

// goesOn finds the target of a further attempt, and waits as long as it must.
func (x *exchange) goesOn(f *failure) bool {
	if x.advance(f) {
		return true
	}
	tg := x.target
	if tg.provider == nil || f.limited || !f.class.RetrySame() || x.plan.here >= x.service.perTarget {
		return false
	}
	pause := x.backoff(x.plan.here)
	if f.wait > 0 {
		pause = f.wait
	}
	if pause > x.service.maxWait || pause >= x.left() {
		return false // the client is told how long it would be
	}
	return x.sleep(pause)
}

// bound is the key of the bound of all attempts together that leaves no room for
// another one after a failure, "" if there is room; the attempt is then taken from
// the budget.
func (x *exchange) bound(f *failure) string {
	switch {
	case x.r.Context().Err() != nil:
		return gone
	case x.spent() >= x.service.attempts:
		return "retries.attempts"
	case time.Since(x.record.Time) > x.service.within:
		return "retries.within"
	case f.charged() && !x.service.budget.retry():
		return "retries.budget"
	}
	return ""
}

// gone is in place of the key when nobody waits for an answer any more.
const gone = "client"

// spent is how many attempts have been made that count.
func (x *exchange) spent() int { return x.record.Attempts - x.plan.stale }

// backoff is the pause before attempt n+1 at one target: it doubles, and is
// spread between a half and the whole.
func (x *exchange) backoff(n int) time.Duration {
	full := x.service.backoff << min(n-1, 10)
	if full <= 0 {
		return 0
	}
	return full/2 + rand.N(full/2+1)
}

// sleep waits, and says no if the client has left meanwhile.
func (x *exchange) sleep(d time.Duration) bool {
	x.ping.wait()
	defer x.ping.back()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// starts begins an attempt at server, which is told where it stands in the trace.
func (x *exchange) starts(server string) {
	x.record.Attempts++
	x.began, x.asked = time.Now(), server
	if t := &x.record.Trace; t.ID != (usage.TraceID{}) {
		x.r.Header["Traceparent"] = []string{t.Header(t.Child(x.record.Attempts))}
	}
}

// tried notes what became of an attempt.
func (x *exchange) tried(f *failure) {
	t := usage.Attempt{
		Target: x.title(x.target), Server: x.asked, System: x.target.system, Pick: x.picked.Seconds(),
		At: x.began.Sub(x.record.Time).Seconds(), Seconds: time.Since(x.began).Seconds(),
	}
	x.picked = 0
	if f != nil {
		t.Used = x.usedBy(f)
		t.Error = f.code()
		if f.class != provider.OK && f.class != provider.Canceled { // the client has left, whoever saw it first
			t.Error = f.class.String()
		}
	}
	x.countMore(t.Used)
	if x.rule == nil && len(x.record.Tries) < maxTries {
		x.record.Tries = append(x.record.Tries, t)
	}
}

// maxTries bounds the attempts that a record tells of.
const maxTries = 32

// tryPool asks one member of the pool after another until one begins an answer.
// It is bounded by one more rule: once a request to a model was sent in full, at
// most one further member gets it, so that a prompt that crashes servers does
// not walk through the pool.
func (x *exchange) tryPool() (*answer, *failure) {
	if fail := x.translate(llm.DialectOpenAI); fail != nil {
		return nil, fail
	}
	var tried []string
	var again *pool.Member // after a stale connection
	fresh := false         // likewise: where one is closed others are, at this member and at those that go with it
	var last *failure
	paid := false // the retry that comes next was taken from the budget
	for full := 0; ; {
		m := again
		if m == nil {
			var fail *llm.Error
			if m, fail = x.next(tried); fail != nil {
				if last != nil {
					if paid {
						x.service.budget.giveBack()
					}
					return nil, last
				}
				return nil, x.refusedByPool(fail)
			}
		}
		x.starts(m.Address())
		a, f := x.attempt(m, fresh)
		if f == nil {
			m.Report(x.outcomeOf(a.res.StatusCode))
			if f = x.unwanted(a, full); f == nil || !f.retry {
				x.tried(f)
				return a.unless(f), f
			}
			x.tried(f)
			x.pause(full + 1)
		} else {
			x.tried(f)
			if f.blame {
				m.Report(f.outcome)
			}
			f.retry = f.retry && (x.rule == nil || x.again(f))
		}
		x.server.metrics.attemptFailed(x.target.pool, f.code())
		if f.sent {
			full++
		}
		fresh = fresh || f.stale
		if f.retry && f.stale && again == nil {
			again = m
		} else {
			again, tried = nil, append(tried, m.Address())
		}
		if last = f; !f.retry || full > x.service.resends || !f.paid && !x.mayRetry(f.sent) {
			return nil, f
		}
		paid = f.sent
		if again != nil {
			x.plan.stale++ // a connection is replaced; that is not one member less to try
		}
	}
}

// unwanted says why an answer of a member is not passed on, nil if it is: it is
// not for clients, another target may do better, or another member of this one
// (then the failure may be retried). The answer is closed. full is how many
// members have had the request before.
func (x *exchange) unwanted(a *answer, full int) *failure {
	if why := x.withheld(a.res.StatusCode); why != "" {
		a.close()
		return &failure{reply: llm.UpstreamFailed(why), class: provider.Auth}
	}
	if f := x.refusal(a); f != nil {
		return f
	}
	if !x.retryStatus(a.res.StatusCode) {
		return nil
	}
	f := &failure{sent: true, reached: true, replied: true, class: provider.Overloaded, reply: llm.UpstreamFailed("the model server answered " + a.res.Status)}
	f.retry = full < x.service.resends && x.mayRetry(true)
	if f.paid = f.retry; !f.retry && !x.others() {
		return nil // the client is told as the member says it
	}
	a.close()
	return f
}

// unless is the answer, nil if there is a failure.
func (a *answer) unless(f *failure) *answer {
	if f != nil {
		return nil
	}
	return a
}

// refusedByPool is a picker's refusal, or that nobody is ready, as a failure.
func (x *exchange) refusedByPool(e *llm.Error) *failure {
	f := &failure{reply: e, class: provider.Overloaded}
	switch {
	case e.Status == StatusClientClosed:
		f.class = provider.OK
	case e.Status == http.StatusTooManyRequests:
		f.class = provider.RateLimit
	}
	return f
}

// mayRetry is asked after an attempt at a member has failed in a way that allows
// another. An attempt that reached nobody costs no server anything and is not
// charged to the budget. One attempt is kept for another target, if there is one.
func (x *exchange) mayRetry(sent bool) bool {
	left := x.service.attempts - x.spent()
	if x.others() {
		left--
	}
	return left > 0 && x.r.Context().Err() == nil && (!sent || x.service.budget.retry())
}

// others says that there is another target to go to.
func (x *exchange) others() bool {
	if x.rule != nil {
		return false
	}
	for i := range x.plan.chain {
		if x.plan.chain[i].takes(config.FallbackGeneral) {
			return true
		}
	}
	return len(x.plan.next) > 0
}

// degraded is the end of the attempts: the static answer of the model, if it has
// one and the failure is not the client's own, or the error.
func (x *exchange) degraded(f *failure) (*answer, *llm.Error) {
	if x.model == nil || x.model.degraded == "" || f.class.Fallback() == "" || f.peculiar() || !x.canMake() {
		if f.foreign {
			x.record.ErrorClass, x.record.Error = "upstream_4xx", f.reply.Message
		}
		return nil, f.reply
	}
	x.record.ErrorClass, x.record.Error, x.record.Pool, x.record.Provider = "degraded", f.reply.Message, "", ""
	x.record.Fallback = "degraded: " + f.class.String()
	return nil, x.answerStatic(x.model.degraded)
}
