// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
)

// stage writes the case's input files into a directory and loads in.yaml. The
// flag "env: NAME=value, …" sets variables.
func stage(t *testing.T, c *golden.Case) (dir string, cfg *config.Config, err error) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"in.yaml", "picker.yaml", "picker2.yaml"} {
		if !c.Has(name) {
			continue
		}
		text := strings.NewReplacer("<TAB>", "\t", "<NUL>", "\x00").Replace(c.File(t, name))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{}
	for pair := range strings.SplitSeq(c.Flag("env"), ",") {
		if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
			env[k] = v
		}
	}
	cfg, err = config.LoadWith(filepath.Join(dir, "in.yaml"), config.Options{
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return dir, cfg, err
}

func TestBad(t *testing.T) {
	golden.Run(t, "testdata/bad/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		dir, _, err := stage(t, c)
		if err == nil {
			t.Fatal("accepted")
		}
		ps := config.AsProblems(err)
		if ps == nil {
			t.Fatalf("error is %T, not Problems: %v", err, err)
		}
		for _, p := range ps {
			if p.Line < 1 || p.Col < 1 {
				t.Errorf("no position: %v", p)
			}
		}
		return map[string]string{"errors": strings.ReplaceAll(err.Error(), dir+"/", "") + "\n"}
	})
}

func TestGood(t *testing.T) {
	golden.Run(t, "testdata/good/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		dir, cfg, err := stage(t, c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := config.Parse(filepath.Join(dir, "again.yaml"), cfg.Redacted())
		if err != nil {
			t.Fatalf("printed form is refused: %v\n%s", err, cfg.Redacted())
		}
		hideHeaders(cfg)
		if diff := cmp.Diff(cfg, again); diff != "" {
			t.Errorf("printed form reads as another value (-want +got):\n%s", diff)
		}
		if err := cfg.Validate(); err != nil {
			t.Errorf("Validate: %v", err)
		}
		out := cfg.Sparse()
		if c.Flag("print") == "all" {
			out = cfg.Redacted()
		}
		return map[string]string{"config": strings.ReplaceAll(string(out), dir+"/", "DIR/")}
	})
}

// hideHeaders puts in the place of headers what is printed for them.
func hideHeaders(c *config.Config) {
	for _, p := range c.Providers {
		for name, value := range p.Headers {
			p.Headers[name] = config.Secret(value.String())
		}
	}
}

func TestDiff(t *testing.T) {
	golden.Run(t, "testdata/diff/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		parse := func(name string) *config.Config {
			cfg, err := config.Parse(name, []byte(c.File(t, name)))
			if err != nil {
				t.Fatal(err)
			}
			return cfg
		}
		lines := config.Diff(parse("old.yaml"), parse("new.yaml"))
		return map[string]string{"diff": strings.Join(append(lines, ""), "\n")}
	})
}
