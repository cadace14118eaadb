// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package golden runs text cases: each testdata/*.txtar file is one case, its
// input files go in, the files that the code under test returns are compared
// with those of the same name in the archive.
//
// go test ./PKG -update rewrites the expected files. The archive's comment is
// for the reader and may hold flags of the form "key: value" (see [Case.Flag]).
package golden

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected files of golden cases")

// Update says that expected files are to be rewritten, for tests that hold one of
// their own.
func Update() bool { return *update }

// Case is one archive.
type Case struct {
	Name    string
	Comment string
	files   map[string]string
}

// File is the content of an input file; the test fails if it is missing.
func (c *Case) File(t testing.TB, name string) string {
	t.Helper()
	s, ok := c.files[name]
	if !ok {
		t.Fatalf("case %s has no file %q", c.Name, name)
	}
	return s
}

// Has says whether the archive holds name.
func (c *Case) Has(name string) bool { _, ok := c.files[name]; return ok }

// Flag is the value of the line "key: value" in the comment, or "".
func (c *Case) Flag(key string) string {
	for line := range strings.Lines(c.Comment) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Run runs f for every archive that matches glob, as a subtest. f returns the
// files that it produced, by name. Every produced file must equal the
// archive's; a produced file that the archive lacks fails, so that a new case
// is written with -update and then read. The glob must match something.
func Run(t *testing.T, glob string, f func(t *testing.T, c *Case) map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(glob)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases match %s (%v)", glob, err)
	}
	sort.Strings(paths)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ar := txtar.Parse(raw)
			c := &Case{Name: name, Comment: string(ar.Comment), files: map[string]string{}}
			for _, file := range ar.Files {
				c.files[file.Name] = string(file.Data)
			}
			compare(t, path, ar, f(t, c))
		})
	}
}

func compare(t *testing.T, path string, ar *txtar.Archive, got map[string]string) {
	t.Helper()
	if *update {
		for i, file := range ar.Files {
			if s, ok := got[file.Name]; ok {
				ar.Files[i].Data = []byte(s)
				delete(got, file.Name)
			}
		}
		for _, name := range sortedKeys(got) {
			ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(got[name])})
		}
		if out := txtar.Format(ar); !bytes.Equal(out, txtar.Format(txtar.Parse(out))) {
			t.Fatal("a produced file holds a txtar marker line")
		} else if err := os.WriteFile(path, out, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, problem := range differences(ar, got) {
		t.Errorf("%s: %s", path, problem)
	}
}

// differences compares the produced files with those of the archive.
func differences(ar *txtar.Archive, got map[string]string) (problems []string) {
	want := map[string]string{}
	for _, file := range ar.Files {
		want[file.Name] = string(file.Data)
	}
	for _, name := range sortedKeys(got) {
		w, ok := want[name]
		if !ok {
			problems = append(problems, "produced "+name+", which the case lacks; run with -update and read it\n"+got[name])
			continue
		}
		// A txtar file always ends in a newline.
		g := got[name]
		if g != "" && !strings.HasSuffix(g, "\n") {
			g += "\n"
		}
		if diff := cmp.Diff(w, g); diff != "" {
			problems = append(problems, name+" (-want +got):\n"+diff)
		}
	}
	return problems
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
