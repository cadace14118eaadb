// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Store keeps the authority's keys, for replicas and restarts: a Secret.
type Store interface {
	// Load returns what was saved last, nil if nothing was.
	Load(ctx context.Context) ([]byte, error)
	// Save replaces old by new, and is [ErrConflict] when old is not what is
	// kept: somebody else was faster.
	Save(ctx context.Context, old, new []byte) error
}

// ErrConflict says that a Store holds something else than was thought.
var ErrConflict = errors.New("the stored authority has changed meanwhile")

// AuthorityOptions are the lives of what an Authority makes. The zero value
// works.
type AuthorityOptions struct {
	Store Store // nil: memory; then a restart is a new authority
	// Life of the authority's own certificate: a new one is made when a third
	// of it is left. Default one year.
	Life time.Duration
	// Settle is how long a new certificate of the authority is handed out as
	// trusted before anything is signed with it: the time that it takes for the
	// bundle to reach every gateway. Default 24h.
	Settle time.Duration
	Now    func() time.Time
}

// Authority signs the certificates of gateways and of the control plane itself.
// Its bundle is what gateways trust; see [Authority.Renew] for its rotation.
type Authority struct {
	o AuthorityOptions

	mu      sync.Mutex
	kept    []byte // as stored
	issuers []issuer
	serving map[string]*tls.Certificate // by names
}

// issuer is one generation of the authority, oldest first.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority loads the authority, or makes one and saves it.
func NewAuthority(ctx context.Context, o AuthorityOptions) (*Authority, error) {
	if o.Life <= 0 {
		o.Life = 365 * 24 * time.Hour
	}
	if o.Settle <= 0 {
		o.Settle = 24 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Store == nil {
		o.Store = &memoryStore{}
	}
	a := &Authority{o: o, serving: map[string]*tls.Certificate{}}
	_, err := a.Renew(ctx)
	return a, err
}

type memoryStore struct{ kept []byte }

func (m *memoryStore) Load(context.Context) ([]byte, error) { return m.kept, nil }

func (m *memoryStore) Save(_ context.Context, _, new []byte) error { m.kept = new; return nil }

// Renew takes over what the store holds, adds a new generation when the newest
// nears its end and drops those that have ended. To be called every hour or so;
// changed says that the bundle is another one.
func (a *Authority) Renew(ctx context.Context) (changed bool, err error) {
	for range 5 { // somebody else who renews too may be faster, hardly five times
		if changed, err = a.renew(ctx); !errors.Is(err, ErrConflict) {
			break
		}
	}
	return changed, err
}

func (a *Authority) renew(ctx context.Context) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept, err := a.o.Store.Load(ctx)
	if err != nil {
		return false, fmt.Errorf("load the authority: %w", err)
	}
	issuers, err := parseIssuers(kept)
	if err != nil {
		return false, fmt.Errorf("load the authority: %w", err)
	}
	now := a.o.Now()
	issuers = slices.DeleteFunc(issuers, func(i issuer) bool { return now.After(i.cert.NotAfter) })
	if n := len(issuers); n == 0 || issuers[n-1].cert.NotAfter.Sub(now) < a.o.Life/3 {
		made, err := newIssuer(now, a.o.Life)
		if err != nil {
			return false, err
		}
		issuers = append(issuers, made)
	}
	next, err := formatIssuers(issuers)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(next, kept) {
		if err := a.o.Store.Save(ctx, kept, next); err != nil {
			return false, fmt.Errorf("save the authority: %w", err)
		}
	}
	changed = !bytes.Equal(next, a.kept)
	if changed {
		a.kept, a.issuers = next, issuers
		clear(a.serving)
	}
	return changed, nil
}

func newIssuer(now time.Time, life time.Duration) (issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issuer{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return issuer{}, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "penstock control plane", SerialNumber: serial.Text(16)},
		NotBefore:    now.Add(-clockSkew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return issuer{}, err
	}
	cert, err := x509.ParseCertificate(der)
	return issuer{cert: cert, key: key}, err
}

// clockSkew is how far the clocks of two machines may differ.
const clockSkew = 5 * time.Minute

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

func formatIssuers(list []issuer) ([]byte, error) {
	var out bytes.Buffer
	for _, i := range list {
		der, err := x509.MarshalPKCS8PrivateKey(i.key)
		if err != nil {
			return nil, err
		}
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: i.cert.Raw})
		pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	return out.Bytes(), nil
}

func parseIssuers(text []byte) (list []issuer, err error) {
	var cert *x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
				return nil, err
			}
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			k, ok := key.(*ecdsa.PrivateKey)
			if !ok || cert == nil || !k.PublicKey.Equal(cert.PublicKey) {
				return nil, errors.New("a key does not belong to the certificate before it")
			}
			list, cert = append(list, issuer{cert: cert, key: k}), nil
		}
	}
	if len(list) == 0 && len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("holds no certificate with its key")
	}
	return list, nil
}

// Bundle is what gateways trust, PEM: every generation that has not ended.
func (a *Authority) Bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out bytes.Buffer
	for _, i := range a.issuers {
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: i.cert.Raw})
	}
	return out.Bytes()
}

func (a *Authority) roots() *x509.CertPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool := x509.NewCertPool()
	for _, i := range a.issuers {
		pool.AddCert(i.cert)
	}
	return pool
}

// issuerLocked is the newest generation that everybody trusts by now, or the
// oldest when none is old enough: nobody can trust another one yet.
func (a *Authority) issuerLocked() issuer {
	now := a.o.Now()
	for _, i := range slices.Backward(a.issuers) {
		if now.Sub(i.cert.NotBefore.Add(clockSkew)) >= a.o.Settle {
			return i
		}
	}
	return a.issuers[0]
}

func (a *Authority) issue(t *x509.Certificate, key any, life time.Duration) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	by := a.issuerLocked()
	now := a.o.Now()
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, now.Add(-clockSkew), now.Add(life)
	if t.NotAfter.After(by.cert.NotAfter) {
		t.NotAfter = by.cert.NotAfter
	}
	t.KeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	return x509.CreateCertificate(rand.Reader, t, by.cert, key, by.key)
}

// The identity of a gateway in its certificate:
// spiffe://penstock/ns/NAMESPACE/gateway/NAME.
const trustDomain = "penstock"

func identityOf(g Gateway) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: "/ns/" + g.Namespace + "/gateway/" + g.Name}
}

func gatewayIn(cert *x509.Certificate) (Gateway, error) {
	if len(cert.URIs) != 1 {
		return Gateway{}, errors.New("the certificate names no Gateway")
	}
	u := cert.URIs[0]
	parts := strings.Split(u.Path, "/")
	if u.Scheme != "spiffe" || u.Host != trustDomain || len(parts) != 5 || parts[1] != "ns" || parts[3] != "gateway" || parts[2] == "" || parts[4] == "" {
		return Gateway{}, errors.New("the certificate names no Gateway")
	}
	return Gateway{Namespace: parts[2], Name: parts[4]}, nil
}

// sign issues a client certificate over the key of a request. Of the request
// nothing but the key counts. instance tells replicas apart in logs and status.
func (a *Authority) sign(csr *x509.CertificateRequest, g Gateway, instance string, life time.Duration) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(instance) > 64 { // the bound of a common name (RFC 5280, A.1)
		instance = instance[:64]
	}
	der, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: instance},
		URIs:        []*url.URL{identityOf(g)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, csr.PublicKey, life)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// servingLife is the life of the control plane's own certificate, which is made
// anew when a third of it is left.
const servingLife = 24 * time.Hour

// ServerTLS is the control plane's side of a connection, under names: the hosts
// and addresses by which gateways reach it. It asks for a client certificate
// and leaves its verification to [Server], whose refusals have a reason.
func (a *Authority) ServerTLS(names ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.servingCertificate(names)
		},
	}
}

func (a *Authority) servingCertificate(names []string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := strings.Join(names, ",")
	if c := a.serving[id]; c != nil && c.Leaf.NotAfter.Sub(a.o.Now()) > servingLife/3 {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{Subject: pkix.Name{CommonName: "penstock controller"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := a.issue(t, key.Public(), servingLife)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	if c.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.serving[id] = c
	return c, nil
}

// verify says whom a client's certificate names, if this authority issued it
// and it has not ended.
func (a *Authority) verify(chain []*x509.Certificate) (g Gateway, instance string, ends time.Time, err error) {
	if len(chain) == 0 {
		return g, "", ends, errors.New("no client certificate was shown")
	}
	cert := chain[0]
	_, err = cert.Verify(x509.VerifyOptions{
		Roots: a.roots(), CurrentTime: a.o.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return g, "", ends, fmt.Errorf("client certificate: %w", err)
	}
	g, err = gatewayIn(cert)
	return g, cert.Subject.CommonName, cert.NotAfter, err
}
