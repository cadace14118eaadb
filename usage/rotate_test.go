// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

// TestRotate writes more than all files hold: the newest records are there, in
// whole lines, in as many files as may be kept, and nothing is counted as lost.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "records.jsonl")
	l, err := Open(config.Records{Path: path, Buffer: 10_000, Rotate: config.Rotate{Size: 2000, Keep: 2}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 200
	for i := range n {
		l.Emit(&Record{RequestID: fmt.Sprint(i), Path: strings.Repeat("x", 200)})
		for len(l.queue) > 0 { // so that batches are small
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := fmt.Sprint(names); got != "[records.jsonl records.jsonl.1 records.jsonl.2]" {
		t.Fatalf("files are %s", got)
	}
	next := n
	for _, name := range []string{path, path + ".1", path + ".2"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name != path && len(b) < 2000 {
			t.Errorf("%s was set aside with %d bytes", name, len(b))
		}
		lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
		for i := len(lines) - 1; i >= 0 && len(lines[i]) > 0; i-- {
			var r Record
			next--
			if err := json.Unmarshal(lines[i], &r); err != nil || r.RequestID != fmt.Sprint(next) {
				t.Fatalf("%s: line %d is %s, want record %d", name, i, lines[i], next)
			}
		}
	}
}

// TestRotateFails: a file that cannot be set aside goes on growing.
func TestRotateFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.jsonl")
	if err := os.MkdirAll(filepath.Join(path+".1", "full"), 0o750); err != nil { // no file can take its place
		t.Fatal(err)
	}
	l, err := Open(config.Records{Path: path, Rotate: config.Rotate{Size: 1, Keep: 1}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l.Emit(&Record{RequestID: fmt.Sprint(i)})
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); bytes.Count(b, []byte("\n")) != 3 {
		t.Errorf("the file is %s", b)
	}
}
