// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/llm"
)

// tapped is all that a tap tells about an answer.
type tapped struct {
	Out      string
	Usage    llm.Usage
	Tokens   int
	Finished bool
	Failed   string
	Finish   string
	Served   string
}

func tap(o llm.TapOptions, inputs ...string) tapped {
	t := llm.NewTap(o)
	var out []byte
	for _, in := range inputs {
		out = append(out, t.Feed([]byte(in))...)
	}
	out = append(out, t.Close()...)
	return tapped{string(out), t.Usage(), t.Tokens(), t.Finished(), t.Failed(), t.FinishReason(), t.ServedModel()}
}

func (a tapped) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "input %d (cached %d, written %d), output %d (reasoning %d), %v\n",
		a.Usage.Prompt(), a.Usage.CacheRead, a.Usage.Written(), a.Usage.Completion(), a.Usage.Reasoning, a.Usage.Source)
	fmt.Fprintf(&b, "tokens %d, finished %v, finish reason %q, model %q\n", a.Tokens, a.Finished, a.Finish, a.Served)
	if a.Failed != "" {
		fmt.Fprintf(&b, "failed: %s\n", a.Failed)
	}
	return b.String()
}

// TestAnswerCases taps each answer, whole and split at every byte. Flags: op
// (a path), stream (no: JSON), drop (the usage chunk), model (the name to
// answer with), ends (crlf, cr: write line ends so), cut (bytes taken off).
func TestAnswerCases(t *testing.T) {
	golden.Run(t, "testdata/answers/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		o := llm.TapOptions{
			Op: llm.OpOf(c.Flag("op")), Stream: c.Flag("stream") != "no",
			DropUsage: c.Flag("drop") == "yes", AnswerModel: c.Flag("model"),
		}
		in := c.File(t, "in")
		cut := 0
		fmt.Sscan(c.Flag("cut"), &cut)
		in = in[:len(in)-cut]
		switch c.Flag("ends") {
		case "crlf":
			in = strings.ReplaceAll(in, "\n", "\r\n")
		case "cr":
			in = strings.ReplaceAll(in, "\n", "\r")
		}
		want := tap(o, in)
		everySplit(t, o, in, want)
		out := map[string]string{"found": want.String()}
		if want.Out != in {
			out["out"] = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(want.Out)
		}
		if o.DropUsage || o.AnswerModel != "" {
			// Only watched, the answer passes as it is and tells the same.
			watched := tap(llm.TapOptions{Op: o.Op, Stream: o.Stream}, in)
			want.Out = in
			everySplit(t, llm.TapOptions{Op: o.Op, Stream: o.Stream, Whole: true}, in, want)
			if diff := cmp.Diff(want, watched); diff != "" {
				t.Errorf("without edits (-want +got):\n%s", diff)
			}
		}
		return out
	})
}

// everySplit feeds in in two parts, in three, and byte by byte.
func everySplit(t *testing.T, o llm.TapOptions, in string, want tapped) {
	t.Helper()
	check := func(parts ...string) {
		t.Helper()
		if got := tap(o, parts...); got != want {
			t.Fatalf("fed as %q (-whole +split):\n%s", parts, cmp.Diff(want, got))
		}
	}
	for i := range len(in) {
		check(in[:i], in[i:])
		j := min(i+1+i%7, len(in))
		check(in[:i], in[i:j], in[j:])
	}
	bytes := make([]string, len(in))
	for i := range len(in) {
		bytes[i] = in[i : i+1]
	}
	check(bytes...)
}

func chunkOf(text string) string {
	quoted, _ := json.Marshal(text)
	return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"served","choices":[{"index":0,"delta":{"content":` + string(quoted) + `},"finish_reason":null}]}` + "\n\n"
}

func TestWatchingReturnsTheInput(t *testing.T) {
	for _, in := range []string{chunkOf("a"), chunkOf("a")[:40], `{"model":"m",`} {
		for _, stream := range []bool{true, false} {
			tap := llm.NewTap(llm.TapOptions{Op: llm.OpChat, Stream: stream})
			b := []byte(in)
			if out := tap.Feed(b); len(out) != len(b) || &out[0] != &b[0] {
				t.Errorf("stream %v: %q is not the input", stream, out)
			}
			if out := tap.Close(); len(out) > 0 {
				t.Errorf("stream %v: %q held", stream, out)
			}
		}
	}
}

func TestWhole(t *testing.T) {
	tap := llm.NewTap(llm.TapOptions{Op: llm.OpChat, Stream: true, Whole: true})
	event := chunkOf("a")
	got := ""
	for _, in := range []string{event[:40], event[40:] + event[:9], event[9:]} {
		got += string(tap.Feed([]byte(in))) + "|"
	}
	if want := "|" + event + "|" + event + "|"; got != want || tap.MidEvent() {
		t.Errorf("passed on %q", got)
	}
}

func TestMidEvent(t *testing.T) {
	for _, o := range tapModes {
		tap := llm.NewTap(o)
		edits := o.DropUsage
		for i, in := range []string{chunkOf("a"), "data: {", "}\n", "\n"} {
			tap.Feed([]byte(in))
			if got, want := tap.MidEvent(), !edits && (i == 1 || i == 2); got != want {
				t.Errorf("%+v after input %d: %v", o, i, got)
			}
		}
	}
}

// TestHeldIsBounded: an event over the bound passes unedited and at once.
// (B39)
func TestHeldIsBounded(t *testing.T) {
	tap := llm.NewTap(llm.TapOptions{Op: llm.OpChat, Stream: true, DropUsage: true, AnswerModel: "asked"})
	part := []byte(strings.Repeat("x", 1<<20))
	fed := len(tap.Feed([]byte(`data: {"model":"served","audio":"`)))
	held := 0
	for i := range 40 {
		fed += len(tap.Feed(part))
		held = max(held, (i+1)<<20-fed)
	}
	if held > 18<<20 {
		t.Errorf("%d bytes held", held)
	}
	rest := string(tap.Feed([]byte("\"}\n\n" + chunkOf("a"))))
	if want := "\"}\n\n" + strings.Replace(chunkOf("a"), "served", "asked", 1); rest != want {
		t.Errorf("after it: %q, want %q", rest, want)
	}
}

// TestJSONHoldsLittle: a JSON body is passed as it comes.
func TestJSONHoldsLittle(t *testing.T) {
	tap := llm.NewTap(llm.TapOptions{Op: llm.OpEmbeddings, AnswerModel: "asked"})
	in := `{"object":"list","data":[{"embedding":"` + strings.Repeat("AAAA", 10_000) + `"}],"model":"se`
	if out := tap.Feed([]byte(in)); len(out) != len(in)-len(`"se`) {
		t.Errorf("%d of %d bytes passed", len(out), len(in))
	}
	if out := string(tap.Feed([]byte(`rved","usage":{"prompt_tokens":3}}`))); out != `"asked","usage":{"prompt_tokens":3}}` {
		t.Errorf("%s", out)
	}
}

func TestLongValuesInJSONPass(t *testing.T) {
	long := strings.Repeat("x", 70<<10)
	in := `{"usage":{"a":"` + long + `","prompt_tokens":1},"model":"` + long + `","error":{"message":"` + long + `"}}`
	o := llm.TapOptions{Op: llm.OpChat, AnswerModel: "asked"}
	want := tap(o, in)
	if want.Out != in || want.Usage.Source == llm.Reported || want.Failed != "" || !want.Finished {
		t.Errorf("edited %v, %v", want.Out != in, want.Usage)
	}
	for _, i := range []int{10, 40 << 10, 70<<10 + 60, 80 << 10, 200 << 10} {
		if diff := cmp.Diff(want, tap(o, in[:i], in[i:])); diff != "" {
			t.Errorf("split at %d: %s", i, diff)
		}
	}
}

func TestTapAllocatesNothing(t *testing.T) {
	chunk := []byte(chunkOf(" token"))
	half := len(chunk) / 2
	for _, o := range tapModes {
		tap := llm.NewTap(o)
		tap.Feed(chunk)
		tap.Feed(chunk[:half])
		tap.Feed(chunk[half:])
		if n := testing.AllocsPerRun(100, func() {
			tap.Feed(chunk)
			tap.Feed(chunk[:half])
			tap.Feed(chunk[half:])
		}); n != 0 {
			t.Errorf("%+v: %v allocations", o, n)
		}
	}
}

var tapModes = []llm.TapOptions{
	{Op: llm.OpChat, Stream: true},
	{Op: llm.OpChat, Stream: true, DropUsage: true},
	{Op: llm.OpChat, Stream: true, DropUsage: true, AnswerModel: "asked"},
}

func FuzzTapStream(f *testing.F) {
	f.Add(chunkOf("ä")+"data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n", uint16(40), uint16(200))
	f.Add("event: response.completed\r\ndata: {\"type\":\"response.completed\",\r\ndata: \"response\":{\"model\":\"m\",\"usage\":{\"input_tokens\":3}}}\r\n\r\n", uint16(3), uint16(70))
	f.Add("event: error\ndata: {\"error\":{\"message\":\"x\"}}\n\n", uint16(1), uint16(2))
	f.Add("\xEF\xBB\xBFdata:[DONE]", uint16(1), uint16(2))
	f.Add("{\"error\":{\"message\":\"x\"},\"model\":\"m\"}", uint16(5), uint16(20))
	for _, in := range caseFiles(f, "testdata/answers/*.txtar", "in") {
		f.Add(in, uint16(len(in)/3), uint16(len(in)/2))
	}
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		for _, op := range []llm.Op{llm.OpChat, llm.OpResponses, llm.OpMessages, llm.OpGenerate, llm.OpSpeech} {
			splitTwice(t, llm.TapOptions{Op: op, Stream: true, DropUsage: true, AnswerModel: "as\"ked"}, in, a, b)
			if got := splitTwice(t, llm.TapOptions{Op: op, Stream: true}, in, a, b); got.Out != in {
				t.Fatalf("watching changed %q to %q", in, got.Out)
			}
		}
	})
}

func splitTwice(t *testing.T, o llm.TapOptions, in string, a, b uint16) tapped {
	t.Helper()
	want := tap(o, in)
	i := int(a) % (len(in) + 1)
	j := i + int(b)%(len(in)-i+1)
	if diff := cmp.Diff(want, tap(o, in[:i], in[i:j], in[j:])); diff != "" {
		t.Fatalf("%q split at %d, %d (-whole +split):\n%s", in, i, j, diff)
	}
	return want
}

// FuzzTapJSON also holds the edit against encoding/json.
func FuzzTapJSON(f *testing.F) {
	f.Add(`{"id":"x","model":"m","choices":[{"index":0,"message":{"content":"a\"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`, uint16(9), uint16(30))
	f.Add(` { "error" : {"message":"x"} , "model" : "m" } `, uint16(9), uint16(30))
	f.Add(`{"object":"error","message":"bad","a":[{"model":"x"}]}`, uint16(1), uint16(3))
	f.Add(`{"model":{"model":"x"},"status":"incomplete","incomplete_details":{"reason":"y"}}`, uint16(1), uint16(3))
	f.Add(`<html>`, uint16(1), uint16(3))
	for _, in := range caseFiles(f, "testdata/answers/json_*.txtar", "in") {
		f.Add(in, uint16(len(in)/3), uint16(len(in)/2))
	}
	f.Fuzz(func(t *testing.T, in string, a, b uint16) {
		for _, op := range []llm.Op{llm.OpChat, llm.OpResponses, llm.OpMessages, llm.OpGenerate, llm.OpRerank} {
			if got := splitTwice(t, llm.TapOptions{Op: op}, in, a, b); got.Out != in {
				t.Fatalf("watching changed %q to %q", in, got.Out)
			}
			got := splitTwice(t, llm.TapOptions{Op: op, AnswerModel: "as\"ked"}, in, a, b)
			var before, after map[string]json.RawMessage
			if json.Unmarshal([]byte(in), &before) != nil || before == nil {
				continue
			}
			if !got.Finished {
				t.Fatalf("%q did not finish", in)
			}
			if err := json.Unmarshal([]byte(got.Out), &after); err != nil {
				t.Fatalf("%q became %q: %v", in, got.Out, err)
			}
			name := "model"
			if op == llm.OpGenerate {
				name = "modelVersion"
			}
			delete(before, name)
			delete(after, name)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Fatalf("%q became %q:\n%s", in, got.Out, diff)
			}
		}
	})
}

func BenchmarkTap(b *testing.B) {
	chunk := []byte(chunkOf(" token"))
	names := []string{"watch", "drop", "drop+model"}
	for i, o := range tapModes {
		b.Run(names[i], func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(chunk)))
			tap := llm.NewTap(o)
			for b.Loop() {
				tap.Feed(chunk)
			}
		})
	}
}

func BenchmarkTapJSON(b *testing.B) {
	floats := strings.Repeat("-0.0123456,", 1536)
	body := []byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[` + floats + `0]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		tap := llm.NewTap(llm.TapOptions{Op: llm.OpEmbeddings, AnswerModel: "asked"})
		for rest := body; len(rest) > 0; {
			n := min(4096, len(rest))
			tap.Feed(rest[:n])
			rest = rest[n:]
		}
		tap.Close()
	}
}

// A count that no answer can have is as good as none.
func TestImpossibleUsage(t *testing.T) {
	for _, n := range []string{"9007199254740992", "-3", "1e30", "2147483648", `"7"`} {
		tap := llm.NewTap(llm.TapOptions{Op: llm.OpChat})
		tap.Feed([]byte(`{"model":"m","choices":[],"usage":{"prompt_tokens":` + n + `,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":` + n + `}}}`))
		tap.Close()
		if u := tap.Usage(); u.Input != 0 || u.CacheRead != 0 || u.Output != 5 || u.Source != llm.Estimated || !u.NoPrompt || u.WithPrompt(40).Input != 40 {
			t.Errorf("%s: %+v", n, u)
		}
	}
}

// Events that differ in their content only are known by their pattern; what
// they tell must not depend on it. Each line is fed to a tap that has just seen
// a plain event, and to a fresh one.
func TestPatternTellsWhatReadingTells(t *testing.T) {
	plain := chunkOf("plain")
	raw := func(text string) string { return strings.Replace(plain, "plain", text, 1) }
	for _, next := range []string{
		raw("other"), raw("Grüße"), raw("\xff"), raw(`\u0041`), raw(`say \"x\"`), raw(""), raw("a\tb"), raw(`x"`), raw(`x\`),
		raw(`x"},"finish_reason":"stop","y":{"z":"`), raw(`x"}}],"usage":{"completion_tokens":7,"prompt_tokens":1},"y":[{"z":{"q":"`),
		strings.Replace(chunkOf("a"), `"content":"a"`, `"content":null`, 1), strings.Replace(chunkOf("a"), "null", `"length"`, 1),
		strings.Replace(chunkOf("a"), `"content":"a"`, `"tool_calls":[{"function":{"arguments":"{}"}}]`, 1),
		"data: {\"error\":{\"message\":\"content\"}}\n\n",
	} {
		for _, o := range tapModes {
			fresh, warm := llm.NewTap(o), llm.NewTap(o)
			for range 2 {
				warm.Feed([]byte(plain))
			}
			seen := warm.Tokens()
			a, b := string(fresh.Feed([]byte(next))), string(warm.Feed([]byte(next)))
			if a != b || fresh.Tokens() != warm.Tokens()-seen || fresh.FinishReason() != warm.FinishReason() ||
				fresh.Failed() != warm.Failed() || fresh.Usage().Reported() != warm.Usage().Reported() {
				t.Errorf("%q with %+v: fresh %q, %d tokens, %q; warm %q, %d tokens, %q", next, o,
					a, fresh.Tokens(), fresh.FinishReason(), b, warm.Tokens()-seen, warm.FinishReason())
			}
			// Several events in one input, the unknown one first, between, last.
			for _, all := range []string{next + plain + plain, plain + next + plain, plain + plain + next, plain + plain + next[:len(next)-1]} {
				one, many := llm.NewTap(o), llm.NewTap(o)
				one.Feed([]byte(plain))
				many.Feed([]byte(plain))
				got, want := string(one.Feed([]byte(all))), ""
				for i := range len(all) {
					want += string(many.Feed([]byte(all[i : i+1])))
				}
				got, want = got+string(one.Close()), want+string(many.Close())
				if got != want || one.Tokens() != many.Tokens() || one.FinishReason() != many.FinishReason() || one.Finished() != many.Finished() {
					t.Errorf("%q with %+v: at once %q, %d tokens; byte by byte %q, %d tokens", all, o, got, one.Tokens(), want, many.Tokens())
				}
			}
		}
	}
}

// TestPatternKeepsTheOrder feeds events one by one, where the pattern is used,
// and byte by byte, where it never is.
func TestPatternKeepsTheOrder(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(chunkOf("x"), old, new, 1) }
	const bom = "\xEF\xBB\xBF"
	stop, length, other, twice := with("null", `"stop"`), with("null", `"length"`), with("served", "other"), with(`"served"`, `"served","model":"other"`)
	for name, events := range map[string][]string{
		"finish reasons": {stop, stop, stop, length, stop, stop},
		"models":         {chunkOf("x"), other, chunkOf("x"), other, other, chunkOf("x"), chunkOf("x")},
		"two models":     {twice, twice, length, twice},
		"usage between":  {chunkOf("x"), with("served", `other","usage":{"completion_tokens":7},"x":"`), chunkOf("x")},
		"marks":          {bom + chunkOf("x"), bom + chunkOf("x"), chunkOf("x"), chunkOf("x")},
	} {
		for _, o := range tapModes {
			in := strings.Join(events, "")
			bytes := make([]string, len(in))
			for i := range len(in) {
				bytes[i] = in[i : i+1]
			}
			if diff := cmp.Diff(tap(o, bytes...), tap(o, events...)); diff != "" {
				t.Errorf("%s with %+v (-by bytes +by events):\n%s", name, o, diff)
			}
		}
	}
}
