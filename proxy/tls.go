// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
)

// identities are the certificates of a listener by server name: what a
// handshake meets. They are swapped without the listener.
type identities struct {
	hosts hostIndex[*identity]
	all   []*identity
}

type identity struct {
	host  string
	cfg   config.ServerTLS
	files *certs.Server
}

// identitiesOf reads the certificates of a listener; nil: it has none. Those of
// old that are configured alike are taken over, with what they follow.
func (s *Server) identitiesOf(lc *config.Listener, old *identities) (*identities, error) {
	if !encrypts(lc) {
		return nil, nil
	}
	ids := &identities{}
	if lc.TLS != nil {
		return ids, s.identity(ids, "", lc.TLS, lc, old)
	}
	for i := range lc.Sections {
		sc := &lc.Sections[i]
		if sc.TLS == nil {
			return nil, fmt.Errorf("section %s has no certificate", sc.Name)
		}
		if err := s.identity(ids, sc.Host, sc.TLS, lc, old); err != nil {
			return nil, fmt.Errorf("section %s: %w", sc.Name, err)
		}
	}
	return ids, nil
}

// encrypts says that the listener, or its sections, serve TLS.
func encrypts(lc *config.Listener) bool {
	return lc.TLS != nil || len(lc.Sections) > 0 && lc.Sections[0].TLS != nil
}

func (s *Server) identity(ids *identities, host string, c *config.ServerTLS, lc *config.Listener, old *identities) error {
	if old != nil {
		if id, ok := old.hosts.get(host); ok && reflect.DeepEqual(id.cfg, *c) {
			ids.put(id)
			return nil
		}
	}
	files := &certs.Server{
		Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA,
		CertPEM: c.CertPEM, KeyPEM: c.KeyPEM.Reveal(), ClientCAPEM: c.ClientCAPEM, AcceptInvalid: c.AcceptInvalid,
		Protocols: []string{"http/1.1"},
		Complain: func(err error) {
			s.log.Error("certificate not reloaded; the old one stays", "cert", c.Cert, "error", err)
		},
	}
	if speaksHTTP2(lc) {
		files.Protocols = []string{"h2", "http/1.1"}
	}
	if _, err := files.Config(); err != nil {
		return err
	}
	ids.put(&identity{host: host, cfg: *c, files: files})
	return nil
}

func (ids *identities) put(id *identity) {
	ids.hosts.put(id.host, id)
	ids.all = append(ids.all, id)
}

// fault is why the newest files of a certificate are not in use, "" if all are.
func (ids *identities) fault() string {
	if ids == nil {
		return ""
	}
	for _, id := range ids.all {
		if why := id.files.Fault(); why != "" {
			if id.host != "" {
				why = id.host + ": " + why
			}
			return why
		}
	}
	return ""
}

var errServerName = errors.New("no section of this listener serves the server name")

// choose is the TLS side for a handshake.
func (l *listener) choose(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	id, ok := l.identities.Load().hosts.find(hostName(hello.ServerName))
	if !ok {
		return nil, errServerName
	}
	return id.files.Current(), nil
}

func speaksHTTP2(lc *config.Listener) bool { return lc.HTTP2 == nil || *lc.HTTP2 }
