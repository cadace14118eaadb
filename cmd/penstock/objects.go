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

// given are the flags for objects that were given.
func (f *objectFlags) given(c *cobra.Command) []string {
	return givenOf(c, "kubeconfig", "context", "namespace", "filename")
}

// givenOf are those of the flags that were given, as they are typed.
func givenOf(c *cobra.Command, names ...string) []string {
	var out []string
	for _, name := range names {
		if c.Flags().Changed(name) {
			out = append(out, "--"+name)
		}
	}
	return out
}

// meaningless says so of flags.
func meaningless(flags []string) string {
	if len(flags) == 1 {
		return flags[0] + " means nothing"
	}
	return strings.Join(flags, " and ") + " mean nothing"
}

// kindsToGet are the kinds of what can be got from a cluster or from
// manifests. What both a gateway and a cluster have is the gateway's unless a flag
// says otherwise.
func kindsToGet(what string) (kinds []string, both bool) {
	switch what {
	case "gateways":
		return []string{"Gateway"}, false
	case "routes":
		return []string{"HTTPRoute", "GRPCRoute"}, false
	case "inferencepools":
		return []string{"InferencePool"}, false
	case "gatewaypolicies":
		return []string{"GatewayPolicy"}, false
	case "pools":
		return []string{"InferencePool"}, true
	case "models":
		return []string{"Model"}, true
	}
	return nil, false
}

// read gives the objects of the kinds with their statuses. What is not known of
// a cluster is said on standard error. skipped are objects of files of kinds that
// are not read.
func (f *objectFlags) read(c *cobra.Command, kinds []string) (v *kube.Overview, skipped []string, err error) {
	if f.files != "" {
		m, err := kube.LoadManifests(f.files)
		if err != nil {
			return nil, nil, usageError("%w", err)
		}
		l, err := m.Local(kube.LocalOptions{Options: kube.Options{Check: checkContent}})
		if l.Result == nil {
			return nil, nil, err
		}
		return m.Overview(l.Result, f.namespace), m.Skipped, nil
	}
	cluster, err := kube.Connect(f.kubeconfig, f.context, "penstock-get/"+version)
	if err != nil {
		return nil, nil, usageError("%w", err)
	}
	v, notes, err := cluster.Read(c.Context(), f.namespace, kinds...)
	if err != nil {
		return nil, nil, &exitError{exitFailed, err}
	}
	for _, note := range notes {
		fmt.Fprintf(c.ErrOrStderr(), "penstock: %s\n", note)
	}
	return v, nil, nil
}

func (f *objectFlags) get(c *cobra.Command, kinds []string, output string) error {
	v, skipped, err := f.read(c, kinds)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(c.OutOrStdout(), 0, 8, 2, ' ', 0)
	var rows any
	n := 0
	switch kinds[0] {
	case "Gateway":
		rows, n = tabled(tw, v.GatewayRows(), func(r kube.GatewayRow) bool { return r.Bad }, gatewayTable)
	case "HTTPRoute":
		rows, n = tabled(tw, v.RouteRows(), func(r kube.RouteRow) bool { return r.Bad }, routeTable)
	case "Model":
		rows, n = tabled(tw, v.ModelRows(), func(r kube.ModelRow) bool { return r.Bad }, modelObjectTable)
	case "GatewayPolicy":
		rows, n = tabled(tw, v.PolicyRows(), func(r kube.PolicyRow) bool { return r.Bad }, policyTable)
	default:
		rows, n = tabled(tw, v.PoolRows(), func(r kube.PoolRow) bool { return r.Bad }, inferencePoolTable)
	}
	if n == 0 {
		f.nothing(c.ErrOrStderr(), kinds, skipped)
	}
	if output == "json" {
		if n == 0 {
			rows = []struct{}{}
		}
		return printJSON(c.OutOrStdout(), rows)
	}
	if n == 0 {
		return nil
	}
	return tw.Flush()
}

// nothing says that there are no rows, and what of the files was not read.
func (f *objectFlags) nothing(w io.Writer, kinds, skipped []string) {
	where := in(f.namespace)
	if f.files != "" {
		where += " in " + f.files
	}
	fmt.Fprintf(w, "penstock: there is no %s%s\n", strings.Join(kinds, " or "), where)
	for _, s := range skipped {
		fmt.Fprintf(w, "not read: %s\n", s)
	}
}

// tabled prints rows with the worst first, and returns them and their number.
func tabled[T any](w io.Writer, rows []T, bad func(T) bool, table func(io.Writer, []T)) (any, int) {
	worstFirst(rows, bad)
	table(w, rows)
	return rows, len(rows)
}

// worstFirst keeps the order among those that are alike.
func worstFirst[T any](list []T, bad func(T) bool) {
	slices.SortStableFunc(list, func(a, b T) int {
		x, y := bad(a), bad(b)
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
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
	fmt.Fprintln(w, "REASON\tNAMESPACE\tPOOL\tREADY\tGATEWAY\tPORTS\tSELECTOR\tPICKER\tMESSAGE")
	for _, r := range rows {
		var ports, selector []string
		for _, p := range r.Ports {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		for _, key := range slices.Sorted(maps.Keys(r.Selector)) {
			selector = append(selector, key+"="+r.Selector[key])
		}
		ready := "-"
		if r.Pods != nil {
			ready = fmt.Sprintf("%d/%d", r.Pods.Ready, r.Pods.Matched)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, r.Name, ready, orDash(strings.TrimPrefix(r.Parent, "Gateway ")), strings.Join(ports, ","), strings.Join(selector, ","), cmp.Or(r.Picker, "gateway"), orDash(oneLine(r.Message)))
	}
}

func modelObjectTable(w io.Writer, rows []kube.ModelRow) {
	fmt.Fprintln(w, "REASON\tNAMESPACE\tMODEL\tPARENT\tNAMES\tALIAS OF\tPOOLS\tMESSAGE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, r.Name, orDash(strings.TrimPrefix(r.Parent, "Gateway ")), strings.Join(r.Names, ","), orDash(r.Alias), orDash(strings.Join(r.Targets, ", ")), orDash(oneLine(r.Message)))
	}
}

func policyTable(w io.Writer, rows []kube.PolicyRow) {
	fmt.Fprintln(w, "REASON\tNAMESPACE\tPOLICY\tTARGET\tGATEWAY\tMESSAGE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Reason, r.Namespace, r.Name, r.Target, orDash(strings.TrimPrefix(r.Parent, "Gateway ")), orDash(oneLine(r.Message)))
	}
}

// oneLine keeps a table a table: the whole is shown by explain.
func oneLine(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-1], "") + "…"
	}
	return s
}

// objectWords are the words for kinds on the command line, with the kinds.
func objectWords() map[string][]string {
	return map[string][]string{
		"gateway": {"Gateway"}, "gatewayclass": {"GatewayClass"}, "listenerset": {"ListenerSet"},
		"route": {"HTTPRoute", "GRPCRoute"}, "httproute": {"HTTPRoute"}, "grpcroute": {"GRPCRoute"},
		"pool": {"InferencePool"}, "inferencepool": {"InferencePool"}, "model": {"Model"},
		"policy": {"GatewayPolicy"}, "gatewaypolicy": {"GatewayPolicy"}, "backendtlspolicy": {"BackendTLSPolicy"},
	}
}

// objectKinds are the kinds that a word stands for, in the plural too; none: it
// stands for none.
func objectKinds(word string) []string {
	words := objectWords()
	word = strings.ToLower(word)
	for _, w := range []string{word, strings.TrimSuffix(word, "s"), strings.TrimSuffix(word, "es"), strings.TrimSuffix(word, "ies") + "y"} {
		if kinds := words[w]; kinds != nil {
			return kinds
		}
	}
	return nil
}

// namesObject says that an argument is KIND/NAME. An id of a request may have a
// slash too, but none of what looks like an object is taken for one.
func namesObject(arg string) (bool, error) {
	word, _, ok := strings.Cut(arg, "/")
	switch {
	case !ok || strings.Trim(strings.ToLower(word), "abcdefghijklmnopqrstuvwxyz.") != "":
		return false, nil
	case objectKinds(word) == nil:
		return false, usageError("%s: %q is no kind to explain; those are %s", arg, word, strings.Join(slices.Sorted(maps.Keys(objectWords())), ", "))
	}
	return true, nil
}

func (f *objectFlags) explain(c *cobra.Command, arg, output string) error {
	word, name, _ := strings.Cut(arg, "/")
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		if f.namespace != "" && f.namespace != namespace {
			return usageError("%s is of namespace %s, and --namespace says %s; give one", arg, namespace, f.namespace)
		}
		f.namespace, name = namespace, rest
	}
	kinds := objectKinds(word)
	v, skipped, err := f.read(c, kinds)
	if err != nil {
		return err
	}
	all, found := v.Explain(kinds, f.namespace, name)
	if !found {
		err := fmt.Errorf("there is no %s %s%s", strings.ToLower(word), name, in(f.namespace))
		if f.files != "" {
			err = fmt.Errorf("%w in %s", err, f.files)
			for _, s := range skipped {
				fmt.Fprintf(c.ErrOrStderr(), "not read: %s\n", s)
			}
		}
		return &exitError{exitFailed, err}
	}
	worstFirst(all, func(f kube.Finding) bool { return f.Bad })
	if output == "json" {
		return printJSON(c.OutOrStdout(), append([]kube.Finding{}, all...))
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
