// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"
	"sync"

	"github.com/penstock/penstock/llm"
	"github.com/tiktoken-go/tokenizer"
)

// This file estimates how many tokens a prompt has for a target: by the tokenizer
// of OpenAI's families, by characters for everybody else. Either is corrected by
// what the target has reported for earlier prompts.

// exactBytes is how much of a prompt is counted by a tokenizer; the rest is taken
// to be like it. Counting costs about a millisecond for so much.
const exactBytes = 64 << 10

// encoding is the tokenizer of a model, "" for those that are not OpenAI's.
func encoding(model string) tokenizer.Encoding {
	name := model[strings.LastIndexByte(model, '/')+1:]
	for _, family := range [...]struct {
		prefix   string
		encoding tokenizer.Encoding
	}{
		{"gpt-5", tokenizer.O200kBase}, {"gpt-4.1", tokenizer.O200kBase}, {"gpt-4o", tokenizer.O200kBase}, {"chatgpt-4o", tokenizer.O200kBase},
		{"gpt-oss", tokenizer.O200kBase}, {"o1", tokenizer.O200kBase}, {"o3", tokenizer.O200kBase}, {"o4", tokenizer.O200kBase},
		{"gpt-4", tokenizer.Cl100kBase}, {"gpt-3.5", tokenizer.Cl100kBase}, {"text-embedding-", tokenizer.Cl100kBase},
	} {
		if strings.HasPrefix(name, family.prefix) {
			return family.encoding
		}
	}
	return ""
}

// tokenizers are made at their first use: each takes some tenths of a second and
// some tens of megabytes.
type tokenizers struct {
	mu     sync.Mutex
	codecs map[tokenizer.Encoding]tokenizer.Codec
}

func (t *tokenizers) of(e tokenizer.Encoding) tokenizer.Codec {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.codecs[e]
	if !ok {
		var err error
		if c, err = tokenizer.Get(e); err != nil {
			c = nil
		}
		if t.codecs == nil {
			t.codecs = map[tokenizer.Encoding]tokenizer.Codec{}
		}
		t.codecs[e] = c
	}
	return c
}

// counted is the prompt's tokens by a tokenizer. It is kept for the request, since
// several targets may ask.
type counted struct {
	encoding tokenizer.Encoding
	tokens   int
}

// estimate is how many tokens the prompt has for tg, about; nil: for nobody in
// particular.
func (x *exchange) estimate(tg *target) int {
	if tg == nil {
		return x.req.Prompt.Tokens()
	}
	n, by := x.count(tg)
	if by {
		return int(float64(n) * tg.exact.of())
	}
	return int(float64(n) * tg.ratio.of())
}

// count is the estimate before it is corrected. exact: by a tokenizer.
func (x *exchange) count(tg *target) (n int, exact bool) {
	plain, by := x.req.Prompt.Tokens(), tg.encoding
	if by == "" && x.op.Counts() { // the one who asks is the client
		by = encoding(tg.named(x))
	}
	if by == "" {
		return plain, false
	}
	if x.plan.counted.encoding == by {
		return x.plan.counted.tokens, true
	}
	c := x.server.tokenizers.of(by)
	if c == nil {
		return plain, false
	}
	x.plan.counted = counted{by, tokensOf(c, x, plain)}
	return x.plan.counted.tokens, true
}

// promptTokens is about how many tokens the prompt has for the target, by what is
// known already: no tokenizer is asked.
func (x *exchange) promptTokens() int {
	if x.req == nil {
		return 0
	}
	n, tg := x.req.Prompt.Tokens(), x.target
	if tg == nil || tg.mark == nil {
		return n
	}
	if c := x.plan.counted; c.encoding != "" && c.encoding == tg.encoding {
		return int(float64(c.tokens) * tg.exact.of())
	}
	return int(float64(n) * tg.ratio.of())
}

// answerCount answers a request to count with the estimate for the target, which has
// no call for it.
func (x *exchange) answerCount() {
	n := max(1, x.estimate(x.target))
	x.record.Dropped = nil
	x.estimated = "input_tokens"
	if x.op == llm.OpCountContents {
		x.estimated = "totalTokens"
	}
	h := x.w.Header()
	h.Set("X-Model-Used", x.record.ModelUsed)
	h.Set("Content-Type", "application/json")
	x.tellRouting(h)
	x.answer(http.StatusOK, llm.CountAnswer(x.op, n))
}

// tokensOf counts the text of the prompt, up to exactBytes of it. plain is the
// estimate by characters, of which the rest is taken in proportion.
func tokensOf(c tokenizer.Codec, x *exchange, plain int) int {
	p := &x.req.Prompt
	var text strings.Builder
	bytes, messages := 0, 0
	for i := range p.Len() {
		p.Bytes(i, func(b []byte) bool {
			bytes += len(b)
			if left := exactBytes - text.Len(); left > 0 {
				text.Write(b[:min(left, len(b))])
			}
			return true
		})
	}
	clean := strings.Map(func(r rune) rune {
		if r == '\uFFFD' { // the marks between the parts are no text
			messages++
			return '\n'
		}
		return r
	}, text.String())
	n, err := c.Count(clean)
	if err != nil || bytes == 0 {
		return plain
	}
	if bytes > text.Len() {
		n = int(float64(n) * float64(bytes) / float64(text.Len()))
	}
	return n
}
