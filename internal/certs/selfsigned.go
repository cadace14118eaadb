// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// SelfSigned is an identity that nobody vouches for, for servers whose clients
// encrypt and do not verify. The certificate is made when it is needed first,
// for name and every address of this machine, and again before it expires; it
// is never on disk.
type SelfSigned struct {
	Name      string   // common name
	Protocols []string // by ALPN

	mu   sync.Mutex
	pair *tls.Certificate
	ends time.Time
}

const (
	selfSignedFor = 365 * 24 * time.Hour
	renewBefore   = 30 * 24 * time.Hour
)

// Config makes the certificate and returns a configuration that serves it.
func (s *SelfSigned) Config() (*tls.Config, error) {
	if _, err := s.certificate(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: s.Protocols, GetCertificate: s.certificate}, nil
}

func (s *SelfSigned) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.pair != nil && now.Before(s.ends.Add(-renewBefore)) {
		return s.pair, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	names, ips := ownNames()
	cert := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: []string{"Penstock"}},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.Add(selfSignedFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names, IPAddresses: ips,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	s.pair, s.ends = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, cert.NotAfter
	return s.pair, nil
}

// maxAddresses bounds the addresses in a certificate.
const maxAddresses = 32

// ownNames are localhost, the host's name and the addresses of its interfaces.
func ownNames() (names []string, ips []net.IP) {
	names = []string{"localhost"}
	if host, err := os.Hostname(); err == nil && host != "" && host != "localhost" {
		names = append(names, host)
	}
	ips = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	addrs, _ := net.InterfaceAddrs() // without them the certificate has fewer names
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if ok && len(ips) < maxAddresses && !slices.ContainsFunc(ips, n.IP.Equal) && !n.IP.IsLinkLocalUnicast() {
			ips = append(ips, n.IP)
		}
	}
	return names, ips
}
