// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/xds"
)

func TestTokensThatProveNothing(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	for _, x := range []struct{ token, want string }{
		{"other-audience/prod/penstock-public/p", "not for audience"},
		{xds.Audience + "/prod/penstock-public/expired", "expired"},
		{xds.Audience + "/prod/default/p", "PermissionDenied"},
		{"", "bearer token is needed"},
	} {
		g := &gateway{target: &target{}, t: t, token: t.TempDir() + "/token"}
		write(t, g.token, x.token)
		g.run(c.options4("p", g))
		eventually(t, x.want, func() bool { return strings.Contains(g.client.Status().Error, x.want) })
		if s := g.client.Status(); s.Connected || s.Version != "" {
			t.Errorf("%q: %+v", x.token, s)
		}
		// What the kubelet writes later is read at the next attempt.
		write(t, g.token, xds.Audience+"/prod/penstock-public/p")
		eventually(t, "configuration", func() bool { return g.has() })
		g.stop()
	}
}

func TestReviewerAway(t *testing.T) {
	c := newController(t)
	c.reviewer.away.Store(true)
	c.server.Publish(gw, configOf())
	g := c.gateway(gw, "p")
	eventually(t, "error", func() bool { return strings.Contains(g.client.Status().Error, "cannot be reviewed") })
	c.reviewer.away.Store(false)
	eventually(t, "configuration", func() bool { return g.has() })
}

// A gateway sees one Gateway's resources, whatever it asks for.
func TestGatewaysAreApart(t *testing.T) {
	c := newController(t)
	other := xds.Gateway{Namespace: "prod", Name: "other"}
	c.server.SetMembers(gw, "mine", members("10.0.0.1:1"))
	c.server.SetMembers(other, "theirs", members("10.0.0.2:1"))
	c.server.Publish(gw, configOf("mine"))
	c.server.Publish(other, configOf("theirs"))
	a, b := c.gateway(gw, "a"), c.gateway(other, "b")
	eventually(t, "both", func() bool { return a.has("mine") && b.has("theirs") })
	for range 20 {
		c.server.SetMembers(other, "theirs", members(fmt.Sprintf("10.0.1.%d:1", time.Now().UnixNano()%250+1)))
		time.Sleep(5 * time.Millisecond)
	}
	for name, g := range map[string]*gateway{"theirs": a, "mine": b} {
		if _, m, _, _ := g.view(); len(m) != 1 || m[name] != nil {
			t.Errorf("a gateway was given %v", m)
		}
	}
}

// ads opens a stream as a client with that certificate would.
func ads(t *testing.T, c *controller, pair *tls.Certificate) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, error) {
	roots := x509.NewCertPool()
	pem, _ := os.ReadFile(c.ca)
	roots.AppendCertsFromPEM(pem)
	conf := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	if pair != nil {
		conf.Certificates = []tls.Certificate{*pair}
	}
	conn, err := grpc.NewClient("passthrough:///"+c.address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	if md, err := stream.Header(); err != nil || md == nil {
		_, err = stream.Recv()
		return nil, err
	}
	return stream, nil
}

// forged is a certificate that some other authority issued, or nobody did.
func forged(t *testing.T, id string, use x509.ExtKeyUsage) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(id)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "p"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{u}, ExtKeyUsage: []x509.ExtKeyUsage{use}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestStrangersAreRefused(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	for name, pair := range map[string]*tls.Certificate{
		"no certificate":    nil,
		"another authority": forged(t, "spiffe://penstock/ns/prod/gateway/public", x509.ExtKeyUsageClientAuth),
	} {
		if _, err := ads(t, c, pair); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhoIsNotAskedRight(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	pair := xds.Certify(t, c.authority, gw, "p", time.Hour)
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
		{TypeUrl: xds.MembersType, ResourceNamesSubscribe: []string{"llama"}},
	} {
		stream, err := ads(t, c, pair)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
	// Of a Gateway that nobody published.
	if _, err := ads(t, c, xds.Certify(t, c.authority, xds.Gateway{Namespace: "x", Name: "y"}, "p", time.Hour)); status.Code(err) != codes.Unavailable {
		t.Errorf("unknown Gateway: %v", err)
	}
	// A certificate that has ended is of no more use, also to a stream.
	stream, err := ads(t, c, xds.Certify(t, c.authority, gw, "p", 4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("expired: %v", err)
	}
}

func TestCertificateIsRenewed(t *testing.T) {
	c := newController(t, func(o *xds.ServerOptions) { o.CertificateLife = 1500 * time.Millisecond })
	c.server.SetMembers(gw, "llama", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("llama"))
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has("llama") })
	eventually(t, "renewals", func() bool { return c.reviewer.calls.Load() >= 4 })
	c.server.SetMembers(gw, "llama", members("10.0.0.2:1"))
	eventually(t, "members", func() bool { _, m, _, _ := g.view(); return m["llama"][0].Address == "10.0.0.2:1" })
	if _, _, applies, sets := g.view(); applies != 1 || sets != 2 {
		t.Errorf("%d configurations and %d members, want each once: renewing sends nothing again", applies, sets)
	}
}

// store is the Secret that replicas share.
type store struct {
	mu   sync.Mutex
	kept []byte
	busy int // conflicts to come
}

func (s *store) Load(context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept, nil
}

func (s *store) Save(_ context.Context, old, new []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(old) != string(s.kept) || s.busy > 0 {
		s.busy--
		return xds.ErrConflict
	}
	s.kept = new
	return nil
}

func TestAuthorityIsShared(t *testing.T) {
	s := &store{}
	a, err := xds.NewAuthority(t.Context(), xds.AuthorityOptions{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	s.busy = 2
	b, err := xds.NewAuthority(t.Context(), xds.AuthorityOptions{Store: s})
	if err != nil || string(a.Bundle()) != string(b.Bundle()) {
		t.Fatalf("%v, or two authorities", err)
	}
	s.kept = []byte("nonsense")
	if _, err := xds.NewAuthority(t.Context(), xds.AuthorityOptions{Store: s}); err == nil {
		t.Error("nonsense is taken")
	}
	if changed, err := a.Renew(t.Context()); err == nil || changed {
		t.Error("nonsense replaces what is there")
	}
}

// A new authority is trusted for a while before it signs, and the old one for
// as long as it lasts.
func TestAuthorityRotates(t *testing.T) {
	now := time.Now()
	s := &store{}
	a, err := xds.NewAuthority(t.Context(), xds.AuthorityOptions{Store: s, Life: 90 * 24 * time.Hour, Settle: 24 * time.Hour, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	first := a.Bundle()
	issuer := func() string { return string(xds.Certify(t, a, gw, "p", time.Hour).Leaf.Issuer.SerialNumber) }
	one := issuer()
	step := func(d time.Duration, changed bool, certificates int) {
		t.Helper()
		now = now.Add(d)
		if got, err := a.Renew(t.Context()); err != nil || got != changed {
			t.Fatalf("changed %v, %v", got, err)
		}
		if n := strings.Count(string(a.Bundle()), "BEGIN CERTIFICATE"); n != certificates {
			t.Fatalf("%d certificates", n)
		}
	}
	step(59*24*time.Hour, false, 1)
	step(2*24*time.Hour, true, 2)
	if issuer() != one {
		t.Error("signed by an authority that nobody trusts yet")
	}
	if !strings.HasPrefix(string(a.Bundle()), string(first)) {
		t.Error("the old authority is trusted no more")
	}
	step(25*time.Hour, false, 2)
	if issuer() == one {
		t.Error("still signed by the old authority")
	}
	step(31*24*time.Hour, true, 1)
}

// The bundle that a gateway mounts is read anew for each connection.
func TestBundleRotates(t *testing.T) {
	c := newController(t)
	c.server.Publish(gw, configOf())
	g := c.gateway(gw, "p")
	eventually(t, "configuration", func() bool { return g.has() })
	c.stop()
	var err error
	if c.authority, err = xds.NewAuthority(t.Context(), xds.AuthorityOptions{}); err != nil {
		t.Fatal(err)
	}
	c.options.Authority = c.authority
	c.start()
	c.server.Lead(true)
	c.server.SetMembers(gw, "llama", members("10.0.0.1:1"))
	c.server.Publish(gw, configOf("llama"))
	eventually(t, "distrust", func() bool { return strings.Contains(g.client.Status().Error, "x509") })
	write(t, c.ca, string(c.authority.Bundle()))
	eventually(t, "configuration", func() bool { return g.has("llama") })
}

func TestCertificateRequests(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(key any, names ...string) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: names}, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	good := request(p256)
	forged := append([]byte{}, good...)
	forged[len(forged)-3] ^= 1 // in the signature
	for name, der := range map[string][]byte{
		"another curve": request(p384), "nonsense": []byte("x"), "empty": nil, "not signed by its key": forged,
		"large": request(p256, strings.Repeat("a.", 3000)+"b"),
	} {
		if err := xds.CheckRequest(der); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := xds.CheckRequest(good); err != nil {
		t.Error(err)
	}
}

func TestIdentityInCertificate(t *testing.T) {
	for uri, want := range map[string]string{
		"spiffe://penstock/ns/a/gateway/b":      "a/b",
		"spiffe://penstock/ns/a/gateway/b/c":    "",
		"spiffe://penstock/ns//gateway/b":       "",
		"spiffe://penstock/ns/a/gateway/":       "",
		"spiffe://penstock/ns/a/sa/b":           "",
		"spiffe://cluster.local/ns/a/gateway/b": "",
		"https://penstock/ns/a/gateway/b":       "",
	} {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		g, err := xds.GatewayIn(&x509.Certificate{URIs: []*url.URL{u}})
		if got := g.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%s: %s, %v", uri, got, err)
		}
	}
	if _, err := xds.GatewayIn(&x509.Certificate{}); err == nil {
		t.Error("no URI is taken")
	}
}
