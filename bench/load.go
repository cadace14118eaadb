// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Load drives sessions of a workload at a server over real HTTP. Exactly one
// of Concurrency and Rate is set.
type Load struct {
	URL      string // base of an OpenAI-compatible API, http://host:port
	Model    string
	Workload Workload
	Seed     uint64
	Stream   bool
	Legacy   bool // /v1/completions instead of /v1/chat/completions
	Header   http.Header

	Concurrency int     // closed loop: sessions at a time
	Rate        float64 // open loop: requests per second, nominal; sessions start when the workload says
	Think       float64 // factor on the pauses of users; 0: none

	// It ends after Requests or after Duration, whichever comes first; 0: no
	// such end. What is under way at the end of Duration is given Grace.
	Requests int
	Duration time.Duration
	Grace    time.Duration // 0: a minute
	// FirstByte bounds the wait for an answer to begin. 0: the race's 60 s.
	FirstByte time.Duration
	MaxOutput int // tokens asked for at most; 0: as the workload says
	Progress  func(done, failed int)

	client *http.Client
	mu     sync.Mutex
	begun  int
	failed int
	done   []*Exchange
}

// maxOpenSessions bounds the sessions of an open loop; beyond it the start of
// the next one is late and Late counts it.
const maxOpenSessions = 20_000

// Do runs the load until its end or until ctx ends.
func (l *Load) Do(ctx context.Context) *LoadResult {
	open := l.Concurrency
	if l.Rate > 0 {
		open = maxOpenSessions
	}
	t := newTransport(open)
	defer t.CloseIdleConnections()
	l.client = &http.Client{Transport: t}
	start := time.Now()
	stop := ctx // begins nothing new after it
	if l.Duration > 0 {
		var cancel, cut context.CancelFunc
		stop, cancel = context.WithTimeout(ctx, l.Duration)
		defer cancel()
		grace := l.Grace
		if grace == 0 {
			grace = time.Minute
		}
		ctx, cut = context.WithTimeout(ctx, l.Duration+grace)
		defer cut()
	}
	late := 0
	if l.Rate > 0 {
		late = l.openLoop(ctx, stop, start)
	} else {
		l.closedLoop(ctx, stop)
	}
	r := l.result(time.Since(start))
	r.Late = late
	return r
}

// newTransport is a client with connections of its own for each of open
// requests and small buffers.
func newTransport(open int) *http.Transport {
	d := net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		DialContext: d.DialContext, MaxIdleConnsPerHost: open, DisableCompression: true,
		ReadBufferSize: 4096, WriteBufferSize: 4096,
	}
}

// closedLoop keeps a number of sessions going.
func (l *Load) closedLoop(ctx, stop context.Context) {
	sessions := make(chan *Session)
	var wg sync.WaitGroup
	for range l.Concurrency {
		wg.Go(func() {
			for s := range sessions {
				l.session(ctx, stop, s)
			}
		})
	}
	l.each(1, func(s *Session, _ time.Duration) bool {
		select {
		case sessions <- s:
			return !l.enough()
		case <-stop.Done():
			return false
		}
	})
	close(sessions)
	wg.Wait()
}

// openLoop starts sessions when the workload says, however slow the answers.
func (l *Load) openLoop(ctx, stop context.Context, start time.Time) (late int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, maxOpenSessions)
	l.each(l.Rate/l.Workload.Rate, func(s *Session, at time.Duration) bool {
		if !sleep(stop, time.Until(start.Add(at))) || l.enough() {
			return false
		}
		select {
		case places <- struct{}{}:
		default:
			late++
			select {
			case places <- struct{}{}:
			case <-stop.Done():
				return false
			}
		}
		wg.Go(func() {
			defer func() { <-places }()
			l.session(ctx, stop, s)
		})
		return true
	})
	return late
}

// each calls f with session after session, window after window of the
// workload with a seed of its own, until f says no.
func (l *Load) each(load float64, f func(s *Session, at time.Duration) bool) {
	for n := 0; ; n++ {
		sessions := l.Workload.Sessions(load, l.Seed+uint64(n)*1_000_003)
		if len(sessions) == 0 && n > 100 {
			return
		}
		for i := range sessions {
			s := &sessions[i]
			if !f(s, s.Start+time.Duration(n)*l.Workload.Window) {
				return
			}
		}
	}
}

// sleep says whether ctx is still going after d.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Load) enough() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Requests > 0 && l.begun >= l.Requests
}

// begin takes one of the requests that may still be made.
func (l *Load) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Requests > 0 && l.begun >= l.Requests {
		return false
	}
	l.begun++
	return true
}

func (l *Load) session(ctx, stop context.Context, s *Session) {
	path := "/v1/chat/completions"
	if l.Legacy {
		path = "/v1/completions"
	}
	url := strings.TrimRight(l.URL, "/") + path
	firstByte := l.FirstByte
	if firstByte == 0 {
		firstByte = patience
	}
	for i := range s.Turns {
		if stop.Err() != nil || !l.begin() {
			return
		}
		t := &s.Turns[i]
		x := send(ctx, l.client, url, l.Header, l.body(t), l.Stream, firstByte, nil)
		x.Class = s.Class
		l.settle(x)
		if i+1 < len(s.Turns) && !sleep(stop, time.Duration(float64(t.Think)*l.Think)) {
			return
		}
	}
}

func (l *Load) settle(x *Exchange) {
	l.mu.Lock()
	l.done = append(l.done, x)
	if x.Failure != "" {
		l.failed++
	}
	done, failed := len(l.done), l.failed
	l.mu.Unlock()
	if l.Progress != nil {
		l.Progress(done, failed)
	}
}

func (l *Load) body(t *Turn) []byte {
	output := t.Answer.Tokens
	if l.MaxOutput > 0 {
		output = min(output, l.MaxOutput)
	}
	if l.Legacy {
		return CompletionBody(t.Prompt, l.Model, output, l.Stream)
	}
	return ChatBody(t, l.Model, output, l.Stream)
}

// CompletionBody is the prompt as a body for /v1/completions.
func CompletionBody(p Prompt, model string, output int, stream bool) []byte {
	b := make([]byte, 0, p.Tokens()*TextBytes+160)
	b = append(b, "{\"model\":"...)
	b = strconv.AppendQuote(b, model)
	b = append(b, ",\"prompt\":\""...)
	b = p.AppendText(b)
	return appendTail(append(b, '"'), output, stream)
}

// ChatBody is the turn as a body for /v1/chat/completions: the system segments
// as the system message, then user and assistant in turns.
func ChatBody(t *Turn, model string, output int, stream bool) []byte {
	b := make([]byte, 0, t.Prompt.Tokens()*TextBytes+len(t.Prompt)*40+160)
	b = append(b, "{\"model\":"...)
	b = strconv.AppendQuote(b, model)
	b = append(b, ",\"messages\":["...)
	message := func(role string, p Prompt) {
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = append(b, "{\"role\":\""...)
		b = append(b, role...)
		b = append(b, "\",\"content\":\""...)
		b = p.AppendText(b)
		b = append(b, "\"}"...)
	}
	if t.System > 0 {
		message("system", t.Prompt[:t.System])
	}
	for i := t.System; i < len(t.Prompt); i++ {
		role := "user"
		if (i-t.System)%2 == 1 {
			role = "assistant"
		}
		message(role, t.Prompt[i:i+1])
	}
	return appendTail(append(b, ']'), output, stream)
}

func appendTail(b []byte, output int, stream bool) []byte {
	b = append(b, ",\"max_tokens\":"...)
	b = strconv.AppendInt(b, int64(output), 10)
	if stream {
		b = append(b, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"...)
	}
	return append(b, '}')
}
