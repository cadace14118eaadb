// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// scanner reads pages of the Prometheus text format, only the lines that its
// tables name. It keeps its memory between pages and is for one goroutine.
//
// A line that cannot be read is passed over: it costs its own family only. A
// value that is not finite, or negative, makes its family missing, since a sum
// with an unknown term is unknown.
type scanner struct {
	tables   []*table
	explicit bool // an engine is configured: its signals are expected

	table *table // that knows this page, or the last one; nil: none so far
	known bool   // the table has known a line of this page
	slots [numSlots]tally

	loraAt      float64
	loraSeen    bool
	lora        [3][]byte // running, waiting, max: raw label values within the page
	infoSize    int       // of cache_config_info
	infoBlocks  int
	infoUnknown bool // a series without a number of blocks

	last [3][]byte // raw label values of the last LoRA state, and
	read LoRA      // what they mean
}

// tally folds the series of one slot.
type tally struct {
	n        int
	rank     uint8
	fold     fold
	bad      bool
	sum, max float64
}

func (t *tally) add(f *family, v float64) {
	if t.n == 0 || f.rank < t.rank {
		*t = tally{rank: f.rank, fold: f.fold, max: math.Inf(-1)}
	}
	if f.rank > t.rank {
		return
	}
	t.n++
	t.bad = t.bad || !(v >= 0) || v > math.MaxFloat64
	t.sum += v
	t.max = max(t.max, v)
}

func (t *tally) value() (float64, bool) {
	if t.n == 0 || t.bad {
		return 0, false
	}
	switch t.fold {
	case foldMean:
		return t.sum / float64(t.n), true
	case foldMax:
		return t.max, true
	}
	return t.sum, t.sum <= math.MaxFloat64
}

func newScanner(e config.Engine) *scanner {
	return &scanner{tables: tablesFor(e), explicit: e != config.Auto}
}

// scan reads a page. Its results refer to the page until the next scan.
func (s *scanner) scan(page []byte) {
	if len(s.tables) == 1 {
		s.table = s.tables[0]
	}
	s.pass(page)
	if !s.known && s.table != nil && len(s.tables) > 1 {
		s.table = nil // another engine has come in the place of the last one
		s.pass(page)
	}
}

func (s *scanner) pass(page []byte) {
	s.known = false
	s.slots = [numSlots]tally{}
	s.loraSeen = false
	s.lora = [3][]byte{}
	s.infoSize, s.infoBlocks, s.infoUnknown = 0, 0, false
	for len(page) > 0 {
		line := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			line, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		// Most lines are histogram buckets of the engine: out with them first.
		if t := s.table; t != nil && line[0] == t.letter && (len(line) <= t.length || !t.wanted[line[t.length]]) {
			continue
		}
		s.line(line)
	}
}

const processStartName = "process_start_time_seconds"

// line takes one line into account if a table names it.
func (s *scanner) line(line []byte) {
	if line[0] == ' ' || line[0] == '\t' {
		line = bytes.TrimLeft(line, " \t")
	}
	if s.table != nil {
		s.known = s.match(s.table, line) || s.known
	} else {
		for _, t := range s.tables {
			if s.match(t, line) {
				s.table, s.known = t, true
				break
			}
		}
	}
	if len(line) > 0 && line[0] == 'p' && bytes.HasPrefix(line, []byte(processStartName)) {
		start := family{name: processStartName, slot: slotProcessStart, fold: foldMax}
		s.sample(nil, &start, line[len(processStartName):])
	}
}

func (s *scanner) match(t *table, line []byte) bool {
	if len(line) <= t.length || string(line[:t.length-1]) != t.prefix || line[t.length-1] != ':' && line[t.length-1] != '_' {
		return false
	}
	line = line[t.length:]
	if !t.wanted[line[0]] {
		return false
	}
	for i := range t.families {
		f := &t.families[i]
		if len(line) > len(f.name) && string(line[:len(f.name)]) == f.name && s.sample(t, f, line[len(f.name):]) {
			return true
		}
	}
	return false
}

// sample reads what follows the name: labels, value. It says whether this was
// a sample of exactly that name.
func (s *scanner) sample(t *table, f *family, rest []byte) bool {
	if c := rest; len(c) == 0 || c[0] != '{' && c[0] != ' ' && c[0] != '\t' {
		return false
	}
	rest = bytes.TrimLeft(rest, " \t")
	labels := labelSet{}
	if len(rest) > 0 && rest[0] == '{' {
		labels.rest = rest[1:]
		end := labels.end()
		if end < 0 {
			return false
		}
		labels.rest, rest = rest[1:1+end], rest[2+end:]
	}
	v, ok := value(rest)
	if !ok {
		return false
	}
	switch f.slot {
	case slotLoRA:
		s.loraSample(labels, v)
	case slotCacheConfig:
		s.cacheSample(t, f, labels)
	default:
		s.slots[f.slot].add(f, v)
	}
	return true
}

// loraSample keeps the series with the newest value: a server leaves the
// label sets of the past on its page.
func (s *scanner) loraSample(labels labelSet, at float64) {
	if math.IsNaN(at) || math.IsInf(at, 0) || s.loraSeen && at < s.loraAt {
		return
	}
	s.loraSeen, s.loraAt = true, at
	s.lora = [3][]byte{}
	for {
		name, v, ok := labels.next()
		if !ok {
			return
		}
		switch string(name) {
		case "running_lora_adapters":
			s.lora[0] = v
		case "waiting_lora_adapters":
			s.lora[1] = v
		case "max_lora":
			s.lora[2] = v
		}
	}
}

// cacheSample reads the cache configuration. Data-parallel ranks (foldSum)
// each have a cache; the number of blocks is "None" before profiling.
func (s *scanner) cacheSample(t *table, f *family, labels labelSet) {
	var size, blocks int
	for {
		name, v, ok := labels.next()
		if !ok {
			break
		}
		switch string(name) {
		case t.sizeLabel:
			size = count(v)
		case t.countLabel:
			blocks = count(v)
		}
	}
	if size == 0 || blocks == 0 {
		s.infoUnknown = true
		return
	}
	s.infoSize = size
	if f.fold == foldMax {
		s.infoBlocks = max(s.infoBlocks, blocks)
	} else {
		s.infoBlocks += blocks
	}
}

// count reads a positive whole number; 0: it is none.
func count(v []byte) int {
	if len(v) == 0 || len(v) > 10 {
		return 0
	}
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// expected are the signals that the page should hold.
func (s *scanner) expected() Signals {
	if !s.explicit {
		return 0
	}
	return s.tables[0].expected
}

// result is the page reduced to the canonical signals, and what it witnesses
// of the process. It holds no reference to the page.
func (s *scanner) result(at time.Time) (*Metrics, witness) {
	x := &Metrics{At: at}
	get := func(from slot, to *float64, has Signals) bool {
		v, ok := s.slots[from].value()
		if ok {
			*to = v
			x.Has |= has
		}
		return ok
	}
	get(slotWaiting, &x.Waiting, HasWaiting)
	get(slotRunning, &x.Running, HasRunning)
	get(slotKVUsage, &x.KVUsage, HasKVUsage)
	x.KVUsage = min(x.KVUsage, 1)

	x.BlockSize, x.NumBlocks = s.infoSize, s.infoBlocks
	if size, ok := s.slots[slotBlockSize].value(); ok && size >= 1 && size <= math.MaxInt32 {
		if blocks, ok := s.slots[slotNumBlocks].value(); ok && blocks >= 1 && blocks <= math.MaxInt32 {
			x.NumBlocks = int(blocks)
		}
		x.BlockSize = int(size)
	}
	var queries, hits float64
	prefix := get(slotPrefixQueries, &queries, 0) && get(slotPrefixHits, &hits, 0)
	if reused, missed := 0.0, 0.0; x.BlockSize > 0 && get(slotReusedBlocks, &reused, 0) && get(slotMissedBlocks, &missed, 0) {
		queries, hits = (reused+missed)*float64(x.BlockSize), reused*float64(x.BlockSize)
		prefix = true
	}
	if prefix {
		x.PrefixQueries, x.PrefixHits = queries, hits
		x.Has |= HasPrefix
	}
	if x.BlockSize > 0 && x.NumBlocks > 0 && !s.infoUnknown {
		x.Has |= HasCacheConfig
	} else {
		x.BlockSize, x.NumBlocks = 0, 0
	}
	if s.loraSeen {
		s.readLoRA()
		if s.read.Max > 0 {
			x.LoRA = s.read
			x.Has |= HasLoRA
		}
	}
	var w witness
	for i, from := range [...]slot{
		prefixQueries: slotPrefixQueries, prefixHits: slotPrefixHits, promptTokens: slotPromptTokens,
		outputTokens: slotOutputTokens, processStart: slotProcessStart,
	} {
		if v, ok := s.slots[from].value(); ok {
			w.set(i, v)
		}
	}
	return x, w
}

// readLoRA parses the adapter lists unless they are those of the last page.
// The parsed lists are shared by the pages that show them.
func (s *scanner) readLoRA() {
	same := true
	for i := range s.lora {
		same = same && bytes.Equal(s.lora[i], s.last[i])
	}
	if same {
		return
	}
	for i := range s.lora {
		s.last[i] = append(s.last[i][:0], s.lora[i]...)
	}
	s.read = LoRA{Running: adapters(s.lora[0]), Waiting: adapters(s.lora[1]), Max: count(s.lora[2])}
}

// adapters splits a comma list. Names are sorted, without repeats.
func adapters(raw []byte) []string {
	var names []string
	for name := range strings.SplitSeq(unescape(raw), ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// labelSet walks over what stands between the braces.
type labelSet struct{ rest []byte }

// end is where the closing brace stands, or -1. Quoted values may hold braces.
func (l *labelSet) end() int {
	quoted := false
	for i := 0; i < len(l.rest); i++ {
		switch c := l.rest[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
}

// next is the next label, its value still escaped. It ends at the first that
// cannot be read.
func (l *labelSet) next() (name, value []byte, ok bool) {
	l.rest = bytes.TrimLeft(l.rest, " \t,")
	eq := bytes.IndexByte(l.rest, '=')
	if eq <= 0 {
		return nil, nil, false
	}
	name = bytes.TrimRight(l.rest[:eq], " \t")
	v := bytes.TrimLeft(l.rest[eq+1:], " \t")
	if len(v) == 0 || v[0] != '"' {
		return nil, nil, false
	}
	v = v[1:]
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '\\':
			i++
		case '"':
			l.rest = v[i+1:]
			return name, v[:i], true
		}
	}
	return nil, nil, false
}

// unescape undoes \\, \" and \n of a label value; other pairs stay.
func unescape(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] == '\\' && i+1 < len(raw) {
			switch raw[i+1] {
			case '\\', '"':
				i++
			case 'n':
				b.WriteByte('\n')
				i++
				continue
			}
		}
		b.WriteByte(raw[i])
	}
	return b.String()
}

// value reads the number at the beginning of b; a time stamp may follow.
func value(b []byte) (float64, bool) {
	b = bytes.TrimLeft(b, " \t")
	end := 0
	for end < len(b) && b[end] != ' ' && b[end] != '\t' && b[end] != '\r' {
		end++
	}
	b = b[:end]
	if v, ok := decimal(b); ok {
		return v, true
	}
	if len(b) == 0 || bytes.ContainsAny(b, "xXpP_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}

// decimal reads plain digits with at most one point exactly: up to 15 digits
// are whole in a float64, and so is the power of ten that divides them.
func decimal(b []byte) (float64, bool) {
	if len(b) == 0 || len(b) > 16 || b[0] == '.' {
		return 0, false
	}
	var digits, scale float64 = 0, 0
	n := 0
	for _, c := range b {
		switch {
		case c == '.' && scale == 0:
			scale = 1
		case c >= '0' && c <= '9':
			digits = digits*10 + float64(c-'0')
			scale *= 10
			n++
		default:
			return 0, false
		}
	}
	if n > 15 {
		return 0, false
	}
	if scale > 1 {
		digits /= scale
	}
	return digits, true
}

// ReadPage reads one page of an engine. Has is zero if it holds no signal; the
// scraper then keeps the page before it.
func ReadPage(e config.Engine, page []byte, at time.Time) *Metrics {
	s := newScanner(e)
	s.scan(page)
	x, _ := s.result(at)
	return x
}
