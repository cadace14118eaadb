// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package certs reads TLS identities from PEM files.
//
// When files are looked at again is for the caller, who has a place where a
// new identity can be put to use; [Client.Stamp] tells whether there is one.
//
// Start reading at [Client].
package certs

import (
	"crypto/tls"
	"crypto/x509"
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
}

// Config reads the files.
func (c Client) Config() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no PEM certificate", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
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
