// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/penstock/penstock/config"
)

// batch is rows of one source for one transaction.
type batch struct {
	source int64
	from   int64 // seq that the source has reached before it
	to     int64 // and after it; damaged rows leave gaps
	rows   []stored
	names  map[int64]Names // those that the reader has seen, by id
	ids    map[string]int64
}

// stored is a row with its names by number.
type stored struct {
	entry
	seq int64
	id  int64
}

// mostNames bounds the names that are kept in memory.
const mostNames = 100_000

func (b *batch) reset(source, from int64) {
	b.source, b.from, b.rows = source, from, b.rows[:0]
	if b.names == nil || len(b.names) > mostNames {
		b.names, b.ids = map[int64]Names{}, map[string]int64{}
	}
}

func (b *batch) len() int { return len(b.rows) }

// add reads a row.
func (b *batch) add(payload []byte, seq int64) error {
	b.rows = append(b.rows, stored{seq: seq})
	r := &b.rows[len(b.rows)-1]
	err := readPayload(payload, &r.entry)
	if err == nil {
		if id, ok := b.ids[string(r.names)]; ok {
			r.id = id
		} else {
			var n Names
			if n, err = readNames(r.names); err == nil {
				r.id = namesID(r.names)
				b.ids[string(r.names)], b.names[r.id] = r.id, n
			}
		}
		r.names = nil // it aliases the reader's buffer
	}
	if err != nil {
		b.rows = b.rows[:len(b.rows)-1]
	}
	return err
}

// store is a database with the tables of the ledger.
type store struct {
	kind config.LedgerStore
	db   *sql.DB
	name string // for messages, without secrets
	// Of the goroutine that inserts.
	ready bool            // the schema is ours
	known map[int64]int64 // names in the database, by the day on which they were told to it
}

// newStore connects to nobody yet.
func newStore(cfg config.Ledger) (*store, error) {
	s := &store{kind: cfg.Kind(), known: map[int64]int64{}}
	if s.kind == config.Postgres {
		pc, err := pgx.ParseConfig(cfg.DSN.Reveal())
		if err != nil {
			return nil, errors.New("ledger.dsn: not an address of PostgreSQL; write postgres://user:password@host/database") // without the text, which has a password
		}
		if pc.ConnectTimeout == 0 {
			pc.ConnectTimeout = openTime
		}
		s.name = fmt.Sprintf("PostgreSQL at %s, database %s", pc.Host, pc.Database)
		s.db = stdlib.OpenDB(*pc)
		s.db.SetMaxOpenConns(4)
		s.db.SetConnMaxIdleTime(time.Minute)
		return s, nil
	}
	if st, err := os.Stat(filepath.Dir(cfg.Path)); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("ledger.path: %s: its directory does not exist", cfg.Path)
	}
	s.name = cfg.Path
	// FULL: a batch that was committed survives a loss of power, since its rows leave
	// the spool then.
	q := url.Values{"_pragma": {"journal_mode(wal)", "synchronous(full)", "busy_timeout(5000)", "foreign_keys(off)", "cache_size(-8000)", "wal_autocheckpoint(4000)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: cfg.Path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("ledger: %s: %w", cfg.Path, err)
	}
	s.db = db
	s.db.SetMaxOpenConns(4)
	return s, nil
}

func (s *store) close() { s.db.Close() }

// Migrations of the schema, by number. One that was released never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

// errNewer is a database that a newer program has changed.
var errNewer = errors.New("its schema is newer than this program")

// lockNumber is that of the advisory lock under which one gateway of a fleet
// migrates.
const lockNumber = 0x70656e73746f636b

// migrate brings the schema up to date. Several processes may do so at once.
func (s *store) migrate(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.wrap(err)
	}
	defer tx.Rollback()
	if s.kind == config.Postgres {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockNumber)); err != nil {
			return s.wrap(err)
		}
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS ledger_version (version BIGINT NOT NULL)"); err != nil {
		return s.wrap(err)
	}
	var have int64
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM ledger_version").Scan(&have); err != nil {
		return s.wrap(err)
	}
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return err
	}
	if have > int64(len(files)) {
		return fmt.Errorf("ledger: %s: %w (version %d, known %d); run the newer penstock, or give this one a database of its own", s.name, errNewer, have, len(files))
	}
	for i := have; i < int64(len(files)); i++ {
		text, err := migrations.ReadFile("migrations/" + files[i].Name())
		if err != nil {
			return err
		}
		ddl := string(text)
		if s.kind == config.SQLite {
			ddl = strings.ReplaceAll(ddl, "/* without rowid */", "WITHOUT ROWID")
		}
		if _, err := tx.ExecContext(ctx, ddl); err != nil {
			return fmt.Errorf("ledger: %s: migration %s: %w", s.name, files[i].Name(), err)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO ledger_version VALUES ($1)", i+1); err != nil {
			return s.wrap(err)
		}
	}
	return s.wrap(tx.Commit())
}

// wrap names the database in an error, and says what may be tried.
func (s *store) wrap(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	var se *sqlite.Error
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &se):
		switch se.Code() & 0xff {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			hint = "; another program holds it locked: end its transaction"
		case sqlite3.SQLITE_FULL:
			hint = "; make room on its disk"
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
			hint = "; the file and its directory must be writable"
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			hint = "; it is no database of SQLite or is damaged: name another ledger.path"
		}
	case errors.As(err, &pe) && (pe.Code == "42501" || pe.Code == "28P01" || pe.Code == "28000"):
		hint = "; look at the user of ledger.dsn and what it may do"
	}
	return fmt.Errorf("ledger: %s: %w%s", s.name, err, hint)
}

// refusesData says that the database has refused what is in a row, and not
// everything.
func refusesData(err error) bool {
	var se *sqlite.Error
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &se):
		c := se.Code() & 0xff
		return c == sqlite3.SQLITE_CONSTRAINT || c == sqlite3.SQLITE_MISMATCH || c == sqlite3.SQLITE_TOOBIG
	case errors.As(err, &pe):
		return strings.HasPrefix(pe.Code, "22") || strings.HasPrefix(pe.Code, "23")
	}
	return false
}

// day is the days since 1970.
func day(t time.Time) int64 { return t.Unix() / 86400 }

// insert takes the rows of b that the database does not have yet, and how far
// their source is, in one transaction.
func (s *store) insert(ctx context.Context, b *batch) error {
	if !s.ready {
		if err := s.migrate(ctx); err != nil {
			return err
		}
		s.ready = true
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.wrap(err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return s.wrap(err)
	}
	defer tx.Rollback()
	today := day(time.Now())
	var taken int64
	err = tx.QueryRowContext(ctx, "SELECT taken FROM ledger_sources WHERE source = $1", b.source).Scan(&taken)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return s.wrap(err)
	}
	rows := b.rows
	for len(rows) > 0 && rows[0].seq < taken { // they came with a batch whose end nobody saw
		rows = rows[1:]
	}
	told, err := s.tellNames(ctx, tx, b, rows, today)
	if err != nil {
		return s.wrap(err)
	}
	if len(rows) > 0 {
		if s.kind == config.Postgres {
			err = copyRows(ctx, conn, b.source, rows)
		} else {
			err = insertRows(ctx, conn, b.source, rows)
		}
		if err != nil {
			return s.wrap(err)
		}
	}
	if b.to > taken {
		_, err = tx.ExecContext(ctx, `INSERT INTO ledger_sources (source, taken, seen) VALUES ($1, $2, $3)
ON CONFLICT (source) DO UPDATE SET taken = excluded.taken, seen = excluded.seen`, b.source, b.to, today)
		if err != nil {
			return s.wrap(err)
		}
	}
	if err := tx.Commit(); err != nil {
		return s.wrap(err)
	}
	if len(s.known) > mostNames {
		clear(s.known)
	}
	for _, id := range told {
		s.known[id] = today
	}
	return nil
}

// tellNames inserts the names that the database may not have, once a day all that
// are in use.
func (s *store) tellNames(ctx context.Context, tx *sql.Tx, b *batch, rows []stored, today int64) (told []int64, err error) {
	var seen map[int64]bool
	for i := range rows {
		id := rows[i].id
		if s.known[id] == today || seen[id] {
			continue
		}
		if seen == nil {
			seen = map[int64]bool{}
		}
		seen[id] = true
		n := b.names[id]
		args := []any{id, today, n.Status}
		for _, t := range n.texts() {
			args = append(args, *t)
		}
		if _, err := tx.ExecContext(ctx, namesInsert(), args...); err != nil {
			return nil, err
		}
		told = append(told, id)
	}
	return told, nil
}

func namesInsert() string {
	return "INSERT INTO ledger_names (id, seen, status, " + strings.Join(nameColumns[:], ", ") + ") VALUES " +
		places(1, len(nameColumns)+3) + " ON CONFLICT (id) DO UPDATE SET seen = excluded.seen"
}

// places are n placeholders from number first on: ($1, $2).
func places(first, n int) string {
	var b strings.Builder
	for i := range n {
		sep := ", "
		if i == 0 {
			sep = "("
		}
		fmt.Fprintf(&b, "%s$%d", sep, first+i)
	}
	return b.String() + ")"
}

// rowColumns are those of ledger_rows, in the order of values: first those of
// rows that have only common counts.
func rowColumns() (all []string, common int) {
	all = append(all, "at", "source", "seq", "names", "request", "task", "attempt")
	all = append(all, countNames[:commonCounts]...)
	all = append(all, "cost", "ttft", "total")
	common = len(all)
	all = append(all, countNames[commonCounts:]...)
	return append(all, "avoided"), common
}

// values appends what belongs in the columns.
func (r *stored) values(v []any, source int64, all bool) []any {
	counts := r.Counts.all()
	v = append(v, r.At, source, r.seq, r.id, r.Request, text(r.Task), r.Attempt)
	for _, n := range counts[:commonCounts] {
		v = append(v, *n)
	}
	v = append(v, r.Cost.value(), r.TTFT, r.Total)
	if !all {
		return v
	}
	for _, n := range counts[commonCounts:] {
		v = append(v, *n)
	}
	return append(v, r.Avoided.value())
}

// value is NULL for an amount that is not known.
func (a Amount) value() any {
	if !a.Known {
		return nil
	}
	return a.Pico
}

// text is NULL for none.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// copyRows brings rows by COPY, within the transaction of conn.
func copyRows(ctx context.Context, conn *sql.Conn, source int64, rows []stored) error {
	return conn.Raw(func(c any) error {
		var v []any
		cols, _ := rowColumns()
		_, err := c.(*stdlib.Conn).Conn().CopyFrom(ctx, pgx.Identifier{"ledger_rows"}, cols,
			pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
				v = rows[i].values(v[:0], source, true)
				return v, nil
			}))
		return err
	})
}

// together is how many rows one statement takes: with one cursor SQLite finds the
// end of the table once, and not for each row.
const together = 32

// insertRows brings rows by prepared statements, past database/sql, which would
// cost as much again as SQLite does. Most rows need the shorter form.
func insertRows(ctx context.Context, conn *sql.Conn, source int64, rows []stored) error {
	return conn.Raw(func(c any) error {
		in := inserter{c: c.(driver.ConnPrepareContext), source: source}
		defer in.close()
		for len(rows) > 0 {
			n, all := 1, rows[0].all()
			for n < len(rows) && n < together && rows[n].all() == all {
				n++
			}
			if n < together {
				n = 1
			}
			if err := in.insert(ctx, rows[:n], all); err != nil {
				return err
			}
			rows = rows[n:]
		}
		return nil
	})
}

// all says that a row needs the form with all columns.
func (r *stored) all() bool { return !r.Counts.common() || r.Avoided.Known }

// inserter has the statements of a batch, made when they are needed.
type inserter struct {
	c      driver.ConnPrepareContext
	source int64
	made   [4]driver.Stmt
	values []any
	args   []driver.NamedValue
}

// insert brings one row, or as many as go together, of one form.
func (in *inserter) insert(ctx context.Context, rows []stored, all bool) (err error) {
	form := 0
	if all {
		form = 2
	}
	if len(rows) > 1 {
		form++
	}
	if in.made[form] == nil {
		cols, common := rowColumns()
		if !all {
			cols = cols[:common]
		}
		row := "(?" + strings.Repeat(", ?", len(cols)-1) + ")"
		text := "INSERT INTO ledger_rows (" + strings.Join(cols, ", ") + ") VALUES " + row + strings.Repeat(", "+row, len(rows)-1)
		if in.made[form], err = in.c.PrepareContext(ctx, text); err != nil {
			return err
		}
	}
	in.values, in.args = in.values[:0], in.args[:0]
	for i := range rows {
		in.values = rows[i].values(in.values, in.source, all)
	}
	for i, v := range in.values {
		in.args = append(in.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	// Without ctx: watching it would cost a goroutine a row.
	_, err = in.made[form].(driver.StmtExecContext).ExecContext(context.Background(), in.args)
	return err
}

func (in *inserter) close() {
	for _, st := range in.made {
		if st != nil {
			st.Close()
		}
	}
}
