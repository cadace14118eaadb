// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterdns answers for the names of Services below cluster.local, from
// the same watches that the rest of the rig uses. Other names do not exist: the
// rig has no way out.
package clusterdns

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

const (
	domain = "svc.cluster.local."
	ttl    = 5 // seconds; clients shall see a change soon
)

// Server answers DNS queries.
type Server struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	log      *slog.Logger
}

// New makes a server; the informers of factory are started by the caller.
func New(factory informers.SharedInformerFactory, log *slog.Logger) *Server {
	return &Server{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
		log:      log,
	}
}

// Serve answers on port 53 of addr, over UDP and TCP, until ctx ends.
func (s *Server) Serve(ctx context.Context, addr netip.Addr) error {
	at := netip.AddrPortFrom(addr, 53)
	packets, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	for _, server := range []*dns.Server{
		{PacketConn: packets, Handler: dns.HandlerFunc(s.answer)},
		{Listener: listener, Handler: dns.HandlerFunc(s.answer)},
	} {
		go server.ActivateAndServe()
		context.AfterFunc(ctx, func() { server.Shutdown() })
	}
	return nil
}

func (s *Server) answer(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.Authoritative = true
	reply.RecursionAvailable = true
	if len(query.Question) != 1 {
		reply.Rcode = dns.RcodeFormatError
	} else {
		var exists bool
		reply.Answer, exists = s.lookup(query.Question[0])
		if !exists {
			reply.Rcode = dns.RcodeNameError
		}
	}
	if err := w.WriteMsg(reply); err != nil {
		s.log.Debug("answer a query", "err", err)
	}
}

// lookup finds the records of a name and tells whether the name exists, with
// whatever records.
func (s *Server) lookup(q dns.Question) ([]dns.RR, bool) {
	name := strings.ToLower(q.Name)
	rest, ok := strings.CutSuffix(name, "."+domain)
	if !ok {
		return nil, name == domain
	}
	parts := strings.Split(rest, ".")
	if len(parts) < 2 {
		return nil, false
	}
	// Of the labels before the domain the last is the namespace, the one before
	// it the Service; what stands before that is a port or the name of a pod.
	namespace, service, prefix := parts[len(parts)-1], parts[len(parts)-2], parts[:len(parts)-2]
	svc, err := s.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	switch {
	case len(prefix) == 2 && strings.HasPrefix(prefix[0], "_"):
		return s.ports(q, svc, strings.TrimPrefix(prefix[0], "_"), strings.TrimPrefix(prefix[1], "_"))
	case len(prefix) > 1:
		return nil, false
	case svc.Spec.Type == v1.ServiceTypeExternalName:
		return []dns.RR{&dns.CNAME{Hdr: header(q, dns.TypeCNAME), Target: dns.Fqdn(svc.Spec.ExternalName)}}, true
	case svc.Spec.ClusterIP == v1.ClusterIPNone:
		return s.headless(q, svc, prefix)
	case len(prefix) == 1:
		return nil, false
	}
	return hosts(q, svc.Spec.ClusterIP), true
}

// headless answers with the ready endpoints, or with one of them by its name.
func (s *Server) headless(q dns.Question, svc *v1.Service, prefix []string) ([]dns.RR, bool) {
	endpoints, err := s.slices.EndpointSlices(svc.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}))
	if err != nil {
		return nil, false
	}
	var records []dns.RR
	exists := len(prefix) == 0
	for _, slice := range endpoints {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			if len(prefix) == 1 && (e.Hostname == nil || *e.Hostname != prefix[0]) {
				continue
			}
			exists = true
			for _, a := range e.Addresses {
				records = append(records, hosts(q, a)...)
			}
		}
	}
	return records, exists
}

// ports answers _PORT._PROTOCOL with the number of a Service's named port.
func (s *Server) ports(q dns.Question, svc *v1.Service, port, protocol string) ([]dns.RR, bool) {
	for _, p := range svc.Spec.Ports {
		if p.Name != port || !strings.EqualFold(string(p.Protocol), protocol) {
			continue
		}
		if q.Qtype != dns.TypeSRV {
			return nil, true
		}
		return []dns.RR{&dns.SRV{
			Hdr: header(q, dns.TypeSRV), Weight: 100, Port: uint16(p.Port),
			Target: svc.Name + "." + svc.Namespace + "." + domain,
		}}, true
	}
	return nil, false
}

func hosts(q dns.Question, address string) []dns.RR {
	addr, err := netip.ParseAddr(address)
	if err != nil || !addr.Is4() || q.Qtype != dns.TypeA {
		return nil
	}
	return []dns.RR{&dns.A{Hdr: header(q, dns.TypeA), A: addr.AsSlice()}}
}

func header(q dns.Question, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: q.Name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}
