// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/pool"
)

// listen applies cfg and returns the listeners with where they are.
func listen(t *testing.T, cfg *config.Config, backends map[string]extproc.Backend) (*extproc.Listeners, []extproc.ListenerAddress) {
	t.Helper()
	ls := extproc.NewListeners(extproc.ListenersOptions{Log: logs(t)})
	apply(t, ls, cfg, backends)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		ls.Drain(ctx)
	})
	return ls, ls.Addresses()
}

func apply(t *testing.T, ls *extproc.Listeners, cfg *config.Config, backends map[string]extproc.Backend) {
	t.Helper()
	c, err := ls.Prepare(cfg, backends)
	if err != nil {
		t.Fatal(err)
	}
	c.Commit()
}

// listening is testConfig with one listener in plaintext on a free port.
func listening(change ...func(*config.PickerListener)) *config.Config {
	cfg := testConfig()
	l := config.PickerListener{Pool: "llama", Address: "127.0.0.1:0", Health: "127.0.0.1:0", Plaintext: true, Streams: 1000}
	for _, f := range change {
		f(&l)
	}
	cfg.PickerListeners = []config.PickerListener{l}
	return cfg
}

func secure(conf *tls.Config) grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(conf))
}

func check(t *testing.T, conn *grpc.ClientConn, service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	return r.GetStatus(), err
}

func headersOf(eos bool, words ...string) *extprocv3.ProcessingRequest {
	h := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: eos}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}}
}

func bodyOf(b []byte, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: eos}}}
}

// ask sends a request with a body and returns the endpoint picked and the body
// that came back.
func ask(stream extprocv3.ExternalProcessor_ProcessClient, body []byte) (endpoint string, back []byte, err error) {
	go func() {
		if stream.Send(headersOf(false, ":method=POST", ":path=/v1/chat/completions", "content-type=application/json")) != nil {
			return
		}
		for rest := body; ; {
			n := min(len(rest), 64<<10)
			if stream.Send(bodyOf(rest[:n], n == len(rest))) != nil || n == len(rest) {
				return
			}
			rest = rest[n:]
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return "", nil, err
		}
		switch k := m.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_RequestHeaders:
			endpoint = m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[extproc.HeaderEndpoint].GetStringValue()
		case *extprocv3.ProcessingResponse_RequestBody:
			part := k.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
			if len(part.GetBody()) > 62000 {
				return "", nil, fmt.Errorf("a chunk of %d bytes", len(part.GetBody()))
			}
			if back = append(back, part.GetBody()...); part.GetEndOfStream() {
				return endpoint, back, nil
			}
		default:
			return "", nil, fmt.Errorf("unexpected %s", describeAnswer(m))
		}
	}
}

func prompt(n int) []byte {
	return []byte(`{"model":"plain","messages":[{"role":"user","content":"` + strings.Repeat("word ", n/5) + `"}]}`)
}

func scheduler(t testing.TB, p *pool.Pool) *epp.Scheduler {
	t.Helper()
	cfg, _ := epp.Builtin("round-robin")
	profile, err := epp.Compile(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return epp.New(p, profile, epp.Options{})
}

func inFlight(p *pool.Pool) (n int64) {
	for _, m := range p.Snapshot().Members {
		n += m.Load().Requests
	}
	return n
}

func TestHealth(t *testing.T) {
	noLeaks(t)
	empty, err := pool.New(config.Pool{Name: "llama", Metrics: config.Metrics{Off: true}}, pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ls, at := listen(t, listening(), map[string]extproc.Backend{"llama": {Pool: empty, Picker: always("10.0.0.1:8000")}})
	for _, address := range []string{at[0].Address, at[0].Health} {
		conn := dial(t, address)
		for _, name := range []string{"", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			if s, err := check(t, conn, name); err != nil || s != healthv1.HealthCheckResponse_NOT_SERVING {
				t.Errorf("%q without members: %v, %v", name, s, err)
			}
		}
		if s, err := check(t, conn, "liveness"); err != nil || s != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("liveness: %v, %v", s, err)
		}
		if _, err := check(t, conn, "nobody"); status.Code(err) != codes.NotFound {
			t.Errorf("unknown name: %v", err)
		}
	}
	watch, err := healthv1.NewHealthClient(dial(t, at[0].Health)).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	onMain, err := healthv1.NewHealthClient(dial(t, at[0].Address)).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(w healthv1.Health_WatchClient, want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		r, err := w.Recv()
		if err != nil || r.GetStatus() != want {
			t.Fatalf("watch: %v, %v, want %v", r, err, want)
		}
	}
	wait(watch, healthv1.HealthCheckResponse_NOT_SERVING)
	wait(onMain, healthv1.HealthCheckResponse_NOT_SERVING)
	empty.SetMembers(nil) // known to be empty is known
	wait(watch, healthv1.HealthCheckResponse_SERVING)
	wait(onMain, healthv1.HealthCheckResponse_SERVING)
	empty.SetMembers([]config.Member{{Address: "10.0.0.1:8000"}})
	empty.SetMembers(nil)
	list, err := healthv1.NewHealthClient(dial(t, at[0].Health)).List(t.Context(), &healthv1.HealthListRequest{})
	if err != nil || len(list.GetStatuses()) != 5 || list.GetStatuses()["readiness"].GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("list: %v, %v", list, err)
	}
	empty.SetMembers([]config.Member{{Address: "10.0.0.1:8000"}})

	// While a stream is open a drain shows on the health port.
	stream := open(t, t.Context(), dial(t, at[0].Address))
	if err := stream.Send(headersOf(true, ":path=/")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	var drained sync.WaitGroup
	cut := -1
	drained.Go(func() { cut = ls.Drain(t.Context()) })
	wait(watch, healthv1.HealthCheckResponse_NOT_SERVING)
	wait(onMain, healthv1.HealthCheckResponse_NOT_SERVING)
	if _, err := onMain.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a watch on the picker's own port ends with the drain: %v", err)
	}
	conn := dial(t, at[0].Health)
	if s, err := check(t, conn, "liveness"); err != nil || s != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("liveness in a drain: %v, %v", s, err)
	}
	stream.CloseSend()
	drained.Wait()
	if cut != 0 {
		t.Errorf("%d streams cut", cut)
	}
}

func TestDrainCuts(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 2)
	ls, at := listen(t, listening(), map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	stream := open(t, t.Context(), dial(t, at[0].Address))
	if _, _, err := ask(stream, prompt(100)); err != nil {
		t.Fatal(err)
	}
	if n := inFlight(p); n != 1 {
		t.Fatalf("%d in flight", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if cut := ls.Drain(ctx); cut != 1 {
		t.Errorf("%d streams cut, want 1", cut)
	}
	if n := inFlight(p); n != 0 {
		t.Errorf("%d in flight after the drain", n)
	}
	if _, err := net.Dial("tcp", at[0].Address); err == nil {
		t.Error("still accepting")
	}
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSelfSigned(t *testing.T) {
	_, at := listen(t, listening(func(l *config.PickerListener) { l.Plaintext = false }), map[string]extproc.Backend{"llama": backend(t, always("10.0.0.1:8000"))})
	var seen *x509.Certificate
	conf := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		seen = s.PeerCertificates[0]
		if s.NegotiatedProtocol != "h2" {
			t.Errorf("ALPN %q", s.NegotiatedProtocol)
		}
		return nil
	}}
	if endpoint, _, err := ask(open(t, t.Context(), dial(t, at[0].Address, secure(conf))), prompt(10)); err != nil || endpoint != "10.0.0.1:8000" {
		t.Fatalf("%q, %v", endpoint, err)
	}
	if err := seen.VerifyHostname("localhost"); err != nil {
		t.Error(err)
	}
	if err := seen.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}
	if !strings.Contains(seen.Subject.String(), "Penstock") {
		t.Errorf("subject %s", seen.Subject)
	}
}

// A certificate that changes on disk is served to the next connection; one that
// is broken is not.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, "first")
	cfg := listening(func(l *config.PickerListener) {
		l.Plaintext, l.TLS = false, &config.ServerTLS{Cert: cert, Key: key}
	})
	quiet := extproc.NewListeners(extproc.ListenersOptions{})
	apply(t, quiet, cfg, map[string]extproc.Backend{"llama": backend(t, always("10.0.0.1:8000"))})
	t.Cleanup(func() { quiet.Drain(t.Context()) })
	name := func() string {
		c, err := tls.Dial("tcp", quiet.Addresses()[0].Address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Fatalf("got %s", got)
	}
	writeCertificate(t, cert, key, "second")
	eventually(t, "the second certificate", func() bool { return name() == "second" })
	if err := os.WriteFile(cert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "second" {
		t.Errorf("got %s", got)
	}
}

// writeCertificate writes a self-signed pair.
func writeCertificate(t *testing.T, cert, key, name string) {
	t.Helper()
	own := &certs.SelfSigned{Name: name}
	conf, err := own.Config()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := conf.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, key, "PRIVATE KEY", der)
	writePEM(t, cert, "CERTIFICATE", pair.Certificate[0])
}

// Streams of a listener that stays are not touched by a reload; one that is
// gone ends its own, and one whose TLS changes keeps its address.
func TestReload(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 2)
	backends := map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}}
	cfg := listening()
	gone := cfg.PickerListeners[0]
	gone.Health = "off"
	cfg.PickerListeners = append(cfg.PickerListeners, gone)
	ls, at := listen(t, cfg, backends)
	first, second := open(t, t.Context(), dial(t, at[0].Address)), open(t, t.Context(), dial(t, at[1].Address))
	for _, s := range []extprocv3.ExternalProcessor_ProcessClient{first, second} {
		if _, _, err := ask(s, prompt(10)); err != nil {
			t.Fatal(err)
		}
	}
	next := *cfg
	next.PickerListeners = cfg.PickerListeners[:1]
	next.Models = []config.Model{{Name: "plain", Targets: []config.Target{{Pool: "llama", Model: "renamed"}}}}
	next.Limits.Drain = 0
	apply(t, ls, &next, backends)
	if now := ls.Addresses(); len(now) != 1 || now[0].Address != at[0].Address {
		t.Fatalf("addresses %v, were %v", now, at)
	}
	if _, err := second.Recv(); err == nil {
		t.Error("the stream of the listener that is gone goes on")
	}
	if err := first.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: true, Headers: headersOf(true, ":status=200").GetRequestHeaders().GetHeaders()}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); err != nil {
		t.Errorf("the stream of the listener that stays: %v", err)
	}
	if _, back, err := ask(open(t, t.Context(), dial(t, at[0].Address)), prompt(10)); err != nil || !bytes.Contains(back, []byte(`"renamed"`)) {
		t.Errorf("new models are not in force: %s, %v", back, err)
	}

	bound := next
	bound.PickerListeners = []config.PickerListener{next.PickerListeners[0]}
	bound.PickerListeners[0].Streams = 7 // a new listener, on the port of the old one
	bound.PickerListeners[0].Address = at[0].Address
	if _, err := ls.Prepare(&bound, backends); err == nil {
		t.Error("an address that was named as :0 is not the port's")
	}
}

func TestStreamLimit(t *testing.T) {
	p := newPool(t, 1)
	_, at := listen(t, listening(func(l *config.PickerListener) { l.Streams = 2 }), map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	conn := dial(t, at[0].Address)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		if _, _, err := ask(open(t, ctx, conn), prompt(10)); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := ask(open(t, t.Context(), conn), prompt(10))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "2 streams") {
		t.Errorf("the third stream: %v", err)
	}
	cancel()
	eventually(t, "streams to end", func() bool { return inFlight(p) == 0 })
	if _, _, err := ask(open(t, t.Context(), conn), prompt(10)); err != nil {
		t.Error(err)
	}
}

// Large bodies come back whole, in pieces; what is over the total is refused.
func TestLargeBodies(t *testing.T) {
	cfg := listening()
	cfg.Limits.Body, cfg.Limits.BodiesInFlight = 32<<20, 64<<20
	p := newPool(t, 2)
	_, at := listen(t, cfg, map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	conn := dial(t, at[0].Address)
	for _, n := range []int{1 << 20, 20 << 20} {
		body := prompt(n)
		ctx, cancel := context.WithCancel(t.Context())
		endpoint, back, err := ask(open(t, ctx, conn), body)
		if err != nil || endpoint == "" || !bytes.Equal(back, body) {
			t.Errorf("%d bytes: %q, %d bytes back, %v", n, endpoint, len(back), err)
		}
		cancel()
	}
}

func TestBodiesInFlight(t *testing.T) {
	noLeaks(t)
	const limit = 1 << 20
	cfg := testConfig()
	cfg.Limits.BodiesInFlight = limit
	server, held := extproc.NewTestServer(logs(t), cfg, backend(t, always("10.0.0.1:8000")), 1000)
	conn := dial(t, serveBare(t, server))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := 0
	for range 12 { // of 100,000 bytes each, not ended
		stream := open(t, ctx, conn)
		before := held.Load()
		if err := errors.Join(stream.Send(headersOf(false, ":path=/x")), stream.Send(bodyOf(make([]byte, 100_000), false))); err != nil {
			t.Fatal(err)
		}
		if before+100_000 > limit {
			m, err := stream.Recv()
			if err != nil || m.GetImmediateResponse().GetStatus().GetCode() != 503 {
				t.Fatalf("over the limit: %v, %v", m, err)
			}
			if _, err := stream.Recv(); err != io.EOF {
				t.Errorf("after the refusal: %v", err)
			}
			refused++
			continue
		}
		eventually(t, "the body to be held", func() bool { return held.Load() == before+100_000 })
	}
	if refused != 2 || held.Load() > limit {
		t.Errorf("%d refused, %d bytes held", refused, held.Load())
	}
	cancel()
	eventually(t, "everything to be given back", func() bool { return held.Load() == 0 && server.OpenStreams() == 0 })
}

// Gateways that come and go at any moment leave nothing in flight.
func TestDisconnects(t *testing.T) {
	noLeaks(t)
	p := newPool(t, 3)
	_, at := listen(t, listening(), map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	var wg sync.WaitGroup
	for worker := range 8 {
		conn := dial(t, at[0].Address)
		wg.Go(func() {
			for i := range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				stream := open(t, ctx, conn)
				switch (worker + i) % 5 {
				case 0: // nothing
				case 1:
					stream.Send(headersOf(false, ":path=/v1/completions"))
				case 2:
					stream.Send(headersOf(false, ":path=/v1/completions"))
					stream.Send(bodyOf([]byte(`{"model":"plain","prompt":"x"}`), true)) // and does not read
				case 3:
					ask(stream, prompt(1000))
				case 4:
					ask(stream, prompt(1000))
					stream.CloseSend()
					stream.Recv()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	eventually(t, "zero in flight", func() bool { return inFlight(p) == 0 })
}

// A picker may withdraw a request at any time before the answer's end.
func TestWithdrawn(t *testing.T) {
	noLeaks(t)
	evicted, evict := context.WithCancelCause(t.Context())
	picker := &scripted{result: func(*epp.Request) (*epp.Result, error) {
		return &epp.Result{Endpoints: []string{"10.0.0.1:8000"}, Evicted: evicted}, nil
	}}
	server, _ := extproc.NewTestServer(logs(t), testConfig(), backend(t, picker), 10)
	conn := dial(t, serveBare(t, server))
	stream := open(t, t.Context(), conn)
	if _, _, err := ask(stream, prompt(10)); err != nil {
		t.Fatal(err)
	}
	whole := open(t, t.Context(), conn) // one that is over before
	if _, _, err := ask(whole, prompt(10)); err != nil {
		t.Fatal(err)
	}
	end := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}}
	if err := whole.Send(end); err != nil {
		t.Fatal(err)
	}
	if _, err := whole.Recv(); err != nil {
		t.Fatal(err)
	}
	evict(&epp.Eviction{Denial: &epp.Denial{Status: 429, Header: map[string][]string{"X-Llm-D-Request-Dropped-Reason": {"evicted"}}}})
	m, err := stream.Recv()
	if err != nil || m.GetImmediateResponse().GetStatus().GetCode() != 429 || !strings.Contains(describeAnswer(m), "x-llm-d-request-dropped-reason=evicted") {
		t.Errorf("withdrawn: %v, %v", m, err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("after it: %v", err)
	}
	whole.CloseSend()
	if m, err := whole.Recv(); err != io.EOF {
		t.Errorf("one that was over: %v, %v", m, err)
	}
	eventually(t, "settled picks", func() bool { return picker.unsettled() == 0 && server.OpenStreams() == 0 })
}

// What is no message at all ends the stream with a status that says so.
func TestUndecodable(t *testing.T) {
	server, _ := extproc.NewTestServer(logs(t), testConfig(), backend(t, always("10.0.0.1:8000")), 10)
	conn := dial(t, serveBare(t, server))
	stream := open(t, t.Context(), conn)
	bad := headersOf(true, ":path=/")
	bad.GetRequestHeaders().GetHeaders().Headers[0].Key = "\xff\xfe"
	if err := stream.Send(bad); err == nil {
		if _, err = stream.Recv(); status.Code(err) != codes.Internal && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
	}
	eventually(t, "the stream to end", func() bool { return server.OpenStreams() == 0 })
}

// noLeaks fails the test if a stream's goroutine is left when it has ended.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		buf := make([]byte, 1<<20)
		end := time.Now().Add(patience)
		for {
			text := string(buf[:runtime.Stack(buf, true)])
			left := slices.DeleteFunc(strings.Split(text, "\n\n"), func(g string) bool {
				return !strings.Contains(g, "extproc.readAhead") && !strings.Contains(g, "extproc.(*Server).Process") && !strings.Contains(g, "extproc.(*health)")
			})
			if len(left) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Errorf("goroutines are left:\n%s", strings.Join(left, "\n\n"))
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// A listener that changes takes its address over: streams of the old one end in
// their own time, new connections find the new one.
func TestReloadChangesTLS(t *testing.T) {
	noLeaks(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	p := newPool(t, 2)
	backends := map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}}
	cfg := listening(func(l *config.PickerListener) { l.Address, l.Health = address, "off" })
	ls, _ := listen(t, cfg, backends)
	before := open(t, t.Context(), dial(t, address))
	if _, _, err := ask(before, prompt(10)); err != nil {
		t.Fatal(err)
	}
	next := *cfg
	next.PickerListeners = []config.PickerListener{cfg.PickerListeners[0]}
	next.PickerListeners[0].Plaintext = false
	apply(t, ls, &next, backends)
	conf := &tls.Config{InsecureSkipVerify: true}
	if _, _, err := ask(open(t, t.Context(), dial(t, address, secure(conf))), prompt(10)); err != nil {
		t.Errorf("the new listener: %v", err)
	}
	if err := before.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Recv(); err != nil {
		t.Errorf("the old listener's stream: %v", err)
	}
	before.CloseSend()
	if _, err := before.Recv(); err != io.EOF {
		t.Errorf("its end: %v", err)
	}
}

// A hint that leaves nobody is a 503, whoever else is ready.
func TestSubset(t *testing.T) {
	p := newPool(t, 3)
	server, _ := extproc.NewTestServer(logs(t), testConfig(), extproc.Backend{Pool: p, Picker: scheduler(t, p)}, 10)
	for hint, want := range map[string]string{
		`[]`: "immediate 503", `""`: "immediate 503", `7`: "immediate 503", `["10.9.9.9:8000"]`: "immediate 503",
		`["10.0.0.3:8000"]`: "10.0.0.3:8000 ", `"10.9.9.9,10.0.0.2"`: "10.0.0.2:8000 ",
	} {
		answer := ""
		s := &script{ctx: t.Context(), messages: []*extprocv3.ProcessingRequest{parseMessage(t, "request-headers (eos subset="+hint+") :path=/")},
			sent: func(m *extprocv3.ProcessingResponse) { answer += describeAnswer(m) }}
		if err := server.Process(s); err != nil || !strings.Contains(answer, want) {
			t.Errorf("%s: %s, %v; want %s", hint, answer, err, want)
		}
	}
	if n := inFlight(p); n != 0 {
		t.Errorf("%d in flight", n)
	}
}
