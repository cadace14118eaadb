// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

// answer is one block of a case.
func answer(t *testing.T, block string) (title string, d llm.Dialect, status int, h http.Header, body []byte) {
	t.Helper()
	title, rest, _ := strings.Cut(block, "\n")
	f := strings.Fields(title)
	status, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(strings.NewReader(rest))
	m, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil && err != io.EOF {
		t.Fatalf("%s: %v", title, err)
	}
	body, _ = io.ReadAll(r)
	return title, dialects[f[0]], status, http.Header(m), body
}

func TestClassify(t *testing.T) {
	golden.Run(t, "testdata/classify/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var out strings.Builder
		for _, block := range strings.Split(c.File(t, "answers"), "=== ")[1:] {
			title, d, status, h, body := answer(t, block)
			v := provider.Classify(d, status, h, body, nil, true)
			e := v.ClientError()
			fmt.Fprintf(&out, "%s: %s", title, v.Class)
			if v.Code != "" {
				fmt.Fprintf(&out, " [%s]", v.Code)
			}
			if v.Wait > 0 {
				fmt.Fprintf(&out, " wait %v", v.Wait)
			}
			if v.Class != provider.OK {
				fmt.Fprintf(&out, "\n  %q\n  client: %d %s", v.Message, e.Status, e.Code)
				if e.Header != nil {
					fmt.Fprintf(&out, ", Retry-After %s", e.Header.Get("Retry-After"))
				}
			}
			out.WriteByte('\n')
		}
		return map[string]string{"verdicts": out.String()}
	})
}

func TestClassifyErrors(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range []struct {
		err    error
		status int
		sent   bool
		want   provider.Class
	}{
		{dial, 0, false, provider.Connect},
		{dial, 0, true, provider.Connect},
		{fmt.Errorf("x: %w", &net.DNSError{Err: "no such host"}), 0, false, provider.Connect},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, 0, false, provider.Timeout},
		{&tls.CertificateVerificationError{Err: errors.New("x")}, 0, false, provider.Connect},
		{io.EOF, 0, true, provider.Reset},
		{io.ErrUnexpectedEOF, 0, false, provider.Reset},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, 0, true, provider.Reset},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, 200, true, provider.StreamBroken},
		{io.ErrUnexpectedEOF, 200, true, provider.StreamBroken},
		{provider.ErrTimeout, 0, true, provider.Timeout},
		{fmt.Errorf("first token: %w", provider.ErrTimeout), 200, true, provider.Timeout},
		{context.Canceled, 0, true, provider.Canceled},
		{fmt.Errorf("x: %w", context.Canceled), 200, true, provider.Canceled},
		{context.DeadlineExceeded, 0, true, provider.Deadline},
		{errors.New("odd"), 0, false, provider.Connect},
		{errors.New("odd"), 0, true, provider.Reset},
		{errors.New("http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY] after Request.Body was written"), 0, true, provider.Reset}, // B73
		{&provider.Failure{Verdict: provider.Verdict{Class: provider.Auth}, Err: errors.New("x")}, 0, false, provider.Auth},
	} {
		if got := provider.Classify(llm.DialectOpenAI, c.status, nil, nil, c.err, c.sent); got.Class != c.want || got.Message != "" {
			t.Errorf("%v (status %d, sent %v): %v, want %v", c.err, c.status, c.sent, got, c.want)
		}
	}
}

func TestClassifyEnd(t *testing.T) {
	for _, c := range []struct {
		output         int
		finish, failed string
		err            error
		want           provider.Class
	}{
		{5, "stop", "", nil, provider.OK},
		{0, "stop", "", nil, provider.OK},
		{0, "", "", nil, provider.OK},
		{0, "model_context_window_exceeded", "", nil, provider.Empty}, // z.ai without quota (B22)
		{0, "insufficient_system_resource", "", nil, provider.Empty},
		{3, "insufficient_system_resource", "", nil, provider.OK},
		{0, "", "overloaded_error", nil, provider.Overloaded},
		{0, "", llm.NoPlace, nil, provider.Unsupported},
		{0, "", "Rate limit reached. Please try again in 2s.", nil, provider.StreamBroken},
		{0, "", "", io.ErrUnexpectedEOF, provider.StreamBroken},
		{0, "", "", context.Canceled, provider.Canceled},
	} {
		if got := provider.ClassifyEnd(llm.DialectOpenAI, c.output, c.finish, c.failed, c.err); got.Class != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The table of the classes, as a page would show it.
func TestClassWays(t *testing.T) {
	golden.Run(t, "testdata/ways.txtar", func(t *testing.T, _ *golden.Case) map[string]string {
		var out strings.Builder
		for c := provider.OK; c <= provider.Unsupported; c++ {
			fmt.Fprintf(&out, "%-15s retries %d next %-5v counts %-5v cools %d fallback %s\n", c, c.Retries(), c.NextTarget(), c.Counts(), c.Cools(), c.Fallback())
			if c.RetrySame() != (c.Retries() > 0) {
				t.Errorf("%v: retries do not agree", c)
			}
			// No fault of a provider is told as one of the client's, and none of
			// the gateway's credentials as the client's.
			s := provider.Verdict{Class: c, Status: 401}.ClientError().Status
			if c != provider.BadRequest && (s == 401 || s == 403) {
				t.Errorf("%v is told as %d", c, s)
			}
		}
		return map[string]string{"ways": strings.TrimRight(out.String(), " ")}
	})
}

// The secret that a server sends back is not passed on.
func TestJudgeScrubs(t *testing.T) {
	p := build(t, "  - {name: p, credentials: [{secret: hunter2-hunter2}]}", provider.Options{})
	v := p.Judge(llm.DialectOpenAI, 400, nil, []byte(`{"error":{"message":"bad header Bearer hunter2-hunter2!","code":"x"}}`), nil, true)
	if v.Message != "bad header Bearer [secret]!" {
		t.Errorf("message %q", v.Message)
	}
}

func TestAccountIsNotTold(t *testing.T) {
	v := provider.Classify(llm.DialectOpenAI, 429, nil, []byte(`{"error":{"message":"Request too large for gpt-4 in organization org-AbC123 project proj_x1y2 on tokens"}}`), nil, true)
	if got := v.ClientError().Message; got != "Request too large for gpt-4 in organization org-… project proj-… on tokens" {
		t.Error(got)
	}
}

func FuzzClassify(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `[]`, `null`, `"x"`, `{"error":{"message":"m","code":1e99,"details":[null,{"retryDelay":"-5s"}]}}`, `[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}]`,
		"event: error\ndata: {\"type\":\"error\"}\n\n", "<html><script>x</script>y", `{"error":{"message":"cut \ud83d`, "data:", `{"message":{"detail":[{"msg":"x"}]}}`,
		`{"error":"try again in 99999999999999999999h"}`,
	} {
		f.Add(uint8(1), 429, "7", "0", "6m0s", []byte(s))
	}
	f.Fuzz(func(t *testing.T, d uint8, status int, after, left, reset string, body []byte) {
		h := http.Header{
			"Retry-After": {after}, "X-Ratelimit-Remaining-Requests": {left}, "X-Ratelimit-Reset-Requests": {reset},
			"Anthropic-Ratelimit-Tokens-Remaining": {left}, "Anthropic-Ratelimit-Tokens-Reset": {reset}, "Date": {after}, "X-Amzn-Errortype": {left},
		}
		v := provider.Classify(llm.Dialect(d), status, h, body, nil, true)
		if v.Class > provider.Unsupported || v.Wait < 0 || v.Wait > 10*time.Minute {
			t.Errorf("%+v", v)
		}
		if len(v.Message) > 2000 || len(v.Code) > 128 || !utf8.ValidString(v.Message) || strings.ContainsAny(v.Message, "\n\r\x00") {
			t.Errorf("message of %d bytes, code of %d: %q", len(v.Message), len(v.Code), v.Message)
		}
		e := v.ClientError()
		if !json.Valid(e.JSON("id")) || e.Status == 401 && v.Class != provider.BadRequest {
			t.Errorf("told as %d %s", e.Status, e.JSON("id"))
		}
		if again := provider.Classify(llm.Dialect(d), status, h, body, nil, true); again.Class != v.Class {
			t.Errorf("%v, then %v", v, again)
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	h := http.Header{"Content-Type": {"application/json"}, "Retry-After": {"7"}, "X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}}
	b.Run("ok", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			provider.Classify(llm.DialectOpenAI, 200, h, nil, nil, true)
		}
	})
	body := []byte(`{"error":{"message":"Rate limit reached for gpt-4 in organization org-x on requests per min (RPM): Limit 3, Used 3, Requested 1.","type":"requests","param":null,"code":"rate_limit_exceeded"}}`)
	b.Run("429", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			provider.Classify(llm.DialectOpenAI, 429, h, body, nil, true)
		}
	})
	b.Run("err", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			provider.Classify(llm.DialectOpenAI, 0, nil, nil, io.EOF, true)
		}
	})
}
