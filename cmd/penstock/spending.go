// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
)

// spending is what is known of what tenants use.
type spending struct {
	limiter *quota.Limiter
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
