// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/prometheus/client_golang/prometheus"
)

// BenchmarkPick is one decision with a prompt of 2,000 tokens (31 blocks), its
// explanation, metrics and settling included. A quarter of the prompts share a
// prefix that many members hold.
func BenchmarkPick(b *testing.B) {
	for _, name := range []string{"default", "llm-d-blend", "round-robin"} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p := newPool(b, n)
				for i, m := range p.Snapshot().Members {
					m.SetMetrics(page(time.Now(), float64(i%7), float64(i%13), float64(i%10)/10))
				}
				s := epp.New(p, builtin(b, name), epp.Options{Metrics: epp.NewInstruments(prometheus.NewRegistry())})
				var requests []*epp.Request
				for k := range 64 {
					seed := uint64(k)
					if k%4 == 0 {
						seed = 0
					}
					requests = append(requests, request(b, text(seed, 6000)+text(uint64(k)+1000, 2000)))
				}
				var held []*epp.Result
				for k := range 8 * n { // a busy pool
					held = append(held, pick(b, s, requests[k%64]))
				}
				for k := range 1100 { // the ring is full: its storage is reused
					pick(b, s, requests[k%64]).Done(epp.Outcome{})
				}
				b.ReportAllocs()
				b.ResetTimer()
				start := processor()
				for k := range b.N {
					res := pick(b, s, requests[k%64])
					res.Observer.Head(200, nil)
					held[k%len(held)].Done(epp.Outcome{})
					held[k%len(held)] = res
				}
				b.ReportMetric(float64(processor()-start)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkPickLong is a prompt of 131,072 tokens, the most that is hashed.
func BenchmarkPickLong(b *testing.B) {
	p := newPool(b, 100)
	s := epp.New(p, builtin(b, "default"), epp.Options{})
	r := request(b, text(1, 2048*256))
	b.ReportAllocs()
	for b.Loop() {
		res := pick(b, s, r)
		res.Observer.Head(200, nil)
		res.Done(epp.Outcome{})
	}
}

// BenchmarkReadAndPick reads a body of 400 KB, hashes it and picks.
func BenchmarkReadAndPick(b *testing.B) {
	s := epp.New(newPool(b, 10), builtin(b, "default"), epp.Options{})
	body, err := json.Marshal(map[string]any{
		"model": "m", "messages": []any{map[string]string{"role": "user", "content": text(1, 400_000)}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	start := processor()
	for b.Loop() {
		r, problem := llm.Read(llm.OpChat, "application/json", body, llm.Limits{})
		if problem != nil {
			b.Fatal(problem)
		}
		res := pick(b, s, &epp.Request{Op: llm.OpChat, Model: r.Model, Prompt: &r.Prompt})
		res.Observer.Head(200, nil)
		res.Done(epp.Outcome{})
	}
	b.ReportMetric(float64(processor()-start)/float64(b.N), "cpu-ns/op")
}

// BenchmarkPickParallel is contention: every goroutine picks.
func BenchmarkPickParallel(b *testing.B) {
	p := newPool(b, 100)
	s := epp.New(p, builtin(b, "default"), epp.Options{})
	r := request(b, text(1, 8000))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res := pick(b, s, r)
			res.Observer.Head(200, nil)
			res.Done(epp.Outcome{})
		}
	})
}

// processor is the time that the process has had of a processor: on a machine
// with other work it says more than the wall clock.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
