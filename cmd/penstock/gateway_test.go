// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/kube"
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
	const sections = `listeners: [{name: l, address: TAKEN, anonymous: true, sections: [{name: one, host: a.example.com}, {name: two, host: b.example.com}]}]`
	loaded := &kube.Local{Gateway: &kube.Gateway{}}
	loaded.Namespace, loaded.Name = "ai", "models"
	shifted := &manifestGateway{manifestFlags: manifestFlags{shift: int32(l.Addr().(*net.TCPAddr).Port) - 80}, loaded: loaded}
	unshifted := &manifestGateway{manifestFlags: manifestFlags{shift: 8000}, loaded: loaded}
	for _, c := range []struct {
		text    string
		flags   func(string) string
		instead func(*config.Config, string) string
		want    string
	}{
		{`listeners: [{name: l, address: TAKEN, anonymous: true}]`, nil, nil, "; try another listeners[0].address"},
		{`admin: {address: TAKEN}`, f.flagOf, nil, `; try another admin.address, or admin: {address: "off"}`},
		{`ops: {address: TAKEN}`, nil, nil, "; try another ops.address"},
		{`ops: {address: TAKEN}`, f.flagOf, nil, "; try another ops.address, or --metrics-port"},
		{`pickerListeners: [{pool: p, address: TAKEN, health: "off"}]`, f.flagOf, nil, "; try another pickerListeners[0].address, or --grpc-port"},
		{`pickerListeners: [{pool: p, address: "127.0.0.1:0", health: TAKEN}]`, f.flagOf, nil, "; try another pickerListeners[0].health, or --grpc-health-port"},
		{sections, nil, insteadOfGateway, "; another process has the port of listeners one, two; choose another one in the Gateway"},
		{`ops: {address: TAKEN}`, nil, insteadOfGateway, "; try another --ops"},
		{sections, nil, shifted.instead, fmt.Sprintf("; try another --low-ports (port 80 of listeners one, two in gateway/ai/models is moved by %d), or another --bind", shifted.shift)},
		{sections, nil, unshifted.instead, "; try another port of listeners one, two in gateway/ai/models, or another --bind"},
		{`admin: {address: TAKEN}`, nil, shifted.instead, "; try another --admin-address, or --admin-address off"},
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
		g.flagOf, g.instead = c.flags, c.instead
		err = g.reload(cfg, nil)
		if err == nil || !strings.HasSuffix(err.Error(), "address already in use"+c.want) {
			t.Errorf("%s\n%v, want %q", c.text, err, c.want)
		}
		g.close(context.Background())
	}
}

// At the end a gateway first says so, and serves on for limits.lameDuck.
func TestLameDuck(t *testing.T) {
	cfg, err := config.Parse("test.yaml", []byte(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools: [{name: p, members: {static: ["127.0.0.1:1"]}}]
models: [{name: m, targets: [{pool: p}]}]
pickerListeners: [{pool: p, address: "127.0.0.1:0", health: "off"}]
limits: {lameDuck: 400ms}
`))
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(slog.New(slog.DiscardHandler), "")
	if err := g.reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	if !g.readiness().Ready {
		t.Fatal("not ready")
	}
	began, ended := time.Now(), make(chan error, 1)
	models := "http://" + g.proxy.Addresses()["l"] + "/v1/models"
	go func() { ended <- shutdown(g, func() {}) }()
	waitFor(t, "readiness to end", func() bool { return !g.readiness().Ready })
	if r := g.readiness(); r.Reason != "draining" || !r.Draining {
		t.Errorf("%+v", r)
	}
	if time.Since(began) < 300*time.Millisecond { // a slow machine proves nothing
		if res, err := http.Get(models); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("not served any more: %v", err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("ended after %s", took)
	}
	if res, err := http.Get(models); err == nil {
		t.Errorf("still served: %s", res.Status)
	}
}

// A certificate that cannot be read is shown where one looks.
func TestBrokenCertificateIsShown(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writePair(t, cert, key)
	cfg, err := config.Parse("test.yaml", fmt.Appendf(nil, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true, tls: {cert: %[1]q, key: %[2]q}}]
admin: {address: "off"}
pools: [{name: p, members: {static: ["127.0.0.1:1"]}}]
models: [{name: m, targets: [{pool: p}]}]
pickerListeners: [{pool: p, address: "127.0.0.1:0", health: "off", tls: {cert: %[1]q, key: %[2]q}}]
`, cert, key))
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(slog.New(slog.DiscardHandler), "")
	if err := g.reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	defer g.close(context.Background())
	faults := func() (list []string) {
		for _, l := range g.readiness().Listeners {
			if l.Error != "" {
				list = append(list, l.Name+": "+l.Error)
			}
		}
		return list
	}
	if list := faults(); len(list) != 0 {
		t.Errorf("at first: %q", list)
	}
	if err := os.WriteFile(cert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the faults", func() bool { return len(faults()) == 2 })
	for _, text := range faults() {
		if !strings.Contains(text, ": tls: failed to find any PEM data") {
			t.Errorf("%q", text)
		}
	}
}

// writePair writes a certificate of its own and its key.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	conf, err := (&certs.SelfSigned{Name: "test"}).Config()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := conf.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
