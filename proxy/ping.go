// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/llm"
)

// pinger sends comments to the client of a stream while nothing else comes: what
// stands between cuts connections that are silent for half a minute or so, and a
// model may think for longer.
//
// The lock says who may write to the client. The handler has it but for the times
// in which it waits for somebody else; see wait and back. A nil pinger does
// nothing.
type pinger struct {
	mu     sync.Mutex
	x      *exchange
	timer  *time.Timer
	every  time.Duration // the longest silence
	last   time.Time     // of what was written
	inside bool          // what was written ends inside an event, or with the last one
	ended  bool
	err    error // of a comment: the client may have half of it, and nothing can follow
	away   bool  // the handler waits; it alone reads and writes this
}

const pingComment = ": keep-alive\n\n"

// pings says that the client takes comments in its answer. Libraries for Gemini's
// API take every line of a stream for JSON.
func (x *exchange) pings() bool {
	if x.rule != nil || !x.req.Stream {
		return false
	}
	switch x.op {
	case llm.OpChat, llm.OpCompletions, llm.OpMessages, llm.OpResponses:
		return true
	}
	return false
}

// startPing begins, or goes on with, comments after a silence. The handler has
// the lock then.
func (x *exchange) startPing(silence time.Duration) {
	if silence <= 0 || !x.pings() {
		return
	}
	if x.ping != nil {
		x.ping.every = silence
		return
	}
	p := &pinger{x: x, every: silence, last: time.Now()}
	p.mu.Lock()
	p.timer = time.AfterFunc(silence, p.fire)
	x.ping = p
}

// wait lets comments be sent until the handler is back.
func (p *pinger) wait() {
	if p != nil {
		p.away = true
		p.mu.Unlock()
	}
}

func (p *pinger) back() {
	if p != nil && p.away {
		p.mu.Lock()
		p.away = false
	}
}

// wrote notes that the client got something.
func (p *pinger) wrote(now time.Time, inside bool) {
	if p != nil {
		p.last, p.inside = now, inside
	}
}

// lost is why the client gets nothing more. net/http remembers a failed write;
// frames go past it.
func (p *pinger) lost() error {
	if p == nil {
		return nil
	}
	return p.err
}

// stop ends it; the handler keeps the client for itself.
func (p *pinger) stop() {
	if p != nil {
		p.back()
		p.ended = true
		p.timer.Stop()
		p.wait()
	}
}

// fire is the timer's: the silence may be over.
func (p *pinger) fire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, now := p.x, time.Now()
	switch left := p.every - now.Sub(p.last); {
	case p.ended:
		return
	case left > 0:
		p.timer.Reset(left)
		return
	}
	if !x.sent {
		x.openStream()
		p.every = x.service.timeouts.Ping.D()
	}
	if p.last = now; !p.inside {
		x.writeDeadline(now)
		n, err := io.WriteString(x.w, pingComment)
		x.record.BytesOut += int64(n)
		if err == nil {
			err = x.ctl.Flush()
		}
		x.waits()
		if p.err = err; err != nil {
			return
		}
	}
	p.timer.Reset(p.every)
}

// openStream sends the head of a stream before it is known who will answer, and
// whether. From then on a failure is told inside the stream, and other targets may
// still be tried.
func (x *exchange) openStream() {
	h := x.w.Header()
	streamHeader(h)
	h.Set("Content-Type", "text/event-stream")
	h.Set(requestIDHeader, x.record.RequestID)
	x.mark(h)
	x.record.Status, x.sent, x.opened = http.StatusOK, true, true
	x.writeDeadline(time.Now())
	x.w.WriteHeader(http.StatusOK)
}

// streamHeader keeps what stands between from holding events back.
func streamHeader(h http.Header) {
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
}

// unopened says why an answer cannot follow the head that was sent for it, nil if
// it can: it is an error of a pool's member, or not read.
func (x *exchange) unopened(a *answer) *llm.Error {
	switch {
	case !x.opened:
		return nil
	case a.res.StatusCode >= 300:
		x.record.ErrorClass = "upstream_4xx"
		if a.res.StatusCode >= 500 {
			x.record.ErrorClass = "upstream_5xx"
		}
		body := (*a.buf)[:a.n]
		e := llm.ReadError(llm.DialectOpenAI, a.res.StatusCode, body[:min(len(body), maxClassified)])
		x.record.Error = e.Message
		return e
	case a.reader == nil || !strings.HasPrefix(a.res.Header.Get("Content-Type"), "text/event-stream") && x.translation == nil:
		return llm.UpstreamFailed("the server's answer is no stream that could be read")
	}
	return nil
}
