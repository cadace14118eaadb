// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

// manyModels is a configuration with n models, in block style.
func manyModels(n int) string {
	var b strings.Builder
	b.WriteString("listeners: [{name: l, address: \"127.0.0.1:8080\", anonymous: true}]\nproviders:\n  - {name: p}\nmodels:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: m-%d\n    targets:\n      - provider: p\n        model: up-%d\n    timeouts:\n      total: 10m\n    fallbacks:\n      - {provider: p, model: up}\n", i, i)
	}
	return b.String()
}

// Thousands of models are read, however many lines they take; what is wrong with one
// is told by its place, without the names of all the others.
func TestManyModels(t *testing.T) {
	text := manyModels(3000)
	cfg, err := config.ParseWith("c.yaml", []byte(text), config.Options{})
	if err != nil || len(cfg.Models) != 3000 {
		t.Fatalf("%v", err)
	}
	resolve := cfg.Resolver()
	if m := resolve("m-2999"); m != cfg.Resolve("m-2999") || m == nil || resolve("nobody") != nil {
		t.Errorf("%v", m)
	}
	_, err = config.ParseWith("c.yaml", []byte(text+"  - {name: a, alias: m-30000}\n  - {name: b, alias: nothing like it}\n"), config.Options{})
	if msg := fmt.Sprint(err); !strings.Contains(msg, `there is no model "m-30000"; did you mean m-3`) || len(msg) > 400 {
		t.Errorf("%.1000s", msg)
	}
}

// One mapping is bounded more closely than all of them, since reading it costs the
// square of its keys.
func TestBoundsOfMappings(t *testing.T) {
	keys := func(n int, form string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, form, i)
		}
		return b.String()
	}
	deep := ""
	for i := range 70 {
		deep += strings.Repeat(" ", i) + "a:\n"
	}
	for text, want := range map[string]string{
		"x:\n" + keys(20_001, "  k%d: 1\n"):                "has more than 20000 keys in one mapping",
		"x:\n" + keys(20_001, "  k%d: [{a: 1}]\n# c\n"):    "has more than 20000 keys in one mapping",
		"x: {" + keys(20_001, "k%d: 1, ") + "}":            "has more than 20000 keys in one mapping",
		"x:\n" + keys(20_001, "  !!str k%d:\n   - a: 1\n"): "has more than 20000 keys in one mapping",
		"x: [" + keys(200_001, "{k%d: 1}, ") + "]":         "has more than 200000 keys",
		deep: "is nested more than 64 levels deep",
	} {
		_, err := config.ParseWith("c.yaml", []byte(text), config.Options{})
		if msg := fmt.Sprint(err); !strings.Contains(msg, want) {
			t.Errorf("%.30q: %.200s, want %s", text, msg, want)
		}
	}
}
