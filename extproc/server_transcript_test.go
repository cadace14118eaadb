// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/internal/golden"
)

// TestTranscripts plays each case twice: in this goroutine, where the order of
// messages and answers is exact, and over gRPC, where the same answers must
// come in the same order.
//
// The file in has a message a line: KIND (OPTIONS) CONTENT. KIND is
// request-headers, request-body, request-trailers or the same of response; what
// else is there is none that is known. Options, in brackets, are eos, grpc-eos, subset=JSON,
// served=JSON, request=MODE, response=MODE, observe, text (values as text, not
// raw). Headers are NAME=VALUE words; a body is the rest of the line, a Go
// string if it is quoted, or fill N.
//
// Flags: pick (endpoints), deny (status reason), fail (timeout or error), edit
// (NAME=VALUE set, -NAME removed), replace (a body), limit (of a body), tell,
// plain (the picker edits no answers), canceled (how the gateway ends the stream).
func TestTranscripts(t *testing.T) {
	golden.Run(t, "testdata/server/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var messages []*extprocv3.ProcessingRequest
		for line := range strings.Lines(c.File(t, "in")) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				messages = append(messages, parseMessage(t, line))
			}
		}
		picker := flagged(t, c)
		var transcript, answers strings.Builder
		expected := 0
		s := &script{ctx: t.Context(), messages: slices.Clone(messages)}
		if c.Flag("canceled") != "" {
			s.end = status.Error(codes.Canceled, "context canceled")
		}
		s.received = func(m *extprocv3.ProcessingRequest) { fmt.Fprintf(&transcript, "> %s\n", describeRequest(m)) }
		s.sent = func(m *extprocv3.ProcessingResponse) {
			expected++
			line := "< " + describeAnswer(m) + "\n"
			transcript.WriteString(line)
			answers.WriteString(line)
		}
		s.header = func(md metadata.MD) { fmt.Fprintf(&transcript, "< header %v\n", md) }
		server, held := extproc.NewTestServer(logs(t), configOf(t, c), backendOf(t, c, picker), 10)
		err := server.Process(s)
		fmt.Fprintf(&transcript, "= %s\n", describeEnd(err))
		fmt.Fprintf(&answers, "= %s\n", describeEnd(err))
		if held.Load() != 0 || server.OpenStreams() != 0 || picker.unsettled() != 0 {
			t.Errorf("left behind: %d bytes, %d streams, %d picks", held.Load(), server.OpenStreams(), picker.unsettled())
		}
		again := flagged(t, c)
		if over, here := unmade(playOverGRPC(t, c, again, messages, expected)), unmade(answers.String()); over != here {
			t.Errorf("over gRPC (-in process +over gRPC):\n%s", cmp.Diff(here, over))
		}
		return map[string]string{"transcript": unmade(transcript.String()), "picker": unmade(picker.String()), "counts": server.Counts()}
	})
}

// unmade takes the ids out that the server made.
func unmade(s string) string {
	return regexp.MustCompile(`\b[0-9a-f]{32}\b`).ReplaceAllString(s, "MADE")
}

func flagged(t *testing.T, c *golden.Case) *scripted {
	pick := c.Flag("pick")
	if pick == "" {
		pick = "10.0.0.1:8000 10.0.0.2:8000"
	}
	return &scripted{plain: c.Flag("plain") != "", result: func(*epp.Request) (*epp.Result, error) {
		res := &epp.Result{Endpoints: strings.Fields(pick), Reason: "picked"}
		if pick == "none" {
			res.Endpoints = nil
		}
		switch f := c.Flag("fail"); f {
		case "":
		case "timeout":
			return nil, fmt.Errorf("remote: %w", context.DeadlineExceeded)
		default:
			return nil, errors.New(f)
		}
		if deny := strings.Fields(c.Flag("deny")); len(deny) > 0 {
			code, _ := strconv.Atoi(deny[0])
			res = &epp.Result{Reason: deny[1], Denial: &epp.Denial{Status: code, Header: http.Header{"Retry-After": {"1"}}, Detail: "a secret"}}
			if len(deny) > 2 {
				res.Denial.Body = []byte(strings.Join(deny[2:], " "))
			}
		}
		for _, e := range strings.Fields(c.Flag("edit")) {
			if name, ok := strings.CutPrefix(e, "-"); ok {
				res.Header.Remove = append(res.Header.Remove, name)
			} else {
				name, value, _ := strings.Cut(e, "=")
				res.Header.Set = append(res.Header.Set, epp.HeaderValue{Name: name, Value: value})
			}
		}
		if body := c.Flag("replace"); body != "" {
			res.Body = []byte(body)
		}
		return res, nil
	}}
}

func parseMessage(t testing.TB, line string) *extprocv3.ProcessingRequest {
	t.Helper()
	kind, rest, _ := strings.Cut(line, " ")
	options := ""
	if strings.HasPrefix(rest, "(") {
		options, rest, _ = strings.Cut(rest[1:], ")")
		rest = strings.TrimSpace(rest)
	}
	m := &extprocv3.ProcessingRequest{}
	eos, grpcEOS, text := false, false, false
	for _, o := range strings.Fields(options) {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "eos":
			eos = true
		case "grpc-eos":
			grpcEOS = true
		case "text":
			text = true
		case "observe":
			m.ObservabilityMode = true
		case "subset":
			setMetadata(t, m, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
		case "served":
			setMetadata(t, m, "envoy.lb", "x-gateway-destination-endpoint-served", value)
		case "request", "response":
			if m.ProtocolConfig == nil {
				m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: procv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: procv3.ProcessingMode_FULL_DUPLEX_STREAMED}
			}
			mode := procv3.ProcessingMode_BodySendMode(procv3.ProcessingMode_BodySendMode_value[value])
			if name == "request" {
				m.ProtocolConfig.RequestBodyMode = mode
			} else {
				m.ProtocolConfig.ResponseBodyMode = mode
			}
		default:
			t.Fatalf("unknown option %q", o)
		}
	}
	headers := func() *extprocv3.HttpHeaders {
		h := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: eos}
		for _, word := range strings.Fields(rest) {
			name, value, _ := strings.Cut(word, "=")
			value = strings.ReplaceAll(value, "~", " ")
			if n, ok := strings.CutPrefix(value, "fill:"); ok {
				value = strings.Repeat("x", number(t, n))
			}
			v := &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
			if text {
				v.Value, v.RawValue = value, nil
			}
			h.Headers.Headers = append(h.Headers.Headers, v)
		}
		return h
	}
	body := func() *extprocv3.HttpBody {
		b := &extprocv3.HttpBody{EndOfStream: eos, EndOfStreamWithoutMessage: grpcEOS}
		switch {
		case strings.HasPrefix(rest, "fill "):
			b.Body = []byte(strings.Repeat("x", number(t, rest[5:])))
		case rest != "":
			b.Body = []byte(rest)
			if s, err := strconv.Unquote(rest); err == nil {
				b.Body = []byte(s)
			}
		}
		return b
	}
	trailers := func() *extprocv3.HttpTrailers { return &extprocv3.HttpTrailers{Trailers: headers().Headers} }
	switch kind {
	case "request-headers":
		m.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers()}
	case "response-headers":
		m.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers()}
	case "request-body":
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body()}
	case "response-body":
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body()}
	case "request-trailers":
		m.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: trailers()}
	case "response-trailers":
		m.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: trailers()}
	}
	return m
}

func setMetadata(t testing.TB, m *extprocv3.ProcessingRequest, namespace, key, value string) {
	t.Helper()
	v := &structpb.Value{}
	if err := protojson.Unmarshal([]byte(value), v); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	if m.MetadataContext == nil {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	m.MetadataContext.FilterMetadata[namespace] = &structpb.Struct{Fields: map[string]*structpb.Value{key: v}}
}

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func describeRequest(m *extprocv3.ProcessingRequest) string {
	name, eos := "nothing", false
	switch k := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		name, eos = "request-headers", k.RequestHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestBody:
		name, eos = "request-body "+content(k.RequestBody.GetBody()), k.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		name = "request-trailers"
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		name, eos = "response-headers", k.ResponseHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseBody:
		name, eos = "response-body "+content(k.ResponseBody.GetBody()), k.ResponseBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		name = "response-trailers"
	}
	if eos {
		name += " eos"
	}
	return name
}

// content is a body as a transcript shows it.
func content(b []byte) string {
	if len(b) <= 400 {
		return strconv.Quote(string(b))
	}
	return fmt.Sprintf("%d bytes %.4x", len(b), sha256.Sum256(b))
}

func describeAnswer(m *extprocv3.ProcessingResponse) string {
	var b strings.Builder
	common := func(c *extprocv3.CommonResponse) {
		if c.GetStatus() != extprocv3.CommonResponse_CONTINUE {
			fmt.Fprintf(&b, " %v", c.GetStatus())
		}
		describeMutation(&b, c.GetHeaderMutation())
		switch k := c.GetBodyMutation().GetMutation().(type) {
		case *extprocv3.BodyMutation_Body:
			b.WriteString(" body " + content(k.Body))
		case *extprocv3.BodyMutation_ClearBody:
			b.WriteString(" clear-body")
		case *extprocv3.BodyMutation_StreamedResponse:
			b.WriteString(" streamed " + content(k.StreamedResponse.GetBody()))
			if k.StreamedResponse.GetEndOfStream() {
				b.WriteString(" eos")
			}
		}
		if c.GetClearRouteCache() {
			b.WriteString(" clear-route-cache")
		}
	}
	switch k := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		b.WriteString("request-headers")
		common(k.RequestHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		b.WriteString("response-headers")
		common(k.ResponseHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_RequestBody:
		b.WriteString("request-body")
		common(k.RequestBody.GetResponse())
	case *extprocv3.ProcessingResponse_ResponseBody:
		b.WriteString("response-body")
		common(k.ResponseBody.GetResponse())
	case *extprocv3.ProcessingResponse_RequestTrailers:
		b.WriteString("request-trailers")
		describeMutation(&b, k.RequestTrailers.GetHeaderMutation())
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		b.WriteString("response-trailers")
		describeMutation(&b, k.ResponseTrailers.GetHeaderMutation())
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		fmt.Fprintf(&b, "immediate %d", k.ImmediateResponse.GetStatus().GetCode())
		describeMutation(&b, k.ImmediateResponse.GetHeaders())
		fmt.Fprintf(&b, " details=%s body %s", k.ImmediateResponse.GetDetails(), content(k.ImmediateResponse.GetBody()))
	default:
		b.WriteString("nothing")
	}
	if d := m.GetDynamicMetadata(); d != nil {
		for namespace, v := range d.GetFields() {
			for key, value := range v.GetStructValue().GetFields() {
				fmt.Fprintf(&b, " metadata %s/%s=%s", namespace, key, value.GetStringValue())
			}
		}
	}
	return b.String()
}

func describeMutation(b *strings.Builder, m *extprocv3.HeaderMutation) {
	for _, name := range m.GetRemoveHeaders() {
		fmt.Fprintf(b, " remove:%s", name)
	}
	var lines []string
	for _, o := range m.GetSetHeaders() {
		line := fmt.Sprintf(" set:%s=%s", o.GetHeader().GetKey(), o.GetHeader().GetRawValue())
		if o.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			line = strings.Replace(line, "set:", "add:", 1)
		}
		if o.GetHeader().GetValue() != "" {
			line += "!both"
		}
		lines = append(lines, line)
	}
	b.WriteString(strings.Join(lines, ""))
}

func describeEnd(err error) string {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return "OK"
	}
	return status.Code(err).String() + ": " + status.Convert(err).Message()
}

// patience bounds every wait of these tests; none of them decides by it.
const patience = 20 * time.Second

func configOf(t *testing.T, c *golden.Case) *config.Config {
	cfg := testConfig()
	if limit := c.Flag("limit"); limit != "" {
		cfg.Limits.Body = config.Size(number(t, limit))
	}
	if limit := c.Flag("in-flight"); limit != "" {
		cfg.Limits.BodiesInFlight = config.Size(number(t, limit))
	}
	return cfg
}

func backendOf(t *testing.T, c *golden.Case, p epp.Picker) extproc.Backend {
	b := backend(t, p)
	if c.Flag("tell") != "" {
		b.TellServed = func() bool { return true }
	}
	return b
}

// playOverGRPC sends the messages over a socket and returns what was answered
// and how it ended. It waits for expected answers before it ends the stream, as
// a gateway does.
func playOverGRPC(t *testing.T, c *golden.Case, p *scripted, messages []*extprocv3.ProcessingRequest, expected int) string {
	t.Helper()
	server, held := extproc.NewTestServer(logs(t), configOf(t, c), backendOf(t, c, p), 10)
	address := serveBare(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream := open(t, ctx, dial(t, address))
	heard := make(chan struct{}) // all that is expected
	if expected == 0 {
		close(heard)
	}
	go func() {
		for _, m := range messages {
			if stream.Send(m) != nil {
				return
			}
		}
		select {
		case <-heard:
		case <-ctx.Done():
		}
		stream.CloseSend()
		if c.Flag("canceled") != "" {
			cancel()
		}
	}()
	var out strings.Builder
	for n := 0; ; {
		m, err := stream.Recv()
		if err != nil {
			if status.Code(err) == codes.Canceled {
				err = nil // the gateway itself has left
			}
			fmt.Fprintf(&out, "= %s\n", describeEnd(err))
			break
		}
		fmt.Fprintf(&out, "< %s\n", describeAnswer(m))
		if n++; n == expected {
			close(heard)
		}
	}
	eventually(t, "the stream to be counted", func() bool { return strings.Contains(server.Counts(), "ended") })
	eventually(t, "the stream to be settled", func() bool { return server.OpenStreams() == 0 && held.Load() == 0 && p.unsettled() == 0 })
	return out.String()
}

// serveBare serves one Server without a listener of its own.
func serveBare(t testing.TB, server *extproc.Server, options ...grpc.ServerOption) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(options, grpc.ForceServerCodecV2(extproc.Codec()), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(64<<20))...)
	extprocv3.RegisterExternalProcessorServer(g, server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Serve(socket)
	}()
	t.Cleanup(func() { g.Stop(); <-done })
	return socket.Addr().String()
}

func dial(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func open(t testing.TB, ctx context.Context, conn *grpc.ClientConn) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
