// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// TestFail: a stream that breaks off ends with an error that fits what the client
// has got.
func TestFail(t *testing.T) {
	events := textEvents()
	broken := llm.UpstreamFailed("the server broke off")
	eachPair(func(op llm.Op, d llm.Dialect) {
		if op.Dialect() == d {
			return
		}
		for _, begun := range []bool{true, false} {
			r := translation(t, op, d, true).Answer(llm.AnswerOptions{Stream: true, RequestID: "req", Created: 5})
			out := ""
			if begun {
				out = string(r.Feed(events[d]))
			}
			out += string(r.Close())
			if r.Finished() || r.Failed() != "" {
				t.Errorf("%v from %v: finished %v, failed %q", op, d, r.Finished(), r.Failed())
			}
			out += string(llm.Fail(r, op, broken, "req"))
			if again := llm.Fail(r, op, broken, "req"); len(again) > 0 {
				t.Errorf("%v from %v: a second error: %s", op, d, again)
			}
			checkOut(t, op, true, string(events[d]), out)
			last := out[strings.LastIndex(out, "data: ")+len("data: "):]
			v := decode(t, last)
			message := v.at("error.message").str()
			if op == llm.OpResponses {
				message = v.at("response.error.message").str()
				if v.at("type").str() != "response.failed" || begun && v.at("response.output").str() == "[]" || v.at("response.error.code").str() != "server_error" {
					t.Errorf("%v from %v: %s", op, d, last)
				}
				h := heard{}
				h.stream(t, op, out)
			}
			if message != "the server broke off" || r.Failed() != message {
				t.Errorf("%v from %v: %s", op, d, last)
			}
		}
	})
}

// TestFailOfATap: what a tap has passed on may end inside an event.
func TestFailOfATap(t *testing.T) {
	tap := llm.NewTap(llm.TapOptions{Op: llm.OpChat, Stream: true})
	tap.Feed([]byte("data: {"))
	err := llm.UpstreamFailed("x")
	if got, want := string(llm.Fail(tap, llm.OpChat, err, "r")), "\n\n"+string(err.StreamError(llm.OpChat, "r")); got != want {
		t.Errorf("%q", got)
	}
}

// TestArrays: a client of Gemini's that did not ask for events gets an array,
// from any server, whatever happens.
func TestArrays(t *testing.T) {
	servers := answersOfServers()
	for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
		in := servers[d].stream
		events := answerOf(translation(t, llm.OpGenerate, d, true), llm.AnswerOptions{Stream: true, RequestID: "r"}, in)
		o := llm.AnswerOptions{Stream: true, RequestID: "r", JSONArray: true}
		tr := translation(t, llm.OpGenerate, d, true)
		got := answerOf(tr, o, in)
		everyAnswerSplit(t, tr, o, in, got)
		var want, list []any
		for line := range strings.SplitSeq(events.Out, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				want = append(want, decode(t, data).v)
			}
		}
		if err := json.Unmarshal([]byte(got.Out), &list); err != nil {
			t.Fatalf("%v: %s: %v", d, got.Out, err)
		}
		if diff := cmp.Diff(want, list); diff != "" || len(list) == 0 || !got.Finished {
			t.Errorf("%v (-events +array):\n%s", d, diff)
		}
		for _, cut := range []int{0, len(in) / 2} {
			r := tr.Answer(o)
			out := string(r.Feed([]byte(in[:cut])))
			out += string(r.Close())
			out += string(llm.Fail(r, llm.OpGenerate, llm.UpstreamFailed("it broke off"), "r"))
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				t.Fatalf("%v: %s: %v", d, out, err)
			}
			if last := (value{list[len(list)-1]}); !last.at("error.message").is() || r.MidEvent() {
				t.Errorf("%v: %s", d, out)
			}
		}
	}
}

func TestStreamTypes(t *testing.T) {
	for _, c := range []struct {
		d    llm.Dialect
		kind string
		is   bool
	}{
		{llm.DialectOpenAI, "text/event-stream", true},
		{llm.DialectGemini, "Text/Event-Stream; charset=utf-8", true},
		{llm.DialectGemini, "application/json", false},
		{llm.DialectBedrock, "application/vnd.amazon.eventstream", true},
		{llm.DialectBedrock, "text/event-stream", false},
		{llm.DialectBedrock, "application/json", false},
		{llm.DialectResponses, "", false},
	} {
		if got := llm.IsStream(c.d, c.kind); got != c.is {
			t.Errorf("%v, %q: %v", c.d, c.kind, got)
		}
		if !llm.IsStream(c.d, llm.StreamType(c.d)) {
			t.Errorf("%v: %q", c.d, llm.StreamType(c.d))
		}
	}
}

// TestCutCalls: a call that the bound cut off has no JSON; dialects in which it
// must be left it out, others pass on what there is.
func TestCutCalls(t *testing.T) {
	in := `{"id":"resp_1","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"message","content":[{"type":"output_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{\"x\":"}]}`
	for _, stream := range []bool{true, false} {
		got := answerOf(translation(t, llm.OpGenerate, llm.DialectResponses, stream), llm.AnswerOptions{RequestID: "r"}, in)
		if !got.Finished || strings.Contains(got.Out, "functionCall") || !strings.Contains(got.Out, "MAX_TOKENS") {
			t.Errorf("stream %v: %v", stream, got)
		}
		got = answerOf(translation(t, llm.OpChat, llm.DialectResponses, stream), llm.AnswerOptions{RequestID: "r"}, in)
		if !got.Finished || !strings.Contains(got.Out, `{\"x\":`) {
			t.Errorf("stream %v: %v", stream, got)
		}
	}
	bad := strings.NewReplacer("incomplete", "completed", `"max_output_tokens"`, "null").Replace(in)
	for _, stream := range []bool{true, false} {
		got := answerOf(translation(t, llm.OpGenerate, llm.DialectResponses, stream), llm.AnswerOptions{RequestID: "r"}, bad)
		if got.Finished || got.Failed == "" || !strings.Contains(got.Out, `"error"`) {
			t.Errorf("stream %v: %v", stream, got)
		}
	}
}

// TestSchemas: Gemini's servers take schemas of two forms, and its clients send
// both.
func TestSchemas(t *testing.T) {
	for _, c := range []struct{ schema, member string }{
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"]}},"required":["a"]}`, "parameters"},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer","format":"int64"}},"b":{"anyOf":[{"type":"string"},{"type":"number"}]}}}`, "parameters"},
		{`{"type":"object"}`, ""},
		{`{"type":"object","properties":{},"additionalProperties":false}`, ""},
		{`{"type":"object","properties":{"a":{"type":["string","null"]}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":{"const":1}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":{"enum":[1]}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":{"type":"string","format":"uri"}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":{"type":"object","additionalProperties":{"type":"string"}}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":{"type":"array","items":[{"type":"string"}]}}}`, "parametersJsonSchema"},
		{`{"type":"object","properties":{"a":true}}`, "parametersJsonSchema"},
		{`{"$ref":"#/x"}`, "parametersJsonSchema"},
	} {
		body := `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":` + c.schema + `}}]}`
		tr := translated(t, llm.OpChat, body, llm.Backend{Dialect: llm.DialectGemini, Model: "gemini-2.5-pro"})
		f := decode(t, string(tr.Body)).at("tools").list()[0].at("functionDeclarations").list()[0]
		for _, member := range []string{"parameters", "parametersJsonSchema"} {
			want := ""
			if member == c.member {
				want = compact(c.schema)
			}
			if got := f.at(member).str(); got != want {
				t.Errorf("%s: %s is %s", c.schema, member, got)
			}
		}
	}
	for in, want := range map[string]string{
		`{"type":"OBJECT","properties":{"type":{"type":"STRING","nullable":true},"n":{"type":"INTEGER","minimum":1,"example":3}},"propertyOrdering":["n"]}`: `{"type":"object","properties":{"type":{"type":["string","null"]},"n":{"type":"integer","minimum":1}}}`,
		`{"anyOf":[{"type":"STRING"},{"type":"ARRAY","minItems":"2","maxItems":3,"items":{"type":"BOOLEAN"}}],"title":"5"}`:                                 `{"anyOf":[{"type":"string"},{"type":"array","minItems":2,"maxItems":3,"items":{"type":"boolean"}}],"title":"5"}`,
		`{"type":"object","additionalProperties":false,"$defs":{"a":{"type":"STRING"}},"properties":5}`:                                                     `{"type":"object","additionalProperties":false,"$defs":{"a":{"type":"string"}},"properties":5}`,
	} {
		body := `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":` + in + `}]}]}`
		tr := translated(t, llm.OpGenerate, body, llm.Backend{Dialect: llm.DialectOpenAI, Model: "m"})
		got := decode(t, string(tr.Body)).at("tools").list()[0].at("function.parameters").str()
		if got != compact(want) {
			t.Errorf("%s became %s", in, got)
		}
	}
}

// TestForeignThinking: what another server thought does not go to one of the
// client's own dialect, which would refuse it. All else keeps its bytes.
// (B59)
func TestForeignThinking(t *testing.T) {
	for _, c := range []struct {
		op       llm.Op
		in, want string
	}{
		{
			llm.OpMessages,
			`{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":[ {"type":"thinking","thinking":"a","signature":"responses:x"} , {"type":"redacted_thinking","data":"responses:y"}, {"type":"text","text":"responses:"} ,{"signature":"responses:z"}]},{"content":"x","role":"user"},{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"Eq"},{"type":"thinking","signature":"responses:x"},{"type":"thinking","signature":"responses:x"}]},{"role":"assistant","content":[{"type":"thinking","signature":"responses:x"}]}]}`,
			`{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":[ {"type":"text","text":"responses:"}]},{"content":"x","role":"user"},{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"Eq"}]},{"role":"assistant","content":[]}]}`,
		},
		{
			llm.OpResponses,
			`{"model":"m","input":[{"type":"reasoning","summary":[],"encrypted_content":"anthropic:x"},{"type":"reasoning","summary":[],"encrypted_content":"gAAAA"},{"role":"user","content":"\"anthropic:"}]}`,
			`{"model":"m","input":[{"type":"reasoning","summary":[],"encrypted_content":"gAAAA"},{"role":"user","content":"\"anthropic:"}]}`,
		},
		{
			llm.OpGenerate,
			`{"contents":[{"role":"model","parts":[{"text":"x"},{"thought":true,"thoughtSignature":"YW50aHJvcGljOkVxUUI="},{"functionCall":{"name":"f"},"thoughtSignature":"SIG"}]}]}`,
			`{"contents":[{"role":"model","parts":[{"text":"x"},{"functionCall":{"name":"f"},"thoughtSignature":"SIG"}]}]}`,
		},
		{llm.OpMessages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\"responses:"}]}`, ""},
		{llm.OpChat, `{"model":"m","messages":[{"role":"user","content":"x","thinking_blocks":[{"signature":"responses:x"}]}]}`, ""},
	} {
		tr := translated(t, c.op, c.in, llm.Backend{Dialect: c.op.Dialect(), Model: "m"})
		want := c.want
		if want == "" {
			want = c.in
		}
		if string(tr.Body) != want || (c.want != "") != (len(tr.Dropped) == 1) {
			t.Errorf("%v: %v\n%s", c.op, tr.Dropped, tr.Body)
		}
	}
}

// TestLines: what comes from the client's body or from arguments has no line
// ends in an event.
func TestLines(t *testing.T) {
	body := "{\"model\":\"m\",\"stream\":true,\"input\":\"x\",\"tools\":[\n{\"type\":\"function\",\r\n\t\"name\":\"f\"}\n]}"
	tr := translated(t, llm.OpResponses, body, llm.Backend{Dialect: llm.DialectOpenAI, Model: "m"})
	in := chunkOf("a")
	checkOut(t, llm.OpResponses, true, in, answerOf(tr, llm.AnswerOptions{Stream: true}, in).Out)
	in = `{"output":[{"type":"function_call","call_id":"c","name":"f","arguments":"{\n\"x\":\r1}"}],"status":"completed"}`
	got := answerOf(translation(t, llm.OpGenerate, llm.DialectResponses, true), llm.AnswerOptions{}, in)
	if checkOut(t, llm.OpGenerate, true, in, got.Out); !got.Finished {
		t.Error(got)
	}
}

// TestFinishReasons: why an answer ended, in the words of chat completions.
func TestFinishReasons(t *testing.T) {
	bedrock := `{"output":{"message":{"content":[{"text":"a"},{"citationsContent":{"content":[{"text":"b"},{"x":1},2],"citations":[]}},{"x":{}}]}},"stopReason":"WORD"}`
	gemini := `{"candidates":[{"content":{"parts":[{"text":"ab"},{"inlineData":{"data":""}},1]},"finishReason":"WORD"},1]}`
	responses := `{"status":"incomplete","incomplete_details":{"reason":"WORD"},"output":[{"type":"message","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}]}`
	for _, c := range []struct {
		d          llm.Dialect
		in         string
		word, want string
	}{
		{llm.DialectBedrock, bedrock, "end_turn", "stop"}, {llm.DialectBedrock, bedrock, "stop_sequence", "stop"},
		{llm.DialectBedrock, bedrock, "max_tokens", "length"}, {llm.DialectBedrock, bedrock, "model_context_window_exceeded", "length"},
		{llm.DialectBedrock, bedrock, "tool_use", "tool_calls"}, {llm.DialectBedrock, bedrock, "guardrail_intervened", "content_filter"},
		{llm.DialectBedrock, bedrock, "content_filtered", "content_filter"}, {llm.DialectBedrock, bedrock, "refusal", "content_filter"},
		{llm.DialectBedrock, bedrock, "other", "stop"},
		{llm.DialectGemini, gemini, "STOP", "stop"}, {llm.DialectGemini, gemini, "MAX_TOKENS", "length"}, {llm.DialectGemini, gemini, "SAFETY", "content_filter"},
		{llm.DialectGemini, gemini, "RECITATION", "content_filter"}, {llm.DialectGemini, gemini, "SPII", "content_filter"}, {llm.DialectGemini, gemini, "MALFORMED_FUNCTION_CALL", "stop"},
		{llm.DialectResponses, responses, "max_output_tokens", "length"}, {llm.DialectResponses, responses, "content_filter", "content_filter"},
	} {
		in := strings.Replace(c.in, "WORD", c.word, 1)
		got := answerOf(translation(t, llm.OpChat, c.d, false), llm.AnswerOptions{RequestID: "r"}, in)
		v := decode(t, got.Out).at("choices").list()[0]
		if v.at("finish_reason").str() != c.want || v.at("message.content").str() != "ab" || got.Finish != c.word || !got.Finished {
			t.Errorf("%v, %s: %v", c.d, c.word, got)
		}
	}
}

// TestOddEvents: what a server sends that it should not ends the answer with an
// error, or is passed over.
func TestOddEvents(t *testing.T) {
	for _, c := range []struct {
		d          llm.Dialect
		in, failed string
		finished   bool
	}{
		{llm.DialectResponses, "data: x\n\n", "the server sent an event that is no JSON object", false},
		{llm.DialectResponses, `data: {"type":"response.output_text.delta","output_index":99999,"delta":"x"}` + "\n\n", "the server sent too many items", false},
		{llm.DialectResponses, `data: {"type":"response.completed","response":{"status":"completed","created_at":"x","id":1,"output":[1,{"type":"message","content":[1,{"x":2}]},{"type":"function_call","call_id":"c"}]}}` + "\n\n", "", true},
		{llm.DialectResponses, `data: {"type":"response.failed","response":{"status":"failed","error":null}}` + "\n\n", "the server failed to answer", false},
		{llm.DialectResponses, `data: {"type":"keepalive"}` + "\n\ndata: [DONE]\n\n", "", false},
		{llm.DialectResponses, `{"detail":"x","output":1}`, "the server's answer is no response", false},
		{llm.DialectGemini, "data: x\n\n", "the server sent an event that is no JSON object", false},
		{llm.DialectGemini, "data: [DONE]\n\n", "", false},
		{llm.DialectGemini, `data: [{"candidates":[{"finishReason":"STOP"}]},1]` + "\n\n", "", true},
		{llm.DialectGemini, `data: {"error":null,"promptFeedback":1,"candidates":[{"index":999}],"usageMetadata":1}` + "\n\n", "", false},
		{llm.DialectGemini, `data: {"error":{"message":"m"}}` + "\n\n", "m", false},
	} {
		got := answerOf(translation(t, llm.OpChat, c.d, true), llm.AnswerOptions{Stream: true, RequestID: "r"}, c.in)
		if got.Failed != c.failed || got.Finished != c.finished {
			t.Errorf("%v, %s: %v", c.d, c.in, got)
		}
		checkOut(t, llm.OpChat, true, c.in, got.Out)
	}
}
