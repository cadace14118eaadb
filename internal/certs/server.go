// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Server is a server's identity in PEM files or in PEM text. Files are looked at
// on a handshake, at most once a second, and read again when they have changed;
// what cannot be read changes nothing.
type Server struct {
	Cert, Key string
	ClientCA  string // set: a client certificate is required
	// The same as PEM text.
	CertPEM, KeyPEM, ClientCAPEM string
	AcceptInvalid                bool        // ask for a client certificate and take any, or none
	Protocols                    []string    // by ALPN
	Complain                     func(error) // about files that cannot be read, once for each change; nil: to nobody

	mu     sync.Mutex
	looked time.Time
	stamp  string
	bad    string // the stamp that was complained about
	fault  error  // why the newest files are not in use
	conf   *tls.Config
}

// Config reads the files for the first time and returns a configuration that
// follows them.
func (s *Server) Config() (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: s.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil },
	}, nil
}

// Current is the configuration of this moment, for one handshake. Config must
// have succeeded before.
func (s *Server) Current() *tls.Config { return s.current() }

// prefixed begins with tls: once, as errors of crypto/tls do themselves.
func prefixed(err error) error {
	if strings.HasPrefix(err.Error(), "tls: ") {
		return err
	}
	return fmt.Errorf("tls: %w", err)
}

// lookEvery bounds how often the files are looked at.
const lookEvery = time.Second

func (s *Server) current() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	return s.conf
}

// Fault is why the newest files are not in use, "" if they are.
func (s *Server) Fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	if s.fault == nil {
		return ""
	}
	return s.fault.Error()
}

// look follows the files. The lock is held.
func (s *Server) look() {
	if time.Since(s.looked) <= lookEvery {
		return
	}
	stamp := Stamp(s.Cert, s.Key, s.ClientCA)
	s.fault = s.load()
	if s.fault != nil && stamp != s.bad && s.Complain != nil {
		s.Complain(s.fault)
	}
	if s.bad = stamp; s.fault == nil {
		s.bad = ""
	}
}

func (s *Server) load() error {
	s.looked = time.Now()
	stamp := Stamp(s.Cert, s.Key, s.ClientCA)
	if s.conf != nil && stamp == s.stamp {
		return nil
	}
	pair, err := keyPair(s.Cert, s.Key, s.CertPEM, s.KeyPEM)
	if err != nil {
		return prefixed(err)
	}
	if pair == nil {
		return errors.New("tls: there is no certificate")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair}, NextProtos: s.Protocols}
	if conf.ClientCAs, err = authorities(s.ClientCA, s.ClientCAPEM); err != nil {
		return prefixed(err)
	}
	switch {
	case s.AcceptInvalid:
		conf.ClientAuth = tls.RequestClientCert
	case conf.ClientCAs != nil:
		conf.ClientAuth = tls.RequireAndVerifyClientCert
		// A ticket vouches for a certificate that was checked at another time,
		// maybe against other authorities: each handshake here is a whole one.
		conf.SessionTicketsDisabled = true
	}
	s.conf, s.stamp = conf, stamp
	return nil
}
