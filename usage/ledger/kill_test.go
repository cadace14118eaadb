// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage/ledger"
)

// child is the process that is killed: it appends rows as fast as it can and
// prints, after every few, how many are settled: in the spool.
func child() {
	cfg := config.Ledger{
		Path: os.Getenv("LEDGER_TEST_PATH"), DSN: config.Secret(os.Getenv("LEDGER_TEST_DSN")), Spool: os.Getenv("LEDGER_TEST_CHILD"),
		SpoolSize: 1 << 30, Interval: config.Duration(10 * time.Millisecond), Buffer: 65536,
	}
	l, err := ledger.Open(cfg, ledger.Options{})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	tenant := os.Getenv("LEDGER_TEST_TENANT")
	for i := 1; ; i++ {
		l.Append(record(i, tenant, "model-"+strconv.Itoa(i%3)))
		if i%7 == 0 {
			if err := l.Settled(context.Background()); err != nil {
				fmt.Println("error", err)
				os.Exit(1)
			}
			fmt.Fprintln(out, i)
			out.Flush()
		}
		if i == mostRows {
			select {} // the parent is late; it need not store more than that
		}
	}
}

// mostRows bounds the rows of a child.
const mostRows = 14_000

// TestKilledProcessLosesNothing kills a process that writes, again and again: all
// that it knew to be settled is in the ledger once, and so is nothing that it did
// not append.
func TestKilledProcessLosesNothing(t *testing.T) {
	both(t, func(t *testing.T, cfg config.Ledger) {
		rounds := 8
		acknowledged := map[string]int64{}
		for round := range rounds {
			tenant := "round-" + strconv.Itoa(round)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "LEDGER_TEST_CHILD="+cfg.SpoolDir(), "LEDGER_TEST_PATH="+cfg.Path, "LEDGER_TEST_DSN="+cfg.DSN.Reveal(), "LEDGER_TEST_TENANT="+tenant)
			cmd.Stderr = os.Stderr
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(pipe)
			killed := false
			for lines.Scan() { // what was printed before the kill counts too
				n, err := strconv.ParseInt(lines.Text(), 10, 64)
				if err != nil {
					t.Errorf("the child says %q", lines.Text())
					break
				}
				acknowledged[tenant] = n
				if !killed && n > int64(500+700*round) {
					cmd.Process.Kill()
					killed = true
				}
			}
			cmd.Process.Kill()
			cmd.Wait()
		}
		l := open(t, cfg)
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, err := l.Answer(t.Context(), ledger.Query{By: []string{"tenant"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Groups) != rounds {
			t.Errorf("there are rows of %d rounds, not %d", len(a.Groups), rounds)
		}
		for _, g := range a.Groups {
			// Up to seven more were appended, and may be in the spool, before the
			// child could say so.
			if n := acknowledged[g.Key[0]]; g.Requests < n || g.Requests > n+7 {
				t.Errorf("%s: %d rows, %d settled", g.Key[0], g.Requests, n)
			}
		}
		var rows strings.Builder
		e := ledger.Export{Query: ledger.Query{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, Format: "csv"}
		if err := l.Export(t.Context(), e, &rows); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(rows.String()) {
			cells := strings.Split(line, ",")
			if key := cells[3] + " " + cells[4]; seen[key] {
				t.Fatalf("%s is there twice", key)
			} else {
				seen[key] = true
			}
		}
	})
}
