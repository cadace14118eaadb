// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/llm"
)

// BenchmarkClientCPU asks a picker in another process, for requests with their
// answers: decisions per second with both ends on this machine, and the CPU time
// that each end spends on one.
func BenchmarkClientCPU(b *testing.B) {
	for _, size := range benchSizes {
		for _, mode := range []config.ResponseMode{config.ResponseOff, config.ResponseHeaders} {
			b.Run(fmt.Sprintf("%s/response=%s", size.name, mode), func(b *testing.B) {
				address, cpu := pickerProcess(b)
				benchmarkClient(b, address, cpu, size.n, mode)
			})
		}
	}
}

func benchmarkClient(b *testing.B, address string, cpu func() int64, n int, mode config.ResponseMode) {
	p := newPool(b, 8)
	c, err := extproc.NewClient(p, remotePicker(b, fmt.Sprintf("address: %q, response: {mode: %s}", address, mode)), extproc.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	c.Start()
	defer c.Close()
	body := prompt(n)
	read, fail := llm.Read(llm.OpChat, "application/json", body, llm.Limits{Depth: 128})
	if fail != nil {
		b.Fatal(fail)
	}
	header := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {"OpenAI/Python 1.99.0"},
		"X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Proto": {"https"}, "X-Stainless-Lang": {"python"}, "X-Stainless-Os": {"Linux"},
	}
	one := func() {
		res, err := c.Pick(b.Context(), &epp.Request{
			ID: "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", Method: "POST", Host: "llm.example.com", Path: "/v1/chat/completions", Op: llm.OpChat,
			Header: header, Model: read.Model, Asked: read.Model, Prompt: &read.Prompt, Body: func() []byte { return body },
		})
		if err != nil || len(res.Endpoints) == 0 {
			b.Errorf("%+v %v", res, err)
			return
		}
		answer := http.Header{"Content-Type": {"application/json"}, "Date": {"Mon, 02 Nov 2026 10:00:00 GMT"}, "Server": {"uvicorn"}}
		res.Observer.Attempt(p.Lookup(res.Endpoints[0]))
		res.Observer.Head(200, answer)
		res.Observer.Chunk([]byte("{}"), 3)
		res.Observer.End(nil)
		res.Done(epp.Outcome{Usage: llm.Usage{Input: 12, Output: 3, Source: llm.Reported}})
	}
	for range 200 {
		if one(); b.Failed() {
			return
		}
	}
	theirs, ours := cpu(), ownCPU(b)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			one()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(ownCPU(b)-ours)/float64(b.N)/1000, "gateway-µs/op")
	b.ReportMetric(float64(cpu()-theirs)/float64(b.N)/1000, "picker-µs/op")
}
