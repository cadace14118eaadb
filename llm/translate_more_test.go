// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// translated is the body for a server, which must come about.
func translated(t testing.TB, op llm.Op, body string, b llm.Backend) *llm.Translation {
	t.Helper()
	req, err := llm.ReadAt(op, fronts[op], "", []byte(body), llm.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	tr, err := llm.Translate(req, b)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return tr
}

// TestThinkingComesBack: what a model thought, its signature and its calls go to
// a server of the other dialect and back unchanged, in requests and in answers.
// (B59)
func TestThinkingComesBack(t *testing.T) {
	turn := `{"role":"assistant","content":[{"type":"thinking","thinking":"hm \u00fc","signature":"Eq/+B=="},{"type":"redacted_thinking","data":"zz"},{"type":"text","text":"calling"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"x":"a\n"}}]}`
	request := `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"hi"},` + turn + `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"42"}]}]}`
	there := translated(t, llm.OpMessages, request, llm.Backend{Dialect: llm.DialectOpenAI, Model: "m", Quirks: llm.Quirks{Reasoning: true}})
	back := translated(t, llm.OpChat, string(there.Body), llm.Backend{Dialect: llm.DialectAnthropic, Model: "m"})
	var want, got struct{ Messages []any }
	if json.Unmarshal([]byte(request), &want) != nil || json.Unmarshal(back.Body, &got) != nil {
		t.Fatalf("%s", back.Body)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Anthropic, OpenAI, Anthropic (-want +got):\n%s", diff)
	}

	// A client of chat completions sends back the message that it got.
	for _, stream := range []bool{false, true} {
		tr := translation(t, llm.OpChat, llm.DialectAnthropic, stream)
		answer := `{"id":"msg_2","role":"assistant","content":` + turn[len(`{"role":"assistant","content":`):len(turn)-1] + `,"stop_reason":"tool_use"}`
		out := answerOf(tr, llm.AnswerOptions{Stream: false, RequestID: "r"}, answer).Out
		message := "{}"
		if stream {
			message = foldChunks(t, out)
		} else {
			var whole struct {
				Choices []struct{ Message json.RawMessage }
			}
			if err := json.Unmarshal([]byte(out), &whole); err != nil {
				t.Fatal(err)
			}
			message = string(whole.Choices[0].Message)
		}
		next := translated(t, llm.OpChat, `{"model":"m","messages":[{"role":"user","content":"hi"},`+message+`,{"role":"tool","tool_call_id":"toolu_1","content":"42"}]}`, llm.Backend{Dialect: llm.DialectAnthropic, Model: "m"})
		got.Messages = nil
		if err := json.Unmarshal(next.Body, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stream %v: the next turn (-want +got):\n%s", stream, diff)
		}
	}
}

// foldChunks makes the message of a stream, as a client does.
func foldChunks(t testing.TB, stream string) string {
	t.Helper()
	type function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		Index    int      `json:"index"`
		ID       string   `json:"id,omitempty"`
		Type     string   `json:"type,omitempty"`
		Function function `json:"function"`
	}
	type delta struct {
		Role           string            `json:"role"`
		Content        string            `json:"content"`
		Reasoning      string            `json:"reasoning_content,omitempty"`
		ThinkingBlocks []json.RawMessage `json:"thinking_blocks,omitempty"`
		ToolCalls      []call            `json:"tool_calls,omitempty"`
	}
	var all delta
	for line := range strings.SplitSeq(stream, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta delta `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, c := range chunk.Choices {
			d := c.Delta
			if d.Role != "" {
				all.Role = d.Role
			}
			all.Content += d.Content
			all.Reasoning += d.Reasoning
			all.ThinkingBlocks = append(all.ThinkingBlocks, d.ThinkingBlocks...)
			for _, part := range d.ToolCalls {
				if part.Index == len(all.ToolCalls) {
					all.ToolCalls = append(all.ToolCalls, part)
				} else {
					all.ToolCalls[part.Index].Function.Arguments += part.Function.Arguments
				}
			}
		}
	}
	message, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(message)
}

// TestRepeatedArguments: some servers send all arguments again at the end.
func TestRepeatedArguments(t *testing.T) {
	piece := func(args string) string {
		quoted, _ := json.Marshal(args)
		return `data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":` + string(quoted) + `}}]}}]}` + "\n\n"
	}
	in := piece(`{"x":`) + piece(`1}`) + piece(`{"x":1}`) + "data: [DONE]\n\n"
	tr := translated(t, llm.OpMessages, bodyFor(llm.OpMessages, true), llm.Backend{Dialect: llm.DialectOpenAI, Quirks: llm.Quirks{RepeatedArgs: true}})
	got := answerOf(tr, llm.AnswerOptions{Stream: true}, in)
	if n := strings.Count(got.Out, "input_json_delta"); n != 2 || !got.Finished {
		t.Errorf("%d deltas:\n%s", n, got.Out)
	}
}

// TestLargeBodies: a thousand tools, calls and results, and an image of 20 MB, of
// each front for each other server: nothing is lost.
func TestLargeBodies(t *testing.T) {
	const n = 1000
	list := func(form string) string {
		var out []string
		for i := range n {
			out = append(out, strings.ReplaceAll(form, "#", fmt.Sprint(i)))
		}
		return strings.Join(out, ",")
	}
	image := strings.Repeat("iVBO", 5<<20)
	bodies := map[llm.Op]string{
		llm.OpChat: `{"model":"m","tools":[` + list(`{"type":"function","function":{"name":"f#","description":"tool-#"}}`) + `],"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]},{"role":"assistant","tool_calls":[` +
			list(`{"id":"c#","type":"function","function":{"name":"f#","arguments":"{\"x\":\"call-#\"}"}}`) + `]},` + list(`{"role":"tool","tool_call_id":"c#","content":"result-#"}`) + `]}`,
		llm.OpResponses: `{"model":"m","tools":[` + list(`{"type":"function","name":"f#","description":"tool-#"}`) + `],"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,` + image + `"}]},` +
			list(`{"type":"function_call","call_id":"c#","name":"f#","arguments":"{\"x\":\"call-#\"}"}`) + `,` + list(`{"type":"function_call_output","call_id":"c#","output":"result-#"}`) + `]}`,
		llm.OpMessages: `{"model":"m","max_tokens":9,"tools":[` + list(`{"name":"f#","description":"tool-#","input_schema":{"type":"object"}}`) + `],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]},{"role":"assistant","content":[` +
			list(`{"type":"tool_use","id":"c#","name":"f#","input":{"x":"call-#"}}`) + `]},{"role":"user","content":[` + list(`{"type":"tool_result","tool_use_id":"c#","content":"result-#"}`) + `]}]}`,
		llm.OpGenerate: `{"tools":[{"functionDeclarations":[` + list(`{"name":"f#","description":"tool-#"}`) + `]}],"contents":[{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"` + image + `"}}]},{"role":"model","parts":[` +
			list(`{"functionCall":{"name":"f#","args":{"x":"call-#"}}}`) + `]},{"role":"user","parts":[` + list(`{"functionResponse":{"name":"f#","response":{"output":"result-#"}}}`) + `]}]}`,
	}
	for op, body := range bodies {
		for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
			if d == op.Dialect() || !llm.Speaks(op, d) {
				continue
			}
			tr := translated(t, op, body, llm.Backend{Dialect: d, Model: "m"})
			out := string(tr.Body)
			for _, mark := range []string{"tool-", "call-", "result-"} {
				if got := strings.Count(out, mark); got != n {
					t.Errorf("%v for %v: %d of %s", op, d, got, mark)
				}
			}
			if !json.Valid(tr.Body) || strings.Count(out, image) != 1 || len(tr.Dropped) > 0 {
				t.Errorf("%v for %v: what came out is not what went in: %v", op, d, tr.Dropped)
			}
		}
	}
}

// TestOwnDialect: a server of the client's dialect gets the client's bytes but
// for the model and the wish for usage, and the client gets the server's but for
// the model and the usage that it did not ask for.
func TestOwnDialect(t *testing.T) {
	body := `{ "model":"m", "stream":true, "x":[1, 2], "messages":[{"role":"user","content":"hi"}] }`
	tr := translated(t, llm.OpChat, body, llm.Backend{Dialect: llm.DialectOpenAI, Model: "up"})
	if want := `{ "model":"up", "stream":true, "x":[1, 2], "messages":[{"role":"user","content":"hi"}] ,"stream_options":{"include_usage":true}}`; string(tr.Body) != want {
		t.Errorf("%s", tr.Body)
	}
	usage := "data: {\"id\":\"c\",\"model\":\"served\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n"
	in := chunkOf("a") + usage + "data: [DONE]\n\n"
	for _, asked := range []bool{false, true} {
		got := answerOf(tr, llm.AnswerOptions{Stream: true, Model: "m", IncludeUsage: asked}, in)
		want := strings.ReplaceAll(in, `"served"`, `"m"`)
		if !asked {
			want = strings.ReplaceAll(chunkOf("a"), `"served"`, `"m"`) + "data: [DONE]\n\n"
		}
		if got.Out != want || got.Usage.Input != 3 || !got.Finished || got.Served != "served" {
			t.Errorf("asked %v: %+v", asked, got)
		}
	}

	body = `{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}],"future":true}`
	tr = translated(t, llm.OpMessages, body, llm.Backend{Dialect: llm.DialectAnthropic, Model: "up"})
	if want := strings.Replace(body, `"m"`, `"up"`, 1); string(tr.Body) != want {
		t.Errorf("%s", tr.Body)
	}
	tr = translated(t, llm.OpEmbeddings, `{"model":"m","input":"a"}`, llm.Backend{Dialect: llm.DialectOpenAI, Model: "up"})
	if string(tr.Body) != `{"model":"up","input":"a"}` {
		t.Errorf("%s", tr.Body)
	}
}

// TestManyParts: a body of parts that are next to nothing is refused before it
// takes a hundred times its size.
func TestManyParts(t *testing.T) {
	for op, body := range map[llm.Op]string{
		llm.OpChat:     `{"model":"m","messages":[{"role":"user","content":["a"` + strings.Repeat(`,""`, 1<<20) + `]}]}`,
		llm.OpMessages: `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}` + strings.Repeat(`,{"type":"text","text":""}`, 1<<17) + `]}]}`,
	} {
		req, err := llm.Read(op, "", []byte(body), llm.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
			if d == op.Dialect() || !llm.Speaks(op, d) {
				continue
			}
			if _, err := llm.Translate(req, llm.Backend{Dialect: d}); err == nil || !strings.Contains(err.Message, "more than") {
				t.Errorf("%v for %v: %v", op, d, err)
			}
		}
	}
}

// TestUsageConventions: the same tokens told in each convention are the same.
// (B03, B23, B24)
func TestUsageConventions(t *testing.T) {
	want := llm.Usage{Input: 30, Output: 12, CacheRead: 60, CacheWrite: 10, Reasoning: 8, Source: llm.Reported}
	for op, usage := range map[llm.Op]string{
		llm.OpChat:      `"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":10},"completion_tokens_details":{"reasoning_tokens":8}}`,
		llm.OpResponses: `"usage":{"input_tokens":100,"output_tokens":20,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":10},"output_tokens_details":{"reasoning_tokens":8}}`,
		llm.OpMessages:  `"usage":{"input_tokens":30,"cache_read_input_tokens":60,"cache_creation_input_tokens":10,"output_tokens":20,"output_tokens_details":{"thinking_tokens":8}}`,
	} {
		got := tap(llm.TapOptions{Op: op}, `{"model":"m",`+usage+`}`).Usage
		if got != want {
			t.Errorf("%v: %+v", op, got)
		}
	}
	want.CacheWrite, want.Input = 0, 40
	if got := tap(llm.TapOptions{Op: llm.OpGenerate}, `{"usageMetadata":{"promptTokenCount":90,"toolUsePromptTokenCount":10,"cachedContentTokenCount":60,"candidatesTokenCount":12,"thoughtsTokenCount":8}}`).Usage; got != want {
		t.Errorf("generate: %+v", got)
	}
	// xAI counts what was thought beside the output.
	xai := `{"usage":{"prompt_tokens":100,"completion_tokens":12,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":60},"completion_tokens_details":{"reasoning_tokens":8}}}`
	if got := tap(llm.TapOptions{Op: llm.OpChat}, xai).Usage; got != want {
		t.Errorf("xAI: %+v", got)
	}
}

// TestLimitsOfAnswers: what has no bound at the server has one here.
func TestLimitsOfAnswers(t *testing.T) {
	tr := translation(t, llm.OpChat, llm.DialectAnthropic, false)
	r := tr.Answer(llm.AnswerOptions{MaxBody: 1000})
	out := string(r.Feed([]byte(`{"content":"` + strings.Repeat("x", 2000))))
	if r.Failed() == "" || r.Finished() || !strings.Contains(out, "over the limit") || len(r.Feed([]byte("x"))) > 0 || len(r.Close()) > 0 {
		t.Errorf("%q, failed %q", out, r.Failed())
	}
}

func TestSpeaks(t *testing.T) {
	for _, c := range []struct {
		op   llm.Op
		d    llm.Dialect
		want bool
	}{
		{llm.OpChat, llm.DialectOpenAI, true}, {llm.OpChat, llm.DialectAnthropic, true}, {llm.OpMessages, llm.DialectOpenAI, true},
		{llm.OpEmbeddings, llm.DialectOpenAI, true}, {llm.OpEmbeddings, llm.DialectAnthropic, false},
		{llm.OpCountTokens, llm.DialectAnthropic, true}, {llm.OpCountTokens, llm.DialectOpenAI, false},
		{llm.OpCompletions, llm.DialectAnthropic, false}, {llm.OpCountContents, llm.DialectBedrock, true},
		{llm.OpEmbeddings, llm.DialectGemini, true}, {llm.OpEmbedContents, llm.DialectPredict, true}, {llm.OpEmbedContent, llm.DialectBedrock, false},
	} {
		if got := llm.Speaks(c.op, c.d); got != c.want {
			t.Errorf("%v for %v: %v", c.op, c.d, got)
		}
	}
	req, _ := llm.Read(llm.OpCompletions, "", []byte(`{"model":"m","prompt":"x","stream":true}`), llm.Limits{})
	if _, err := llm.Translate(req, llm.Backend{Dialect: llm.DialectAnthropic}); err == nil || err.Code != "unsupported_operation" {
		t.Errorf("legacy completions: %v", err)
	}
}

// A body for a server with quirks that have nothing to say about it keeps its
// bytes, white space too.
func TestQuirksKeepBytes(t *testing.T) {
	quirks := llm.Quirks{MaxTokens: true, SystemRole: true, NoNames: true, NoLogprobs: true, ToolIDs: true}
	for in, want := range map[string]string{
		`{ "messages" : [ {"role":"user","content":"x"} ] ,` + "\n" + ` "max_tokens":7,"model":"m"}`: "",
		`{ "model":"m", "messages":[{"role":"developer","content":"x"}]}`:                            `{"model":"m","messages":[{"role":"system","content":"x"}]}`,
		`{"model":"m", "max_completion_tokens":7,"messages":[{"role":"user","content":"x"}]}`:        `{"model":"m","max_tokens":7,"messages":[{"role":"user","content":"x"}]}`,
	} {
		if want == "" {
			want = in
		}
		r, fail := llm.Read(llm.OpChat, "application/json", []byte(in), llm.Limits{})
		if fail != nil {
			t.Fatal(fail)
		}
		if got := string(r.Body(llm.Edits{Model: "m", Quirks: quirks})); got != want {
			t.Errorf("%s became %s", in, got)
		}
	}
}
