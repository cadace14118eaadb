// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/sim"
)

// One Penstock picks for another: the request reaches the member that was
// picked, the picker hears of the answer, and nothing is left in flight.
func TestPickerForAnotherGateway(t *testing.T) {
	var addrs []string
	for i := range 2 {
		s := sim.New(sim.Config{Name: fmt.Sprint("s", i), Model: "up", Preset: chaosPreset(), Seed: uint64(i)})
		at, err := s.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(t.Context()) })
		addrs = append(addrs, fmt.Sprintf("%q", at))
	}
	start := func(text string, args ...any) *gateway {
		cfg, err := config.Parse("test.yaml", fmt.Appendf(nil, text, args...))
		if err != nil {
			t.Fatal(err)
		}
		g := newGateway(slog.New(slog.NewTextHandler(panics{t}, nil)), "")
		if err := g.reload(cfg, nil); err != nil {
			t.Fatal(err)
		}
		return g
	}
	stop := func(g *gateway) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if cut := g.close(ctx); cut != 0 {
			t.Errorf("%d cut", cut)
		}
	}
	members := strings.Join(addrs, ", ")
	picker := start(`
pickerListeners: [{pool: p, address: "127.0.0.1:0", health: "off"}]
admin: {address: "off"}
pools: [{name: p, members: {static: [%s]}}]
models: [{name: chat, targets: [{pool: p, model: up}]}]
`, members)
	defer stop(picker)
	front := start(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
admin: {address: "off"}
pools: [{name: p, members: {static: [%s]}, picker: {remote: {address: %q, tls: {insecureSkipVerify: true}, response: {mode: full}}}}]
models: [{name: chat, targets: [{pool: p, model: up}]}]
`, members, picker.pickers.Addresses()[0].Address)
	defer stop(front)
	for i := range 6 {
		id := fmt.Sprint("request-", i)
		body := fmt.Sprintf(`{"model":"chat","stream":%v,"max_tokens":8,"messages":[{"role":"user","content":"hello %d"}]}`, i%2 == 0, i)
		r, err := http.NewRequest(http.MethodPost, "http://"+front.proxy.Addresses()["l"]+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Request-Id", id)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text := new(strings.Builder)
		if err := res.Write(text); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%v\n%s", err, text)
		}
		if e := picker.findPick(id); e == nil || e.Asked != "up" {
			t.Errorf("the picker's explanation of %s: %+v", id, e)
		}
	}
	inFlight := func() (n int64) {
		for _, m := range picker.pooled("p").pool.Snapshot().Members {
			n += m.Load().Requests
			if m.State() != pool.Ready {
				t.Errorf("%s is %v", m.Address(), m.State())
			}
		}
		return n
	}
	for end := time.Now().Add(10 * time.Second); inFlight() != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d in flight at the picker", inFlight())
		}
	}
}

// What the flags of penstock epp make of a file.
func TestEPPFlags(t *testing.T) {
	const one = "pools: [{name: a, members: {static: [\"10.0.0.1:8000\"]}}]\n"
	const two = "pools: [{name: a, members: {static: [\"10.0.0.1:8000\"]}}, {name: b, members: {static: [\"10.0.0.2:8000\"]}}]\n" +
		"models: [{name: m, targets: [{pool: a}, {pool: b}]}, {name: n, targets: [{pool: b}]}, {name: o, alias: n}]\n"
	const clients = "listeners: [{name: l, address: \":8080\", anonymous: true}]\n"
	const listener = "pickerListeners: [{pool: a, address: \":7001\", health: \"off\"}, {pool: b, address: \":7002\", plaintext: true}]\n"
	for _, c := range []struct{ name, file, flags, want string }{
		{"a pool and nothing else", one, "", "a :9002 :9003 tls | pools a | models | metrics :9090"},
		{"ports", one, "--grpc-port 1 --grpc-health-port 2 --metrics-port 3", "a :1 :2 tls | pools a | models | metrics :3"},
		{"off", one, "--grpc-health-port 0 --metrics-port 0 --secure-serving=false", "a :9002 off plaintext | pools a | models | metrics "},
		{"certificate", one, "--cert-path /certs", "a :9002 :9003 /certs/tls.crt | pools a | models | metrics :9090"},
		{"clients are not served", two + clients, "--pool-name b", "b :9002 :9003 tls | pools b | models m[b] n[b] o[] | metrics :9090"},
		{"a name chooses", two + listener, "--pool-name a --grpc-port 7", "a :7 off tls | pools a | models m[a] | metrics :9090"},
		{"the file's listeners", two + listener + "ops: {address: \":9100\"}\n", "", "a :7001 off tls, b :7002 :9003 plaintext | pools a b | models m[a b] n[b] o[] | metrics :9100"},
		{"which pool", two + clients, "", "error: has 2 pools and no pickerListeners; choose one with --pool-name (a, b), or add pickerListeners"},
		{"which listener", two + listener, "--grpc-port 7", "error: --grpc-port: "},
		{"no such pool", two + clients, "--pool-name c", "error: --pool-name c"},
		{"two pools and nothing else", strings.SplitAfter(two, "\n")[0], "", "error: has 2 pools and no pickerListeners; choose one with --pool-name (a, b), or add pickerListeners"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &eppFlags{}
			cmd := newEPPCommand()
			file := filepath.Join(t.TempDir(), "p.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			f.set = cmd.Flags()
			if err := f.set.Parse(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			f.config = file
			f.grpc, _ = f.set.GetInt("grpc-port")
			f.health, _ = f.set.GetInt("grpc-health-port")
			f.metrics, _ = f.set.GetInt("metrics-port")
			f.pool, _ = f.set.GetString("pool-name")
			f.secure, _ = f.set.GetBool("secure-serving")
			f.certs, _ = f.set.GetString("cert-path")
			cfg, err := f.load()
			if want, ok := strings.CutPrefix(c.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, describeEPP(cfg)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func describeEPP(cfg *config.Config) string {
	var listeners, pools, models []string
	for _, l := range cfg.PickerListeners {
		security := "tls"
		switch {
		case l.Plaintext:
			security = "plaintext"
		case l.TLS != nil:
			security = l.TLS.Cert
		}
		if l.Streams < 1000 {
			security += " too few streams"
		}
		listeners = append(listeners, strings.Join([]string{l.Pool, l.Address, l.Health, security}, " "))
	}
	for _, p := range cfg.Pools {
		pools = append(pools, " "+p.Name)
	}
	for _, m := range cfg.Models {
		var targets []string
		for _, t := range m.Targets {
			targets = append(targets, t.Pool)
		}
		models = append(models, fmt.Sprintf(" %s%v", m.Name, targets))
	}
	return strings.Join(listeners, ", ") + " | pools" + strings.Join(pools, "") + " | models" + strings.Join(models, "") + " | metrics " + cfg.Ops.Address
}
