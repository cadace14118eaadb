// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// completion is the answer of chat and completions, whole or as a chunk.
type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"`
	// Usage is absent, null or an object, see [generation].
	Usage json.RawMessage `json:"usage,omitempty"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	Message      *chatAnswer `json:"message,omitempty"`
	Delta        *chatAnswer `json:"delta,omitempty"`
	Logprobs     *struct{}   `json:"logprobs"`
	FinishReason *string     `json:"finish_reason"`
}

// chatAnswer is a message or a delta. A null content is an absent one here
// except in a whole message with tool calls.
type chatAnswer struct {
	Role      string          `json:"role,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	ToolCalls []answerCall    `json:"tool_calls,omitempty"`
}

type answerCall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func (a *api) chat(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	g, bad := parseChat(body)
	if bad != nil {
		a.refuse(w, bad)
		return
	}
	x := a.begin(w, r, f, g, "chatcmpl")
	if x == nil {
		return
	}
	defer x.end()
	if g.stream {
		x.streamChoices("chat.completion.chunk", chatFormat{})
	} else if x.complete() {
		x.answer(x.whole("chat.completion", chatFormat{}))
	}
}

// format is how an endpoint words its choices.
type format interface {
	whole(g *generation, i int, c *choice) any
	opening(g *generation, i int) any // nil: none
	piece(g *generation, i int, text string) any
	closing(i int, finish string) any
}

func (x *exchange) completion(object string) completion {
	return completion{ID: x.g.id, Object: object, Created: x.g.created, Model: x.g.model, Choices: []any{}}
}

// whole is the answer of a finished job.
func (x *exchange) whole(object string, f format) completion {
	v := x.completion(object)
	for i, c := range x.job.choices {
		v.Choices = append(v.Choices, f.whole(x.g, i, c))
	}
	if u := x.usage(); u != nil {
		v.Usage = encode(u)
	}
	return v
}

// streamChoices writes one event per token of any choice, in the order in
// which they come, the usage if it was asked for, and the end.
func (x *exchange) streamChoices(object string, f format) {
	started, shown := false, 0
	chunk := func(choice any) bool {
		if !started {
			x.startStream()
			started = true
		}
		v := x.completion(object)
		v.Choices = append(v.Choices, choice)
		if x.g.usageChunk {
			v.Usage = json.RawMessage("null")
		}
		if x.g.continuousUsage {
			if u := x.usageAt(shown); u != nil {
				v.Usage = encode(u)
			}
		}
		return x.event("", encode(v))
	}
	sent := make([]int, len(x.job.choices))
	for open := len(sent); open > 0; {
		if !x.wait() {
			x.failStream(started)
			return
		}
		for i, c := range x.job.choices {
			p := c.now()
			if sent[i] < 0 {
				continue
			}
			for ; sent[i] < p.tokens; sent[i]++ {
				if first := f.opening(x.g, i); sent[i] == 0 && first != nil && !chunk(first) {
					return
				}
				shown++
				if text := c.out.pieces[sent[i]]; text != "" && !chunk(f.piece(x.g, i, text)) {
					return
				}
			}
			if p.done {
				if !chunk(f.closing(i, c.out.finish)) {
					return
				}
				sent[i] = -1
				open--
			}
		}
	}
	if u := x.usage(); x.g.usageChunk && u != nil {
		v := x.completion(object)
		v.Usage = encode(u)
		if !x.event("", encode(v)) {
			return
		}
	}
	x.event("", []byte("[DONE]"))
}

// failStream tells a client that its answer will not come: by status, or by an
// event and no [DONE] once the stream has begun.
func (x *exchange) failStream(started bool) {
	if x.r.Context().Err() != nil {
		return
	}
	e := &apiError{Status: http.StatusInternalServerError, Message: x.err.Error(), Type: "InternalServerError", Code: 500}
	if !started {
		x.api.refuse(x.w, e)
		return
	}
	x.event("", encode(map[string]any{"error": e}))
}

// chatFormat words chat choices.
type chatFormat struct{}

func quoted(s string) json.RawMessage { return encode(s) }

func (chatFormat) whole(g *generation, i int, c *choice) any {
	m := &chatAnswer{Role: "assistant"}
	text := c.out.text(len(c.out.pieces))
	if g.tool != nil {
		m.Content = json.RawMessage("null")
		m.ToolCalls = []answerCall{newCall(g, i, text)}
	} else {
		m.Content = quoted(text)
	}
	return chatChoice{Index: i, Message: m, FinishReason: &c.out.finish}
}

func newCall(g *generation, i int, arguments string) answerCall {
	call := answerCall{ID: callID(g, i), Type: "function"}
	call.Function.Name, call.Function.Arguments = g.tool.name, arguments
	return call
}

func callID(g *generation, i int) string { return fmt.Sprintf("call_%s_%d", g.id, i) }

func (chatFormat) opening(g *generation, i int) any {
	d := &chatAnswer{Role: "assistant"}
	if g.tool == nil {
		d.Content = quoted("")
	} else {
		call := newCall(g, i, "")
		call.Index = new(int)
		d.ToolCalls = []answerCall{call}
	}
	return chatChoice{Index: i, Delta: d}
}

func (chatFormat) piece(g *generation, i int, text string) any {
	d := &chatAnswer{}
	if g.tool == nil {
		d.Content = quoted(text)
	} else {
		call := answerCall{Index: new(int)}
		call.Function.Arguments = text
		d.ToolCalls = []answerCall{call}
	}
	return chatChoice{Index: i, Delta: d}
}

func (chatFormat) closing(i int, finish string) any {
	return chatChoice{Index: i, Delta: &chatAnswer{}, FinishReason: &finish}
}

func (a *api) completions(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	g, bad := parseCompletion(body)
	if bad != nil {
		a.refuse(w, bad)
		return
	}
	x := a.begin(w, r, f, g, "cmpl")
	if x == nil {
		return
	}
	defer x.end()
	if g.stream {
		x.streamChoices("text_completion", textFormat{})
	} else if x.complete() {
		x.answer(x.whole("text_completion", textFormat{}))
	}
}

// textFormat words the choices of completions.
type textFormat struct{}

type textChoice struct {
	Index        int       `json:"index"`
	Text         string    `json:"text"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

func (textFormat) echo(g *generation, i int) string {
	if !g.echo {
		return ""
	}
	return g.prompts[i/g.n].text()
}

func (f textFormat) whole(g *generation, i int, c *choice) any {
	text := f.echo(g, i) + c.out.text(len(c.out.pieces))
	return textChoice{Index: i, Text: text, FinishReason: &c.out.finish}
}

func (f textFormat) opening(g *generation, i int) any {
	if text := f.echo(g, i); text != "" {
		return textChoice{Index: i, Text: text}
	}
	return nil
}

func (textFormat) piece(_ *generation, i int, text string) any {
	return textChoice{Index: i, Text: text}
}

func (textFormat) closing(i int, finish string) any {
	return textChoice{Index: i, FinishReason: &finish}
}
