// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/llm"
)

// smallChat is a request of about 2 KB: a system prompt, a tool, a call.
func smallChat() string {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 8)
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf(`{"model":"m","stream":true,"max_completion_tokens":256,"temperature":0.7,"user":"u1",`+
		`"tools":[{"type":"function","function":{"name":"search","description":"find","parameters":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]}}}],`+
		`"messages":[{"role":"system","content":%[1]s},{"role":"user","content":%[1]s},`+
		`{"role":"assistant","content":null,"tool_calls":[{"id":"call_a","type":"function","function":{"name":"search","arguments":"{\"query\":\"fox\",\"limit\":3}"}}]},`+
		`{"role":"tool","tool_call_id":"call_a","content":%[1]s},{"role":"user","content":%[1]s}]}`, quoted)
}

// longChat is a conversation of about 1 MB.
func longChat() string {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. Größe \"quoted\".\n", 16)
	quoted, _ := json.Marshal(text)
	turns := strings.Repeat(fmt.Sprintf(`,{"role":"assistant","content":%[1]s},{"role":"user","content":[{"type":"text","text":%[1]s}]}`, quoted), 500)
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%s}%s]}`, quoted, turns)
}

func benchmarkTranslate(b *testing.B, op llm.Op, body string, d llm.Dialect, read bool) {
	in := []byte(body)
	req, err := llm.ReadAt(op, fronts[op], "", in, llm.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if read {
			if req, err = llm.ReadAt(op, fronts[op], "", in, llm.Limits{}); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "up"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTranslate(b *testing.B) {
	b.Run("openai-anthropic/2KB", func(b *testing.B) {
		benchmarkTranslate(b, llm.OpChat, smallChat(), llm.DialectAnthropic, false)
	})
	b.Run("openai-anthropic/2KB+read", func(b *testing.B) {
		benchmarkTranslate(b, llm.OpChat, smallChat(), llm.DialectAnthropic, true)
	})
	req, _ := llm.Read(llm.OpChat, "", []byte(smallChat()), llm.Limits{})
	tr, err := llm.Translate(req, llm.Backend{Dialect: llm.DialectAnthropic, Model: "up"})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("anthropic-openai/2KB", func(b *testing.B) {
		benchmarkTranslate(b, llm.OpMessages, string(tr.Body), llm.DialectOpenAI, false)
	})
	b.Run("openai-anthropic/1MB", func(b *testing.B) {
		benchmarkTranslate(b, llm.OpChat, longChat(), llm.DialectAnthropic, false)
	})
}

// wholeMessage is an answer of a few hundred bytes.
const wholeMessage = `{"id":"msg_2","type":"message","role":"assistant","model":"claude","content":[{"type":"text","text":"The quick brown fox jumps over the lazy dog, and then it calls a tool to see what there is to eat.\nBest regards"},{"type":"tool_use","id":"toolu_1","name":"search","input":{"query":"food","limit":3}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":500,"cache_read_input_tokens":7,"cache_creation_input_tokens":3,"output_tokens":41}}`

// BenchmarkTranslateAnswer: back is a whole answer, the others one event of a
// stream.
func BenchmarkTranslateAnswer(b *testing.B) {
	b.Run("anthropic-openai/back", func(b *testing.B) {
		tr := translation(b, llm.OpChat, llm.DialectAnthropic, false)
		in := []byte(wholeMessage)
		b.ReportAllocs()
		for b.Loop() {
			r := tr.Answer(llm.AnswerOptions{RequestID: "r"})
			r.Feed(in)
			if out := r.Close(); len(out) == 0 {
				b.Fatal("nothing")
			}
		}
	})
	delta := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n")
	chunk := []byte(chunkOf(" token"))
	stream := func(op llm.Op, d llm.Dialect, event []byte) func(b *testing.B) {
		return func(b *testing.B) {
			r := translation(b, op, d, true).Answer(llm.AnswerOptions{Stream: true, Model: "asked", RequestID: "r"})
			r.Feed(event)
			b.ReportAllocs()
			b.SetBytes(int64(len(event)))
			for b.Loop() {
				if out := r.Feed(event); len(out) == 0 {
					b.Fatal("nothing")
				}
			}
		}
	}
	b.Run("anthropic-openai/event", stream(llm.OpChat, llm.DialectAnthropic, delta))
	b.Run("openai-anthropic/event", stream(llm.OpMessages, llm.DialectOpenAI, chunk))
	b.Run("anthropic-tap/event", stream(llm.OpMessages, llm.DialectAnthropic, delta))
}

// TestStreamedEventsAllocateNothing once the answer has begun.
func TestStreamedEventsAllocateNothing(t *testing.T) {
	delta := []byte("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n")
	chunk := []byte(chunkOf(" token"))
	for name, c := range map[string]struct {
		op llm.Op
		d  llm.Dialect
		in []byte
	}{
		"chat from anthropic":     {llm.OpChat, llm.DialectAnthropic, delta},
		"messages from openai":    {llm.OpMessages, llm.DialectOpenAI, chunk},
		"messages from anthropic": {llm.OpMessages, llm.DialectAnthropic, delta},
	} {
		r := translation(t, c.op, c.d, true).Answer(llm.AnswerOptions{Stream: true, RequestID: "r"})
		r.Feed(c.in)
		if n := testing.AllocsPerRun(100, func() { r.Feed(c.in) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
