// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/kube"
)

// objectFlags say where objects of Kubernetes are read from.
type objectFlags struct {
	kubeconfig, context, namespace, files string
}

func (f *objectFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says how to reach the cluster (default KUBECONFIG, ~/.kube/config)")
	flags.StringVar(&f.context, "context", "", "`context` of the kubeconfig")
	flags.StringVar(&f.namespace, "namespace", "", "`namespace` of the objects (default all)")
	flags.StringVarP(&f.files, "filename", "f", "", "`file or directory` with manifests, in place of a cluster")
	c.MarkFlagsMutuallyExclusive("kubeconfig", "filename")
	c.MarkFlagsMutuallyExclusive("context", "filename")
}

func (f *objectFlags) given(c *cobra.Command) bool {
	return slices.ContainsFunc([]string{"kubeconfig", "context", "namespace", "filename"}, func(name string) bool { return c.Flags().Changed(name) })
}

func isObjects(what string) bool {
	return slices.Contains([]string{"gateways", "routes", "inferencepools"}, what)
}

// read gives the objects with their statuses. What the cluster does not know is
// said on standard error.
func (f *objectFlags) read(c *cobra.Command) (*kube.Objects, []*kube.Status, error) {
	if f.files != "" {
		m, err := kube.LoadManifests(f.files)
		if err != nil {
			return nil, nil, usageError("%w", err)
		}
		l, err := m.Local(kube.LocalOptions{Options: kube.Options{Check: checkPickers}})
		if l.Result == nil {
			return nil, nil, err
		}
		return m.In(f.namespace), l.Result.Statuses, nil
	}
	cluster, err := kube.Connect(f.kubeconfig, f.context, "penstock-get/"+version)
	if err != nil {
		return nil, nil, usageError("%w", err)
	}
	o, unknown, err := cluster.Read(c.Context(), f.namespace)
	if err != nil {
		return nil, nil, &exitError{exitFailed, err}
	}
	for _, kind := range unknown {
		fmt.Fprintf(c.ErrOrStderr(), "penstock: the cluster knows no %s: their CRD is not installed\n", kind)
	}
	return o, o.Statuses(), nil
}

func (f *objectFlags) get(c *cobra.Command, what, output string) error {
	o, statuses, err := f.read(c)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(c.OutOrStdout(), 0, 8, 2, ' ', 0)
	var rows any
	switch what {
	case "gateways":
		list := kube.GatewayRows(o, statuses)
		worstFirst(list, func(r kube.GatewayRow) bool { return r.Bad })
		gatewayTable(tw, list)
		rows = list
	case "routes":
		list := kube.RouteRows(o, statuses)
		worstFirst(list, func(r kube.RouteRow) bool { return r.Bad })
		routeTable(tw, list)
		rows = list
	default:
		list := kube.PoolRows(o, statuses)
		worstFirst(list, func(r kube.PoolRow) bool { return r.Bad })
		inferencePoolTable(tw, list)
		rows = list
	}
	if output == "json" {
		return printJSON(c.OutOrStdout(), rows)
	}
	return tw.Flush()
}

// worstFirst keeps the order among those that are alike.
func worstFirst[T any](list []T, bad func(T) bool) {
	slices.SortStableFunc(list, func(a, b T) int {
		rank := map[bool]int{true: 0, false: 1}
		return cmp.Compare(rank[bad(a)], rank[bad(b)])
	})
}

func gatewayTable(w io.Writer, rows []kube.GatewayRow) {
	fmt.Fprintln(w, "REASON\tNAMESPACE\tGATEWAY\tADDRESS\tLISTENERS (ROUTES)\tCLASS\tMESSAGE")
	for _, r := range rows {
		var listeners []string
		for _, l := range r.Listeners {
			listeners = append(listeners, fmt.Sprintf("%s:%d (%d)", l.Name, l.Port, l.Routes))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, r.Name, orDash(strings.Join(r.Addresses, ",")), orDash(strings.Join(listeners, " ")), r.Class, orDash(oneLine(r.Message)))
	}
}

func routeTable(w io.Writer, rows []kube.RouteRow) {
	fmt.Fprintln(w, "REASON\tNAMESPACE\tROUTE\tPARENT\tHOSTNAMES\tMESSAGE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, strings.ToLower(r.Kind)+"/"+r.Name, orDash(strings.TrimPrefix(r.Parent, "Gateway ")), orDash(strings.Join(r.Hosts, ",")), orDash(oneLine(r.Message)))
	}
}

func inferencePoolTable(w io.Writer, rows []kube.PoolRow) {
	fmt.Fprintln(w, "REASON\tNAMESPACE\tPOOL\tGATEWAY\tPORTS\tSELECTOR\tPICKER\tMESSAGE")
	for _, r := range rows {
		var ports, selector []string
		for _, p := range r.Ports {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		for _, key := range slices.Sorted(maps.Keys(r.Selector)) {
			selector = append(selector, key+"="+r.Selector[key])
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, r.Name, orDash(strings.TrimPrefix(r.Parent, "Gateway ")), strings.Join(ports, ","), strings.Join(selector, ","), cmp.Or(r.Picker, "gateway"), orDash(oneLine(r.Message)))
	}
}

// oneLine keeps a table a table: the whole is shown by explain.
func oneLine(s string) string {
	const most = 120
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-1], "") + "…"
	}
	return s
}

// objectKinds are the words for kinds on the command line.
func objectKinds(word string) []string {
	return map[string][]string{
		"gateway": {"Gateway"}, "gatewayclass": {"GatewayClass"}, "route": {"HTTPRoute", "GRPCRoute"},
		"httproute": {"HTTPRoute"}, "grpcroute": {"GRPCRoute"}, "pool": {"InferencePool"},
		"inferencepool": {"InferencePool"}, "model": {"Model"},
	}[strings.ToLower(word)]
}

// namesObject says that an argument is KIND/NAME, which no request id is.
func namesObject(arg string) bool {
	word, _, ok := strings.Cut(arg, "/")
	return ok && objectKinds(word) != nil
}

func (f *objectFlags) explain(c *cobra.Command, arg, output string) error {
	word, name, _ := strings.Cut(arg, "/")
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		f.namespace, name = namespace, rest
	}
	o, statuses, err := f.read(c)
	if err != nil {
		return err
	}
	all := []kube.Finding{}
	found := 0
	for _, s := range statuses {
		if s.Name == name && slices.Contains(objectKinds(word), s.Kind) && (f.namespace == "" || s.Namespace == f.namespace || s.Kind == "GatewayClass") {
			found++
			all = append(all, s.Findings()...)
		}
	}
	if found == 0 && !o.Has(objectKinds(word), f.namespace, name) {
		return &exitError{exitFailed, fmt.Errorf("there is no %s %s%s", strings.ToLower(word), name, in(f.namespace))}
	}
	worstFirst(all, func(f kube.Finding) bool { return f.Bad })
	if output == "json" {
		return printJSON(c.OutOrStdout(), all)
	}
	return writeFindings(c.OutOrStdout(), arg, all)
}

func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

func writeFindings(w io.Writer, arg string, list []kube.Finding) error {
	if len(list) == 0 {
		fmt.Fprintf(w, "%s: no controller has written a status\n", arg)
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "\tOBJECT\tOF\tCONDITION\tSTATUS\tREASON\tMESSAGE")
	for _, f := range list {
		mark := "ok"
		switch {
		case f.Bad:
			mark = "BAD"
		case f.Stale:
			mark = "old"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", mark, f.Object(), orDash(f.Of), f.Condition, f.Status, f.Reason, orDash(strings.Join(strings.Fields(f.Message), " ")))
	}
	return tw.Flush()
}
