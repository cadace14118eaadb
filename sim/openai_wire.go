// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"net/http"
	"strings"
)

// completionWire words chat completions and legacy completions, whole and as
// chunks.
type completionWire struct {
	c     *call
	o     *frames
	words completionWords
	calls []int // per choice: begun
	roles []bool
}

// completionWords are where the two differ.
type completionWords interface {
	names() (id, whole, chunk string)
	choice(w *completionWire, i int) any                               // whole
	delta(w *completionWire, i int, p *part, on bool, text string) any // of a part that begins, or of a piece; nil: nothing
	closing(w *completionWire, i int) any
}

type completionChunk struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Choices     []any           `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	Fingerprint string          `json:"system_fingerprint,omitempty"`
	Tier        string          `json:"service_tier,omitempty"`
	Filters     []any           `json:"prompt_filter_results,omitempty"`
}

type openaiUsage struct {
	Prompt        int `json:"prompt_tokens"`
	Completion    int `json:"completion_tokens"`
	Total         int `json:"total_tokens"`
	PromptDetails struct {
		Cached int `json:"cached_tokens"`
		Audio  int `json:"audio_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int `json:"reasoning_tokens"`
		Audio     int `json:"audio_tokens"`
		Accepted  int `json:"accepted_prediction_tokens"`
		Rejected  int `json:"rejected_prediction_tokens"`
	} `json:"completion_tokens_details"`
}

func newOpenAIUsage(n counts) *openaiUsage {
	u := &openaiUsage{Prompt: n.prompt, Completion: n.output, Total: n.prompt + n.output}
	u.PromptDetails.Cached, u.CompletionDetails.Reasoning = n.cached, n.reasoning
	return u
}

func (w *completionWire) azure() bool { _, ok := w.c.p.shape.(azureShape); return ok }

func (w *completionWire) body(object string, choices ...any) completionChunk {
	id, _, _ := w.words.names()
	v := completionChunk{
		ID: id + "-" + w.c.id, Object: object, Created: w.c.arrival.Unix(), Model: w.c.served(), Choices: choices,
		Fingerprint: "fp_sim", Tier: "default",
	}
	if v.Choices == nil {
		v.Choices = []any{}
	}
	return v
}

func (w *completionWire) whole() any {
	_, object, _ := w.words.names()
	v := w.body(object)
	for i := range w.c.answers {
		v.Choices = append(v.Choices, w.words.choice(w, i))
	}
	if n, known := w.c.usage(); known {
		v.Usage = encode(newOpenAIUsage(n))
	}
	if w.azure() {
		v.Filters = promptFilters()
	}
	return v
}

func (w *completionWire) send(choice any, output bool) {
	_, _, object := w.words.names()
	v := w.body(object, choice)
	if w.c.turn.usageChunk {
		v.Usage = json.RawMessage("null")
	}
	if n, known := w.c.usage(); known && (w.c.turn.continuousUsage || w.c.faults.Usage == "every") {
		v.Usage = encode(newOpenAIUsage(n))
	}
	w.o.send("", v, output)
}

func (w *completionWire) open() {
	w.calls, w.roles = make([]int, len(w.c.answers)), make([]bool, len(w.c.answers))
	if w.azure() {
		_, _, object := w.words.names()
		v := w.body(object)
		v.Filters = promptFilters()
		w.o.send("", v, false)
	}
	w.odd()
	if len(w.c.answers[0].parts) == 0 { // an empty answer still has a role
		w.part(0, 0, &part{kind: "text"}, true)
	}
}

// odd sends chunks that lack what a client may think is always there.
func (w *completionWire) odd() {
	if !w.c.faults.wire("oddChunks") {
		return
	}
	id := map[string]any{"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
	w.o.send("", id, false)
	for _, choices := range []any{nil, []any{}, []any{map[string]any{"index": 0}}, []any{map[string]any{"index": 0, "delta": nil, "finish_reason": nil}}} {
		id["choices"] = choices
		w.o.send("", id, false)
	}
}

func (w *completionWire) part(i, _ int, p *part, on bool) {
	if !on {
		if p.kind == "call" && w.c.faults.wire("repeatArguments") {
			if d := w.words.delta(w, i, p, false, p.text()); d != nil {
				w.send(d, true)
			}
		}
		return
	}
	if p.kind == "call" {
		w.calls[i]++
	}
	if d := w.words.delta(w, i, p, true, ""); d != nil {
		w.send(d, p.kind == "call")
	}
}

func (w *completionWire) piece(i, _ int, p *part, text string) {
	if d := w.words.delta(w, i, p, false, text); d != nil {
		w.send(d, true)
	}
}

func (w *completionWire) close(n counts, known bool) {
	w.odd()
	if w.azure() {
		w.o.send("", asyncFilter(n.output), false)
	}
	for i := range w.c.answers {
		w.send(w.words.closing(w, i), false)
	}
	if w.c.turn.usageChunk && known {
		_, _, object := w.words.names()
		v := w.body(object)
		v.Usage = encode(newOpenAIUsage(n))
		w.o.send("", v, false)
	}
	if !w.c.faults.wire("noEnd") {
		w.o.send("", []byte("[DONE]"), false)
	}
}

func (w *completionWire) fail(e *problem) {
	_, body := w.c.p.shape.wording(http.Header{}, e, w.c.id)
	w.o.raw(w.o.frame("", encode(body)))
}

// chatWords word chat.
type chatWords struct{}

func (chatWords) names() (id, whole, chunk string) {
	return "chatcmpl", "chat.completion", "chat.completion.chunk"
}

type openaiChoice struct {
	Index        int            `json:"index"`
	Message      *openaiMessage `json:"message,omitempty"`
	Delta        *openaiDelta   `json:"delta,omitempty"`
	Logprobs     *struct{}      `json:"logprobs"`
	FinishReason *string        `json:"finish_reason"`
	Filters      any            `json:"content_filter_results,omitempty"`
}

type openaiMessage struct {
	Role      string       `json:"role"`
	Content   *string      `json:"content"`
	Refusal   *string      `json:"refusal"`
	Reasoning *string      `json:"reasoning_content,omitempty"`
	ToolCalls []answerCall `json:"tool_calls,omitempty"`
	Notes     []struct{}   `json:"annotations"`
}

type openaiDelta struct {
	Role      string          `json:"role,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"` // may be null
	Refusal   *string         `json:"refusal,omitempty"`
	Reasoning *string         `json:"reasoning_content,omitempty"`
	ToolCalls []answerCall    `json:"tool_calls,omitempty"`
}

func openaiFinish(a *answer) string {
	switch a.finish {
	case "calls":
		return "tool_calls"
	case "length":
		return "length"
	case "filter":
		return "content_filter"
	case "odd":
		return "" // says nothing
	}
	return "stop"
}

func (w *completionWire) choiceOf(i int, finish *string) openaiChoice {
	v := openaiChoice{Index: i, FinishReason: finish}
	if w.azure() {
		v.Filters = filterResults(finish != nil && *finish == "content_filter")
	}
	return v
}

func (chatWords) choice(w *completionWire, i int) any {
	a := &w.c.answers[i]
	m := &openaiMessage{Role: "assistant", Notes: []struct{}{}}
	for k := range a.parts {
		p := &a.parts[k]
		text := p.text()
		switch p.kind {
		case "text":
			m.Content = &text
		case "refusal":
			m.Refusal = &text
		case "reasoning":
			if w.c.p.quirk("reasoning-content") {
				m.Reasoning = &text
			}
		case "call":
			call := answerCall{ID: "call_" + p.id, Type: "function"}
			call.Function.Name, call.Function.Arguments = p.name, text
			m.ToolCalls = append(m.ToolCalls, call)
		}
	}
	if m.Content == nil && m.Refusal == nil && len(m.ToolCalls) == 0 {
		m.Content = new(string)
	}
	finish := openaiFinish(a)
	v := w.choiceOf(i, &finish)
	v.Message = m
	return v
}

func (chatWords) delta(w *completionWire, i int, p *part, on bool, text string) any {
	d := &openaiDelta{}
	if !w.roles[i] {
		w.roles[i] = true
		d.Role, d.Content = "assistant", quoted("")
		if p.kind == "call" {
			d.Content = json.RawMessage("null")
		}
	}
	begun := d.Role != ""
	switch p.kind {
	case "text":
		if on && !begun {
			return nil
		}
		if !on {
			d.Content = quoted(text)
		}
	case "refusal":
		if !on {
			d.Refusal = &text
		} else if !begun {
			return nil
		}
	case "reasoning":
		if !on && w.c.p.quirk("reasoning-content") {
			d.Reasoning = &text
		} else if !begun {
			return nil
		}
	case "call":
		at := w.calls[i] - 1
		call := answerCall{Index: &at}
		call.Function.Arguments = text
		if on {
			call.ID, call.Type, call.Function.Name = "call_"+p.id, "function", p.name
			if w.c.faults.wire("together") {
				d.Content = quoted("together ")
			}
		}
		d.ToolCalls = []answerCall{call}
	}
	v := w.choiceOf(i, nil)
	v.Delta = d
	return v
}

func (chatWords) closing(w *completionWire, i int) any {
	finish := openaiFinish(&w.c.answers[i])
	v := w.choiceOf(i, &finish)
	v.Delta = &openaiDelta{}
	return v
}

// textWords word legacy completions.
type textWords struct{ echo bool }

func (textWords) names() (id, whole, chunk string) {
	return "cmpl", "text_completion", "text_completion"
}

type openaiText struct {
	Text         string    `json:"text"`
	Index        int       `json:"index"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

func (f textWords) prompt(w *completionWire, i int) string {
	if !f.echo {
		return ""
	}
	return w.c.turn.prompts[i/max(1, w.c.turn.n)].text()
}

func (f textWords) choice(w *completionWire, i int) any {
	var text strings.Builder
	text.WriteString(f.prompt(w, i))
	for k := range w.c.answers[i].parts {
		text.WriteString(w.c.answers[i].parts[k].text())
	}
	finish := openaiFinish(&w.c.answers[i])
	return openaiText{Text: text.String(), Index: i, FinishReason: &finish}
}

func (f textWords) delta(w *completionWire, i int, _ *part, on bool, text string) any {
	if on {
		if text = f.prompt(w, i); text == "" {
			return nil
		}
	}
	return openaiText{Text: text, Index: i}
}

func (textWords) closing(w *completionWire, i int) any {
	finish := openaiFinish(&w.c.answers[i])
	return openaiText{Index: i, FinishReason: &finish}
}
