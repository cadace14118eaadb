// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// call is one request to a provider.
type call struct {
	p       *Provider
	w       http.ResponseWriter
	r       *http.Request
	body    []byte
	id      string // unique; part of ids in answers
	key     string // credential
	asked   string // model, by path or body
	faults  Faults
	seen    *Seen
	arrival time.Time

	turn    *turn
	model   string // of a call without a turn
	answers []answer
	counts  counts
	shown   int // tokens
	first   time.Time
	rng     *rand.Rand
	timer   *time.Timer
	begun   bool // reached generation
	listed  bool // errors are in a list
	status  int  // of a refusal
	err     error
	onFail  func(e *problem) // words an error within the stream
}

// begin resolves the model, checks the length and the limits, and makes the
// answers. It answers the request and returns false if it cannot be served.
func (c *call) begin(t *turn) bool {
	c.turn = t
	if !c.resolve(t.model) {
		return false
	}
	prompts, marks := t.prompts, []int(nil)
	if prompts == nil {
		prompt, m := t.render()
		prompts, marks = []tokens{prompt}, m
	}
	bounded, most := t.bounded, max(1, t.bounds.most)
	_, gemini := c.p.shape.(geminiShape)
	c.counts = counts{}
	for i, prompt := range prompts {
		if prompt.count()+most > c.p.cfg.MaxModelLen {
			c.refuse(&problem{class: "context", used: prompt.count(), asked: most, most: c.p.cfg.MaxModelLen})
			return false
		}
		if !bounded {
			t.bounds.most = c.p.cfg.MaxModelLen - prompt.count()
		}
		id := strings.ReplaceAll(c.id, "-", "") + "_" + strconv.Itoa(i)
		c.answers = append(c.answers, c.p.maker.answers(t, prompt, id, gemini)...)
		c.counts.prompt += prompt.count()
	}
	c.misfinish()
	total := 0
	for i := range c.answers {
		all, reasoning := c.answers[i].count()
		total += all
		c.counts.reasoning += reasoning
	}
	if bounded && t.n <= 1 {
		total = max(total, most)
	}
	if !c.admit(c.counts.prompt + total) {
		return false
	}
	for _, prompt := range prompts {
		read, written := c.p.cache.look(c.key+"\x00"+t.model, prompt, marks, t.marked)
		c.counts.cached += read
		c.counts.written += written
	}
	c.start()
	return true
}

// admit takes the tokens from the limits, or answers the request.
func (c *call) admit(tokens int) bool {
	state, over := c.p.limits.admit(c.key, tokens)
	c.p.shape.limited(c.w.Header(), state)
	if over == "" {
		return true
	}
	c.refuse(&problem{
		class: "rate", over: over, wait: state.reset,
		message: fmt.Sprintf("Rate limit reached on %s per min. Please try again in %v.", over, state.reset),
	})
	return false
}

// resolve says whether the model is there, and answers the request if not.
func (c *call) resolve(model string) bool {
	for _, name := range c.p.cfg.Models {
		if name == model {
			return true
		}
	}
	c.refuse(&problem{class: "model", model: model})
	return false
}

// served is the model's name as answers have it.
func (c *call) served() string { return c.turn.model + c.p.cfg.Snapshot }

func (c *call) start() {
	c.begun = true
	c.rng = rand.New(rand.NewPCG(HashText(0, c.id), c.p.cfg.Seed))
	c.p.ledger.begin()
}

// settle notes what became of the call. Deferred by whoever noted its arrival.
func (c *call) settle() {
	left := c.r.Context().Err() != nil
	c.p.witness.settle(c.seen, c.status, left)
	if c.timer != nil {
		c.timer.Stop()
	}
	if !c.begun {
		return
	}
	rec := Record{
		RequestID: c.r.Header.Get("x-request-id"), Path: c.r.URL.Path, Model: c.asked, Choices: len(c.answers),
		PromptTokens: c.counts.prompt, CachedTokens: c.counts.cached, OutputTokens: c.shown,
		Total:   Duration(time.Since(c.arrival)),
		Aborted: left || errors.Is(c.err, errCut) || errors.Is(c.err, context.Canceled),
	}
	if c.turn != nil {
		rec.Stream = c.turn.stream
	}
	if !c.first.IsZero() {
		rec.TTFT = Duration(c.first.Sub(c.arrival))
	}
	if c.err != nil {
		rec.Error = c.err.Error()
	}
	c.p.ledger.end(rec)
}

// pause waits for the next token; false when there will be none.
func (c *call) pause(median time.Duration) bool { return c.sleep(c.delay(median)) }

// delay is the time that one token takes.
func (c *call) delay(median time.Duration) time.Duration {
	slow := c.faults.Slow
	if slow == 0 {
		slow = 1
	}
	return vary(c.rng, median, slow)
}

// shortest is the shortest time worth a timer.
const shortest = 50 * time.Microsecond

func (c *call) sleep(d time.Duration) bool {
	if d < shortest {
		select {
		case <-c.r.Context().Done():
			c.err = context.Cause(c.r.Context())
		case <-c.p.dead:
			c.err = errClosed
		default:
		}
		return c.err == nil
	}
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	select {
	case <-c.timer.C:
		return true
	case <-c.r.Context().Done():
		c.err = context.Cause(c.r.Context())
	case <-c.p.dead:
		c.err = errClosed
	}
	return false
}

// complete waits for the whole answer; false if there will be none.
func (c *call) complete() bool {
	longest, total := 0, 0
	for i := range c.answers {
		n, _ := c.answers[i].count()
		longest = max(longest, n)
		total += n
	}
	if !c.pause(c.p.cfg.TTFT) {
		return false
	}
	c.first = time.Now()
	var rest time.Duration
	for range longest - 1 {
		rest += c.delay(c.p.cfg.ITL)
	}
	if !c.sleep(rest) {
		return false
	}
	c.shown = total
	c.counts.output = total
	return true
}

// usage is the usage so far, as the faults have it; false: none.
func (c *call) usage() (counts, bool) {
	n := c.counts
	n.output = c.shown
	switch c.faults.Usage {
	case "missing":
		return n, false
	case "zero":
		return counts{}, true
	case "double":
		return counts{prompt: 2 * n.prompt, cached: 2 * n.cached, written: 2 * n.written, output: 2 * n.output, reasoning: 2 * n.reasoning}, true
	case "huge":
		return counts{prompt: 1 << 53, cached: 1 << 52, output: 1 << 53}, true
	case "negative":
		return counts{prompt: -n.prompt, output: -n.output}, true
	}
	n.reasoning = min(n.reasoning, n.output)
	return n, true
}

// misfinish is the fault of odd endings.
func (c *call) misfinish() {
	for i := range c.answers {
		a := &c.answers[i]
		switch c.faults.Finish {
		case "":
			return
		case "empty": // nothing said and a strange reason
			*a = answer{finish: "odd"}
			continue
		case "filter", "length", "refusal":
			a.finish = c.faults.Finish
		}
		n, _ := a.count()
		finish := a.finish
		a.bound(max(1, n/2))
		a.finish = finish
	}
}

// wire is how a shape streams answers. Every method writes frames by way of
// [frames.send]; errors stick there.
type wire interface {
	open()                           // preamble
	part(i, k int, p *part, on bool) // part k of choice i begins or ends
	piece(i, k int, p *part, text string)
	close(n counts, known bool) // what follows the last token
	fail(e *problem)            // an error within the stream
}

// stream writes the answers as they are made. With early the preamble comes
// before the first token is computed.
func (c *call) stream(o *frames, w wire, early bool) {
	c.onFail = w.fail
	if early {
		o.start()
		w.open()
	}
	if !o.ok() || !c.pause(c.p.cfg.TTFT) {
		return
	}
	if !early {
		o.start()
		w.open()
	}
	type place struct{ part, piece int }
	at := make([]place, len(c.answers))
	for round, open := 0, len(c.answers); open > 0 && o.ok(); round++ {
		if round > 0 && !c.pause(c.p.cfg.ITL) {
			return
		}
		open = 0
		for i := range c.answers {
			a, n := &c.answers[i], &at[i]
			if n.part >= len(a.parts) {
				continue
			}
			p := &a.parts[n.part]
			if n.piece == 0 {
				w.part(i, n.part, p, true)
			}
			if c.first.IsZero() {
				c.first = time.Now()
			}
			if n.piece < len(p.pieces) {
				c.shown++
				w.piece(i, n.part, p, p.pieces[n.piece])
			}
			if n.piece++; n.piece >= len(p.pieces) {
				w.part(i, n.part, p, false)
				n.part, n.piece = n.part+1, 0
			}
			if n.part < len(a.parts) {
				open++
			}
			if !o.ok() {
				return
			}
		}
	}
	if o.last(); !o.ok() {
		return
	}
	n, known := c.usage()
	w.close(n, known)
	o.end()
}
