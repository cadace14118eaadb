// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
)

// Certify is a client certificate as a gateway gets it.
func Certify(t testing.TB, a *Authority, g Gateway, instance string, life time.Duration) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.sign(&x509.CertificateRequest{PublicKey: key.Public()}, g, instance, life)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}
}

// DecodeMembers and EncodeMembers are the members resource.
func DecodeMembers(raw []byte) ([]config.Member, error) { return decodeMembers(raw) }

// EncodeMembers is the other direction.
func EncodeMembers(list []config.Member) []byte { return encodeMembers(list) }

// ReformState reads a state file and writes it again.
func ReformState(text []byte) ([]byte, error) {
	s, err := parseState(text)
	if err != nil {
		return nil, err
	}
	return formatState(s)
}

// StateFile is the name of the file in the state directory.
const StateFile = stateFile

// CheckRequest reads a certificate request.
func CheckRequest(der []byte) error { _, err := parseRequest(der); return err }

// GatewayIn is the identity in a certificate.
func GatewayIn(cert *x509.Certificate) (Gateway, error) { return gatewayIn(cert) }
