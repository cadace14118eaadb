// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/extproc/extproctest"
	"github.com/penstock/penstock/pool"
)

// The endpoints of an external picker are those that it is told, none included.
func TestExternalPicker(t *testing.T) {
	one, two := extproctest.Start(t, nil, nil), extproctest.Start(t, nil, nil)
	c := client(t, `external: true, refresh: 1h, health: {interval: 200ms, timeout: 200ms}`)
	tell := func(addresses ...string) {
		var list []config.Member
		for _, a := range addresses {
			list = append(list, config.Member{Address: a})
		}
		c.SetEndpoints(list)
	}
	expect := func(when string, addresses ...string) {
		t.Helper()
		slices.Sort(addresses)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if slices.Equal(c.Ready(), addresses) {
				return
			}
		}
		t.Fatalf("%s: ready are %q, want %q", when, c.Ready(), addresses)
	}
	tell(one.Address)
	c.Start()
	defer c.Close()
	expect("before the start", one.Address)
	tell(two.Address, one.Address, one.Address)
	expect("one more", one.Address, two.Address)
	tell(two.Address)
	expect("the first is gone", two.Address)
	tell()
	expect("all are gone")
	tell(one.Address)
	expect("one is back", one.Address)
}

// What to try names the replica: an external picker has the name of a set, at
// which nobody can be asked. There is no file to change either.
func TestHintOfAnExternalPicker(t *testing.T) {
	dead := closed(t)
	plain := extproctest.Start(t, nil, nil).Address
	for _, c := range []struct{ address, more, hint string }{
		{dead, "", "try penstock epp probe " + dead},
		{plain, ", tls: {insecureSkipVerify: true}", "write picker: {tls: {plaintext: true}} in the GatewayPolicy of the InferencePool; try penstock epp probe " + plain + "\""},
	} {
		p, err := pool.New(config.Pool{Name: "models/llama", Metrics: config.Metrics{Off: true}, Members: config.Members{External: true}}, pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		log := &logged{}
		k, err := extproc.NewClient(p, remotePicker(t, "external: true"+c.more), extproc.ClientOptions{Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		k.SetEndpoints([]config.Member{{Address: c.address}})
		k.Start()
		defer k.Close()
		for end := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "picker is not ready") && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
		if !strings.Contains(log.String(), c.hint) {
			t.Errorf("the log lacks %q:\n%s", c.hint, log)
		}
	}
}
