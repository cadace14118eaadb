// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer"
)

func TestEncoding(t *testing.T) {
	for model, want := range map[string]tokenizer.Encoding{
		"gpt-5-mini": tokenizer.O200kBase, "gpt-4o": tokenizer.O200kBase, "gpt-4-turbo": tokenizer.Cl100kBase, "openai/gpt-oss-120b": tokenizer.O200kBase,
		"o3-mini": tokenizer.O200kBase, "text-embedding-3-small": tokenizer.Cl100kBase, "claude-opus": "", "llama": "", "mistral-o1": "",
	} {
		if got := encoding(model); got != want {
			t.Errorf("%s: %q, not %q", model, got, want)
		}
	}
}

func TestEstimate(t *testing.T) {
	s := New(Options{})
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 100) // ten tokens each
	x := exchangeFor(t, fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":%q}]}`, text))
	x.server = s
	plain, exact := &target{terms: terms{mark: &mark{}}}, &target{terms: terms{mark: &mark{}, encoding: tokenizer.O200kBase}}
	if got := x.estimate(exact); got < 1000 || got > 1020 {
		t.Errorf("by the tokenizer: %d, not about 1,010", got)
	}
	if got := x.estimate(plain); got < 1100 || got > 1200 {
		t.Errorf("by characters: %d", got)
	}
	for range 50 {
		plain.ratio.learn(x.estimate(nil), 1010)
	}
	if got := x.estimate(plain); got < 1000 || got > 1020 {
		t.Errorf("by characters, corrected: %d", got)
	}
	long := exchangeFor(t, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat(text, 100)))
	long.server = s
	if got := long.estimate(exact); got < 99_000 || got > 102_000 {
		t.Errorf("a part of it by the tokenizer: %d, not about 100,000", got)
	}
}
