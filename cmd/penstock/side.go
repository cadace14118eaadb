// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"time"
)

// sideServer serves the admin or the ops interface. A nil sideServer is one
// that is off.
type sideServer struct {
	address string // as configured
	socket  net.Listener
	http    *http.Server
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

func (s *sideServer) start() {
	if s != nil {
		go s.http.Serve(s.socket)
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
