// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
)

// adminClient asks the admin interface of a running gateway.
type adminClient struct {
	address string // as given
	base    *url.URL
	token   string // "": none
	http    *http.Client
	etag    string // of the last answer
}

func adminFlag(c *cobra.Command, address *string) {
	c.Flags().StringVar(address, "admin", "127.0.0.1:9901", "admin address of the gateway; also by PENSTOCK_ADMIN in the environment")
}

// adminOf is the client for the flag's address, or for that of the environment
// when the flag was not given.
func adminOf(c *cobra.Command, address string) (*adminClient, error) {
	if env := os.Getenv("PENSTOCK_ADMIN"); env != "" && !c.Flags().Changed("admin") {
		address = env
	}
	return newAdminClient(address)
}

// adminToken is the token for the admin interface: of the environment, or of the
// file that it names.
func adminToken() (string, error) {
	if token := os.Getenv("PENSTOCK_ADMIN_TOKEN"); token != "" {
		return token, nil
	}
	name := os.Getenv("PENSTOCK_ADMIN_TOKEN_FILE")
	if name == "" {
		return "", nil
	}
	s, err := config.ReadSecret(name)
	if err != nil {
		return "", usageError("PENSTOCK_ADMIN_TOKEN_FILE: %v", err)
	}
	return s.Reveal(), nil
}

func newAdminClient(address string) (*adminClient, error) {
	token, err := adminToken()
	if err != nil {
		return nil, err
	}
	text := address
	if strings.HasPrefix(text, ":") {
		text = "127.0.0.1" + text
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	base, err := url.Parse(text)
	if err != nil || base.Host == "" {
		return nil, usageError("--admin %s: not an address; want host:port", address)
	}
	return &adminClient{
		address: address,
		base:    base,
		token:   token,
		// No proxy: the admin interface is on this machine or forwarded to it.
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}, nil
}

// call sends one request and decodes the answer into v; raw is the answer.
func (a *adminClient) call(ctx context.Context, method, path string, query url.Values, header http.Header, body []byte, v any) (raw []byte, err error) {
	u := a.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.http.Do(req)
	if err != nil {
		return nil, &exitError{exitFailed, fmt.Errorf("no answer from %s: %w; is penstock running, and is this its admin address (--admin)?", a.address, cause(err))}
	}
	defer res.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return nil, &exitError{exitFailed, fmt.Errorf("the answer from %s broke off: %w; try again", a.address, cause(err))}
	}
	a.etag = res.Header.Get("ETag")
	if res.StatusCode < 200 || res.StatusCode > 299 {
		var f admin.Failure
		if json.Unmarshal(raw, &f) == nil && f.Error.Message != "" {
			text := f.Error.Message
			if f.Error.Param != "" {
				text = f.Error.Param + ": " + text
			}
			if f.Error.Hint != "" {
				text += "; " + f.Error.Hint
			}
			return nil, &exitError{exitFailed, errors.New(text)}
		}
		return nil, &exitError{exitFailed, fmt.Errorf("%s answers %s to %s %s; is this its admin address (--admin)?", a.address, res.Status, method, path)}
	}
	if v == nil {
		return raw, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, &exitError{exitFailed, fmt.Errorf("the answer from %s is not penstock's: %w; is this its admin address (--admin)?", a.address, err)}
	}
	return raw, nil
}

// cause takes off what the message around it says already.
func cause(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err
}

// getOptions are the flags of get.
type getOptions struct {
	output, admin string
	pool, model   string
	tenant        string
	n             int
	objects       objectFlags
}

func newGetCommand() *cobra.Command {
	var o getOptions
	c := &cobra.Command{
		Use:   "get pools|members|pickers|models|targets|limits|picks|gateways|routes|inferencepools|gatewaypolicies",
		Short: "Show what a running gateway knows, or what became of objects of Kubernetes",
		Long: `Show what a running gateway knows, from its admin interface.

  pools    pools with their source, profile and members by state
  members  members with their load and last metrics; --pool NAME for one pool
  pickers  replicas of the pickers elsewhere (picker.remote), with the last
           error of each; --pool NAME for one pool
  models   names that clients may ask for, with their targets
  targets  targets of models with their health, and that of the accounts at
           providers; --model NAME for one model
  limits   limits of tenants, keys, end users and credentials, with what of them
           is in use; --tenant NAME for one tenant and what is below it
  picks    the newest decisions; --pool NAME, -n COUNT

A value that a server does not report is printed as -, never as 0.

Or show what the controller, or whoever else is responsible, has written to the
status of objects in a cluster (--kubeconfig, --context, --namespace); with
-f MANIFESTS what it would write, without a cluster. What is wrong comes first.

  gateways         Gateways with their addresses and listeners
  routes           HTTPRoutes and GRPCRoutes, a row per parent
  models           Models, a row per parent, with one of the flags for clusters:
                   --namespace "" is all of them
  inferencepools   InferencePools, a row per Gateway, with how many of the pods
                   that they select serve (READY); also "pools" with one of the
                   flags for clusters
  gatewaypolicies  GatewayPolicies, a row per Gateway; also "policies"

Exit codes: 0 printed, 1 the gateway or the cluster was not reached or refused,
2 wrong flags.`,
		Example:   "  penstock get members --pool llama\n  penstock get picks -n 5 -o json\n  penstock get routes --namespace shop\n  penstock get gateways -f manifests/",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"pools", "members", "pickers", "models", "targets", "limits", "picks", "gateways", "routes", "inferencepools", "gatewaypolicies", "policies"},
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(o.output, "table"); err != nil {
				return err
			}
			kinds, err := o.source(c, args[0])
			if err != nil {
				return err
			}
			if kinds != nil {
				return o.objects.get(c, kinds, o.output)
			}
			a, err := adminOf(c, o.admin)
			if err != nil {
				return err
			}
			return get(c.Context(), a, args[0], o, c.OutOrStdout())
		},
	}
	outputFlag(c, &o.output, "table")
	adminFlag(c, &o.admin)
	c.Flags().StringVar(&o.pool, "pool", "", "one pool only (members, pickers, picks)")
	c.Flags().StringVar(&o.model, "model", "", "one model only (targets)")
	c.Flags().StringVar(&o.tenant, "tenant", "", "one tenant only (limits)")
	c.Flags().IntVarP(&o.n, "number", "n", 20, "how many picks")
	o.objects.add(c)
	return quiet(c)
}

// source is where an answer comes from: the kinds of objects to read, or none
// for a running gateway. A flag that means nothing there is refused.
func (o *getOptions) source(c *cobra.Command, what string) (kinds []string, err error) {
	if what == "policies" {
		what = "gatewaypolicies"
	}
	kinds, both := kindsToGet(what)
	objects := o.objects.given(c)
	if kinds != nil && (!both || objects != nil) {
		if bad := givenOf(c, "admin", "pool", "model", "tenant", "number"); bad != nil {
			return nil, usageError("get %s shows objects of Kubernetes, for which %s", what, meaningless(bad))
		}
		return kinds, nil
	}
	if objects != nil {
		return nil, usageError("get %s asks a running gateway (--admin), for which %s; gateways, routes, models, inferencepools and gatewaypolicies can be got from a cluster", what, meaningless(objects))
	}
	for _, flag := range []struct {
		name string
		of   []string
	}{{"pool", []string{"members", "pickers", "picks"}}, {"model", []string{"targets"}}, {"tenant", []string{"limits"}}, {"number", []string{"picks"}}} {
		if !slices.Contains(flag.of, what) && c.Flags().Changed(flag.name) {
			return nil, usageError("--%s is for get %s, not for %s", flag.name, strings.Join(flag.of, ", "), what)
		}
	}
	return nil, nil
}

func get(ctx context.Context, a *adminClient, what string, o getOptions, w io.Writer) error {
	query := url.Values{}
	if o.pool != "" {
		query.Set("pool", o.pool)
	}
	switch what {
	case "pools":
		return show(ctx, a, what, nil, o.output, w, poolTable)
	case "members":
		return show(ctx, a, what, query, o.output, w, memberTable)
	case "pickers":
		return show(ctx, a, what, query, o.output, w, pickerTable)
	case "models":
		return show(ctx, a, what, nil, o.output, w, modelTable)
	case "targets":
		if o.model != "" {
			query.Set("model", o.model)
		}
		return show(ctx, a, what, query, o.output, w, targetTable)
	case "limits":
		return showLimits(ctx, a, o.tenant, o.output, w)
	case "picks":
		query.Set("n", strconv.Itoa(o.n))
		return show(ctx, a, what, query, o.output, w, pickTable)
	}
	return usageError("there is nothing called %s to get", what)
}

// show fetches a list and prints it, as it came or through table.
func show[T any](ctx context.Context, a *adminClient, path string, query url.Values, output string, w io.Writer, table func(io.Writer, []T)) error {
	var list []T
	raw, err := a.call(ctx, http.MethodGet, path, query, nil, nil, &list)
	if err != nil {
		return err
	}
	if output == "json" {
		_, err := w.Write(raw)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	table(tw, list)
	return tw.Flush()
}

func poolTable(w io.Writer, pools []admin.PoolStatus) {
	fmt.Fprintln(w, "POOL\tMEMBERS\tREADY\tIN FLIGHT\tENGINE\tPROTOCOL\tPROFILE\tSOURCE")
	for _, p := range pools {
		source := p.Source
		if p.Discovery != "" {
			source += " (last try: " + withoutDial(p.Discovery) + ")"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", p.Name, p.Members, p.Ready, p.Requests, p.Engine, p.Protocol, p.Profile, source)
	}
}

func memberTable(w io.Writer, members []admin.MemberStatus) {
	fmt.Fprintln(w, "POOL\tMEMBER\tSTATE\tIN FLIGHT\tQUEUED TOKENS\tWAITING\tRUNNING\tKV\tPREFIX HITS\tMETRICS")
	for _, m := range members {
		x, metrics := m.Metrics, "fresh"
		switch {
		case x == nil:
			x, metrics = &admin.MemberMetrics{}, "unknown"
		case x.Stale:
			metrics = "stale"
		}
		state := m.State
		if m.Share < 1 && state == "returning" {
			state = fmt.Sprintf("%s (%.0f%%)", state, 100*m.Share)
		}
		if m.Reason != "" {
			state += " (" + m.Reason + ")"
		}
		if len(m.Missing) > 0 {
			metrics += ", lacks " + strings.Join(m.Missing, " ")
		}
		if m.Scrape != "" {
			metrics += " (last try: " + withoutDial(m.Scrape) + ")"
		}
		hits := "-"
		if x.PrefixHits != nil && x.PrefixQueries != nil && *x.PrefixQueries > 0 {
			hits = fmt.Sprintf("%.0f%%", 100**x.PrefixHits / *x.PrefixQueries)
		}
		kv := "-"
		if x.KVUsage != nil {
			kv = fmt.Sprintf("%.0f%%", 100**x.KVUsage)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", m.Pool, m.Address, state, m.Requests, m.Queued,
			numberOrDash(x.Waiting), numberOrDash(x.Running), kv, hits, metrics)
	}
}

func pickerTable(w io.Writer, pickers []admin.PickerStatus) {
	fmt.Fprintln(w, "POOL\tPICKER\tREPLICA\tSTATE\tSTREAMS\tLAST ERROR")
	for _, p := range pickers {
		for _, r := range p.Replicas {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", p.Pool, p.Address, r.Address, r.State, r.Streams, orDash(r.Error))
		}
		if p.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t%s\n", p.Pool, p.Address, p.Error)
		}
	}
}

// withoutDial takes the address off a dial error: the row says whose it is.
func withoutDial(text string) string {
	if rest, ok := strings.CutPrefix(text, "dial tcp "); ok {
		if _, what, ok := strings.Cut(rest, ": "); ok {
			return strings.TrimPrefix(what, "connect: ")
		}
	}
	return text
}

func numberOrDash(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}

func modelTable(w io.Writer, models []admin.ModelStatus) {
	fmt.Fprintln(w, "MODEL\tALIAS OF\tPOOL OR PROVIDER\tUPSTREAM MODEL\tPRIORITY\tWEIGHT\tREADY MEMBERS")
	for _, m := range models {
		for _, t := range m.Targets {
			ready := "-"
			if t.Pool != "" {
				ready = strconv.Itoa(t.Ready)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", m.Name, orDash(m.Alias), cmp.Or(t.Pool, t.Provider), t.Model, t.Priority, t.Weight, ready)
		}
		if len(m.Targets) == 0 {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t-\t-\n", m.Name, orDash(m.Alias))
		}
	}
}

func targetTable(w io.Writer, targets []admin.TargetHealth) {
	fmt.Fprintln(w, "MODEL\tTARGET\tFALLBACK\tPRIORITY\tWEIGHT\tSTATE\tOPEN\tFIRST OUTPUT\tACCOUNT")
	state := func(name, reason string, until *time.Time) string {
		if reason != "" {
			name += " (" + reason + ")"
		}
		if until != nil {
			name += " for " + span(time.Until(*until).Round(time.Second))
		}
		return name
	}
	for _, t := range targets {
		wait := "-"
		if t.FirstOutput > 0 {
			wait = span(time.Duration(t.FirstOutput * float64(time.Second)).Round(time.Millisecond))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t-\n", t.Model, t.Target, orDash(t.Fallback), t.Priority, t.Weight,
			state(t.State, t.Reason, t.Until), t.Open, wait)
		for _, c := range t.Credentials {
			fmt.Fprintf(w, "\t\t\t\t\t%s\t\t\t%s\n", state(c.State, c.Reason, c.Until), c.Name)
		}
	}
}

func pickTable(w io.Writer, picks []*epp.Explanation) {
	fmt.Fprintln(w, "TIME\tREQUEST\tPOOL\tMODEL\tPICKED\tREASON\tCACHED OF PROMPT")
	for _, x := range picks {
		picked, cached := orDash(x.SentTo()), 0
		for _, c := range x.Candidates {
			if c.Endpoint == picked {
				cached = c.MatchedTokens
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d/%d\n", x.At.Local().Format("15:04:05.000"), x.RequestID, x.Pool, x.Model, picked, x.Reason, cached, x.PromptTokens)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
