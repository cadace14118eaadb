// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"time"

	"github.com/penstock/penstock/config"
)

// Old rows go in small steps, so that nobody waits for them.
const (
	pruneTime  = 10 * time.Minute // between two looks
	pruneStep  = 2000             // rows of one transaction
	prunePause = 200 * time.Millisecond
	jumpTime   = time.Hour // a clock that is off by more is not believed
)

// prune is the goroutine that deletes rows older than the retention.
func (l *Ledger) prune() {
	c := clock{wall: time.Now().Round(0), mono: time.Now()}
	var f fault
	for {
		select {
		case <-time.After(pruneTime):
		case <-l.ending.Done():
			return
		}
		now, jumped := c.look()
		keep := l.cfg.Load().Retention.D()
		switch {
		case keep == 0:
			continue
		case jumped:
			l.log.Warn("the clock has jumped; nothing is deleted from the ledger this time", "now", now)
			continue
		}
		_, err := l.PruneBefore(l.ending, now.Add(-keep))
		if err != nil && l.ending.Err() == nil {
			l.metrics.failed(stagePrune)
		}
		if f.changed(err) && err != nil && l.ending.Err() == nil {
			l.log.Error("old rows of the ledger are not deleted", "error", err)
		}
	}
}

// clock notices when the time of day moves otherwise than time does: a clock that
// runs ahead would make every row an old one.
type clock struct {
	wall, mono time.Time
}

func (c *clock) look() (now time.Time, jumped bool) {
	mono := time.Now()
	now = mono.Round(0)
	off := now.Sub(c.wall) - mono.Sub(c.mono)
	c.wall, c.mono = now, mono
	return now, off > jumpTime || off < -jumpTime
}

// PruneBefore deletes rows settled before t, the names that only they had, and
// sources that are over. It returns how many rows there were.
func (l *Ledger) PruneBefore(ctx context.Context, t time.Time) (int64, error) {
	var total int64
	for {
		st := l.store.Load()
		n, err := st.pruneStep(ctx, t.UnixMicro(), pruneStep)
		total += n
		l.metrics.pruned.Add(float64(n))
		if err != nil {
			return total, err
		}
		if n < pruneStep {
			// Rows may have waited in a spool for days: their names are kept longer.
			return total, st.pruneNames(ctx, day(t)-7)
		}
		select {
		case <-time.After(prunePause):
		case <-ctx.Done():
			return total, ctx.Err()
		}
	}
}

// pruneStep deletes the oldest rows settled before at, some n of them.
func (s *store) pruneStep(ctx context.Context, at int64, n int) (int64, error) {
	if s.kind == config.Postgres {
		r, err := s.db.ExecContext(ctx, `DELETE FROM ledger_rows WHERE (at, source, seq) IN
(SELECT at, source, seq FROM ledger_rows WHERE at < $1 ORDER BY at, source, seq LIMIT $2 FOR UPDATE SKIP LOCKED)`, at, n)
		if err != nil {
			return 0, s.wrap(err)
		}
		return r.RowsAffected()
	}
	r, err := s.db.ExecContext(ctx, `DELETE FROM ledger_rows WHERE (at, source, seq) IN
(SELECT at, source, seq FROM ledger_rows WHERE at < $1 ORDER BY at, source, seq LIMIT $2)`, at, n)
	if err != nil {
		return 0, s.wrap(err)
	}
	return r.RowsAffected()
}

func (s *store) pruneNames(ctx context.Context, before int64) error {
	for _, table := range []string{"ledger_names", "ledger_sources"} {
		if _, err := s.db.ExecContext(ctx, "DELETE FROM "+table+" WHERE seen < $1", before); err != nil {
			return s.wrap(err)
		}
	}
	return nil
}
