// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc/extproctest"
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
