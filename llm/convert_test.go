// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// wholes are the operations whose answers hold no words, with a path of each.
var wholes = map[llm.Op]string{
	llm.OpEmbeddings: "/v1/embeddings", llm.OpEmbedContent: "/v1beta/models/m:embedContent", llm.OpEmbedContents: "/v1beta/models/m:batchEmbedContents",
	llm.OpCountTokens: "/v1/messages/count_tokens", llm.OpCountContents: "/v1beta/models/m:countTokens",
}

// FuzzConverted: a body that can be read gives JSON or a refusal; an answer gives JSON,
// the same however it is split, and never both an end and an error.
func FuzzConverted(f *testing.F) {
	for i := 1; i < 9; i++ {
		for _, body := range caseFiles(f, "testdata/translate/*to_*.txtar", fmt.Sprint("request", i)) {
			for _, in := range caseFiles(f, "testdata/translate/*embed*.txtar", fmt.Sprint("upstream", i)) {
				f.Add(body, in, uint16(len(in)/3))
			}
			f.Add(body, `{"totalTokens":3}`, uint16(4))
		}
	}
	f.Fuzz(func(t *testing.T, body, in string, at uint16) {
		for op := llm.OpChat; op <= llm.OpEmbedContents; op++ {
			path := wholes[op]
			for d := llm.DialectOpenAI; d <= llm.DialectPredict; d++ {
				req, err := llm.ReadAt(op, path, "", []byte(body), llm.Limits{})
				if path == "" || err != nil || !llm.Speaks(op, d) {
					continue
				}
				tr, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "up"})
				if err != nil {
					if err.Status != 400 || err.Message == "" {
						t.Fatalf("%q: %+v", body, err)
					}
					continue
				}
				if !json.Valid(tr.Body) {
					t.Fatalf("%v of %q for %v is no JSON: %q", op, body, d, tr.Body)
				}
				if op.Dialect() == d {
					continue
				}
				o := llm.AnswerOptions{RequestID: "r", Model: "as\"ked"}
				want := answerOf(tr, o, in)
				i := int(at) % (len(in) + 1)
				if diff := cmp.Diff(want, answerOf(tr, o, in[:i], in[i:])); diff != "" {
					t.Fatalf("%q split at %d (-whole +split):\n%s", in, i, diff)
				}
				if want.Finished && want.Failed != "" {
					t.Fatalf("%q is finished and has failed: %s", in, want.Failed)
				}
				checkOut(t, op, false, in, want.Out)
			}
		}
	})
}

// A whole answer is bounded, and tells of it once.
func TestConvertedIsBounded(t *testing.T) {
	req, err := llm.ReadAt(llm.OpCountTokens, "", "", []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`), llm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := llm.Translate(req, llm.Backend{Dialect: llm.DialectGemini, Model: "up"})
	if err != nil {
		t.Fatal(err)
	}
	r := tr.Answer(llm.AnswerOptions{MaxBody: 10})
	out := string(r.Feed([]byte(`{"totalTokens":3}`)))
	if r.Failed() == "" || r.Finished() || !strings.Contains(out, "over the limit") || len(r.Feed([]byte("x"))) > 0 || len(r.Close()) > 0 {
		t.Errorf("%q, failed %q", out, r.Failed())
	}
}

// Errors on Gemini's paths are in its form, whether or not the operation is known.
func TestErrorDialect(t *testing.T) {
	google := http.Header{"X-Goog-Api-Key": {"k"}}
	for _, c := range []struct {
		op   llm.Op
		path string
		h    http.Header
		want llm.Dialect
	}{
		{llm.OpUnknown, "/team/v1beta/models/m:countTokens", nil, llm.DialectGemini},
		{llm.OpOther, "/v1beta/models/m:predict", nil, llm.DialectGemini},
		{llm.OpOther, "/v1beta/openai/files", nil, llm.DialectOpenAI},
		{llm.OpUnknown, "/v1/messages", nil, llm.DialectAnthropic},
		{llm.OpModels, "/v1/models/m", nil, llm.DialectOpenAI},
		{llm.OpModels, "/v1/models/m", google, llm.DialectGemini},
		{llm.OpModels, "/v1/models/m", http.Header{"Anthropic-Version": {"x"}}, llm.DialectAnthropic},
		{llm.OpChat, "/v1/chat/completions", google, llm.DialectOpenAI},
	} {
		if got := llm.ErrorDialect(c.op, c.path, c.h); got != c.want {
			t.Errorf("%v at %s: %v, want %v", c.op, c.path, got, c.want)
		}
	}
}
