// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"os"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/postgrestest"
)

var server postgrestest.Server

func TestMain(m *testing.M) {
	if os.Getenv("LEDGER_TEST_CHILD") != "" {
		child()
		return
	}
	code := m.Run()
	server.Stop()
	os.Exit(code)
}

// both runs a test on SQLite and on PostgreSQL.
func both(t *testing.T, test func(t *testing.T, cfg config.Ledger)) {
	t.Run("sqlite", func(t *testing.T) { test(t, settings(t)) })
	t.Run("postgres", func(t *testing.T) {
		cfg := settings(t)
		cfg.Spool, cfg.Path, cfg.DSN = cfg.SpoolDir(), "", config.Secret(server.Database(t))
		test(t, cfg)
	})
}
