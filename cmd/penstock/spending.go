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
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
)

// spending is who asks, and what is known of what they use.
type spending struct {
	limiter *quota.Limiter
	keyring *keyring // the store of tenants and keys
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
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tLIMIT\tUSED\tRESERVED\tLEFT\tNEW IN")
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, l := range all.Limits {
		reset := "-"
		if l.Reset > 0 {
			reset = span(time.Duration(l.Reset * float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Node, l.Limit, number(l.Used), number(l.Reserved), number(l.Left), reset)
	}
	return tw.Flush()
}
