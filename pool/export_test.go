// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// Scanner is the scanner of one member, for benchmarks of its steady state.
type Scanner struct{ s *scanner }

func NewScanner(e config.Engine) Scanner { return Scanner{newScanner(e)} }

func (s Scanner) Scan(page []byte) { s.s.scan(page) }

func (s Scanner) Result() *Metrics {
	x, _ := s.s.result(time.Time{})
	return x
}

// SetScrapeCost pretends that one scrape costs so much.
func (p *Pool) SetScrapeCost(d time.Duration) { p.cost.nanoseconds.Store(int64(d)) }

// ScrapeInterval is the effective one.
func (p *Pool) ScrapeInterval() time.Duration { return p.scrapeInterval() }

// RunRota runs a rota whose job is f until ctx ends.
func (p *Pool) RunRota(ctx context.Context, interval time.Duration, workers int, f func(*Member) time.Duration) {
	r := &rota{pool: p, workers: workers, interval: func() time.Duration { return interval }}
	r.job = func(_ context.Context, t *turn, _ *worker) time.Duration { return f(t.member) }
	r.run(ctx)
}

// AskInBatch asks m, to which there is no connection, while others wait. It
// says whether that is left for later.
func AskInBatch(ctx context.Context, m *Member) bool {
	d, err := newDialer(config.Pool{})
	if err != nil {
		return false
	}
	t := &turn{member: m, shared: true}
	defer t.closeConn()
	_, _, err = d.ask(ctx, time.Second, t, "/metrics", nil)
	return err == errLost
}

// BatchOrder is the order in which a worker does a batch of members of p whose
// answers come as ready says.
func (p *Pool) BatchOrder(ready func(m *Member) bool) (order []string) {
	r := &rota{pool: p, turns: map[*Member]*turn{}}
	r.begin = func(_ context.Context, t *turn) { order = append(order, "begin "+t.member.address) }
	r.ready = func(t *turn) bool { return ready(t.member) }
	r.job = func(_ context.Context, t *turn, _ *worker) time.Duration {
		order = append(order, t.member.address)
		return 0
	}
	var batch []*turn
	for _, m := range p.Snapshot().Members {
		batch = append(batch, &turn{member: m})
	}
	jobs := make(chan []*turn)
	close(jobs)
	r.work(context.Background(), jobs, batch)
	return order
}

// Batches shows how turns of these kinds are split: p is prompt, s slow, n
// without a connection.
func Batches(kinds string, begins bool) string {
	r := &rota{}
	if begins {
		r.begin = func(context.Context, *turn) {}
	}
	kind := map[*turn]string{}
	var due []*turn
	for _, k := range kinds {
		t := &turn{slow: k == 's'}
		if k != 'n' {
			t.conn = &plainConn{}
		}
		kind[t], due = string(k), append(due, t)
	}
	var list []string
	for _, batch := range r.batches(due) {
		text := ""
		for _, t := range batch {
			text += kind[t]
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}
