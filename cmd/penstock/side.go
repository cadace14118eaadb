// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
)

// sideServer serves the admin or the ops interface. A nil sideServer is one
// that is off.
type sideServer struct {
	address string // as configured
	socket  net.Listener
	http    *http.Server
	tls     *config.ServerTLS // nil: plaintext
	// current is what a handshake meets; nil: plaintext. It changes without the
	// socket.
	current atomic.Pointer[tls.Config]
}

// opsWrite is the time of one answer of the ops interface, which others reach.
// The admin interface has none: a profile takes as long as was asked for.
const opsWrite = 10 * time.Second

// listenSide binds address; it does not serve before start. handler is asked
// only when there is an address.
// write bounds the time of one answer, 0 is no bound: a client that takes no
// bytes would hold one of the few places of the metrics page for ever.
func listenSide(address string, write time.Duration, handler func(address string) http.Handler) (*sideServer, error) {
	if address == "" || address == "off" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &sideServer{address: address, socket: l, http: &http.Server{
		Handler: handler(address), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: write, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}}, nil
}

// secure reads a certificate, or none; from commit on connections meet it.
func (s *sideServer) secure(c *config.ServerTLS, log *slog.Logger) (commit func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	if c == nil {
		return func() { s.tls = nil; s.current.Store(nil) }, nil
	}
	files := &certs.Server{
		Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM.Reveal(), ClientCAPEM: c.ClientCAPEM,
		AcceptInvalid: c.AcceptInvalid, Protocols: []string{"http/1.1"},
		Complain: func(err error) {
			log.Error("certificate not reloaded; the old one stays", "cert", c.Cert, "error", err)
		},
	}
	conf, err := files.Config()
	if err != nil {
		return nil, err
	}
	return func() { s.tls = c; s.current.Store(conf) }, nil
}

// sideListener gives connections TLS, where there is a certificate at that time.
type sideListener struct {
	net.Listener
	s *sideServer
}

func (l sideListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if conf := l.s.current.Load(); err == nil && conf != nil {
		return tls.Server(c, conf), nil
	}
	return c, err
}

func (s *sideServer) start() {
	if s != nil {
		go s.http.Serve(sideListener{s.socket, s})
	}
}

func (s *sideServer) close() {
	if s != nil {
		s.socket.Close()
		s.http.Close()
	}
}

func (s *sideServer) addr() string {
	if s == nil {
		return ""
	}
	return s.socket.Addr().String()
}

func addressOf(s *sideServer) string {
	if s == nil {
		return ""
	}
	return s.address
}
