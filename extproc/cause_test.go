// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/extproc/extproctest"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/pool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// logged is a log that tests may read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// ownCertificate is one that nobody vouches for, for localhost.
func ownCertificate(t *testing.T) *tls.Certificate {
	t.Helper()
	conf, err := (&certs.SelfSigned{Name: "test"}).Config()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := conf.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// sick is a gRPC server that says it is not serving.
func sick(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := health.NewServer()
	h.SetServingStatus("envoy.service.ext_proc.v3.ExternalProcessor", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// mute accepts connections and says nothing.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// closed is an address at which nobody listens.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Why a replica is not ready is said wherever one would look, and once in the
// log however many requests there are.
func TestWhyAReplicaIsNotReady(t *testing.T) {
	plain := func(t *testing.T) string { return extproctest.Start(t, extproctest.Good("10.0.0.1:80"), nil).Address }
	secure := func(t *testing.T) string {
		return extproctest.Start(t, extproctest.Good("10.0.0.1:80"), ownCertificate(t)).Address
	}
	page := func(t *testing.T) string {
		s := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	for _, c := range []struct {
		name    string
		address func(t *testing.T) string
		more    string
		why     string
		hint    string
	}{
		{"nobody there", closed, "", "connection refused", "try penstock epp probe ADDRESS"},
		{"not ours to trust", secure, "tls: {}", "x509: ", "tls.ca"},
		{"plaintext", plain, "tls: {}", "first record does not look like a TLS handshake", "leave tls out"},
		{"TLS", secure, "", "", "the port may speak TLS"},
		{"a page", page, "", "HTTP/1.1", "the port speaks plain HTTP"},
		{"not serving", sick, "", "is NOT_SERVING", "try penstock epp probe ADDRESS"},
		{"no answer", mute, "health: {interval: 50ms, timeout: 50ms}", "no connection within 50ms", "try penstock epp probe ADDRESS"},
		{"no answer about its health", plain, "health: {port: MUTE, interval: 300ms, timeout: 300ms}", "within 300ms (picker.remote.health)", "try penstock epp probe ADDRESS"},
		{"nobody there for its health", plain, "health: {port: CLOSED, interval: 10s, timeout: 10s}", "connection refused (picker.remote.health)", "try penstock epp probe ADDRESS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := c.address(t)
			more := c.more
			for name, at := range map[string]func(*testing.T) string{"MUTE": mute, "CLOSED": closed} {
				if strings.Contains(more, name) {
					_, port, _ := net.SplitHostPort(at(t))
					more = strings.ReplaceAll(more, name, port)
				}
			}
			text := fmt.Sprintf("address: %q, timeout: 10s", address)
			if !strings.Contains(more, "health:") { // on a busy machine even a handshake takes its time
				text += ", health: {interval: 10s, timeout: 10s}"
			}
			if more != "" {
				text += ", " + more
			}
			p, err := pool.New(config.Pool{Name: "p", Metrics: config.Metrics{Off: true}, Members: config.Members{Static: []config.Member{{Address: "10.0.0.1:80"}}}}, pool.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			log := &logged{}
			k, err := extproc.NewClient(p, remotePicker(t, text), extproc.ClientOptions{Log: slog.New(slog.NewTextHandler(log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			k.Start()
			defer k.Close()
			var list []extproc.ReplicaStatus
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if list, _ = k.Replicas(); len(list) == 1 && list[0].State == "not ready" {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%+v", list)
				}
			}
			if list[0].Error == "" || !strings.Contains(list[0].Error, c.why) || strings.Contains(list[0].Error, "desc =") {
				t.Errorf("the last error is %q, want %q", list[0].Error, c.why)
			}
			for range 3 {
				_, err = k.Pick(context.Background(), extproc.Question(nil))
			}
			if want := "no replica of " + address + " is ready: " + address + ": "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("a pick fails with %v, want %q", err, want)
			}
			if e := k.Recent(1)[0]; !strings.Contains(e.Remote.Failure, c.why) || e.Reason != "refused-picker-failed" {
				t.Errorf("the explanation says %s, %q", e.Reason, e.Remote.Failure)
			}
			if n := strings.Count(log.String(), "picker is not ready"); n != 1 {
				t.Errorf("%d lines say that it is not ready:\n%s", n, log)
			}
			for _, want := range []string{c.why, strings.ReplaceAll(c.hint, "ADDRESS", address)} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, log)
				}
			}
			if strings.Contains(log.String(), "connection=READY") {
				t.Errorf("the log contradicts itself:\n%s", log)
			}
		})
	}
}

// A name that does not resolve is said, too.
func TestWhyThereIsNoReplica(t *testing.T) {
	c := client(t, `address: "no-such-name.invalid:9002", timeout: 5s`)
	c.Start()
	defer c.Close()
	_, err := c.Pick(context.Background(), extproc.Question(nil))
	if err == nil || !strings.Contains(err.Error(), "no replica of no-such-name.invalid:9002 is ready: lookup no-such-name.invalid") {
		t.Errorf("%v", err)
	}
	if list, unresolved := c.Replicas(); len(list) != 0 || !strings.Contains(unresolved, "lookup no-such-name.invalid") {
		t.Errorf("%v, %q", list, unresolved)
	}
}

// A gateway that falls back on its own says who was sent the request.
func TestFailOpenIsExplained(t *testing.T) {
	p, err := pool.New(config.Pool{Name: "p", Metrics: config.Metrics{Off: true}, Members: config.Members{Static: []config.Member{{Address: "10.0.0.1:80"}}}}, pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c, err := extproc.NewClient(p, remotePicker(t, fmt.Sprintf("address: %q, failureMode: FailOpen", closed(t))), extproc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	defer c.Close()
	res, err := c.Pick(context.Background(), extproc.Question(nil))
	if err != nil {
		t.Fatal(err)
	}
	m := p.Lookup(res.Endpoints[0])
	res.Observer.Attempt(m)
	if n := m.Load().Requests; n != 1 {
		t.Errorf("%d in flight", n)
	}
	res.Observer.Head(200, http.Header{})
	res.Observer.Chunk(nil, 1)
	res.Observer.End(nil)
	res.Done(epp.Outcome{})
	if l := m.Load(); l != (pool.Load{}) {
		t.Errorf("left: %+v", l)
	}
	var text strings.Builder
	c.Recent(1)[0].Table(&text)
	for _, want := range []string{"fallback-picker-unreachable: 10.0.0.1:80", "failed", "sent to", "served by"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &text)
		}
	}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		text               string
		secure             bool
		cause, file, flags string
	}{
		{`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`, true, "connection refused", "", ""},
		{`connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: cannot validate certificate for 10.0.0.7 because it doesn't contain any IP SANs"`, true,
			"tls: failed to verify certificate: x509: cannot validate certificate for 10.0.0.7 because it doesn't contain any IP SANs", "tls.serverName", "--server-name"},
		{`connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate is valid for epp, not localhost"`, true, "tls: failed to verify certificate: x509: certificate is valid for epp, not localhost", "tls.serverName", "--server-name"},
		{`connection error: desc = "error reading server preface: remote error: tls: certificate required"`, true, "remote error: tls: certificate required", "tls.cert", "--cert"},
		{`connection error: desc = "error reading server preface: EOF"`, true, "EOF", "refused this one", "refused this one"},
		{`connection error: desc = "error reading server preface: read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer"`, false, "connection reset by peer", "may speak TLS", "--tls"},
		{`connection error: desc = "transport: \"quoted\""`, false, `"quoted"`, "", ""},
		{"plain", false, "plain", "", ""},
	} {
		if got := extproc.CauseOf(c.text); got != c.cause {
			t.Errorf("%s\ncause %q, want %q", c.text, got, c.cause)
		}
		file, flags := extproc.AdviceOn(c.text, c.secure)
		if !strings.Contains(file, c.file) || !strings.Contains(flags, c.flags) || c.file == "" && file+flags != "" {
			t.Errorf("%s\nadvice %q and %q", c.text, file, flags)
		}
	}
}

// A gateway that cannot speak TLS to the picker is logged with its address and
// the cause, once a second; who only connects is not.
func TestFailedHandshakesAreLogged(t *testing.T) {
	log := &logged{}
	p := newPool(t, 1)
	ls := extproc.NewListeners(extproc.ListenersOptions{Log: slog.New(slog.NewTextHandler(log, nil))})
	apply(t, ls, listening(func(l *config.PickerListener) { l.Plaintext = false }), map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	t.Cleanup(func() { ls.Drain(context.Background()) })
	address := ls.Addresses()[0].Address
	for range 3 {
		conn, err := net.Dial("tcp", address) // as a probe of the port does
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	const calls = 20
	began := time.Now()
	peer := ""
	for range calls {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		peer = conn.LocalAddr().String()
		conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		io.Copy(io.Discard, conn) // until the server has seen it
		conn.Close()
	}
	lines := strings.Count(log.String(), "could not speak TLS")
	if most := int(time.Since(began)/time.Second) + 2; lines < 1 || lines > most {
		t.Errorf("%d lines of %d handshakes:\n%s", lines, calls, log)
	}
	host, _, _ := net.SplitHostPort(peer)
	for _, want := range []string{"peer=" + host + ":", "first record does not look like a TLS handshake", "pool=llama"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), "EOF") {
		t.Errorf("a probe of the port is logged:\n%s", log)
	}
}

// Before a drain health says no, and everything is still served.
func TestFade(t *testing.T) {
	p := newPool(t, 1)
	ls, at := listen(t, listening(), map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	conn := dial(t, at[0].Address)
	if s, err := check(t, conn, ""); err != nil || s != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("before: %v, %v", s, err)
	}
	ls.Fade()
	for _, c := range []*grpc.ClientConn{conn, dial(t, at[0].Address), dial(t, at[0].Health)} {
		if s, err := check(t, c, ""); err != nil || s != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health: %v, %v", s, err)
		}
		if s, err := check(t, c, "liveness"); err != nil || s != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("liveness: %v, %v", s, err)
		}
	}
	if _, _, err := ask(open(t, t.Context(), dial(t, at[0].Address)), prompt(10)); err != nil {
		t.Errorf("a new connection is not served: %v", err)
	}
}

// Every outcome of a pick by a picker elsewhere is on the page that says what to
// alert on.
func TestOutcomesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, outcome := range extproc.Outcomes() {
		if !strings.Contains(string(page), "`"+outcome+"`") {
			t.Errorf("docs/observe.md does not know %s", outcome)
		}
	}
}

// A port that has no ext_proc service is said to be another one.
func TestHealthPortForPicker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go s.Serve(l)
	t.Cleanup(s.Stop)
	p := newPool(t, 1)
	log := &logged{}
	c, err := extproc.NewClient(p, remotePicker(t, fmt.Sprintf("address: %q", l.Addr())), extproc.ClientOptions{Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	defer c.Close()
	_, err = c.Pick(context.Background(), extproc.Question(nil))
	if err == nil || !strings.Contains(err.Error(), "broken: Unimplemented: unknown service") || !strings.Contains(log.String(), "ext_proc is usually on 9002") {
		t.Errorf("%v\n%s", err, log)
	}
}
