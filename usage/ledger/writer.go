// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock/usage/ledger/spool"
)

// The bounds of the writers.
const (
	mostRows   = 5000             // of one batch for the database
	chunkBytes = 64 << 10         // of one write to the spool; a record may add 160 KB, and [spool.MostPut] is the bound
	syncTime   = time.Second      // between two syncs of the spool: what a loss of power may cost
	retryTime  = time.Second      // before the next try after a failure; it doubles
	retryMost  = 30 * time.Second // and grows no longer than this
	batchTime  = time.Minute      // that the database may take for a batch
)

// spoolRows is the goroutine that brings to the spool what it did not take at once:
// because a file is full or its disk is, or somebody else was putting. It is woken
// by each such record and takes all that wait.
func (l *Ledger) spoolRows() {
	defer close(l.spooled)
	w := spooler{l: l}
	for {
		var through chan struct{}
		select {
		case <-l.wake:
		case through = <-l.barrier:
		case <-l.ending.Done():
		}
		l.mu.Lock()
		batch, closed := l.queue, l.closed
		l.queue = w.spare[:0]
		l.mu.Unlock()
		ok := w.write(batch)
		clear(batch)
		w.spare = batch
		if through != nil {
			close(through)
		}
		if closed && ok {
			return
		}
	}
}

// spooler is what spoolRows has at hand.
type spooler struct {
	l      *Ledger
	spare  []item // an empty queue
	frames frames
	fault  fault
}

// write brings a batch to the spool. While that fails the records stay in memory,
// and new ones queue behind them; not ok: the ledger ends before it succeeded.
func (w *spooler) write(batch []item) (ok bool) {
	for i := 0; i < len(batch); {
		w.frames.reset()
		for ; i < len(batch) && len(w.frames.bytes) < chunkBytes; i++ {
			w.frames.add(&batch[i])
		}
		if !w.append() {
			w.l.metrics.drop(dropClosed, w.frames.rows+len(batch)-i)
			return false
		}
	}
	return true
}

// append tries until the frames are in the spool or the ledger ends.
func (w *spooler) append() bool {
	l := w.l
	for wait := retryTime; ; wait = min(2*wait, retryMost) {
		err := l.spool.Put(w.frames.bytes, w.frames.rows, int64(l.cfg.Load().SpoolSize))
		if w.fault.changed(err) {
			if err != nil {
				l.log.Error("the ledger's spool takes no rows; up to ledger.buffer of them wait in memory, further ones are lost", "error", err)
			} else {
				l.log.Info("the ledger's spool takes rows again")
			}
		}
		if err == nil {
			return true
		}
		l.metrics.failed(stageSpool)
		if errors.Is(err, spool.ErrFull) {
			// There is a bound, and it is reached: memory would only put it off.
			l.metrics.drop(dropSpool, w.frames.rows)
			return true
		}
		select {
		case <-time.After(wait):
		case <-l.ending.Done():
			return false
		}
	}
}

// fault is the text of the last error of a kind, so that it is told when it
// changes and not every time.
type fault struct{ text string }

func (f *fault) changed(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != f.text
	f.text = text
	return changed
}

// syncSpool bounds what a loss of power takes.
func (l *Ledger) syncSpool() {
	tick := time.NewTicker(syncTime)
	defer tick.Stop()
	var f fault
	for {
		select {
		case <-tick.C:
		case <-l.ending.Done():
			return
		}
		err := l.spool.Sync()
		if err != nil {
			l.metrics.failed(stageSpool)
		}
		if f.changed(err) && err != nil {
			l.log.Error("the ledger's spool is not on the disk; a loss of power takes its newest rows", "error", err)
		}
	}
}

// storeRows is the goroutine that brings rows from the spool to the database.
func (l *Ledger) storeRows() {
	defer close(l.done)
	s := storer{l: l}
	defer s.forget()
	timer := time.NewTimer(0) // what a former process has left comes first
	defer timer.Stop()
	wait := retryTime
	for {
		var reply chan error
		closing := false
		select {
		case <-timer.C:
		case reply = <-l.push:
		case <-l.spooled:
			closing = true
		case <-l.ending.Done():
			return
		}
		err := s.drain()
		l.metrics.behind(s.oldest)
		if s.fault.changed(err) {
			if err != nil {
				l.log.Error("the database of the ledger takes no rows; they wait in the spool", "error", err, "waiting", l.spool.Waiting())
			} else {
				l.log.Info("the database of the ledger takes rows again")
			}
		}
		next := l.cfg.Load().Interval.D()
		if err != nil {
			l.metrics.failed(stageDatabase)
			next, wait = wait, min(2*wait, retryMost)
		} else {
			wait = retryTime
		}
		timer.Reset(next)
		if reply != nil {
			reply <- err
		}
		if closing && err == nil {
			return
		}
		if closing {
			select { // a last chance, for as long as Close waits
			case <-time.After(min(next, retryTime)):
			case <-l.ending.Done():
				return
			}
		}
	}
}

// storer is what storeRows has at hand.
type storer struct {
	l      *Ledger
	reader *spool.Reader // of the oldest segment; nil: none is open
	path   string
	batch  batch
	oldest int64 // when the oldest row that waits was settled; 0: none
	fault  fault
}

// drain brings all that is in the spool now to the database.
func (s *storer) drain() error {
	for {
		n, err := s.step()
		if err != nil || n == 0 {
			return err
		}
	}
}

// step brings a batch to the database. 0: there was nothing.
func (s *storer) step() (int, error) {
	l := s.l
	g, grows, ok := l.spool.Oldest()
	if !ok {
		s.forget()
		s.oldest = 0
		return 0, nil
	}
	if g.Taken.Offset >= g.Size {
		if grows {
			s.oldest = 0
			return 0, nil
		}
		s.forget()
		l.spool.Take(g.Taken)
		return 1, nil
	}
	if err := s.open(&g); err != nil {
		l.metrics.failed(stageSpool)
		l.log.Error("a segment of the spool cannot be read", "path", g.Path, "error", err)
		l.metrics.drop(dropDamaged, int(g.End().Seq-g.Taken.Seq))
		s.forget()
		l.spool.Take(g.End())
		return 1, nil
	}
	s.batch.reset(g.Source, g.Taken.Seq)
	to := g.Taken
	for s.batch.len() < mostRows && to.Offset < g.Size {
		payload, err := s.reader.Next()
		if errors.Is(err, spool.ErrSum) {
			s.damaged(&g, err)
			to = s.reader.At()
			continue
		}
		if err != nil {
			s.damaged(&g, err)
			to = g.End()
			break
		}
		to = s.reader.At()
		if err := s.batch.add(payload, to.Seq-1); err != nil {
			s.damaged(&g, err)
		}
	}
	s.batch.to = to.Seq
	if s.batch.len() > 0 {
		s.oldest = s.batch.rows[0].At
	}
	if err := s.insert(); err != nil {
		s.forget() // it is read again
		return 0, err
	}
	l.spool.Take(to)
	return max(1, s.batch.len()), nil
}

// insert brings the batch to the database. One that the database refuses for what
// is in it is tried row by row, so that one row does not hold up the others.
func (s *storer) insert() error {
	ctx, cancel := context.WithTimeout(s.l.ending, batchTime)
	defer cancel()
	st := s.l.store.Load()
	err := st.insert(ctx, &s.batch)
	if err != nil && refusesData(err) {
		s.l.metrics.failed(stageDatabase)
		refused, last := 0, error(nil)
		one := s.batch
		for i := range s.batch.rows {
			one.rows, one.to = s.batch.rows[i:i+1], s.batch.rows[i].seq+1
			if last = st.insert(ctx, &one); last != nil {
				if !refusesData(last) {
					return last
				}
				s.l.log.Error("the database of the ledger refuses a row, which is lost", "requestId", one.rows[0].Request, "error", last)
				refused++
			}
		}
		one.rows, one.to = nil, s.batch.to
		if err = st.insert(ctx, &one); err != nil {
			return err
		}
		s.l.metrics.drop(dropRefused, refused)
		s.l.metrics.written.Add(float64(s.batch.len() - refused))
		return nil
	}
	if err == nil {
		s.l.metrics.written.Add(float64(s.batch.len()))
	}
	return err
}

func (s *storer) damaged(g *spool.Segment, err error) {
	s.l.metrics.failed(stageSpool)
	s.l.metrics.drop(dropDamaged, 1)
	s.l.log.Error("a row of the spool is damaged and lost", "path", g.Path, "offset", s.reader.At().Offset, "error", err)
}

// open brings the reader to where the database is in g.
func (s *storer) open(g *spool.Segment) (err error) {
	if s.path != g.Path || s.reader == nil || s.reader.At() != g.Taken {
		s.forget()
		if s.reader, err = g.Open(); err != nil {
			return err
		}
		s.path = g.Path
	}
	s.reader.Extend(g.Size)
	return nil
}

func (s *storer) forget() {
	if s.reader != nil {
		s.reader.Close()
	}
	s.reader, s.path = nil, ""
}
