// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// segmentBytes is how long a segment grows before the next one begins.
const segmentBytes = 8 << 20

// spool is a directory of segments: what was settled and is not in the database
// yet. One goroutine appends, one reads and drops, one syncs. Segments of former
// processes are read and never appended to.
type spool struct {
	dir     string
	log     *slog.Logger
	metrics *Instruments
	lock    *os.File
	source  int64 // of the rows that this process appends

	cur *os.File // the appender's own
	seq int64    // of the next row; the appender's own

	mu       sync.Mutex
	segments []*segment // oldest first; the last one grows while cur is open
	next     int64      // number of the next segment
	growing  bool       // the last one grows
	dirty    []*os.File // to be synced, and closed unless it is the growing one
	bytes    int64      // of all segments
	rows     int64      // that the database has not taken
	unsure   bool       // the directory is to be synced
}

// segment is one file. size and rows are what is readable of it.
type segment struct {
	number int64
	path   string
	source int64
	first  int64 // seq of its first row
	size   int64
	rows   int64
	read   position // how far the database is
}

// position is a place between two frames.
type position struct {
	offset int64
	seq    int64
}

// openSpool takes dir for this process and finds what a former one has left.
func openSpool(dir string, log *slog.Logger, m *Instruments) (*spool, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("ledger: spool: %w", err)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	s := &spool{dir: dir, log: log, metrics: m, lock: lock, source: newSource()}
	entries, err := os.ReadDir(dir)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("ledger: spool: %w", err)
	}
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), ".segment")
		number, err := strconv.ParseInt(name, 10, 64)
		if !ours || err != nil {
			continue
		}
		s.next = max(s.next, number+1)
		if g := s.find(filepath.Join(dir, e.Name()), number); g != nil {
			s.segments = append(s.segments, g)
			s.bytes += g.size
			s.rows += g.rows
		}
	}
	slices.SortFunc(s.segments, func(a, b *segment) int { return int(a.number - b.number) })
	if s.rows > 0 {
		log.Info("the spool has rows of a former run", "dir", dir, "rows", s.rows)
	}
	s.tell()
	return s, nil
}

// newSource is a number that no other process has.
func newSource() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:]) &^ (1 << 63))
}

// find looks at a segment of a former process: how much of it can be read. One
// that ends within a frame was torn by the end of that process, and is cut; one
// whose header is not ours is set aside.
func (s *spool) find(path string, number int64) *segment {
	f, err := os.Open(path)
	if err != nil {
		s.log.Error("a segment of the spool cannot be read", "path", path, "error", err)
		s.metrics.failed(stageSpool)
		return nil
	}
	defer f.Close()
	g := &segment{number: number, path: path}
	r, err := newReader(f)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		os.Remove(path) // it was begun, and nothing came
		return nil
	}
	if err != nil {
		s.setAside(path, 0, err)
		return nil
	}
	g.source, g.first = r.source, r.first
	for {
		_, err = r.next()
		if errors.Is(err, errSum) {
			g.rows++ // told and counted when it is its turn
			continue
		}
		if err != nil {
			break
		}
		g.rows++
	}
	g.size = r.offset
	g.read = position{segmentHead, g.first}
	if err == io.EOF {
		return g
	}
	s.log.Warn("a segment of the spool ends within a row, which was not settled yet when its process ended", "path", path, "offset", r.offset, "error", err)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		s.metrics.failed(stageSpool)
		s.keep(path)
	}
	return g
}

// setAside renames a file that is none of ours, so that it is neither read again
// nor lost.
func (s *spool) setAside(path string, offset int64, err error) {
	s.metrics.failed(stageSpool)
	s.log.Error("a segment of the spool is damaged and set aside", "path", path+".damaged", "offset", offset, "error", err)
	os.Rename(path, path+".damaged")
}

// keep links a damaged segment under another name, for somebody to look at; what
// can be read of it is read.
func (s *spool) keep(path string) { _ = os.Link(path, path+".damaged") }

// append writes frames of rows whose seq follow each other, in one write. After
// an error nothing of them counts as written.
func (s *spool) append(frames []byte, rows int64, limit int64) error {
	s.mu.Lock()
	bytes := s.bytes
	s.mu.Unlock()
	if bytes+int64(len(frames)) > limit {
		return errSpoolFull
	}
	if s.cur == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	g := s.growingSegment()
	n, err := s.cur.Write(frames)
	if err == nil && n < len(frames) {
		err = io.ErrShortWrite
	}
	if err != nil {
		// What was written of it is cut off again. If even that fails, a reader
		// stops at the torn frame.
		s.cur.Truncate(g.size)
		s.retire()
		return fmt.Errorf("ledger: spool: %w", err)
	}
	s.seq += rows
	s.mu.Lock()
	g.size += int64(len(frames))
	g.rows += rows
	s.bytes += int64(len(frames))
	s.rows += rows
	if !slices.Contains(s.dirty, s.cur) {
		s.dirty = append(s.dirty, s.cur)
	}
	full := g.size >= segmentBytes
	s.mu.Unlock()
	s.tell()
	if full {
		s.retire()
	}
	return nil
}

var errSpoolFull = errors.New("ledger: spool: ledger.spoolSize is reached; the database has taken nothing for long")

func (s *spool) growingSegment() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments[len(s.segments)-1]
}

// begin starts a segment.
func (s *spool) begin() error {
	s.mu.Lock()
	number := s.next
	s.next++
	s.mu.Unlock()
	path := filepath.Join(s.dir, fmt.Sprintf("%012d.segment", number))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("ledger: spool: %w", err)
	}
	if _, err := f.Write(header(s.source, s.seq)); err != nil {
		f.Close()
		os.Remove(path)
		return fmt.Errorf("ledger: spool: %w", err)
	}
	s.cur = f
	s.mu.Lock()
	s.segments = append(s.segments, &segment{number: number, path: path, source: s.source, first: s.seq, size: segmentHead, read: position{segmentHead, s.seq}})
	s.bytes += segmentHead
	s.growing, s.unsure = true, true
	s.mu.Unlock()
	return nil
}

// retire ends the growing segment; whoever syncs closes its file.
func (s *spool) retire() {
	s.mu.Lock()
	if !slices.Contains(s.dirty, s.cur) {
		s.dirty = append(s.dirty, s.cur)
	}
	s.growing = false
	s.mu.Unlock()
	s.cur = nil
}

// sync makes what was appended before it survive a loss of power.
func (s *spool) sync() error {
	s.mu.Lock()
	files, unsure := s.dirty, s.unsure
	s.dirty, s.unsure = nil, false
	s.mu.Unlock()
	var first error
	for _, f := range files {
		err := f.Sync()
		s.mu.Lock()
		if !s.growing || f.Name() != s.segments[len(s.segments)-1].path {
			f.Close()
		} else if err != nil {
			s.dirty = append(s.dirty, f)
		}
		s.mu.Unlock()
		if err != nil && !errors.Is(err, fs.ErrClosed) && first == nil {
			first = err
		}
	}
	if unsure {
		if d, err := os.Open(s.dir); err == nil {
			err = d.Sync()
			d.Close()
			if err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// oldest is the segment that the database gets next, with what is readable of it
// now; nil: there is none. grows says that more may come.
func (s *spool) oldest() (g segment, grows, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 {
		return segment{}, false, false
	}
	return *s.segments[0], s.growing && len(s.segments) == 1, true
}

// taken says that the database has the rows of the oldest segment up to p. A
// segment that was taken whole, and grows no more, is dropped.
func (s *spool) taken(p position) {
	s.mu.Lock()
	g := s.segments[0]
	s.rows -= p.seq - g.read.seq
	g.read = p
	drop := p.offset >= g.size && (!s.growing || len(s.segments) > 1)
	if drop {
		s.rows -= g.first + g.rows - p.seq // what nobody can read
		s.segments = s.segments[1:]
		s.bytes -= g.size
	}
	s.mu.Unlock()
	if drop {
		if err := os.Remove(g.path); err != nil {
			s.metrics.failed(stageSpool)
			s.log.Error("a segment of the spool cannot be removed; its rows are in the database, and are not taken twice", "path", g.path, "error", err)
		}
	}
	s.tell()
}

// waiting is how many rows the database has not taken.
func (s *spool) waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows
}

func (s *spool) tell() {
	s.mu.Lock()
	rows, bytes := s.rows, s.bytes
	s.mu.Unlock()
	s.metrics.waits(rows, bytes)
}

// close ends the spool when nobody appends or reads any more, and says how many
// rows are left in it. An empty one leaves no file behind.
func (s *spool) close() int64 {
	if s.cur != nil {
		s.retire()
	}
	s.sync()
	for {
		g, _, ok := s.oldest()
		if !ok || g.read.offset < g.size {
			break
		}
		s.taken(g.read)
	}
	s.lock.Close()
	return s.waiting()
}

// header begins a segment.
func header(source, first int64) []byte {
	b := make([]byte, segmentHead)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], uint64(source))
	binary.LittleEndian.PutUint64(b[16:], uint64(first))
	binary.LittleEndian.PutUint32(b[24:], checksum(b[:24]))
	return b
}
