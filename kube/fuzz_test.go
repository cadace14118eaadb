// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
)

// corpus are the objects of every case, as trees.
type corpus struct {
	pair, other pair
	objects     []map[string]any
	words       []string // every text that stands somewhere
}

func newCorpus(t testing.TB) *corpus {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases (%v)", err)
	}
	c := &corpus{pair: newPair(t), other: newPair(t), words: []string{
		"", ".", "*", "*.", "/", "//", "..", "\x00", "\xff", "{}", "a b", "ä", "*.example.com", "example.com", "HTTPS", "HTTP",
		"Exact", "RegularExpression", "(", "0s", "-1s", "1ns", "9999999h", "All", "Selector", strings.Repeat("x", 300), "-----BEGIN CERTIFICATE-----",
	}}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(txtar.Parse(raw).Files[0].Data)
		text = strings.NewReplacer("$CERT", strconv.Quote(c.pair.cert), "$KEY", strconv.Quote(c.pair.key), "$OTHER", strconv.Quote(c.other.cert)).Replace(text)
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var tree map[string]any
			if err := yaml.Unmarshal([]byte(doc), &tree); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			c.objects = append(c.objects, tree)
			c.collect(tree)
		}
	}
	return c
}

func (c *corpus) collect(v any) {
	switch x := v.(type) {
	case map[string]any:
		for _, e := range x {
			c.collect(e)
		}
	case []any:
		for _, e := range x {
			c.collect(e)
		}
	case string:
		c.words = append(c.words, x)
	}
}

// mutate is a copy of a tree in which about one leaf in n is another one.
func (c *corpus) mutate(r *rand.Rand, n int, v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range sortedKeys(x) {
			if r.IntN(4*n) > 0 {
				out[k] = c.mutate(r, n, x[k])
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range x {
			for range 1 + r.IntN(n+1)/n {
				out = append(out, c.mutate(r, n, e))
			}
		}
		if r.IntN(8*n) == 0 {
			return []any{}
		}
		return out
	case string:
		switch r.IntN(2 * n) {
		case 0:
			return c.words[r.IntN(len(c.words))]
		case 1:
			b := []byte(x)
			if len(b) > 0 {
				b[r.IntN(len(b))] = byte(r.IntN(256))
			}
			return string(b)
		}
	case float64:
		switch r.IntN(2 * n) {
		case 0:
			return []float64{-1, 0, 1, 80, 443, 65535, 65536, 1 << 31, 1e15, 0.5}[r.IntN(10)]
		case 1:
			return x + float64(r.IntN(3)-1)
		}
	case bool:
		return x != (r.IntN(n) == 0)
	}
	return v
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	// A map's order is not the seed's.
	for i := range keys {
		for j := i + 1; j < len(keys); j++ {
			if keys[j] < keys[i] {
				keys[i], keys[j] = keys[j], keys[i]
			}
		}
	}
	return keys
}

// random are objects drawn from all cases and changed at random.
func (c *corpus) random(seed uint64) *kube.Objects {
	r := rand.New(rand.NewPCG(seed, seed>>7))
	m := &kube.Manifests{}
	rate := 4 + r.IntN(60)
	for range 5 + r.IntN(60) {
		tree := c.mutate(r, rate, c.objects[r.IntN(len(c.objects))])
		// All in a few namespaces and of one class, or nothing would refer to
		// anything.
		if o, ok := tree.(map[string]any); ok {
			if meta, ok := o["metadata"].(map[string]any); ok && r.IntN(3) == 0 {
				delete(meta, "namespace")
			}
		}
		raw, err := json.Marshal(tree)
		if err != nil {
			continue
		}
		_ = m.Parse("random", raw) // what cannot be decoded cannot come from an API server either
	}
	_ = m.Parse("class", []byte("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: penstock}\nspec: {controllerName: penstock.dev/gateway-controller}"))
	return &m.Objects
}

func (c *corpus) translate(t *testing.T, seed uint64) int {
	t.Helper()
	o := c.random(seed)
	opts := kube.Options{Observed: map[types.NamespacedName]kube.Observed{}}
	for _, g := range o.Gateways {
		opts.Observed[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = kube.Observed{Ready: true, Addresses: []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}}}
	}
	result := kube.Translate(o, opts)
	pools := 0
	for _, g := range result.Gateways {
		valid(t, g)
		kube.Members(o, g.Sources)
		if g.Config != nil {
			pools += len(g.Config.Pools)
		}
	}
	if t.Failed() {
		raw, _ := yaml.Marshal(o)
		t.Fatalf("seed %d:\n%s", seed, raw)
	}
	if seed%4 == 0 {
		sameInAnyOrder(t, o, opts, result)
	}
	return pools
}

// FuzzTranslate holds translations of random objects to what every one must be:
// it does not panic, gives valid configurations, and does not depend on the
// order of its objects.
func FuzzTranslate(f *testing.F) {
	c := newCorpus(f)
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { c.translate(t, seed) })
}

// TestRandomObjects is the same for a fixed number of seeds, and sees to it
// that they are not all refused.
func TestRandomObjects(t *testing.T) {
	c := newCorpus(t)
	pools := 0
	for seed := range uint64(120) {
		pools += c.translate(t, seed)
	}
	if pools < 60 {
		t.Errorf("random objects made %d pools: they are hardly translated at all", pools)
	}
}

// FuzzParse holds the reader of manifests to no panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n---\n# nothing\n--- x\n"))
	f.Add([]byte(`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m := &kube.Manifests{}
		if m.Parse("x", text) == nil {
			kube.Translate(&m.Objects, kube.Options{})
		}
	})
}
