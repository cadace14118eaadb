// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/bench"
)

// The test binary is also the programs that a system bench starts: with
// BENCH_TEST_ROLE set it is one of them and runs no test.
func TestMain(m *testing.M) {
	role := os.Getenv("BENCH_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(role string, args []string) error {
	ctx := context.Background()
	switch role {
	case "backend":
		var listeners []net.Listener
		for _, a := range args[1:] {
			l, err := net.Listen("tcp", a)
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		interval, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		b := bench.Backend{Interval: interval, Chunks: 10, MetricsBytes: 64 << 10}
		return b.Serve(ctx, listeners)
	case "proxy":
		l, err := net.Listen("tcp", args[0])
		if err != nil {
			return err
		}
		return bench.ReverseProxy(ctx, l, args[1:])
	}
	return fmt.Errorf("no role %q", role)
}

func testSystem(t *testing.T) *bench.System {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := func(role string, args ...string) []string {
		return append([]string{"/usr/bin/env", "BENCH_TEST_ROLE=" + role, self}, args...)
	}
	proxy := func(name string) bench.Proxy {
		return bench.Proxy{Name: name, Command: func(at bench.Place) ([]string, error) {
			return command("proxy", append([]string{at.Listen}, at.Servers...)...), nil
		}}
	}
	return &bench.System{
		Subject: proxy("subject"), Baseline: proxy("baseline"), Dir: t.TempDir(),
		Backend: func(addresses []string, b *bench.Backend) []string {
			return command("backend", append([]string{min(b.Interval, 50*time.Millisecond).String()}, addresses...)...)
		},
		Rounds: 2, Requests: 200, Period: 50 * time.Millisecond, Streams: 20,
	}
}

// TestSystem runs the harness in small, with the plain reverse proxy in the
// place of the subject. It checks that figures come out, not what they are.
func TestSystem(t *testing.T) {
	s := testSystem(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	requests, err := s.RequestCost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(requests) != 2 || requests[0].Proxy != "subject" || len(requests[0].Rounds) != 2 || requests[0].Budget == "" {
		t.Errorf("figures of requests: %+v", requests)
	}
	chunks, err := s.ChunkCost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(chunks) != 2 || len(chunks[1].Rounds) != 5 { // more of them, as the difference is small
		t.Errorf("figures of chunks: %+v", chunks)
	}
	// A reverse proxy reads no metrics: that must not pass as cheap.
	scrape, err := s.ScrapeCost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(scrape) != 1 || !scrape[0].Over {
		t.Errorf("a program that reads no metrics passes: %+v", scrape)
	}
	// Streams of 10 chunks end before they are counted.
	memory, err := s.StreamMemory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(memory) != 1 || memory[0].Value < 1 || !memory[0].Over || !strings.Contains(memory[0].Note, "0 held") {
		t.Errorf("memory without streams: %+v", memory)
	}
}

func TestSystemSaysWhatDidNotStart(t *testing.T) {
	s := testSystem(t)
	s.Subject = bench.Proxy{Name: "broken", Command: func(bench.Place) ([]string, error) {
		return []string{"/bin/sh", "-c", "echo no config >&2; exit 3"}, nil
	}}
	_, err := s.RequestCost(context.Background())
	if err == nil || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), "no config") {
		t.Errorf("error %v", err)
	}
}

func TestCPUTime(t *testing.T) {
	for _, c := range []struct {
		stat string
		want time.Duration
		ok   bool
	}{
		{"42 (penstock) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 7 7 20 0", 2 * time.Second, true},
		{"42 (a ) b (c)) R 1 42 42 0 -1 4194560 9 0 0 0 1 2 7 7 20 0", 30 * time.Millisecond, true},
		{"42 (short) S 1 2 3", 0, false},
		{"42 (x) S 1 42 42 0 -1 4194560 9 0 0 0 a 2 7 7", 0, false},
		{"", 0, false},
	} {
		got, err := bench.CPUTime([]byte(c.stat))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v; want %v, ok %t", c.stat, got, err, c.want, c.ok)
		}
	}
}

func FuzzCPUTime(f *testing.F) {
	f.Add([]byte("42 (penstock) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 7 7 20 0"))
	f.Add([]byte(")))"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := bench.CPUTime(b); err == nil && d < 0 {
			t.Errorf("%v of CPU time", d)
		}
	})
}
