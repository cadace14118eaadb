// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/sim"
)

// BenchmarkEngine runs 1000 requests of about 3000 tokens with shared prefixes.
func BenchmarkEngine(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		e := sim.NewEngine(sim.Qwen32B())
		var now time.Duration
		for i := range 1000 {
			chain := make([]uint64, 0, 190)
			h := uint64(0)
			for j := range 190 {
				content := uint64(j)
				if j > 120 {
					content += uint64(i) << 32
				} else {
					content += uint64(i%50) << 32
				}
				h = sim.ChainHash(h, content)
				chain = append(chain, h)
			}
			e.Submit(now, &sim.Request{ID: uint64(i + 1), Blocks: chain, PromptTokens: 3045, OutputTokens: 250})
			if i%4 == 0 && !e.Idle() {
				now, _ = e.Step(now)
			}
		}
		for !e.Idle() {
			now, _ = e.Step(now)
		}
	}
}
