// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/kube"
)

// manifestFlags are those of a gateway that Kubernetes manifests describe,
// without a cluster.
type manifestFlags struct {
	path    string
	gateway string
	bind    string
	shift   int32
	admin   string
	ops     string
	log     config.Log
}

func (f *manifestFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVarP(&f.path, "filename", "f", "", "`file or directory` with Kubernetes manifests, in place of -c")
	flags.StringVar(&f.gateway, "gateway", "", "`Gateway` of the manifests to serve, namespace/name (default the first by name)")
	flags.StringVar(&f.bind, "bind", "127.0.0.1", "`host` for the listeners of the manifests; 0.0.0.0: all interfaces")
	flags.Int32Var(&f.shift, "low-ports", 8000, "`number` to add to ports of the manifests below 1024, which need a privilege: 80 is 8080; 0: none")
	flags.StringVar(&f.admin, "admin-address", "127.0.0.1:9901", "`address` of the admin interface, with -f; off: none")
	c.MarkFlagsMutuallyExclusive("config", "filename", "kubernetes")
}

// refused says which flags mean nothing without manifests.
func (f *manifestFlags) refused(c *cobra.Command) error {
	for _, name := range []string{"gateway", "bind", "low-ports", "admin-address"} {
		if c.Flags().Changed(name) {
			return usageError("--%s is for manifests: add -f", name)
		}
	}
	return nil
}

// manifestGateway serves one Gateway of manifests.
type manifestGateway struct {
	manifestFlags
	out io.Writer // for the report
	g   *gateway

	loaded *kube.Local // by the last load
	told   [2]string   // what was printed last of what is wrong, and of what is served
}

// run shares the flags of logs and ops with --kubernetes.
func (f *manifestFlags) run(ctx context.Context, release func(), c *cobra.Command, shared *clusterFlags) error {
	f.ops, f.log = "off", config.Log{Level: shared.level, Format: shared.format}
	if c.Flags().Changed("ops") {
		f.ops = shared.ops
	}
	m := &manifestGateway{manifestFlags: *f, out: c.ErrOrStderr()}
	p := &process{
		path: f.path, load: m.load, watch: func(ctx context.Context, changed func()) { watchManifests(ctx, f.path, changed) },
		begin: func(_ context.Context, g *gateway, _ func(string)) (func(), error) {
			m.g = g
			g.acceptFeed()
			g.feed(m.loaded.Members)
			return func() {}, nil
		},
		applied: func() {
			m.g.feed(m.loaded.Members)
			m.report(1, func(w io.Writer) { writeServed(w, m.loaded) })
		},
		instead: m.instead,
	}
	return p.run(ctx, release)
}

// load compiles the manifests. The report of what is wrong with them is printed
// whenever it is another one.
func (m *manifestGateway) load() (*config.Config, error) {
	files, err := kube.LoadManifests(m.path)
	if err != nil {
		return nil, err
	}
	l, err := files.Local(kube.LocalOptions{
		Gateway: m.gateway, Bind: m.bind, Shift: m.shift,
		Options: kube.Options{Admin: m.admin, Ops: m.ops, Check: checkContent},
	})
	m.report(0, func(w io.Writer) { writeReport(w, files, l) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	m.loaded = l
	l.Config.Log = m.log
	return l.Config, nil
}

// report prints what write has to say if that is another text than before.
func (m *manifestGateway) report(i int, write func(io.Writer)) {
	var b strings.Builder
	write(&b)
	if text := b.String(); text != m.told[i] {
		m.told[i] = text
		io.WriteString(m.out, text)
	}
}

// instead is what to try with an address that is taken: it comes from the
// Gateway and the flags.
func (m *manifestGateway) instead(cfg *config.Config, key string) string {
	switch l := listenerOf(cfg, key); {
	case l != nil:
		_, text, _ := net.SplitHostPort(l.Address)
		port, _ := strconv.Atoi(text)
		if from := port - int(m.shift); m.shift != 0 && from > 0 && from < 1024 {
			return fmt.Sprintf("try another --low-ports (port %d of %s in gateway/%s is moved by %d), or another --bind", from, listenerWords(l), m.loaded.NamespacedName, m.shift)
		}
		return fmt.Sprintf("try another port of %s in gateway/%s, or another --bind", listenerWords(l), m.loaded.NamespacedName)
	case key == "admin.address":
		return "try another --admin-address, or --admin-address off"
	case key == "ops.address":
		return "try another --ops, or --ops off"
	}
	return ""
}

// writeServed says what is served.
func writeServed(w io.Writer, l *kube.Local) {
	var where []string
	for i := range l.Config.Listeners {
		where = append(where, l.Config.Listeners[i].Address)
	}
	fmt.Fprintf(w, "gateway/%s is served on %s\n", l.NamespacedName, strings.Join(where, ", "))
}

// writeReport says, object by object, what is not served and why.
func writeReport(w io.Writer, files *kube.Manifests, l *kube.Local) {
	for _, set := range sortedSets(l.Members) {
		if len(l.Members[set]) == 0 {
			fmt.Fprintf(w, "pool %s has no members: no pods or endpoints in the files, and no annotation %s\n", set, kube.MembersAnnotation)
		}
	}
	for _, other := range l.Others {
		fmt.Fprintf(w, "gateway/%s is not served: one Gateway at a time, choose it with --gateway\n", other)
	}
	said := map[string]bool{}
	for _, s := range l.Result.Statuses {
		for _, f := range s.Findings() {
			writeFinding(w, f, said)
		}
	}
	for _, f := range files.Overview(l.Result, "").Silent() {
		writeFinding(w, f, said)
	}
	for _, s := range files.Skipped {
		fmt.Fprintf(w, "not read: %s\n", s)
	}
}

// writeFinding tells of a finding that is bad; the same cause makes several.
func writeFinding(w io.Writer, f kube.Finding, said map[string]bool) {
	key := f.Object() + f.Of + f.Reason + f.Message
	if !f.Bad || said[key] {
		return
	}
	said[key] = true
	of := ""
	if f.Of != "" {
		of = ", " + f.Of
	}
	fmt.Fprintf(w, "%s%s: %s is %s: %s: %s\n", f.Object(), of, f.Condition, strings.ToLower(f.Status), f.Reason, f.Message)
}

func sortedSets(m map[string][]config.Member) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// watchManifests calls changed when a file below path may have changed. Trees
// of files are looked at once a second: they are small, and their directories
// come and go.
func watchManifests(ctx context.Context, path string, changed func()) {
	const every = time.Second
	last := stampOf(path)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := stampOf(path); now != last {
			last = now
			changed()
		}
	}
}

// stampOf is a text that differs when a file below path was changed, added or
// removed.
func stampOf(path string) string {
	var b strings.Builder
	filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if st, err := os.Stat(name); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", name, st.Size(), st.ModTime().UnixNano())
		}
		return nil
	})
	return b.String()
}
