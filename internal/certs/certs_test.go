// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/certs"
)

// issued is a certificate with its key and who signed it.
type issued struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	by   *issued // nil: itself
}

// issue makes a certificate for name; by nil makes an authority of its own.
func issue(t *testing.T, name string, by *issued, change ...func(*x509.Certificate)) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true,
		IsCA:                  by == nil,
		DNSNames:              []string{name},
	}
	for _, f := range change {
		f(cert)
	}
	parent, signer := cert, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &issued{cert, key, by}
}

// write writes the certificate with those above it, and the key.
func (c *issued) write(t *testing.T, certFile, keyFile string) {
	t.Helper()
	var chain []byte
	for at := c; at != nil; at = at.by {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: at.cert.Raw})...)
	}
	write(t, certFile, chain)
	if keyFile != "" {
		der, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// files are paths in a folder of the test's own.
func files(t *testing.T, names ...string) (paths []string) {
	dir := t.TempDir()
	for _, n := range names {
		paths = append(paths, filepath.Join(dir, n))
	}
	return paths
}

// meeting is what came of a handshake.
type meeting struct {
	state          tls.ConnectionState // the client's
	client, server error
}

// meet lets the two sides shake hands. A byte is sent afterwards: with TLS 1.3 a
// client learns only then that its certificate is refused.
func meet(t *testing.T, client, server *tls.Config) (m meeting) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		c := tls.Server(conn, server)
		if err = c.Handshake(); err == nil {
			_, err = c.Write([]byte("x"))
		}
		c.Close()
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, client)
	if m.client = c.Handshake(); m.client == nil {
		_, m.client = c.Read(make([]byte, 1))
	}
	m.state = c.ConnectionState()
	conn.Close()
	m.server = <-done
	return m
}

// name is whom the client met, or why it did not.
func (m meeting) name() string {
	if err := errors.Join(m.client, m.server); err != nil {
		return err.Error()
	}
	return m.state.PeerCertificates[0].Subject.CommonName
}

// trusting is a client that verifies against an authority.
func trusting(ca *issued) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return &tls.Config{RootCAs: roots, ServerName: "server"}
}

// credulous is a client that verifies nothing.
func credulous() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

func TestServerFollowsItsFiles(t *testing.T) {
	paths := files(t, "tls.crt", "tls.key")
	synctest.Test(t, func(t *testing.T) {
		var complaints []string
		s := &certs.Server{Cert: paths[0], Key: paths[1], Complain: func(err error) { complaints = append(complaints, err.Error()) }}
		if _, err := s.Config(); err == nil || !strings.HasPrefix(err.Error(), "tls: ") {
			t.Fatalf("without files: %v", err)
		}
		issue(t, "first", nil).write(t, paths[0], paths[1])
		conf, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		see := func(when, want string) {
			t.Helper()
			if got := meet(t, credulous(), conf).name(); got != want {
				t.Errorf("%s: met %s, want %s", when, got, want)
			}
		}
		later := func() { time.Sleep(1001 * time.Millisecond) }
		see("at first", "first")
		second := issue(t, "second", nil)
		second.write(t, paths[0], paths[1])
		see("within the second", "first")
		later()
		see("after it", "second")

		write(t, paths[0], []byte("nonsense"))
		later()
		see("nonsense", "second")
		later()
		see("the same nonsense", "second")
		if len(complaints) != 1 || s.Fault() != complaints[0] || strings.Contains(s.Fault(), "tls: tls:") {
			t.Errorf("complaints %q, fault %q", complaints, s.Fault())
		}
		third := issue(t, "third", nil)
		third.write(t, paths[0], "")
		later()
		see("a certificate without its key", "second")
		os.Remove(paths[0])
		later()
		see("no file", "second")
		third.write(t, paths[0], paths[1])
		later()
		see("mended", "third")
		if len(complaints) != 3 || s.Fault() != "" {
			t.Errorf("complaints %q, fault %q", complaints, s.Fault())
		}
		s.Complain = nil
		write(t, paths[1], []byte("nonsense"))
		later()
		see("nobody to complain to", "third")
	})
}

func TestServerProtocols(t *testing.T) {
	paths := files(t, "tls.crt", "tls.key")
	synctest.Test(t, func(t *testing.T) {
		issue(t, "server", nil).write(t, paths[0], paths[1])
		s := &certs.Server{Cert: paths[0], Key: paths[1], Protocols: []string{"h2", "http/1.1"}}
		conf, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // before and after the files are read again
			for _, c := range []struct {
				offered []string
				want    string
			}{{[]string{"http/1.1", "h2"}, "h2"}, {[]string{"http/1.1"}, "http/1.1"}, {nil, ""}} {
				client := credulous()
				client.NextProtos = c.offered
				if m := meet(t, client, conf); m.name() != "server" || m.state.NegotiatedProtocol != c.want {
					t.Errorf("offered %v: %s, %q, want %q", c.offered, m.name(), m.state.NegotiatedProtocol, c.want)
				}
			}
			client := credulous()
			client.NextProtos = []string{"smtp"}
			if m := meet(t, client, conf); m.client == nil {
				t.Error("a client of another protocol is served")
			}
			issue(t, "server", nil).write(t, paths[0], paths[1])
			time.Sleep(2 * time.Second)
		}
		old := credulous()
		old.MaxVersion = tls.VersionTLS11
		if m := meet(t, old, conf); m.client == nil {
			t.Error("TLS 1.1 is spoken")
		}
	})
}

func TestServerAsksForCertificates(t *testing.T) {
	paths := files(t, "tls.crt", "tls.key", "ca.crt")
	synctest.Test(t, func(t *testing.T) {
		ours, others := issue(t, "ours", nil), issue(t, "others", nil)
		issue(t, "server", nil).write(t, paths[0], paths[1])
		ours.write(t, paths[2], "")
		s := &certs.Server{Cert: paths[0], Key: paths[1], ClientCA: paths[2]}
		conf, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		with := func(c *issued) *tls.Config {
			client := credulous()
			client.Certificates = []tls.Certificate{{Certificate: [][]byte{c.cert.Raw}, PrivateKey: c.key}}
			return client
		}
		forClients := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
		known, stranger := issue(t, "client", ours, forClients), issue(t, "client", others, forClients)
		if got := meet(t, with(known), conf).name(); got != "server" {
			t.Errorf("a known client: %s", got)
		}
		for name, client := range map[string]*tls.Config{"no certificate": credulous(), "a stranger's": with(stranger)} {
			if m := meet(t, client, conf); m.client == nil || m.server == nil {
				t.Errorf("%s is let in", name)
			}
		}
		others.write(t, paths[2], "")
		time.Sleep(2 * time.Second)
		if got := meet(t, with(stranger), conf).name(); got != "server" {
			t.Errorf("after the authority has changed: %s", got)
		}
		if m := meet(t, with(known), conf); m.server == nil {
			t.Error("who is not known any more is let in")
		}
		write(t, paths[2], []byte("no certificate")) // an authority that cannot be read lets nobody else in
		time.Sleep(2 * time.Second)
		if m := meet(t, credulous(), conf); m.server == nil {
			t.Error("a broken authority lets anybody in")
		}
		if got := meet(t, with(stranger), conf).name(); got != "server" {
			t.Errorf("with a broken authority: %s", got)
		}
		s = &certs.Server{Cert: paths[0], Key: paths[1], ClientCA: paths[2]}
		if _, err := s.Config(); err == nil {
			t.Error("a server begins with an authority that cannot be read")
		}
	})
}

func TestClientVerifies(t *testing.T) {
	paths := files(t, "ca.crt")
	ca := issue(t, "authority", nil)
	ca.write(t, paths[0], "")
	leaf := issue(t, "server", ca)
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}}}
	for _, c := range []struct {
		name   string
		client certs.Client
		met    bool
	}{
		{"the authority", certs.Client{CA: paths[0], ServerName: "server"}, true},
		{"another name", certs.Client{CA: paths[0], ServerName: "elsewhere"}, false},
		{"the system's authorities", certs.Client{ServerName: "server"}, false},
		{"nothing, which is said", certs.Client{InsecureSkipVerify: true}, true},
		{"nothing, not even with an authority", certs.Client{CA: paths[0], InsecureSkipVerify: true}, true},
	} {
		conf, err := c.client.Config()
		if err != nil {
			t.Fatal(err)
		}
		if conf.InsecureSkipVerify != c.client.InsecureSkipVerify {
			t.Errorf("%s: verification is off: %v", c.name, conf.InsecureSkipVerify)
		}
		if m := meet(t, conf, server); (m.client == nil) != c.met {
			t.Errorf("%s: %v", c.name, m.client)
		}
	}
}

func TestClientCertificate(t *testing.T) {
	paths := files(t, "client.crt", "client.key")
	own := issue(t, "client", nil)
	own.write(t, paths[0], paths[1])
	var seen []string
	server := &tls.Config{ClientAuth: tls.RequireAnyClientCert, VerifyConnection: func(s tls.ConnectionState) error {
		seen = append(seen, s.PeerCertificates[0].Subject.CommonName)
		return nil
	}}
	leaf := issue(t, "server", nil)
	server.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}}
	conf, err := certs.Client{Cert: paths[0], Key: paths[1], InsecureSkipVerify: true}.Config()
	if err != nil {
		t.Fatal(err)
	}
	if got := meet(t, conf, server).name(); got != "server" || !slices.Equal(seen, []string{"client"}) {
		t.Errorf("%s, the server saw %q", got, seen)
	}
}

func TestClientRefusesFiles(t *testing.T) {
	paths := files(t, "nothing", "text", "tls.crt", "tls.key", "other.key")
	write(t, paths[1], []byte("no PEM"))
	issue(t, "a", nil).write(t, paths[2], paths[3])
	issue(t, "b", nil).write(t, filepath.Join(t.TempDir(), "b"), paths[4])
	for _, c := range []struct {
		client certs.Client
		want   string
	}{
		{certs.Client{CA: paths[0]}, "tls.ca: "},
		{certs.Client{CA: paths[1]}, "tls.ca: "},
		{certs.Client{Cert: paths[2]}, "tls.cert: "},
		{certs.Client{Cert: paths[2], Key: paths[4]}, "tls.cert: "},
		{certs.Client{Cert: paths[1], Key: paths[3]}, "tls.cert: "},
	} {
		if _, err := c.client.Config(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.client, err, c.want)
		}
	}
}

func TestStamp(t *testing.T) {
	paths := files(t, "ca.crt", "tls.crt", "tls.key")
	c := certs.Client{CA: paths[0], Cert: paths[1], Key: paths[2]}
	seen := map[string]string{}
	fresh := func(when string) {
		t.Helper()
		s := c.Stamp()
		if before, ok := seen[s]; ok {
			t.Errorf("%s: the same as %s", when, before)
		}
		if seen[s] = when; c.Stamp() != s {
			t.Errorf("%s: two looks differ", when)
		}
	}
	fresh("no files")
	for _, p := range paths {
		write(t, p, []byte("text"))
		fresh(filepath.Base(p))
	}
	write(t, paths[1], []byte("longer text"))
	fresh("another size")
	if err := os.Chtimes(paths[2], time.Time{}, time.Unix(1e9, 1)); err != nil {
		t.Fatal(err)
	}
	fresh("another time")
	os.Remove(paths[0])
	fresh("one is gone")
	if s := certs.Stamp("", ""); s != "" {
		t.Errorf("no names: %q", s)
	}
}

func TestSelfSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &certs.SelfSigned{Name: "penstock test", Protocols: []string{"h2"}}
		conf, err := own.Config()
		if err != nil {
			t.Fatal(err)
		}
		serial := func() string {
			t.Helper()
			client := credulous()
			client.NextProtos = []string{"h2"}
			m := meet(t, client, conf)
			if m.name() != "penstock test" || m.state.NegotiatedProtocol != "h2" {
				t.Fatalf("met %s, protocol %q", m.name(), m.state.NegotiatedProtocol)
			}
			cert := m.state.PeerCertificates[0]
			for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
				if err := cert.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
			if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) || cert.IsCA {
				t.Errorf("valid from %s to %s, an authority: %v", cert.NotBefore, cert.NotAfter, cert.IsCA)
			}
			return cert.SerialNumber.String()
		}
		first := serial()
		if serial() != first {
			t.Error("each connection meets another certificate")
		}
		time.Sleep(334 * 24 * time.Hour)
		if serial() != first {
			t.Error("a certificate that is good for a month more was replaced")
		}
		time.Sleep(2 * 24 * time.Hour)
		if serial() == first {
			t.Error("a certificate that expires within the month is still served")
		}
		if m := meet(t, &tls.Config{ServerName: "localhost"}, conf); m.client == nil {
			t.Error("it is trusted without being told to")
		}
	})
}
