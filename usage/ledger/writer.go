// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// The bounds of the writers.
const (
	mostRows   = 5000             // of one batch for the database
	chunkBytes = 1 << 20          // of one write to the spool
	syncTime   = time.Second      // between two syncs of the spool: what a loss of power may cost
	retryTime  = time.Second      // before the next try after a failure; it doubles
	retryMost  = 30 * time.Second // and grows no longer than this
	batchTime  = time.Minute      // that the database may take for a batch
)

// spoolRows is the goroutine that brings records from the queue to the spool. It
// is woken by each and takes all that wait: what is in the spool survives the end
// of the process.
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
	rows   []Row
	frames []byte
	fault  fault
}

// write brings a batch to the spool. While that fails the records stay in memory,
// and new ones queue behind them; not ok: the ledger ends before it succeeded.
func (w *spooler) write(batch []item) (ok bool) {
	for i := 0; i < len(batch); {
		w.frames = w.frames[:0]
		n := 0
		for ; i < len(batch) && len(w.frames) < chunkBytes; i++ {
			if it := &batch[i]; it.record != nil {
				w.rows = rowsOf(w.rows[:0], it.record)
			} else {
				it.outcome.clean()
				w.rows = append(w.rows[:0], *it.outcome)
			}
			for j := range w.rows {
				w.frames = appendFrame(w.frames, &w.rows[j])
				n++
			}
		}
		if !w.append(n) {
			w.l.metrics.drop(dropClosed, n+len(batch)-i)
			return false
		}
	}
	if len(batch) > 0 {
		poke(w.l.written)
	}
	return true
}

// append tries until the frames are in the spool or the ledger ends.
func (w *spooler) append(rows int) bool {
	l := w.l
	for wait := retryTime; ; wait = min(2*wait, retryMost) {
		err := l.spool.append(w.frames, int64(rows), int64(l.cfg.Load().SpoolSize))
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
		if errors.Is(err, errSpoolFull) {
			// There is a bound, and it is reached: memory would only put it off.
			l.metrics.drop(dropSpool, rows)
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
		err := l.spool.sync()
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
				l.log.Error("the database of the ledger takes no rows; they wait in the spool", "error", err, "waiting", l.spool.waiting())
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
	file   *os.File // of the oldest segment
	reader *reader
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
	g, grows, ok := l.spool.oldest()
	if !ok {
		s.forget()
		s.oldest = 0
		return 0, nil
	}
	if g.read.offset >= g.size {
		if grows {
			s.oldest = 0
			return 0, nil
		}
		s.forget()
		l.spool.taken(g.read)
		return 1, nil
	}
	if err := s.open(&g); err != nil {
		l.metrics.failed(stageSpool)
		l.log.Error("a segment of the spool cannot be read", "path", g.path, "error", err)
		l.metrics.drop(dropDamaged, int(g.first+g.rows-g.read.seq))
		s.forget()
		l.spool.taken(position{g.size, g.first + g.rows})
		return 1, nil
	}
	s.batch.reset(g.source, g.read.seq)
	to := g.read
	for s.batch.len() < mostRows && s.reader.offset < g.size {
		payload, err := s.reader.next()
		if errors.Is(err, errSum) {
			s.damaged(&g, err)
			to = position{s.reader.offset, s.reader.seq}
			continue
		}
		if err != nil {
			s.damaged(&g, err)
			to = position{g.size, g.first + g.rows}
			break
		}
		if err := s.batch.add(payload, s.reader.seq-1); err != nil {
			s.damaged(&g, err)
		}
		to = position{s.reader.offset, s.reader.seq}
	}
	s.batch.to = to.seq
	if s.batch.len() > 0 {
		s.oldest = s.batch.rows[0].At
	}
	if err := s.insert(); err != nil {
		s.forget() // it is read again
		return 0, err
	}
	l.spool.taken(to)
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

func (s *storer) damaged(g *segment, err error) {
	s.l.metrics.failed(stageSpool)
	s.l.metrics.drop(dropDamaged, 1)
	s.l.log.Error("a row of the spool is damaged and lost", "path", g.path, "offset", s.reader.offset, "error", err)
}

// open brings the reader to where the database is in g.
func (s *storer) open(g *segment) error {
	if s.path == g.path && s.reader != nil && s.reader.offset == g.read.offset {
		return nil
	}
	s.forget()
	f, err := os.Open(g.path)
	if err != nil {
		return err
	}
	s.file, s.path = f, g.path
	if s.reader, err = newReader(f); err != nil {
		return err
	}
	s.reader.at = s.reader.have // what was read ahead is dropped
	if _, err := f.Seek(g.read.offset, io.SeekStart); err != nil {
		return err
	}
	s.reader.offset, s.reader.seq = g.read.offset, g.read.seq
	return nil
}

func (s *storer) forget() {
	if s.file != nil {
		s.file.Close()
	}
	s.file, s.reader, s.path = nil, nil, ""
}
