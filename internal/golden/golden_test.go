// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

const sample = `what it is about
mode: fast
-- in --
a
-- out --
A
`

func TestDifferences(t *testing.T) {
	ar := txtar.Parse([]byte(sample))
	for _, c := range []struct {
		name string
		got  map[string]string
		want string // part of the only problem; "": none
	}{
		{"equal", map[string]string{"out": "A\n"}, ""},
		{"equal but for the last newline", map[string]string{"out": "A"}, ""},
		{"other", map[string]string{"out": "B\n"}, "out (-want +got)"},
		{"empty", map[string]string{"out": ""}, "out (-want +got)"},
		{"unknown", map[string]string{"more": "x"}, "which the case lacks"},
	} {
		problems := differences(ar, c.got)
		if c.want == "" && len(problems) != 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0], c.want)) {
			t.Errorf("%s: %q", c.name, problems)
		}
	}
}

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "case.txtar")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	ran := 0
	Run(t, path, func(t *testing.T, c *Case) map[string]string {
		ran++
		if c.Name != "case" || c.Flag("mode") != "fast" || c.Flag("other") != "" || !c.Has("in") || c.Has("nothing") {
			t.Errorf("case %+v", c)
		}
		return map[string]string{"out": strings.ToUpper(c.File(t, "in"))}
	})
	if ran != 1 {
		t.Errorf("ran %d cases", ran)
	}
}
