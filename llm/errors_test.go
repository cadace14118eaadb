// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

func TestErrorBodies(t *testing.T) {
	err := llm.InvalidRequest("messages[3].content", "say \"something\"\n")
	for _, c := range []struct{ name, got, want string }{
		{
			"JSON", string(err.JSON("req_1")),
			`{"error":{"message":"say \"something\"\n","type":"invalid_request_error","param":"messages[3].content","code":"invalid_value"},"request_id":"req_1"}` + "\n",
		},
		{
			"JSON without what is empty", string((&llm.Error{Type: "server_error", Message: "m"}).JSON("")),
			`{"error":{"message":"m","type":"server_error","param":null,"code":null}}` + "\n",
		},
		{
			"chat stream", string(llm.UpstreamFailed("gone").StreamError(llm.OpChat, "req_1")),
			`data: {"error":{"message":"gone","type":"server_error","param":null,"code":"upstream_failed"},"request_id":"req_1"}` + "\n\n",
		},
		{
			"responses stream", string(llm.UpstreamFailed("gone").StreamError(llm.OpResponses, "")),
			"event: error\n" + `data: {"type":"error","code":"upstream_failed","message":"gone","param":null,"error":{"message":"gone","type":"server_error","param":null,"code":"upstream_failed"}}` + "\n\n",
		},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestErrorConstructors(t *testing.T) {
	for _, c := range []struct {
		err    *llm.Error
		status int
		text   string
	}{
		{llm.ModelNotFound("gpt-9"), 404, `"gpt-9"`},
		{llm.NotFound("/v1/sleep"), 404, `"/v1/sleep"`},
		{llm.MethodNotAllowed("GET", "POST"), 405, "POST"},
		{llm.TooLarge(33554432), 413, "33554432"},
		{llm.UnsupportedMediaType("m"), 415, "m"},
		{llm.UpgradeRefused("websocket"), 400, "websocket"},
		{llm.Saturated("all full", 1500*time.Millisecond), 429, "all full"},
		{llm.Unavailable("no member is ready", time.Second), 503, "no member is ready"},
		{llm.UpstreamFailed("m"), 502, "m"},
		{llm.Timeout("firstToken", 30*time.Second), 504, "30s"},
		{llm.Internal("m"), 500, "m"},
	} {
		if c.err.Status != c.status || !strings.Contains(c.err.Error(), c.text) || c.err.Type == "" {
			t.Errorf("%+v", c.err)
		}
		if !json.Valid(c.err.JSON("id")) {
			t.Errorf("%s", c.err.JSON("id"))
		}
	}
	if got := llm.Saturated("", 1500*time.Millisecond).Header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q", got)
	}
	if h := llm.Unavailable("", 0).Header; h != nil {
		t.Errorf("headers %v", h)
	}
}

// TestStreamErrorIsSeen: a tap behind another gateway reads our own error.
func TestStreamErrorIsSeen(t *testing.T) {
	for _, op := range []llm.Op{llm.OpChat, llm.OpCompletions, llm.OpResponses, llm.OpMessages, llm.OpGenerate} {
		got := tap(llm.TapOptions{Op: op, Stream: true}, string(llm.Timeout("idle", time.Second).StreamError(op, "r")))
		if got.Failed != "the server took longer than 1s (idle)" || got.Finished {
			t.Errorf("%v: %+v", op, got)
		}
	}
}

func TestOpOf(t *testing.T) {
	for path, want := range map[string]llm.Op{
		"/v1/chat/completions":    llm.OpChat,
		"/v1/completions":         llm.OpCompletions,
		"/v1/embeddings":          llm.OpEmbeddings,
		"/v1/responses":           llm.OpResponses,
		"/v1/models":              llm.OpModels,
		"/v1/models/org/name:tag": llm.OpModels,
		"/v1/modelsx":             llm.OpOther,
		"/v1/messages":            llm.OpMessages,
		"/v1/messages/batches":    llm.OpOther,
		"/v2/rerank":              llm.OpRerank,

		"/v1/messages/count_tokens":                       llm.OpCountTokens,
		"/v1beta/models/g:generateContent":                llm.OpGenerate,
		"/v1/models/org/g:streamGenerateContent":          llm.OpGenerate,
		"/v1beta/models/g:countTokens":                    llm.OpCountContents,
		"/v1/models/org/g:embedContent":                   llm.OpEmbedContent,
		"/v1beta/models/g:batchEmbedContents":             llm.OpEmbedContents,
		"/v1beta/models/g:predict":                        llm.OpOther,
		"/v1beta/models/:generateContent":                 llm.OpOther,
		"/v1beta/openai/chat/completions/generateContent": llm.OpOther,

		"/v1/responses/resp_1": llm.OpOther,
		"/rerank":              llm.OpOther,
	} {
		if got := llm.OpOf(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func TestOpUnder(t *testing.T) {
	for path, want := range map[string]llm.Op{
		"/team/v1/messages":                           llm.OpMessages,
		"/team/v1beta/models/g:streamGenerateContent": llm.OpGenerate,
		"/a/v2/rerank":                                llm.OpRerank,
		"/v1/projects/p/locations/r/publishers/google/models/g:predict": llm.OpOther,
		"/v1/x/../chat/completions":                                     llm.OpChat,
	} {
		if got := llm.OpUnder(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if model, stream, ok := llm.PathModel("/v1beta/models/tuned/g-1:streamGenerateContent"); model != "tuned/g-1" || !stream || !ok {
		t.Errorf("%q, %v, %v", model, stream, ok)
	}
	for op := llm.OpChat; op <= llm.OpEmbedContents; op++ {
		if op.String() == "unknown" || op.Dialect().String() == "unknown" {
			t.Errorf("operation %d has no name", op)
		}
	}
	for _, path := range llm.Paths() {
		if llm.OpOf(path) == llm.OpOther {
			t.Errorf("%s is not known", path)
		}
	}
}
