// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command coredns stands in for CoreDNS where the Gateway API conformance suite
// uses it as the backend of a UDPRoute. It answers every query as the plug-in
// whoami does, with the address of the client in the additional section, and
// takes no notice of its configuration.
package main

import (
	"log"
	"net"

	"github.com/miekg/dns"
)

func main() {
	done := make(chan error)
	for _, network := range []string{"udp", "tcp"} {
		server := &dns.Server{Addr: ":53", Net: network, Handler: dns.HandlerFunc(whoami)}
		go func() { done <- server.ListenAndServe() }()
	}
	log.Fatal(<-done)
}

func whoami(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.Authoritative = true
	if len(query.Question) > 0 {
		host, _, err := net.SplitHostPort(w.RemoteAddr().String())
		if err == nil {
			reply.Extra = whois(query.Question[0].Name, net.ParseIP(host))
		}
	}
	if err := w.WriteMsg(reply); err != nil {
		log.Print(err)
	}
}

func whois(name string, client net.IP) []dns.RR {
	header := dns.RR_Header{Name: name, Class: dns.ClassINET}
	if v4 := client.To4(); v4 != nil {
		header.Rrtype = dns.TypeA
		return []dns.RR{&dns.A{Hdr: header, A: v4}}
	}
	header.Rrtype = dns.TypeAAAA
	return []dns.RR{&dns.AAAA{Hdr: header, AAAA: client}}
}
