// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
)

// early is what of an answer was read before its head goes to the client, which
// cannot be taken back. Of a stream that is its preamble: as long as there is no
// output, another target can still take the request, and the client has seen
// nothing.
type early struct {
	reader llm.Reader // nil: the bytes are not for reading
	fed    bool       // raw has been read, and out is what it came to
	owned  bool       // raw and out are copies: the buffers that they came in may be filled again
	gather bool       // it is read to its end: what the client gets is made of the whole
	size   int        // bytes that were read
	held   int64      // bytes counted in limits.bodiesInFlight, of an answer that is gathered
	raw    []byte     // of them; of a provider's JSON just the first
	out    []byte
}

// maxPreamble bounds what is held back of a stream.
const maxPreamble = 64 << 10

// commit reads on until the answer may be passed to the client: a stream until
// its first output or its proper end, an answer that is to be translated as a
// whole. What breaks before that is a failure like any other.
func (a *answer) commit() *failure {
	x := a.x
	if a.sse && x.rule == nil && a.n > 0 && (*a.buf)[0] == '{' { // as no stream begins
		a.sse = false
		a.res.Header.Set("Content-Type", "application/json")
	}
	if !x.reads() || a.res.Header.Get("Content-Encoding") != "" || !a.sse && !a.isJSON() {
		if x.translation != nil || a.credential != nil && x.op.AnswersJSON() {
			return a.broke("the server's answer is neither JSON nor a stream of events")
		}
		return nil
	}
	if x.rule == nil && x.op == llm.OpCompletions && a.sse != x.req.Stream && a.res.StatusCode < 300 {
		return a.broke("the server's answer has not the form that was asked for, a stream or one object")
	}
	a.reader = a.sealing(x.newReader(a))
	if a.res.StatusCode >= 300 {
		return nil // an error in the words of a pool's member
	}
	if !a.sse && !a.gather {
		return a.whole()
	}
	limit := maxPreamble
	if a.gather {
		limit = int(x.table.cfg.Limits.Body)
	}
	a.feed()
	for a.err == nil && !a.committed() && a.size < limit {
		a.own()
		if fail := a.count(); fail != nil {
			return &failure{reply: fail, sent: true, reached: true, reader: a.reader}
		}
		var n int
		n, a.err = a.res.Body.Read(*a.buf)
		if a.n = n; n > 0 {
			a.feed()
		}
	}
	switch {
	case a.err != nil && a.err != io.EOF:
		return a.cut(a.err)
	case a.reader.Failed() != "" && a.reader.Tokens() == 0:
		return a.brokeWith(a.reader.Failed())
	case !a.gather:
		if a.err == io.EOF && a.reader.Tokens() == 0 && !a.reader.Finished() && a.reader.FinishReason() == "" {
			return a.broke("the stream ended before there was anything in it")
		}
		return a.nothing()
	case a.err == nil && !a.committed():
		return a.broke("the server's answer is larger than limits.body")
	}
	a.own()
	a.out = append(a.out, a.reader.Close()...)
	switch msg := a.reader.Failed(); {
	case msg != "":
		return a.brokeWith(msg)
	case !a.reader.Finished() && a.sse:
		return a.broke("the stream ended before its end")
	case !a.reader.Finished():
		return a.broke("the server's answer is no whole JSON object")
	}
	if fail := a.count(); fail != nil {
		return &failure{reply: fail, sent: true, reached: true, reader: a.reader}
	}
	a.reader, a.err = &closed{a.reader}, io.EOF // what may follow the end of a stream is not waited for
	return a.nothing()
}

// cut is the failure of an answer that broke off before it was passed on.
func (a *answer) cut(err error) *failure {
	f := a.failed(err)
	f.reader = a.reader
	return f
}

// count has what is held of an answer that is gathered counted, with what is
// made of it: the gateway's memory is bounded for requests and answers together.
func (a *answer) count() *llm.Error {
	if !a.gather {
		return nil
	}
	more := int64(a.size+len(a.raw)+len(a.out)) - a.held
	fail := a.x.server.hold(more, int64(a.x.table.cfg.Limits.BodiesInFlight))
	if fail == nil {
		a.held += more
	}
	return fail
}

// isJSON says that the answer is JSON, as its type says. Of a provider also one
// that says nothing, or just that it is text, and begins like an object: its
// type is set right.
func (a *answer) isJSON() bool {
	kind := mediaType(a.res.Header)
	if kind == "application/json" {
		return true
	}
	if a.credential == nil || !a.x.op.AnswersJSON() || kind != "" && kind != "text/plain" && kind != "text/json" && !strings.HasSuffix(kind, "+json") {
		return false
	}
	if !bytes.HasPrefix(bytes.TrimLeft((*a.buf)[:a.n], " \t\r\n"), []byte("{")) {
		return false
	}
	a.res.Header.Set("Content-Type", "application/json")
	return true
}

// whole reads what has come of a JSON answer, before its head is passed on: an
// observer that is told the end with the head has less to do. What a provider
// gives as an answer and is an error, is empty, or breaks off, is none: of a
// provider a small answer is read to its end.
func (a *answer) whole() *failure {
	if a.n > 0 {
		a.feed()
	}
	if a.credential == nil || !a.x.op.AnswersJSON() {
		return nil
	}
	begun := bytes.HasPrefix(bytes.TrimLeft(a.raw, " \t\r\n"), []byte("{")) // white space keeps clients waiting: it goes on
	for begun && a.err == nil && !a.reader.Finished() && a.size < maxPreamble {
		a.own()
		if a.n, a.err = a.res.Body.Read(*a.buf); a.n > 0 {
			a.feed()
		}
	}
	if a.err != nil && a.err != io.EOF && !a.reader.Finished() {
		return a.cut(a.err)
	}
	switch msg := a.reader.Failed(); {
	case msg != "" && a.reader.Tokens() == 0:
		return a.brokeWith(msg)
	case a.err == io.EOF && !a.reader.Finished():
		return a.broke("the server's answer is no whole JSON object")
	}
	return a.nothing()
}

// committed says that there is output, or the end.
func (a *answer) committed() bool {
	return a.sse && (!a.gather && a.reader.Tokens() > 0 || a.reader.Finished() || a.reader.Failed() != "")
}

// own takes what was read out of the buffers of the answer and of its reader,
// which the next read fills again.
func (a *answer) own() {
	if !a.owned {
		a.owned, a.raw, a.out = true, bytes.Clone(a.raw), bytes.Clone(a.out)
	}
}

// feed reads the bytes that have just come into buf. What was fed before must
// be owned by then.
func (a *answer) feed() {
	p := (*a.buf)[:a.n]
	out := a.reader.Feed(p)
	if !a.fed {
		a.fed, a.size, a.raw, a.out = true, a.n, p, out
		return
	}
	a.out = append(a.out, out...)
	if a.size += a.n; (!a.sse || a.gather) && a.credential != nil {
		return // nobody looks at it again, and it may be large
	}
	a.raw = append(a.raw, p...)
}

// broke is the failure of an answer in which there is nothing for the client.
func (a *answer) broke(what string) *failure {
	return a.brokeAs(what, provider.Verdict{Class: provider.StreamBroken, Status: http.StatusOK})
}

// brokeWith is broke for an answer that says itself why: by an error inside a
// stream that had begun with 200.
func (a *answer) brokeWith(message string) *failure {
	message = a.scrub(message)
	v := provider.ClassifyEnd(a.speaks(), 0, "", message, nil)
	if v.Class == provider.OK || v.Class == provider.BadRequest {
		v = provider.Verdict{Class: provider.StreamBroken, Status: http.StatusOK, Message: message}
	}
	return a.brokeAs("the server's answer is an error: "+message, v)
}

// nothing says that a whole answer has nothing in it and no good reason for that:
// some providers tell in this way that an account is exhausted.
func (a *answer) nothing() *failure {
	r, op := a.reader, a.x.op
	if a.credential == nil || a.err != io.EOF && !r.Finished() { // the body may end later than what is in it
		return nil
	}
	finish := r.FinishReason()
	if finish == "" && (op == llm.OpChat || op == llm.OpCompletions || op.Generates() && a.x.translation != nil) {
		finish = "none" // where there is always one
	}
	v := provider.ClassifyEnd(a.dialect, r.Tokens(), finish, r.Failed(), nil)
	if v.Class != provider.Empty {
		return nil
	}
	return a.brokeAs("the server's answer is empty", v)
}

// brokeAs is broke with what it means.
func (a *answer) brokeAs(what string, v provider.Verdict) *failure {
	f := &failure{
		reply: llm.UpstreamFailed(what), class: v.Class, wait: v.Wait, outcome: pool.Reset, blame: true, retry: true, sent: true, reached: true, reader: a.reader,
	}
	if a.credential != nil {
		if v.Class != provider.StreamBroken {
			f.reply = v.ClientError()
		}
		a.ends(v, a.res.Header, 0)
	}
	return f
}

// speaks is the dialect of the answer.
func (a *attempt) speaks() llm.Dialect {
	if a.dialect != 0 {
		return a.dialect
	}
	return llm.DialectOpenAI
}

// newReader is what reads the answer as it passes, and makes the edits that the
// gateway owes the client.
func (x *exchange) newReader(a *answer) llm.Reader {
	name := ""
	if x.model != nil && x.model.report && (x.record.ModelUsed != x.record.ModelAsked || x.replaced() || a.credential != nil) && a.res.StatusCode < 300 {
		name = x.record.ModelAsked
	}
	t := x.translation
	if t == nil && x.rule == nil && a.sse != x.req.Stream && a.res.StatusCode < 300 {
		if shape, ok := llm.Reshaped(x.op, x.req.Stream, x.target.quirks); ok {
			t = shape
			a.res.Header.Set("Content-Type", x.contentType())
			a.res.Header.Del("Content-Length")
			a.res.ContentLength = -1
		}
	}
	a.gather = t != nil && (!a.sse || !x.req.Stream)
	if t != nil {
		return t.Answer(llm.AnswerOptions{
			Stream: a.sse, Model: name, IncludeUsage: x.req.IncludeUsage, RequestID: x.record.RequestID, Created: x.record.Time.Unix(),
			MaxBody: int(x.table.cfg.Limits.Body), JSONArray: x.wantsArray(), InputTokens: x.req.Prompt.Tokens(),
		})
	}
	o := llm.TapOptions{Op: x.op, Stream: a.sse, DropUsage: a.sse && x.asksUsage(), AnswerModel: name, Whole: a.credential != nil}
	if o.AnswerModel != "" || o.DropUsage {
		a.res.Header.Del("Content-Length")
	}
	return llm.NewTap(o)
}

// closed is a reader whose end has been read already.
type closed struct{ llm.Reader }

func (c *closed) Close() []byte { return nil }
