// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage/ledger"
)

// buildLedger makes the ledger of cfg ready, or a change of the one that is there:
// a spool has one owner, and so a ledger that keeps its spool stays.
func (g *gateway) buildLedger(cfg *config.Config) (commit, abort func(), err error) {
	nothing := func() {}
	before := g.ledger.Load()
	if old := g.cfg.Load(); old != nil && reflect.DeepEqual(old.Ledger, cfg.Ledger) {
		return nothing, nothing, nil
	}
	if before != nil && cfg.Ledger.Kind() != config.LedgerOff && before.Config().SpoolDir() == cfg.Ledger.SpoolDir() {
		return before.Prepare(cfg.Ledger)
	}
	next, err := ledger.Open(cfg.Ledger, ledger.Options{Log: g.log, Metrics: g.ledgerMetrics})
	if err != nil {
		return nil, nil, fmt.Errorf("ledger: %w", err)
	}
	return func() {
		g.ledger.Store(next)
		if before != nil {
			go closeLedger(g, before)
		}
	}, func() { closeLedger(g, next) }, nil
}

func (g *gateway) openLedger(cfg *config.Config, undo, commits *[]func()) error {
	commit, abort, err := g.buildLedger(cfg)
	if err != nil {
		return err
	}
	*undo, *commits = append(*undo, abort), append(*commits, commit)
	return nil
}

// ledgerEnd is how long the end of a ledger may take; what is not in the database
// then stays in its spool.
const ledgerEnd = 5 * time.Second

func closeLedger(g *gateway, l *ledger.Ledger) {
	ctx, cancel := context.WithTimeout(context.Background(), ledgerEnd)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		g.log.Warn("the ledger has ended with rows that wait", "error", err)
	}
}

// running is the ledger in use.
func (g *gateway) running() (*ledger.Ledger, error) {
	if l := g.ledger.Load(); l != nil {
		return l, nil
	}
	return nil, &admin.BadQuery{Message: "this gateway keeps no ledger; give it one in its configuration, such as ledger: {path: ledger.db}"}
}

func (g *gateway) usage(ctx context.Context, query url.Values) (any, error) {
	l, err := g.running()
	if err != nil {
		return nil, err
	}
	q, err := ledger.ParseQuery(query, time.Now())
	if err != nil {
		return nil, &admin.BadQuery{Message: err.Error()}
	}
	return l.Answer(ctx, q)
}

func (g *gateway) exportRows(ctx context.Context, query url.Values, w io.Writer) error {
	l, err := g.running()
	if err != nil {
		return err
	}
	e, err := ledger.ParseExport(query, time.Now())
	if err != nil {
		return &admin.BadQuery{Message: err.Error()}
	}
	return l.Export(ctx, e, w)
}

func (g *gateway) setOutcome(_ context.Context, task string, o admin.TaskOutcome) error {
	l, err := g.running()
	if err != nil {
		return err
	}
	if err := l.SetOutcome(o.Tenant, task, o.Outcome); err != nil {
		return &admin.BadQuery{Message: err.Error()}
	}
	return nil
}
