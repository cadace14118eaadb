// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/tap"
)

// leash is the context of a stream, which can be cut while Recv waits. gRPC ends
// a Recv with the stream's context alone, and makes that before anybody is asked
// what the stream is for; a second goroutine that waits for each message would
// cost a sixth of all that a stream costs.
type leash struct {
	context.Context
	cut   context.CancelCauseFunc
	timer *time.Timer
}

// errSilent is the cause of a context that was cut.
var errSilent = errors.New("the gateway does not send the whole request")

func newLeash(ctx context.Context) *leash {
	l := &leash{}
	l.Context, l.cut = context.WithCancelCause(ctx)
	return l
}

// leashes gives every picker stream its leash.
func leashes(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName == extprocv3.ExternalProcessor_Process_FullMethodName {
		ctx = newLeash(ctx)
	}
	return ctx, nil
}

// Err is what gRPC tells the gateway when a Recv has ended, before Process can.
func (l *leash) Err() error {
	if context.Cause(l.Context) == errSilent {
		return context.DeadlineExceeded
	}
	return l.Context.Err()
}

type leashKey struct{}

// Value answers leashOf: gRPC wraps the context that leashes has made.
func (l *leash) Value(key any) any {
	if key == (leashKey{}) {
		return l
	}
	return l.Context.Value(key)
}

// leashOf is the leash that ctx is on, or nil.
func leashOf(ctx context.Context) *leash {
	l, _ := ctx.Value(leashKey{}).(*leash)
	return l
}

// hold cuts the stream after d, unless it is called again before; 0: not at
// all. It is for the goroutine of Process; that of nil does nothing.
func (l *leash) hold(d time.Duration) {
	switch {
	case l == nil, d == 0 && l.timer == nil:
	case d == 0:
		l.timer.Stop()
	case l.timer == nil:
		l.timer = time.AfterFunc(d, func() { l.cut(errSilent) })
	default:
		l.timer.Reset(d)
	}
}
