// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// host listens for a handler, over HTTP/1.1 and HTTP/2 with prior knowledge,
// and can stop and start again on the same address.
type host struct {
	handler http.Handler

	mu      sync.Mutex // guards all below
	addr    string     // bound address; "" before listen
	server  *http.Server
	bound   net.Listener   // of server
	retired []*http.Server // of before a refusal, for the answers that still run
	quit    chan struct{}  // closed by close
	closed  bool
	running sync.WaitGroup
}

func newHost(handler http.Handler) *host { return &host{handler: handler, quit: make(chan struct{})} }

// listen binds the address and serves in the background.
func (h *host) listen(addr string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.addr != "" {
		return "", errors.New("sim: listen: the server is closed or listens already")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("sim: %w", err)
	}
	h.addr = l.Addr().String()
	h.serve(l)
	return h.addr, nil
}

// serve starts an incarnation; the caller holds mu.
func (h *host) serve(l net.Listener) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: h.handler, Protocols: protocols, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // aborted connections are what faults are for
	}
	h.server, h.bound = server, l
	h.running.Go(func() { _ = server.Serve(l) })
}

// refuse closes the listener and idle connections, all connections if hard,
// and listens again after d.
func (h *host) refuse(d time.Duration, hard bool, back func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server == nil || h.closed {
		return
	}
	old := h.server
	h.server = nil
	_ = h.bound.Close() // the server does not know it yet if it has just begun
	if hard {
		_ = old.Close()
	} else {
		// Shutdown closes the listener and idle connections before it looks at
		// the context.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = old.Shutdown(ctx)
		h.retired = append(h.retired, old)
	}
	h.running.Go(func() {
		for wait := d; ; wait = 100 * time.Millisecond {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-h.quit:
				timer.Stop()
				return
			}
			if h.comeBack(back) {
				return
			}
		}
	})
}

// comeBack listens again; false if another process has taken the port.
func (h *host) comeBack(back func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return true
	}
	l, err := net.Listen("tcp", h.addr)
	if err != nil {
		return false
	}
	back()
	h.serve(l)
	return true
}

// close ends the listening. Running answers may end until ctx is done. Once.
func (h *host) close(ctx context.Context) (err error) {
	h.mu.Lock()
	h.closed = true
	close(h.quit)
	servers := h.retired
	if h.server != nil {
		servers = append(servers, h.server)
	}
	h.mu.Unlock()
	for _, server := range servers {
		if e := server.Shutdown(ctx); e != nil {
			_ = server.Close()
			err = e
		}
	}
	h.running.Wait()
	return err
}
