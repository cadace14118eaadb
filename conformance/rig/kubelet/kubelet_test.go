// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestExpand(t *testing.T) {
	e := &environment{values: map[string]string{}}
	e.set("A", "one")
	e.set("B", "$(A)")
	for in, want := range map[string]string{
		"":              "",
		"$(A)":          "one",
		"x$(A)y$(A)z":   "xoneyonez",
		"$(B)":          "$(A)", // once
		"$(C) $(A)":     "$(C) one",
		"$$(A)":         "$(A)",
		"$$$(A)":        "$one",
		"$A $":          "$A $",
		"$(A":           "$(A",
		"a)$(A)(":       "a)one(",
		"100% $(A) $$$": "100% one $$",
	} {
		if got := e.expand(in); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestRenewal(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for life, want := range map[time.Duration]time.Duration{
		10 * time.Minute:     8 * time.Minute,
		time.Hour:            48 * time.Minute,
		365 * 24 * time.Hour: 24 * time.Hour,
	} {
		if got := renewal(now, now.Add(life)).Sub(now); got != want {
			t.Errorf("a token for %s is renewed after %s, want %s", life, got, want)
		}
	}
}

// TestReplaceFilesShowsOneState reads a pair of files by way of ..data while
// they are replaced: both must be of the same state.
func TestReplaceFilesShowsOneState(t *testing.T) {
	dir := t.TempDir()
	put := func(n int) {
		text := []byte(fmt.Sprint(n))
		if err := replaceFiles(dir, fileSet{"a": {text, 0o644}, "sub/b": {text, 0o400}}, -1); err != nil {
			t.Error(err)
		}
	}
	put(0)
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			state, err := os.Readlink(filepath.Join(dir, dataLink))
			if err != nil {
				t.Error(err)
				return
			}
			a, errA := os.ReadFile(filepath.Join(dir, state, "a"))
			b, errB := os.ReadFile(filepath.Join(dir, state, "sub/b"))
			if errA == nil && errB == nil && string(a) != string(b) {
				t.Errorf("a is of state %s, b of %s", a, b)
				return
			}
			if _, err := os.ReadFile(filepath.Join(dir, "a")); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
	for n := range 200 {
		put(n)
	}
	close(done)
	reader.Wait()
	if err := replaceFiles(dir, fileSet{"c": {[]byte("x"), 0o600}}, -1); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name()[0] != '.' {
			names = append(names, e.Name())
		}
	}
	if len(names) != 1 || names[0] != "c" || len(entries) != 3 {
		t.Errorf("left are %v of %v, want c, ..data and its folder", names, entries)
	}
	info, err := os.Stat(filepath.Join(dir, "c"))
	if err != nil || info.Mode() != fs.FileMode(0o600) {
		t.Errorf("c: %v, %v", info, err)
	}
}
