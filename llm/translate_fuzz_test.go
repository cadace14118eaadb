// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// fronts are the operations that are translated, with a path of each.
var fronts = map[llm.Op]string{
	llm.OpChat: "/v1/chat/completions", llm.OpMessages: "/v1/messages", llm.OpResponses: "/v1/responses",
	llm.OpGenerate: "/v1beta/models/m:streamGenerateContent",
}

// frontOf is the operation with which a server of dialect d is asked.
func frontOf(d llm.Dialect) llm.Op {
	for op := range fronts {
		if op.Dialect() == d {
			return op
		}
	}
	return llm.OpUnknown
}

// eachPair calls f for all that can be translated, the client's own dialect too.
func eachPair(f func(op llm.Op, d llm.Dialect)) {
	for op := range fronts {
		for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
			if llm.Speaks(op, d) {
				f(op, d)
			}
		}
	}
}

// FuzzTranslate: a body that can be read gives a body that can be read, or a
// refusal that says why; that body gives the same again when it goes there and
// back.
func FuzzTranslate(f *testing.F) {
	for i := 1; i < 25; i++ {
		for _, in := range caseFiles(f, "testdata/translate/*.txtar", fmt.Sprint("request", i)) {
			f.Add(strings.TrimSuffix(in, "\n"))
		}
	}
	f.Fuzz(func(t *testing.T, body string) {
		eachPair(func(op llm.Op, d llm.Dialect) {
			in := []byte(body)
			req, err := llm.ReadAt(op, fronts[op], "", in, llm.Limits{})
			if err != nil {
				return
			}
			for _, q := range []llm.Quirks{{}, everyQuirk} {
				tr, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "up", Quirks: q})
				if string(in) != body {
					t.Fatalf("%q was changed", body)
				}
				if err != nil {
					if err.Status != 400 || err.Message == "" {
						t.Fatalf("%q: %+v", body, err)
					}
					continue
				}
				if !json.Valid(tr.Body) {
					t.Fatalf("%v of %q for %v is no JSON: %q", op, body, d, tr.Body)
				}
				back := frontOf(d)
				if back == llm.OpUnknown || op.Dialect() == d {
					continue
				}
				again, err := llm.ReadAt(back, fronts[back], "", tr.Body, llm.Limits{})
				if err != nil {
					t.Fatalf("%q became %q: %v", body, tr.Body, err)
				}
				if _, err = llm.Translate(again, llm.Backend{Dialect: op.Dialect(), Model: "up"}); err != nil && strings.Contains(err.Message, "is not known") {
					t.Fatalf("%q became %q: %v", body, tr.Body, err)
				}
			}
		})
	})
}

var everyQuirk = llm.Quirks{
	MaxTokens: true, NoStreamOptions: true, SystemRole: true, NoN: true, NoLogprobs: true, NoNames: true, NoStore: true,
	RequiredAny: true, RandomSeed: true, TopK: true, KnownOnly: true, ToolIDs: true, Reasoning: true, CacheControl: true,
}

// bodyFor is a request of op, for which an answer is read.
func bodyFor(op llm.Op, stream bool) string {
	switch op {
	case llm.OpGenerate:
		return `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`
	case llm.OpResponses:
		return fmt.Sprintf(`{"model":"m","stream":%v,"input":"hi"}`, stream)
	}
	return fmt.Sprintf(`{"model":"m","stream":%v,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, stream)
}

// translation is one for answers of a server of dialect d.
func translation(t testing.TB, op llm.Op, d llm.Dialect, stream bool) *llm.Translation {
	t.Helper()
	path := fronts[op]
	if op == llm.OpGenerate && !stream {
		path = strings.Replace(path, "streamGenerate", "generate", 1)
	}
	req, err := llm.ReadAt(op, path, "", []byte(bodyFor(op, stream)), llm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "up"})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// FuzzTranslateAnswer: however an answer is split, the client gets the same, and
// all of it is JSON.
func FuzzTranslateAnswer(f *testing.F) {
	for i := 1; i < 12; i++ {
		for _, in := range caseFiles(f, "testdata/translate/*.txtar", fmt.Sprint("upstream", i)) {
			f.Add(in, uint16(len(in)/3), uint16(len(in)/2))
		}
	}
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		eachPair(func(op llm.Op, d llm.Dialect) {
			if op.Dialect() == d {
				return
			}
			for _, stream := range []bool{true, false} {
				tr := translation(t, op, d, stream)
				for _, server := range []bool{true, false} {
					o := llm.AnswerOptions{Stream: server, IncludeUsage: true, RequestID: "r", Model: "as\"ked"}
					want := answerOf(tr, o, in)
					i := int(a) % (len(in) + 1)
					j := i + int(b)%(len(in)-i+1)
					if diff := cmp.Diff(want, answerOf(tr, o, in[:i], in[i:j], in[j:])); diff != "" {
						t.Fatalf("%q split at %d, %d (-whole +split):\n%s", in, i, j, diff)
					}
					if want.Finished && want.Failed != "" {
						t.Fatalf("%q is finished and has failed: %s", in, want.Failed)
					}
					checkOut(t, op, stream, in, want.Out)
				}
			}
		})
	})
}

// checkOut holds what a client gets against what a client can read.
func checkOut(t *testing.T, op llm.Op, stream bool, in, out string) {
	t.Helper()
	if !stream {
		if out != "" && !json.Valid([]byte(out)) {
			t.Fatalf("%q gave %q", in, out)
		}
		return
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(out, "\n\n"), "\n\n") {
		for line := range strings.SplitSeq(event, "\n") {
			data, ok := strings.CutPrefix(line, "data: ")
			switch {
			case ok && data != "[DONE]" && !json.Valid([]byte(data)):
				t.Fatalf("%v: %q gave the event %q", op, in, event)
			case !ok && line != "" && line[0] != ':' && !strings.HasPrefix(line, "event: "):
				t.Fatalf("%v: %q gave the line %q", op, in, line)
			}
		}
	}
}

func FuzzReadError(f *testing.F) {
	for _, body := range errorBodies {
		f.Add(uint16(500), body)
	}
	f.Fuzz(func(t *testing.T, status uint16, body string) {
		for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
			e := llm.ReadError(d, int(status), []byte(body))
			if e.Message == "" || len(e.Message) > 1200 || !utf8.ValidString(e.Message) || e.Type == "" {
				t.Fatalf("%q: %+v", body, e)
			}
			for op := llm.OpChat; op <= llm.OpTranscription; op++ {
				if b := e.Body(op, "r"); !json.Valid(b) {
					t.Fatalf("%q: %s", body, b)
				}
				_, data, _ := strings.Cut(string(e.StreamError(op, "r")), "data: ")
				if !json.Valid([]byte(data)) {
					t.Fatalf("%q: %s", body, data)
				}
			}
		}
	})
}

func FuzzSetMembers(f *testing.F) {
	f.Add(`{"a":1,"b":null, "temperature" : 0.5}`)
	f.Add(` { } `)
	f.Add(`[1]`)
	f.Add(`{"a":{"b":2},"b":3,"c":"x"}`)
	f.Fuzz(func(t *testing.T, body string) {
		defaults := []llm.Member{{Name: "a", Value: []byte(`[1]`)}, {Name: "b", Value: []byte(`"d"`)}}
		overrides := []llm.Member{{Name: "b", Value: []byte(`2`)}, {Name: "c", Value: []byte(`{"x":[]}`)}}
		out := llm.SetMembers([]byte(body), defaults, overrides)
		var before, after map[string]json.RawMessage
		if json.Unmarshal([]byte(body), &before) != nil || before == nil {
			return
		}
		if bytes.Equal(out, []byte(body)) && !json.Valid(out) {
			return
		}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if !strings.Contains(string(out), `"c":`) && !strings.Contains(string(out), `:{"x":[]}`) {
			return // not changed: deeper than the bound, or no JSON to the strict reader
		}
		want := before
		if v, ok := want["a"]; !ok || string(v) == "null" {
			want["a"] = defaults[0].Value
		}
		want["b"], want["c"] = overrides[0].Value, overrides[1].Value
		if diff := cmp.Diff(want, after); diff != "" && string(out) != body {
			t.Fatalf("%q became %q:\n%s", body, out, diff)
		}
	})
}
