// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/pool"
)

// newPool is a pool of 10.0.0.1:8000, 10.0.0.2:8000, … that scrapes nothing.
func newPool(t testing.TB, n int) *pool.Pool {
	t.Helper()
	var members []config.Member
	for i := range n {
		members = append(members, config.Member{Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
	}
	p, err := pool.New(config.Pool{
		Name: "llama", Protocol: config.HTTP, Engine: config.VLLM, Members: config.Members{Static: members},
		Metrics: config.Metrics{Off: true, Path: "/metrics", Stale: config.Duration(time.Second)},
		Ejection: config.Ejection{
			Failures: 3, Base: config.Duration(time.Minute), Max: config.Duration(time.Hour), SlowReturn: config.Duration(time.Minute), MaxPercent: 100,
		},
	}, pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testConfig has one model under a client's name, one under its own, and the
// limits that the tests know.
func testConfig() *config.Config {
	return &config.Config{
		Models: []config.Model{
			{Name: "chat", Targets: []config.Target{{Pool: "llama", Model: "meta-llama/Llama-3.1-8B-Instruct"}}, ReportModel: "asked"},
			{Name: "plain", Targets: []config.Target{{Pool: "llama"}}, ReportModel: "asked"},
			{Name: "other", Targets: []config.Target{{Pool: "elsewhere", Model: "x"}}, ReportModel: "asked"},
			{Name: "latest", Alias: "chat"},
		},
		Timeouts: config.Timeouts{Total: config.Duration(30 * time.Minute)},
		Limits: config.Limits{Body: 1 << 20, BodiesInFlight: 64 << 20, Headers: 64 << 10, JSONDepth: 128,
			UploadIdle: config.Duration(30 * time.Second), Drain: config.Duration(10 * time.Second)},
	}
}

// scripted is a picker that answers as it is told and keeps a log of what it
// and its observer hear.
type scripted struct {
	result func(r *epp.Request) (*epp.Result, error)
	plain  bool // its observer edits nothing
	mu     sync.Mutex
	log    strings.Builder
	open   int // picks not settled
}

func (p *scripted) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.log, format+"\n", args...)
}

func (p *scripted) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *scripted) Pick(_ context.Context, r *epp.Request) (*epp.Result, error) {
	subset := ""
	if r.Subset != nil {
		subset = fmt.Sprintf(" subset=%v", r.Subset)
	}
	prompt := 0
	if r.Prompt != nil {
		prompt = r.Prompt.Tokens()
	}
	p.note("pick %s %s %s op=%v asked=%q model=%q prompt=%d stream=%v body=%d%s", r.ID, r.Method, r.Path, r.Op, r.Asked, r.Model, prompt, r.Stream, len(r.Body()), subset)
	res, err := p.result(r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.open++
	p.mu.Unlock()
	done := res.OnDone
	res.OnDone = func(o epp.Outcome) {
		p.mu.Lock()
		p.open--
		p.mu.Unlock()
		p.note("done input=%d output=%d cached=%d reported=%v err=%v", o.Usage.Prompt(), o.Usage.Completion(), o.Usage.CacheRead, o.Usage.Reported(), o.Err)
		if done != nil {
			done(o)
		}
	}
	if res.Denial == nil {
		res.Observer, res.Edits = observer{p}, !p.plain
	}
	return res, nil
}

// observer gives the answer a session token and notes the rest.
type observer struct{ p *scripted }

func (o observer) Attempt(m *pool.Member) { o.p.note("attempt %s", m.Address()) }
func (o observer) Served(m *pool.Member)  { o.p.note("served %s", m.Address()) }
func (o observer) Head(status int, h http.Header) {
	o.p.note("head %d", status)
	if o.p.plain {
		return
	}
	if h.Get("X-Drop-Me") != "" {
		h.Del("X-Drop-Me")
	}
	h.Set("X-Session-Token", "t1")
}
func (o observer) Chunk(data []byte, tokens int) {
	o.p.note("chunk bytes=%d tokens=%d", len(data), tokens)
}
func (o observer) End(h http.Header) { o.p.note("end %v", h) }

func (p *scripted) unsettled() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// always picks the first two members.
func always(endpoints ...string) *scripted {
	return &scripted{result: func(*epp.Request) (*epp.Result, error) {
		return &epp.Result{Endpoints: endpoints, Reason: "picked"}, nil
	}}
}

// script is a stream that is played: Recv gives its messages in turn and then
// end, Send keeps what is answered.
type script struct {
	ctx      context.Context
	messages []*extprocv3.ProcessingRequest
	end      error // after the last message; nil: io.EOF
	received func(*extprocv3.ProcessingRequest)
	sent     func(*extprocv3.ProcessingResponse)
	header   func(metadata.MD)
}

func (s *script) Recv() (*extprocv3.ProcessingRequest, error) { panic("not used") }

// RecvMsg goes through the codec, as a real stream does.
func (s *script) RecvMsg(v any) error {
	if len(s.messages) == 0 {
		if s.end != nil {
			return s.end
		}
		return io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	if s.received != nil {
		s.received(m)
	}
	text, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return extproc.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, v)
}

func (s *script) Send(m *extprocv3.ProcessingResponse) error {
	if s.sent != nil {
		s.sent(m)
	}
	return nil
}

func (s *script) SetHeader(md metadata.MD) error {
	if s.header != nil {
		s.header(md)
	}
	return nil
}

func (s *script) Context() context.Context     { return s.ctx }
func (s *script) SendHeader(metadata.MD) error { return nil }
func (s *script) SetTrailer(metadata.MD)       {}
func (s *script) SendMsg(any) error            { panic("not used") }

var _ extprocv3.ExternalProcessor_ProcessServer = (*script)(nil)

func backend(t testing.TB, p epp.Picker) extproc.Backend {
	return extproc.Backend{Pool: newPool(t, 3), Picker: p}
}

// logs fails the test on what is an error in the server's log: a panic, above
// all.
func logs(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(failing{t}, &slog.HandlerOptions{Level: slog.LevelError}))
}

type failing struct{ t testing.TB }

func (f failing) Write(line []byte) (int, error) {
	f.t.Errorf("logged: %s", line)
	return len(line), nil
}

func servedBy(endpoint string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {Fields: map[string]*structpb.Value{
		"x-gateway-destination-endpoint-served": structpb.NewStringValue(endpoint)}}}}
}
