// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package pool_test

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// BenchmarkScrape scrapes 100 members with pages of 64 KB at 100 ms for three
// seconds and reports the share of a core that the whole process took.
func BenchmarkScrape(b *testing.B) {
	for _, protocol := range []config.Protocol{config.HTTP} {
		b.Run(string(protocol), func(b *testing.B) {
			p, done := scrapeOthers(b)
			defer done()
			time.Sleep(500 * time.Millisecond) // connections are made
			before, began, n := cpu(b), time.Now(), 0
			for b.Loop() {
				time.Sleep(3 * time.Second)
				n++
			}
			wall := time.Since(began)
			used := cpu(b) - before
			b.ReportMetric(used.Seconds()/wall.Seconds(), "cores")
			b.ReportMetric(p.ScrapeInterval().Seconds()*1e3, "ms/interval")
			b.ReportMetric(p.Status().Scraping.Cost*1e6, "µs/estimated")
			b.ReportMetric(float64(used.Microseconds())/(100*wall.Seconds()/p.ScrapeInterval().Seconds()), "µs/scrape")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// scrapeOthers starts 100 servers in another process and a pool of them.
func scrapeOthers(b *testing.B) (p *pool.Pool, done func()) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var addrs []string
	for lines := bufio.NewScanner(out); len(addrs) < 100 && lines.Scan(); {
		addrs = append(addrs, lines.Text())
	}
	p, err = pool.New(config.Pool{Name: "p", Members: config.Members{Static: members(addrs...)}},
		pool.Options{Metrics: pool.NewInstruments(prometheus.NewRegistry())})
	if err != nil {
		b.Fatal(err)
	}
	p.Start(b.Context())
	return p, func() {
		p.Close()
		in.Close()
		cmd.Wait()
	}
}
