// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
)

// settled runs the loop in virtual time and returns when changes were told.
func settled(t *testing.T, life time.Duration, scan func() bool, drive func(event func())) (told []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), life)
		defer cancel()
		start := time.Now()
		events := make(chan fsnotify.Event)
		go drive(func() {
			select {
			case events <- fsnotify.Event{}:
			case <-ctx.Done():
			}
		})
		config.Settle(ctx, events, scan, func() { told = append(told, time.Since(start)) })
		synctest.Wait()
	})
	return told
}

func yes() bool { return true }

func TestSettleBurst(t *testing.T) {
	got := settled(t, 4*time.Second, yes, func(event func()) {
		for range 5 {
			event()
			time.Sleep(100 * time.Millisecond)
		}
	})
	if diff := cmp.Diff([]time.Duration{600 * time.Millisecond}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSettleDoesNotStarve(t *testing.T) {
	got := settled(t, 4500*time.Millisecond, yes, func(event func()) {
		for range 45 {
			event()
			time.Sleep(100 * time.Millisecond)
		}
	})
	if len(got) != 2 || got[0] > 2100*time.Millisecond || got[1] > 4200*time.Millisecond {
		t.Errorf("told at %v", got)
	}
}

func TestSettlePollsAndCompares(t *testing.T) {
	n := 0
	got := settled(t, 16*time.Second, func() bool { n++; return n == 2 }, func(func()) {})
	if diff := cmp.Diff([]time.Duration{10 * time.Second}, got); diff != "" || n != 3 {
		t.Errorf("%d looks; %s", n, diff)
	}
}

// A look at the files finds new content wherever it came from, and nothing else.
func TestScan(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// As Kubernetes mounts a ConfigMap: the file links into ..data, which
	// links to a directory that is replaced.
	for i, text := range []string{minimal, minimal + "#\n"} {
		must(os.Mkdir(in(fmt.Sprintf("..v%d", i)), 0o700))
		write(t, in(fmt.Sprintf("..v%d/c.yaml", i)), text+"pickers: [{name: a, file: p.yaml}]\n")
	}
	must(os.Symlink("..v0", in("..data")))
	must(os.Symlink("..data/c.yaml", in("c.yaml")))
	scan := config.Scanner(in("c.yaml"))
	scan()
	expect := func(want bool, what string) {
		t.Helper()
		if got := scan(); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	expect(false, "nothing")
	write(t, in("other.yaml"), "x")
	expect(false, "a stranger beside it")
	must(os.Symlink("..v1", in("..tmp")))
	must(os.Rename(in("..tmp"), in("..data")))
	expect(true, "swapped link")
	must(os.Chtimes(in("c.yaml"), time.Now(), time.Now()))
	expect(false, "touched")
	write(t, in("p.yaml"), "a")
	expect(true, "picker file appears")
	write(t, in("p.yaml"), "b")
	expect(true, "picker file changes")
	write(t, in("..v1/c.yaml"), "{")
	expect(true, "broken")
	write(t, in("p.yaml"), "c")
	expect(true, "picker file changes while the main one is broken")
	must(os.Remove(in("c.yaml")))
	expect(true, "gone")
	expect(false, "still gone")
}

// The real thing: a file replaced by rename is noticed, and no goroutine stays.
func TestWatch(t *testing.T) {
	before := runtime.NumGoroutine()
	path := filepath.Join(t.TempDir(), "c.yaml")
	write(t, path, minimal)
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- config.Watch(ctx, path, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	deadline := time.After(30 * time.Second)
	replace := time.NewTicker(500 * time.Millisecond) // the first may come before the first look
	defer replace.Stop()
	for n := 0; ; n++ {
		write(t, path+"~", fmt.Sprintf("%s# %d\n", minimal, n))
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case <-replace.C:
			continue
		case <-deadline:
			t.Fatal("no change is told")
		}
		break
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// A named pipe in place of a file is read as what it holds, nothing: waiting
// for its writer would end every later reload.
func TestNamedPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("this file system has no named pipes: ", err)
	}
	done := make(chan error, 1)
	go func() { _, err := config.Load(path); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("loaded")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still waits")
	}
}
