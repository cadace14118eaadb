// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// metricName is the form of every metric that the product exports.
var metricName = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)

// Metrics checks the names that code gives to Prometheus metrics as literals:
// the prefix, lower case, base units, _total for counters and for nothing
// else, and that each has a help text. What only run time knows it does not see.
func Metrics(m *Module, prefix string) []Violation {
	var vs []Violation
	m.each(func(_ *Package, f *File) {
		if f.Test {
			return
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			name, help, kind := metric(n)
			if name == "" {
				return true
			}
			say := func(what string) { vs = append(vs, Violation{m.at(n), "metric " + name + " " + what}) }
			switch parts := strings.Split(name, "_"); {
			case !strings.HasPrefix(name, prefix) || !metricName.MatchString(name):
				say("is not of the form " + prefix + "lower_case")
			case slices.Contains(parts, "ms") || slices.Contains(parts, "milliseconds") || slices.Contains(parts, "kb") || slices.Contains(parts, "percent"):
				say("is not in a base unit (seconds, bytes, ratio)")
			case kind == "Counter" && !strings.HasSuffix(name, "_total"):
				say("counts and does not end in _total")
			case kind != "Counter" && kind != "" && strings.HasSuffix(name, "_total"):
				say("ends in _total and is no counter")
			}
			if help == "" {
				say("has no help text")
			}
			return true
		})
	})
	sortViolations(vs)
	return vs
}

// metric reads prometheus.XOpts{Name: "…", Help: "…"} and
// prometheus.NewDesc("…", "…", …); the kind of the latter is "".
func metric(n ast.Node) (name, help, kind string) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		var ok bool
		if kind, ok = strings.CutPrefix(callee(n.Type), "prometheus."); !ok {
			return "", "", ""
		}
		if kind, ok = strings.CutSuffix(kind, "Opts"); !ok {
			return "", "", ""
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				switch key, _ := kv.Key.(*ast.Ident); {
				case key == nil:
				case key.Name == "Name":
					name = literal(kv.Value)
				case key.Name == "Help":
					help = helpOf(kv.Value)
				}
			}
		}
	case *ast.CallExpr:
		if callee(n.Fun) == "prometheus.NewDesc" && len(n.Args) > 1 {
			name, help = literal(n.Args[0]), helpOf(n.Args[1])
		}
	}
	return name, help, kind
}

// helpOf is the help text, or a stand-in when it is no literal.
func helpOf(e ast.Expr) string {
	if _, ok := e.(*ast.BasicLit); ok {
		return literal(e)
	}
	return "at run time"
}

// literal is the text of a string literal or of a sum of them; "" for what only
// run time knows.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		if x, y := literal(e.X), literal(e.Y); x != "" && y != "" {
			return x + y
		}
	}
	return ""
}
