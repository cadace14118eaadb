// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock/admin"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	output, admin, body, model, pool, path, as string
	headers                                    []string
	objects                                    objectFlags
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	c := &cobra.Command{
		Use:   "explain REQUEST-ID | --body FILE | KIND/[NAMESPACE/]NAME",
		Short: "Show why a server was picked, or why an object of Kubernetes is as it is",
		Long: `Show the decision on a request as tables: the targets of its model, who was tried
with what became of it, and who was left out and why; and for a pool a row per
member, best first, with what each scorer gave and, for a refused member, which
filter refused it and why.

With a request id (the x-request-id of an answer) it shows what was decided
then; only the newest decisions are kept, and the targets once the request has
ended. Where one member of the only target answered, the members are all there
is to show. With --body FILE (- is standard
input) it decides on that request body now, sends nothing to a model server and
changes nothing: the targets in the order in which they would be tried, with those
that may not serve it, for a caller (--as, --header), and the members when a pool
comes first. A picker elsewhere (picker.remote) is asked, as by a request
that is given up at once, and the table is what passed.

A scorer gives 0 to 1; TOTAL is their sum by weight (×). The other columns are
what was known at that moment:

    IN FLIGHT, QUEUED  the gateway's own requests there, and their tokens that
                       wait to be computed
    WAITING, RUNNING,  the member's queue, batch and KV cache in use, from its
    KV                 last metrics
    CACHED             tokens of this prompt that its prefix cache should hold

Members of one TOTAL are equally good; one of them was picked at random.

With KIND/NAME or KIND/NAMESPACE/NAME it shows every condition of that object in a
cluster (--kubeconfig, --context, --namespace), what is wrong first; with
-f MANIFESTS those that a controller would write. Of a route or model it shows the
trouble of its pools too, and of an object that no controller answers for what
may be wrong. Kinds are gateway, gatewayclass, listenerset, route (httproute,
grpcroute), model, pool (inferencepool), policy (gatewaypolicy) and
backendtlspolicy.

Exit codes: 0 printed, 1 the gateway was not reached, does not know the request
or refuses the body, 2 wrong flags or an unreadable file.`,
		Example: "  penstock explain 0f8fad5b-d9cb-469f-a165-70867728950e\n  penstock explain --body request.json --model chat\n  penstock explain route/shop/chat",
		Args:    oneRequest,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(o.output, "table"); err != nil {
				return err
			}
			if len(args) == 1 {
				object, err := namesObject(args[0])
				if err != nil {
					return err
				}
				if object {
					if bad := givenOf(c, "admin", "body", "model", "pool", "path", "as", "header"); bad != nil {
						return usageError("%s is an object of Kubernetes, for which %s", args[0], meaningless(bad))
					}
					return o.objects.explain(c, args[0], o.output)
				}
			}
			if bad := o.objects.given(c); bad != nil {
				return usageError("a request is explained by a running gateway (--admin), for which %s; KIND/NAME names an object", meaningless(bad))
			}
			a, err := adminOf(c, o.admin)
			if err != nil {
				return err
			}
			var x admin.Decision
			raw, err := fetchExplanation(c.Context(), a, args, o, c.InOrStdin(), &x)
			if err != nil {
				return err
			}
			if o.output == "json" {
				_, err := c.OutOrStdout().Write(raw)
				return err
			}
			return printDecision(c.OutOrStdout(), &x)
		},
	}
	outputFlag(c, &o.output, "table")
	adminFlag(c, &o.admin)
	c.Flags().StringVar(&o.body, "body", "", "file with a request body to decide on; - is standard input")
	c.Flags().StringVar(&o.model, "model", "", "model, when the body names none (with --body)")
	c.Flags().StringVar(&o.pool, "pool", "", "decide in this pool (with --body; default: where a pool comes first, that one)")
	c.Flags().StringVar(&o.as, "as", "", "TENANT or TENANT/KEY that asks (with --body; default: anybody)")
	c.Flags().StringArrayVarP(&o.headers, "header", "H", nil, "\"Name: value\" of the request, may be repeated (with --body)")
	o.objects.add(c)
	c.Flags().StringVar(&o.path, "path", "/v1/chat/completions", "request path (with --body)")
	return quiet(c)
}

// printDecision prints the route of a request where it says more than the pick,
// and the pick where there was one.
func printDecision(w io.Writer, d *admin.Decision) error {
	if d.Route != nil && (d.Explanation == nil || !d.Route.Plain()) {
		if err := d.Route.Table(w); err != nil || d.Explanation == nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return d.Explanation.Table(w)
}

func oneRequest(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("one request id at a time, not %d", len(args))
	}
	return nil
}

func fetchExplanation(ctx context.Context, a *adminClient, args []string, o explainOptions, stdin io.Reader, x *admin.Decision) (raw []byte, err error) {
	switch {
	case len(args) == 1 && o.body != "":
		return nil, usageError("a request id and --body exclude each other; give one")
	case len(args) == 1:
		return a.call(ctx, http.MethodGet, "picks/"+url.PathEscape(args[0]), nil, nil, nil, x)
	case o.body == "":
		return nil, usageError("nothing to explain; give a request id or --body FILE (penstock get picks lists ids)")
	}
	var body []byte
	if o.body == "-" {
		body, err = io.ReadAll(stdin)
	} else {
		body, err = os.ReadFile(o.body)
	}
	if err != nil {
		return nil, usageError("--body: %w", err)
	}
	path, _, _ := strings.Cut(o.path, "?") // as it may be copied from a request
	query := url.Values{"path": {path}}
	if o.model != "" {
		query.Set("model", o.model)
	}
	if o.pool != "" {
		query.Set("pool", o.pool)
	}
	if o.as != "" {
		query.Set("as", o.as)
	}
	header := http.Header{}
	for _, line := range o.headers {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, usageError("--header %q is not of the form \"Name: value\"", line)
		}
		header.Add(name, value)
	}
	return a.call(ctx, http.MethodPost, "explain", query, header, body, x)
}
