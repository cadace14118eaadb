// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
)

// TestFullDisk fills the disk of the spool, which is a small one of its own in a
// process with mounts of its own: rows wait in memory, within ledger.buffer, and
// come to the database when there is room again.
func TestFullDisk(t *testing.T) {
	if os.Getenv("LEDGER_TEST_DISK") != "" {
		fullDisk(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "LEDGER_TEST_DISK=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if id := os.Getuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: id, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case errors.Is(err, fs.ErrPermission) || strings.Contains(text, "no mounts here"):
		notRun(t, fmt.Sprintf("no disk of its own for a process here (root, or user namespaces, may mount): %v %s", err, text))
	case err != nil || !strings.Contains(text, "--- PASS: TestFullDisk"):
		t.Errorf("%v\n%s", err, out)
	}
}

// notRun leaves the test out aloud where a disk cannot be mounted; with CI=true,
// where one can, that is a failure.
func notRun(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip("*** NOT RUN: " + why + " ***")
}

func fullDisk(t *testing.T) {
	cfg := settings(t)
	cfg.Buffer, cfg.Interval = 2000, config.Duration(time.Hour)
	cfg.Spool = filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(cfg.Spool, 0o755); err != nil {
		t.Fatal(err)
	}
	err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, "")
	if err == nil {
		err = syscall.Mount("none", cfg.Spool, "tmpfs", 0, "size=1m")
	}
	if err != nil {
		t.Fatalf("no mounts here: %v", err) // the parent knows what that means
	}
	defer syscall.Unmount(cfg.Spool, syscall.MNT_DETACH)
	l, j, metric := watched(t, cfg)
	n := 0
	full := "penstock_ledger_rows_dropped_total full"
	for metric(full) == 0 { // the disk takes some, memory as many as the buffer
		for range 100 {
			l.Append(record(n, "acme", "m"))
			n++
		}
		if n > 200_000 {
			t.Fatal("a disk of 1 MiB takes all")
		}
	}
	if !strings.Contains(j.String(), "no space left on device") {
		t.Errorf("log:\n%s", j)
	}
	waiting := metric("penstock_ledger_rows_waiting")
	if waiting == 0 || metric("penstock_ledger_errors_total spool") == 0 {
		t.Errorf("%v rows are in the spool", waiting)
	}
	if err := syscall.Mount("none", cfg.Spool, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	if err := l.Settled(t.Context()); err != nil { // what waited in memory is there after the next try
		t.Fatal(err)
	}
	for range 100 {
		l.Append(record(n, "acme", "m"))
		n++
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, dropped := requests(t, l), int64(metric(full)); got+dropped != int64(n) || dropped > 100 {
		t.Errorf("%d rows of %d are in the database, %d were dropped", got, n, dropped)
	}
	if got := metric("penstock_ledger_rows_dropped_total damaged"); got != 0 {
		t.Errorf("%v rows were torn", got)
	}
	if !strings.Contains(j.String(), "the ledger's spool takes rows again") {
		t.Errorf("log:\n%s", j)
	}
	// A process that dies on a full disk leaves nothing that is none.
	left, err := os.ReadDir(cfg.Spool)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		raw, err := os.ReadFile(filepath.Join(cfg.Spool, e.Name()))
		if err != nil || strings.HasSuffix(e.Name(), ".segment") && !bytes.HasPrefix(raw, []byte("PNSTKLG1")) {
			t.Errorf("%s is left: %v", e.Name(), err)
		}
	}
}
