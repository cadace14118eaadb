// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"testing"
	"time"
)

// penstockPicker is `penstock epp` for a pool.
func penstockPicker(b *bed, pool string) workload {
	return workload{
		name: pool + "-picker", replicas: 1, image: penstockImage, service: 9002, grace: 5,
		args:  []string{"epp", "--pool-name", pool, "--pool-namespace", b.ns, "--grpc-port", "9002", "--grpc-health-port", "9003"},
		probe: "grpc: {port: 9003, service: inference-extension}",
	}
}

// TestPickerDies takes the pickers of two pools away, of which one fails open.
func TestPickerDies(t *testing.T) {
	b := lay(t)
	b.mayPick()
	for pool, mode := range map[string]string{"open": "FailOpen", "closed": "FailClose"} {
		p := penstockPicker(b, pool)
		b.deploy(p)
		b.deploy(servers(pool, 2))
		b.pool(pool, reference(p, mode))
	}
	b.gateway("")
	b.running("open-picker", "closed-picker", "open-server", "closed-server")
	b.wait("open.own.test", 200)
	b.wait("closed.own.test", 200)

	open := b.traffic("open.own.test", 4, 20*time.Millisecond)
	for round := range 2 {
		for _, pool := range []string{"open", "closed"} {
			if round == 0 { // orderly
				b.scale(pool+"-picker", 0)
			} else { // and not: it comes back by itself
				b.kill(b.pods("app=" + pool + "-picker")...)
				b.scale(pool+"-picker", 0)
			}
		}
		b.wait("closed.own.test", 503)
		for range 50 {
			if r := b.ask("closed.own.test", chat); r.err != nil || r.status != 503 {
				t.Errorf("without its picker the pool that fails closed answers %s, want 503", r)
			}
			if r := b.ask("open.own.test", chat); r.err != nil || r.status != 200 {
				t.Errorf("without its picker the pool that fails open answers %s, want 200", r)
			}
		}
		b.scale("open-picker", 1)
		b.scale("closed-picker", 1)
		b.wait("closed.own.test", 200)
	}
	b.losesNothing(open)
}
