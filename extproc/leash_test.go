// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
)

// slow is a stream whose messages come one after another, each after a pause,
// and that stays open after the last.
type slow struct {
	script
	pause time.Duration
}

func (s *slow) RecvMsg(v any) error {
	wait := s.pause
	if len(s.messages) == 0 {
		wait = 1000 * time.Hour
	}
	select {
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	case <-time.After(wait):
		return s.script.RecvMsg(v)
	}
}

// moded is m with the body modes that a first message tells.
func moded(m *extprocv3.ProcessingRequest, mode procv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: mode}
	return m
}

// A gateway that leaves a request unfinished is cut after limits.uploadIdle; one
// that waits for its client or for the model server is not.
func TestSilence(t *testing.T) {
	const idle, total = 30 * time.Second, 30 * time.Minute
	head := func() *extprocv3.ProcessingRequest {
		return headersOf(false, ":method=POST", ":path=/v1/chat/completions", "content-type=application/json")
	}
	whole, part := bodyOf(prompt(100), true), bodyOf([]byte(`{"model":`), false)
	answer := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: headersOf(false, ":status=200", "content-type=text/event-stream").GetRequestHeaders()}}
	observed := head()
	observed.ObservabilityMode = true
	list := func(m ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest { return m }
	for _, c := range []struct {
		name     string
		pause    time.Duration
		messages []*extprocv3.ProcessingRequest
		cut      time.Duration // after the last message; 0: never
	}{
		{"nothing at all", 0, nil, idle},
		{"headers alone", 20 * time.Second, list(head()), idle},
		{"half a body", 20 * time.Second, list(head(), part), idle},
		{"a body that comes slowly", 20 * time.Second, list(head(), part, part, part, part), idle},
		{"a body without its end or trailers", 20 * time.Second, list(head(), bodyOf(prompt(100), false)), idle},
		{"too slow for the second message", 40 * time.Second, list(head(), part), idle - 80*time.Second},
		{"a chunk after the pick", 20 * time.Second, list(moded(head(), procv3.ProcessingMode_STREAMED), part), idle},
		{"a body that the gateway gathers", 20 * time.Second, list(moded(head(), procv3.ProcessingMode_BUFFERED)), total},
		{"waiting for the answer", 20 * time.Second, list(head(), whole), 0},
		{"a long answer", 20 * time.Second, list(head(), whole, answer), 0},
		{"waiting after a buffered body", 20 * time.Second, list(moded(head(), procv3.ProcessingMode_BUFFERED), whole), 0},
		{"no body is shown", 20 * time.Second, list(moded(head(), procv3.ProcessingMode_NONE)), 0},
		{"an answer of the gateway's own", 20 * time.Second, list(answer), 0},
		{"observability", 20 * time.Second, list(observed), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig()
				cfg.Limits.UploadIdle, cfg.Timeouts.Total = config.Duration(idle), config.Duration(total)
				picker := always("10.0.0.1:8000")
				server, held := extproc.NewTestServer(slog.New(slog.DiscardHandler), cfg, backend(t, picker), 10)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin, ended := time.Now(), make(chan error, 1)
				go func() {
					ended <- server.Process(&slow{script: script{ctx: extproc.Leashed(ctx), messages: c.messages}, pause: c.pause})
				}()
				told := c.pause * time.Duration(len(c.messages))
				if c.cut == 0 {
					time.Sleep(told + 3*total)
					synctest.Wait()
					select {
					case err := <-ended:
						t.Fatalf("ended: %v", err)
					default:
						return
					}
				}
				err := <-ended
				if status.Code(err) != codes.DeadlineExceeded {
					t.Fatalf("ended with %v", err)
				}
				if after := time.Since(begin); after != told+c.cut {
					t.Errorf("ended after %v: %v after the last message", after, after-told)
				}
				if server.Counts() != "penstock_epp_streams_ended_total silent 1\n" {
					t.Errorf("counted:\n%s", server.Counts())
				}
				if held.Load() != 0 || picker.unsettled() != 0 {
					t.Errorf("%d bytes held, %d picks not settled", held.Load(), picker.unsettled())
				}
			})
		})
	}
}

// The time that the picker takes is not the gateway's.
func TestSilenceOfThePicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		picker := &scripted{result: func(*epp.Request) (*epp.Result, error) {
			time.Sleep(time.Hour)
			return &epp.Result{Denial: &epp.Denial{Status: http.StatusTooManyRequests}, Reason: "saturated"}, nil
		}}
		server, _ := extproc.NewTestServer(slog.New(slog.DiscardHandler), testConfig(), backend(t, picker), 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &slow{script: script{ctx: extproc.Leashed(ctx), messages: []*extprocv3.ProcessingRequest{headersOf(true, ":path=/")}}}
		if err := server.Process(s); err != nil {
			t.Error(err)
		}
	})
}

// The gateway is told, over gRPC.
func TestSilenceEndsTheCall(t *testing.T) {
	noLeaks(t)
	cfg := listening()
	cfg.Limits.UploadIdle = config.Duration(10 * time.Millisecond)
	_, at := listen(t, cfg, map[string]extproc.Backend{"llama": backend(t, always("10.0.0.1:8000"))})
	conn := dial(t, at[0].Address)
	waits := open(t, t.Context(), conn)
	if err := waits.Send(headersOf(true, ":path=/")); err != nil {
		t.Fatal(err)
	}
	if _, err := waits.Recv(); err != nil {
		t.Fatal(err)
	}
	silent := open(t, t.Context(), conn)
	if m, err := silent.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a silent stream: %v, %v", m, err)
	}
	if err := waits.Send(headersOf(true, ":status=200")); err != nil {
		t.Fatal(err)
	}
	waits.CloseSend()
}
