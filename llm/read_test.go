// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/llm"
	"golang.org/x/tools/txtar"
)

// TestRequestCases reads each body and prints the view, or the error. Flags:
// op (a path), type (the Content-Type), depth, crlf (write line ends so),
// model and usage (the edits to make). The last line end is not in a body.
func TestRequestCases(t *testing.T) {
	golden.Run(t, "testdata/requests/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		out := map[string]string{}
		for i := 1; c.Has(fmt.Sprint("body", i)); i++ {
			name := fmt.Sprint("body", i)
			body := strings.TrimSuffix(c.File(t, name), "\n")
			if c.Flag("crlf") == "yes" {
				body = strings.ReplaceAll(body, "\n", "\r\n")
			}
			suffix := strings.TrimPrefix(name, "body")
			var lim llm.Limits
			fmt.Sscan(c.Flag("depth"), &lim.Depth)
			req, err := llm.ReadAt(llm.OpOf(c.Flag("op")), c.Flag("op"), c.Flag("type"), []byte(body), lim)
			if err != nil {
				out["error"+suffix] = showError(err)
				continue
			}
			out["view"+suffix] = showRequest(req)
			edited := req.Body(llm.Edits{Model: c.Flag("model"), IncludeUsage: c.Flag("usage") == "yes"})
			if string(edited) != body {
				out["edited"+suffix] = strings.ReplaceAll(string(edited), "\r\n", "\n")
			}
		}
		return out
	})
}

func showError(err *llm.Error) string {
	return fmt.Sprintf("%d %s %s %q\n%s\n", err.Status, err.Type, err.Code, err.Param, err.Message)
}

// showRequest prints what differs from the zero value.
func showRequest(r *llm.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %q", r.Op, r.Model)
	if r.Stream {
		fmt.Fprint(&b, " stream")
	}
	if r.IncludeUsage {
		fmt.Fprint(&b, " include_usage")
	}
	if r.N != 1 {
		fmt.Fprintf(&b, " n=%d", r.N)
	}
	if r.MaxTokens != 0 {
		fmt.Fprintf(&b, " max=%d", r.MaxTokens)
	}
	if r.User != "" {
		fmt.Fprintf(&b, " user=%q", r.User)
	}
	if r.CacheSalt != "" {
		fmt.Fprintf(&b, " salt=%q", r.CacheSalt)
	}
	if r.Tools != 0 {
		fmt.Fprintf(&b, " tools=%d", r.Tools)
	}
	if r.Images+r.Audio+r.Files > 0 {
		fmt.Fprintf(&b, " images=%d audio=%d files=%d", r.Images, r.Audio, r.Files)
	}
	if r.Structured {
		fmt.Fprint(&b, " structured")
	}
	if r.Reasoning {
		fmt.Fprint(&b, " reasoning")
	}
	if r.PreviousResponse != "" {
		fmt.Fprintf(&b, " previous=%q", r.PreviousResponse)
	}
	fmt.Fprintf(&b, "\n%d prompts, %d tokens\n", r.Prompt.Len(), r.Prompt.Tokens())
	for i := range r.Prompt.Len() {
		fmt.Fprintf(&b, "%s\n", shorten(promptBytes(&r.Prompt, i)))
	}
	return b.String()
}

func promptBytes(p *llm.Prompt, i int) []byte {
	var out []byte
	p.Bytes(i, func(b []byte) bool {
		out = append(out, b...)
		return true
	})
	return out
}

// shorten prints bytes on one line, the repeated hash of a medium as one word.
func shorten(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if n := 4 * llm.MediaTokens; len(b) >= n && bytes.Equal(b[:n], bytes.Repeat(b[:8], n/8)) {
			fmt.Fprintf(&out, "<medium %x>", b[:4])
			b = b[n:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 || r < ' ' || r == 0x7f {
			fmt.Fprintf(&out, "\\x%02x", b[0])
		} else {
			out.WriteRune(r)
		}
		b = b[n:]
	}
	return out.String()
}

// prompts gives the bytes of each prompt of a body that must be good.
func prompts(t *testing.T, op llm.Op, body string) (all []string) {
	t.Helper()
	req, err := llm.Read(op, "", []byte(body), llm.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for i := range req.Prompt.Len() {
		all = append(all, string(promptBytes(&req.Prompt, i)))
	}
	return all
}

func chatBody(messages string) string { return `{"model":"m","messages":[` + messages + `]}` }

func TestPromptsThatDiffer(t *testing.T) {
	bodies := []string{
		chatBody(`{"role":"user","content":"ab"},{"role":"user","content":"c"}`),
		chatBody(`{"role":"user","content":"a"},{"role":"user","content":"bc"}`),
		chatBody(`{"role":"user","content":"abc"}`),
		chatBody(`{"role":"usera","content":"bc"}`),
		chatBody(`{"role":"user","content":["ab","c"]}`),
		chatBody(`{"role":"user","content":["a","bc"]}`),
		chatBody(`{"role":"user","content":"ab\u0000c"}`),
		chatBody(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"}},"abc"]}`),
		chatBody(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:b"}},"abc"]}`),
		`{"model":"m","tools":[{}],"messages":[{"role":"user","content":"abc"}]}`,
	}
	seen := map[string]string{}
	for _, body := range bodies {
		p := prompts(t, llm.OpChat, body)[0]
		if other, ok := seen[p]; ok {
			t.Errorf("the same prompt:\n%s\n%s", other, body)
		}
		seen[p] = body
	}
}

func TestPromptsThatAgree(t *testing.T) {
	want := prompts(t, llm.OpChat, chatBody(`{"role":"user","content":"a\u00fc\n"}`))[0]
	for _, body := range []string{
		chatBody(` { "content" : "aü\u000a" , "role" : "us\u0065r" } `),
		chatBody(`{"role":"user","content":[{"type":"text","text":"aü\n"}]}`),
		chatBody(`{"r\u006fle":"user","\u0063ontent":[{"typ\u0065":"text","te\u0078t":"aü\n"}]}`),
	} {
		if got := prompts(t, llm.OpChat, body)[0]; got != want {
			t.Errorf("%s:\n%s, want\n%s", body, shorten([]byte(got)), shorten([]byte(want)))
		}
	}
}

// TestPromptKeepsPrefix: a conversation that goes on keeps the bytes of what
// was said before, or the prefix index could not find them.
func TestPromptKeepsPrefix(t *testing.T) {
	turn := `{"role":"user","content":"question one"},{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}`
	one := prompts(t, llm.OpChat, chatBody(turn))[0]
	two := prompts(t, llm.OpChat, chatBody(turn+`,{"role":"tool","content":"42"}`))[0]
	if !strings.HasPrefix(two, one) {
		t.Errorf("%s\nis no prefix of\n%s", shorten([]byte(one)), shorten([]byte(two)))
	}
}

func TestPromptLongTextInPieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	units := []string{"plain text ", "\n", "\"", "ü", "😀", strings.Repeat("long run ", 300)}
	for range 50 {
		var text strings.Builder
		for text.Len() < 20_000 {
			text.WriteString(units[rnd.IntN(len(units))])
		}
		raw, err := json.Marshal(text.String())
		if err != nil {
			t.Fatal(err)
		}
		got := prompts(t, llm.OpCompletions, `{"model":"m","prompt":`+string(raw)+`}`)[0]
		if got != text.String() {
			t.Fatal(cmp.Diff(text.String(), got))
		}
	}
}

func TestPromptStops(t *testing.T) {
	text, _ := json.Marshal(strings.Repeat("a\nb", 20_000))
	for _, content := range []string{string(text), `"` + strings.Repeat("a", 20_000) + `"`, `["` + strings.Repeat(`","`, 9000) + `"]`} {
		req, err := llm.Read(llm.OpChat, "", []byte(chatBody(`{"role":"user","content":`+content+`}`)), llm.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		req.Prompt.Bytes(0, func([]byte) bool { calls++; return false })
		if calls != 1 {
			t.Errorf("%d calls after a stop", calls)
		}
	}
}

func TestBodyWithoutEditsIsTheSame(t *testing.T) {
	body := []byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user"}]}`)
	req, err := llm.Read(llm.OpChat, "", body, llm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got := req.Body(llm.Edits{Model: "m", IncludeUsage: true}); &got[0] != &body[0] {
		t.Error("the body is a copy")
	}
}

// TestFormWithLargeFileFirst: the file holds what looks like a boundary, a
// line that only begins like it, and a model field of its own.
func TestFormWithLargeFileFirst(t *testing.T) {
	file := strings.Repeat("\r\n--Xy\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nfake\r\n--X!\x00\xff--X--", 50_000)
	body := "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + file +
		"\r\n--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--X--\r\n"
	req, err := llm.Read(llm.OpOther, "multipart/form-data; boundary=X", []byte(body), llm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if req.Model != "whisper" {
		t.Errorf("model %q", req.Model)
	}
	want := strings.Replace(body, "whisper", "other-model", 1)
	if got := string(req.Body(llm.Edits{Model: "other-model"})); got != want {
		t.Error("the edited form differs in more than the model")
	}
}

func TestReadAllocations(t *testing.T) {
	for _, c := range []struct {
		name string
		body []byte
		max  float64
	}{
		{"2 KB chat", chatOf(2_000, "plain text "), 7},
		{"400 KB chat", chatOf(400_000, "text\n"), 7},
		{"token ids", []byte(`{"model":"m","prompt":[` + strings.Repeat("1234,", 50_000) + `5]}`), 4},
	} {
		op := llm.OpChat
		if c.name == "token ids" {
			op = llm.OpCompletions
		}
		n := testing.AllocsPerRun(20, func() {
			req, err := llm.Read(op, "application/json", c.body, llm.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			req.Prompt.Bytes(0, func([]byte) bool { return true })
		})
		if n > c.max {
			t.Errorf("%s: %v allocations, at most %v", c.name, n, c.max)
		}
	}
}

// chatOf is a chat of several messages with about size bytes of text.
func chatOf(size int, unit string) []byte {
	text, _ := json.Marshal(strings.Repeat(unit, size/4/len(unit)))
	message := `{"role":"user","content":` + string(text) + `},{"role":"assistant","content":[{"type":"text","text":` + string(text) + `}]}`
	return []byte(`{"model":"meta-llama/Llama-3.1-8B-Instruct","temperature":0.7,"max_tokens":256,"stream":true,"messages":[` + message + `,` + message + `]}`)
}

// caseFiles are the files of text cases whose names begin with prefix, without
// their last line end.
func caseFiles(t testing.TB, glob, prefix string) (files []string) {
	t.Helper()
	paths, err := filepath.Glob(glob)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases match %s (%v)", glob, err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range archive.Files {
			if strings.HasPrefix(file.Name, prefix) {
				files = append(files, strings.TrimSuffix(string(file.Data), "\n"))
			}
		}
	}
	return files
}

// FuzzRead holds what is accepted, and what edits do, against encoding/json.
func FuzzRead(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"m","stream":true,"stream_options":{"include_usage":false,"x":[1]},"prompt":"a\u00fc\n","max_tokens":3}`,
		`{"stream":true,"stream_options":null,"model":"m","prompt":[1,2,3],"n":2}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],"instructions":"i","tools":[{}]}`,
		`{"model":"m","input":["a","b"],"user":"u"}`,
		`{"mod\u0065l":"m","Model":"x","prompt":[[1],[2]]}`,
		`{"model":"\ud800","prompt":"p"}`, `{"model":"m","prompt":"p",}`, "{\"model\":\"\xff\",\"prompt\":\"\"}", `[]`,
	} {
		f.Add([]byte(body))
	}
	for _, body := range caseFiles(f, "testdata/requests/*.txtar", "body") {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		valid := json.Valid(body) && utf8.Valid(body)
		for _, op := range []llm.Op{llm.OpChat, llm.OpCompletions, llm.OpEmbeddings, llm.OpResponses, llm.OpOther, llm.OpMessages, llm.OpImages, llm.OpGenerate} {
			req, refusal := llm.ReadAt(op, "/v1beta/models/m:generateContent", "", body, llm.Limits{})
			if refusal != nil {
				if refusal.Status != 400 || refusal.Message == "" {
					t.Fatalf("%+v", refusal)
				}
				if m := refusal.Message; valid && refusal.Code == "invalid_json" &&
					!strings.HasSuffix(m, "unpaired surrogate") && !strings.HasSuffix(m, "nested too deep") {
					t.Fatalf("%s refused: %v", body, refusal)
				}
				continue
			}
			if !valid {
				t.Fatalf("%q accepted", body)
			}
			checkRequest(t, req, body)
		}
	})
}

// checkRequest compares a request and its edited body with what encoding/json
// makes of the bytes.
func checkRequest(t *testing.T, req *llm.Request, body []byte) {
	t.Helper()
	var before, after map[string]any
	if err := json.Unmarshal(body, &before); err != nil {
		t.Fatal(err)
	}
	if req.Op == llm.OpGenerate {
		if req.Model != "m" || !bytes.Equal(req.Body(llm.Edits{Model: "other", IncludeUsage: true}), body) {
			t.Fatalf("%s was edited", body)
		}
		return // nothing in the body is to be edited
	}
	if before["model"] != req.Model {
		t.Fatalf("model %q, encoding/json has %q", req.Model, before["model"])
	}
	if text, ok := before["prompt"].(string); ok && req.Op == llm.OpCompletions {
		if got := string(promptBytes(&req.Prompt, 0)); got != text {
			t.Fatalf("prompt %q, encoding/json has %q", got, text)
		}
	}
	for i := range req.Prompt.Len() {
		promptBytes(&req.Prompt, i)
	}
	edited := req.Body(llm.Edits{Model: "new \"name\"", IncludeUsage: true})
	if err := json.Unmarshal(edited, &after); err != nil {
		t.Fatalf("%s became %s: %v", body, edited, err)
	}
	before["model"] = "new \"name\""
	if stream, _ := before["stream"].(bool); stream && (req.Op == llm.OpChat || req.Op == llm.OpCompletions) {
		options, _ := before["stream_options"].(map[string]any)
		if options == nil {
			options = map[string]any{}
		}
		options["include_usage"] = true
		before["stream_options"] = options
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatalf("%s became %s:\n%s", body, edited, diff)
	}
}

// FuzzForm holds the form reader against mime/multipart.
func FuzzForm(f *testing.F) {
	part := "--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n"
	file := "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\r\n--Xx\r\n\r\n"
	f.Add([]byte(file + part + "--X--"))
	f.Add([]byte(part + part + "--X--\r\n"))
	f.Add([]byte(part + "--X \r\n\r\n\r\n--X--"))
	f.Add([]byte("--X\r\nContent-Disposition:form-data;name=\"model\"\r\n:\r\n\r\n0\r\n--X--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, refusal := llm.Read(llm.OpOther, "multipart/form-data; boundary=X", body, llm.Limits{})
		if refusal != nil {
			return
		}
		if got := modelInForm(t, body); got != req.Model {
			t.Fatalf("model %q, mime/multipart has %q in %q", req.Model, got, body)
		}
		if got := modelInForm(t, req.Body(llm.Edits{Model: "new"})); got != "new" {
			t.Fatalf("edited model %q", got)
		}
	})
}

func modelInForm(t *testing.T, body []byte) string {
	t.Helper()
	r := multipart.NewReader(bytes.NewReader(body), "X")
	for {
		p, err := r.NextRawPart()
		if err != nil {
			return ""
		}
		if p.FormName() == "model" {
			value, err := io.ReadAll(p)
			if err != nil {
				t.Fatal(err)
			}
			return string(value)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	german := "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. "
	ids := []byte(`{"model":"m","prompt":[`) // of a vocabulary of 150,000, of all lengths
	for r := rand.New(rand.NewPCG(1, 2)); len(ids) < 400_000; {
		ids = fmt.Appendf(ids, "%d, ", r.IntN(150_000))
	}
	ids = append(ids, "5]}"...)
	for _, c := range []struct {
		name string
		op   llm.Op
		body []byte
	}{
		{"2KB", llm.OpChat, chatOf(2_000, "The quick brown fox jumps over the lazy dog. ")},
		{"400KB", llm.OpChat, chatOf(400_000, "The quick brown fox jumps over the lazy dog. ")},
		{"400KB-escapes", llm.OpChat, chatOf(400_000, "The quick brown fox jumps over the lazy dog,\nand \"then\" some. ")},
		{"400KB-german", llm.OpChat, chatOf(400_000, german)},
		{"400KB-cjk", llm.OpChat, chatOf(400_000, "いろはにほへとちりぬるを")},
		{"400KB-ids", llm.OpCompletions, ids},
	} {
		for _, hash := range []bool{false, true} {
			name := c.name + "/read"
			if hash {
				name = c.name + "/read+hash"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(c.body)))
				digest := xxhash.New()
				for b.Loop() {
					req, err := llm.Read(c.op, "application/json", c.body, llm.Limits{})
					if err != nil {
						b.Fatal(err)
					}
					if hash {
						digest.Reset()
						req.Prompt.Bytes(0, func(p []byte) bool { digest.Write(p); return true })
					}
				}
			})
		}
	}
}

// A body of many tiny pieces does not become many times its size.
func TestManyPieces(t *testing.T) {
	const n = 1 << 19
	for name, c := range map[string]struct {
		op         llm.Op
		head, unit string
		tokens     int
	}{
		"prompts":  {llm.OpCompletions, `"prompt":[`, `"a"`, n / 4},
		"ids":      {llm.OpEmbeddings, `"input":[`, `[1]`, n},
		"messages": {llm.OpChat, `"messages":[`, `{"role":"a"}`, n / 4},
	} {
		body := []byte(`{"model":"m",` + c.head + strings.Repeat(c.unit+",", n-1) + c.unit + `]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		req, err := llm.Read(c.op, "", body, llm.Limits{})
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: %d bytes for a body of %d", name, took, len(body))
		}
		if got := req.Prompt.Tokens(); got != c.tokens {
			t.Errorf("%s: %d tokens, want %d", name, got, c.tokens)
		}
	}
}

// vLLM merges vllm_xargs into what it hands to the engine.
func TestEngineFieldsInExtraArgs(t *testing.T) {
	for args, refused := range map[string]bool{
		`{"kv_transfer_params":"x"}`:                            true,
		`{"a":{"b":1},"kv\u005fTransfer_params":{}}`:            true,
		`{"a":1},"vllm_xargs":{}`:                               true, // twice
		`{"top_k":1,"nested":{"kv_transfer_params":"is data"}}`: false,
		`null`: false, `[]`: false,
	} {
		for _, op := range []llm.Op{llm.OpChat, llm.OpOther} {
			_, err := llm.Read(op, "", []byte(`{"model":"m","vllm_xargs":`+args+`,"messages":[{"role":"user","content":"x"}]}`), llm.Limits{})
			if (err != nil) != refused {
				t.Errorf("%s %s: %v", op, args, err)
			}
		}
	}
}
