// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// site is a listener as routing sees it: its sections by host.
type site struct {
	sections []*section
	hosts    hostIndex[*section]
	port     string // that clients use
	checked  bool   // the handshake's name must lead to the section that the host does
}

// section is a config.Section, or the whole of a listener without any.
type section struct {
	name   string
	routes []*route // of models, most specific first
	http   httpTable
}

// sites makes the sections of every listener.
func (b *builder) sites() {
	for i := range b.cfg.Listeners {
		lc := &b.cfg.Listeners[i]
		s := &site{port: publicPort(lc)}
		b.table.sites[lc.Name] = s
		if len(lc.Sections) == 0 {
			s.add(&section{}, "")
		}
		for j := range lc.Sections {
			sc := &lc.Sections[j]
			s.add(&section{name: sc.Name}, sc.Host)
			s.checked = s.checked || sc.TLS != nil
		}
	}
}

func (s *site) add(sec *section, host string) {
	s.sections = append(s.sections, sec)
	s.hosts.put(host, sec)
}

// publicPort is the port that clients of a listener use.
func publicPort(lc *config.Listener) string {
	if lc.Port != 0 {
		return strconv.Itoa(lc.Port)
	}
	_, port, _ := net.SplitHostPort(lc.Address)
	return port
}

// enter finds the section of a request and returns its host. Over TLS a client
// that has come in by one section's name may not ask for a host of another one:
// it has not met what that section asks of clients (RFC 9110 §15.5.20).
func (x *exchange) enter() (host string, fail *llm.Error) {
	if x.table == nil {
		return "", llm.Unavailable("no configuration is loaded", time.Second)
	}
	host = hostName(x.r.Host)
	s := x.table.sites[x.listener.name]
	if s == nil { // of a listener that this configuration no longer has
		return host, llm.NotFound(x.r.URL.Path)
	}
	sec, ok := s.hosts.find(host)
	if s.checked && x.r.TLS != nil {
		if asked, known := s.hosts.find(hostName(x.r.TLS.ServerName)); !known || !ok || asked != sec {
			return host, &llm.Error{
				Status: http.StatusMisdirectedRequest, Type: "invalid_request_error", Code: "misdirected_request",
				Message: "this connection was opened for another host; open one for this host",
			}
		}
	}
	if !ok {
		return host, llm.NotFound(x.r.URL.Path)
	}
	x.section = sec
	return host, nil
}

// hostName is a Host header, or a server name, as routes compare it: lower
// case, without port, brackets and a last dot.
func hostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && (strings.IndexByte(host, ':') == i || host[i-1] == ']') {
		host = host[:i]
	}
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// hostIndex finds the value of the most specific host: the exact one, then the
// longest "*.suffix", then "".
type hostIndex[T any] struct {
	exact map[string]T
	wild  map[string]T // by ".suffix"
	rest  T
	any   bool // rest is set
}

func (x *hostIndex[T]) put(host string, v T) {
	host = strings.ToLower(host)
	switch suffix, wild := strings.CutPrefix(host, "*"); {
	case host == "":
		x.rest, x.any = v, true
	case wild:
		if x.wild == nil {
			x.wild = map[string]T{}
		}
		x.wild[suffix] = v
	default:
		if x.exact == nil {
			x.exact = map[string]T{}
		}
		x.exact[host] = v
	}
}

// get is the value of that very host.
func (x *hostIndex[T]) get(host string) (v T, ok bool) {
	host = strings.ToLower(host)
	switch suffix, wild := strings.CutPrefix(host, "*"); {
	case host == "":
		return x.rest, x.any
	case wild:
		v, ok = x.wild[suffix]
	default:
		v, ok = x.exact[host]
	}
	return v, ok
}

// find is the value of the most specific host that matches. host is lower case.
func (x *hostIndex[T]) find(host string) (v T, ok bool) {
	if v, ok = x.exact[host]; ok {
		return v, true
	}
	for i := x.next(host, 0); i > 0; i = x.next(host, i) {
		if v, ok = x.wild[host[i:]]; ok {
			return v, true
		}
	}
	return x.rest, x.any
}

// next is where the next suffix of host begins, after the one at i; 0: there is
// none. A wildcard stands for one label at the least.
func (x *hostIndex[T]) next(host string, i int) int {
	if len(x.wild) == 0 {
		return 0
	}
	for i++; i < len(host); i++ {
		if host[i] == '.' {
			return i
		}
	}
	return 0
}

// all calls f with every value.
func (x *hostIndex[T]) all(f func(T)) {
	for _, v := range x.exact {
		f(v)
	}
	for _, v := range x.wild {
		f(v)
	}
	if x.any {
		f(x.rest)
	}
}
