// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package spool keeps rows in files until somebody has taken them, so that they
// outlive the process that put them there.
//
// What is in a row it leaves to its user, package ledger. Start reading at
// [Spool.TryPut]; the form of a file is in reader.go, how one is written in
// file.go.
//
// Always true: a row that was put is read once by whoever takes, in this process
// or the next one, however this one ends; the machine's loss of power takes no
// more than what came after the last [Spool.Sync]; what a crash or a disk has
// torn is never read as a row.
package spool

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

const (
	// segmentBytes is how long a segment grows before the next one begins.
	segmentBytes = 8 << 20
	// leastBytes is the shortest segment, for a disk that has no more room.
	leastBytes = 256 << 10
	// MostPut bounds the frames of one call.
	MostPut = leastBytes - segmentHead
)

// Options are what a Spool needs from its surroundings. The zero value works.
type Options struct {
	Log    *slog.Logger
	Failed func()                  // counts a failure that the log tells of
	Tell   func(rows, bytes int64) // how much there is now
}

// Spool is a directory of segments. Anybody puts, one goroutine takes and one
// syncs. Segments of former processes are read and never appended to.
type Spool struct {
	Options
	dir    string
	lock   *os.File
	source int64 // of the rows that this process puts

	mu       sync.Mutex
	cur      *file // the last segment's; nil: it grows no more
	seq      int64 // of the next row
	segments []*Segment
	next     int64   // number of the next segment
	dirty    []*file // to be synced, and closed if they are retired
	bytes    int64   // of all segments
	rows     int64   // that nobody has taken
	unsure   bool    // the directory is to be synced
}

// Segment is one file. Size and Rows are what is readable of it.
type Segment struct {
	Path   string
	Source int64 // the process that wrote it
	First  int64 // number of its first row there
	Size   int64
	Rows   int64
	Taken  Position

	number int64
}

// Position is a place between two frames: an offset in the file, and the number of
// the row that follows.
type Position struct{ Offset, Seq int64 }

// End is the position behind the last row.
func (g *Segment) End() Position { return Position{g.Size, g.First + g.Rows} }

// Open takes dir for this process and finds what a former one has left.
func Open(dir string, o Options) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	s := &Spool{Options: o, dir: dir, lock: lock, source: newSource()}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Failed == nil {
		s.Failed = func() {}
	}
	if s.Tell == nil {
		s.Tell = func(int64, int64) {}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("spool: %w", err)
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
			s.bytes += g.Size
			s.rows += g.Rows
		}
	}
	slices.SortFunc(s.segments, func(a, b *Segment) int { return int(a.number - b.number) })
	if s.rows > 0 {
		s.Log.Info("the spool has rows of a former run", "dir", dir, "rows", s.rows)
	}
	s.Tell(s.rows, s.bytes)
	return s, nil
}

// newSource is a number that no other process has.
func newSource() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:]) &^ (1 << 63))
}

// Dir is where it is.
func (s *Spool) Dir() string { return s.dir }

// find looks at a segment of a former process: how much of it can be read. One
// that ends within a frame was torn by the end of that process; one whose header
// is not ours is set aside.
func (s *Spool) find(path string, number int64) *Segment {
	f, err := os.Open(path)
	if err != nil {
		s.Log.Error("a segment of the spool cannot be read", "path", path, "error", err)
		s.Failed()
		return nil
	}
	defer f.Close()
	r, err := newReader(f)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errBlank) {
		os.Remove(path) // it was begun, and nothing came
		return nil
	}
	if err != nil {
		// So that it is neither read again nor lost.
		s.Failed()
		s.Log.Error("a segment of the spool is damaged and set aside", "path", path+".damaged", "error", err)
		os.Rename(path, path+".damaged")
		return nil
	}
	g := &Segment{number: number, Path: path, Source: r.source, First: r.first, Taken: Position{segmentHead, r.first}}
	for {
		_, err = r.Next()
		if errors.Is(err, ErrSum) {
			err = nil // told and counted when it is its turn
		}
		if err != nil {
			break
		}
		g.Rows++
	}
	g.Size = r.offset
	if errors.Is(err, errBlank) {
		err = r.rest()
	}
	if err == io.EOF {
		return g
	}
	s.Log.Warn("a segment of the spool ends within a row, which was not settled yet when its process ended", "path", path, "offset", g.Size, "error", err)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		s.Failed()
		// For somebody to look at; what can be read of it is read.
		_ = os.Link(path, path+".damaged")
	}
	return g
}

// TryPut puts the frames of rows if that takes no call of the system, and says
// whether it did: then they survive the end of the process. Else [Spool.Put] is
// for them. Of several goroutines one at a time gets through, so that a page which
// the disk keeps waiting holds up no more than one.
func (s *Spool) TryPut(frames []byte, rows int, limit int64) bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if s.cur == nil || s.cur.pages == nil || s.bytes+int64(len(frames)) > limit || !s.cur.fits(s.last().Size, len(frames)) {
		return false
	}
	return s.put(frames, rows) == nil
}

// Put puts frames, at most [MostPut] bytes, and begins a segment where it must.
// After an error nothing of them counts as written. It is for one goroutine.
func (s *Spool) Put(frames []byte, rows int, limit int64) error {
	s.mu.Lock()
	if s.bytes+int64(len(frames)) > limit {
		s.mu.Unlock()
		return ErrFull
	}
	if s.cur != nil && s.cur.fits(s.last().Size, len(frames)) {
		if err := s.put(frames, rows); err == nil || s.cur.pages == nil {
			s.mu.Unlock()
			if err != nil {
				s.retire()
			}
			return err
		}
	}
	s.mu.Unlock()
	s.retire()
	err := s.begin(frames, rows)
	if err != nil {
		s.retire()
	}
	return err
}

// ErrFull says that the limit is reached.
var ErrFull = errors.New("spool: ledger.spoolSize is reached; the database has taken nothing for long")

// last is the newest segment; s.mu is held.
func (s *Spool) last() *Segment { return s.segments[len(s.segments)-1] }

// put writes behind the last row; s.mu is held.
func (s *Spool) put(frames []byte, rows int) error {
	g := s.last()
	if err := s.cur.write(g.Size, frames); err != nil {
		s.cur.broken = true
		return fmt.Errorf("spool: %w", err)
	}
	s.seq += int64(rows)
	g.Size += int64(len(frames))
	g.Rows += int64(rows)
	s.bytes += int64(len(frames))
	s.rows += int64(rows)
	if !slices.Contains(s.dirty, s.cur) {
		s.dirty = append(s.dirty, s.cur)
	}
	s.Tell(s.rows, s.bytes)
	return nil
}

// begin starts a segment with frames.
func (s *Spool) begin(frames []byte, rows int) error {
	s.mu.Lock()
	number, seq := s.next, s.seq
	s.next++
	s.mu.Unlock()
	path := filepath.Join(s.dir, fmt.Sprintf("%012d.segment", number))
	c, err := createFile(path, header(s.source, seq))
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur = c
	s.segments = append(s.segments, &Segment{number: number, Path: path, Source: s.source, First: seq, Size: segmentHead, Taken: Position{segmentHead, seq}})
	s.bytes += segmentHead
	s.unsure = true
	return s.put(frames, rows)
}

// retire ends the growing segment, if there is one; whoever syncs closes its file.
func (s *Spool) retire() {
	s.mu.Lock()
	c := s.cur
	if c == nil {
		s.mu.Unlock()
		return
	}
	size := s.last().Size
	s.cur = nil
	s.mu.Unlock()
	if err := c.cut(size); err != nil {
		// A reader stops where nothing was written, or at the torn frame.
		s.Log.Warn("a segment of the spool keeps room that it does not need", "path", c.f.Name(), "error", err)
	}
	s.mu.Lock()
	c.retired = true
	if !slices.Contains(s.dirty, c) {
		s.dirty = append(s.dirty, c)
	}
	s.mu.Unlock()
}

// Sync makes what was put before it survive a loss of power.
func (s *Spool) Sync() error {
	s.mu.Lock()
	files, unsure := s.dirty, s.unsure
	s.dirty, s.unsure = nil, false
	s.mu.Unlock()
	var first error
	for _, c := range files {
		err := c.f.Sync() // of pages too
		s.mu.Lock()
		if c.retired {
			c.f.Close()
		} else if err != nil {
			s.dirty = append(s.dirty, c)
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

// Oldest is the segment that is to be taken next, as it is now. grows says that
// more may come; not ok: there is none.
func (s *Spool) Oldest() (g Segment, grows, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 {
		return Segment{}, false, false
	}
	return *s.segments[0], s.cur != nil && len(s.segments) == 1, true
}

// Take says that the rows of the oldest segment up to p are elsewhere. A segment
// that was taken whole, and grows no more, is dropped.
func (s *Spool) Take(p Position) {
	s.mu.Lock()
	g := s.segments[0]
	s.rows -= p.Seq - g.Taken.Seq
	g.Taken = p
	drop := p.Offset >= g.Size && (s.cur == nil || len(s.segments) > 1)
	if drop {
		s.rows -= g.First + g.Rows - p.Seq // what nobody can read
		s.segments = s.segments[1:]
		s.bytes -= g.Size
	}
	s.Tell(s.rows, s.bytes)
	s.mu.Unlock()
	if drop {
		if err := os.Remove(g.Path); err != nil {
			s.Failed()
			s.Log.Error("a segment of the spool cannot be removed; its rows are in the database, and are not taken twice", "path", g.Path, "error", err)
		}
	}
}

// Waiting is how many rows nobody has taken.
func (s *Spool) Waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows
}

// Close ends the spool when nobody puts or takes any more, and says how many rows
// are left in it. An empty one leaves no file behind.
func (s *Spool) Close() int64 {
	s.retire()
	s.Sync()
	for {
		g, _, ok := s.Oldest()
		if !ok || g.Taken.Offset < g.Size {
			break
		}
		s.Take(g.Taken)
	}
	s.lock.Close()
	return s.Waiting()
}
