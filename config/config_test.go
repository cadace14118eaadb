// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"golang.org/x/tools/txtar"
)

const minimal = `listeners: [{name: public, address: ":8080", anonymous: true}]
pools: [{name: llama, members: {static: ["10.0.0.1:8000"]}}]
models: [{name: chat, targets: [{pool: llama}]}]
`

// random makes a valid configuration out of odd parts.
type random struct{ *rand.Rand }

func (r random) text() string {
	var b strings.Builder
	for range r.IntN(8) {
		switch r.IntN(4) {
		case 0:
			b.WriteString([]string{"${", "$", "{", "}", ": ", " #", "\n", "\t", "- ", "'", `"`, `\`, "true", "~", "\u2028", "\x01", "\u0085", "%", "&", "*", "!", "|", ">", "@", "`", "\r\n", " "}[r.IntN(27)])
		case 1:
			b.WriteRune(rune(r.IntN(0x3000)))
		default:
			b.WriteByte(byte('a' + r.IntN(26)))
		}
	}
	return b.String()
}

func (r random) value(depth int) any {
	switch n := r.IntN(9); {
	case n == 0:
		return nil
	case n == 1:
		return r.IntN(2) == 0
	case n == 2:
		return int(r.Uint64())
	case n == 3:
		return uint64(math.MaxInt64) + 1 + r.Uint64N(1<<62)
	case n == 4:
		return r.NormFloat64() * math.Pow(10, float64(r.IntN(60)-30))
	case n == 5 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, r.value(depth-1))
		}
		return list
	case n == 6 && depth > 0:
		return r.parameters(depth - 1)
	}
	return r.text()
}

func (r random) parameters(depth int) map[string]any {
	m := map[string]any{}
	for range r.IntN(4) {
		m[r.text()] = r.value(depth)
	}
	return m
}

func (r random) config() *config.Config {
	c := &config.Config{}
	for i := range 1 + r.IntN(3) {
		c.Listeners = append(c.Listeners, config.Listener{Name: fmt.Sprintf("l%d", i), Address: fmt.Sprintf(":%d", 8080+i), Anonymous: true, DebugHeaders: r.IntN(2) == 0})
		p := config.Pool{Name: fmt.Sprintf("p%d", i), Engine: config.TRTLLM}
		p.Members.Static = []config.Member{{Address: "a:1"}, {Address: "[::1]:2", Labels: map[string]string{r.text(): r.text()}}}
		if r.IntN(2) == 0 {
			p.Paths, p.Probe = []string{}, &config.Probe{}
		}
		c.Pools = append(c.Pools, p)
		weight := r.IntN(5)
		m := config.Model{Name: fmt.Sprintf("m%d${x}é:", i), Targets: []config.Target{{Pool: p.Name}, {Pool: p.Name, Weight: &weight}}}
		m.Timeouts.Idle = config.Duration(r.IntN(1e12) + 1e6)
		c.Models = append(c.Models, m)
		scorer := r.Float64() * 10
		c.Pickers = append(c.Pickers, config.Picker{Name: fmt.Sprintf("k%d", i), Config: &config.EndpointPickerConfig{
			Plugins:            []config.Plugin{{Type: "a", Parameters: r.parameters(3)}},
			SchedulingProfiles: []config.SchedulingProfile{{Name: r.text() + "x", Plugins: []config.PluginRef{{PluginRef: "a", Weight: &scorer}}}},
			FlowControl:        r.parameters(2),
		}})
	}
	c.Limits.Body = config.Size(1<<10 + r.Int64N(1<<30))
	c.SetDefaults()
	return c
}

// What is printed reads as the same value, whatever the texts hold.
func TestRedactedParsesBack(t *testing.T) {
	for seed := range uint64(100) {
		c := random{rand.New(rand.NewPCG(seed, 1))}.config()
		if err := c.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, err := config.Parse("x.yaml", c.Redacted())
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, c.Redacted())
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s\n%s", seed, diff, c.Redacted())
		}
		if lines := config.Diff(c, got); lines != nil {
			t.Fatalf("seed %d: Diff of equals: %q", seed, lines)
		}
		if string(got.Redacted()) != string(c.Redacted()) {
			t.Fatalf("seed %d: order is not stable", seed)
		}
	}
}

func TestReferenceIsComplete(t *testing.T) {
	ref, about := config.Reference(), config.Meanings()
	seen := map[string]bool{}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := f.Tag.Get("yaml")
			if key == "" {
				t.Errorf("%s.%s has no key", typ.Name(), f.Name)
			}
			id := typ.Name() + "." + key
			if about[id] == "" {
				t.Errorf("%s has no meaning", id)
			}
			if !strings.Contains(ref, about[id]) || !strings.Contains(ref, key) {
				t.Errorf("%s is not in the reference", id)
			}
			seen[id] = true
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[config.Config]())
	for id := range about {
		if !seen[id] {
			t.Errorf("meaning of %s, which is no key", id)
		}
	}
}

// A check of another package says a relative path and gets a position, also
// in a file that the configuration names.
func TestCheckIsPlaced(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p.yaml"), "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n  - type: x\n    parameters:\n      a.b: 3\n")
	text := minimal + "pickers:\n  - name: a\n    config:\n      plugins: [{type: y, parameters: {z: 1}}]\n  - {name: b, file: p.yaml}\n"
	check := func(c *config.Config) []*config.Problem {
		if c.Pickers[1].Config.Plugins[0].Parameters["a.b"] != 3 {
			t.Errorf("file is not read: %v", c.Pickers[1].Config)
		}
		inner := &config.Problem{Path: `plugins[0].parameters["a.b"]`, What: "is odd"}
		return []*config.Problem{
			inner.Under("pickers[1].config"),
			(&config.Problem{Path: "plugins[0].parameters.z", What: "is odd"}).Under("pickers[0].config"),
			{Path: "pools[0].members.static[0].labels", What: "is odd"},
		}
	}
	_, err := config.ParseWith(filepath.Join(dir, "in.yaml"), []byte(text), config.Options{Check: check})
	got := strings.ReplaceAll(fmt.Sprint(err), dir+"/", "")
	want := `in.yaml:2:42: pools[0].members.static[0].labels: is odd
in.yaml:7:43: pickers[0].config.plugins[0].parameters.z: is odd
p.yaml:6:12: plugins[0].parameters["a.b"]: is odd`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBoundsOnText(t *testing.T) {
	for name, text := range map[string]string{
		"size":    strings.Repeat("# x\n", 1<<20+1),
		"keys":    strings.Repeat("a: b\n", 30_000),
		"flow":    "a: " + strings.Repeat("[", 1<<17),
		"entries": strings.Repeat("- ", 1<<17),
		"complex": strings.Repeat("? ", 1<<17),
		"tags":    "a: " + strings.Repeat("!x ", 1<<17),
		"anchors": strings.Repeat("- &a b\n", 200),
		"indent":  indented(400),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("x.yaml", []byte(text))
			if config.AsProblems(err) == nil {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// However much is wrong, the report is bounded and quick.
func TestProblemsAreBounded(t *testing.T) {
	text := "a: &a [" + strings.Repeat("x, ", 1000) + "]\npools:\n" + strings.Repeat("  - {members: {static: *a}}\n", 100)
	_, err := config.Parse("x.yaml", []byte(text))
	if n := len(config.AsProblems(err)); n != 101 {
		t.Errorf("%d problems", n)
	}
}

// How an editor ends lines and begins a file changes nothing.
func TestLineEndings(t *testing.T) {
	want, err := config.Parse("x.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.ReplaceAll(minimal, "\n", "\r\n"), "\ufeff" + minimal, "---\n" + minimal, "%YAML 1.2\n---\n" + minimal + "...\n"} {
		got, err := config.Parse("x.yaml", []byte(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	}
}

func indented(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestParseMembers(t *testing.T) {
	got, err := config.ParseMembers("m.yaml", []byte("- a:1\n- {address: \"b:2\", labels: {zone: x}}\n"))
	want := []config.Member{{Address: "a:1"}, {Address: "b:2", Labels: map[string]string{"zone": "x"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	_, err = config.ParseMembers("m.yaml", []byte("- a:1\n- b\n- a:1\n"))
	const bad = "m.yaml:2:3: [1]: \"b\" has no port; write b:PORT\nm.yaml:3:3: [2]: \"a:1\" is there already, at [0]; list each member once"
	if fmt.Sprint(err) != bad {
		t.Errorf("got %v\nwant %s", err, bad)
	}
	if got, err := config.ParseMembers("m.yaml", []byte("[]")); err != nil || len(got) != 0 {
		t.Errorf("empty list: %v, %v", got, err)
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"))
	if err == nil || config.AsProblems(err) != nil || !os.IsNotExist(unwrap(err)) {
		t.Errorf("got %v", err)
	}
}

func unwrap(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || os.IsNotExist(err) {
			return err
		}
		err = u.Unwrap()
	}
}

func TestIsAdministrative(t *testing.T) {
	for path, want := range map[string]bool{
		"/metrics": true, "/METRICS": true, "/metrics/x": true, "/metricsx": false,
		"/update_weights_from_tensor": true, "/update_weightsx": false, "/health": true,
		"/v1/rerank": false, "/": false, "/v2/repository/models/a/load": true, "/v2/rerank": false,
	} {
		if got := config.IsAdministrative(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	for _, path := range config.DefaultPaths() {
		if config.IsAdministrative(path) {
			t.Errorf("default path %s is refused", path)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Any text is either refused with a position or reads back as printed.
func FuzzParse(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*/*.txtar")
	if len(paths) == 0 {
		f.Fatal("no seeds")
	}
	for _, path := range paths {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range ar.Files {
			if strings.HasSuffix(file.Name, ".yaml") {
				f.Add(file.Data)
			}
		}
	}
	o := config.Options{
		Env:      func(name string) (string, bool) { return "v-" + name, unicode.IsUpper(rune(name[0])) },
		ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist },
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.ParseWith("in.yaml", text, o)
		if err != nil {
			for _, p := range config.AsProblems(err) {
				if p.Line < 1 || p.Col < 1 || p.File == "" || p.What == "" {
					t.Errorf("incomplete problem %+v", p)
				}
			}
			return
		}
		again, err := config.ParseWith("in.yaml", c.Redacted(), o)
		if err != nil {
			t.Fatalf("printed form is refused: %v\n%s", err, c.Redacted())
		}
		hideHeaders(c)
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatalf("printed form reads as another value (-want +got):\n%s", diff)
		}
	})
}
