// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
)

// identify finds out who is asking. An anonymous listener knows a key that it
// is shown, and lets in whoever shows none or another.
func (x *exchange) identify() *llm.Error {
	id, fail := x.server.guard.Identify(x.table.keys, x.r, x.listener.anonymous.Load())
	switch {
	case fail == nil:
		x.identity = id
	case x.listener.anonymous.Load():
		x.identity = &auth.Identity{}
	default:
		return fail
	}
	x.record.Tenant, x.record.Key, x.record.Tier = x.identity.Tenant, x.identity.Key, x.identity.Tier
	return nil
}

// tellRouting puts into an answer's head who served, and how it came to that.
func (x *exchange) tellRouting(h http.Header) {
	if x.rule != nil || x.model == nil || !x.listener.routing.Load() {
		return
	}
	if x.target != nil {
		h.Set("X-Penstock-Target", x.title(x.target))
	}
	h.Set("X-Penstock-Attempts", strconv.Itoa(x.record.Attempts))
	if x.record.Fallback != "" {
		h.Set("X-Penstock-Fallback", x.record.Fallback)
	}
	if x.estimated != "" {
		h.Set("X-Penstock-Estimated", x.estimated)
	}
	if len(x.record.Dropped) > 0 {
		h.Set("X-Penstock-Dropped", strings.Join(x.record.Dropped, ", "))
	}
}

// tellRetries says in the libraries' own word that they need not try again: the
// gateway has, or has its reasons, such as a spent budget, not to.
func (x *exchange) tellRetries(h http.Header, status int) {
	if n := x.record.Attempts; n > 1 || n == 1 && x.target != nil && x.target.provider != nil && status >= 500 {
		h.Set("X-Should-Retry", "false")
	}
}

// contentType is that of a translated answer.
func (x *exchange) contentType() string {
	if x.record.Stream && !x.wantsArray() {
		return "text/event-stream"
	}
	return "application/json"
}

// wantsArray says that a client of Gemini's streams takes them as one JSON array.
func (x *exchange) wantsArray() bool {
	return x.op == llm.OpGenerate && x.record.Stream && x.r.URL.Query().Get("alt") != "sse"
}

// where is who answers, for the record: a member's address, or the account at a
// provider.
func (a *attempt) where() string {
	if a.member != nil {
		return a.member.Address()
	}
	return a.x.target.provider.Name() + "/" + a.credential.Name()
}

// report tells the health of whoever answered how it went.
func (a *attempt) report(o pool.Outcome) {
	if a.member != nil {
		a.member.Report(o)
		return
	}
	v := provider.Verdict{Class: provider.StreamBroken, Status: http.StatusOK}
	if o == pool.TimedOut {
		v.Class = provider.Timeout
	}
	a.ends(v, nil, a.latency)
}

// ended tells the provider of an answer that has passed whole.
func (a *answer) ended() {
	if a.account == nil {
		return
	}
	v := provider.Verdict{Class: provider.OK, Status: a.res.StatusCode}
	if r := a.reader; r != nil {
		v = provider.ClassifyEnd(a.dialect, r.Tokens(), r.FinishReason(), r.Failed(), nil)
	}
	a.ends(v, nil, a.latency)
}

// settlePick ends the pick of a pool that is left for another target.
func (x *exchange) settlePick() {
	if x.pick != nil {
		x.pick.Done(epp.Outcome{Err: errRetried})
		x.pick, x.named, x.denial = nil, 0, nil
	}
}

// learn takes from the exchange what the next one may use: how many tokens the
// target counts in a prompt, and how long it took.
func (x *exchange) learn() {
	if x.target == nil || x.rule != nil || x.target.mark == nil {
		return
	}
	if u := &x.record.Counts; u.Reported() && !u.NoPrompt && x.plan.estimated > 0 {
		x.target.ratio.learn(x.plan.estimated, u.Prompt())
		if c := x.plan.counted; c.encoding != "" && c.encoding == x.target.encoding {
			x.target.exact.learn(c.tokens, u.Prompt())
		}
	}
	if x.record.Status == http.StatusOK && x.record.ErrorClass == "" {
		x.target.spans.add(time.Since(x.record.Time))
	}
}

// maxClassified is how much of an error's body is read for its class.
const maxClassified = 64 << 10

// refusal is an error of a pool's member that another target may not make: the
// prompt is too long for it, or it refuses the content. nil for everything else,
// and where nobody is there to do better.
func (x *exchange) refusal(a *answer) *failure {
	if x.rule != nil || a.res.StatusCode < 400 || a.res.StatusCode >= 500 || len(x.plan.chain) == 0 {
		return nil
	}
	body := (*a.buf)[:a.n]
	v := provider.Classify(llm.DialectOpenAI, a.res.StatusCode, a.res.Header, body[:min(len(body), maxClassified)], nil, true)
	class := config.FallbackClass(v.Class.Fallback())
	if class == "" || class == config.FallbackGeneral {
		return nil
	}
	for i := range x.plan.chain {
		if x.plan.chain[i].takes(class) {
			f := &failure{reply: llm.ReadError(llm.DialectOpenAI, a.res.StatusCode, body), class: v.Class, sent: true, reached: true, replied: true, foreign: true}
			a.close()
			return f
		}
	}
	return nil
}

// classOf is what a failure before an answer means for other targets.
func classOf(cause error, connected bool) provider.Class {
	switch cause {
	case errConnectTimeout:
		return provider.Connect
	case errFirstTokenTimeout, errBackendTimeout:
		return provider.Timeout
	case nil:
		if !connected {
			return provider.Connect
		}
		return provider.Reset
	}
	return provider.OK
}

// canMake says that the gateway can make an answer of this kind itself.
func (x *exchange) canMake() bool { return (!x.sent || x.opened) && x.op.Generates() }

// answerStatic answers with text, in the client's dialect.
func (x *exchange) answerStatic(text string) *llm.Error {
	body := llm.Static(x.op, x.req.Stream, llm.AnswerOptions{
		Model: x.record.ModelAsked, RequestID: x.record.RequestID, IncludeUsage: x.req.IncludeUsage, Created: time.Now().Unix(),
	}, text)
	h := x.w.Header()
	h.Set("Content-Type", x.contentType())
	if x.req.Stream {
		h.Set("Cache-Control", "no-cache")
	}
	x.target = nil // nobody served it
	x.record.ModelUsed, x.record.Served = "", ""
	x.tellRouting(h)
	x.answer(http.StatusOK, body)
	return nil
}

// fetchImage gets an image that a target wants inline. All of a request are
// bounded together, in size as its body is, and in time; they are counted with it.
func (x *exchange) fetchImage(url string) (mediaType string, data []byte, err error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.left())
	defer cancel()
	if mediaType, data, err = x.server.images.Fetch(ctx, url); err != nil {
		return "", nil, err
	}
	n := int64(base64.StdEncoding.EncodedLen(len(data))) // as it is sent
	if limit := int64(x.table.cfg.Limits.Body); x.fetched+n > limit {
		return "", nil, fmt.Errorf("the images of the request are larger together than the limit of %d bytes", limit)
	}
	if fail := x.hold(n); fail != nil {
		return "", nil, errors.New(fail.Message)
	}
	x.fetched += n
	return mediaType, data, nil
}
