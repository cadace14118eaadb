// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// client is one for a pool of two members, its picker configured by text.
func client(t testing.TB, remote string) *extproc.Client {
	t.Helper()
	p, err := pool.New(config.Pool{
		Name: "p", Metrics: config.Metrics{Off: true}, Members: config.Members{Static: []config.Member{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}}},
	}, pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c, err := extproc.NewClient(p, remotePicker(t, remote), extproc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remotePicker is the configuration of a picker by text, with its defaults.
func remotePicker(t testing.TB, text string) config.RemotePicker {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools: [{name: p, members: {static: ["10.0.0.1:80"]}, picker: {remote: {`+text+`}}}]
models: [{name: m, targets: [{pool: p}]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	return *cfg.Pools[0].Picker.Remote
}

func TestSplitEndpoints(t *testing.T) {
	for in, want := range map[string][]string{
		"": nil, " , ": nil, "10.0.0.1:80": {"10.0.0.1:80"}, " a:1 ,b:2,": {"a:1", "b:2"},
		"[2001:db8::1]:80": {"[2001:db8::1]:80"}, "2001:db8::1:80": {"[2001:db8::1]:80"}, "::1:8000,x:1": {"[::1]:8000", "x:1"},
	} {
		if diff := cmp.Diff(want, extproc.SplitEndpoints(in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestMutations(t *testing.T) {
	sent := http.Header{"X-Old": {"1"}, "X-Two": {"a", "b"}, "Content-Type": {"application/json"}}
	type option = corev3.HeaderValueOption
	set := func(name, value string, change ...func(*option)) *option {
		o := &option{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)}}
		for _, f := range change {
			f(o)
		}
		return o
	}
	action := func(a corev3.HeaderValueOption_HeaderAppendAction) func(*option) {
		return func(o *option) { o.AppendAction = a }
	}
	//lint:ignore SA1019 the old form is still sent
	appends := func(o *option) { o.Append = wrapperspb.Bool(true) }
	text := func(o *option) { o.Header.Value, o.Header.RawValue = string(o.Header.RawValue), nil }
	both := func(o *option) { o.Header.Value = "other" }
	value := func(name, v string) []epp.HeaderValue { return []epp.HeaderValue{{Name: name, Value: v}} }
	for _, c := range []struct {
		name     string
		set      *option
		want     []epp.HeaderValue
		endpoint string
	}{
		{"new", set("x-new", "v"), value("X-New", "v"), ""},
		{"overwrites", set("x-old", "2"), value("X-Old", "2"), ""},
		{"echo", set("x-old", "1"), nil, ""},
		{"echo of one of two", set("x-two", "b"), nil, ""},
		{"text value", set("x-new", "v", text), value("X-New", "v"), ""},
		{"both values", set("x-new", "v", both), nil, ""},
		{"appends", set("x-old", "2", appends), []epp.HeaderValue{{Name: "X-Old", Value: "2", Append: true}}, ""},
		{"if absent, there", set("x-old", "2", action(corev3.HeaderValueOption_ADD_IF_ABSENT)), nil, ""},
		{"if absent", set("x-new", "2", action(corev3.HeaderValueOption_ADD_IF_ABSENT)), value("X-New", "2"), ""},
		{"if there, absent", set("x-new", "2", action(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS)), nil, ""},
		{"if there", set("x-old", "2", action(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS)), value("X-Old", "2"), ""},
		{"endpoint", set("X-Gateway-Destination-Endpoint", "a:1,b:2"), nil, "a:1,b:2"},
		{"method", set(":method", "GET"), nil, ""},
		{"path", set(":path", "/admin"), nil, ""},
		{"host", set("Host", "x"), nil, ""},
		{"length", set("Content-Length", "3"), nil, ""},
		{"chunked", set("transfer-encoding", "chunked"), nil, ""},
		{"no name", set("", "v"), nil, ""},
		{"space", set("x new", "v"), nil, ""},
		{"line feed", set("x-new", "a\nb"), nil, ""},
		{"nul", set("x-new", "a\x00b"), nil, ""},
	} {
		edits, endpoint := extproc.Mutation(&extprocv3.HeaderMutation{SetHeaders: []*option{c.set}}, sent, extproc.NewClientInstruments(nil))
		if diff := cmp.Diff(c.want, edits.Set); diff != "" || endpoint != c.endpoint {
			t.Errorf("%s: endpoint %q, want %q; set (-want +got):\n%s", c.name, endpoint, c.endpoint, diff)
		}
	}
	edits, _ := extproc.Mutation(&extprocv3.HeaderMutation{RemoveHeaders: []string{"x-old", ":path", "host", "content-length", "bad name", "te"}}, sent, extproc.NewClientInstruments(nil))
	if diff := cmp.Diff([]string{"x-old"}, edits.Remove); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	reg := prometheus.NewRegistry()
	in := extproc.NewClientInstruments(reg)
	// A length of a body of its own is what the protocol wants of a picker.
	extproc.Mutation(&extprocv3.HeaderMutation{SetHeaders: []*option{set("Content-Length", "3")}, RemoveHeaders: []string{"content-length"}}, sent, in)
	if n := refusals(t, reg); n != 0 {
		t.Errorf("%v refusals counted of a content-length", n)
	}
	extproc.Mutation(&extprocv3.HeaderMutation{SetHeaders: []*option{set("transfer-encoding", "chunked")}, RemoveHeaders: []string{"connection"}}, sent, in)
	if n := refusals(t, reg); n != 2 {
		t.Errorf("%v refusals counted of two fields of the hop", n)
	}
	many := &extprocv3.HeaderMutation{}
	for i := range 5000 {
		many.SetHeaders = append(many.SetHeaders, set(fmt.Sprint("x-", i), "v"))
	}
	if edits, _ = extproc.Mutation(many, sent, extproc.NewClientInstruments(nil)); len(edits.Set) != 1000 {
		t.Errorf("%d of 5000 fields set, want 1000", len(edits.Set))
	}
}

// refusals is the sum of penstock_picker_mutations_refused_total.
func refusals(t *testing.T, reg *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "penstock_picker_mutations_refused_total" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// Replicas come and go with the name; one that says it is not serving, or is
// gone, is not asked; one that does not speak of its health is.
func TestReplicas(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(first.Addr().String())
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal("a second loopback address is needed: ", err)
	}
	third, err := net.Listen("tcp", "127.0.0.3:"+port)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(l net.Listener, h *health.Server) *grpc.Server {
		s := grpc.NewServer()
		if h != nil {
			grpc_health_v1.RegisterHealthServer(s, h)
		}
		go s.Serve(l)
		t.Cleanup(s.Stop)
		return s
	}
	const service = "envoy.service.ext_proc.v3.ExternalProcessor"
	one, two := health.NewServer(), health.NewServer()
	one.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
	two.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	serve(first, one)
	serve(second, two)
	mute := serve(third, nil)

	c := client(t, `address: "picker.test:`+port+`", refresh: 100ms, health: {interval: 50ms, timeout: 50ms}`)
	var names atomic.Pointer[[]string]
	names.Store(&[]string{"127.0.0.1", "127.0.0.2", "127.0.0.3"})
	c.Resolver(func() []string { return *names.Load() })
	c.Start()
	defer c.Close()
	expect := func(when string, hosts ...string) {
		t.Helper()
		want := ""
		for _, h := range hosts {
			want += net.JoinHostPort(h, port) + " "
		}
		got := ""
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if got = strings.Join(append(c.Ready(), ""), " "); got == want {
				return
			}
		}
		t.Fatalf("%s: ready are %q, want %q", when, got, want)
	}
	expect("at first", "127.0.0.1", "127.0.0.3")
	two.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
	expect("the second is ready", "127.0.0.1", "127.0.0.2", "127.0.0.3")
	one.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	expect("the first is not", "127.0.0.2", "127.0.0.3")
	mute.Stop()
	expect("the third has died", "127.0.0.2")
	names.Store(&[]string{"127.0.0.1"})
	expect("the second is no longer named")
	one.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
	expect("the first is ready again", "127.0.0.1")
	names.Store(&[]string{})
	time.Sleep(300 * time.Millisecond)
	expect("a resolver that knows nobody", "127.0.0.1")
}

func TestPickWithoutReplicas(t *testing.T) {
	c := client(t, `address: "127.0.0.1:1", timeout: 1s, failureMode: FailOpen`)
	c.Start()
	defer c.Close()
	var first []string
	for range 3 {
		res, err := c.Pick(context.Background(), extproc.Question(nil))
		if err != nil || res.Reason != "fallback-picker-unreachable" || len(res.Endpoints) != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
		first = append(first, res.Endpoints[0])
		res.Done(epp.Outcome{})
	}
	if first[0] == first[1] || first[0] != first[2] {
		t.Errorf("not in turn: %v", first)
	}
}

// clientOf is a client of p, with settings besides its address.
func clientOf(t *testing.T, p extprocv3.ExternalProcessorServer, settings string) *extproc.Client {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(s, p)
	go s.Serve(socket)
	t.Cleanup(s.Stop)
	c := client(t, fmt.Sprintf("address: %q, %s", socket.Addr(), settings))
	c.Start()
	t.Cleanup(c.Close)
	return c
}

// Without a response phase the picker is told that the request is all, so that
// it may wait for that.
func TestRequestIsAll(t *testing.T) {
	c := clientOf(t, tillEnd{}, "response: {mode: off}, timeout: 10s")
	for _, n := range []int{0, 2, 200_000} {
		res, err := c.Pick(t.Context(), extproc.Question(make([]byte, n)))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if res.Denial == nil || res.Denial.Status != 429 {
			t.Errorf("%d bytes: %+v", n, res)
		}
	}
}

// tillEnd is a picker that refuses when the stream has been half-closed.
type tillEnd struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (tillEnd) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		switch _, err := g.Recv(); {
		case err == io.EOF:
			return g.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
				ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 429}}}})
		case err != nil:
			return err
		}
	}
}

// The end of an answer that has come whole is told with its head: a picker that
// answers the head only after the end answers in time.
func TestWholeAnswer(t *testing.T) {
	p := &tillAnswered{said: make(chan string, 1)}
	c := clientOf(t, p, "response: {headTimeout: 10s}, timeout: 10s")
	res, err := c.Pick(t.Context(), extproc.Question([]byte(`{"model":"m"}`)))
	if err != nil || len(res.Endpoints) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	o := res.Observer.(epp.WholeObserver)
	o.Attempt(c.Member(res.Endpoints[0]))
	h, u := http.Header{"Content-Type": {"application/json"}}, llm.Usage{Input: 7, Output: 2, Source: llm.Reported}
	o.Whole(200, h, u)
	if got := h.Get("X-Late"); got != "yes" {
		t.Errorf("the edit of the head: %q", got)
	}
	res.Done(epp.Outcome{Usage: u})
	want := `head 200, body {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":0},"total_tokens":9}} last, end`
	if got := <-p.said; got != want {
		t.Errorf("the picker was told\n%s\nnot\n%s", got, want)
	}
}

// A picker that says that it only observes answers is not waited for.
func TestObservedAnswer(t *testing.T) {
	p := &tillAnswered{said: make(chan string, 1), observes: true}
	c := clientOf(t, p, "response: {headTimeout: 1m}, timeout: 10s")
	res, err := c.Pick(t.Context(), extproc.Question([]byte(`{"model":"m"}`)))
	if err != nil || len(res.Endpoints) != 1 || res.Edits {
		t.Fatalf("%+v, %v", res, err)
	}
	res.Observer.Attempt(c.Member(res.Endpoints[0]))
	res.Observer.Head(200, http.Header{"Content-Type": {"text/event-stream"}}) // nobody answers it
	res.Observer.End(nil)
	res.Done(epp.Outcome{})
	if got := <-p.said; !strings.HasPrefix(got, "head 200, observed, body data: ") {
		t.Errorf("the picker was told %s", got)
	}
}

// tillAnswered picks, then answers the head of the answer when the stream has
// been half-closed, and says what it was told until then.
type tillAnswered struct {
	extprocv3.UnimplementedExternalProcessorServer
	said     chan string
	observes bool // says that it edits no answer, and answers none
}

func (p *tillAnswered) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	edit := func(key, value string) *extprocv3.CommonResponse {
		return &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: key, RawValue: []byte(value)}}}}}
	}
	var told []string
	if p.observes {
		g.SetHeader(metadata.Pairs("penstock-answers", "observed"))
	}
	for {
		m, err := g.Recv()
		if err == io.EOF {
			p.said <- strings.Join(append(told, "end"), ", ")
			if p.observes {
				return nil
			}
			return g.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: edit("x-late", "yes")}}})
		}
		if err != nil {
			return err
		}
		switch r := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			g.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: edit(extproc.HeaderEndpoint, "10.0.0.1:80")}}})
		case *extprocv3.ProcessingRequest_RequestBody:
			g.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}})
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			status := ""
			for _, f := range r.ResponseHeaders.GetHeaders().GetHeaders() {
				if f.GetKey() == ":status" {
					status = string(f.GetRawValue())
				}
			}
			if told = append(told, "head "+status); m.GetObservabilityMode() {
				told = append(told, "observed")
			}
		case *extprocv3.ProcessingRequest_ResponseBody:
			last := ""
			if r.ResponseBody.GetEndOfStream() {
				last = " last"
			}
			told = append(told, "body "+string(r.ResponseBody.GetBody())+last)
		}
	}
}

// FuzzClientTranscript feeds any answers of a picker to a client: it must come
// to a decision or an error, and never to half a body.
func FuzzClientTranscript(f *testing.F) {
	body := []byte(`{"model":"m","messages":[]}`)
	add := func(messages ...*extprocv3.ProcessingResponse) {
		var b []byte
		for _, m := range messages {
			text, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = append(append(b, byte(len(text)), byte(len(text)>>8)), text...)
		}
		f.Add(b)
	}
	headers := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
		HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: extproc.HeaderEndpoint, RawValue: []byte("10.0.0.1:80")}}}},
	}}}}
	piece := func(p []byte, last bool) *extprocv3.ProcessingResponse {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: p, EndOfStream: last}}},
		}}}}
	}
	add(headers, piece(body, true))
	add(headers, piece(body[:5], false), piece([]byte("other"), true))
	add(piece(body, true), headers)
	add(headers, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{Body: []byte("no")}}})
	add(headers)
	c := client(f, `address: "127.0.0.1:1"`)
	f.Fuzz(func(t *testing.T, in []byte) {
		var messages []*extprocv3.ProcessingResponse
		var back []byte
		for len(in) >= 2 && len(messages) < 64 {
			n := min(int(in[0])|int(in[1])<<8, len(in)-2)
			m := &extprocv3.ProcessingResponse{}
			if proto.Unmarshal(in[2:2+n], m) == nil {
				messages = append(messages, m)
				back = append(back, m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
			}
			in = in[2+n:]
		}
		res, err := c.Feed(extproc.Question(body), messages)
		if err != nil {
			return
		}
		defer res.Done(epp.Outcome{})
		if res.Denial != nil {
			if res.Denial.Status < 200 || res.Denial.Status > 599 || res.Denial.Body == nil {
				t.Fatalf("denial %+v", res.Denial)
			}
			return
		}
		for _, set := range res.Header.Set {
			if set.Name == "" || set.Name[0] == ':' || strings.ContainsAny(set.Value, "\r\n\x00") {
				t.Fatalf("edit %+v", set)
			}
		}
		if res.Body == nil && !bytes.HasPrefix(back, body) && len(back) > 0 && bytes.HasPrefix(body, back) && len(back) < len(body) {
			for _, m := range messages {
				if m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse() == nil && m.GetRequestBody() != nil {
					return // an answer without a body keeps the original
				}
			}
			t.Fatalf("half a body came back, and the whole would be sent: %q", back)
		}
	})
}

// FuzzClientCodec holds the client's codec against the library's.
func FuzzClientCodec(f *testing.F) {
	add := func(m proto.Message) {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	add(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{EndOfStream: true,
		Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":path", RawValue: []byte("/v1")}, {Key: "x", Value: "text"}, {}}}}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: 4, ResponseBodyMode: 4}})
	add(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: bytes.Repeat([]byte("x"), 300), EndOfStream: true}},
		MetadataContext: &corev3.Metadata{}})
	add(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("x")}}, ObservabilityMode: true})
	add(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
		BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: []byte("part"), EndOfStream: true}}},
	}}}})
	for _, set := range []*corev3.HeaderValueOption{
		{Header: &corev3.HeaderValue{Key: extproc.HeaderEndpoint, RawValue: []byte("10.0.0.1:80")}},
		{Header: &corev3.HeaderValue{Key: "x-a", Value: "b"}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD},
		{Header: &corev3.HeaderValue{Key: "x-a"}, KeepEmptyValue: true},
	} {
		common := &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set}, RemoveHeaders: []string{"x-b"}}}
		lb, err := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{extproc.HeaderEndpoint: "10.0.0.1:80"}})
		if err != nil {
			f.Fatal(err)
		}
		add(&extprocv3.ProcessingResponse{DynamicMetadata: lb, Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}})
		add(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: common}}})
	}
	hint, err := structpb.NewStruct(map[string]any{"k": []any{"a", "b"}, "t": "x", "n": 1})
	if err != nil {
		f.Fatal(err)
	}
	add(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{}},
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": hint, "": nil}}})
	f.Fuzz(func(t *testing.T, text []byte) {
		asked, answer := &extprocv3.ProcessingRequest{}, &extprocv3.ProcessingResponse{}
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, asked) != nil {
			asked = nil
		}
		wantErr := proto.Unmarshal(text, answer)
		_, again, read, err := extproc.ClientCodec(asked, text)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%x: %v, the library says %v", text, err, wantErr)
		}
		if err == nil && !proto.Equal(read, answer) {
			t.Fatalf("%x: read as %v, want %v", text, read, answer)
		}
		if asked != nil && !proto.Equal(again, asked) {
			t.Fatalf("%x: written as %v, want %v", text, again, asked)
		}
	})
}
