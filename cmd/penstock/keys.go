// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// keysClient edits tenants and keys by the admin API of a running gateway.
type keysClient struct {
	*adminClient
	cmd    *cobra.Command
	output string
}

// keysFlags are the flags of every command here.
type keysFlags struct {
	output, admin string
	dryRun        bool
}

func (f *keysFlags) add(c *cobra.Command, edits bool) {
	outputFlag(c, &f.output, "table")
	adminFlag(c, &f.admin)
	if edits {
		c.Flags().BoolVar(&f.dryRun, "dry-run", false, "have everything checked, and change nothing")
	}
}

func (f *keysFlags) client(c *cobra.Command) (*keysClient, error) {
	if err := checkOutput(f.output, "table"); err != nil {
		return nil, err
	}
	a, err := adminOf(c, f.admin)
	if err != nil {
		return nil, err
	}
	return &keysClient{adminClient: a, cmd: c, output: f.output}, nil
}

func (f *keysFlags) query() url.Values {
	if f.dryRun {
		return url.Values{"dryRun": {"true"}}
	}
	return nil
}

// ask sends one request and decodes the answer into doc; nil: it has none.
func (k *keysClient) ask(ctx context.Context, method, path string, query url.Values, header http.Header, body, doc any) (raw []byte, err error) {
	var sent []byte
	if body != nil {
		sent = config.EncodeJSON(body)
	}
	if raw, err = k.call(ctx, method, path, query, header, sent, nil); err != nil || doc == nil {
		return raw, err
	}
	if err := config.DecodeJSON(raw, doc); err != nil {
		return nil, &exitError{exitFailed, fmt.Errorf("the answer from %s is not what this penstock knows: %w; are both of one version?", k.address, err)}
	}
	return raw, nil
}

const keysHelp = `

The commands ask the admin API of a running gateway (--admin), which needs a
store of keys: keys: {store: sqlite, path: …, pepper: …} in its configuration.
Where admin.users are configured, the token is taken from PENSTOCK_ADMIN_TOKEN,
or from the file that PENSTOCK_ADMIN_TOKEN_FILE names.

Exit codes: 0 done, 1 the gateway was not reached or refused, 2 wrong flags.`

func newKeysCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "keys",
		Short: "Make, rotate, revoke and list the keys of clients",
		Long: `Make, rotate, revoke and list the keys of clients.

A secret is printed once, alone on standard output, when it is made; the store
has its digest only.` + keysHelp,
	}
	c.AddCommand(newKeysCreate(), newKeysRotate(), newKeysAct("revoke", "End a key for good, on every gateway within a second"),
		newKeysAct("disable", "Take a key no more until it is enabled"), newKeysAct("enable", "Take a disabled key again"), newKeysList(), newKeysShow())
	return quiet(c)
}

// specFlags are what can be said of a key or tenant on the command line.
type specFlags struct {
	tier, limits          string
	models, deny, sources []string
	metadata              map[string]string
}

func (f *specFlags) add(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.models, "models", nil, "models that may be asked for, `names` or patterns with one *")
	c.Flags().StringSliceVar(&f.deny, "deny", nil, "models that may not be asked for, `names` or patterns")
	c.Flags().StringSliceVar(&f.sources, "sources", nil, "`CIDR` blocks or addresses of clients")
	c.Flags().StringVar(&f.tier, "tier", "", "`tier`, for conditions")
	c.Flags().StringToStringVar(&f.metadata, "metadata", nil, "texts by name, `name=text`")
	c.Flags().StringVar(&f.limits, "limits", "", "limits as a `JSON` list, as in a configuration: [{\"tokens\": 200000, \"per\": \"1m\"}]")
}

// list reads the limits.
func (f *specFlags) list() ([]config.Limit, error) {
	if f.limits == "" {
		return nil, nil
	}
	var spec auth.KeySpec
	if err := config.DecodeJSON([]byte(`{"limits": `+f.limits+`}`), &spec); err != nil {
		return nil, usageError("--%v", err)
	}
	return spec.Limits, nil
}

func newKeysCreate() *cobra.Command {
	var f keysFlags
	var s specFlags
	var in admin.NewKey
	c := &cobra.Command{
		Use:     "create NAME --tenant PATH",
		Short:   "Make a key and print its secret, once",
		Long:    "Make a key of a tenant and print its secret, once.\n\nWithout --tenant it is the only tenant's, if there is one." + keysHelp,
		Example: "  penstock keys create ci --tenant acme/search --models 'chat-*' --expires 2027-06-30",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			in.Name = args[0]
			in.Spec.Tier, in.Spec.Models, in.Spec.Deny, in.Spec.Sources, in.Spec.Metadata = s.tier, s.models, s.deny, s.sources, s.metadata
			if in.Spec.Limits, err = s.list(); err != nil {
				return err
			}
			if in.Tenant == "" {
				if in.Tenant, err = k.onlyTenant(c.Context()); err != nil {
					return err
				}
			}
			var doc auth.Key
			raw, err := k.ask(c.Context(), http.MethodPost, "/api/v1/keys", f.query(), nil, &in, &doc)
			if err != nil {
				return err
			}
			if f.dryRun {
				k.tell("key %s of tenant %s would be made; nothing was changed", doc.Name, doc.Tenant)
				return nil
			}
			return k.secret(raw, &doc, "made")
		},
	}
	f.add(c, true)
	s.add(c)
	c.Flags().StringVar(&in.Tenant, "tenant", "", "`path` of the tenant whose key it is")
	c.Flags().StringVar(&in.Spec.NotBefore, "not-before", "", "from when on it is taken: a `time` such as 2027-01-31T18:00:00Z, or a date")
	c.Flags().StringVar(&in.Spec.Expires, "expires", "", "until when, likewise")
	return quiet(c)
}

// onlyTenant is the tenant that is meant where none is named.
func (k *keysClient) onlyTenant(ctx context.Context) (string, error) {
	var list admin.TenantList
	if _, err := k.ask(ctx, http.MethodGet, "/api/v1/tenants", url.Values{"limit": {"20"}}, nil, nil, &list); err != nil {
		return "", err
	}
	paths := make([]string, len(list.Items))
	for i := range list.Items {
		paths[i] = list.Items[i].Path
	}
	switch len(paths) {
	case 0:
		return "", &exitError{exitFailed, fmt.Errorf("there is no tenant; make one with penstock tenants create NAME")}
	case 1:
		return paths[0], nil
	}
	return "", usageError("--tenant is missing; tenants: %s", strings.Join(paths, ", "))
}

// tell writes to standard error.
func (k *keysClient) tell(format string, args ...any) {
	fmt.Fprintf(k.cmd.ErrOrStderr(), format+"\n", args...)
}

// print writes a JSON answer as it came.
func (k *keysClient) print(raw []byte) error {
	_, err := k.cmd.OutOrStdout().Write(raw)
	return err
}

// secret prints the secret of a key that has just been made, and nothing else, on
// standard output.
func (k *keysClient) secret(raw []byte, doc *auth.Key, what string) error {
	k.tell("key %s (%s of tenant %s) was %s. Its secret, which is shown this once:", doc.ID, doc.Name, doc.Tenant, what)
	if k.output == "json" {
		return k.print(raw)
	}
	_, err := fmt.Fprintln(k.cmd.OutOrStdout(), doc.Secret)
	return err
}

func newKeysRotate() *cobra.Command {
	var f keysFlags
	var grace time.Duration
	c := &cobra.Command{
		Use:   "rotate ID",
		Short: "Draw a new secret for a key, and let the older ones end",
		Long: `Draw a new secret for a key, and let the older ones end after a time of grace.

The key stays the same: its name, its limits and what it has spent.` + keysHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			var doc auth.Key
			// The grace is said even where it is the default: 0s must arrive as well.
			body := json.RawMessage(fmt.Sprintf(`{"grace": %q}`, span(grace)))
			raw, err := k.call(c.Context(), http.MethodPost, "/api/v1/keys/"+url.PathEscape(args[0])+"/rotate", f.query(), nil, body, nil)
			if err != nil {
				return err
			}
			if err := config.DecodeJSON(raw, &doc); err != nil {
				return &exitError{exitFailed, err}
			}
			if f.dryRun {
				k.tell("key %s would be rotated; nothing was changed", doc.ID)
				return nil
			}
			if grace > 0 {
				k.tell("The older secrets are taken for another %s.", span(grace))
			}
			return k.secret(raw, &doc, "rotated")
		},
	}
	f.add(c, true)
	c.Flags().DurationVar(&grace, "grace", 24*time.Hour, "how long the older secrets are taken")
	return quiet(c)
}

func newKeysAct(verb, short string) *cobra.Command {
	var f keysFlags
	c := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Long:  short + "." + keysHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			var doc auth.Key
			raw, err := k.ask(c.Context(), http.MethodPost, "/api/v1/keys/"+url.PathEscape(args[0])+"/"+verb, f.query(), nil, nil, &doc)
			if err != nil {
				return err
			}
			if f.dryRun {
				k.tell("key %s would be %s; nothing was changed", doc.ID, doc.State)
				return nil
			}
			k.tell("key %s (%s of tenant %s) is %s", doc.ID, doc.Name, doc.Tenant, doc.State)
			if f.output == "json" {
				return k.print(raw)
			}
			return nil
		},
	}
	f.add(c, true)
	return quiet(c)
}

// pages asks for a list, page by page. read takes each by next, and tells the
// cursor of the one after it.
func (k *keysClient) pages(ctx context.Context, path string, q url.Values, read func(next func(any) error) (string, error)) error {
	for {
		cursor, err := read(func(page any) error {
			_, err := k.ask(ctx, http.MethodGet, path, q, nil, nil, page)
			return err
		})
		if err != nil || cursor == "" {
			return err
		}
		q.Set("cursor", cursor)
	}
}

func newKeysList() *cobra.Command {
	var f keysFlags
	var tenant string
	c := &cobra.Command{
		Use:   "list",
		Short: "List keys that are not revoked",
		Long:  "List keys that are not revoked, those of the configuration first." + keysHelp,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			q := url.Values{"limit": {"1000"}}
			if tenant != "" {
				q.Set("tenant", tenant)
			}
			all := admin.KeyList{Items: []auth.Key{}}
			err = k.pages(c.Context(), "/api/v1/keys", q, func(next func(any) error) (string, error) {
				var page admin.KeyList
				err := next(&page)
				all.Items = append(all.Items, page.Items...)
				return page.Next, err
			})
			if err != nil {
				return err
			}
			if f.output == "json" {
				return k.print(indented(all))
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tTENANT\tNAME\tSTATE\tSECRETS\tEXPIRES\tLAST USED\tFROM")
			for _, d := range all.Items {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", d.ID, d.Tenant, d.Name, d.State, len(d.Secrets), orDash(d.Spec.Expires), orDash(d.LastUsed), d.Origin)
			}
			return w.Flush()
		},
	}
	f.add(c, false)
	c.Flags().StringVar(&tenant, "tenant", "", "of one tenant and those below it, by its `path`")
	return quiet(c)
}

// indented is a document as the API prints it.
func indented(doc any) []byte {
	var out bytes.Buffer
	if json.Indent(&out, config.EncodeJSON(doc), "", "  ") != nil {
		return nil // never of what is made here
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func newKeysShow() *cobra.Command {
	var f keysFlags
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Show one key",
		Long:  "Show one key, by its ID or TENANT:NAME." + keysHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			var doc auth.Key
			raw, err := k.ask(c.Context(), http.MethodGet, "/api/v1/keys/"+url.PathEscape(args[0]), nil, nil, nil, &doc)
			if err != nil {
				return err
			}
			if f.output == "json" {
				return k.print(raw)
			}
			return showKey(c.OutOrStdout(), &doc)
		},
	}
	f.add(c, false)
	return quiet(c)
}

func showKey(out io.Writer, d *auth.Key) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, text)
		}
	}
	row("id", d.ID)
	row("tenant", d.Tenant)
	row("name", d.Name)
	row("state", d.State)
	row("from", d.Origin)
	row("tier", d.Spec.Tier)
	row("models", strings.Join(d.Spec.Models, ", "))
	row("deny", strings.Join(d.Spec.Deny, ", "))
	row("sources", strings.Join(d.Spec.Sources, ", "))
	row("not before", d.Spec.NotBefore)
	row("expires", d.Spec.Expires)
	row("created", d.Created)
	row("last used", d.LastUsed)
	for i, m := range d.Secrets {
		text := m.Shown
		if m.Created != "" {
			text += ", made " + m.Created
		}
		if m.Expires != "" {
			text += ", ends " + m.Expires
		}
		row("secret "+strconv.Itoa(i+1), text)
	}
	for _, l := range d.Spec.Limits {
		row("limit", string(config.EncodeJSON(l)))
	}
	return w.Flush()
}
