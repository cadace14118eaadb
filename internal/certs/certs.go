// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package certs reads TLS identities from PEM files, or from PEM text.
//
// When files are looked at again is for the caller, who has a place where a
// new identity can be put to use; [Client.Stamp] tells whether there is one.
//
// Start reading at [Client].
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Client says whom a client trusts and who it is. The fields are those of
// config.ClientTLS.
type Client struct {
	CA                 string // PEM file with the authorities; "": the system's
	Cert               string // PEM file with the own certificate; "": none
	Key                string
	ServerName         string // "": the host that is dialled
	InsecureSkipVerify bool
	// The same as PEM text.
	CAPEM, CertPEM, KeyPEM string
	// SubjectAltNames, of which the certificate must have one, in place of
	// ServerName: "dns:NAME" or "uri:URI".
	SubjectAltNames []string
	Pins            []string // see [Pin]
}

// IsZero says that c asks for nothing beyond a plain TLS client.
func (c Client) IsZero() bool {
	return c.CA == "" && c.Cert == "" && c.Key == "" && c.ServerName == "" && !c.InsecureSkipVerify &&
		c.CAPEM == "" && c.CertPEM == "" && c.KeyPEM == "" && len(c.SubjectAltNames) == 0 && len(c.Pins) == 0
}

// Config reads the files.
func (c Client) Config() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify}
	var err error
	if conf.RootCAs, err = authorities(c.CA, c.CAPEM); err != nil {
		return nil, fmt.Errorf("tls.ca: %w", err)
	}
	pair, err := keyPair(c.Cert, c.Key, c.CertPEM, c.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("tls.cert: %w", err)
	}
	if pair != nil {
		conf.Certificates = []tls.Certificate{*pair}
	}
	if err := Pin(conf, c.Pins); err != nil {
		return nil, err
	}
	if len(c.SubjectAltNames) > 0 && !c.InsecureSkipVerify {
		// crypto/tls knows one name and no URIs: it leaves all to verify, which
		// runs on resumed sessions too.
		conf.InsecureSkipVerify = true
		pinned := conf.VerifyConnection
		conf.VerifyConnection = func(s tls.ConnectionState) error {
			var err error
			if s.VerifiedChains, err = verify(s, conf.RootCAs, c.SubjectAltNames); err != nil || pinned == nil {
				return err
			}
			return pinned(s)
		}
	}
	return conf, nil
}

// verify is the chains of the certificate, which must have one of the names.
func verify(s tls.ConnectionState, roots *x509.CertPool, names []string) ([][]*x509.Certificate, error) {
	if len(s.PeerCertificates) == 0 {
		return nil, errors.New("tls: the server showed no certificate")
	}
	leaf := s.PeerCertificates[0]
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(o)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if dns, ok := strings.CutPrefix(name, "dns:"); ok && leaf.VerifyHostname(dns) == nil {
			return chains, nil
		}
		if uri, ok := strings.CutPrefix(name, "uri:"); ok {
			for _, u := range leaf.URIs {
				if u.String() == uri {
					return chains, nil
				}
			}
		}
	}
	return nil, errors.New("tls: the server's certificate has none of the names that are expected")
}

// authorities are those of a file or a text; nil: the system's.
func authorities(file, text string) (*x509.CertPool, error) {
	if file == "" && text == "" {
		return nil, nil
	}
	pem, from := []byte(text), "the text"
	if file != "" {
		var err error
		if pem, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		from = file
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", from)
	}
	return pool, nil
}

// keyPair is the certificate of two files or of two texts; nil: none is named.
func keyPair(cert, key, certText, keyText string) (*tls.Certificate, error) {
	var pair tls.Certificate
	var err error
	switch {
	case certText != "" || keyText != "":
		pair, err = tls.X509KeyPair([]byte(certText), []byte(keyText))
	case cert != "" || key != "":
		pair, err = tls.LoadX509KeyPair(cert, key)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// Stamp differs when one of the files has changed.
func (c Client) Stamp() string { return Stamp(c.CA, c.Cert, c.Key) }

// Stamp is a text that differs when one of the files has changed; names may be
// empty. A file that cannot be seen is a state of its own.
func Stamp(files ...string) string {
	var b strings.Builder
	for _, name := range files {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err != nil {
			fmt.Fprintf(&b, "%s: %v;", name, err)
		} else {
			fmt.Fprintf(&b, "%s: %d %d;", name, info.ModTime().UnixNano(), info.Size())
		}
	}
	return b.String()
}
