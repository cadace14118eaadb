// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/pool"
)

func TestMembersFile(t *testing.T) {
	golden.Run(t, "testdata/members/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		members, err := pool.ParseMembers([]byte(c.File(t, "members.yaml")))
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%d members\n", len(members))
		for _, m := range members {
			fmt.Fprintf(&b, "%s %v\n", m.Address, m.Labels)
		}
		return map[string]string{"members": b.String()}
	})
}

// FuzzMembersFile holds that whatever is accepted is a membership: every entry
// becomes a member under its own address.
func FuzzMembersFile(f *testing.F) {
	paths, _ := filepath.Glob("testdata/members/*.txtar")
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(txtar.Parse(raw).Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		members, err := pool.ParseMembers(text)
		if err != nil {
			return
		}
		p, err := pool.New(config.Pool{Name: "p"}, pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.SetMembers(members)
		if got := len(p.Snapshot().Members); got != len(members) {
			t.Fatalf("%d entries became %d members", len(members), got)
		}
		for _, m := range members {
			if p.Lookup(m.Address) == nil {
				t.Fatalf("%q is not found under its own address", m.Address)
			}
		}
	})
}
