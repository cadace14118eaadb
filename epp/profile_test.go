// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/golden"
)

func decode(t testing.TB, text string) *config.EndpointPickerConfig {
	t.Helper()
	cfg := &config.EndpointPickerConfig{}
	if err := yaml.UnmarshalWithOptions([]byte(text), cfg, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestCompile: config.yaml holds documents; each gives its profile in a line
// with its notes, or its problem.
func TestCompile(t *testing.T) {
	golden.Run(t, "testdata/compile/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var b strings.Builder
		for i, doc := range strings.Split(c.File(t, "config.yaml"), "---\n") {
			if i > 0 {
				b.WriteString("---\n")
			}
			p, err := epp.Compile(decode(t, doc))
			if err != nil {
				var problem *config.Problem
				if !errors.As(err, &problem) || problem.Path == "" {
					t.Errorf("document %d: %v is not a problem with a path", i, err)
				}
				b.WriteString(err.Error() + "\n")
				continue
			}
			b.WriteString("ok: " + p.Name() + "\n")
			for _, note := range p.Notes() {
				b.WriteString("note: " + note + "\n")
			}
		}
		return map[string]string{"result": b.String()}
	})
}

// TestBuiltins: every built-in profile compiles, under its own name.
func TestBuiltins(t *testing.T) {
	for _, name := range epp.Builtins() {
		if p := builtin(t, name); p.Name() != name {
			t.Errorf("%s compiles to %s", name, p.Name())
		}
	}
	if _, ok := epp.Builtin("nonsense"); ok {
		t.Error("there is a built-in nonsense")
	}
}

// FuzzCompile feeds trees as a decoder gives them; JSON stands for YAML, whose
// decoder is not under test here.
func FuzzCompile(f *testing.F) {
	for _, name := range epp.Builtins() {
		cfg, _ := epp.Builtin(name)
		text, err := json.Marshal(cfg)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(`{"plugins": [{"type": "utilization-filter", "parameters": {"conditions": [{"metric": "waiting-queue", "maxValue": 5}], "fallbackOnEmpty": true}}]}`)
	f.Add(`{"plugins": [{"type": "label-selector-filter", "parameters": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}}]}`)
	f.Add(`{"plugins": [{"type": "session-affinity-scorer", "parameters": {"strategy": "session_id", "sessionIdConfig": {"sources": [{"cookie": "c"}]}}}]}`)
	f.Add(`{"plugins": [{"type": "concurrency-detector", "parameters": {"maxConcurrency": "7", "headroom": 1e300}}]}`)
	f.Add(`{"plugins": [{"type": "weighted-random-picker", "parameters": {"maxNumOfEndpoints": 9}}, {"type": "queue-scorer"}, {"name": "x", "type": "prefix-cache-scorer"}]}`)
	f.Add(`{"dataLayer": {"sources": [{"pluginRef": "a", "extractors": [{"pluginRef": "b"}]}]}, "plugins": [{"name": "a", "type": "metrics-data-source"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		cfg := &config.EndpointPickerConfig{}
		if json.Unmarshal([]byte(text), cfg) != nil {
			return
		}
		profile, err := epp.Compile(cfg)
		if err != nil {
			var problem *config.Problem
			if !errors.As(err, &problem) || problem.What == "" {
				t.Fatalf("%v is not a problem", err)
			}
			return
		}
		// What compiles also picks.
		p := newPool(t, 3)
		defer p.Close()
		s := epp.New(p, profile, epp.Options{Explain: 2})
		for range 2 {
			if res := pick(t, s, request(t, "hello")); (res.Denial == nil) != (len(res.Endpoints) > 0) {
				t.Fatalf("endpoints %v, denial %v", res.Endpoints, res.Denial)
			}
		}
	})
}

func TestTellsServed(t *testing.T) {
	if builtin(t, "default").TellsServed() {
		t.Error("the default profile tells who served")
	}
	profile, err := epp.Compile(&config.EndpointPickerConfig{Plugins: []config.Plugin{{Type: "destination-endpoint-served-verifier"}, {Type: "random-picker"}}})
	if err != nil || !profile.TellsServed() {
		t.Errorf("%v, %v", profile, err)
	}
}
