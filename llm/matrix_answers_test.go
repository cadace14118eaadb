// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// answerOfServer is the same answer of a server of each dialect: something
// thought, text, two calls.
type answerOfServer struct {
	whole, stream string
	reasoning     int    // tokens, where they are told
	sign          string // where thinking is signed
}

func answersOfServers() map[llm.Dialect]answerOfServer {
	events := func(list ...string) string { return "data: " + strings.Join(list, "\n\ndata: ") + "\n\n" }
	const chatUsage = `"usage":{"prompt_tokens":30,"completion_tokens":12,"total_tokens":42,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":4}}`
	const responsesUsage = `"usage":{"input_tokens":30,"output_tokens":12,"total_tokens":42,"input_tokens_details":{"cached_tokens":16},"output_tokens_details":{"reasoning_tokens":4}}`
	const reasoning = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"S/+=="}`
	const callF = `{"type":"function_call","id":"fc_1","call_id":"call_a","name":"f","arguments":"{\"x\": \"a\\nb\"}"}`
	const callG = `{"type":"function_call","id":"fc_2","call_id":"call_b","name":"g","arguments":"{}"}`
	const message = `{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Grüße \"\u00fc\"","annotations":[]}]}`
	const parts = `{"text":"hm","thought":true},{"text":"Grüße "},{"text":"\"\u00fc\""},{"functionCall":{"id":"call_a","name":"f","args":{"x": "a\nb"}},"thoughtSignature":"SIG"},{"functionCall":{"id":"call_b","name":"g"}}`
	const geminiUsage = `"usageMetadata":{"promptTokenCount":30,"candidatesTokenCount":8,"thoughtsTokenCount":4,"cachedContentTokenCount":16,"totalTokenCount":42},"modelVersion":"served","responseId":"r"`
	chunk := func(delta, finish string) string {
		return `{"id":"c1","created":1,"model":"served","choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}`
	}
	block := func(i int, start string, deltas ...string) []string {
		out := []string{fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, start)}
		for _, d := range deltas {
			out = append(out, fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, i, d))
		}
		return append(out, fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
	}
	anthropic := []string{`{"type":"message_start","message":{"id":"msg_1","role":"assistant","model":"served","content":[],"usage":{"input_tokens":14,"cache_read_input_tokens":16,"output_tokens":1}}}`}
	anthropic = append(anthropic, block(0, `{"type":"thinking","thinking":"","signature":""}`, `{"type":"thinking_delta","thinking":"hm"}`, `{"type":"signature_delta","signature":"S/+=="}`)...)
	anthropic = append(anthropic, block(1, `{"type":"text","text":""}`, `{"type":"text_delta","text":"Grüße "}`, `{"type":"text_delta","text":"\"\u00fc\""}`)...)
	anthropic = append(anthropic, block(2, `{"type":"tool_use","id":"call_a","name":"f","input":{}}`, `{"type":"input_json_delta","partial_json":"{\"x\": "}`, `{"type":"input_json_delta","partial_json":"\"a\\nb\"}"}`)...)
	anthropic = append(anthropic, block(3, `{"type":"tool_use","id":"call_b","name":"g","input":{}}`)...)
	anthropic = append(anthropic, `{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":12}}`, `{"type":"message_stop"}`)
	return map[llm.Dialect]answerOfServer{
		llm.DialectOpenAI: {
			reasoning: 4,
			whole:     `{"id":"c1","created":1,"model":"served","choices":[{"index":0,"message":{"role":"assistant","reasoning_content":"hm","content":"Grüße \"\u00fc\"","tool_calls":[{"id":"call_a","type":"function","function":{"name":"f","arguments":"{\"x\": \"a\\nb\"}"}},{"id":"call_b","type":"function","function":{"name":"g","arguments":""}}]},"finish_reason":"tool_calls"}],` + chatUsage + `}`,
			stream: events(
				chunk(`{"role":"assistant","content":""}`, "null"), chunk(`{"reasoning_content":"hm"}`, "null"), chunk(`{"content":"Grüße "}`, "null"), chunk(`{"content":"\"\u00fc\""}`, "null"),
				chunk(`{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"f","arguments":""}}]}`, "null"),
				chunk(`{"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"g","arguments":""}}]}`, "null"),
				chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\": \"a"}}]}`, "null"), chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"\\nb\"}"}}]}`, "null"),
				chunk(`{}`, `"tool_calls"`), `{"id":"c1","model":"served","choices":[],`+chatUsage+`}`, "[DONE]"),
		},
		llm.DialectResponses: {
			reasoning: 4, sign: "S/+==",
			whole: `{"id":"resp_1","created_at":1,"status":"completed","model":"served","output":[` + reasoning + "," + message + "," + callF + "," + callG + `],` + responsesUsage + `}`,
			stream: events(
				`{"type":"response.created","response":{"id":"resp_1","created_at":1,"status":"in_progress","model":"served","output":[]}}`,
				`{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}`,
				`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","output_index":0,"summary_index":0,"delta":"hm"}`,
				`{"type":"response.output_item.done","output_index":0,"item":`+reasoning+`}`,
				`{"type":"response.output_text.delta","output_index":1,"delta":"Grüße "}`, `{"type":"response.output_text.delta","output_index":1,"delta":"\"\u00fc\""}`,
				`{"type":"response.output_item.done","output_index":1,"item":`+message+`}`,
				`{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","call_id":"call_a","name":"f","arguments":""}}`,
				`{"type":"response.function_call_arguments.done","output_index":2,"arguments":"{\"x\": \"a\\nb\"}"}`,
				`{"type":"response.output_item.done","output_index":2,"item":`+callF+`}`,
				`{"type":"response.output_item.done","output_index":3,"item":`+callG+`}`,
				`{"type":"response.completed","response":{"id":"resp_1","status":"completed","model":"served","output":[`+reasoning+","+message+","+callF+","+callG+`],`+responsesUsage+`}}`),
		},
		llm.DialectAnthropic: {
			sign:   "S/+==",
			whole:  `{"id":"msg_1","type":"message","role":"assistant","model":"served","content":[{"type":"thinking","thinking":"hm","signature":"S/+=="},{"type":"text","text":"Grüße \"\u00fc\""},{"type":"tool_use","id":"call_a","name":"f","input":{"x": "a\nb"}},{"type":"tool_use","id":"call_b","name":"g","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":14,"cache_read_input_tokens":16,"output_tokens":12}}`,
			stream: events(anthropic...),
		},
		llm.DialectGemini: {
			reasoning: 4,
			whole:     `{"candidates":[{"content":{"role":"model","parts":[` + parts + `]},"finishReason":"STOP","index":0}],` + geminiUsage + `}`,
			stream:    events(`{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true}]},"index":0}],"usageMetadata":{"promptTokenCount":30,"totalTokenCount":30},"modelVersion":"served","responseId":"r"}`, `{"candidates":[{"content":{"parts":[`+strings.TrimPrefix(parts, `{"text":"hm","thought":true},`)+`]},"finishReason":"STOP"}],`+geminiUsage+`}`),
		},
		llm.DialectBedrock: {
			sign:  "S/+==",
			whole: `{"output":{"message":{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"hm","signature":"S/+=="}}},{"text":"Grüße \"\u00fc\""},{"toolUse":{"toolUseId":"call_a","name":"f","input":{"x": "a\nb"}}},{"toolUse":{"toolUseId":"call_b","name":"g","input":{}}}]}},"stopReason":"tool_use","usage":{"inputTokens":14,"outputTokens":12,"totalTokens":42,"cacheReadInputTokens":16}}`,
			stream: framesOf(`messageStart {"role":"assistant"}
				contentBlockDelta {"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"hm"}},"p":"abc"}
				contentBlockDelta {"contentBlockIndex":0,"delta":{"reasoningContent":{"signature":"S/+=="}}}
				contentBlockStop {"contentBlockIndex":0}
				contentBlockDelta {"contentBlockIndex":1,"delta":{"text":"Grüße "}}
				contentBlockDelta {"contentBlockIndex":1,"delta":{"text":"\"\u00fc\""}}
				contentBlockStop {"contentBlockIndex":1}
				contentBlockStart {"contentBlockIndex":2,"start":{"toolUse":{"toolUseId":"call_a","name":"f"}}}
				contentBlockDelta {"contentBlockIndex":2,"delta":{"toolUse":{"input":"{\"x\": \"a\\nb\"}"}}}
				contentBlockStop {"contentBlockIndex":2}
				contentBlockStart {"contentBlockIndex":3,"start":{"toolUse":{"toolUseId":"call_b","name":"g"}}}
				contentBlockStop {"contentBlockIndex":3}
				messageStop {"stopReason":"tool_use"}
				metadata {"usage":{"inputTokens":14,"outputTokens":12,"totalTokens":42,"cacheReadInputTokens":16}}`),
		},
	}
}

// heard is what a client reads in an answer.
type heard struct {
	Thinking, Text string
	Calls          []string
	Finish         string
	Input, Cached  int
	Output         int
	Reasoning      int
	Signed         bool
}

func TestMatrixAnswers(t *testing.T) {
	servers := answersOfServers()
	eachPair(func(op llm.Op, d llm.Dialect) {
		if op.Dialect() == d {
			return
		}
		s := servers[d]
		for i := range 4 {
			client, server := i&1 == 0, i&2 == 0
			in := s.whole
			if server {
				in = s.stream
			}
			tr := translation(t, op, d, client)
			o := llm.AnswerOptions{Stream: server, Model: "asked", IncludeUsage: true, RequestID: "req", Created: 5}
			got := answerOf(tr, o, in)
			name := fmt.Sprintf("%v from %v, client streams %v, server %v", op, d, client, server)
			if !got.Finished || got.Failed != "" || got.Served != "served" && d != llm.DialectBedrock || got.Tokens == 0 {
				t.Errorf("%s: %v", name, got)
			}
			usage := llm.Usage{Input: 14, CacheRead: 16, Output: 12 - s.reasoning, Reasoning: s.reasoning, Source: llm.Reported}
			if got.Usage != usage {
				t.Errorf("%s: usage %+v", name, got.Usage)
			}
			if client && server {
				everyAnswerSplit(t, tr, o, in, got)
			}
			want := heard{
				Thinking: "hm", Text: `Grüße "ü"`, Calls: []string{`call_a f {"x":"a\nb"}`, "call_b g {}"}, Finish: "calls",
				Input: 30, Cached: 16, Output: 12, Reasoning: s.reasoning, Signed: s.sign != "",
			}
			if op == llm.OpMessages {
				want.Reasoning = 0 // is not told in this dialect
			}
			h := heard{}
			if client {
				h.stream(t, op, got.Out)
			} else {
				h.whole(op, decode(t, got.Out))
			}
			if diff := cmp.Diff(want, h); diff != "" {
				t.Errorf("%s (-want +got):\n%s\n%s", name, diff, got.Out)
			}
			if !strings.Contains(got.Out, `"asked"`) || strings.Contains(got.Out, `"served"`) {
				t.Errorf("%s: the name of the model: %s", name, got.Out)
			}
		}
	})
}

func (h *heard) call(id, name, args string) {
	h.Calls = append(h.Calls, id+" "+name+" "+compact(args))
}

// finish is the word for an answer that ended with calls.
func (h *heard) finish(op llm.Op, word string) {
	calls := map[llm.Op]string{llm.OpChat: "tool_calls", llm.OpResponses: "completed", llm.OpMessages: "tool_use", llm.OpGenerate: "STOP"}
	if word == calls[op] {
		word = "calls"
	}
	if word != "" {
		h.Finish = word
	}
}

func (h *heard) usage(op llm.Op, u value) {
	if !u.is() {
		return
	}
	switch op {
	case llm.OpChat:
		h.Input, h.Output, h.Cached = u.at("prompt_tokens").num(), u.at("completion_tokens").num(), u.at("prompt_tokens_details.cached_tokens").num()
		h.Reasoning = u.at("completion_tokens_details.reasoning_tokens").num()
	case llm.OpResponses:
		h.Input, h.Output, h.Cached = u.at("input_tokens").num(), u.at("output_tokens").num(), u.at("input_tokens_details.cached_tokens").num()
		h.Reasoning = u.at("output_tokens_details.reasoning_tokens").num()
	case llm.OpMessages:
		h.Cached = u.at("cache_read_input_tokens").num()
		h.Input, h.Output = u.at("input_tokens").num()+h.Cached, u.at("output_tokens").num()
	case llm.OpGenerate:
		h.Reasoning, h.Cached = u.at("thoughtsTokenCount").num(), u.at("cachedContentTokenCount").num()
		h.Input, h.Output = u.at("promptTokenCount").num(), u.at("candidatesTokenCount").num()+h.Reasoning
	}
}

func (h *heard) whole(op llm.Op, v value) {
	switch op {
	case llm.OpChat:
		c := v.at("choices").list()[0]
		h.Thinking, h.Text = c.at("message.reasoning_content").str(), c.at("message.content").str()
		h.Signed = c.at("message.thinking_blocks").is()
		for _, call := range c.at("message.tool_calls").list() {
			h.call(call.at("id").str(), call.at("function.name").str(), call.at("function.arguments").str())
		}
		h.finish(op, c.at("finish_reason").str())
		h.usage(op, v.at("usage"))
	case llm.OpResponses:
		for _, item := range v.at("output").list() {
			switch item.at("type").str() {
			case "message":
				for _, p := range item.at("content").list() {
					h.Text += p.at("text").str()
				}
			case "function_call":
				h.call(item.at("call_id").str(), item.at("name").str(), item.at("arguments").str())
			case "reasoning":
				for _, p := range item.at("summary").list() {
					h.Thinking += p.at("text").str()
				}
				h.Signed = item.at("encrypted_content").is()
			}
		}
		h.finish(op, v.at("status").str())
		h.usage(op, v.at("usage"))
	case llm.OpMessages:
		for _, b := range v.at("content").list() {
			switch b.at("type").str() {
			case "text":
				h.Text += b.at("text").str()
			case "thinking":
				h.Thinking += b.at("thinking").str()
				h.Signed = b.at("signature").str() != ""
			case "tool_use":
				h.call(b.at("id").str(), b.at("name").str(), b.at("input").str())
			}
		}
		h.finish(op, v.at("stop_reason").str())
		h.usage(op, v.at("usage"))
	case llm.OpGenerate:
		for _, c := range v.at("candidates").list() {
			for _, p := range c.at("content.parts").list() {
				switch {
				case p.at("functionCall").is():
					h.call(p.at("functionCall.id").str(), p.at("functionCall.name").str(), p.at("functionCall.args").str())
				case p.at("thought").is():
					h.Thinking += p.at("text").str()
					h.Signed = h.Signed || p.at("thoughtSignature").is()
				default:
					h.Text += p.at("text").str()
				}
			}
			h.finish(op, c.at("finishReason").str())
		}
		h.usage(op, v.at("usageMetadata"))
	}
}

// stream reads a stream as a client does.
func (h *heard) stream(t testing.TB, op llm.Op, out string) {
	args := map[int]*[3]string{} // id, name and arguments by the number of the call, or block
	order := []int{}
	begin := func(i int, id, name string) {
		args[i] = &[3]string{id, name, ""}
		order = append(order, i)
	}
	sequence := 0
	for line := range strings.SplitSeq(out, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		v := decode(t, data)
		switch op {
		case llm.OpGenerate:
			h.whole(op, v)
		case llm.OpChat:
			h.usage(op, v.at("usage"))
			for _, c := range v.at("choices").list() {
				h.Thinking += c.at("delta.reasoning_content").str()
				h.Text += c.at("delta.content").str()
				h.Signed = h.Signed || c.at("delta.thinking_blocks").is()
				for _, call := range c.at("delta.tool_calls").list() {
					i := call.at("index").num()
					if id := call.at("id").str(); id != "" {
						begin(i, id, call.at("function.name").str())
					}
					args[i][2] += call.at("function.arguments").str()
				}
				h.finish(op, c.at("finish_reason").str())
			}
		case llm.OpMessages:
			i := v.at("index").num()
			switch v.at("type").str() {
			case "content_block_start":
				if b := v.at("content_block"); b.at("type").str() == "tool_use" {
					begin(i, b.at("id").str(), b.at("name").str())
				}
			case "content_block_delta":
				h.Text += v.at("delta.text").str()
				h.Thinking += v.at("delta.thinking").str()
				h.Signed = h.Signed || v.at("delta.signature").str() != ""
				if piece := v.at("delta.partial_json").str(); piece != "" {
					args[i][2] += piece
				}
			case "message_delta":
				h.finish(op, v.at("delta.stop_reason").str())
				h.usage(op, v.at("usage"))
			case "message_start":
				h.usage(op, v.at("message.usage"))
			}
		case llm.OpResponses:
			if v.at("sequence_number").num() != sequence {
				t.Errorf("sequence number %d is %s", sequence, data)
			}
			sequence++
			i := v.at("output_index").num()
			switch v.at("type").str() {
			case "response.output_item.added":
				if item := v.at("item"); item.at("type").str() == "function_call" {
					begin(i, item.at("call_id").str(), item.at("name").str())
				}
			case "response.output_text.delta":
				h.Text += v.at("delta").str()
			case "response.reasoning_summary_text.delta":
				h.Thinking += v.at("delta").str()
			case "response.function_call_arguments.delta":
				args[i][2] += v.at("delta").str()
			case "response.output_item.done":
				h.Signed = h.Signed || v.at("item.encrypted_content").is()
			case "response.completed":
				last := heard{}
				last.whole(op, v.at("response"))
				for _, i := range order {
					h.call(args[i][0], args[i][1], args[i][2])
				}
				order = nil
				h.finish(op, v.at("response.status").str())
				h.usage(op, v.at("response.usage"))
				if diff := cmp.Diff(last, *h); diff != "" {
					t.Errorf("the response at the end of the stream (-whole +stream):\n%s", diff)
				}
			}
		}
	}
	for _, i := range order {
		if args[i][2] == "" {
			args[i][2] = "{}" // Anthropic's for a call without arguments
		}
		h.call(args[i][0], args[i][1], args[i][2])
	}
}

// TestMatrixSignatures: a client that sends back what it got gives the server its
// own signatures, and no other server.
// (B59)
func TestMatrixSignatures(t *testing.T) {
	servers := answersOfServers()
	eachPair(func(op llm.Op, d llm.Dialect) {
		if op.Dialect() == d {
			return
		}
		tr := translation(t, op, d, false)
		out := answerOf(tr, llm.AnswerOptions{RequestID: "r"}, servers[d].whole).Out
		v := decode(t, out)
		var body string
		switch op {
		case llm.OpChat:
			body = fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"x"},%s,{"role":"tool","tool_call_id":"call_a","content":"1"},{"role":"tool","tool_call_id":"call_b","content":"2"}]}`, v.at("choices").list()[0].at("message").str())
		case llm.OpMessages:
			body = fmt.Sprintf(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":%s},{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_a","content":"1"},{"type":"tool_result","tool_use_id":"call_b","content":"2"}]}]}`, v.at("content").str())
		case llm.OpResponses:
			items := strings.Trim(v.at("output").str(), "[]")
			body = fmt.Sprintf(`{"model":"m","input":[{"role":"user","content":"x"},%s,{"type":"function_call_output","call_id":"call_a","output":"1"},{"type":"function_call_output","call_id":"call_b","output":"2"}]}`, items)
			if !strings.HasSuffix(items, "}") {
				t.Fatal(items)
			}
		case llm.OpGenerate:
			body = fmt.Sprintf(`{"contents":[{"parts":[{"text":"x"}]},%s,{"parts":[{"functionResponse":{"id":"call_a","name":"f","response":{"output":"1"}}},{"functionResponse":{"id":"call_b","name":"g","response":{"output":"2"}}}]}]}`, v.at("candidates").list()[0].at("content").str())
		}
		for other := llm.DialectOpenAI; other <= llm.DialectBedrock; other++ {
			if !llm.Speaks(op, other) || op.Dialect() == other {
				continue
			}
			next := translated(t, op, body, llm.Backend{Dialect: other, Model: "gemini-3"})
			sent := string(next.Body)
			if strings.Contains(sent, "responses:") || strings.Contains(sent, "anthropic:") {
				t.Errorf("%v from %v: a mark goes to %v: %s", op, d, other, sent)
			}
			claude := func(d llm.Dialect) bool { return d == llm.DialectAnthropic || d == llm.DialectBedrock }
			same := d == other || claude(d) && claude(other)
			if got := strings.Contains(sent, "S/+=="); got != (same && servers[d].sign != "") && other != llm.DialectOpenAI {
				t.Errorf("%v from %v: the signature goes to %v: %v: %s", op, d, other, got, sent)
			}
			if d == llm.DialectGemini && other == d && !strings.Contains(sent, `"args":{"x":"a\nb"}},"thoughtSignature":"SIG"`) && !strings.Contains(sent, `"args":{"x": "a\nb"}},"thoughtSignature":"SIG"`) {
				t.Errorf("%v from %v: the signature of a call is lost: %s", op, d, sent)
			}
			if !same && d != llm.DialectOpenAI && d != llm.DialectGemini && other != llm.DialectOpenAI && !strings.Contains(strings.Join(next.Dropped, " "), "thinking") {
				t.Errorf("%v from %v to %v: thinking is lost and not told: %v", op, d, other, next.Dropped)
			}
		}
	})
}
