// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
)

func newPricesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "prices",
		Short: "Check and show price lists",
		Long: `Check and show price lists: Penstock's own form, and LiteLLM's
model_prices_and_context_window.json. Penstock has no price list of its own.`,
	}
	c.AddCommand(newPricesCheckCommand(), newPricesShowCommand())
	return quiet(c)
}

// maxPrices bounds a price list, in bytes, as the configuration does.
const maxPrices = 4 << 20

// readPrices reads one list; its format is told by its first byte, since LiteLLM's
// is an object and Penstock's a list.
func readPrices(path string) (p *usage.Prices, format config.PriceFormat, problems, notes config.Problems, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, "", nil, nil, usageError("%w", err)
	}
	if len(text) > maxPrices {
		return nil, "", nil, nil, usageError("%s: is larger than %d MiB", path, maxPrices>>20)
	}
	format = config.PricesPenstock
	if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) {
		format = config.PricesLiteLLM
	}
	p, problems, notes = usage.NewPrices(&config.Prices{Files: []config.PriceFile{{Path: path, Format: format, Text: string(text)}}})
	return p, format, problems, append(notes, p.Doubts()...), nil
}

func newPricesCheckCommand() *cobra.Command {
	return quiet(&cobra.Command{
		Use:   "check FILE",
		Short: "Validate a price list",
		Long: `Validate a price list. Amounts that no model costs are refused, since they are
mostly of another unit; so are entries that are there twice. Lines that begin
with note: are about what is not billed, and what may not be meant.

Exit codes: 0 valid, 1 not valid, 2 the file cannot be read or the arguments are wrong.`,
		Example: "  penstock prices check model_prices_and_context_window.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, format, problems, notes, err := readPrices(args[0])
			if err != nil {
				return err
			}
			for _, q := range problems {
				fmt.Fprintln(c.ErrOrStderr(), q)
			}
			for _, q := range notes {
				fmt.Fprintln(c.ErrOrStderr(), "note:", q)
			}
			if len(problems) > 0 {
				return &exitError{code: exitFailed}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: ok, %d prices (%s), version %s\n", args[0], p.Len(), format, p.Version())
			return nil
		},
	})
}

func newPricesShowCommand() *cobra.Command {
	var file, list, model, place, output string
	c := &cobra.Command{
		Use:   "show (-c FILE | --list FILE) [--model MODEL] [--provider PROVIDER]",
		Short: "Show the prices of a configuration or of a list",
		Long: `Show prices in USD: of tokens per million, of everything else each. What stands
in for a rate that is not listed is filled in: cached input costs as much as
input, reasoning as much as output. A model may be a pattern with one *.

Exit codes: 0 shown, 1 not valid or nothing found, 2 the file cannot be read or the flags are wrong.`,
		Example: "  penstock prices show -c penstock.yaml --model 'gpt-5*'\n  penstock prices show --list model_prices_and_context_window.json --provider groq",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkOutput(output, "table"); err != nil {
				return err
			}
			var p *usage.Prices
			var problems config.Problems
			var err error
			if list != "" {
				p, _, problems, _, err = readPrices(list)
			} else {
				var cfg *config.Config
				if cfg, err = loadConfig(file, config.Options{Unlistened: true}); err == nil {
					p, problems, _ = usage.NewPrices(&cfg.Prices)
				}
			}
			if ps, content := problemsOf(err); content {
				problems = ps
			} else if err != nil {
				return err
			}
			if len(problems) > 0 {
				for _, q := range problems {
					fmt.Fprintln(c.ErrOrStderr(), q)
				}
				return &exitError{code: exitFailed}
			}
			rows := chosen(p.List(), model, place)
			if output == "json" {
				return printJSON(c.OutOrStdout(), priceRows{p.Version(), rows})
			}
			if len(rows) == 0 {
				return &exitError{exitFailed, fmt.Errorf("no price is listed for that")}
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PLACE\tMODEL\tFROM\tFOR\tINPUT\tCACHED\tWRITTEN\tOUTPUT\tFURTHER")
			for i := range rows {
				fmt.Fprintln(w, priceLine(&rows[i]))
			}
			return w.Flush()
		},
	}
	configFlag(c, &file)
	c.Flags().StringVar(&list, "list", "", "a price list, in place of a configuration")
	c.Flags().StringVar(&model, "model", "", "only models of this name, or pattern with one *")
	c.Flags().StringVar(&place, "provider", "", "only of this provider or pool")
	outputFlag(c, &output, "table")
	c.MarkFlagsMutuallyExclusive("config", "list")
	return quiet(c)
}

// priceRows are prices as JSON has them.
type priceRows struct {
	Version string         `json:"version"`
	Prices  []usage.Listed `json:"prices"`
}

// listPrices are the prices in force, for the admin API.
func (g *gateway) listPrices(_ context.Context, query url.Values) (any, error) {
	p := g.proxy.Prices()
	return priceRows{p.Version(), chosen(p.List(), query.Get("model"), query.Get("provider"))}, nil
}

// chosen are the rows of a model and a place; "": of all.
func chosen(rows []usage.Listed, model, place string) []usage.Listed {
	out := []usage.Listed{}
	for _, r := range rows {
		_, name, _ := strings.Cut(r.Place, " ")
		if _, ok := config.MatchStar(cmp.Or(model, "*"), r.Model); (ok || r.Model == model || model == "") && (place == "" || place == name) {
			out = append(out, r)
		}
	}
	return out
}

// priceLine is a row of the table.
func priceLine(r *usage.Listed) string {
	var what, further []string
	if r.Region != "" {
		what = append(what, r.Region)
	}
	if r.Tier != "" {
		what = append(what, r.Tier)
	}
	if r.Above > 0 {
		what = append(what, ">"+strconv.Itoa(r.Above))
	}
	if r.GPUHour != "" {
		further = append(further, r.GPUHour+" an hour")
	}
	in, out := r.Rates["input"], r.Rates["output"]
	for _, k := range []struct{ name, usual string }{
		{"cacheWrite1h", r.Rates["cacheWrite"]}, {"audioInput", in}, {"imageInput", in}, {"reasoning", out}, {"audioOutput", out}, {"imageOutput", out},
		{"perRequest", ""}, {"perImage", ""}, {"perSearch", ""}, {"perSecond", ""},
	} {
		if v := r.Rates[k.name]; v != k.usual {
			further = append(further, k.name+" "+v)
		}
	}
	dash := func(s string) string { return cmp.Or(s, "-") }
	return strings.Join([]string{
		r.Place, cmp.Or(r.Model, "*"), dash(r.From), dash(strings.Join(what, " ")), dash(in), dash(r.Rates["cacheRead"]), dash(r.Rates["cacheWrite"]), dash(out),
		dash(strings.Join(further, ", ")),
	}, "\t")
}
