// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package extproctest has pickers for tests: real gRPC servers of the Endpoint
// Picker Protocol that behave as a script says, well or badly.
//
// It knows nothing of package extproc, so that a misreading there cannot hide
// here. Start reading at [Start]; the scripts are values, [Good] is the one
// that does everything right.
package extproctest

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Picker is a running server.
type Picker struct {
	Address string
	Streams atomic.Int64 // begun
	Open    atomic.Int64 // not ended

	server *grpc.Server
	script atomic.Pointer[Script]
	mu     sync.Mutex
	log    []string
}

// Script serves one stream.
type Script func(s *Session) error

// TB is what of testing.TB is needed.
type TB interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// Start serves script until the test ends; cert nil is plaintext.
func Start(t TB, script Script, cert *tls.Certificate) *Picker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, l, script, cert)
}

// Serve is Start on a listener of the caller's.
func Serve(t TB, l net.Listener, script Script, cert *tls.Certificate) *Picker {
	var options []grpc.ServerOption
	if cert != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})))
	}
	p := &Picker{Address: l.Addr().String(), server: grpc.NewServer(options...)}
	p.script.Store(&script)
	extprocv3.RegisterExternalProcessorServer(p.server, p)
	go p.server.Serve(l)
	t.Cleanup(p.Stop)
	return p
}

// Stop ends the server and all streams.
func (p *Picker) Stop() { p.server.Stop() }

// Become changes the script of streams to come.
func (p *Picker) Become(s Script) { p.script.Store(&s) }

// Heard is what the streams have received, a word for each message.
func (p *Picker) Heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.log...)
}

// Process implements the service.
func (p *Picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	p.Streams.Add(1)
	p.Open.Add(1)
	defer p.Open.Add(-1)
	return (*p.script.Load())(&Session{picker: p, stream: stream})
}

// Session is one stream as a script sees it.
type Session struct {
	picker *Picker
	stream extprocv3.ExternalProcessor_ProcessServer

	Header map[string][]string // of the request, names in lower case
	Body   []byte              // of the request, as far as it has come
	Subset []string            // hint, as sent with the last message that had one
	Served string              // as the gateway said in the response phase
	Answer []byte              // what was shown of the answer's body
}

// Message is one message of the gateway.
type Message struct {
	Kind  string // request-headers, request-body, request-trailers, response-headers, …
	End   bool
	Bytes int
}

// Context ends with the stream.
func (s *Session) Context() context.Context { return s.stream.Context() }

// Next waits for a message and notes it.
func (s *Session) Next() (Message, error) {
	in, err := s.stream.Recv()
	if err != nil {
		return Message{}, err
	}
	m := Message{}
	if served := in.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"].GetStringValue(); served != "" {
		s.Served = served
	}
	if hint := in.GetMetadataContext().GetFilterMetadata()["envoy.lb.subset_hint"].GetFields()["x-gateway-destination-endpoint-subset"]; hint != nil {
		s.Subset = nil
		for _, v := range hint.GetListValue().GetValues() {
			s.Subset = append(s.Subset, v.GetStringValue())
		}
	}
	switch r := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		m.Kind, m.End = "request-headers", r.RequestHeaders.GetEndOfStream()
		s.Header = map[string][]string{}
		for _, h := range r.RequestHeaders.GetHeaders().GetHeaders() {
			s.Header[h.GetKey()] = append(s.Header[h.GetKey()], string(h.GetRawValue()))
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		m.Kind, m.End, m.Bytes = "request-body", r.RequestBody.GetEndOfStream(), len(r.RequestBody.GetBody())
		s.Body = append(s.Body, r.RequestBody.GetBody()...)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		m.Kind, m.End = "request-trailers", true
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		m.Kind, m.End = "response-headers", r.ResponseHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseBody:
		m.Kind, m.End, m.Bytes = "response-body", r.ResponseBody.GetEndOfStream(), len(r.ResponseBody.GetBody())
		s.Answer = append(s.Answer, r.ResponseBody.GetBody()...)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		m.Kind, m.End = "response-trailers", true
	}
	word := m.Kind
	if m.End {
		word += "-end"
	}
	s.picker.mu.Lock()
	if len(s.picker.log) < 10000 {
		s.picker.log = append(s.picker.log, word)
	}
	s.picker.mu.Unlock()
	return m, nil
}

// Request waits until the whole request has come.
func (s *Session) Request() error {
	for {
		m, err := s.Next()
		if err != nil {
			return err
		}
		if m.End {
			return nil
		}
	}
}

// Field is one header to set.
type Field struct {
	Name, Value string
	Text        bool // in value instead of raw_value
}

// Pick answers the headers: list in the header field and metadata in envoy.lb,
// each unless empty.
func (s *Session) Pick(list, metadata string, fields ...Field) error {
	mutation := &extprocv3.HeaderMutation{}
	if list != "" {
		fields = append(fields, Field{Name: "x-gateway-destination-endpoint", Value: list})
	}
	for _, f := range fields {
		v := &corev3.HeaderValue{Key: f.Name, RawValue: []byte(f.Value)}
		if f.Text {
			v = &corev3.HeaderValue{Key: f.Name, Value: f.Value}
		}
		mutation.SetHeaders = append(mutation.SetHeaders, &corev3.HeaderValueOption{Header: v})
	}
	out := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
		Response: &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: true},
	}}}
	if metadata != "" {
		inner := &structpb.Struct{Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint": structpb.NewStringValue(metadata)}}
		out.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(inner)}}
	}
	return s.stream.Send(out)
}

// BodyBack answers the body in pieces of at most 62,000 bytes.
func (s *Session) BodyBack(body []byte) error { return s.BodyIn(body, 62000) }

// BodyIn answers the body in pieces of size.
func (s *Session) BodyIn(body []byte, size int) error {
	for {
		n := min(size, len(body))
		last := n == len(body)
		if err := s.Piece(body[:n], last); err != nil || last {
			return err
		}
		body = body[n:]
	}
}

// Piece answers with one piece of the body.
func (s *Session) Piece(p []byte, last bool) error {
	return s.body(&extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: p, EndOfStream: last},
	}})
}

// EmptyBody answers a body with nothing in it, as some pickers do for "no
// change".
func (s *Session) EmptyBody() error { return s.body(nil) }

func (s *Session) body(m *extprocv3.BodyMutation) error {
	return s.stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: m},
	}}})
}

// Immediate refuses the request.
func (s *Session) Immediate(code int, body string, fields ...Field) error {
	r := &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(code)}, Body: []byte(body), Headers: &extprocv3.HeaderMutation{}}
	for _, f := range fields {
		r.Headers.SetHeaders = append(r.Headers.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: f.Name, RawValue: []byte(f.Value)}})
	}
	return s.stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: r}})
}

// HeadBack answers the head of the answer.
func (s *Session) HeadBack(fields ...Field) error {
	mutation := &extprocv3.HeaderMutation{}
	for _, f := range fields {
		mutation.SetHeaders = append(mutation.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: f.Name, RawValue: []byte(f.Value)}})
	}
	return s.stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
		Response: &extprocv3.CommonResponse{HeaderMutation: mutation},
	}}})
}

// Raw sends any message.
func (s *Session) Raw(m *extprocv3.ProcessingResponse) error { return s.stream.Send(m) }

// Rest reads the response phase to its end, answering the head.
func (s *Session) Rest(fields ...Field) error {
	for {
		m, err := s.Next()
		if err != nil {
			return nil // the gateway ends a stream by closing or by resetting it
		}
		if m.Kind == "response-headers" {
			if err := s.HeadBack(fields...); err != nil {
				return err
			}
		}
	}
}

// RequestPhase waits for the request, picks and gives the body back.
func (s *Session) RequestPhase(list, metadata string, fields ...Field) error {
	if err := s.Request(); err != nil {
		return err
	}
	if err := s.Pick(list, metadata, fields...); err != nil {
		return err
	}
	if len(s.Body) == 0 {
		return nil
	}
	return s.BodyBack(s.Body)
}

// Good picks list and gives the body back.
func Good(list string) Script { return Mutates(list) }

// Echoes is Good, and gives every header field back, pseudo and framing ones
// too.
func Echoes(list string) Script {
	return func(s *Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		fields := []Field{{Name: "Content-Length", Value: "7"}, {Name: "transfer-encoding", Value: "chunked"}, {Name: "connection", Value: "close"}}
		for name, values := range s.Header {
			for _, v := range values {
				fields = append(fields, Field{Name: name, Value: v})
			}
		}
		if err := s.Pick(list, list, fields...); err != nil {
			return err
		}
		if err := s.BodyBack(s.Body); err != nil {
			return err
		}
		return s.Rest(Field{Name: ":status", Value: "299"}, Field{Name: "transfer-encoding", Value: "chunked"}, Field{Name: "x-went-into-resp-headers", Value: "true"})
	}
}

// EmptyBodies answers each piece of the body with nothing, the first ones
// before the headers.
func EmptyBodies(list string) Script {
	return func(s *Session) error {
		for {
			m, err := s.Next()
			if err != nil {
				return err
			}
			if m.Kind == "request-body" && !m.End {
				if err := s.EmptyBody(); err != nil {
					return err
				}
			}
			if m.End {
				break
			}
		}
		if err := s.Pick(list, list); err != nil {
			return err
		}
		if len(s.Body) > 0 {
			if err := s.EmptyBody(); err != nil {
				return err
			}
		}
		return s.Rest()
	}
}

// BodyFirst gives the body back before it answers the headers.
func BodyFirst(list string) Script {
	return func(s *Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		if err := s.BodyBack(s.Body); err != nil {
			return err
		}
		if err := s.Pick(list, list); err != nil {
			return err
		}
		return s.Rest()
	}
}

// NoBody never answers the body.
func NoBody(list string) Script {
	return func(s *Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		if err := s.Pick(list, list); err != nil {
			return err
		}
		return s.Rest()
	}
}

// Replaces is Good with another body.
func Replaces(list string, change func([]byte) []byte) Script {
	return func(s *Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		if err := s.Pick(list, list); err != nil {
			return err
		}
		if err := s.BodyBack(change(s.Body)); err != nil {
			return err
		}
		return s.Rest()
	}
}

// ClosesAtOnce ends every stream cleanly without an answer.
func ClosesAtOnce(*Session) error { return nil }

// ClosesAfter is Good, and ends the stream cleanly after the request phase.
func ClosesAfter(list string) Script {
	return func(s *Session) error {
		return s.RequestPhase(list, list)
	}
}

// Silent reads and never answers.
func Silent(s *Session) error {
	for {
		if _, err := s.Next(); err != nil {
			return nil
		}
	}
}

// Deaf neither reads nor answers.
func Deaf(s *Session) error {
	<-s.Context().Done()
	return nil
}

// SlowReader waits before each message and reads nothing of the response phase
// in time.
func SlowReader(list string, wait time.Duration) Script {
	return func(s *Session) error {
		if err := s.RequestPhase(list, list); err != nil {
			return err
		}
		for {
			select {
			case <-time.After(wait):
			case <-s.Context().Done():
				return nil
			}
			if _, err := s.Next(); err != nil {
				return nil
			}
		}
	}
}

// Refuses answers with an immediate response.
func Refuses(code int, body string, fields ...Field) Script {
	return func(s *Session) error {
		if err := s.Request(); err != nil {
			return err
		}
		return s.Immediate(code, body, fields...)
	}
}

// Evicts is Good, and refuses when told to.
func Evicts(list string, when <-chan struct{}, code int, body string) Script {
	return func(s *Session) error {
		if err := s.RequestPhase(list, list); err != nil {
			return err
		}
		go func() {
			for {
				if m, err := s.Next(); err != nil {
					return
				} else if m.Kind == "response-headers" {
					s.HeadBack()
				}
			}
		}()
		select {
		case <-when:
		case <-s.Context().Done():
			return nil
		}
		return s.Immediate(code, body, Field{Name: "x-llm-d-request-dropped-reason", Value: "evicted"})
	}
}

// Mutates is Good with these fields.
func Mutates(list string, fields ...Field) Script {
	return func(s *Session) error {
		if err := s.RequestPhase(list, list, fields...); err != nil {
			return err
		}
		return s.Rest()
	}
}

// Channels names different endpoints in header and metadata.
func Channels(header, metadata string) Script {
	return func(s *Session) error {
		if err := s.RequestPhase(header, metadata); err != nil {
			return err
		}
		return s.Rest()
	}
}

// Huge answers with one message of size bytes.
func Huge(list string, size int) Script {
	return Mutates(list, Field{Name: "x-huge", Value: strings.Repeat("x", size)})
}

// BreaksAfterHeaders answers the headers and ends the stream with an error.
func BreaksAfterHeaders(list string, err error) Script {
	return func(s *Session) error {
		if e := s.Request(); e != nil {
			return e
		}
		if e := s.Pick(list, list); e != nil {
			return e
		}
		if e := s.Piece([]byte("{"), false); e != nil {
			return e
		}
		return err
	}
}

// Fault is an error of the picker's own (gRPC INTERNAL).
func Fault(text string) error { return status.Error(codes.Internal, text) }
