// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/h1"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
)

// This file is the response phase. The client of the gateway never waits for
// it, but for the edits of the head, and those for a bounded time.

// Attempt says that the request is sent to m.
func (x *exchange) Attempt(m *pool.Member) {
	x.charge.Release()
	x.member, x.charge = m, m.Charge(x.tokens, x.tokens)
	x.t.attempts(m.Address())
}

// Served says that it was m who got it.
func (x *exchange) Served(m *pool.Member) { x.Attempt(m) }

// Head shows the picker the answer's head and who served, and carries out its
// edits.
func (x *exchange) Head(code int, header http.Header) {
	if x.member == nil || x.gone() {
		return
	}
	x.t.served(x.member.Address())
	x.sse = strings.HasPrefix(header.Get("Content-Type"), "text/event-stream")
	h := make(http.Header, len(header))
	for name, values := range header {
		if !h1.OfTheHop(name) && name != "Content-Length" {
			h[name] = values
		}
	}
	m := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap(h, ":status", strconv.Itoa(code)),
		}},
		MetadataContext:   contextMetadata{served: x.member.Address()}.encode(),
		ObservabilityMode: !x.edits,
	}
	if !x.edits && x.c.cfg.Response.Mode == config.ResponseHeaders {
		x.headSent = true
		x.c.later.add(func() { x.stream.Send(m) })
		return
	}
	if x.stream.Send(m) != nil {
		return
	}
	x.headSent = true
	if x.whole {
		x.sendBody(digest(x.used, x.sse), true)
		x.stream.CloseSend()
	}
	if x.c.cfg.Response.Mode == config.ResponseFull {
		x.copy = newCopier(x)
	}
	if !x.edits || x.c.cfg.Response.HeadTimeout == 0 {
		return // the client does not wait for edits
	}
	timer := time.NewTimer(x.c.cfg.Response.HeadTimeout.D())
	defer timer.Stop()
	select {
	case r := <-x.head:
		edits, _ := x.c.metrics.mutation(r.GetResponse().GetHeaderMutation(), h)
		edit(header, edits)
	case <-x.over:
		select { // it may have answered and ended at once
		case r := <-x.head:
			edits, _ := x.c.metrics.mutation(r.GetResponse().GetHeaderMutation(), h)
			edit(header, edits)
		default:
		}
	case <-timer.C:
		x.c.metrics.odd("late-head")
	}
}

// Whole is Head for an answer whose end has come too: where the picker is shown
// no body, head and end go to it together, and cost both sides one wake-up.
func (x *exchange) Whole(code int, header http.Header, u llm.Usage) {
	x.whole, x.used = x.c.cfg.Response.Mode == config.ResponseHeaders, u
	x.Head(code, header)
}

// gone says that nothing more can be said to the picker.
func (x *exchange) gone() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}

// Chunk counts output, and copies it where the picker wants to see it.
func (x *exchange) Chunk(data []byte, tokens int) {
	if tokens > 0 {
		x.charge.FirstToken()
		x.charge.Output(tokens)
	}
	if x.copy != nil {
		x.copy.add(data)
	}
}

// End says that the answer has passed.
func (x *exchange) End(http.Header) {}

// settle ends the stream: after a whole answer with the usage and the proper
// end, which the picker has farewell to take; else at once.
func (x *exchange) settle(o epp.Outcome) {
	x.charge.Release()
	x.unfollow()
	x.evict(errSettled)
	if !x.headSent || o.Err != nil || x.gone() {
		if x.copy != nil {
			x.copy.stop()
		}
		x.cancel(errSettled)
		x.release()
		return
	}
	last := func() {
		if x.copy == nil || x.copy.ended {
			x.sendBody(digest(o.Usage, x.sse), true)
		}
		x.stream.CloseSend()
		x.part()
	}
	switch {
	case x.copy != nil:
		x.copy.finish(last)
	case !x.edits:
		x.c.later.add(last)
	case x.whole:
		x.part()
	default:
		last()
	}
}

// gather is how long what is told to pickers that only observe answers may wait
// for more of it: each write wakes both sides, and one for several streams
// costs little more than one. It is short against any answer of a model.
const gather = 5 * time.Millisecond

// gathered runs what it is given a little later, all in one go and in order.
type gathered struct {
	delay time.Duration
	mu    sync.Mutex
	list  []func()
	armed bool // run will be called, or is at work
}

func (g *gathered) add(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list = append(g.list, f); !g.armed {
		g.armed = true
		time.AfterFunc(g.delay, g.run)
	}
}

func (g *gathered) run() {
	g.mu.Lock()
	list := g.list
	g.list = nil
	g.mu.Unlock()
	for _, f := range list {
		f()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.armed = len(g.list) > 0; g.armed {
		time.AfterFunc(g.delay, g.run)
	}
}

// part gives the picker farewell to end the stream. The second of both sides to
// be through with it, settle and receive, lets go of it.
func (x *exchange) part() {
	x.parting = time.AfterFunc(farewell, func() { x.cancel(errSettled) })
	if x.through.Add(1) == 2 {
		x.letGo()
	}
}

func (x *exchange) letGo() {
	x.parting.Stop()
	x.cancel(errSettled)
	x.release()
}

func (x *exchange) sendBody(p []byte, last bool) error {
	return x.stream.Send(&extprocv3.ProcessingRequest{
		Request:           &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: p, EndOfStream: last}},
		MetadataContext:   contextMetadata{served: x.member.Address()}.encode(),
		ObservabilityMode: !x.edits,
	})
}

// digest is what a picker is shown of an answer in place of its body: the end
// of one, with the usage, in the form of the API.
func digest(u llm.Usage, sse bool) []byte {
	text := fmt.Appendf(nil, `{"choices":[],"usage":{"completion_tokens":%d,"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"total_tokens":%d}}`,
		u.Completion(), u.Prompt(), u.CacheRead, u.Prompt()+u.Completion())
	if !sse {
		return text
	}
	return fmt.Appendf(nil, "data: %s\n\ndata: [DONE]\n\n", text)
}

// copier sends a copy of an answer's body from a goroutine of its own, pieces
// gathered for a while, no more than buffer of it held.
type copier struct {
	x     *exchange
	mu    sync.Mutex
	room  sync.Cond // the buffer has been emptied, or never will be
	buf   []byte
	stall time.Duration // that may still be spent waiting for room
	ended bool          // the picker did not keep up: no more is copied
	last  func()        // what to do when all is sent; nil: more may come
	quit  bool
	wake  chan struct{} // capacity 1
}

func newCopier(x *exchange) *copier {
	k := &copier{x: x, wake: make(chan struct{}, 1), stall: x.c.cfg.Response.MaxStall.D()}
	k.room.L = &k.mu
	go k.run()
	return k
}

func (k *copier) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// add takes the next bytes. It waits only when the buffer is full, and no
// longer in all than maxStall.
func (k *copier) add(p []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	limit := int(k.x.c.cfg.Response.Buffer)
	for !k.ended && len(k.buf) > 0 && len(k.buf)+len(p) > limit {
		if k.stall <= 0 {
			k.end()
			return
		}
		began := time.Now()
		timer := time.AfterFunc(k.stall, func() { k.room.Broadcast() })
		k.room.Wait()
		timer.Stop()
		k.stall -= time.Since(began)
	}
	if k.ended {
		return
	}
	k.buf = append(k.buf, p...)
	if len(k.buf) == len(p) || len(k.buf) >= maxChunk {
		k.poke()
	}
}

// end gives up the copy. k.mu is held.
func (k *copier) end() {
	k.ended, k.buf = true, nil
	k.x.c.metrics.copyEnded()
	k.room.Broadcast()
}

// finish says that nothing more comes; last is called when all is sent.
func (k *copier) finish(last func()) {
	k.mu.Lock()
	k.last = last
	k.mu.Unlock()
	k.poke()
}

// stop ends the copier without sending what it holds.
func (k *copier) stop() {
	k.mu.Lock()
	k.quit = true
	k.room.Broadcast()
	k.mu.Unlock()
	k.poke()
}

func (k *copier) run() {
	delay := k.x.c.cfg.Response.Delay.D()
	gather := time.NewTimer(time.Hour)
	gather.Stop()
	defer gather.Stop()
	var spare []byte
	for {
		<-k.wake
		if delay > 0 && !k.due() {
			gather.Reset(delay)
			for waiting := true; waiting; {
				select {
				case <-gather.C:
					waiting = false
				case <-k.wake:
					waiting = !k.due()
				}
			}
			gather.Stop()
		}
		k.mu.Lock()
		out, last, quit, ended := k.buf, k.last, k.quit, k.ended
		k.buf = spare[:0]
		k.room.Broadcast()
		k.mu.Unlock()
		if quit {
			return
		}
		if !ended {
			var err error
			if len(out) > 0 || last != nil {
				chunks(out, func(part []byte, end bool) bool {
					err = k.x.sendBody(part, end && last != nil)
					return err == nil
				})
			}
			if err != nil {
				k.mu.Lock()
				k.end()
				k.mu.Unlock()
			}
		}
		if spare = out; cap(spare) > int(maxChunk)*2 {
			spare = nil
		}
		if last != nil {
			last()
			return
		}
	}
}

// due says that the buffer should go out without waiting for more.
func (k *copier) due() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.buf) >= maxChunk || k.last != nil || k.quit || k.ended
}
