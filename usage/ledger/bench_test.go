// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/usage"
)

// processCPU is what this process has used so far.
func processCPU() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// benchRecords are those of some tenants, keys and models.
func benchRecords(n int) []*usage.Record {
	tenants, models := []string{"acme", "search", "ads"}, []string{"large", "small"}
	list := make([]*usage.Record, n)
	for i := range list {
		list[i] = record(i, tenants[i%3], models[i%2])
		list[i].Cost, list[i].Prices = usage.Cost{Pico: 123_456_789, Known: true}, "2026-10"
		list[i].Total, list[i].TTFT = 1.5, .2
	}
	return list
}

// benchmarkStore measures rows per second and CPU per row of the whole way, from
// Append to the commit.
func benchmarkStore(b *testing.B, cfg config.Ledger) {
	cfg.Buffer = 1 << 20
	cfg.Interval = config.Duration(200 * time.Millisecond)
	l := open(b, cfg)
	list := benchRecords(50_000)
	if err := l.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	cpu := processCPU()
	rows := 0
	for b.Loop() {
		for i, r := range list {
			l.Append(r)
			if i%5000 == 4999 { // no faster than it is stored
				if err := l.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		}
		rows += len(list)
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64((processCPU()-cpu).Nanoseconds())/float64(rows), "cpu-ns/row")
}

func BenchmarkSQLite(b *testing.B) { benchmarkStore(b, settings(b)) }

func BenchmarkPostgres(b *testing.B) {
	cfg := settings(b)
	cfg.Spool, cfg.Path, cfg.DSN = cfg.SpoolDir(), "", config.Secret(server.Database(b))
	benchmarkStore(b, cfg)
}

// BenchmarkAppend is what a request waits for.
func BenchmarkAppend(b *testing.B) {
	cfg := settings(b)
	cfg.Buffer = 1 << 20
	l := open(b, cfg)
	r := benchRecords(1)[0]
	b.ReportAllocs()
	for b.Loop() {
		l.Append(r)
	}
}
