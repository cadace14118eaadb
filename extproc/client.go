// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
)

// ClientOptions are what a Client needs from its surroundings. The zero value
// works.
type ClientOptions struct {
	Log     *slog.Logger
	Metrics *ClientInstruments
	Picks   *epp.Instruments // counts the picks by outcome, as a Scheduler's are
}

// Client is a pool's picker in another process.
//
// A picker that fails, and one that refuses, are two things: a refusal is a
// Result with a Denial in both failure modes. When it fails, Pick returns a
// *[Failure] under FailClose, and a Result with the ready members in turn under
// FailOpen. The request's body is kept until then, so that FailOpen holds
// whatever the picker has been sent already.
type Client struct {
	pool     *pool.Pool
	cfg      config.RemotePicker
	log      *slog.Logger
	metrics  *clientCounters
	picks    *epp.Instruments
	replicas *replicas
	pending  atomic.Int64
	turn     atomic.Uint64
	traces   traces
	later    gathered // what pickers are told of answers that they only observe
	warned   seldom
}

// NewClient reads the TLS files; Start connects.
func NewClient(p *pool.Pool, cfg config.RemotePicker, o ClientOptions) (*Client, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.External {
		cfg.Address = config.PickerSet(p.Config().Name) // its name in logs and traces
	}
	c := &Client{pool: p, cfg: cfg, log: o.Log, picks: o.Picks, metrics: o.Metrics.of(p.Config().Name)}
	c.later.delay = min(gather, cfg.Response.Delay.D())
	var err error
	c.replicas, err = newReplicas(cfg, o.Log, c.metrics.ready)
	return c, err
}

// Start resolves the picker's address and connects. It may take as long as a
// pick.
func (c *Client) Start() { c.replicas.start() }

// SetEndpoints says where the replicas of an external picker are (see
// [config.RemotePicker]); labels mean nothing here.
func (c *Client) SetEndpoints(list []config.Member) {
	addresses := make([]string, len(list))
	for i, m := range list {
		addresses[i] = m.Address
	}
	c.replicas.tell(addresses)
}

// Replicas are the addresses behind the picker's name; fault is why they, or the
// identity shown to them, are the last known ones.
func (c *Client) Replicas() (list []ReplicaStatus, fault string) { return c.replicas.status() }

// Close stops asking. Streams that are open end with their requests.
func (c *Client) Close() { c.replicas.close() }

// Failure is why a picker did not decide.
type Failure struct {
	Reason string // one of the values of penstock_picker_failures_total
	Err    error
}

func (f *Failure) Error() string { return fmt.Sprintf("remote picker: %s: %v", f.Reason, f.Err) }

// Unwrap gives context.DeadlineExceeded for a picker that took too long.
func (f *Failure) Unwrap() error { return f.Err }

// The reasons of a Failure.
const (
	failUnreachable = "unreachable" // no replica is ready, or none could be connected to
	failBusy        = "busy"        // maxPending
	failTimeout     = "timeout"
	failEnded       = "ended"   // a clean end without an answer
	failBroken      = "broken"  // the stream broke
	failInvalid     = "invalid" // what it answered cannot be used
)

func failureReasons() []string {
	return []string{failUnreachable, failBusy, failTimeout, failEnded, failBroken, failInvalid}
}

// Outcomes of a pick besides the picker's own; fallback-picker-… ends with the
// reason of a Failure.
const (
	reasonPicked     = "picked"
	reasonDenied     = "denied"
	reasonInvalid    = "fallback-invalid-pick" // it named no member: one in turn
	reasonNoneReady  = "fallback-none-ready"   // likewise, and there is none
	reasonRejected   = "refused-invalid-pick"
	reasonFailed     = "refused-picker-failed"
	reasonTimeout    = "refused-picker-timeout"
	reasonFailedOpen = "fallback-picker-"
	reasonLeft       = "client-left"
)

// Pick asks. ctx is that of the client's request: the picker's stream ends with
// it. The pick is counted here, once, by what becomes of it; the list of one
// that names no member begins with what it names, for whoever dials to tell of.
func (c *Client) Pick(ctx context.Context, r *epp.Request) (*epp.Result, error) {
	t := c.traces.begin(r, c.pool.Config().Name, c.cfg.Address)
	x, err := c.ask(ctx, r, t)
	if err == nil {
		res := x.result()
		c.settled(res, x.strangers, r, t)
		c.count(res.Reason)
		return res, nil
	}
	f := failureOf(err)
	if ctx.Err() != nil {
		t.failed(reasonLeft, err, reasonLeft, nil)
		return nil, ctx.Err()
	}
	c.metrics.failed(f.Reason)
	c.complain(f)
	var list []string
	if c.cfg.FailureMode == config.FailOpen {
		if list = c.inTurn(r); len(list) == 0 {
			f = &Failure{f.Reason, fmt.Errorf("%w; and no member of the pool is ready to serve without it", f.Err)}
		}
	}
	outcome := f.outcome(len(list) > 0)
	t.failed(f.Reason, f.Err, outcome, list)
	c.count(outcome)
	if len(list) == 0 {
		return nil, f
	}
	o := &follower{t: t, tokens: r.Prompt.Tokens()}
	return &epp.Result{Reason: outcome, Endpoints: list, Observer: o, OnDone: o.settle}, nil
}

func failureOf(err error) *Failure {
	f := (*Failure)(nil)
	if !errors.As(err, &f) {
		f = &Failure{failBroken, err}
	}
	return f
}

// outcome is that of a pick that failed so.
func (f *Failure) outcome(open bool) string {
	switch {
	case open:
		return reasonFailedOpen + f.Reason
	case errors.Is(f, context.DeadlineExceeded):
		return reasonTimeout
	}
	return reasonFailed
}

// settled says what becomes of an answer: one that names nobody who may be
// tried is the gateway's to decide on, by onInvalidPick.
func (c *Client) settled(res *epp.Result, strangers []string, r *epp.Request, t *trace) {
	list := slices.DeleteFunc(slices.Clone(res.Endpoints), func(e string) bool { return slices.Contains(strangers, e) })
	tries := slices.ContainsFunc(list, func(e string) bool { return !slices.Contains(r.Tried, e) })
	switch {
	case res.Denial != nil || tries:
	case c.cfg.OnInvalidPick == config.InvalidReject:
		res.Reason, list = reasonRejected, nil
	default:
		res.Reason, list = reasonInvalid, c.inTurn(r)
		if len(list) == 0 {
			res.Reason = reasonNoneReady
		}
		res.Endpoints = append(slices.Clone(res.Endpoints), list...)
	}
	t.answered(res, strangers, res.Reason, list)
}

// follower is told of a request that the picker had no part in.
type follower struct {
	t      *trace
	tokens int
	charge *pool.Charge
}

// Attempt says that the request is sent to m.
func (o *follower) Attempt(m *pool.Member) {
	o.charge.Release()
	o.charge = m.Charge(o.tokens, o.tokens)
	o.t.attempts(m.Address())
}

// Served says that it was m who got it.
func (o *follower) Served(m *pool.Member) { o.Attempt(m) }

// Head says that an answer has begun.
func (o *follower) Head(int, http.Header) { o.t.servedLast() }

// Chunk counts output.
func (o *follower) Chunk(_ []byte, tokens int) {
	if tokens > 0 && o.charge != nil {
		o.charge.FirstToken()
		o.charge.Output(tokens)
	}
}

// End says that the answer has passed.
func (o *follower) End(http.Header) {}

func (o *follower) settle(epp.Outcome) { o.charge.Release() }

// complain logs a failure, at most once a second.
func (c *Client) complain(f *Failure) {
	if _, ok := c.warned.now(); ok {
		words := []any{"picker", c.cfg.Address, "reason", f.Reason, "error", f.Err, "failureMode", string(c.cfg.FailureMode)}
		if a := adviceOn(f.Err, false); a == adviseOtherPort || a == adviseHTTP { // a connection stands
			file, _ := a.words()
			words = append(words, "hint", file)
		}
		c.log.Warn("the remote picker failed", words...)
	}
}

func (c *Client) count(reason string) {
	if c.picks != nil {
		c.picks.Count(c.pool.Config().Name, reason)
	}
}

// maxTurns is how many members a pick of our own names.
const maxTurns = 4

// inTurn names ready members by round robin, of those that may be tried.
func (c *Client) inTurn(r *epp.Request) (list []string) {
	members := c.pool.Snapshot().Members
	if len(members) == 0 {
		return nil
	}
	start := int(c.turn.Add(1) % uint64(len(members)))
	for i := range members {
		m := members[(start+i)%len(members)]
		if m.Available() && !slices.Contains(r.Tried, m.Address()) && (r.Subset == nil || inSubset(r.Subset, m.Address())) {
			if list = append(list, m.Address()); len(list) == maxTurns {
				break
			}
		}
	}
	return list
}

// maxReplicas is how many replicas are asked for one pick, if one after the
// other breaks before it answers anything.
const maxReplicas = 3

// ask puts the request to a replica, and to others while none can be reached.
func (c *Client) ask(ctx context.Context, r *epp.Request, t *trace) (*exchange, error) {
	n := c.pending.Add(1)
	c.metrics.pending.Set(float64(n))
	defer func() { c.metrics.pending.Set(float64(c.pending.Add(-1))) }()
	if n > int64(c.cfg.MaxPending) {
		return nil, &Failure{failBusy, fmt.Errorf("%d picks wait for an answer already (picker.remote.maxPending)", c.cfg.MaxPending)}
	}
	began := time.Now()
	var asked []*replica
	for {
		p := c.replicas.choose(asked)
		if p == nil {
			return nil, &Failure{failUnreachable, c.replicas.notReady()}
		}
		asked = append(asked, p)
		t.asks(p.address)
		x := c.newExchange(ctx, r, p)
		err := x.ask(c.cfg.Timeout.D() - time.Since(began))
		if err == nil {
			c.metrics.seconds.Observe(time.Since(began).Seconds())
			x.t = t
			return x, nil
		}
		x.drop(err)
		if !x.unreached || ctx.Err() != nil || len(asked) == maxReplicas {
			return nil, err
		}
	}
}

// Picked is how many picks there were.
func (c *Client) Picked() uint64 { return c.traces.count() }

// Recent returns what became of the newest picks, newest first, at most n.
func (c *Client) Recent(n int) []*epp.Explanation { return c.traces.recent(n) }

// Find returns what became of the newest pick for a request, or nil.
func (c *Client) Find(requestID string) *epp.Explanation { return c.traces.find(requestID) }

// Explain asks for real and settles at once: the picker sees a request that is
// given up.
func (c *Client) Explain(ctx context.Context, r *epp.Request) *epp.Explanation {
	t := c.traces.begin(r, c.pool.Config().Name, c.cfg.Address)
	x, err := c.ask(ctx, r, t)
	if err != nil {
		f := failureOf(err)
		var list []string
		if c.cfg.FailureMode == config.FailOpen {
			list = c.inTurn(r)
		}
		t.failed(f.Reason, f.Err, f.outcome(len(list) > 0), list)
	} else {
		res := x.result()
		c.settled(res, x.strangers, r, t)
		res.Done(epp.Outcome{Err: errDryRun})
	}
	e := t.explanation()
	e.DryRun = true
	return e
}

var errDryRun = errors.New("a dry run")
