// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/auth/keystore"
	"github.com/penstock/penstock/config"
)

// keyring is the store of tenants and keys that a configuration names.
type keyring struct {
	metrics  *keystore.Instruments
	failures *auth.Instruments
	open     atomic.Pointer[openStore] // in force; nil: none
	next     *openStore                // of the configuration that is being built; nil: none
}

// openStore is a store with what holds its keys in memory.
type openStore struct {
	*keystore.Store
	cfg      config.Keys
	registry *auth.Registry
}

func newKeyring(reg prometheus.Registerer) *keyring {
	k := &keyring{metrics: keystore.NewInstruments(reg)}
	k.failures = auth.NewInstruments(reg, func() int {
		if s := k.open.Load(); s != nil {
			return s.registry.Len()
		}
		return 0
	})
	return k
}

// registry is what the data plane under construction asks; nil: there is no store.
func (k *keyring) registry() *auth.Registry {
	if k.next == nil {
		return nil
	}
	return k.next.registry
}

// buildKeys opens the store of cfg, or keeps the one that is open. A store that
// cannot be opened is an error: nobody could be told from anybody.
func (g *gateway) buildKeys(cfg *config.Config, undo *[]func()) (commit func(), err error) {
	k := g.keyring
	before := k.open.Load()
	k.next = nil
	switch {
	case cfg.Keys.Store == config.KeysOff || cfg.Keys.Store == "":
	case before != nil && sameStore(before.cfg, cfg.Keys):
		k.next = before
	default:
		next := &openStore{cfg: cfg.Keys, registry: auth.NewRegistry()}
		next.Store, err = keystore.Open(context.Background(), keystore.Options{
			Config: cfg.Keys, Registry: next.registry, File: g.inForce, FileName: g.file, Log: g.log, Metrics: k.metrics,
		})
		if err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		*undo = append(*undo, next.Close)
		k.next = next
	}
	next := k.next
	return func() {
		if old := k.open.Swap(next); old != nil && old != next {
			go old.Close()
		}
	}, nil
}

// sameStore says that a change of the configuration leaves the store open. How
// wrong keys are answered is not its matter.
func sameStore(a, b config.Keys) bool {
	a.Failures = b.Failures
	return reflect.DeepEqual(a, b)
}

// inForce is the configuration in force; an empty one before the first.
func (g *gateway) inForce() *config.Config {
	if c := g.cfg.Load(); c != nil {
		return c
	}
	return &config.Config{}
}

// close ends following the store.
func (k *keyring) close() {
	if s := k.open.Swap(nil); s != nil {
		s.Close()
	}
}

// tenancy is where the admin API reads and edits tenants and keys.
func (g *gateway) tenancy() admin.Tenancy {
	if s := g.keyring.open.Load(); s != nil {
		return s
	}
	return auth.Files{Config: g.inForce()}
}

// status tells how the store stands; nil: there is none.
func (k *keyring) status() *admin.KeysStatus {
	s := k.open.Load()
	if s == nil {
		return nil
	}
	out := &admin.KeysStatus{Store: s.cfg.Store, Reachable: true, Keys: s.registry.Len()}
	if since, why := s.Status(); why != "" {
		out.Reachable, out.Since, out.Error = false, &since, why
	}
	return out
}
