// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package keystore keeps tenants and keys that the admin API makes in SQLite or
// PostgreSQL, and tells an [auth.Registry] of every change.
//
// It stores digests and never a secret. Who may make an edit, and in which form
// it arrives, is left to package admin; what a configuration owns it refuses to
// touch. Start reading at [Store.Do] (edit.go) and [Store.Follow] (follow.go).
//
// Always: one edit is one transaction, with a line in the audit trail that is
// never changed; edits are numbered one after the other in the order in which
// they can be read, so that a follower which has read number n misses none
// before it.
package keystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// Options are what a store works with.
type Options struct {
	Config   config.Keys
	Registry *auth.Registry        // told of changes
	File     func() *config.Config // in force, whose tenants are not edited; nil: there is none
	FileName string                // of it, for messages; may be empty
	Log      *slog.Logger
	Metrics  *Instruments // nil: none
	Now      func() time.Time
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	Options
	db       *sql.DB
	postgres bool
	peppers  *auth.Peppers

	follower
	closing context.CancelFunc
	done    sync.WaitGroup
}

// calls are bounded, so that a database which hangs holds up nobody for long.
const callTimeout = 10 * time.Second

// Open opens the database, brings its tables up to date and reads it whole; what
// the registry has and the database does not is forgotten. Afterwards the
// registry follows until Close.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{Options: o, postgres: o.Config.Store == config.KeysPostgres, peppers: auth.NewPeppers(o.Config.Pepper, o.Config.OldPeppers)}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.File == nil {
		s.File = func() *config.Config { return &config.Config{} }
	}
	s.poke = make(chan struct{}, 1)
	if err := s.open(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.migrate(ctx); err != nil {
		s.db.Close()
		return nil, s.explain(err)
	}
	s.Registry.SetPeppers(s.peppers)
	if err := s.load(ctx); err != nil {
		s.db.Close()
		return nil, s.explain(err)
	}
	if err := s.tellForeign(ctx); err != nil {
		s.db.Close()
		return nil, s.explain(err)
	}
	s.begin()
	return s, nil
}

// tellForeign says in the log how many secrets are of peppers that are not here,
// since whoever has one of those is told only that it is not known.
func (s *Store) tellForeign(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx, s.bind("SELECT pepper, count(*) FROM auth_secrets WHERE expires = 0 OR expires > ? GROUP BY pepper ORDER BY pepper"), s.Now().Unix())
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return err
		}
		if !s.peppers.Has(name) {
			s.Log.Warn("secrets of the store are of a pepper that is not here, and open nothing; if it is an older one, write it in keys.oldPeppers", "pepper", name, "secrets", n, "here", s.peppers.Current())
		}
	}
	return rows.Err()
}

func (s *Store) open() error {
	var err error
	if s.postgres {
		if _, err = pgx.ParseConfig(s.Config.DSN.Reveal()); err == nil {
			s.db, err = sql.Open("pgx", s.Config.DSN.Reveal())
		}
		if err != nil {
			return errors.New("keys.dsn is not an address of PostgreSQL; write postgres://user:password@host:5432/database") // err may hold the password
		}
		s.db.SetMaxOpenConns(8)
		s.db.SetConnMaxIdleTime(5 * time.Minute)
		return nil
	}
	// The file holds digests and who may what: nobody else is to read it.
	f, err := os.OpenFile(s.Config.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("keys.path: %w; its directory must be there, and writable for this process", err)
	}
	f.Close()
	name := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(s.Config.Path)}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"},
	}.Encode()}
	s.db, err = sql.Open("sqlite", name.String())
	if err != nil {
		return err
	}
	s.db.SetMaxOpenConns(4)
	return nil
}

// Close ends following and closes the database. The registry keeps what it has.
func (s *Store) Close() {
	s.closing()
	s.done.Wait()
	s.db.Close()
}

// Peppers are those that secrets are made under.
func (s *Store) Peppers() *auth.Peppers { return s.peppers }

// schema are the tables, a step per version; a step is never changed once it was
// released. BIGINT is an integer of 64 bits in both databases; times are Unix
// seconds.
var schema = [...]string{
	`CREATE TABLE auth_tenants (path TEXT PRIMARY KEY, seq BIGINT NOT NULL, revision BIGINT NOT NULL, gone BIGINT NOT NULL,
	   created BIGINT NOT NULL, updated BIGINT NOT NULL, spec TEXT NOT NULL);
	 CREATE INDEX auth_tenants_seq ON auth_tenants (seq);
	 CREATE TABLE auth_keys (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, seq BIGINT NOT NULL, revision BIGINT NOT NULL,
	   revoked BIGINT NOT NULL, created BIGINT NOT NULL, updated BIGINT NOT NULL, spec TEXT NOT NULL);
	 CREATE INDEX auth_keys_seq ON auth_keys (seq);
	 CREATE UNIQUE INDEX auth_keys_name ON auth_keys (tenant, name) WHERE revoked = 0;
	 CREATE TABLE auth_secrets (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL, pepper TEXT NOT NULL, shown TEXT NOT NULL,
	   created BIGINT NOT NULL, expires BIGINT NOT NULL);
	 CREATE INDEX auth_secrets_key ON auth_secrets (key_id);
	 CREATE TABLE auth_last_used (key_id TEXT PRIMARY KEY, at BIGINT NOT NULL);
	 CREATE TABLE auth_audit (seq BIGINT PRIMARY KEY, at BIGINT NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL, action TEXT NOT NULL,
	   target TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL);`,
}

// migrate makes the tables, one process at a time.
func (s *Store) migrate(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if s.postgres {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(7364661)"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS auth_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)"); err != nil {
		return err
	}
	var version int
	switch err := tx.QueryRowContext(ctx, "SELECT value FROM auth_meta WHERE name = 'schema'").Scan(&version); {
	case errors.Is(err, sql.ErrNoRows):
		if _, err := tx.ExecContext(ctx, "INSERT INTO auth_meta (name, value) VALUES ('schema', 0), ('sequence', 0)"); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	if version > len(schema) {
		return fmt.Errorf("the tables are of version %d, and this penstock knows %d; run a newer one", version, len(schema))
	}
	for i := version; i < len(schema); i++ {
		for statement := range strings.SplitSeq(schema[i], ";") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("tables of version %d: %w", i+1, err)
			}
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE auth_meta SET value = "+strconv.Itoa(len(schema))+" WHERE name = 'schema'"); err != nil {
		return err
	}
	return tx.Commit()
}

// explain adds to an error of the database what may be tried.
func (s *Store) explain(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "locked"):
		return fmt.Errorf("%s is locked by another process: %w; end what holds it, or try again", s.Config.Path, err)
	case strings.Contains(text, "disk is full"), strings.Contains(text, "No space left"):
		return fmt.Errorf("the disk of the keys is full: %w", err)
	case strings.Contains(text, "not a database"):
		return fmt.Errorf("%s is no SQLite database: %w; name another keys.path", s.Config.Path, err)
	case s.postgres:
		return fmt.Errorf("PostgreSQL of the keys: %w", err)
	}
	return fmt.Errorf("keys at %s: %w", s.Config.Path, err)
}

// bind writes the places of arguments as the database wants them.
func (s *Store) bind(query string) string {
	if !s.postgres {
		return query
	}
	var b strings.Builder
	n := 0
	for _, c := range query {
		if c != '?' {
			b.WriteRune(c)
			continue
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
	}
	return b.String()
}

func timeText(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}
