// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/llm"
)

// textEvents are an event of text of each dialect's streams.
func textEvents() map[llm.Dialect][]byte {
	return map[llm.Dialect][]byte{
		llm.DialectOpenAI:    []byte(chunkOf(" token")),
		llm.DialectResponses: []byte("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":7,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\",\"logprobs\":[]}\n\n"),
		llm.DialectAnthropic: []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n"),
		llm.DialectGemini:    []byte("data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\" token\"}],\"role\":\"model\"},\"index\":0}],\"usageMetadata\":{\"promptTokenCount\":9,\"candidatesTokenCount\":5,\"totalTokenCount\":14},\"modelVersion\":\"g\",\"responseId\":\"r\"}\n\n"),
		llm.DialectBedrock:   []byte(framesOf(`contentBlockDelta {"contentBlockIndex":0,"delta":{"text":" token"},"p":"abcdefghij"}`)),
	}
}

// BenchmarkMatrix: a request of about 2 KB, and one event of a stream, through
// each pair of dialects.
func BenchmarkMatrix(b *testing.B) {
	events := textEvents()
	for op := llm.OpChat; op <= llm.OpGenerate; op++ {
		if fronts[op] == "" {
			continue
		}
		body := smallChat()
		if op != llm.OpChat {
			body = string(translated(b, llm.OpChat, smallChat(), llm.Backend{Dialect: op.Dialect(), Model: "m"}).Body)
		}
		for d := llm.DialectOpenAI; d <= llm.DialectBedrock; d++ {
			if op.Dialect() == d {
				continue
			}
			b.Run(fmt.Sprintf("request/%v-%v", op.Dialect(), d), func(b *testing.B) { benchmarkTranslate(b, op, body, d, false) })
			b.Run(fmt.Sprintf("event/%v-%v", d, op.Dialect()), func(b *testing.B) {
				r := translation(b, op, d, true).Answer(llm.AnswerOptions{Stream: true, RequestID: "r", MaxBody: 1 << 20})
				r.Feed(events[d])
				b.ReportAllocs()
				b.SetBytes(int64(len(events[d])))
				for b.Loop() {
					if out := r.Feed(events[d]); len(out) == 0 {
						b.Fatal("nothing")
					}
				}
			})
		}
	}
}

// TestMatrixEventsAllocateNothing once the answer has begun, but for the text
// that the end of a response repeats, which grows now and then.
func TestMatrixEventsAllocateNothing(t *testing.T) {
	events := textEvents()
	eachPair(func(op llm.Op, d llm.Dialect) {
		if op.Dialect() == d {
			return
		}
		r := translation(t, op, d, true).Answer(llm.AnswerOptions{Stream: true, RequestID: "r"})
		r.Feed(events[d])
		if n := testing.AllocsPerRun(1000, func() { r.Feed(events[d]) }); n > 0 {
			t.Errorf("%v from %v: %v allocations", op, d, n)
		}
	})
}

// FuzzFrames: however a stream of frames is split, and whatever is wrong with it,
// the client gets the same.
func FuzzFrames(f *testing.F) {
	for i := 1; i < 12; i++ {
		for _, in := range caseFiles(f, "testdata/translate/*bedrock*.txtar", fmt.Sprint("upstream", i)) {
			f.Add(in, uint16(len(in)/2), uint16(0), byte(0))
			f.Add(in, uint16(len(in)/3), uint16(40), byte(1))
		}
	}
	f.Fuzz(func(t *testing.T, lines string, at, flip uint16, mask byte) {
		in := []byte(framesOf(lines))
		if len(in) > 0 {
			in[int(flip)%len(in)] ^= mask
		}
		for _, op := range []llm.Op{llm.OpChat, llm.OpResponses} {
			tr := translation(t, op, llm.DialectBedrock, true)
			o := llm.AnswerOptions{Stream: true, RequestID: "r"}
			want := answerOf(tr, o, string(in))
			i := int(at) % (len(in) + 1)
			if diff := cmp.Diff(want, answerOf(tr, o, string(in[:i]), string(in[i:]))); diff != "" {
				t.Fatalf("%q split at %d (-whole +split):\n%s", in, i, diff)
			}
			if want.Finished && want.Failed != "" {
				t.Fatalf("%q is finished and has failed: %s", in, want.Failed)
			}
			checkOut(t, op, true, string(in), want.Out)
		}
	})
}
