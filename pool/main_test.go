// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// serveEnv makes the test binary a server of metrics pages: BenchmarkScrape
// starts it as another process, so that only the scraper's CPU time counts.
const serveEnv = "PENSTOCK_TEST_SERVE_PAGES"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		servePages(100)
	}
	code := m.Run()
	if code == 0 {
		code = leaked()
	}
	os.Exit(code)
}

// leaked fails the run if a goroutine of this package is left.
func leaked() int {
	var text string
	for range 100 {
		buf := make([]byte, 1<<20)
		text = string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(text, "penstock/pool.(*") {
			return 0
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "goroutines are left:\n%s", text)
	return 1
}

// servePages listens n times, prints the addresses and serves until its
// standard input ends.
func servePages(n int) {
	text := page(64 << 10)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			w.Write(text)
		}))
	}
	os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

func members(addrs ...string) []config.Member {
	list := make([]config.Member, len(addrs))
	for i, a := range addrs {
		list[i].Address = a
	}
	return list
}

// newPool is a pool that does not scrape, with members at addrs.
func newPool(t testing.TB, cfg config.Pool, o pool.Options, addrs ...string) *pool.Pool {
	t.Helper()
	cfg.Name = "p"
	cfg.Members.Static = members(addrs...)
	p, err := pool.New(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// eventually waits for ok on the real clock; what it waits for comes from the
// network.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}
