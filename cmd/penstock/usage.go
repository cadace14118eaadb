// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage/ledger"
)

// usageOptions are the flags of usage and export.
type usageOptions struct {
	file, admin, output    string
	by, since, until, sort string
	where                  []string
	top                    int
	budgets                bool
}

func newUsageCommand() *cobra.Command {
	var o usageOptions
	c := &cobra.Command{
		Use:   "usage",
		Short: "Show who used how much, and what it cost",
		Long: `Show who used how much, and what it cost, from the ledger: by default of the
gateway that answers at --admin, with -c from the database that the
configuration names, whether or not a gateway runs.

Sums are by up to four dimensions (--by), most expensive first:
  ` + strings.Join(ledger.Dimensions(), ", ") + `

A cost that is not known is never counted as 0: "≥ $1.20" stands where rows
without a known price are inside, and the last line says how many they are.

--budgets shows the limits of money instead, and what is left of them: of every
node, or with --where tenant:PATH of one tenant and what is below it. A gateway
tells them, since they count what is under way too; "penstock get limits" shows
the limits of other units.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.budgets {
				return o.showBudgets(cmd)
			}
			a, raw, err := o.answer(cmd)
			if err != nil {
				return err
			}
			if o.output == "json" {
				_, err := cmd.OutOrStdout().Write(raw)
				return err
			}
			return usageTable(cmd.OutOrStdout(), a)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "config", "c", "", "configuration `file` whose ledger is read; without it the admin interface is asked")
	adminFlag(c, &o.admin)
	f.StringVar(&o.by, "by", "tenant", "`dimensions`, separated by commas")
	f.StringVar(&o.since, "since", "7d", "first `time`, or how long ago: 7d, 24h, 2026-01-31")
	f.StringVar(&o.until, "until", "", "last `time`; empty: now")
	f.StringArrayVar(&o.where, "where", nil, "only rows whose `DIMENSION:VALUE`; may be repeated")
	f.StringVar(&o.sort, "sort", "cost", "what comes first: cost, requests, tokens or key")
	f.IntVar(&o.top, "top", ledger.DefaultLimit, "at most so many `groups`")
	f.BoolVar(&o.budgets, "budgets", false, "what is left of the limits of money")
	outputFlag(c, &o.output, "text")
	for _, other := range []string{"config", "by", "since", "until", "sort", "top"} {
		c.MarkFlagsMutuallyExclusive("budgets", other)
	}
	return quiet(c)
}

func (o *usageOptions) showBudgets(cmd *cobra.Command) error {
	tenant := ""
	for _, w := range o.where {
		name, is := strings.CutPrefix(w, "tenant:")
		if !is || tenant != "" {
			return usageError("--budgets takes one --where, tenant:PATH")
		}
		tenant = name
	}
	client, err := adminOf(cmd, o.admin)
	if err != nil {
		return err
	}
	return showBudgets(cmd.Context(), client, tenant, o.output, cmd.OutOrStdout())
}

// query is what the flags ask for.
func (o *usageOptions) query() url.Values {
	v := url.Values{"by": {o.by}, "since": {o.since}, "order": {o.sort}, "top": {strconv.Itoa(o.top)}}
	if o.until != "" {
		v.Set("until", o.until)
	}
	if len(o.where) > 0 {
		v["where"] = o.where
	}
	return v
}

// answer asks the database, or the gateway.
func (o *usageOptions) answer(cmd *cobra.Command) (a *ledger.Answer, raw []byte, err error) {
	q, err := ledger.ParseQuery(o.query(), time.Now())
	if err != nil {
		return nil, nil, usageError("%w", err)
	}
	if o.file == "" {
		client, err := adminOf(cmd, o.admin)
		if err != nil {
			return nil, nil, err
		}
		raw, err = client.call(cmd.Context(), http.MethodGet, "/usage", o.query(), nil, nil, &a)
		return a, raw, err
	}
	r, err := openLedger(cmd.Context(), o.file)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	if a, err = r.Answer(cmd.Context(), q); err != nil {
		return nil, nil, &exitError{exitFailed, err}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	err = enc.Encode(a)
	return a, b.Bytes(), err
}

func openLedger(ctx context.Context, file string) (*ledger.Reader, error) {
	cfg, err := loadConfig(file, config.Options{})
	if err != nil {
		return nil, err
	}
	if cfg.Ledger.Kind() == config.SQLite {
		if _, err := os.Stat(cfg.Ledger.Path); err != nil {
			return nil, &exitError{exitFailed, fmt.Errorf("ledger: %w; a gateway makes it when it starts", err)}
		}
	}
	r, err := ledger.OpenReader(ctx, cfg.Ledger)
	if err != nil {
		return nil, &exitError{exitFailed, err}
	}
	return r, nil
}

// usageTable prints an answer.
func usageTable(out io.Writer, a *ledger.Answer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, name := range a.By {
		fmt.Fprintf(w, "%s\t", strings.ToUpper(name))
	}
	if a.Tasks != nil {
		fmt.Fprint(w, "OUTCOME\tRETRIES\tFALLBACKS\t")
	}
	fmt.Fprintln(w, "REQUESTS\tFAILED\tINPUT\tCACHED\tOUTPUT\tCOST\t")
	for i := range a.Groups {
		g := &a.Groups[i]
		for _, k := range g.Key {
			fmt.Fprintf(w, "%s\t", cmp.Or(k, "-"))
		}
		usageRow(w, g, a.Tasks != nil)
	}
	if len(a.By) > 0 && len(a.Groups) != 1 {
		for i := range a.By {
			fmt.Fprint(w, map[bool]string{true: "all", false: ""}[i == 0], "\t")
		}
		usageRow(w, &a.Total, a.Tasks != nil)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range usageNotes(a) {
		fmt.Fprintln(out, line)
	}
	return nil
}

func usageRow(w io.Writer, g *ledger.Sum, tasks bool) {
	t := &g.Tokens
	if tasks {
		fmt.Fprintf(w, "%s\t%d\t%d\t", cmp.Or(g.Outcome, "-"), g.Retries, g.Fallbacks)
	}
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%s\t\n", g.Requests, g.Failed,
		t.Input+t.Write5m+t.Write1h+t.AudioIn+t.ImageIn, t.CachedRead, t.Output+t.Reasoning+t.AudioOut+t.ImageOut, costText(g.Cost, g.Unpriced))
}

// costText is an amount for people: to the cent, or to more digits where a cent is
// much.
func costText(m ledger.Money, unpriced int64) string {
	text := ""
	switch d := m.Dollars(); {
	case unpriced > 0 && m.Zero():
		return "unknown"
	case m.Zero():
		text = "$0.00"
	case d >= 10:
		text = fmt.Sprintf("$%.2f", d)
	case d >= 0.0001:
		text = fmt.Sprintf("$%.4f", d)
	default:
		text = fmt.Sprintf("$%.3g", d)
	}
	if unpriced > 0 {
		text = "≥ " + text
	}
	return text
}

// usageNotes say what the figures do not.
func usageNotes(a *ledger.Answer) []string {
	var notes []string
	t := &a.Total
	if t.Requests == 0 && len(a.Groups) == 0 {
		return []string{fmt.Sprintf("Nothing was recorded between %s and %s.", a.Since.Format(time.DateTime), a.Until.Format(time.DateTime))}
	}
	if t.Unpriced > 0 {
		notes = append(notes, fmt.Sprintf("The cost of %d rows is not known, and not in these sums: their models have no price.", t.Unpriced))
	}
	if t.Estimated+t.Partial+t.Lost > 0 {
		notes = append(notes, fmt.Sprintf("Not as a server reported it: %d rows estimated, %d partial, %d lost.", t.Estimated, t.Partial, t.Lost))
	}
	if !t.Avoided.Zero() {
		notes = append(notes, "Cached answers saved "+costText(t.Avoided, 0)+".")
	}
	if a.Tasks != nil {
		notes = append(notes, taskNote(a.Tasks))
	}
	if a.Cursor != "" {
		notes = append(notes, "There are more groups: --top N shows them.")
	}
	return notes
}

func taskNote(t *ledger.Tasks) string {
	text := fmt.Sprintf("%d tasks: %d succeeded, %d failed, %d of unknown outcome; %s in all", t.Tasks, t.Succeeded, t.Failed, t.Unknown, costText(t.Cost, t.Unpriced))
	if t.PerSuccess != nil {
		text += ", " + costText(*t.PerSuccess, t.Unpriced) + " per successful task"
	}
	return text + "."
}

func newExportCommand() *cobra.Command {
	var o usageOptions
	var format string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write the rows of the ledger as CSV or JSON lines",
		Long: `Write the rows of the ledger as CSV or JSON lines, oldest first: one per request,
and one per attempt that used tokens in vain. By default the gateway that answers
at --admin is asked, with -c the database that the configuration names.

The sum over all rows is what was used. Money is in US dollars with all its
digits; a cost that is not known is empty in CSV and null in JSON.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := url.Values{"since": {o.since}, "format": {format}, "where": o.where}
			if o.until != "" {
				v.Set("until", o.until)
			}
			e, err := ledger.ParseExport(v, time.Now())
			if err != nil {
				return usageError("%w", err)
			}
			if o.file == "" {
				client, err := adminOf(cmd, o.admin)
				if err != nil {
					return err
				}
				return client.copy(cmd.Context(), "/usage/rows", v, cmd.OutOrStdout())
			}
			r, err := openLedger(cmd.Context(), o.file)
			if err != nil {
				return err
			}
			defer r.Close()
			if err := r.Export(cmd.Context(), e, cmd.OutOrStdout()); err != nil {
				return &exitError{exitFailed, err}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "config", "c", "", "configuration `file` whose ledger is read; without it the admin interface is asked")
	adminFlag(c, &o.admin)
	f.StringVar(&o.since, "since", "7d", "first `time`, or how long ago: 7d, 24h, 2026-01-31")
	f.StringVar(&o.until, "until", "", "last `time`; empty: now")
	f.StringArrayVar(&o.where, "where", nil, "only rows whose `DIMENSION:VALUE`; may be repeated")
	f.StringVar(&format, "format", "jsonl", "csv or jsonl")
	return quiet(c)
}

// copy writes the answer to a GET as it comes.
func (a *adminClient) copy(ctx context.Context, path string, query url.Values, out io.Writer) error {
	u := a.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	client := *a.http
	client.Timeout = 0 // as long as it takes
	res, err := client.Do(req)
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("no answer from %s: %w; is penstock running, and is this its admin address (--admin)?", a.address, cause(err))}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return &exitError{exitFailed, fmt.Errorf("%s answers %s: %s", a.address, res.Status, bytes.TrimSpace(raw))}
	}
	if _, err := io.Copy(out, res.Body); err != nil {
		return &exitError{exitFailed, fmt.Errorf("the answer from %s broke off: %w; what was written is not all", a.address, cause(err))}
	}
	return nil
}
