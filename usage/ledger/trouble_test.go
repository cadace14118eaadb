// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage/ledger"
)

// journal keeps the log of a test.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// watched is a ledger with its log and a reading of its metrics.
func watched(t *testing.T, cfg config.Ledger) (*ledger.Ledger, *journal, func(name string) float64) {
	t.Helper()
	j, reg := &journal{}, prometheus.NewRegistry()
	l, err := ledger.Open(cfg, ledger.Options{Log: slog.New(slog.NewTextHandler(j, nil)), Metrics: ledger.NewInstruments(reg)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	return l, j, func(name string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				full := f.GetName()
				for _, label := range m.GetLabel() {
					full += " " + label.GetValue()
				}
				if full == name {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		t.Fatalf("there is no metric %s", name)
		return 0
	}
}

func requests(t *testing.T, l *ledger.Ledger) int64 {
	t.Helper()
	return sum(t, l).Total.Requests
}

// A database that another program holds locked delays rows and loses none.
func TestLockedDatabase(t *testing.T) {
	cfg := settings(t)
	l, j, metric := watched(t, cfg)
	l.Append(record(0, "acme", "m"))
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		l.Append(record(i+1, "acme", "m"))
	}
	if err := l.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "holds it locked") {
		t.Errorf("flush into a locked database: %v", err)
	}
	if n := metric("penstock_ledger_rows_waiting"); n != 10 {
		t.Errorf("%v rows wait", n)
	}
	if _, err := db.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := requests(t, l); n != 11 {
		t.Errorf("%d requests", n)
	}
	if !strings.Contains(j.String(), "takes rows again") {
		t.Errorf("log:\n%s", j)
	}
	if n := metric("penstock_ledger_errors_total database"); n == 0 {
		t.Error("no error was counted")
	}
}

// A spool that reaches its bound drops what is new and counts it.
func TestSpoolBound(t *testing.T) {
	cfg := settings(t)
	cfg.SpoolSize = 20 << 10
	l, j, metric := watched(t, cfg)
	lock, err := sql.Open("sqlite", cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	lock.SetMaxOpenConns(1)
	if _, err := lock.Exec("BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	const n = 300
	for i := range n {
		l.Append(record(i, "acme", "m"))
		if err := l.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := lock.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	dropped := metric("penstock_ledger_rows_dropped_total spool")
	if dropped == 0 || dropped >= n {
		t.Errorf("%v rows dropped of %d", dropped, n)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := requests(t, l); got != n-int64(dropped) {
		t.Errorf("%d requests in the ledger, %v dropped of %d", got, dropped, n)
	}
	if !strings.Contains(j.String(), "ledger.spoolSize is reached") {
		t.Errorf("log:\n%s", j)
	}
}

// The buffer bounds what waits for the spool.
func TestBufferBound(t *testing.T) {
	cfg := settings(t)
	cfg.Buffer = 64
	l, _, metric := watched(t, cfg)
	for i := range 20_000 {
		l.Append(record(i, "acme", "m"))
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, dropped := requests(t, l), metric("penstock_ledger_rows_dropped_total full"); got+int64(dropped) != 20_000 {
		t.Errorf("%d requests and %v dropped", got, dropped)
	}
}

// PostgreSQL that is not there when the gateway starts, or goes while it runs, is
// waited for.
func TestDatabaseAway(t *testing.T) {
	cfg := settings(t)
	cfg.Spool, cfg.Path, cfg.DSN = cfg.SpoolDir(), "", "postgres://penstock:secret-password@127.0.0.1:1/none?connect_timeout=1"
	l, j, metric := watched(t, cfg)
	for i := range 5 {
		l.Append(record(i, "acme", "m"))
	}
	if err := l.Flush(t.Context()); err == nil {
		t.Error("flush into no database succeeds")
	}
	end, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.Close(end); err == nil || !strings.Contains(err.Error(), "5 rows wait") {
		t.Errorf("close: %v", err)
	}
	if n := metric("penstock_ledger_rows_waiting"); n != 5 {
		t.Errorf("%v rows wait", n)
	}
	if strings.Contains(j.String(), "secret-password") {
		t.Errorf("the log has the password:\n%s", j)
	}
	cfg.DSN = config.Secret(server.Database(t))
	again, _, _ := watched(t, cfg)
	if err := again.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := requests(t, again); n != 5 {
		t.Errorf("%d requests after the database is there", n)
	}
}

// A spool that was torn within a row, changed on the disk, or is none: what can be
// read is, the rest is told and counted.
func TestTornSpool(t *testing.T) {
	write := func(t *testing.T) (config.Ledger, string) {
		cfg := settings(t)
		cfg.Spool, cfg.Path, cfg.DSN = cfg.SpoolDir(), "", "postgres://penstock@127.0.0.1:1/none?connect_timeout=1"
		l, _, _ := watched(t, cfg)
		for i := range 5 {
			l.Append(record(i, "acme", "m"))
		}
		if err := l.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		end, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		l.Close(end)
		cfg.Path, cfg.DSN = filepath.Join(filepath.Dir(cfg.Spool), "ledger.db"), ""
		files, err := filepath.Glob(filepath.Join(cfg.Spool, "*.segment"))
		if err != nil || len(files) != 1 {
			t.Fatalf("segments: %v %v", files, err)
		}
		return cfg, files[0]
	}
	for _, c := range []struct {
		name    string
		spoil   func(b []byte) []byte
		rows    int64
		damaged float64
		log     string
	}{
		{"whole", func(b []byte) []byte { return b }, 5, 0, "rows of a former run"},
		{"torn", func(b []byte) []byte { return b[:len(b)-5] }, 4, 0, "ends within a row"},
		{"changed", func(b []byte) []byte { b[60] ^= 1; return b }, 4, 1, "damaged and lost"},
		{"length", func(b []byte) []byte { b[35] = 0xff; return b }, 0, 0, "ends within a row"},
		{"header", func(b []byte) []byte { b[0] = 'X'; return b }, 0, 0, "set aside"},
		{"empty", func([]byte) []byte { return nil }, 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, file := write(t)
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, c.spoil(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			l, j, metric := watched(t, cfg)
			if n := requests(t, l); n != c.rows {
				t.Errorf("%d rows were read, not %d", n, c.rows)
			}
			if n := metric("penstock_ledger_rows_dropped_total damaged"); n != c.damaged {
				t.Errorf("%v rows count as damaged", n)
			}
			if !strings.Contains(j.String(), c.log) {
				t.Errorf("log:\n%s", j)
			}
		})
	}
}

// One gateway's spool is its own.
func TestSpoolIsLocked(t *testing.T) {
	cfg := settings(t)
	open(t, cfg)
	if _, err := ledger.Open(cfg, ledger.Options{}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second one: %v", err)
	}
}

// A schema that a newer program has made is left alone.
func TestNewerSchema(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		l := open(t, cfg)
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.Close(t.Context())
		name, dsn := "sqlite", cfg.Path
		if cfg.Kind() == config.Postgres {
			name, dsn = "pgx", cfg.DSN.Reveal()
		}
		db, err := sql.Open(name, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("INSERT INTO ledger_version VALUES (99)"); err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.Open(cfg, ledger.Options{}); err == nil || !strings.Contains(err.Error(), "newer than this program (version 99, known 1); run the newer penstock") {
			t.Errorf("open: %v", err)
		}
	})
}

// What SQLite cannot use is told when the gateway starts.
func TestUnusableFile(t *testing.T) {
	cfg := settings(t)
	if err := os.WriteFile(cfg.Path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open(cfg, ledger.Options{}); err == nil || !strings.Contains(err.Error(), "no database of SQLite") {
		t.Errorf("a text file: %v", err)
	}
	cfg.Path = filepath.Join(t.TempDir(), "no", "folder", "ledger.db")
	if _, err := ledger.Open(cfg, ledger.Options{}); err == nil || !strings.Contains(err.Error(), "directory does not exist") {
		t.Errorf("a directory that is not there: %v", err)
	}
}
