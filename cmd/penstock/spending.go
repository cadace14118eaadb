// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage/ledger"
)

// spending is what is known of who asks, and of what they use.
type spending struct {
	keyring *keyring
	limiter *quota.Limiter
	ledger  atomic.Pointer[ledger.Ledger] // nil: off
}

// otherStore says that cfg keeps the use of limits elsewhere than old, nil at
// first, when it is in memory. What is counted in memory is not to be forgotten
// for a change of something else.
func otherStore(old, cfg *config.Config) bool {
	was := config.Quota{Store: config.QuotaMemory}
	if old != nil {
		was = old.Quota
	}
	now := cfg.Quota
	was.Output, now.Output = 0, 0
	return (was.Store != config.QuotaMemory || now.Store != config.QuotaMemory) && !reflect.DeepEqual(was, now)
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

// limits are those of at most n nodes after one, with what of them is in use.
func (g *gateway) limits(ctx context.Context, tenant, after string, n int) (admin.LimitPage, error) {
	states, next, err := g.proxy.Limits(ctx, tenant, after, n)
	page := admin.LimitPage{Next: next}
	for i := range states {
		s := &states[i]
		scale := 1.0
		if s.Limit.Unit() == quota.USD {
			scale = quota.NanoPerUSD
		}
		page.Limits = append(page.Limits, admin.LimitStatus{
			Node: s.Limit.Node(), Limit: s.Limit.What(), Unit: s.Limit.Unit().String(), Shadow: s.Limit.Shadow(),
			Amount: float64(s.Limit.Amount()) / scale, Used: float64(s.Used) / scale, Reserved: float64(s.Reserved) / scale,
			Left: float64(s.Left()) / scale, Reset: s.Reset.Seconds(),
		})
	}
	return page, err
}

// showLimits prints all parts of the limits, one after the other.
func showLimits(ctx context.Context, a *adminClient, tenant, output string, w io.Writer) error {
	all := admin.LimitPage{Limits: []admin.LimitStatus{}}
	query := url.Values{"n": {"1000"}}
	if tenant != "" {
		query.Set("tenant", tenant)
	}
	for {
		var page admin.LimitPage
		if _, err := a.call(ctx, http.MethodGet, "limits", query, nil, nil, &page); err != nil {
			return err
		}
		all.Limits = append(all.Limits, page.Limits...)
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(all.Limits)
	}
	return limitTable(w, all.Limits)
}

// showBudgets prints the limits of money, of one tenant or of all, and what of them
// is left at the gateway that is asked.
func showBudgets(ctx context.Context, a *adminClient, tenant, output string, w io.Writer) error {
	all := []admin.LimitStatus{}
	query := url.Values{"unit": {quota.USD.String()}, "limit": {"1000"}}
	if tenant != "" {
		query.Set("tenant", tenant)
	}
	for {
		var page admin.LimitList
		if _, err := a.call(ctx, http.MethodGet, "/api/v1/limits", query, nil, nil, &page); err != nil {
			return err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			break
		}
		query.Set("cursor", page.Next)
	}
	switch {
	case output == "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(all)
	case len(all) == 0:
		_, err := fmt.Fprintln(w, "There are no limits of money.")
		return err
	}
	return limitTable(w, all)
}

func limitTable(w io.Writer, list []admin.LimitStatus) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tLIMIT\tUSED\tRESERVED\tLEFT\tNEW IN")
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, l := range list {
		reset := "-"
		if l.Reset > 0 {
			reset = span(time.Duration(l.Reset * float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Node, l.Limit, number(l.Used), number(l.Reserved), number(l.Left), reset)
	}
	return tw.Flush()
}
