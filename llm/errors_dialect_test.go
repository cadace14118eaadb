// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// errorBodies are what servers send with an error.
var errorBodies = []string{
	``,
	`{"error":{"message":"no such model","type":"invalid_request_error","param":"model","code":"model_not_found"}}`,
	`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}`,
	`{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"17s"}]}}`,
	`[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]`,
	`{"message":"too long","__type":"ValidationException"}`,
	`{"object":"error","message":"old vLLM","type":"BadRequestError","param":null,"code":400}`,
	`{"error":{"message":"credits","code":402,"metadata":{"raw":"x"}}}`,
	`{"error":"just text"}`,
	`{"detail":"Not Found"}`,
	`{"detail":[{"loc":["body"],"msg":"field required"}]}`,
	`{"error":{"code":"content_filter","message":"filtered","param":"prompt","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}`,
	`<html><head><title>502 Bad Gateway</title></head></html>`,
	`upstream connect error or disconnect/reset before headers`,
	`{"error":{"message":"cut`,
	"\xff\xfe",
	`"a string"`,
	`{"type":"response.failed","response":{"error":{"code":"server_error","message":"inside"}}}`,
	`{"type":"error","code":"rate_limit_exceeded","message":"flat","param":null}`,
	`{}`,
}

func TestReadError(t *testing.T) {
	var b strings.Builder
	for _, body := range errorBodies {
		e := llm.ReadError(llm.DialectOpenAI, 0, []byte(body))
		b.WriteString(e.Type + " | " + e.Code + " | " + e.Param + " | " + e.Message + "\n")
	}
	want := `server_error |  |  | the server without a message
invalid_request_error | model_not_found | model | no such model
overloaded_error |  |  | Overloaded
RESOURCE_EXHAUSTED |  |  | slow down
INVALID_ARGUMENT |  |  | bad
ValidationException |  |  | too long
BadRequestError |  |  | old vLLM
insufficient_quota | 402 |  | credits
server_error |  |  | just text
server_error |  |  | Not Found
server_error |  |  | [{"loc":["body"],"msg":"field required"}]
server_error | content_filter | prompt | filtered
server_error |  |  | the server: 502 Bad Gateway
server_error |  |  | the server: upstream connect error or disconnect/reset before headers
server_error |  |  | the server: {"error":{"message":"cut
server_error |  |  | the server without a message
server_error |  |  | a string
server_error | server_error |  | inside
rate_limit_error | rate_limit_exceeded |  | flat
server_error |  |  | the server: {}
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e := llm.ReadError(llm.DialectOpenAI, 502, nil); e.Message != "the server answered 502 Bad Gateway without a message" || e.Type != "server_error" {
		t.Errorf("%+v", e)
	}
	if e := llm.ReadError(llm.DialectAnthropic, 529, []byte(`<html>x`)); e.Message != "the server answered 529: <html>x" {
		t.Errorf("%+v", e)
	}
}

// TestErrorsInEachDialect tells one error from a server to clients of each.
func TestErrorsInEachDialect(t *testing.T) {
	overloaded := llm.ReadError(llm.DialectAnthropic, 529, []byte(errorBodies[2]))
	missing := llm.ReadError(llm.DialectOpenAI, 404, []byte(errorBodies[1]))
	gateway := llm.Timeout("firstToken", 1e9)
	for _, c := range []struct {
		err  *llm.Error
		op   llm.Op
		want string
	}{
		{overloaded, llm.OpChat, `{"error":{"message":"Overloaded","type":"server_error","param":null,"code":"overloaded"},"request_id":"r"}`},
		{overloaded, llm.OpResponses, `{"error":{"message":"Overloaded","type":"server_error","param":null,"code":"overloaded"},"request_id":"r"}`},
		{overloaded, llm.OpMessages, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}`},
		{overloaded, llm.OpGenerate, `{"error":{"code":529,"message":"Overloaded","status":"UNAVAILABLE"}}`},
		{missing, llm.OpChat, `{"error":{"message":"no such model","type":"invalid_request_error","param":"model","code":"model_not_found"},"request_id":"r"}`},
		{missing, llm.OpCountTokens, `{"type":"error","error":{"type":"not_found_error","message":"no such model"},"request_id":"r"}`},
		{missing, llm.OpGenerate, `{"error":{"code":404,"message":"no such model","status":"NOT_FOUND"}}`},
		{gateway, llm.OpMessages, `{"type":"error","error":{"type":"timeout_error","message":"the server took longer than 1s (firstToken)"},"request_id":"r"}`},
		{gateway, llm.OpGenerate, `{"error":{"code":504,"message":"the server took longer than 1s (firstToken)","status":"DEADLINE_EXCEEDED"}}`},
	} {
		if got := string(c.err.Body(c.op, "r")); got != c.want+"\n" {
			t.Errorf("%v: %s", c.op, got)
		}
	}
	if got := string(gateway.StreamError(llm.OpMessages, "r")); !strings.HasPrefix(got, "event: error\ndata: {\"type\":\"error\"") {
		t.Errorf("%s", got)
	}
}

func TestSetMembers(t *testing.T) {
	defaults := []llm.Member{{Name: "temperature", Value: []byte("0.2")}, {Name: "top_p", Value: []byte("1")}}
	overrides := []llm.Member{{Name: "user", Value: []byte(`"gw"`)}, {Name: "top_p", Value: []byte("0.9")}}
	for in, want := range map[string]string{
		`{}`: `{"temperature":0.2,"user":"gw","top_p":0.9}`,
		` {"model" : "m", "temperature":0, "user":"me"} `: ` {"model" : "m", "temperature":0, "user":"gw","top_p":0.9} `,
		`{"temperature":null,"top_p":0.5,"x":[1, 2]}`:     `{"temperature":0.2,"top_p":0.9,"x":[1, 2],"user":"gw"}`,
		`[]`:   `[]`,
		`{"a"`: `{"a"`,
	} {
		if got := string(llm.SetMembers([]byte(in), defaults, overrides)); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}
