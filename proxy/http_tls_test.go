// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, c, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// sign makes a certificate for names, of which those with a scheme are URIs.
func (a *authority) sign(names ...string) (cert, key string) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if u, err := url.Parse(n); err == nil && u.Scheme != "" {
			c.URIs = append(c.URIs, u)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM([]byte(a.pem))
	return p
}

// tlsText is a ServerTLS in the configuration.
func tlsText(cert, key, more string) string {
	return fmt.Sprintf("{certPEM: %q, keyPEM: %q%s}", cert, key, more)
}

// secure asks over TLS: sni is the name of the handshake, identity may be nil.
// It returns the status, who answered and the certificate's name.
func (r *httpRig) secure(h2 bool, sni, host, path string, identity *tls.Certificate) (status int, who, cert string, err error) {
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, r.addr("l"))
	}, TLSClientConfig: &tls.Config{ServerName: sni, InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetHTTP2(h2)
	if identity != nil {
		tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return identity, nil }
	}
	req, _ := http.NewRequest("GET", "https://any"+path, nil)
	req.Host = host
	res, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), res.TLS.PeerCertificates[0].Subject.CommonName, err
}

func named(t testing.TB, name string) *httptest.Server {
	return serverFor(t, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, name) }))
}

// The server name of the handshake chooses section and certificate; a request
// for a host of another section is misdirected (the cases are those of the
// Gateway API's HTTPRouteHTTPSListenerDetectMisdirectedRequests).
func TestMisdirected(t *testing.T) {
	noLeaks(t)
	ca := newAuthority(t, "ca")
	section := func(name, host string, certName string) string {
		cert, key := ca.sign(certName)
		return fmt.Sprintf("{name: %s, host: %q, tls: %s}", name, host, tlsText(cert, key, ""))
	}
	r := newHTTPRig(t, `
listeners:
  - name: l
    address: "127.0.0.1:0"
    anonymous: true
    sections:
      - `+section("https", "", "any")+`
      - `+section("second", "second-example.org", "second")+`
      - `+section("wild", "*.wildcard.org", "wild")+`
      - `+section("fourth", "fourth-example.wildcard.org", "fourth")+`
pools: [{name: a, plain: true, members: {static: {a}}}, {name: b, plain: true, members: {static: {b}}}, {name: c, plain: true, members: {static: {c}}}]
httpRoutes:
  - {name: r1, parents: [{listener: l, section: https, hosts: [example.org]}], rules: [{backends: [{pool: a}]}]}
  - {name: r2, parents: [{listener: l, section: second}], rules: [{backends: [{pool: b}]}]}
  - {name: r3, parents: [{listener: l, section: wild}], rules: [{backends: [{pool: c}]}]}
  - {name: r4, parents: [{listener: l, section: fourth}], rules: [{backends: [{pool: a}]}]}
`, map[string][]*httptest.Server{"a": {named(t, "a")}, "b": {named(t, "b")}, "c": {named(t, "c")}})
	for _, c := range []struct {
		sni, host string
		status    int
		who, cert string
	}{
		{"example.org", "example.org", 200, "a", "any"},
		{"example.org", "second-example.org", 421, "", "any"},
		{"example.org", "unknown-example.org", 404, "", "any"},
		{"second-example.org", "second-example.org", 200, "b", "second"},
		{"SECOND-example.org", "Second-Example.org:443", 200, "b", "second"},
		{"second-example.org", "example.org", 421, "", "second"},
		{"second-example.org", "unknown-example.org", 421, "", "second"},
		{"third-example.wildcard.org", "third-example.wildcard.org", 200, "c", "wild"},
		{"third-example.wildcard.org", "fith-example.wildcard.org", 200, "c", "wild"},
		{"third-example.wildcard.org", "fourth-example.wildcard.org", 421, "", "wild"},
		{"third-example.wildcard.org", "second-example.org", 421, "", "wild"},
		{"fourth-example.wildcard.org", "fourth-example.wildcard.org", 200, "a", "fourth"},
		{"fourth-example.wildcard.org", "fith-example.wildcard.org", 421, "", "fourth"},
		{"unknown-example.org", "example.org", 200, "a", "any"},
		{"unknown-example.org", "unknown-example.org", 404, "", "any"},
		{"", "example.org", 200, "a", "any"},
		{"", "second-example.org", 421, "", "any"},
	} {
		for _, h2 := range []bool{true, false} {
			status, who, cert, err := r.secure(h2, c.sni, c.host, "/", nil)
			if status != 200 {
				who = ""
			}
			if status != c.status || who != c.who || cert != c.cert || err != nil {
				t.Errorf("%+v, HTTP/2 %v: %d %q %q %v", c, h2, status, who, cert, err)
			}
		}
	}
}

// A section may ask its clients for certificates: one that is not vouched for
// ends the handshake, or passes where the section takes it. The section cannot
// be reached through another.
func TestClientCertificates(t *testing.T) {
	noLeaks(t)
	ca, others := newAuthority(t, "ca"), newAuthority(t, "others")
	identity := func(a *authority) *tls.Certificate {
		cert, key := a.sign("client")
		pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	section := func(name, host, more string) string {
		cert, key := ca.sign(name)
		return fmt.Sprintf("{name: %s, host: %q, tls: %s}", name, host, tlsText(cert, key, more))
	}
	demand := fmt.Sprintf(", clientCAPEM: %q", ca.pem)
	r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true, sections: [`+section("strict", "strict.org", demand)+`, `+section("lax", "lax.org", demand+", acceptInvalid: true")+`, `+section("open", "open.org", "")+`]}]
pools: [{name: a, plain: true, members: {static: {a}}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: a}]}]}]
`, map[string][]*httptest.Server{"a": {named(t, "a")}})
	good, bad := identity(ca), identity(others)
	for _, c := range []struct {
		sni, host string
		id        *tls.Certificate
		want      int // 0: no handshake
	}{
		{"strict.org", "strict.org", good, 200}, {"strict.org", "strict.org", bad, 0}, {"strict.org", "strict.org", nil, 0},
		{"lax.org", "lax.org", good, 200}, {"lax.org", "lax.org", bad, 200}, {"lax.org", "lax.org", nil, 200},
		{"open.org", "open.org", nil, 200}, {"open.org", "strict.org", nil, 421}, {"lax.org", "strict.org", bad, 421},
		{"other.org", "open.org", nil, 0}, {"", "strict.org", nil, 0},
	} {
		for _, h2 := range []bool{true, false} {
			if status, _, _, err := r.secure(h2, c.sni, c.host, "/", c.id); status != c.want || (err != nil) != (c.want == 0) {
				t.Errorf("%s %s (certificate %v), HTTP/2 %v: %d %v", c.sni, c.host, c.id != nil, h2, status, err)
			}
		}
	}
}

// Sections and certificates change under load without a connection lost and
// without the socket being bound anew.
func TestSectionsSwap(t *testing.T) {
	noLeaks(t)
	ca := newAuthority(t, "ca")
	text := func(generation int) string {
		cert, key := ca.sign(fmt.Sprintf("g%d", generation), "a.org", "b.org")
		extra := ""
		if generation%2 == 1 {
			extra = fmt.Sprintf(", {name: more, host: b.org, tls: %s}", tlsText(cert, key, ""))
		}
		return fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true, sections: [{name: a, host: a.org, tls: %s}%s]}]
pools: [{name: a, plain: true, members: {static: {a}}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: a}]}]}]
`, tlsText(cert, key, ""), extra)
	}
	servers := map[string][]*httptest.Server{"a": {named(t, "a")}}
	r := newHTTPRig(t, text(0), servers)
	address := r.addr("l")
	var stop atomic.Bool
	var load sync.WaitGroup
	var served atomic.Int64
	for range 4 {
		load.Go(func() {
			tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: ca.pool(), ServerName: "a.org"}, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}}
			defer tr.CloseIdleConnections()
			for i := 0; !stop.Load(); i++ {
				res, err := (&http.Client{Transport: tr}).Get("https://a.org/")
				if err != nil || res.StatusCode != 200 {
					t.Errorf("request %d: %v %v", i, res, err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				served.Add(1)
				if i%5 == 0 {
					tr.CloseIdleConnections()
				}
			}
		})
	}
	for generation := 1; generation <= 12; generation++ {
		r.apply(text(generation), servers)
		status, _, cert, err := r.secure(generation%4 < 2, "a.org", "a.org", "/", nil)
		if want := fmt.Sprintf("g%d", generation); status != 200 || cert != want || err != nil {
			t.Errorf("generation %d: %d %q %v", generation, status, cert, err)
		}
		if status, _, _, err := r.secure(true, "b.org", "b.org", "/", nil); (status == 200) != (generation%2 == 1) {
			t.Errorf("generation %d: b.org %d %v", generation, status, err)
		}
	}
	stop.Store(true)
	load.Wait()
	if r.addr("l") != address || served.Load() == 0 {
		t.Errorf("bound anew: %s, served %d", r.addr("l"), served.Load())
	}
}

// Backends prove themselves by the name that is expected or by one of several,
// and the gateway shows its own certificate. Without proof there is no request.
func TestBackendTLS(t *testing.T) {
	noLeaks(t)
	ca, others := newAuthority(t, "ca"), newAuthority(t, "others")
	cert, key := ca.sign("abc.example.com", "spiffe://abc.example.com/test-identity")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := ""
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "%s %s", r.TLS.ServerName, who)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	mine, mineKey := ca.sign("gateway")
	for _, c := range []struct {
		tls, want string
	}{
		{fmt.Sprintf("{caPEM: %q, serverName: abc.example.com}", ca.pem), "200 abc.example.com "},
		{fmt.Sprintf("{caPEM: %q, serverName: abc.example.com, certPEM: %q, keyPEM: %q}", ca.pem, mine, mineKey), "200 abc.example.com gateway"},
		{fmt.Sprintf("{caPEM: %q, serverName: other.example.com}", ca.pem), "503"},
		{fmt.Sprintf("{caPEM: %q, serverName: abc.example.com}", others.pem), "503"},
		{"{serverName: abc.example.com}", "503"},
		{fmt.Sprintf(`{caPEM: %q, serverName: sni.example.com, subjectAltNames: ["dns:x.example.com", "dns:abc.example.com"]}`, ca.pem), "200 sni.example.com "},
		{fmt.Sprintf(`{caPEM: %q, serverName: sni.example.com, subjectAltNames: ["uri:spiffe://abc.example.com/test-identity"]}`, ca.pem), "200 sni.example.com "},
		{fmt.Sprintf(`{caPEM: %q, serverName: abc.example.com, subjectAltNames: ["dns:x.example.com"]}`, ca.pem), "503"},
		{fmt.Sprintf(`{caPEM: %q, serverName: abc.example.com, subjectAltNames: ["uri:spiffe://abc.example.com/other"]}`, ca.pem), "503"},
		{fmt.Sprintf(`{caPEM: %q, serverName: abc.example.com, subjectAltNames: ["dns:abc.example.com"]}`, others.pem), "503"},
	} {
		r := newHTTPRig(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: a, plain: true, protocol: https, tls: `+c.tls+`, members: {static: {a}}}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{backends: [{pool: a}]}]}]
`, map[string][]*httptest.Server{"a": {s}})
		res, _ := r.ask("l", "GET", "", "/", nil)
		b, _ := io.ReadAll(res.Body)
		if got := fmt.Sprintf("%d %s", res.StatusCode, b); !strings.HasPrefix(got, c.want) || res.StatusCode == 200 && got != c.want {
			t.Errorf("%.60s…: %s, want %s", c.tls, got, c.want)
		}
	}
}
