// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps who used how much and what it cost: append-only rows in
// SQLite or PostgreSQL, one per request and one per attempt that used tokens in
// vain.
//
// It leaves counting and pricing to package usage, whose records it takes, and
// limits to package quota. Start reading at [Ledger.Append]; the way of a row is
// spool (files, package spool), database (store.go). It waits in memory only while
// the spool begins a file or its disk takes nothing (writer.go).
//
// Always true: Append waits for no call of the system; a row that is in the spool
// reaches the database once, whatever ends or is away in between; a row that is
// lost is counted, with the reason; a cost that is not known is NULL and never 0.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/ledger/spool"
)

// Options are what a Ledger needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments // shared by ledgers that follow each other; nil: none
}

// Ledger takes records and keeps them. A nil Ledger drops everything silently:
// it is off.
type Ledger struct {
	log     *slog.Logger
	metrics *Instruments
	cfg     atomic.Pointer[config.Ledger]
	spool   *spool.Spool
	store   atomic.Pointer[store]

	scratch sync.Pool // of *frames

	mu     sync.Mutex // guards what follows; held for an append to a slice
	queue  []item     // what the spool could not take at once
	closed bool

	wake    chan struct{} // something is in the queue, or closed
	barrier chan chan struct{}
	push    chan chan error
	ending  context.Context // of the writers, ended when Close runs out of time
	end     context.CancelFunc
	spooled chan struct{} // the spooling goroutine has ended
	done    chan struct{} // so has the one of the database
	helpers sync.WaitGroup
}

// Open starts the ledger that cfg asks for; nil when it is off. A PostgreSQL
// that is away is no error: rows wait in the spool. A schema that is newer than
// this program's is one, and so is a file that cannot be used.
func Open(cfg config.Ledger, o Options) (*Ledger, error) {
	if cfg.Kind() == config.LedgerOff {
		return nil, nil
	}
	l := &Ledger{
		log: o.Log, metrics: o.Metrics, wake: make(chan struct{}, 1),
		barrier: make(chan chan struct{}), push: make(chan chan error), spooled: make(chan struct{}), done: make(chan struct{}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.metrics == nil {
		l.metrics = NewInstruments(nil)
	}
	st, err := l.openStore(cfg)
	if err != nil {
		return nil, err
	}
	l.store.Store(st)
	l.cfg.Store(&cfg)
	l.scratch.New = func() any { return &frames{} }
	if l.spool, err = spool.Open(cfg.SpoolDir(), spool.Options{Log: l.log, Failed: func() { l.metrics.failed(stageSpool) }, Tell: l.metrics.waits}); err != nil {
		st.close()
		return nil, fmt.Errorf("ledger: %w", err)
	}
	l.ending, l.end = context.WithCancel(context.Background())
	go l.spoolRows()
	go l.storeRows()
	l.helpers.Go(l.syncSpool)
	l.helpers.Go(l.prune)
	return l, nil
}

// openStore opens the database and brings its schema up to date.
func (l *Ledger) openStore(cfg config.Ledger) (*store, error) {
	st, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	if err := st.migrate(ctx); err != nil {
		if st.kind == config.SQLite || errors.Is(err, errNewer) {
			st.close()
			return nil, err
		}
		l.log.Warn("the database of the ledger is away; rows wait in the spool", "error", err)
	}
	return st, nil
}

// openTime is how long a start waits for the database.
const openTime = 5 * time.Second

// hangTime is how long Close waits for a write under way when its time is up.
const hangTime = 2 * time.Second

// Prepare makes ready a change of the configuration that keeps the spool: commit
// puts it in force, abort does not. With another spool a ledger of its own is
// needed.
func (l *Ledger) Prepare(cfg config.Ledger) (commit, abort func(), err error) {
	if cfg.SpoolDir() != l.cfg.Load().SpoolDir() {
		return nil, nil, fmt.Errorf("ledger: the spool cannot be changed while in use")
	}
	old := l.cfg.Load()
	if cfg.Kind() == old.Kind() && cfg.Path == old.Path && cfg.DSN == old.DSN {
		return func() { l.cfg.Store(&cfg) }, func() {}, nil
	}
	st, err := l.openStore(cfg)
	if err != nil {
		return nil, nil, err
	}
	return func() { l.cfg.Store(&cfg); l.store.Swap(st).close() }, st.close, nil
}

// Config is the one in force.
func (l *Ledger) Config() config.Ledger { return *l.cfg.Load() }

// Append hands rec over; it must not change afterwards. As a rule it is in the
// spool then, where the end of the process does not take it. What there is no room
// for is dropped and counted.
func (l *Ledger) Append(rec *usage.Record) {
	if l == nil {
		return
	}
	l.put(item{record: rec})
}

// item is one thing for the spool: a record, or a row of no request.
type item struct {
	record  *usage.Record
	outcome *Row
}

func (l *Ledger) put(it item) {
	f := l.scratch.Get().(*frames)
	f.reset()
	f.add(&it)
	done := l.spool.TryPut(f.bytes, f.rows, int64(l.cfg.Load().SpoolSize))
	l.scratch.Put(f)
	if done {
		return
	}
	l.mu.Lock()
	room := len(l.queue) < l.cfg.Load().Buffer
	if room && !l.closed {
		l.queue = append(l.queue, it)
	}
	closed := l.closed
	l.mu.Unlock()
	switch {
	case closed:
		l.metrics.drop(dropClosed, 1)
	case !room:
		l.metrics.drop(dropFull, 1)
	default:
		poke(l.wake)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Settled waits until what was appended before it is in the spool, where the end
// of the process does not take it.
func (l *Ledger) Settled(ctx context.Context) error {
	through := make(chan struct{})
	select {
	case l.barrier <- through:
	case <-l.spooled:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-through:
		return nil
	case <-l.spooled:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errClosed = errors.New("ledger: closed")

// Flush brings what was appended before it into the database, or says why it is
// not there yet.
func (l *Ledger) Flush(ctx context.Context) error {
	if l == nil {
		return nil
	}
	if err := l.Settled(ctx); err != nil {
		return err
	}
	reply := make(chan error, 1)
	select {
	case l.push <- reply:
	case <-l.done:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close takes no more records and brings those that wait into the spool and the
// database. When ctx ends first, what the database has not taken stays in the
// spool for the next start. Closing again waits for the same end.
func (l *Ledger) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	poke(l.wake)
	select {
	case <-l.done:
	case <-ctx.Done():
		l.end()
		hangs := time.NewTimer(hangTime)
		defer hangs.Stop()
		select {
		case <-l.done:
		case <-hangs.C: // in the kernel, over a disk that does not answer
			return fmt.Errorf("ledger: %s does not answer; its last rows may be lost", l.spool.Dir())
		}
	}
	l.end()
	l.helpers.Wait()
	l.store.Load().close()
	waiting := l.spool.Close()
	if waiting > 0 {
		return fmt.Errorf("ledger: %d rows wait in %s for the next start", waiting, l.spool.Dir())
	}
	return nil
}
