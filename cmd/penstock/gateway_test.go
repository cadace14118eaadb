// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

// A part that cannot be built refuses the whole configuration, at the start and
// over a reload, whichever part it is and whatever was built before it.
func TestWhatCannotBeBuiltChangesNothing(t *testing.T) {
	const sound = `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
models: [{name: chat, targets: [{pool: p}]}]
pools:
  - {name: p, members: {static: ["127.0.0.1:1"]}}
`
	for _, c := range []struct{ name, more, want string }{
		{"the picker of a new pool", `  - {name: q, members: {static: ["127.0.0.1:1"]}, picker: {remote: {address: "127.0.0.1:1", tls: {ca: /no/ca.pem}}}}`, "pools[1] (q): picker.remote: tls.ca: open /no/ca.pem"},
		{"the certificate of a new picker listener", `pickerListeners: [{pool: p, address: "127.0.0.1:0", health: "off", tls: {cert: /no/a.crt, key: /no/a.key}}]`, "pickerListeners[0]: tls: open /no/a.crt"},
		{"the certificates of a new pool", `  - {name: q, members: {static: ["127.0.0.1:1"]}, protocol: https, tls: {ca: /no/ca.pem}}`, "/no/ca.pem"},
		{"the records", `records: {path: /no/records.jsonl}`, "records: "},
		{"the ops address", `ops: {address: "192.0.2.1:1"}`, "ops: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway(slog.New(slog.NewTextHandler(panics{t}, nil)), "")
			defer g.close(context.Background())
			apply := func(text string) error {
				cfg, err := config.Parse("test.yaml", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				return g.reload(cfg, nil)
			}
			for _, when := range []string{"at the start", "over a reload"} {
				if err := apply(sound + c.more); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", when, err, c.want)
				}
				if got := strings.Join(g.poolNames(), " "); when == "at the start" && got != "" || when != "at the start" && got != "p" {
					t.Errorf("%s: the pools are %q", when, got)
				}
				if err := apply(sound); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// An address that is taken is named by its key, and what to try is said.
func TestAddressesThatAreTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := fmt.Sprintf("%q", l.Addr())
	f := &eppFlags{}
	for _, c := range []struct {
		text  string
		flags func(string) string
		want  string
	}{
		{`listeners: [{name: l, address: TAKEN, anonymous: true}]`, nil, "; try another listeners[0].address"},
		{`admin: {address: TAKEN}`, f.flagOf, `; try another admin.address, or admin: {address: "off"}`},
		{`ops: {address: TAKEN}`, nil, "; try another ops.address"},
		{`ops: {address: TAKEN}`, f.flagOf, "; try another ops.address, or --metrics-port"},
		{`pickerListeners: [{pool: p, address: TAKEN, health: "off"}]`, f.flagOf, "; try another pickerListeners[0].address, or --grpc-port"},
		{`pickerListeners: [{pool: p, address: "127.0.0.1:0", health: TAKEN}]`, f.flagOf, "; try another pickerListeners[0].health, or --grpc-health-port"},
	} {
		text := "pools: [{name: p, members: {static: [\"127.0.0.1:1\"]}}]\nmodels: [{name: m, targets: [{pool: p}]}]\n" + strings.ReplaceAll(c.text, "TAKEN", taken)
		if !strings.Contains(text, "admin") {
			text += "\nadmin: {address: \"off\"}"
		}
		cfg, err := config.ParseWith("test.yaml", []byte(text), config.Options{Unlistened: true})
		if err != nil {
			t.Fatal(err)
		}
		g := newGateway(slog.New(slog.DiscardHandler), "")
		g.flagOf = c.flags
		err = g.reload(cfg, nil)
		if err == nil || !strings.HasSuffix(err.Error(), "address already in use"+c.want) {
			t.Errorf("%s\n%v, want %q", c.text, err, c.want)
		}
		g.close(context.Background())
	}
}
