// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

// tryProvider asks the provider of the target once, with one of its
// credentials; with another one at once, if the fault is the credential's.
func (x *exchange) tryProvider() (*answer, *failure) {
	tg := x.target
	d, ok := tg.provider.SpeaksModel(x.op, tg.named(x))
	if !ok {
		return nil, &failure{reply: llm.NotFound(x.r.URL.Path), class: provider.ModelNotFound}
	}
	if f := x.translate(d); f != nil {
		return nil, f
	}
	var tried []*provider.Credential
	var last *failure
	refused := false // by the limits of a credential
	for {
		var c *provider.Credential
		var wait time.Duration
		if x.plan.account != "" {
			c = tg.provider.Named(x.plan.account, tried)
		} else if maker := tg.seals[x.plan.sealed]; maker != "" {
			c = tg.provider.Fit(maker, tg.named(x), tried)
		}
		if c == nil && x.plan.account == "" {
			c, wait = tg.provider.Pick(tg.named(x), tried, x.affinityFor(tg))
		}
		if c == nil && last != nil { // the account that failed is the only one for this request
			if last.charged() {
				x.service.budget.giveBack()
			}
			return nil, last
		}
		if c == nil && refused {
			return nil, x.limited()
		}
		if c == nil {
			return nil, &failure{reply: llm.Unavailable("the provider has no credential that could be used", wait), class: provider.Auth}
		}
		if !x.reserveAt(tg, c) {
			tried, refused = append(tried, c), true
			continue
		}
		x.plan.here++
		x.starts(c.Name())
		a, f := x.attemptProvider(c, d)
		x.tried(f)
		if f == nil {
			return a, nil
		}
		x.giveBackAttempt(f)
		x.server.metrics.attemptFailed(tg.provider.Name(), f.code())
		if tried = append(tried, c); f.class.Cools() == provider.ScopeNone || len(tried) >= tg.accounts || x.kept(f) || x.bound(f) != "" {
			return nil, f
		}
		last = f
	}
}

// kept says that the one attempt that is left after f is for another target: what
// failed at all accounts so far will hardly do better at the next.
func (x *exchange) kept(f *failure) bool {
	return x.spent() == x.service.attempts-1 && x.elsewhere(f)
}

// affinityFor is what ties a prompt to one credential: prompt caches belong to
// an account. 0 for a single credential, which needs no hash.
func (x *exchange) affinityFor(tg *target) uint64 {
	if tg.accounts < 2 {
		return 0
	}
	return x.affinity()
}

// attemptProvider sends the request with credential c, in dialect d.
func (x *exchange) attemptProvider(c *provider.Credential, d llm.Dialect) (*answer, *failure) {
	tg, began := x.target, time.Now()
	a := x.begins(nil)
	if x.plan.request == 0 { // the body is let go before the answer ends
		x.plan.request = xxhash.Sum64(x.body)
	}
	if x.plan.sealed != "" { // each account gets the reasoning that it has made
		x.seal, x.edited = seal(tg.provider, c.Name()), nil
	}
	a.credential, a.dialect, a.account = c, d, tg.provider.Begin(c, tg.named(x))
	tg.load.open.Add(1)
	op, path := x.op, x.path
	if x.translation != nil {
		op, path = opOf(x.op, d), ""
	}
	r, err := tg.provider.Request(a.ctx, c, &provider.Call{
		Op: op, Dialect: d, Model: tg.named(x), Stream: x.req.Stream, Path: path, Body: x.outBody(),
		ContentType: x.r.Header.Get("Content-Type"), Header: x.r.Header, RequestID: x.record.RequestID, Scope: x.identity.Tenant,
	})
	if err != nil {
		f := &failure{}
		v := a.observe(f, 0, nil, nil, err, began)
		f.reply = v.ClientError()
		a.close()
		return nil, f
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), a.trace()))
	res, err := a.roundTrip(r)
	if err != nil {
		f := &failure{sent: a.sentFull.Load()}
		v := a.observe(f, 0, nil, nil, a.causeOf(err), began)
		class, wait := f.class, f.wait
		f = a.failed(err)
		f.class, f.wait = class, wait
		if context.Cause(x.r.Context()) == nil {
			f.reply = v.ClientError()
		}
		return nil, f
	}
	if f := a.refused(res, began); f != nil {
		return nil, f
	}
	ans, f := a.answers(res)
	if f != nil {
		return nil, f
	}
	a.latency = time.Since(began)
	tg.load.took(a.latency)
	a.account.Answered(res.Header)
	return ans, nil
}

// opOf is the operation into which requests are translated.
func opOf(op llm.Op, d llm.Dialect) llm.Op {
	switch {
	case op.Counts():
		return llm.OpCountTokens
	case op.Embeds() && d == llm.DialectGemini:
		return llm.OpEmbedContents
	case op.Embeds():
		return llm.OpEmbeddings
	}
	switch d {
	case llm.DialectAnthropic:
		return llm.OpMessages
	case llm.DialectGemini:
		return llm.OpGenerate
	case llm.DialectResponses:
		return llm.OpResponses
	}
	return llm.OpChat
}

// maxRefusalBody bounds what is read of a provider's refusal.
const maxRefusalBody = 256 << 10

// refused reads an answer that is none: a status of 300 or more.
func (a *attempt) refused(res *http.Response, began time.Time) *failure {
	if res.StatusCode < 300 {
		return nil
	}
	unzip(res, maxRefusalBody)
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusalBody))
	res.Body.Close()
	f := &failure{sent: true, reached: true, replied: true}
	f.reply = a.observe(f, res.StatusCode, res.Header, body, nil, began).ClientError()
	f.foreign = f.class == provider.BadRequest
	if f.reply.Type == "invalid_request_error" {
		f.reply.Param = llm.ReadError(a.dialect, res.StatusCode, body).Param // what the client has to look at
		f.reply.Param = a.scrub(f.reply.Param)
	}
	a.close()
	return f
}

// causeOf is why an attempt ended without an answer: a bound of ours, the client,
// or what the transport says.
func (a *attempt) causeOf(err error) error {
	switch cause := context.Cause(a.ctx); cause {
	case nil:
		return err
	case errConnectTimeout, errFirstTokenTimeout, errIdleTimeout:
		return provider.ErrTimeout
	case errTotalTimeout:
		return context.DeadlineExceeded
	default:
		return context.Canceled
	}
}

// observe tells the provider's health of a failure, and the failure its class.
func (a *attempt) observe(f *failure, status int, h http.Header, body []byte, err error, began time.Time) provider.Verdict {
	v := a.x.target.provider.Judge(a.dialect, status, h, body, err, f.sent)
	a.ends(v, h, time.Since(began))
	f.class, f.wait = v.Class, v.Wait
	return v
}

// scrub takes the provider's secrets out of what it says.
func (a *attempt) scrub(text string) string {
	if a.credential == nil || text == "" {
		return text
	}
	return a.x.target.provider.Scrub(text)
}

// ends tells the provider what became of the attempt; the first call counts.
func (a *attempt) ends(v provider.Verdict, h http.Header, latency time.Duration) {
	if a.account != nil {
		v.Request = a.x.plan.request
		a.account.End(v, h, latency)
	}
}

// unzip takes a compression off an answer that nobody asked for. It is unpacked
// up to limit: a thousandth of that may have come.
func unzip(res *http.Response, limit int64) {
	if !strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") {
		return
	}
	res.Body = &unzipped{source: res.Body, left: limit}
	res.Header.Del("Content-Encoding")
	res.Header.Del("Content-Length")
	res.ContentLength = -1
}

// unzipped reads through gzip as the bytes come.
type unzipped struct {
	source io.ReadCloser
	gz     *gzip.Reader
	left   int64 // bytes that may still come out
	err    error
}

var errUnzipped = errors.New("the server's compressed answer is larger than limits.body")

func (u *unzipped) Read(p []byte) (int, error) {
	if u.gz == nil && u.err == nil {
		u.gz, u.err = gzip.NewReader(u.source)
	}
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.gz.Read(p[:min(int64(len(p)), u.left+1)])
	if u.left -= int64(n); u.left < 0 {
		u.err, err = errUnzipped, errUnzipped
		n--
	}
	return n, err
}

func (u *unzipped) Close() error { return u.source.Close() }
