// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

// signature is that of AWS's Signature Version 4, written from its description.
// path is the escaped one that is sent; services other than S3 escape it again.
func signature(method, path, query string, headers map[string]string, body, secret, date, region, service string) string {
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	canonical := method + "\n" + strings.ReplaceAll(path, "%", "%25") + "\n" + query + "\n"
	for _, name := range names {
		canonical += name + ":" + headers[name] + "\n"
	}
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	canonical += "\n" + strings.Join(names, ";") + "\n" + sum(body)
	text := "AWS4-HMAC-SHA256\n" + date + "\n" + date[:8] + "/" + region + "/" + service + "/aws4_request\n" + sum(canonical)
	key := []byte("AWS4" + secret)
	for _, part := range []string{date[:8], region, service, "aws4_request", text} {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(part))
		key = m.Sum(nil)
	}
	return hex.EncodeToString(key)
}

const awsSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

// The first vector of AWS's own suite (get-vanilla).
func TestReferenceSignature(t *testing.T) {
	got := signature("GET", "/", "", map[string]string{"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z"}, "", awsSecret, "20150830T123600Z", "us-east-1", "service")
	if got != "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" {
		t.Errorf("got %s", got)
	}
}

func TestBedrockIsSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 8, 30, 12, 36, 0, 0, time.UTC)))
		for _, token := range []string{"", ", sessionToken: session-token"} {
			p := build(t, "  - {name: p, dialect: bedrock, region: eu-west-1, headers: {X-Extra: v}, credentials: [{accessKeyID: AKIDEXAMPLE, secret: "+awsSecret+token+"}]}", provider.Options{})
			c, _ := p.Pick("m", nil, 0)
			for _, call := range []*provider.Call{
				{Op: llm.OpChat, Dialect: llm.DialectBedrock, Model: "anthropic.claude-sonnet-4-5-20250929-v1:0", Body: []byte(`{"messages":[]}`), RequestID: "r"},
				{Op: llm.OpChat, Dialect: llm.DialectBedrock, Model: "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.x y", Body: []byte(`{"messages":[{}]}`), Stream: true,
					Header: http.Header{"Traceparent": {"00-1-2-01"}, "Authorization": {"Bearer client"}, "User-Agent": {"curl"}, "X-Amz-Date": {"20000101T000000Z"}}},
			} {
				r, err := p.Request(context.Background(), c, call)
				if err != nil {
					t.Fatal(err)
				}
				auth := r.Header.Get("Authorization")
				_, rest, _ := strings.Cut(auth, "SignedHeaders=")
				list, got, _ := strings.Cut(rest, ", Signature=")
				headers := map[string]string{}
				for name := range strings.SplitSeq(list, ";") {
					switch name {
					case "host":
						headers[name] = r.Host
					case "content-length":
						headers[name] = fmt.Sprint(r.ContentLength)
					default:
						headers[name] = r.Header.Get(name)
					}
				}
				body, _ := io.ReadAll(r.Body)
				want := signature("POST", r.URL.EscapedPath(), "", headers, string(body), awsSecret, "20260830T123600Z", "eu-west-1", "bedrock")
				if got != want || !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260830/eu-west-1/bedrock/aws4_request, ") {
					t.Errorf("signature %s, want %s\n%s", got, want, auth)
				}
				if r.Header.Get("X-Amz-Date") != "20260830T123600Z" || r.Header.Get("X-Amz-Security-Token") != strings.TrimPrefix(token, ", sessionToken: ") {
					t.Errorf("headers %v", r.Header)
				}
				for _, name := range []string{"host", "x-amz-date"} {
					if !slices.Contains(strings.Split(list, ";"), name) {
						t.Errorf("%s is not signed: %s", name, list)
					}
				}
			}
		}
	})
}

func benchmarkRequest(b *testing.B, list string, d llm.Dialect) {
	p := build(b, list, provider.Options{Version: "1"})
	c, _ := p.Pick("m", nil, 0)
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("hello ", 500) + `"}]}`)
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"openai-python/1"}, "Authorization": {"Bearer x"}, "Traceparent": {"00-1-2-01"}, "X-Stainless-Os": {"linux"}}
	call := &provider.Call{Op: llm.OpChat, Dialect: d, Model: "anthropic.claude-sonnet-4-5-20250929-v1:0", Body: body, Header: h, RequestID: "0123456789abcdef", Stream: true}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Request(context.Background(), c, call); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	b.Run("openai", func(b *testing.B) {
		benchmarkRequest(b, "  - {name: p, credentials: [{secret: k}]}", llm.DialectOpenAI)
	})
	b.Run("bedrock", func(b *testing.B) {
		benchmarkRequest(b, "  - {name: p, dialect: bedrock, region: eu-west-1, credentials: [{secret: k, accessKeyID: AKIA}]}", llm.DialectBedrock)
	})
}
