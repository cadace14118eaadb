// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
)

// Backend is a pool with whoever chooses among its members.
type Backend struct {
	Pool   *pool.Pool
	Picker epp.Picker
	// TellServed is asked for each answer; true adds the endpoint that served,
	// as the gateway reported it, to the answer's headers. nil: never.
	TellServed func() bool
}

// Server answers other gateways that ask for the picks of one pool: the
// service envoy.service.ext_proc.v3.ExternalProcessor. It is made and served by
// [Listeners].
type Server struct {
	log     *slog.Logger
	metrics *ServerInstruments
	bodies  *atomic.Int64 // bytes of request bodies held, by all servers
	limit   int64         // streams at a time
	open    atomic.Int64
	rules   atomic.Pointer[rules]
	astray  seldom
	fading  atomic.Bool // see Listeners.Fade
}

// rules are what a stream begins and ends under. Immutable.
type rules struct {
	Backend
	models map[string][]weighted // by the name that clients use, aliases too
	limits config.Limits
	total  time.Duration // of a request
	counts *poolCounts
}

// weighted is one name under which the pool's members serve a model.
type weighted struct {
	model  string
	weight int
	answer bool // answers carry the name that was asked for
}

// newRules compiles what a server for the backend's pool reads of cfg.
func newRules(cfg *config.Config, b Backend, in *ServerInstruments) *rules {
	name := b.Pool.Config().Name
	r := &rules{Backend: b, models: map[string][]weighted{}, limits: cfg.Limits, total: cfg.Timeouts.Total.D(), counts: in.of(name)}
	resolve := cfg.Resolver()
	for i := range cfg.Models {
		asked := cfg.Models[i].Name
		m := resolve(asked)
		if m == nil {
			continue
		}
		for _, t := range m.Targets {
			if t.Pool != name {
				continue
			}
			w := weighted{model: cmp.Or(t.Model, m.Name), weight: 1, answer: m.ReportModel != "served"}
			if t.Weight != nil {
				w.weight = *t.Weight
			}
			r.models[asked] = append(r.models[asked], w)
		}
	}
	return r
}

// served is the name under which the pool serves what a client asked for, and
// whether answers carry the client's name. A model that the configuration does
// not know is the gateway's affair and stays.
func (r *rules) served(asked string) (model string, answer bool) {
	list := r.models[asked]
	switch len(list) {
	case 0:
		return asked, false
	case 1:
		return list[0].model, list[0].answer
	}
	total := 0
	for _, w := range list {
		total += w.weight
	}
	pick := list[0]
	if total > 0 {
		n := rand.IntN(total)
		for _, pick = range list {
			if n -= pick.weight; n < 0 {
				break
			}
		}
	}
	return pick.model, pick.answer
}

// Process serves one stream, which is one request and its answer. It returns
// when the gateway has ended the stream, or when nothing more can be said.
func (s *Server) Process(g extprocv3.ExternalProcessor_ProcessServer) (err error) {
	r := s.rules.Load()
	if s.open.Add(1) > s.limit {
		s.open.Add(-1)
		r.counts.refused.Inc()
		return status.Errorf(codes.ResourceExhausted, "the endpoint picker has %d streams open, which is its limit", s.limit)
	}
	r.counts.begin()
	x := newStream(s, r, g)
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic while serving a picker stream", "requestId", x.id, "panic", p, "stack", string(debug.Stack()))
			x.outcome, err = outcomeFailed, status.Error(codes.Internal, "the endpoint picker failed; its log has the reason")
		}
		x.close(err)
		r.counts.end(x.outcome)
		s.open.Add(-1)
	}()
	if err = x.serve(); err == errAnswered {
		err = nil
	}
	return err
}

// serve is the loop of a stream.
func (x *stream) serve() error {
	for {
		x.leash.hold(x.patience())
		m, err := x.next()
		x.leash.hold(0)
		switch {
		case err == errWithdrawn:
			return x.withdrawn()
		case err != nil:
			return x.left(err)
		}
		if err := x.receive(m); err != nil {
			return err
		}
	}
}

// errAnswered ends a stream after an immediate response; errWithdrawn wakes one
// whose picker has withdrawn the request.
var (
	errAnswered  = errors.New("answered")
	errWithdrawn = errors.New("withdrawn")
)

// patience is for how long the gateway may say nothing; 0: for as long as it
// likes, which it may once the request is whole, since then the model server
// works, and where nothing is answered.
func (x *stream) patience() time.Duration {
	switch {
	case x.observe, x.answered != waiting:
	case x.asked == opened && (x.askMode == modeBuffered || x.askMode == modePartial):
		return x.rules.total // the gateway speaks when it has the client's whole body
	case x.asked == waiting, x.asked == opened, x.asked == decided && x.askMode == modeStreamed:
		return x.rules.limits.UploadIdle.D()
	}
	return 0
}

// next is the next message. While the picker may withdraw the request a
// goroutine reads ahead by one; it ends when Process has returned, since that
// ends every Recv.
func (x *stream) next() (*incoming, error) {
	if x.pick == nil || x.pick.Evicted == nil || x.settled {
		if x.inbox == nil {
			in := &incoming{}
			return in, x.grpc.RecvMsg(in)
		}
		in := <-x.inbox
		return in.message, in.err
	}
	if x.inbox == nil {
		x.inbox, x.quit = make(chan received), make(chan struct{})
		go readAhead(x.grpc, x.inbox, x.quit)
	}
	select {
	case in := <-x.inbox:
		return in.message, in.err
	case <-x.pick.Evicted.Done():
		return nil, errWithdrawn
	}
}

// received is what one Recv brought.
type received struct {
	message *incoming
	err     error
}

func readAhead(g extprocv3.ExternalProcessor_ProcessServer, inbox chan<- received, quit <-chan struct{}) {
	for {
		in := received{message: &incoming{}}
		in.err = g.RecvMsg(in.message)
		select {
		case inbox <- in:
		case <-quit:
			return
		}
		if in.err != nil {
			return
		}
	}
}

// left is the end of a stream by the gateway. Envoy half-closes and resets
// after each normal request, so that codes.Canceled is as good an end as
// io.EOF: what the stream has seen decides which it was.
func (x *stream) left(err error) error {
	switch {
	case context.Cause(x.ctx) == errSilent:
		x.outcome = outcomeSilent
		return status.Error(codes.DeadlineExceeded, errSilent.Error())
	case x.observe:
		x.outcome = outcomeObserved
	case x.answered == ended:
		x.outcome = outcomeCompleted
	case x.answered == opened && x.answerMode == modeNone:
		x.outcome = outcomeCompleted // nobody says when its body has passed
		x.settle(x.fault())
	case errors.Is(err, io.EOF) && x.picked():
		x.outcome = outcomePicked // the gateway does without a response phase
	case errors.Is(err, io.EOF) && x.asked != waiting:
		return x.spurious(codes.FailedPrecondition, "early-end", "the stream ended before the request did")
	default:
		x.outcome = outcomeCanceled
	}
	if c := status.Code(err); err != io.EOF && c != codes.Canceled && c != codes.DeadlineExceeded && c != codes.Unavailable && x.ctx.Err() == nil {
		// A message that is no message: too large, not UTF-8, not a protobuf.
		x.outcome = outcomeFailed
		x.rules.counts.spurious("undecodable")
		return err
	}
	if x.ctx.Err() != nil {
		return status.FromContextError(x.ctx.Err()).Err()
	}
	return nil
}
