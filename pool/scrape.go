// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
)

const (
	maxWorkers = 32
	// slowest is the longest wait after failures in a row; a longer effective
	// interval wins. It bounds how long a server that is back goes unnoticed.
	slowest = time.Second
	// slowestHung is the same for a server that let the time out pass: each
	// attempt holds a worker for so long.
	slowestHung = 8 * time.Second
	// slowPart is the part of the interval after which an answer is slow.
	slowPart = 4
	// keepPage is how much memory a worker keeps between pages at least.
	keepPage = 256 << 10
)

// scrapeCost is what one scrape takes of a core, as a moving average.
//
// It is measured by the clock, around work that does not wait.
type scrapeCost struct{ nanoseconds atomic.Int64 }

const (
	costWeight = 32 // scrapes in the average
	// costCeiling bounds the first measurement, which may have been interrupted.
	costCeiling = 20 * time.Millisecond
)

// add counts a scrape. One that was interrupted counts for no more than twice
// the average.
func (c *scrapeCost) add(took time.Duration) {
	cost := int64(min(took, costCeiling))
	// Two workers may overwrite each other: the average stays one.
	if old := c.nanoseconds.Load(); old != 0 {
		cost = old + (min(cost, 2*old)-old)/costWeight
	}
	c.nanoseconds.Store(cost)
}

// scrapeInterval is the configured interval, stretched so that scraping n
// members stays within MaxCPU of a core.
func (p *Pool) scrapeInterval() time.Duration {
	m := p.cfg.Load().Metrics
	n := len(p.Snapshot().Members)
	cost := max(p.cost.nanoseconds.Load(), int64(plainCost))
	return max(m.Interval.D(), time.Duration(float64(n)*float64(cost)/m.MaxCPU))
}

// staleAfter is the age at which a page counts as stale.
func (p *Pool) staleAfter() time.Duration {
	return max(p.cfg.Load().Metrics.Stale.D(), 3*p.scrapeInterval())
}

// scrape starts the scraper anew, as configured. lifeMu is held.
func (p *Pool) scrape() {
	cfg, dial := p.next.cfg, p.next.dial
	if cfg.Metrics.Off {
		if p.stops[scraping] == nil {
			return
		}
		p.stop(scraping)
		for _, m := range p.Snapshot().Members {
			m.setLacks(0)
			m.lastScrape.Store(nil)
		}
		return
	}
	r := &rota{pool: p, interval: p.scrapeInterval, workers: maxWorkers}
	r.job = func(ctx context.Context, t *turn, w *worker) time.Duration {
		if t.scanner == nil {
			t.scanner = newScanner(cfg.Engine)
		}
		began := time.Now()
		fault, err := p.scrapeOne(ctx, dial, cfg.Metrics, t, w)
		if ctx.Err() != nil || err == errLost {
			return 0
		}
		took := time.Since(began) + t.waited
		t.slow = fault != "" || took > cfg.Metrics.Interval.D()/slowPart
		p.opts.Metrics.scraped(p.name, fault, took)
		return p.scrapedNext(t, fault, err)
	}
	r.begin = func(ctx context.Context, t *turn) { dial.begin(ctx, t, cfg.Metrics.Timeout.D()) }
	r.ready = dial.ready
	p.run(scraping, r.run)
}

// scrapedNext is the wait until the member's next turn: longer after failures
// in a row, so that servers that hang do not take up the workers.
func (p *Pool) scrapedNext(t *turn, f fault, err error) time.Duration {
	interval := p.scrapeInterval()
	if f == "" {
		if t.failures >= scrapeFailuresLogged {
			p.log.Info("member is scraped again", "member", t.member.address)
		}
		t.failures = 0
		t.member.lastScrape.Store(nil)
		return interval
	}
	t.failures++
	t.member.lastScrape.Store(&scrapeFailure{fault: f, text: err.Error()})
	if t.failures == scrapeFailuresLogged {
		p.log.Warn("member cannot be scraped", "member", t.member.address, "result", string(f), "error", err)
	}
	limit := slowest
	if f == faultTimeout {
		limit = slowestHung
	}
	return max(interval, min(limit, interval<<min(t.failures, 10)))
}

// scrapeFailuresLogged is how many failures in a row make a line in the log.
const scrapeFailuresLogged = 3

// scrapeFailure is the last scrape of a member that brought nothing.
type scrapeFailure struct {
	fault fault
	text  string
}

func (p *Pool) scrapeOne(ctx context.Context, dial *dialer, cfg config.Metrics, t *turn, w *worker) (fault, error) {
	status, page, err := dial.ask(ctx, cfg.Timeout.D(), t, cfg.Path, w.page)
	if cap(page) <= max(keepPage, 4*len(page)) {
		w.page = page
	} else {
		w.page = nil
	}
	at := p.now()
	if err != nil {
		return faultOf(err), err
	}
	if status != http.StatusOK {
		return faultStatus, fmt.Errorf("%s answered %d", cfg.Path, status)
	}
	began := time.Now()
	t.scanner.scan(page)
	x, witnessed := t.scanner.result(at)
	took := time.Since(began)
	if t.conn != nil { // or it was the last answer on its connection
		took += t.conn.Worked(len(page))
	}
	p.cost.add(took)
	if ctx.Err() != nil {
		return "", nil // of a scraper that has been replaced
	}
	if x.Has == 0 {
		t.member.emptyPage(t.scanner.expected())
		return faultEmpty, fmt.Errorf("%s holds no metric of engine %s", cfg.Path, p.cfg.Load().Engine)
	}
	t.member.setPage(x, t.scanner.expected(), witnessed)
	return "", nil
}
