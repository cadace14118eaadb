// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// credential is a gateway's certificate with its key, which is made here and
// is never written anywhere. Only the goroutine of Run uses it.
type credential struct {
	pair *tls.Certificate
	from time.Time // when it was issued
	ends time.Time
}

func (k *credential) usable() bool { return k.pair != nil && time.Now().Before(k.ends) }

// renewAt is when two thirds of its life have passed.
func (k *credential) renewAt() time.Time { return k.from.Add(k.ends.Sub(k.from) * 2 / 3) }

func (k *credential) due() bool { return !k.usable() || time.Now().After(k.renewAt()) }

// again is when to try next after a renewal has failed.
func (k *credential) again() time.Duration {
	return max(min(time.Until(k.ends)/4, time.Minute), time.Second)
}

// obtain gets a certificate for a new key from the controller at address. It
// shows no certificate there: the token alone counts, so that an account that
// is no longer there gets none.
func (c *Client) obtain(ctx context.Context, address string) (k credential, err error) {
	token, err := os.ReadFile(c.o.TokenFile)
	if err != nil {
		return k, fmt.Errorf("token: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return k, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return k, err
	}
	conn, err := c.dial(address, nil)
	if err != nil {
		return k, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	now := time.Now()
	out := &wrapperspb.BytesValue{}
	if err := conn.Invoke(ctx, signPath, &wrapperspb.BytesValue{Value: request}, out); err != nil {
		return k, fmt.Errorf("certificate: %w", err)
	}
	block, _ := pem.Decode(out.GetValue())
	if block == nil {
		return k, errors.New("certificate: the answer holds none")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return k, fmt.Errorf("certificate: %w", err)
	}
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return k, errors.New("certificate: it is for another key")
	}
	// Its life is counted from now: the clocks may differ.
	ends := now.Add(leaf.NotAfter.Sub(leaf.NotBefore) - clockSkew)
	c.o.Metrics.certificate.Set(float64(ends.Unix()))
	return credential{pair: &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}, from: now, ends: ends}, nil
}

// tls trusts what the file holds at this moment: the bundle rotates.
func (c *Client) tls() (*tls.Config, error) {
	text, err := os.ReadFile(c.o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authorities: %s holds no PEM certificate", c.o.CAFile)
	}
	host, _, err := net.SplitHostPort(c.o.Address)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: host}, nil
}
