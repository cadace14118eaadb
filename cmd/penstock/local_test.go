// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/xds"
)

// Two Gateways of one process that want the same port: the first has it, the
// second is told whose it is, and gets it when the first goes.
func TestOnePortIsForOneGateway(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	l := &localPlanes{log: slog.New(slog.DiscardHandler), own: prometheus.NewRegistry(), planes: map[xds.Gateway]*localPlane{}, replied: func(xds.Gateway) {}}
	first, second := xds.Gateway{Namespace: "ai", Name: "first"}, xds.Gateway{Namespace: "ai", Name: "second"}
	t.Cleanup(func() {
		for _, p := range l.planes {
			p.close(context.Background())
		}
	})
	for _, g := range []xds.Gateway{first, second} {
		cfg, err := config.Parse("test.yaml", fmt.Appendf(nil, `
admin: {address: "off"}
listeners: [{name: l, address: %q, anonymous: true}]
httpRoutes: [{name: r, parents: [{listener: l}], rules: [{filters: {redirect: {host: %s.example}}}]}]
`, address, g.Name))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Publish(g, cfg); err != nil {
			t.Fatal(err)
		}
	}
	served := func() string {
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Get("http://" + address + "/")
		if err != nil {
			return err.Error()
		}
		res.Body.Close()
		return res.Header.Get("Location")
	}
	if got := served(); !strings.HasPrefix(got, "http://first.example") {
		t.Fatalf("the port serves %q", got)
	}
	s := l.Status(second).Clients[0]
	if s.Version != "" || !strings.Contains(s.Err, address+" is served for Gateway ai/first already") {
		t.Errorf("the second Gateway: version %q, %s", s.Version, s.Err)
	}
	l.Remove(first)
	for end := time.Now().Add(20 * time.Second); l.Status(second).Clients[0].Version == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the second Gateway does not get the port: %+v", l.Status(second))
		}
	}
	if got := served(); !strings.HasPrefix(got, "http://second.example") {
		t.Errorf("the port serves %q", got)
	}
}
