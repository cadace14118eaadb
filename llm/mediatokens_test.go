// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"testing"

	"github.com/penstock/penstock/llm"
)

// TestMediaTokens counts pictures and sound by what the makers have published.
func TestMediaTokens(t *testing.T) {
	picture := func(w, h int, encode func(*bytes.Buffer, image.Image)) string {
		var b bytes.Buffer
		encode(&b, image.NewGray(image.Rect(0, 0, w, h)))
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	asPNG := func(b *bytes.Buffer, m image.Image) { png.Encode(b, m) }
	asJPEG := func(b *bytes.Buffer, m image.Image) { jpeg.Encode(b, m, nil) }
	wav := make([]byte, 44+64_000) // two seconds of 16 kHz
	copy(wav, "RIFF....WAVEfmt ")
	binary.LittleEndian.PutUint32(wav[28:], 32_000)
	sound := base64.StdEncoding.EncodeToString(wav)
	for _, c := range []struct {
		name, part                string
		openai, anthropic, gemini int
	}{
		{"1024 × 1024", `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture(1024, 1024, asPNG) + `"}}`, 765, 1398, 1032},
		{"2048 × 4096", `{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + picture(2048, 4096, asJPEG) + `"}}`, 1105, 1600, 4644},
		{"200 × 200", `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture(200, 200, asPNG) + `"}}`, 255, 53, 258},
		{"elsewhere", `{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}`, 765, 1398, 1032},
		{"low", `{"type":"image_url","image_url":{"detail":"low","url":"data:image/png;base64,` + picture(1024, 1024, asPNG) + `"}}`, 85, 1398, 1032},
		{"low, said last", `{"image_url":{"url":"https://example.com/a.png","detail":"low"},"type":"image_url"}`, 85, 1398, 1032},
		{"low, of Responses", `{"type":"input_image","image_url":"https://example.com/a.png","detail":"low"}`, 85, 1398, 1032},
		{"high", `{"type":"image_url","image_url":{"url":"https://example.com/a.png","detail":"high"}}`, 765, 1398, 1032},
		{"sound", `{"type":"input_audio","input_audio":{"format":"wav","data":"` + sound + `"}}`, 30, 30, 96},
		{"broken", `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}`, 765, 1398, 1032},
	} {
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":[%s]}]}`, c.part)
		r, fail := llm.Read(llm.OpChat, "application/json", []byte(body), llm.Limits{})
		if fail != nil {
			t.Fatal(fail)
		}
		text := r.Prompt.Tokens() - llm.MediaTokens
		for rule, want := range map[llm.MediaRule]int{llm.MediaOpenAI: c.openai, llm.MediaAnthropic: c.anthropic, llm.MediaGemini: c.gemini, llm.MediaPlain: llm.MediaTokens} {
			if got := r.Prompt.TokensBy(rule) - text; got != want {
				t.Errorf("%s by rule %d: %d tokens, want %d", c.name, rule, got, want)
			}
		}
	}
}

// FuzzUsage: whatever a server reports, in any dialect, no count is negative or
// beyond what an answer can have, and what was not believed is marked.
func FuzzUsage(f *testing.F) {
	for _, usage := range []string{
		`{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":90,"audio_tokens":4},"completion_tokens_details":{"reasoning_tokens":9}}`,
		`{"input_tokens":-1,"cache_read_input_tokens":1e30,"cache_creation":{"ephemeral_1h_input_tokens":2.5},"output_tokens":"7"}`,
		`{"promptTokenCount":90,"toolUsePromptTokenCount":10,"cachedContentTokenCount":1e5,"candidatesTokenCount":12,"thoughtsTokenCount":-8}`,
		`{"inputTokens":1,"outputTokens":2,"cacheDetails":[{"ttl":"1h","inputTokens":5}],"total_tokens":99999999999999999999}`,
	} {
		f.Add(usage)
	}
	f.Fuzz(func(t *testing.T, usage string) {
		for _, op := range []llm.Op{llm.OpChat, llm.OpResponses, llm.OpMessages, llm.OpGenerate, llm.OpEmbeddings, llm.OpRerank, llm.OpTranscription} {
			for _, body := range []string{`{"usage":` + usage + `}`, `{"usageMetadata":` + usage + `}`, `{"meta":{"tokens":` + usage + `,"billed_units":` + usage + `}}`} {
				tap := llm.NewTap(llm.TapOptions{Op: op})
				tap.Feed([]byte(body))
				tap.Close()
				u := tap.Usage().WithPrompt(10)
				for _, n := range []int{u.Input, u.CacheRead, u.CacheWrite, u.CacheWrite1h, u.AudioInput, u.ImageInput, u.Output, u.Reasoning, u.AudioOutput, u.ImageOutput, u.Images, u.Searches, u.Units, u.Millis} {
					if n < 0 || n > 1_000_000_000 {
						t.Fatalf("%v %s: %+v", op, body, u)
					}
				}
				if u.NoPrompt && u.Source == llm.Reported {
					t.Fatalf("%v %s: reported without a prompt: %+v", op, body, u)
				}
			}
		}
	})
}
