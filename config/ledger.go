// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"strings"
)

// LedgerStore names a database.
type LedgerStore string

// The stores of the ledger.
const (
	LedgerOff LedgerStore = "off"
	SQLite    LedgerStore = "sqlite"
	Postgres  LedgerStore = "postgres"
)

// Ledger is where it is kept who used how much, and what it cost.
type Ledger struct {
	// Store follows from path or dsn; neither: off.
	Store LedgerStore `yaml:"store" enum:"off|sqlite|postgres"`
	Path  string      `yaml:"path" file:"path"` // of SQLite
	DSN   Secret      `yaml:"dsn"`              // of PostgreSQL
	// Spool is a directory of this gateway alone: what the database has not taken
	// yet. Beside the file of SQLite unless set.
	Spool     string   `yaml:"spool" file:"path"`
	SpoolSize Size     `yaml:"spoolSize" default:"1GiB" min:"16MiB" max:"1024GiB"`
	Interval  Duration `yaml:"interval" default:"1s" min:"10ms" max:"1m"`      // between batches for the database
	Buffer    int      `yaml:"buffer" default:"65536" min:"64" max:"10000000"` // records in memory until the spool has them
	Retention Duration `yaml:"retention" default:"2160h" min:"0s" max:"87600h"`
	// TaskHeader groups requests to a task; with -outcome behind it, it says how the
	// task went. Neither goes to a server.
	TaskHeader string `yaml:"taskHeader" default:"x-penstock-task"`
}

// Kind is the store in use: what store says, else what follows from the other keys.
func (l Ledger) Kind() LedgerStore {
	switch {
	case l.Store != "":
		return l.Store
	case l.DSN != "":
		return Postgres
	case l.Path != "":
		return SQLite
	}
	return LedgerOff
}

// SpoolDir is the directory of the spool in use.
func (l Ledger) SpoolDir() string {
	if l.Spool == "" && l.Path != "" {
		return l.Path + ".spool"
	}
	return l.Spool
}

func (v *validator) ledger() {
	l := &v.c.Ledger
	switch l.Kind() {
	case SQLite:
		if l.Path == "" {
			v.fail("ledger.path", "is missing", "store: sqlite needs the path of its file")
		}
		if l.DSN != "" {
			v.fail("ledger.dsn", "belongs to store: postgres", "remove it, or say store: postgres")
		}
	case Postgres:
		if l.DSN == "" {
			v.fail("ledger.dsn", "is missing", `store: postgres needs it, such as "${LEDGER_DSN}" with postgres://user:password@host/database`)
		}
		if l.Path != "" {
			v.fail("ledger.path", "belongs to store: sqlite", "remove it, or say store: sqlite")
		}
		if l.Spool == "" {
			v.fail("ledger.spool", "is missing", "name a directory of this gateway for what the database has not taken yet")
		}
	}
	if k := &v.c.Keys; k.Store == KeysSQLite && l.Kind() == SQLite && k.Path != "" && filepath.Clean(k.Path) == filepath.Clean(l.Path) {
		v.fail("ledger.path", "is the file of keys.path too", "name another one: rows would wait for edits of keys, and whoever reads the ledger would read keys")
	}
	if !headerName(l.TaskHeader) {
		v.fail("ledger.taskHeader", "is not the name of a header", "use letters, digits and -")
		return
	}
	switch name := strings.ToLower(l.TaskHeader); {
	case name == "authorization", name == "host", name == "cookie", strings.HasPrefix(name, "content-"), strings.HasSuffix(name, "api-key"), name == "x-request-id":
		v.fail("ledger.taskHeader", "has a meaning of its own", "choose another name, such as x-task")
	}
}

func headerName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return true
}
