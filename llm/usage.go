// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// Usage is what an answer cost. The counts are disjoint: none contains another,
// whatever the dialect says about its own, so that they can be added and priced
// one by one. None is negative.
type Usage struct {
	Input        int `json:"input"`                  // tokens of text that no cache had
	CacheRead    int `json:"cacheRead,omitempty"`    // that a cache of the server had
	CacheWrite   int `json:"cacheWrite,omitempty"`   // that it put into one, for five minutes or for as long as it likes
	CacheWrite1h int `json:"cacheWrite1h,omitempty"` // for an hour
	AudioInput   int `json:"audioInput,omitempty"`   // of sound that no cache had
	ImageInput   int `json:"imageInput,omitempty"`   // of images, where the server tells them apart

	Output      int `json:"output"` // tokens of text, calls of tools included
	Reasoning   int `json:"reasoning,omitempty"`
	AudioOutput int `json:"audioOutput,omitempty"`
	ImageOutput int `json:"imageOutput,omitempty"`
	Images      int `json:"images,omitempty"`   // images that were made
	Searches    int `json:"searches,omitempty"` // searches of the web by the server
	Units       int `json:"units,omitempty"`    // search units of a rerank
	Millis      int `json:"millis,omitempty"`   // of sound, where that is what is billed

	Source   Source `json:"source"`
	Tier     string `json:"-"` // of service, as the server names it; "": it says nothing
	NoPrompt bool   `json:"-"` // the server's count of the prompt is missing, or cannot be
}

// Source is who has counted.
type Source uint8

// The sources, from none to the best.
const (
	Nothing   Source = iota // nothing was used, or nothing is known
	Lost                    // the server may have worked, and nobody can say how much
	Partial                 // the answer broke off: what had passed by then
	Estimated               // the gateway counted, all of it or what the server's count lacks or cannot be
	Reported                // the server
)

// String is the source as records have it.
func (s Source) String() string {
	switch s {
	case Lost:
		return "lost"
	case Partial:
		return "partial"
	case Estimated:
		return "estimated"
	case Reported:
		return "reported"
	}
	return "none"
}

// MarshalText makes JSON carry the name.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name; one that is not known is Nothing.
func (s *Source) UnmarshalText(b []byte) error {
	*s = Nothing
	for _, v := range [...]Source{Lost, Partial, Estimated, Reported} {
		if v.String() == string(b) {
			*s = v
		}
	}
	return nil
}

// Reported says that the counts are the server's.
func (u Usage) Reported() bool { return u.Source == Reported }

// Prompt is all tokens of the prompt: the context that was used.
func (u Usage) Prompt() int {
	return u.Input + u.CacheRead + u.CacheWrite + u.CacheWrite1h + u.AudioInput + u.ImageInput
}

// Completion is all tokens of the answer.
func (u Usage) Completion() int { return u.Output + u.Reasoning + u.AudioOutput + u.ImageOutput }

// Written is what went into a cache of the server, for however long.
func (u Usage) Written() int { return u.CacheWrite + u.CacheWrite1h }

// tally is usage as a server tells it, before it is taken apart. Totals contain
// their parts, as OpenAI has it; dialects in which they do not add them up.
// Later numbers replace earlier ones: servers that report more than once count up.
type tally struct {
	prompt, completion number

	cached, written, written1h number // of the prompt
	audioIn, imageIn           number
	cachedAudio                number // of the cached
	reasoning                  number // of the completion
	audioOut, imageOut         number
	total                      number
	images, searches, units    number
	millis                     number
	tier                       string
}

// number is one count. What cannot be one is remembered as such: it is not known,
// which is not zero.
type number struct {
	n    int
	told bool // the server said something
	odd  bool // which cannot be: a part of a token, rounded up, or bad
	bad  bool // which no answer can have used: negative, or beyond maxCount; then n is 0
}

// maxCount is beyond any answer's tokens, by a factor of ten at the least. A
// server that reports more is wrong.
const maxCount = 100_000_000

// read takes the number at s. null tells nothing.
func (c *number) read(s *jsonedit.Scanner, data []byte) {
	span, ok := s.Number()
	if !ok {
		odd := s.Peek() == jsonedit.String || s.Peek() == jsonedit.True
		s.Skip()
		if odd {
			*c = badNumber()
		}
		return
	}
	*c = readCount(span.Of(data))
}

func badNumber() number { return number{told: true, odd: true, bad: true} }

// readCount reads a number of JSON: a count, even where it is written 12.0 or
// 1.2e1. A part of a token is rounded up, and odd.
func readCount(text []byte) number {
	if n, ok := jsonedit.Int(text); ok {
		if n < 0 || n > maxCount {
			return badNumber()
		}
		return number{n: n, told: true}
	}
	n, exact, ok := ceilOf(text)
	if !ok {
		return badNumber()
	}
	return number{n: n, told: true, odd: !exact}
}

// ceilOf is the value of a number of JSON, rounded up; exact: nothing was. ok
// says no to what is negative or beyond maxCount.
func ceilOf(text []byte) (n int, exact, ok bool) {
	whole, exp := string(text), 0
	if i := strings.IndexAny(whole, "eE"); i >= 0 {
		e, fits := jsonedit.Int([]byte(strings.TrimPrefix(whole[i+1:], "+")))
		if !fits || e > 1000 {
			e = 1000 // of zero it is zero all the same
		}
		whole, exp = whole[:i], max(e, -1000)
	}
	negative := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	point := strings.IndexByte(whole, '.')
	digits := whole
	if point >= 0 {
		digits = whole[:point] + whole[point+1:]
	} else {
		point = len(whole)
	}
	point += exp // digits before it are whole
	exact = true
	for i := range len(digits) {
		switch c := digits[i]; {
		case i < point:
			if n = n*10 + int(c-'0'); n > maxCount {
				return 0, false, false
			}
		case c != '0':
			exact = false
		}
	}
	for i := len(digits); i < point && n > 0; i++ {
		if n *= 10; n > maxCount {
			return 0, false, false
		}
	}
	if !exact {
		n++
	}
	return n, exact, n == 0 || !negative
}

// part is the count of a part, which is not more than what is left of its whole;
// fits is taken away where it is.
func (c number) part(left *int, fits *bool) int {
	n := min(c.n, *left)
	*fits = *fits && n == c.n && !c.odd
	*left -= n
	return n
}

// whole says that one of the totals was told: there is a report at all.
func (t *tally) whole() bool {
	return t.prompt.told || t.completion.told || t.units.told || t.millis.told
}

// usage takes the totals apart. Source is Nothing if the server told none, and
// Estimated if what it told cannot be.
func (t *tally) usage() Usage {
	if !t.whole() {
		if !t.total.told {
			return Usage{}
		}
		t.prompt = t.total // reranking has nothing else
	}
	fits := !t.prompt.odd && !t.completion.odd
	u := Usage{Tier: t.tier, Images: t.images.n, Searches: t.searches.n, Units: t.units.n, Millis: t.millis.n}
	fits = fits && !t.images.odd && !t.searches.odd && !t.units.odd && !t.millis.odd
	left, out := t.prompt.n, t.completion.n
	if t.prompt.bad {
		left = t.cached.n + t.written.n + t.written1h.n + t.audioIn.n + t.imageIn.n // that much at the least
	}
	if t.completion.bad {
		out = t.reasoning.n + t.audioOut.n + t.imageOut.n
	}
	if more := t.total.n - left - out; more > 0 && more == t.reasoning.n {
		out += more // xAI counts reasoning beside the output
	}
	u.CacheRead = t.cached.part(&left, &fits)
	u.CacheWrite1h = t.written1h.part(&left, &fits)
	u.CacheWrite = t.written.part(&left, &fits)
	// A cache may have had some of the sound, and a server need not say which.
	sound := number{n: t.audioIn.n - min(t.cachedAudio.n, t.audioIn.n), odd: t.audioIn.odd}
	if t.cached.n > 0 && !t.cachedAudio.told {
		sound.n = min(sound.n, left)
	}
	u.AudioInput = sound.part(&left, &fits)
	picture := t.imageIn
	if t.cached.n > 0 {
		picture.n = min(picture.n, left)
	}
	u.ImageInput = picture.part(&left, &fits)
	u.Input = left
	u.Reasoning = t.reasoning.part(&out, &fits)
	u.AudioOutput = t.audioOut.part(&out, &fits)
	u.ImageOutput = t.imageOut.part(&out, &fits)
	u.Output = out
	u.NoPrompt = t.prompt.bad || !t.prompt.told && t.completion.told
	if u.Source = Reported; !fits {
		u.Source = Estimated
	}
	return u
}

// ended gives usage its last form: what the server told of an answer, with what
// the gateway has counted itself where that is missing or cannot be. tokens are
// the gateway's count of the output; over says that the answer came to its end.
// The prompt, which no reader of answers has seen, is the caller's to estimate.
func (u Usage) ended(tokens int, over, generates bool) Usage {
	switch {
	case u.Source == Nothing:
		u.Output, u.Source, u.NoPrompt = tokens, Estimated, true
	case !over && u.Completion() < tokens: // some report from the beginning on
		u.Output += tokens - u.Completion()
	case generates && u.Completion() == 0 && tokens > 0:
		// Who counts nothing of an answer that says something has not counted the
		// prompt either, where that is nothing too.
		u.Output, u.Source, u.NoPrompt = tokens, min(u.Source, Estimated), u.NoPrompt || u.Prompt() == 0
	}
	if !over {
		u.Source = Partial
	}
	return u
}

// over says that no more can follow that costs anything: what the server has told
// is all of it.
func (a *answer) over(stream bool) bool {
	switch {
	case !a.usage.Told():
		return (a.finished || a.finish != "") && a.failed == ""
	case stream:
		return a.finished || a.finish != ""
	}
	return true
}

// Told says that the server has told something that can be passed on.
func (u Usage) Told() bool { return u.Source >= Estimated }

// WithPrompt is u with the gateway's estimate of the prompt, if the server has said
// nothing of it that could be believed.
func (u Usage) WithPrompt(tokens int) Usage {
	if !u.NoPrompt {
		return u
	}
	if more := tokens - u.Prompt(); more > 0 {
		u.Input += more
	}
	u.Source = min(u.Source, Estimated)
	return u
}

// readDetails reads the parts of a prompt or of a completion, by OpenAI's names.
func (t *tally) readDetails(s *jsonedit.Scanner, data []byte, prompt bool) {
	for key := range s.Members() {
		switch name := string(key.Of(data)); {
		case prompt && name == "cached_tokens":
			t.cached.read(s, data)
		case prompt && (name == "cache_write_tokens" || name == "cache_creation_tokens"):
			t.written.read(s, data)
		case prompt && name == "audio_tokens":
			t.audioIn.read(s, data)
		case prompt && name == "image_tokens":
			t.imageIn.read(s, data)
		case prompt && name == "cached_tokens_details":
			t.readCachedDetails(s, data)
		case !prompt && name == "reasoning_tokens":
			t.reasoning.read(s, data)
		case !prompt && name == "audio_tokens":
			t.audioOut.read(s, data)
		case !prompt && name == "image_tokens":
			t.imageOut.read(s, data)
		default:
			s.Skip()
		}
	}
}

func (t *tally) readCachedDetails(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		if string(key.Of(data)) == "audio_tokens" {
			t.cachedAudio.read(s, data)
		} else {
			s.Skip()
		}
	}
}

// readOpenAI reads a usage object of either shape: prompt and completion (chat,
// completions, embeddings) or input and output tokens (responses, images, sound).
func (t *tally) readOpenAI(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		switch string(key.Of(data)) {
		case "prompt_tokens", "input_tokens":
			t.prompt.read(s, data)
		case "completion_tokens", "output_tokens":
			t.completion.read(s, data)
		case "prompt_tokens_details", "input_tokens_details", "input_token_details":
			t.readDetails(s, data, true)
		case "completion_tokens_details", "output_tokens_details", "output_token_details":
			t.readDetails(s, data, false)
		case "total_tokens":
			t.total.read(s, data)
		case "prompt_cache_hit_tokens": // DeepSeek
			t.cached.read(s, data)
		case "num_search_queries": // Perplexity
			t.searches.read(s, data)
		case "seconds": // of sound: transcription
			t.millis.readSeconds(s, data)
		default:
			s.Skip()
		}
	}
}

// readSeconds reads a span of seconds, in thousandths of one.
func (c *number) readSeconds(s *jsonedit.Scanner, data []byte) {
	span, ok := s.Number()
	if !ok {
		s.Skip()
		return
	}
	text := append([]byte(nil), span.Of(data)...)
	if strings.ContainsAny(string(text), "eE") {
		*c = badNumber()
		return
	}
	n, _, fits := ceilOf(append(text, "e3"...))
	if *c = (number{n: n, told: true}); !fits {
		*c = badNumber()
	}
}

// readAnthropic reads a usage object in which what a cache had, or got, stands
// beside the input. Its prompt is added up by promptOf.
func (t *tally) readAnthropic(s *jsonedit.Scanner, data []byte, input *number, created *number) {
	for key := range s.Members() {
		switch string(key.Of(data)) {
		case "input_tokens":
			input.read(s, data)
		case "cache_read_input_tokens":
			t.cached.read(s, data)
		case "cache_creation_input_tokens":
			created.read(s, data)
		case "cache_creation":
			t.readCreation(s, data)
		case "output_tokens":
			t.completion.read(s, data)
		case "output_tokens_details":
			t.readThinking(s, data)
		case "server_tool_use":
			t.readServerTools(s, data)
		case "service_tier":
			readText(s, data, &t.tier)
		default:
			s.Skip()
		}
	}
}

// readCreation reads how long what went into the cache stays.
func (t *tally) readCreation(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		switch string(key.Of(data)) {
		case "ephemeral_5m_input_tokens":
			t.written.read(s, data)
		case "ephemeral_1h_input_tokens":
			t.written1h.read(s, data)
		default:
			s.Skip()
		}
	}
}

func (t *tally) readThinking(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		if string(key.Of(data)) == "thinking_tokens" {
			t.reasoning.read(s, data)
		} else {
			s.Skip()
		}
	}
}

func (t *tally) readServerTools(s *jsonedit.Scanner, data []byte) {
	for key := range s.Members() {
		if string(key.Of(data)) == "web_search_requests" {
			t.searches.read(s, data)
		} else {
			s.Skip()
		}
	}
}

// beside makes the prompt of what stands side by side.
func (t *tally) beside(input, created number) {
	if created.told {
		// The sum holds; the split by time only says what of it is for an hour.
		t.written = number{n: max(0, created.n-t.written1h.n), told: true, odd: created.odd}
	}
	t.prompt = number{n: input.n + t.cached.n + t.written.n + t.written1h.n, told: input.told || t.cached.told || created.told, odd: input.odd, bad: input.bad}
}

// anthropicUsage is a usage object as the server sends it. Later ones overwrite
// the members that they have.
type anthropicUsage struct {
	tally
	input, created number
}

func (u *anthropicUsage) merge(s *jsonedit.Scanner, data []byte) {
	u.readAnthropic(s, data, &u.input, &u.created)
	u.beside(u.input, u.created)
}

// bedrockUsage reads usage, in which what was cached stands beside the input.
func bedrockUsage(s *jsonedit.Scanner, data []byte) Usage {
	if !s.Object() {
		s.Skip()
		return Usage{}
	}
	var t tally
	var input, created number
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "inputTokens":
			input.read(s, data)
		case "outputTokens":
			t.completion.read(s, data)
		case "cacheReadInputTokens":
			t.cached.read(s, data)
		case "cacheWriteInputTokens":
			created.read(s, data)
		case "cacheDetails":
			t.readCacheDetails(s, data)
		default:
			s.Skip()
		}
	}
	t.beside(input, created)
	return t.usage()
}

// readCacheDetails reads Bedrock's list of what was written for how long.
func (t *tally) readCacheDetails(s *jsonedit.Scanner, data []byte) {
	if !s.Array() {
		s.Skip()
		return
	}
	for s.NextElement() {
		if !s.Object() {
			s.Skip()
			continue
		}
		var n number
		ttl := ""
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			switch string(key.Of(data)) {
			case "inputTokens":
				n.read(s, data)
			case "ttl":
				readText(s, data, &ttl)
			default:
				s.Skip()
			}
		}
		if ttl == "1h" {
			t.written1h = n
		}
	}
}

// geminiUsage reads usageMetadata, in which thoughts stand beside the output and
// what tools put into the prompt beside the prompt.
func geminiUsage(s *jsonedit.Scanner, data []byte) Usage {
	if !s.Object() {
		s.Skip()
		return Usage{}
	}
	var t tally
	var tools, candidates number
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "promptTokenCount":
			t.prompt.read(s, data)
		case "cachedContentTokenCount":
			t.cached.read(s, data)
		case "candidatesTokenCount":
			candidates.read(s, data)
		case "thoughtsTokenCount":
			t.reasoning.read(s, data)
		case "toolUsePromptTokenCount":
			tools.read(s, data)
		case "totalTokenCount":
			t.total.read(s, data)
		case "promptTokensDetails":
			readModalities(s, data, &t.audioIn, &t.imageIn)
		case "cacheTokensDetails":
			var pictures number
			readModalities(s, data, &t.cachedAudio, &pictures)
		case "candidatesTokensDetails":
			readModalities(s, data, &t.audioOut, &t.imageOut)
		case "serviceTier":
			readText(s, data, &t.tier)
		default:
			s.Skip()
		}
	}
	if !t.prompt.told && !candidates.told && !t.total.told {
		return Usage{}
	}
	t.prompt.n += tools.n
	t.prompt.told = true
	t.completion = number{n: candidates.n + t.reasoning.n, told: true, odd: candidates.odd || t.reasoning.odd, bad: candidates.bad}
	if t.completion.n == 0 && t.total.n > t.prompt.n {
		t.completion.n = t.total.n - t.prompt.n
	}
	t.total = number{}
	return t.usage()
}

// readModalities reads Gemini's list of tokens by what they are of.
func readModalities(s *jsonedit.Scanner, data []byte, audio, image *number) {
	if !s.Array() {
		s.Skip()
		return
	}
	for s.NextElement() {
		if !s.Object() {
			s.Skip()
			continue
		}
		var n number
		kind := ""
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			switch string(key.Of(data)) {
			case "modality":
				readText(s, data, &kind)
			case "tokenCount":
				n.read(s, data)
			default:
				s.Skip()
			}
		}
		switch kind {
		case "AUDIO":
			*audio = n
		case "IMAGE":
			*image = n
		}
	}
}
