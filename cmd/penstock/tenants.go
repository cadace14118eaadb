// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/auth"
)

func newTenantsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tenants",
		Short: "Make, change, list and delete organisations, teams and projects",
		Long: `Make, change, list and delete organisations, teams and projects.

A tenant is named by its path: acme, or acme/search below it. What a tenant may
not do, nothing below it may.` + keysHelp,
	}
	c.AddCommand(newTenantsEdit("create"), newTenantsEdit("update"), newTenantsList(), newTenantsDelete())
	return quiet(c)
}

func tenantPath(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/api/v1/tenants/" + strings.Join(parts, "/")
}

// newTenantsEdit is create and update, which differ in what is there before.
func newTenantsEdit(verb string) *cobra.Command {
	var f keysFlags
	var s specFlags
	var kind string
	var regions []string
	c := &cobra.Command{
		Use:     verb + " PATH",
		Short:   map[string]string{"create": "Make a tenant", "update": "Change what the flags say of a tenant"}[verb],
		Example: "  penstock tenants " + verb + ` acme/search --models 'chat-*' --limits '[{"usd": 500, "per": "month"}]'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			in := admin.NewTenant{Path: args[0]}
			method, path, header := http.MethodPost, "/api/v1/tenants", http.Header(nil)
			if verb == "update" {
				var now auth.Tenant
				method, path = http.MethodPut, tenantPath(args[0])
				if _, err := k.ask(c.Context(), http.MethodGet, path, nil, nil, nil, &now); err != nil {
					return err
				}
				in.Spec = now.Spec
				header = http.Header{"If-Match": {k.etag}} // what was changed meanwhile is not lost
				if k.etag == "" {
					header.Set("If-Match", "*") // a file's: the API says so
				}
			}
			set := func(flag string, do func()) {
				if c.Flags().Changed(flag) {
					do()
				}
			}
			set("kind", func() { in.Spec.Kind = kind })
			set("tier", func() { in.Spec.Tier = s.tier })
			set("regions", func() { in.Spec.Regions = none(regions) })
			set("models", func() { in.Spec.Models = none(s.models) })
			set("deny", func() { in.Spec.Deny = none(s.deny) })
			set("sources", func() { in.Spec.Sources = none(s.sources) })
			set("metadata", func() { in.Spec.Metadata = s.metadata })
			limits, err := s.list()
			if err != nil {
				return err
			}
			set("limits", func() { in.Spec.Limits = limits })
			var body any = &in
			if verb == "update" {
				body = &admin.TenantChange{Spec: in.Spec}
			}
			var doc auth.Tenant
			raw, err := k.ask(c.Context(), method, path, f.query(), header, body, &doc)
			if err != nil {
				return err
			}
			if f.dryRun {
				k.tell("tenant %s would be %sd; nothing was changed", doc.Path, verb)
				return nil
			}
			k.tell("tenant %s was %sd", doc.Path, verb)
			if f.output == "json" {
				return k.print(raw)
			}
			return nil
		},
	}
	f.add(c, true)
	s.add(c)
	c.Flags().StringVar(&kind, "kind", "", "organisation, team or project; unless set, the one below the tenant above")
	c.Flags().StringSliceVar(&regions, "regions", nil, "the only `regions` in which requests may be processed")
	c.Long = c.Short + "." + keysHelp
	return quiet(c)
}

// none makes an empty list no rule at all.
func none(list []string) []string {
	if len(list) == 0 || len(list) == 1 && list[0] == "" {
		return nil
	}
	return list
}

func newTenantsList() *cobra.Command {
	var f keysFlags
	var under string
	c := &cobra.Command{
		Use:   "list",
		Short: "List tenants",
		Long:  "List tenants, of the configuration and of the store." + keysHelp,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			q := url.Values{"limit": {"1000"}}
			if under != "" {
				q.Set("under", under)
			}
			all := admin.TenantList{Items: []auth.Tenant{}}
			err = k.pages(c.Context(), "/api/v1/tenants", q, func(next func(any) error) (string, error) {
				var page admin.TenantList
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
			fmt.Fprintln(w, "TENANT\tKIND\tTIER\tMODELS\tDENIED\tLIMITS\tFROM")
			for _, t := range all.Items {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", t.Path, orDash(t.Spec.Kind), orDash(t.Spec.Tier),
					orDash(strings.Join(t.Spec.Models, ", ")), orDash(strings.Join(t.Spec.Deny, ", ")), len(t.Spec.Limits), t.Origin)
			}
			return w.Flush()
		},
	}
	f.add(c, false)
	c.Flags().StringVar(&under, "under", "", "one tenant and those below it, by its `path`")
	return quiet(c)
}

func newTenantsDelete() *cobra.Command {
	var f keysFlags
	c := &cobra.Command{
		Use:   "delete PATH",
		Short: "Delete a tenant that has no keys and no tenants below it",
		Long:  "Delete a tenant that has no keys and no tenants below it." + keysHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := f.client(c)
			if err != nil {
				return err
			}
			if _, err := k.ask(c.Context(), http.MethodDelete, tenantPath(args[0]), f.query(), http.Header{"If-Match": {"*"}}, nil, nil); err != nil {
				return err
			}
			if f.dryRun {
				k.tell("tenant %s would be deleted; nothing was changed", args[0])
				return nil
			}
			k.tell("tenant %s was deleted", args[0])
			return nil
		},
	}
	f.add(c, true)
	return quiet(c)
}
