// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
)

func TestKeyStore(t *testing.T) {
	c, err := config.Parse("in.yaml", []byte(`
listeners: [{name: public, address: ":8080"}]
pools: [{name: a, members: {static: ["10.0.0.1:80"]}}]
models: [{name: chat, targets: [{pool: a}]}]
keys: {store: sqlite, path: /var/lib/keys.db, pepper: "0123456789abcdef", oldPeppers: [fedcba9876543210]}
`))
	if err != nil {
		t.Fatal(err) // a store of keys suffices: no key need be listed
	}
	if c.Keys.Pepper.Reveal() != "0123456789abcdef" || c.Keys.OldPeppers[0].Reveal() != "fedcba9876543210" {
		t.Errorf("peppers: %q %q", c.Keys.Pepper.Reveal(), c.Keys.OldPeppers)
	}
	if text := string(c.Redacted()); strings.Contains(text, "0123456789abcdef") || strings.Contains(text, "fedcba") {
		t.Errorf("a pepper is printed:\n%s", text)
	}
}

// B49: a field of what the API is sent that is not known is refused, not left out.
func TestDecodeJSON(t *testing.T) {
	type part struct {
		Name  string            `yaml:"name"`
		Count int               `yaml:"count"`
		More  map[string]string `yaml:"more"`
		Next  []part            `yaml:"next"`
	}
	var p part
	if err := config.DecodeJSON([]byte(`{"name": "${HOME}\ud83d\ude00", "more": {"file:x": "file:/etc/passwd"}, "next": [{"count": 3}]}`), &p); err != nil {
		t.Fatal(err)
	}
	want := part{Name: "${HOME}😀", More: map[string]string{"file:x": "file:/etc/passwd"}, Next: []part{{Count: 3}}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	if got := string(config.EncodeJSON(p)); got != `{"name":"${HOME}😀","more":{"file:x":"file:/etc/passwd"},"next":[{"count":3}]}` {
		t.Error(got)
	}
	for text, want := range map[string]string{
		`{"nmae": "x"}`:                            "nmae: unknown key; did you mean name?",
		`{"name": "x", "name": "y"}`:               "name: is given twice; keep one of them",
		`{"next": [{}, {"count": "3"}]}`:           "next[1].count: must be a whole number, not \"3\"; leave out the quotes",
		`{"next": [{}, {"count": 1.5}]}`:           "next[1].count: must be a whole number, not 1.5",
		`{"count": 99999999999999999999}`:          "count: must be a whole number, not 99999999999999999999",
		`[]`:                                       "must be a mapping, not a list; write key: value pairs",
		`{"name": null}`:                           "name: has no value; give one or leave the key out",
		`{"name": "x"} {}`:                         "is not JSON: more follows after its end",
		"{\"name\": \"\xff\"}":                     "is not UTF-8",
		`name: x`:                                  "is not JSON: invalid character 'a' in literal null (expecting 'u')",
		strings.Repeat("[", 100):                   "is not JSON: nested more than 64 levels deep",
		`{"more": {"a": "x", "a": "y"}}`:           "more.a: is given twice; keep one of them",
		`{"name": "x", "NAME": "y"}`:               "NAME: unknown key; did you mean name?",
		`{"next": {"name": "a"}}`:                  "next: must be a list, not a mapping; write [a, b] or one - per line",
		`{"more": {"a": {"b": "deeper than so"}}}`: "more.a: must be text, not a mapping",
	} {
		err := config.DecodeJSON([]byte(text), &part{})
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// FuzzDecodeJSON: what is taken reads the same again.
func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"name": "a", "tier": "gold", "models": ["a*"], "metadata": {"k": "v"}}`))
	f.Add([]byte(`{"name": "a", "keys": [{"name": "k", "hash": "sha256:00"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var a, b config.Tenant
		if config.DecodeJSON(text, &a) != nil {
			return
		}
		again := config.EncodeJSON(a)
		if err := config.DecodeJSON(again, &b); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Error(diff)
		}
	})
}
