// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
)

// Pin makes a client's configuration ask, besides what it verifies, for a public
// key that is known: a pin is the SHA-256 of one (SubjectPublicKeyInfo) in
// base64, as in RFC 7469. One of them must be in the verified chain, the server's
// own or an authority's; where nothing is verified it must be the server's own,
// since anybody can send along the certificate of an authority.
func Pin(conf *tls.Config, pins []string) error {
	known := map[[sha256.Size]byte]bool{}
	for _, p := range pins {
		sum, err := base64.StdEncoding.DecodeString(p)
		if err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("tls.pins: %q is not a SHA-256 in base64", p)
		}
		known[[sha256.Size]byte(sum)] = true
	}
	if len(known) == 0 {
		return nil
	}
	pinned := func(chain []*x509.Certificate) bool {
		for _, c := range chain {
			if known[sha256.Sum256(c.RawSubjectPublicKeyInfo)] {
				return true
			}
		}
		return false
	}
	unverified := conf.InsecureSkipVerify
	// Unlike VerifyPeerCertificate it is asked on resumption too.
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		chains := s.VerifiedChains
		if unverified && len(s.PeerCertificates) > 0 {
			chains = [][]*x509.Certificate{s.PeerCertificates[:1]}
		}
		for _, chain := range chains {
			if pinned(chain) {
				return nil
			}
		}
		return errNotPinned
	}
	return nil
}

var errNotPinned = errors.New("tls.pins: none of the public keys that the server has proven is pinned")
