// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

func TestExpressionsAreBounded(t *testing.T) {
	for _, expr := range []string{
		"", "/v1/[a-z]+/(chat|completions)", "^(a|b|c)*$", `[a-zA-Z0-9._-]{1,63}`, `(?i)bearer .+`, ".{100}", `\p{Greek}+`, strings.Repeat("x", 400),
		`([0-9]{1,3}\.){3}[0-9]{1,3}`, `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`,
	} {
		if n, err := config.Expression(expr); err != nil {
			t.Errorf("%.60q (%d): %v", expr, n, err)
		}
	}
	for _, expr := range []string{
		"(.?){1000}", ".{1000}", strings.Repeat(".{1000}", 500), "((a{20}){20}){20}", "(a|b|c|d){300}", strings.Repeat("x", 5000), "(", "a**", `\C`,
		"(((((x{9}){9}){9}){9}){9}){9}",
	} {
		if n, err := config.Expression(expr); err == nil {
			t.Errorf("%.60q (%d) is taken", expr, n)
		}
	}
}

// Whatever is taken compiles, and to not much more than the bound says.
func FuzzExpression(f *testing.F) {
	for _, expr := range []string{"a+", "(a|b){3,7}", "[^/]+", ".{499}", "((x?){20}){20}", `\pL{50}`, "(?i)abc", "a{0}", "(?:(?:)){400}"} {
		f.Add(expr)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		if _, err := config.Expression(expr); err != nil {
			return
		}
		whole := `\A(?:` + expr + `)\z`
		if _, err := regexp.Compile(whole); err != nil {
			t.Fatalf("%q: %v", expr, err)
		}
		re, err := syntax.Parse(whole, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if len(prog.Inst) > 4*config.MaxExpression {
			t.Errorf("%q is compiled into %d instructions", expr, len(prog.Inst))
		}
	})
}
