// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"time"
)

// probe starts the active probe anew, as configured. A member is down after
// Probe.Failures answers in a row that are not 2xx, or none; one good answer
// brings it back. What requests come to does not change a probe's verdict, nor
// is there a bound on how many members may be down. lifeMu is held.
func (p *Pool) probe() {
	cfg, dial := p.next.cfg.Probe, p.next.dial
	if cfg == nil {
		p.stop(probing)
		return
	}
	r := &rota{pool: p, workers: maxWorkers, interval: func() time.Duration { return cfg.Interval.D() }}
	r.job = func(ctx context.Context, t *turn, w *worker) time.Duration {
		status, page, err := dial.ask(ctx, cfg.Timeout.D(), t, cfg.Path, w.page)
		if cap(page) <= keepPage {
			w.page = page
		}
		if ctx.Err() != nil {
			return 0
		}
		if err == nil && (status < 200 || status > 299) {
			err = fmt.Errorf("%s answered %d", cfg.Path, status)
		}
		if err == nil {
			t.failures = 0
			p.probed(t.member, true, "")
			return cfg.Interval.D()
		}
		if t.failures++; t.failures >= cfg.Failures {
			p.probed(t.member, false, err.Error())
		}
		return cfg.Interval.D()
	}
	p.run(probing, r.run)
}
