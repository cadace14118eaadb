// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// The tests in this file take one conversation through every front and every
// backend's dialect, and one answer back.

// value is a decoded JSON value with short ways into it.
type value struct{ v any }

func decode(t testing.TB, text string) value {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value{v}
}

// at follows member names, separated by dots.
func (v value) at(path string) value {
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.v.(map[string]any)
		v = value{m[name]}
	}
	return v
}

func (v value) list() (out []value) {
	l, _ := v.v.([]any)
	for _, e := range l {
		out = append(out, value{e})
	}
	return out
}

// str is a string, or the JSON of anything else but null.
func (v value) str() string {
	switch s := v.v.(type) {
	case nil:
		return ""
	case string:
		return s
	}
	b, _ := json.Marshal(v.v)
	return string(b)
}

func (v value) num() int { f, _ := v.v.(float64); return int(f) }
func (v value) is() bool { return v.v != nil }

// compact is JSON text without white space.
func compact(text string) string { return compactValue(text).str() }

func compactValue(text string) value {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return value{text}
	}
	return value{v}
}

// richRequests are one conversation in each front's words. Numbers and words in
// marks are looked for in the backend's body.
var richRequests = map[llm.Op]string{
	llm.OpChat: `{"model":"m","stream":%v,"messages":[
		{"role":"system","content":"Be brief. \u00fc"},
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]},
		{"role":"assistant","content":"calling","thinking_blocks":[{"type":"thinking","thinking":"hm","signature":"Eq/B=="}],
		 "tool_calls":[{"id":"call_a","type":"function","function":{"name":"f","arguments":"{\"x\": \"a\\nb\"}"}},{"id":"call_b","type":"function","function":{"name":"g","arguments":""}}]},
		{"role":"tool","tool_call_id":"call_a","content":"first"},{"role":"tool","tool_call_id":"call_b","content":"second"},
		{"role":"user","content":"go on"}],
		"tools":[{"type":"function","function":{"name":"f","description":"does f","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}},{"type":"function","function":{"name":"g"}}],
		"response_format":{"type":"json_schema","json_schema":{"name":"out","schema":{"type":"object","properties":{"a":{"type":"string"}}}}},
		"max_completion_tokens":512,"temperature":0.25,"seed":77123,"user":"user-77124","presence_penalty":0.77125,"prompt_cache_key":"key-77126","top_p":0.77127}`,
	llm.OpResponses: `{"model":"m","stream":%v,"instructions":"Be brief. \u00fc","input":[
		{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]},
		{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"gAAAA"},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"calling"}]},
		{"type":"function_call","call_id":"call_a","name":"f","arguments":"{\"x\": \"a\\nb\"}"},{"type":"function_call","call_id":"call_b","name":"g","arguments":"{}"},
		{"type":"function_call_output","call_id":"call_a","output":"first"},{"type":"function_call_output","call_id":"call_b","output":"second"},
		{"role":"user","content":"go on"}],
		"tools":[{"type":"function","name":"f","description":"does f","parameters":{"type":"object","properties":{"x":{"type":"string"}}}},{"type":"function","name":"g"}],
		"text":{"format":{"type":"json_schema","name":"out","schema":{"type":"object","properties":{"a":{"type":"string"}}}}},
		"max_output_tokens":512,"temperature":0.25,"user":"user-77124","prompt_cache_key":"key-77126","top_p":0.77127}`,
	llm.OpMessages: `{"model":"m","stream":%v,"system":"Be brief. \u00fc","messages":[
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"Eq/B=="},{"type":"text","text":"calling"},{"type":"tool_use","id":"call_a","name":"f","input":{"x":"a\nb"}},{"type":"tool_use","id":"call_b","name":"g","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_a","content":"first"},{"type":"tool_result","tool_use_id":"call_b","content":[{"type":"text","text":"second"}]},{"type":"text","text":"go on"}]}],
		"tools":[{"name":"f","description":"does f","input_schema":{"type":"object","properties":{"x":{"type":"string"}}}},{"name":"g","input_schema":{"type":"object","properties":{}}}],
		"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"string"}}}}},
		"max_tokens":512,"temperature":0.25,"metadata":{"user_id":"user-77124"},"top_k":77128,"top_p":0.77127}`,
	llm.OpGenerate: `{"systemInstruction":{"parts":[{"text":"Be brief. \u00fc"}]},"contents":[
		{"role":"user","parts":[{"text":"look"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]},
		{"role":"model","parts":[{"text":"hm","thought":true},{"text":"calling"},{"functionCall":{"name":"f","args":{"x":"a\nb"}}},{"functionCall":{"name":"g"}}]},
		{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"first"}}},{"functionResponse":{"name":"g","response":{"result":"second"}}},{"text":"go on"}]}],
		"tools":[{"functionDeclarations":[{"name":"f","description":"does f","parameters":{"type":"OBJECT","properties":{"x":{"type":"STRING"}}}},{"name":"g"}]}],
		"generationConfig":{"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","properties":{"a":{"type":"STRING"}}},
		"maxOutputTokens":512,"temperature":0.25,"seed":77123,"presencePenalty":0.77125,"topK":77128,"topP":0.77127},"safetySettings":[{"category":"word-77129"}]}`,
}

// marks are values that go through or are named as left out.
var marks = map[string][]string{
	"77123": {"seed", "generationConfig.seed"}, "user-77124": {"user", "metadata.user_id"},
	"0.77125": {"presence_penalty", "generationConfig.presencePenalty"}, "key-77126": {"prompt_cache_key"},
	"0.77127": {"top_p", "generationConfig.topP"}, "77128": {"top_k", "generationConfig.topK"}, "word-77129": {"safetySettings"},
}

// conversation is what a backend is told.
var conversation = []string{
	"system: Be brief. ü", "user: look", "user image: image/png AAAA", "assistant: calling",
	`assistant call 0: f {"x":"a\nb"}`, "assistant call 1: g {}", "result 0: first", "result 1: second", "user: go on",
	`tool: f does f {"properties":{"x":{"type":"string"}},"type":"object"}`, "tool: g",
	`format: {"properties":{"a":{"type":"string"}},"type":"object"}`, "bound: 512", "temperature: 0.25",
}

func TestMatrixRequests(t *testing.T) {
	eachPair(func(op llm.Op, d llm.Dialect) {
		if op.Dialect() == d {
			return
		}
		for _, stream := range []bool{false, true} {
			path, body := fronts[op], richRequests[op]
			if op == llm.OpGenerate && !stream {
				path = strings.Replace(path, "streamGenerate", "generate", 1)
			} else if op != llm.OpGenerate {
				body = fmt.Sprintf(body, stream)
			}
			req, err := llm.ReadAt(op, path, "", []byte(body), llm.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			tr, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "served-claude"})
			if err != nil {
				t.Errorf("%v to %v: %v", op, d, err)
				continue
			}
			c := said{ids: map[string]int{}}
			c.read(d, decode(t, string(tr.Body)))
			want := slices.Clone(conversation)
			if diff := cmp.Diff(want, c.lines); diff != "" {
				t.Errorf("%v to %v (-want +got):\n%s\n%s", op, d, diff, tr.Body)
			}
			dropped := strings.Join(tr.Dropped, " ")
			if !c.thought && !strings.Contains(dropped, "thinking") {
				t.Errorf("%v to %v: what was thought is lost and not told: %v", op, d, tr.Dropped)
			}
			for mark, names := range marks {
				told := slices.ContainsFunc(names, func(name string) bool { return slices.Contains(tr.Dropped, name) })
				if through := strings.Contains(string(tr.Body), mark); strings.Contains(body, mark) && through == told {
					t.Errorf("%v to %v: %s is through %v, told as left out %v: %v", op, d, mark, through, told, tr.Dropped)
				}
			}
			streams := strings.Contains(string(tr.Body), `"stream":true`)
			if tr.Stream != stream || d != llm.DialectGemini && d != llm.DialectBedrock && streams != stream {
				t.Errorf("%v to %v: stream %v: %v in the body", op, d, stream, streams)
			}
		}
	})
}

// said reads what a backend is told into lines.
type said struct {
	lines   []string
	ids     map[string]int // of calls
	names   []string       // of calls
	thought bool
}

func (c *said) line(format string, a ...any) { c.lines = append(c.lines, fmt.Sprintf(format, a...)) }

func (c *said) call(id, name, args string) {
	c.ids[id] = len(c.names)
	c.line("assistant call %d: %s %s", len(c.names), name, compact(args))
	c.names = append(c.names, name)
}

func (c *said) result(id, text string) { c.line("result %d: %s", c.ids[id], text) }

func (c *said) tool(name, about string, schema value) {
	text := strings.TrimSpace("tool: " + name + " " + about)
	if s := schema.str(); s != "" && s != `{"properties":{},"type":"object"}` {
		text += " " + s
	}
	c.lines = append(c.lines, text)
}

func (c *said) read(d llm.Dialect, v value) {
	switch d {
	case llm.DialectOpenAI:
		c.chat(v)
	case llm.DialectResponses:
		c.responses(v)
	case llm.DialectAnthropic:
		c.anthropic(v)
	case llm.DialectGemini:
		c.gemini(v)
	case llm.DialectBedrock:
		c.bedrock(v)
	}
}

func (c *said) chat(v value) {
	for _, m := range v.at("messages").list() {
		role := m.at("role").str()
		c.thought = c.thought || m.at("reasoning_content").is()
		parts := m.at("content").list()
		if text, ok := m.at("content").v.(string); ok && role == "tool" {
			c.result(m.at("tool_call_id").str(), text)
		} else if ok {
			c.line("%s: %s", role, text)
		}
		for _, p := range parts {
			if url := p.at("image_url.url").str(); url != "" {
				media, data, _ := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
				c.line("user image: %s %s", media, data)
			} else {
				c.line("%s: %s", role, p.at("text").str())
			}
		}
		for _, call := range m.at("tool_calls").list() {
			c.call(call.at("id").str(), call.at("function.name").str(), call.at("function.arguments").str())
		}
	}
	for _, tool := range v.at("tools").list() {
		c.tool(tool.at("function.name").str(), tool.at("function.description").str(), tool.at("function.parameters"))
	}
	c.line("format: %s", v.at("response_format.json_schema.schema").str())
	c.line("bound: %d", v.at("max_completion_tokens").num())
	c.line("temperature: %s", v.at("temperature").str())
}

func (c *said) responses(v value) {
	c.line("system: %s", v.at("instructions").str())
	for _, item := range v.at("input").list() {
		switch item.at("type").str() {
		case "message":
			for _, p := range item.at("content").list() {
				if url := p.at("image_url").str(); url != "" {
					media, data, _ := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
					c.line("user image: %s %s", media, data)
				} else {
					c.line("%s: %s", item.at("role").str(), p.at("text").str())
				}
			}
		case "function_call":
			c.call(item.at("call_id").str(), item.at("name").str(), item.at("arguments").str())
		case "function_call_output":
			c.result(item.at("call_id").str(), item.at("output").str())
		case "reasoning":
			c.thought = true
		}
	}
	for _, tool := range v.at("tools").list() {
		c.tool(tool.at("name").str(), tool.at("description").str(), tool.at("parameters"))
	}
	c.line("format: %s", v.at("text.format.schema").str())
	c.line("bound: %d", v.at("max_output_tokens").num())
	c.line("temperature: %s", v.at("temperature").str())
}

func (c *said) anthropic(v value) {
	c.line("system: %s", v.at("system").str())
	for _, m := range v.at("messages").list() {
		if text, ok := m.at("content").v.(string); ok {
			c.line("%s: %s", m.at("role").str(), text)
		}
		for _, b := range m.at("content").list() {
			switch b.at("type").str() {
			case "text":
				c.line("%s: %s", m.at("role").str(), b.at("text").str())
			case "image":
				c.line("user image: %s %s", b.at("source.media_type").str(), b.at("source.data").str())
			case "tool_use":
				c.call(b.at("id").str(), b.at("name").str(), b.at("input").str())
			case "tool_result":
				c.result(b.at("tool_use_id").str(), b.at("content").str())
			case "thinking":
				c.thought = b.at("thinking").str() == "hm" && b.at("signature").str() == "Eq/B=="
			}
		}
	}
	format := v.at("output_config.format.schema").str()
	for _, tool := range v.at("tools").list() {
		if name := tool.at("name").str(); name == "answer_as_json" {
			format = tool.at("input_schema").str()
		} else {
			c.tool(name, tool.at("description").str(), tool.at("input_schema"))
		}
	}
	c.line("format: %s", format)
	c.line("bound: %d", v.at("max_tokens").num())
	c.line("temperature: %s", v.at("temperature").str())
}

func (c *said) gemini(v value) {
	for _, p := range v.at("systemInstruction.parts").list() {
		c.line("system: %s", p.at("text").str())
	}
	answered := 0
	for _, m := range v.at("contents").list() {
		role := strings.Replace(m.at("role").str(), "model", "assistant", 1)
		for _, p := range m.at("parts").list() {
			switch {
			case p.at("functionCall").is():
				c.call(fmt.Sprint(len(c.names)), p.at("functionCall.name").str(), p.at("functionCall.args").str())
			case p.at("functionResponse").is():
				if name := p.at("functionResponse.name").str(); name != c.names[answered] {
					c.line("the answer of %s stands for one of %s", name, c.names[answered])
				}
				c.result(fmt.Sprint(answered), p.at("functionResponse.response.output").str())
				answered++
			case p.at("inlineData").is():
				c.line("user image: %s %s", p.at("inlineData.mimeType").str(), p.at("inlineData.data").str())
			default:
				c.line("%s: %s", role, p.at("text").str())
			}
		}
	}
	for _, tool := range v.at("tools").list() {
		for _, f := range tool.at("functionDeclarations").list() {
			c.tool(f.at("name").str(), f.at("description").str(), f.at("parameters"))
		}
	}
	c.line("format: %s", v.at("generationConfig.responseSchema").str())
	c.line("bound: %d", v.at("generationConfig.maxOutputTokens").num())
	c.line("temperature: %s", v.at("generationConfig.temperature").str())
}

func (c *said) bedrock(v value) {
	for _, p := range v.at("system").list() {
		c.line("system: %s", p.at("text").str())
	}
	for _, m := range v.at("messages").list() {
		for _, b := range m.at("content").list() {
			switch {
			case b.at("text").is():
				c.line("%s: %s", m.at("role").str(), b.at("text").str())
			case b.at("image").is():
				c.line("user image: image/%s %s", b.at("image.format").str(), b.at("image.source.bytes").str())
			case b.at("toolUse").is():
				c.call(b.at("toolUse.toolUseId").str(), b.at("toolUse.name").str(), b.at("toolUse.input").str())
			case b.at("toolResult").is():
				text := ""
				for _, p := range b.at("toolResult.content").list() {
					text += p.at("text").str()
				}
				c.result(b.at("toolResult.toolUseId").str(), text)
			case b.at("reasoningContent").is():
				c.thought = b.at("reasoningContent.reasoningText.signature").str() == "Eq/B=="
			}
		}
	}
	format := ""
	for _, tool := range v.at("toolConfig.tools").list() {
		if name := tool.at("toolSpec.name").str(); name == "answer_as_json" {
			format = tool.at("toolSpec.inputSchema.json").str()
		} else {
			c.tool(name, tool.at("toolSpec.description").str(), tool.at("toolSpec.inputSchema.json"))
		}
	}
	c.line("format: %s", format)
	c.line("bound: %d", v.at("inferenceConfig.maxTokens").num())
	c.line("temperature: %s", v.at("inferenceConfig.temperature").str())
}
