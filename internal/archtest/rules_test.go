// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/archtest"
)

// want runs a rule over texts and compares what it says.
func want(t *testing.T, files map[string]string, rule func(*archtest.Module) []archtest.Violation, lines ...string) {
	t.Helper()
	m, err := archtest.Parse("example.org/m", files)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range rule(m) {
		got = append(got, v.String())
	}
	if diff := cmp.Diff(lines, got); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestImportsRule(t *testing.T) {
	o, err := archtest.ParseOrder("none < a\na < b # so it is\neverything < cmd")
	if err != nil {
		t.Fatal(err)
	}
	want(t, map[string]string{
		"a/a.go":        `package a; import "example.org/m/b"`,
		"a/a_test.go":   `package a_test; import ("example.org/m/a"; "example.org/m/b"; "example.org/m/b/deep")`,
		"b/b.go":        `package b; import ("fmt"; "example.org/m/a"; "example.org/m/a/sub")`,
		"c/c.go":        `package c`,
		"cmd/x/main.go": `package main; import ("example.org/m/a"; "example.org/m/b")`,
	}, func(m *archtest.Module) []archtest.Violation { return archtest.Imports(m, o, "b/deep") },
		"a/a.go: may not import b (allowed: a)",
		"a/a_test.go: a test here may not import b/deep",
		"c: has no line in the import order",
	)
}

func TestOrderIsChecked(t *testing.T) {
	for _, text := range []string{"a b", "a < b < c", "< b", "a < b\nb < a", "a < b\nb < c\nc < a"} {
		if _, err := archtest.ParseOrder(text); err == nil {
			t.Errorf("ParseOrder(%q) has no error", text)
		}
	}
}

func TestForbiddenImportsRule(t *testing.T) {
	list := []archtest.Forbidden{
		{Path: "k8s.io", Only: []string{"kube"}, Reason: "heavy"},
		{Path: "log", Exact: true, Reason: "slog"},
		{Path: "cmp.org/cmp", Tests: true, Reason: "tests only"},
		{Path: "nothing.org"},
	}
	want(t, map[string]string{
		"kube/k.go":       `package kube; import "k8s.io/api/core/v1"`,
		"epp/e.go":        `package epp; import ("k8s.io/api"; "log/slog"; "cmp.org/cmp")`,
		"epp/e_test.go":   `package epp; import "cmp.org/cmp"`,
		"epp/old.go":      `package epp; import "log"`,
		"kubernetes/k.go": `package kubernetes; import "k8s.io/api"`,
	}, func(m *archtest.Module) []archtest.Violation { return archtest.ForbiddenImports(m, list) },
		"epp/e.go: imports cmp.org/cmp: tests only",
		"epp/e.go: imports k8s.io/api: heavy",
		"epp/old.go: imports log: slog",
		"kubernetes/k.go: imports k8s.io/api: heavy",
		"nothing.org: is forbidden without a reason",
	)
}

func TestStandardOnlyRule(t *testing.T) {
	want(t, map[string]string{
		"sim/s.go":      `package sim; import ("net/http"; "example.org/m/sim/clock")`,
		"sim/t.go":      `package sim; import ("github.com/x/y"; "example.org/m/llm")`,
		"sim/t_test.go": `package sim; import "github.com/x/y"`,
		"bench/b.go":    `package bench; import ("example.org/m/sim"; "example.org/m/epp")`,
	}, func(m *archtest.Module) []archtest.Violation {
		return archtest.StandardOnly(m, map[string][]string{"sim": nil, "bench": {"sim"}})
	},
		"bench/b.go: imports example.org/m/epp: bench uses the standard library only",
		"sim/t.go: imports example.org/m/llm: sim uses the standard library only",
		"sim/t.go: imports github.com/x/y: sim uses the standard library only",
	)
}

func TestSizesRule(t *testing.T) {
	b := archtest.Budget{
		FileLines: 6, FunctionLines: 2, StructFields: 2, InterfaceMethods: 1, PackageLines: 2,
		Functions: archtest.Allow{"a.T.Table": "a table", "a.gone": "was long once", "later.F": "not there yet"},
		Structs:   archtest.Allow{"a.NoReason": ""},
	}
	want(t, map[string]string{
		"a/a.go":         "package a\ntype S struct { A, B int; C string }\ntype NoReason struct { A, B, C int }\ntype I interface { A(); B() }\n",
		"a/f.go":         "package a\nfunc (t *T[K]) Long() {\n\n}\nfunc (t T) Table() {\n\n}\n",
		"a/a_test.go":    "package a\ntype fake struct { A, B, C int }\n\n\n\n\n\n",
		"small/s.go":     "package small\n",
		"only/t_test.go": "package only\n",
	}, func(m *archtest.Module) []archtest.Violation { return archtest.Sizes(m, b) },
		"a/a.go:2: a.S has 3 fields, at most 2",
		"a/a.go:3: a.NoReason has 3 fields, at most 2",
		"a/a.go:4: a.I has 2 methods, at most 1",
		"a/a_test.go: a/a_test.go has 7 lines, at most 6",
		"a/f.go: a/f.go has 7 lines, at most 6",
		"a/f.go:2: a.T.Long has 3 lines, at most 2",
		"size budget: the exception for a.NoReason is not needed or gives no reason; take it out",
		"size budget: the exception for a.gone is not needed or gives no reason; take it out",
		"small: has 1 lines without tests, at least 2: merge it or say why it stands alone",
	)
}

func TestHeaderRule(t *testing.T) {
	want(t, map[string]string{
		"a/good.go":  "// one\n// two\n\npackage a\n",
		"a/none.go":  "package a\n",
		"a/stuck.go": "// one\n// two\npackage a\n",
	}, func(m *archtest.Module) []archtest.Violation { return archtest.Header(m, "// one", "// two") },
		"a/none.go:1: does not begin with the SPDX lines and a blank line",
		"a/stuck.go:1: does not begin with the SPDX lines and a blank line",
	)
}

func TestPackageCommentsRule(t *testing.T) {
	want(t, map[string]string{
		"a/a.go":          "// Package a is good.\npackage a",
		"b/b.go":          "package b",
		"b/x.go":          "// Package b is in the wrong file.\npackage b",
		"c/c.go":          "// SPDX-License-Identifier: none\npackage c",
		"d/d.go":          "// Package d says it.\npackage d",
		"d/e.go":          "// Package d says it twice.\npackage d",
		"e/e.go":          "package e",
		"cmd/x/main.go":   "// Command x runs.\npackage main",
		"t/t_test.go":     "package t",
		"cmd/y/main.go":   "// This is y.\npackage main",
		"cmd/y/run.go":    "package main",
		"cmd/y/y_test.go": "// Package main is tested.\npackage main",
	}, archtest.PackageComments,
		"b/x.go: holds a package comment, which belongs in b/b.go",
		`c/c.go: the package comment does not begin with "Package c "`,
		`cmd/y/main.go: the package comment does not begin with "Command y "`,
		"d/e.go: holds a package comment, which belongs in d/d.go",
		"e: has no package comment",
	)
}

func TestNamesRule(t *testing.T) {
	want(t, map[string]string{
		"util/u.go":     "package util",
		"a/pool/p.go":   "package pool",
		"pool/p.go":     "package pool\ntype KeyManager struct{}",
		"q/q.go":        "package quota\ntype metadata struct{}\ntype Informer struct{}",
		"cmd/m/main.go": "package main",
		"cmd/n/main.go": "package main",
	}, func(m *archtest.Module) []archtest.Violation {
		return archtest.Names(m, []string{"util"}, []string{"Manager", "Info"})
	},
		"pool/p.go:2: type KeyManager ends in Manager",
		"pool: package name pool is taken by a/pool",
		"q: package quota is not named after its folder",
		"util: package name util says nothing",
	)
}

func TestHiddenStateRule(t *testing.T) {
	src := strings.Join([]string{
		`package a`,
		`var _ I = T{}`,
		`var errGone = errors.New("gone")`,
		`var word = regexp.MustCompile("a")`,
		`var table = [2]int{1, 2}`,
		"//go:embed x\nvar page []byte", // lines 6 and 7
		`var gone = errors.New("not named so")`,
		`var counter int`,
		`var filled = map[string]int{}`,
		`var Open = []string{"anybody may write"}`,
		`var aliased = [1]int{}`,
		`var cache = sync.Map{}`,
		`var version = "dev"`,
		`var errOften, errChanged = errors.New("passed by address"), errors.New("assigned")`,
		`var kind = reflect.TypeFor[int]()`,
		`var pools, more = &sync.Pool{}, sync.Pool{}`,
		`var plain sync.Pool`,
		`func f() { filled["a"]++; g(&aliased); g(&errOften); errChanged = nil; context.WithValue(nil, 1, 2) }`,
		`func init() {}`,
		`func (t T) init() {}`,
	}, "\n")
	want(t, map[string]string{"a/a.go": src, "a/a_test.go": "package a; var sink int; func init() {}"},
		func(m *archtest.Module) []archtest.Violation {
			return archtest.HiddenState(m, archtest.Allow{"a.version": "linker", "a.old": "was here", "b.x": "to come"})
		},
		"a/a.go:10: variable filled is package-level state",
		"a/a.go:11: variable Open is package-level state",
		"a/a.go:12: variable aliased is package-level state",
		"a/a.go:13: variable cache is package-level state",
		"a/a.go:15: variable errChanged is package-level state",
		"a/a.go:19: context.WithValue hides an argument; pass it",
		"a/a.go:20: init runs at import; make it a function that somebody calls",
		"a/a.go:8: variable gone is package-level state",
		"a/a.go:9: variable counter is package-level state",
		"a/a_test.go:1: init runs at import; make it a function that somebody calls",
		"package-level state: the exception for a.old is not needed or gives no reason; take it out",
	)
}

func TestMetricsRule(t *testing.T) {
	src := strings.Join([]string{
		`package a`,
		`var _ = prometheus.NewCounter(prometheus.CounterOpts{Name: "p_good_total", Help: "Good."})`,
		`var _ = prometheus.NewCounter(prometheus.CounterOpts{Name: "p_bad", Help: "No total."})`,
		`var _ = prometheus.NewGauge(prometheus.GaugeOpts{Name: "p_bad_total", Help: "No counter."})`,
		`var _ = prometheus.NewGauge(prometheus.GaugeOpts{Name: "q_bad", Help: "Another prefix."})`,
		`var _ = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "p_wait_ms", Help: "No base unit."})`,
		`var _ = prometheus.NewDesc("p_Case", "Upper case.", nil, nil)`,
		`var _ = prometheus.NewDesc("p_silent", "", nil, nil)`,
		`var _ = other.CounterOpts{Name: "whatever"}`,
	}, "\n")
	want(t, map[string]string{"a/a.go": src}, func(m *archtest.Module) []archtest.Violation { return archtest.Metrics(m, "p_") },
		"a/a.go:3: metric p_bad counts and does not end in _total",
		"a/a.go:4: metric p_bad_total ends in _total and is no counter",
		"a/a.go:5: metric q_bad is not of the form p_lower_case",
		"a/a.go:6: metric p_wait_ms is not in a base unit (seconds, bytes, ratio)",
		"a/a.go:7: metric p_Case is not of the form p_lower_case",
		"a/a.go:8: metric p_silent has no help text",
	)
}

func TestLoadSkipsOthersCode(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.org/m\n",
		"a/a.go":            "package a\n",
		"a/testdata/x.go":   "not Go",
		"nested/go.mod":     "module example.org/nested\n",
		"nested/x.go":       "not Go",
		".hidden/x.go":      "not Go",
		"_x/x.go":           "not Go",
		"node_modules/x.go": "not Go",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := archtest.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, p := range m.Packages {
		dirs = append(dirs, p.Dir)
	}
	if diff := cmp.Diff([]string{"a"}, dirs); diff != "" || m.Path != "example.org/m" {
		t.Errorf("Load found packages of module %q (-want +got):\n%s", m.Path, diff)
	}
	if _, err := archtest.Load(filepath.Join(root, "a")); err == nil {
		t.Error("Load of a folder without go.mod has no error")
	}
}
