// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// frontendKey is one place where a Service answers.
type frontendKey struct {
	at       netip.AddrPort
	protocol v1.Protocol
}

// frontend forwards from one place to the endpoints of the moment.
type frontend struct {
	io.Closer
	endpoints atomic.Pointer[[]netip.AddrPort]
	log       *slog.Logger
}

// applyFrontends opens, changes and closes the frontends of a Service. One
// without endpoints is closed, so that a connection is refused as by a node.
// Established connections stay, whatever becomes of their endpoint.
func (f *Forwarder) applyFrontends(name cache.ObjectName, wanted map[frontendKey][]netip.AddrPort) error {
	open := f.frontends[name]
	if open == nil {
		open = map[frontendKey]*frontend{}
		f.frontends[name] = open
	}
	for key, front := range open {
		if len(wanted[key]) == 0 {
			front.Close()
			delete(open, key)
		}
	}
	var errs []error
	for key, endpoints := range wanted {
		if len(endpoints) == 0 {
			continue
		}
		if front := open[key]; front != nil {
			front.endpoints.Store(&endpoints)
			continue
		}
		front, err := listen(key, endpoints, f.Log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		open[key] = front
	}
	if len(open) == 0 {
		delete(f.frontends, name)
	}
	return errors.Join(errs...)
}

func listen(key frontendKey, endpoints []netip.AddrPort, log *slog.Logger) (*frontend, error) {
	f := &frontend{log: log}
	f.endpoints.Store(&endpoints)
	if key.protocol == v1.ProtocolUDP {
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(key.at))
		if err != nil {
			return nil, fmt.Errorf("listen for datagrams: %w", err)
		}
		f.Closer = conn
		go f.relay(conn)
		return f, nil
	}
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(key.at))
	if err != nil {
		return nil, err
	}
	f.Closer = listener
	go f.accept(listener)
	return f, nil
}

// pick is a random endpoint, as kube-proxy's rules choose.
func (f *frontend) pick() netip.AddrPort {
	endpoints := *f.endpoints.Load()
	return endpoints[rand.IntN(len(endpoints))]
}

func (f *frontend) accept(listener *net.TCPListener) {
	for {
		client, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			f.log.Warn("accept a connection", "at", listener.Addr(), "err", err)
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some connections end
			continue
		}
		go f.forward(client)
	}
}

func (f *frontend) forward(client *net.TCPConn) {
	defer client.Close()
	endpoint := f.pick()
	conn, err := net.DialTimeout("tcp", endpoint.String(), 5*time.Second)
	if err != nil {
		f.log.Debug("connect to an endpoint", "endpoint", endpoint, "err", err)
		client.SetLinger(0) // the client sees a reset, not an orderly end
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	var directions sync.WaitGroup
	directions.Go(func() { copyHalf(server, client) })
	directions.Go(func() { copyHalf(client, server) })
	directions.Wait()
}

// copyHalf copies one direction. Its end is passed on and leaves the other
// direction open; a reset is passed on as a reset of both.
func copyHalf(dst, src *net.TCPConn) {
	if _, err := io.Copy(dst, src); err != nil {
		dst.SetLinger(0)
		src.SetLinger(0)
		dst.Close()
		src.Close()
		return
	}
	dst.CloseWrite()
}

// udpIdle is how long a client's datagrams go to the same endpoint.
const udpIdle = 30 * time.Second

// relay forwards datagrams: each client has a socket of its own towards an
// endpoint, until it has been silent for a while.
func (f *frontend) relay(conn *net.UDPConn) {
	var mu sync.Mutex
	sessions := map[netip.AddrPort]*net.UDPConn{}
	buffer := make([]byte, 64<<10)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			continue
		}
		mu.Lock()
		session := sessions[client]
		mu.Unlock()
		if session == nil {
			session, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(f.pick()))
			if err != nil {
				f.log.Debug("connect to an endpoint", "err", err)
				continue
			}
			mu.Lock()
			sessions[client] = session
			mu.Unlock()
			go func() {
				returnDatagrams(conn, session, client)
				mu.Lock()
				delete(sessions, client)
				mu.Unlock()
			}()
		}
		session.SetReadDeadline(time.Now().Add(udpIdle))
		session.Write(buffer[:n])
	}
	mu.Lock()
	defer mu.Unlock()
	for _, s := range sessions {
		s.Close()
	}
}

func returnDatagrams(conn, session *net.UDPConn, client netip.AddrPort) {
	defer session.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := session.Read(buffer)
		if err != nil {
			return // idle, refused or closed: the next datagram begins anew
		}
		session.SetReadDeadline(time.Now().Add(udpIdle))
		conn.WriteToUDPAddrPort(buffer[:n], client)
	}
}
