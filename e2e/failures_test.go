// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// failureFolders are where the cases are that docs/known-failures.md names.
var failureFolders = map[string]string{
	"routing": "proxy/testdata/routing", "translate": "llm/testdata/translate", "answers": "llm/testdata/answers",
	"classify": "provider/testdata/classify", "bad": "config/testdata/bad",
}

// TestKnownFailures holds docs/known-failures.md to the tests: every case has a
// test, or says why not; each test exists, and says that it is of the case.
func TestKnownFailures(t *testing.T) {
	raw, err := os.ReadFile("../docs/known-failures.md")
	if err != nil {
		t.Fatal(err)
	}
	cases := 0
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| B") || len(cells) != 4 {
			continue
		}
		cases++
		id, last := strings.TrimPrefix(cells[0], "| "), strings.TrimSuffix(cells[3], " |")
		if want := fmt.Sprintf("B%02d", cases); id != want {
			t.Errorf("%s stands where %s should", id, want)
		}
		tests := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(last, -1)
		if len(tests) == 0 && !regexp.MustCompile(`^not (yet|applicable): \w`).MatchString(last) {
			t.Errorf("%s has neither a test nor a reason: %s", id, last)
		}
		for _, m := range tests {
			if text, err := textOfTest(m[1]); err != nil {
				t.Errorf("%s: %v", id, err)
			} else if !strings.Contains(text, id) {
				t.Errorf("%s does not say that it is of %s", m[1], id)
			}
		}
	}
	if cases != 83 {
		t.Errorf("%d cases, want 83", cases)
	}
}

// textOfTest is what a case says of itself, or a Go test with its comment.
func textOfTest(name string) (string, error) {
	if folder, file, ok := strings.Cut(name, "/"); ok {
		raw, err := os.ReadFile(filepath.Join("..", failureFolders[folder], file+".txtar"))
		head, _, _ := strings.Cut(string(raw), "\n-- ")
		return head, err
	}
	pkg, test, _ := strings.Cut(name, ".")
	files, err := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
	if err != nil {
		return "", err
	}
	function := regexp.MustCompile(`(?ms)^(//[^\n]*\n)*func ` + regexp.QuoteMeta(test) + `\(t \*testing\.T\) \{\n.*?^}\n`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if m := function.Find(raw); m != nil {
			return string(m), nil
		}
	}
	return "", fmt.Errorf("no test %s in %s", test, pkg)
}
