// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
)

// vault has a secret in every place that a configuration may have one.
type vault struct {
	Name string                   `yaml:"name"`
	Key  config.Secret            `yaml:"key"`
	More []config.Secret          `yaml:"more"`
	By   map[string]config.Secret `yaml:"by"`
	Last *config.Secret           `yaml:"last"`
}

func TestSecretIsNeverPrinted(t *testing.T) {
	s := config.Secret("hunter2")
	v := vault{Name: "n", Key: s, More: []config.Secret{s}, By: map[string]config.Secret{"a": s}, Last: &s}
	other := config.Secret("hunter2-new")
	w := vault{Name: "n", Key: other, More: []config.Secret{s, other}, By: map[string]config.Secret{"a": other, "b": s}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		fmt.Fprintf(&out, verb+verb+verb+"\n", v, &v, s)
	}
	marshal := func(f func(any) ([]byte, error), x any) {
		raw, err := f(x)
		if err != nil {
			t.Error(err)
		}
		out.Write(raw)
	}
	marshal(json.Marshal, v)
	marshal(yaml.Marshal, v)
	marshal(xml.Marshal, s)
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("x", "secret", s, "vault", v)
	}
	out.Write(config.PrintAny(v))
	for _, lines := range [][]string{config.DiffAny(v, w), config.DiffAny(w, v), config.DiffAny(vault{}, v)} {
		if len(lines) == 0 {
			t.Error("no difference is told")
		}
		out.WriteString(strings.Join(lines, "\n"))
	}
	if strings.Contains(strings.ToLower(out.String()), "hunter") || strings.Contains(out.String(), fmt.Sprintf("%x", "hunter")) {
		t.Errorf("printed:\n%s", out.String())
	}
	if s.Reveal() != "hunter2" || config.Secret("").String() != "" {
		t.Error("Reveal or the empty secret is wrong")
	}
}

func TestSecretSources(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "from-file\r\n")
	write(t, filepath.Join(dir, "empty"), "\n")
	env := map[string]string{"KEY": "from-env", "LOOKS": "file:key", "DIR": dir, "EMPTY": ""}
	at := filepath.Join(dir, "in.yaml")
	for _, c := range []struct{ in, want, err string }{
		{"key: plain", "plain", ""},
		{"key: ${KEY}", "from-env", ""},
		{"key: x-${KEY}-$${y}", "x-from-env-${y}", ""},
		{"key: file:key", "from-file", ""},
		{"key: file:${DIR}/key", "from-file", ""},
		{"key: ${LOOKS}", "file:key", ""}, // a variable cannot name a file
		{"key: ${NONE:-alt}", "alt", ""},
		{"key: ${NONE}", "", "1:6: key: variable NONE is not set; set it, or write ${NONE:-default}"},
		{"key: file:none", "", "1:6: key: secret file cannot be read: no such file or directory; check the path and who may read it"},
		{"key: file:.", "", "1:6: key: secret file cannot be read: not a plain file; check the path and who may read it"},
		{"key: file:empty", "", "1:6: key: secret is empty"},
		{"key: ${EMPTY}", "", "1:6: key: secret is empty"},
		{"key: 12345678", "", "1:6: key: must be text; put it in quotes, or write ${VARIABLE} or file:/path"},
		{"more: [a, b]\nby: {x: c}\nlast: d\nkey: e", "e", ""},
	} {
		var v vault
		ps := config.DecodeInto(at, []byte(c.in), env, &v)
		got := ""
		if len(ps) > 0 {
			got = strings.TrimPrefix(ps.Error(), at+":")
		}
		if diff := cmp.Diff(c.err, got); diff != "" || v.Key.Reveal() != c.want {
			t.Errorf("%s: %q %s", c.in, v.Key.Reveal(), diff)
		}
		if strings.Contains(c.in, "last") && (len(v.More) != 2 || v.By["x"].Reveal() != "c" || v.Last.Reveal() != "d") {
			t.Errorf("%s: nested secrets are wrong", c.in)
		}
	}
}

// A key that is given as text is in none of the forms that a configuration is
// shown in, nor in an error about it.
func TestKeyTextIsNeverPrinted(t *testing.T) {
	c := &config.Config{
		Listeners: []config.Listener{{Name: "l", Address: ":1", Anonymous: true, Sections: []config.Section{{Name: "s", TLS: &config.ServerTLS{CertPEM: "c", KeyPEM: "hunter2"}}}}},
		Pools:     []config.Pool{{Name: "p", Protocol: config.HTTPS, Plain: true, Members: config.Members{External: true}, TLS: &config.ClientTLS{CertPEM: "c", KeyPEM: "hunter2"}}},
	}
	c.Providers = []config.Provider{{Name: "p", BaseURL: "https://a.example", Headers: map[string]config.Secret{"x-gate": "hunter2"}}}
	edits := func(value string) []config.HTTPRoute {
		set := &config.FieldEdits{Set: []config.Field{{Name: "X-Api-Token", Value: value}, {Name: "x-plain", Value: "shown-" + value[6:]}}}
		return []config.HTTPRoute{{Name: "r", Rules: []config.HTTPRule{{Filters: config.HTTPFilters{RequestHeaders: set}}}}}
	}
	c.HTTPRoutes = edits("hunter2")
	c.SetDefaults()
	err := c.Validate()
	if err == nil {
		t.Error("what is no certificate was accepted")
	}
	other := *c
	other.Listeners = []config.Listener{{Name: "l", Sections: []config.Section{{Name: "s", TLS: &config.ServerTLS{KeyPEM: "hunter3"}}}}}
	other.Providers = []config.Provider{{Name: "p", BaseURL: "https://a.example", Headers: map[string]config.Secret{"x-gate": "hunter3"}}}
	other.HTTPRoutes = edits("hunter3")
	out := fmt.Sprintf("%s %v %+v %#v %v %v", c.Redacted(), err, c, c, config.Diff(c, &other), config.Diff(nil, c))
	if strings.Contains(out, "hunter") {
		t.Errorf("printed: %s", out)
	}
	for _, want := range []string{`x-gate: "<secret>"`, "set[X-Api-Token].value: changed", "shown-2", "headers.x-gate: changed"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not told: %s", want, out)
		}
	}
}

// A secret that stands where a mapping or a list belongs is a likely slip.
func TestSecretInTheWrongPlaceIsNotShown(t *testing.T) {
	const model = "models: [{name: m, targets: [{provider: openai}]}]\n"
	for _, text := range []string{
		"tenants: [{name: t, keys: [hunter2]}]",
		"tenants: [{name: t, keys: hunter2}]",
		"tenants: [{name: t, keys: [{name: k, secrets: [hunter2]}]}]",
		"providers: [{name: openai, credentials: hunter2}]",
		"providers: [{name: openai, credentials: [hunter2]}]",
		"providers: [{name: openai, headers: hunter2}]",
		"admin: {address: \"127.0.0.1:1\", users: [hunter2]}",
		"admin: {address: \"127.0.0.1:1\", users: hunter2}",
		"quota: {store: redis, redis: hunter2}",
		"keys: hunter2",
	} {
		_, err := config.Parse("a.yaml", []byte(model+text))
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", text, err)
		}
	}
	// What cannot be one is shown still.
	_, err := config.Parse("a.yaml", []byte(model+`admin: "127.0.0.1:9901"`))
	if err == nil || !strings.Contains(err.Error(), `{address: "127.0.0.1:9901"}`) {
		t.Error(err)
	}
}
