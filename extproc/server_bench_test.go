// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/penstock/penstock/extproc"
)

// exchangeOf is one request of n bytes with its answer, as a gateway shows it.
func exchangeOf(n int) (out []*extprocv3.ProcessingRequest) {
	body := prompt(n)
	out = append(out, headersOf(false, ":method=POST", ":scheme=http", ":authority=llm.example.com", ":path=/v1/chat/completions",
		"content-type=application/json", "accept=application/json", "user-agent=OpenAI/Python 1.99.0", "accept-encoding=gzip, deflate",
		"x-request-id=1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", "x-forwarded-for=192.0.2.7", "x-forwarded-proto=https",
		"x-stainless-lang=python", "x-stainless-os=Linux", "x-stainless-runtime=CPython", "content-length="+strconv.Itoa(len(body))))
	for len(body) > 0 {
		k := min(len(body), 32<<10)
		out = append(out, bodyOf(body[:k], k == len(body)))
		body = body[k:]
	}
	answer := headersOf(false, ":status=200", "content-type=application/json", "date=Mon, 02 Nov 2026 10:00:00 GMT", "server=uvicorn", "content-length=200")
	return append(out,
		&extprocv3.ProcessingRequest{
			Request:         &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: answer.GetRequestHeaders()},
			MetadataContext: servedBy("10.0.0.1:8000"),
		},
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{EndOfStream: true,
			Body: []byte(`{"id":"c","object":"chat.completion","model":"plain","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}`)}}},
	)
}

var benchSizes = []struct {
	name string
	n    int
}{{"2KB", 2 << 10}, {"400KB", 400 << 10}}

// BenchmarkServer is the server without gRPC: reading, picking, answering.
func BenchmarkServer(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(size.name, func(b *testing.B) {
			p := newPool(b, 8)
			server, _ := extproc.NewTestServer(slog.New(slog.DiscardHandler), testConfig(), extproc.Backend{Pool: p, Picker: scheduler(b, p)}, 10)
			messages := exchangeOf(size.n)
			b.ReportAllocs()
			b.SetBytes(int64(size.n))
			for b.Loop() {
				if err := server.Process(&script{ctx: b.Context(), messages: messages}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkServerCPU is the CPU time of a process that serves over gRPC, per
// request: what this process, the gateway, spends is not in cpu-µs/op.
func BenchmarkServerCPU(b *testing.B) {
	for _, size := range benchSizes {
		for _, answer := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/answer=%v", size.name, answer), func(b *testing.B) { benchmarkCPU(b, size.n, answer) })
		}
	}
}

func benchmarkCPU(b *testing.B, n int, answer bool) {
	address, cpu := pickerProcess(b)
	conn := dial(b, address)
	messages := exchangeOf(n)
	if !answer {
		messages = messages[:len(messages)-2]
	}
	one := func() {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		stream := open(b, ctx, conn)
		for _, m := range messages {
			if err := stream.Send(m); err != nil {
				b.Fatal(err)
			}
		}
		stream.CloseSend()
		for {
			if _, err := stream.Recv(); err == io.EOF {
				return
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
	for range 200 {
		one()
	}
	before := cpu()
	b.ReportAllocs()
	b.SetParallelism(4)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			one()
		}
	})
	b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "cpu-µs/op")
}

// pickerProcess starts a picker of eight members in another process; cpu is the
// time that it has used, in ns.
func pickerProcess(b *testing.B) (address string, cpu func() int64) {
	child := exec.Command(os.Args[0], "-test.run=^TestServeForBenchmark$")
	child.Env = append(os.Environ(), serveForBenchmark+"=1")
	child.Stderr = os.Stderr
	in, _ := child.StdinPipe()
	out, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		child.Wait()
	})
	lines := bufio.NewScanner(out)
	line := func() string {
		if !lines.Scan() {
			b.Fatal("the server has ended")
		}
		return lines.Text()
	}
	return line(), func() int64 {
		io.WriteString(in, "\n")
		ns, err := strconv.ParseInt(line(), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return ns
	}
}

const serveForBenchmark = "PENSTOCK_TEST_SERVE_PICKS"

// TestServeForBenchmark is the other process of BenchmarkServerCPU: it prints
// its address and, for each line that it reads, the CPU time that it has used.
func TestServeForBenchmark(t *testing.T) {
	if os.Getenv(serveForBenchmark) == "" {
		t.Skip("only as a process of BenchmarkServerCPU")
	}
	p := newPool(t, 8)
	cfg := listening()
	cfg.Limits.Body = 32 << 20
	_, at := listen(t, cfg, map[string]extproc.Backend{"llama": {Pool: p, Picker: scheduler(t, p)}})
	fmt.Println(at[0].Address)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(ownCPU(t))
	}
}

// ownCPU is the CPU time that this process has used, in ns.
func ownCPU(t testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
