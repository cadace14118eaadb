// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
)

// Options are what a Log needs from its surroundings. The zero value works.
type Options struct {
	Log     *slog.Logger
	Metrics *Instruments // shared by the logs that follow each other over reloads; nil: none
	Stdout  io.Writer    // for the path "stdout"; nil: os.Stdout
}

// Instruments count what became of records.
type Instruments struct {
	written prometheus.Counter
	dropped *prometheus.CounterVec
	errors  prometheus.Counter
}

// NewInstruments registers the metrics.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	in := &Instruments{
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_records_written_total",
			Help: "Request records written to the sink.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_records_dropped_total",
			Help: "Request records lost, by reason: full (the sink was too slow), write (it failed), closed.",
		}, []string{"reason"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_record_write_errors_total",
			Help: "Failed writes to the sink of request records.",
		}),
	}
	for _, reason := range []string{dropFull, dropWrite, dropClosed} {
		in.dropped.WithLabelValues(reason)
	}
	reg.MustRegister(in.written, in.dropped, in.errors)
	return in
}

// The reasons for which a record is lost.
const (
	dropFull   = "full"
	dropWrite  = "write"
	dropClosed = "closed"
)

func (in *Instruments) drop(reason string, n int) {
	if in != nil && n > 0 {
		in.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

// batchBytes is how much the writer collects before it writes although more
// records are waiting.
const batchBytes = 64 << 10

// Log writes records to one sink from a goroutine of its own. It rotates its file
// if it is told to; else the size is the operator's affair: rename it and call
// Reopen. A nil Log drops everything silently: records are off.
type Log struct {
	path    string
	log     *slog.Logger
	metrics *Instruments
	rotate  config.Rotate

	mu     sync.RWMutex // held for reading over a send, for writing over close(queue)
	closed bool
	queue  chan *Record

	next      atomic.Pointer[os.File] // opened by Reopen, taken by the writer
	abandoned atomic.Bool             // Close ran out of time: what is left is dropped
	done      chan struct{}           // the writer has ended

	// The writer's own.
	out     io.Writer
	file    *os.File // nil: out is not ours to close
	size    int64    // of file
	torn    bool     // the sink ends in the middle of a line
	batch   []byte
	lastErr string // of the last write, "" when it went well
}

// Open starts the log that cfg asks for; nil when records are off.
func Open(cfg config.Records, o Options) (*Log, error) {
	if cfg.Path == "" || cfg.Path == "off" {
		return nil, nil
	}
	if cfg.Buffer <= 0 {
		cfg.Buffer = 8192
	}
	l := &Log{
		path:    cfg.Path,
		log:     o.Log,
		metrics: o.Metrics,
		rotate:  cfg.Rotate,
		queue:   make(chan *Record, cfg.Buffer),
		done:    make(chan struct{}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Path == "stdout" {
		if l.out = o.Stdout; l.out == nil {
			l.out = os.Stdout
		}
	} else {
		file, torn, err := openFile(cfg.Path)
		if err != nil {
			return nil, err
		}
		l.file, l.out, l.torn, l.size = file, file, torn, sizeOf(file)
	}
	go l.write()
	return l, nil
}

// openFile opens path for appending and says whether its last line is cut off.
func openFile(path string) (file *os.File, torn bool, err error) {
	file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, false, fmt.Errorf("usage: open records: %w", err)
	}
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return file, false, nil
	}
	r, err := os.Open(path)
	if err != nil {
		return file, false, nil // may be written, not read: a cut line stays cut
	}
	defer r.Close()
	var last [1]byte
	_, err = r.ReadAt(last[:], st.Size()-1)
	return file, err == nil && last[0] != '\n', nil
}

// Emit hands r over; r must not change afterwards. It never blocks: when the
// queue is full, or the log closed, the record is dropped and counted.
func (l *Log) Emit(r *Record) {
	if l == nil || r == nil {
		return
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.metrics.drop(dropClosed, 1)
		return
	}
	select {
	case l.queue <- r:
	default:
		l.metrics.drop(dropFull, 1)
	}
}

// Reopen opens the path again, for an operator who has renamed the file. The
// next write goes to the new file; on an error the old one stays in use.
func (l *Log) Reopen() error {
	if l == nil || l.path == "stdout" {
		return nil
	}
	l.mu.RLock() // not after Close, which takes away what is left in next
	defer l.mu.RUnlock()
	if l.closed {
		return nil
	}
	file, _, err := openFile(l.path)
	if err != nil {
		return err
	}
	if old := l.next.Swap(file); old != nil {
		return old.Close()
	}
	return nil
}

// Close takes no more records, writes those that wait, and closes the file.
// When ctx ends first, what is left is dropped and counted, and the error says
// how many records waited then; a write that hangs in the kernel is left
// behind. Closing again waits for the same end.
func (l *Log) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		left := len(l.queue)
		l.abandoned.Store(true)
		return fmt.Errorf("usage: %s: %d records not written: %w", l.path, left, context.Cause(ctx))
	}
}

// write is the writer goroutine. It writes when nothing waits or the batch is
// large, so a record is on its way as soon as the sink is free.
func (l *Log) write() {
	defer close(l.done)
	for r := range l.queue {
		if l.abandoned.Load() {
			l.metrics.drop(dropClosed, 1)
			continue
		}
		batch, err := appendRecord(l.batch, r)
		l.batch = batch
		if err != nil {
			// A float that JSON cannot say; the writer must survive it.
			l.failed(err)
			l.metrics.drop(dropWrite, 1)
			continue
		}
		if len(l.queue) == 0 || len(l.batch) >= batchBytes {
			l.flush()
		}
	}
	l.flush()
	if f := l.next.Swap(nil); f != nil {
		f.Close()
	}
	if l.file != nil {
		if err := l.file.Close(); err != nil {
			l.failed(err)
		}
	}
}

// flush writes the batch once. A failed write loses its records: the sink may
// work again for the next batch, and memory stays bounded.
func (l *Log) flush() {
	if f := l.next.Swap(nil); f != nil {
		if l.file != nil {
			l.file.Close()
		}
		l.file, l.out, l.torn, l.size = f, f, false, sizeOf(f)
	}
	b := l.batch
	if len(b) == 0 {
		return
	}
	if l.torn {
		if _, err := l.out.Write([]byte{'\n'}); err == nil {
			l.torn = false
		}
	}
	n, err := l.out.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	written := bytes.Count(b[:n], []byte{'\n'})
	if n > 0 {
		l.torn = b[n-1] != '\n'
	}
	if l.metrics != nil {
		l.metrics.written.Add(float64(written))
		l.metrics.drop(dropWrite, bytes.Count(b[n:], []byte{'\n'}))
	}
	l.batch = l.batch[:0]
	if l.size += int64(n); err == nil {
		err = l.turn()
	}
	l.failed(err)
}

// failed counts err and logs it when it differs from the last outcome.
func (l *Log) failed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		var pe *os.PathError
		if errors.As(err, &pe) {
			text = pe.Err.Error()
		}
		if l.metrics != nil {
			l.metrics.errors.Inc()
		}
	}
	if text == l.lastErr {
		return
	}
	l.lastErr = text
	if err != nil {
		l.log.Error("request records are lost", "path", l.path, "error", text)
	} else {
		l.log.Info("request records are written again", "path", l.path)
	}
}
