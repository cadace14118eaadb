// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

// BenchmarkSwap is one change of a large configuration in a gateway: 1,000 HTTP
// routes to 200 pools of 25 members, each with a picker elsewhere. The budget is
// 50 ms; no request waits for it, see proxy.Server.Prepare.
func BenchmarkSwap(b *testing.B) {
	const routes, pools, members = 1000, 200, 25
	file := func(generation int) *config.Config {
		var y strings.Builder
		y.WriteString("admin: {address: \"off\"}\nlisteners: [{name: l, address: \"127.0.0.1:0\", anonymous: true}]\npools:\n")
		for i := range pools {
			fmt.Fprintf(&y, "  - {name: p%d, members: {external: true}, metrics: {off: true}, picker: {remote: {external: true}}}\n", i)
		}
		y.WriteString("httpRoutes:\n")
		for i := range routes {
			prefix := "/v1"
			if i == routes/2 {
				prefix = fmt.Sprintf("/v%d", generation)
			}
			fmt.Fprintf(&y, "  - {name: r%d, parents: [{listener: l, hosts: [r%d.example.com]}], rules: [{matches: [{path: {value: %s}}], backends: [{pool: p%d}]}]}\n", i, i, prefix, i%pools)
		}
		c, err := config.Parse("large.yaml", []byte(y.String()))
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	g := newGateway(slog.New(slog.DiscardHandler), "large.yaml")
	defer g.close(context.Background())
	g.acceptFeed()
	for i := range pools {
		for j := range members {
			name := fmt.Sprintf("p%d", i)
			g.members[name] = append(g.members[name], config.Member{Address: fmt.Sprintf("127.%d.%d.%d:8000", 1+i/100, i%100, j+1)})
		}
	}
	both := []*config.Config{file(2), file(3)}
	if err := g.apply(both[0]); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		if err := g.apply(both[i%2]); err != nil {
			b.Fatal(err)
		}
	}
}
