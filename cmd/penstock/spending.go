// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage"
	"github.com/penstock/penstock/usage/ledger"
	"sync/atomic"
)

// spending is what is known of what tenants use.
type spending struct {
	limiter *quota.Limiter
	records atomic.Pointer[usage.Log]
	ledger  atomic.Pointer[ledger.Ledger] // nil: off
}

// openQuota prepares the store of limits that cfg asks for.
func (s *spending) openQuota(cfg *config.Config, undo, commits *[]func()) error {
	store, err := quota.Open(cfg.Quota)
	if err != nil {
		return fmt.Errorf("quota: %w", err)
	}
	*undo = append(*undo, func() { store.Close() })
	*commits = append(*commits, func() { s.limiter.Use(store, cfg.Quota) })
	return nil
}
