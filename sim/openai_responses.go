// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
)

// responses answers a request for a response.
func (c *call) responses() {
	req, t, bad := c.readResponse()
	if bad != nil {
		c.refuse(bad)
		return
	}
	if !c.begin(t) {
		return
	}
	c.openaiHeaders()
	w := &responseWire{c: c, req: req, id: c.p.itemID("resp", c.id)}
	if t.stream && !c.faults.wire("json") {
		w.o = c.sse()
		c.stream(w.o, w, true)
	} else if c.complete() {
		c.reply(w.final(c.usage()))
	}
	if c.err == nil && (req.Store == nil || *req.Store) {
		w.keep()
	}
}

// keep stores the response for those that come after it.
func (w *responseWire) keep() {
	said := message{role: "assistant"}
	for i := range w.c.answers[0].parts {
		p := &w.c.answers[0].parts[i]
		b := block{kind: "text", text: p.text()}
		switch p.kind {
		case "call":
			b = block{kind: "call", id: "call_" + p.id, name: p.name, text: p.text()}
		case "reasoning":
			b.kind = "reasoning"
		}
		said.blocks = append(said.blocks, b)
	}
	history := append([]message(nil), w.c.turn.messages...)
	w.c.p.stored.put(w.id, &storedTurn{key: w.c.key, messages: append(history, said), body: encode(w.final(w.c.usage()))})
}

func (c *call) storedResponse(remove bool) {
	id := c.r.PathValue("response")
	t := c.p.stored.get(id, c.key)
	switch {
	case t == nil:
		c.refuse(&problem{class: "invalid", status: 404, message: fmt.Sprintf("Response with id '%s' not found.", id)})
	case remove:
		c.p.stored.remove(id)
		c.reply(map[string]any{"id": id, "object": "response", "deleted": true})
	default:
		c.reply(json.RawMessage(t.body))
	}
}

func (c *call) inputTokens() {
	_, t, bad := c.readResponse()
	if bad != nil {
		c.refuse(bad)
	} else if c.resolve(t.model) {
		prompt, _ := t.render()
		c.reply(map[string]any{"object": "response.input_tokens", "input_tokens": prompt.count()})
	}
}

// responseWire words one response.
type responseWire struct {
	c        *call
	o        *frames
	req      *openaiResponse
	id       string
	sequence int
	said     int // bytes of the part that runs
}

type openaiAnswer struct {
	ID           string             `json:"id"`
	Object       string             `json:"object"`
	CreatedAt    int64              `json:"created_at"`
	Status       string             `json:"status"`
	Background   bool               `json:"background"`
	Error        *responseError     `json:"error"`
	Incomplete   *map[string]string `json:"incomplete_details"`
	Instructions *string            `json:"instructions"`
	MaxOutput    *int               `json:"max_output_tokens"`
	Model        string             `json:"model"`
	Output       []any              `json:"output"`
	Parallel     bool               `json:"parallel_tool_calls"`
	Previous     *string            `json:"previous_response_id"`
	Reasoning    any                `json:"reasoning"`
	Store        bool               `json:"store"`
	Temperature  *float64           `json:"temperature"`
	Text         any                `json:"text"`
	ToolChoice   any                `json:"tool_choice"`
	Tools        []json.RawMessage  `json:"tools"`
	TopP         *float64           `json:"top_p"`
	Truncation   string             `json:"truncation"`
	Usage        any                `json:"usage"`
	Tier         string             `json:"service_tier"`
	Metadata     any                `json:"metadata"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (w *responseWire) response(status string) *openaiAnswer {
	r := w.req
	one := 1.0
	v := &openaiAnswer{
		ID: w.id, Object: "response", CreatedAt: w.c.arrival.Unix(), Status: status, Model: w.c.served(), Output: []any{},
		Parallel: !w.c.turn.single, Store: r.Store == nil || *r.Store, Temperature: &one, TopP: &one,
		MaxOutput: r.MaxOutputTokens, Truncation: "disabled", Tier: "default", Tools: r.Tools, ToolChoice: "auto",
		Text: map[string]any{"format": map[string]string{"type": "text"}}, Metadata: map[string]string{},
		Reasoning: map[string]any{"effort": nil, "summary": nil},
	}
	if r.Tools == nil {
		v.Tools = []json.RawMessage{}
	}
	if r.Temperature != nil {
		v.Temperature = r.Temperature
	}
	if r.TopP != nil {
		v.TopP = r.TopP
	}
	if len(r.ToolChoice) > 0 {
		v.ToolChoice = r.ToolChoice
	}
	if r.Reasoning != nil {
		v.Reasoning = r.Reasoning
	}
	if r.Text.Format.Type != "" {
		v.Text = r.Text
	}
	if len(r.Metadata) > 0 {
		v.Metadata = r.Metadata
	}
	if r.Instructions != "" {
		v.Instructions = &r.Instructions
	}
	if r.Previous != "" {
		v.Previous = &r.Previous
	}
	return v
}

// final is the response after the last token.
func (w *responseWire) final(n counts, known bool) *openaiAnswer {
	a := &w.c.answers[0]
	v := w.response("completed")
	switch a.finish {
	case "length":
		v.Status, v.Incomplete = "incomplete", &map[string]string{"reason": "max_output_tokens"}
	case "filter":
		v.Status, v.Incomplete = "incomplete", &map[string]string{"reason": "content_filter"}
	}
	for k := range a.parts {
		v.Output = append(v.Output, w.item(k, &a.parts[k], true))
	}
	if known {
		v.Usage = responseUsageOf(n)
	}
	return v
}

func responseUsageOf(n counts) *responseUsage {
	u := &responseUsage{InputTokens: n.prompt, OutputTokens: n.output, TotalTokens: n.prompt + n.output}
	u.InputTokensDetails.CachedTokens, u.OutputTokensDetails.ReasoningTokens = n.cached, n.reasoning
	return u
}

func (w *responseWire) itemID(k int, p *part) string {
	prefix := map[string]string{"call": "fc", "reasoning": "rs"}[p.kind]
	if prefix == "" {
		prefix = "msg"
	}
	return w.c.p.itemID(prefix, fmt.Sprintf("%s_%d", w.c.id, k))
}

// summarised says that reasoning is shown.
func (w *responseWire) summarised() bool {
	return w.req.Reasoning != nil && w.req.Reasoning.Summary != nil
}

// item is an item at its end or at its beginning.
func (w *responseWire) item(k int, p *part, done bool) any {
	text, status := "", "in_progress"
	if done {
		text, status = p.text(), "completed"
		if a := &w.c.answers[0]; k == len(a.parts)-1 && (a.finish == "length" || a.finish == "filter") {
			status = "incomplete"
		}
	}
	switch p.kind {
	case "call":
		return map[string]any{
			"id": w.itemID(k, p), "type": "function_call", "status": status, "call_id": "call_" + p.id, "name": p.name, "arguments": text,
		}
	case "reasoning":
		v := map[string]any{"id": w.itemID(k, p), "type": "reasoning", "summary": []any{}}
		if done && w.summarised() {
			v["summary"] = []any{map[string]string{"type": "summary_text", "text": text}}
		}
		for _, name := range w.req.Include {
			if name == "reasoning.encrypted_content" {
				v["encrypted_content"] = w.c.p.maker.secret.seal(p.text())
			}
		}
		return v
	}
	content := []any{}
	if done {
		content = append(content, responsePartOf(p, text))
	}
	return map[string]any{"id": w.itemID(k, p), "type": "message", "status": status, "role": "assistant", "content": content}
}

func responsePartOf(p *part, text string) any {
	if p.kind == "refusal" {
		return map[string]string{"type": "refusal", "refusal": text}
	}
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// emit writes one typed event; fields come after type and sequence number.
func (w *responseWire) emit(kind string, fields map[string]any, output bool) {
	head := fmt.Appendf(nil, `{"type":%q,"sequence_number":%d,`, kind, w.sequence)
	w.sequence++
	w.o.send(kind, append(head, encode(fields)[1:]...), output)
}

func (w *responseWire) open() {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		w.emit(kind, map[string]any{"response": w.response("in_progress")}, false)
	}
}

func (w *responseWire) part(_, k int, p *part, on bool) {
	id := w.itemID(k, p)
	of := func(more map[string]any) map[string]any {
		more["item_id"], more["output_index"] = id, k
		return more
	}
	if on {
		w.said = 0
		w.emit("response.output_item.added", map[string]any{"output_index": k, "item": w.item(k, p, false)}, p.kind == "call")
		switch {
		case p.kind == "text" || p.kind == "refusal":
			w.emit("response.content_part.added", of(map[string]any{"content_index": 0, "part": responsePartOf(p, "")}), false)
		case p.kind == "reasoning" && w.summarised():
			w.emit("response.reasoning_summary_part.added", of(map[string]any{
				"summary_index": 0, "part": map[string]string{"type": "summary_text", "text": ""},
			}), false)
		}
		return
	}
	text := p.text()
	switch p.kind {
	case "call":
		w.emit("response.function_call_arguments.done", of(map[string]any{"name": p.name, "arguments": text}), true)
	case "reasoning":
		if w.summarised() {
			w.emit("response.reasoning_summary_text.done", of(map[string]any{"summary_index": 0, "text": text}), false)
			w.emit("response.reasoning_summary_part.done", of(map[string]any{
				"summary_index": 0, "part": map[string]string{"type": "summary_text", "text": text},
			}), false)
		}
	default:
		done := map[string]any{"content_index": 0, "text": text, "logprobs": []any{}}
		kind := "response.output_text.done"
		if p.kind == "refusal" {
			done, kind = map[string]any{"content_index": 0, "refusal": text}, "response.refusal.done"
		}
		w.emit(kind, of(done), false)
		w.emit("response.content_part.done", of(map[string]any{"content_index": 0, "part": responsePartOf(p, text)}), false)
	}
	w.emit("response.output_item.done", map[string]any{"output_index": k, "item": w.item(k, p, true)}, false)
}

func (w *responseWire) piece(_, k int, p *part, text string) {
	v := map[string]any{"item_id": w.itemID(k, p), "output_index": k, "delta": text}
	kind := "response.output_text.delta"
	switch p.kind {
	case "call":
		if w.c.faults.wire("doneOnly") {
			return
		}
		kind = "response.function_call_arguments.delta"
	case "reasoning":
		if !w.summarised() {
			return
		}
		v["summary_index"], kind = 0, "response.reasoning_summary_text.delta"
	case "refusal":
		v["content_index"], kind = 0, "response.refusal.delta"
	default:
		v["content_index"], v["logprobs"] = 0, []any{}
	}
	w.emit(kind, v, true)
}

func (w *responseWire) close(n counts, known bool) {
	if w.c.faults.wire("noEnd") {
		return
	}
	v := w.final(n, known)
	w.emit("response."+v.Status, map[string]any{"response": v}, false)
}

// fail ends the stream with an error, or with a failed response.
func (w *responseWire) fail(e *problem) {
	_, body := openaiError(e)
	code, _ := body.Code.(string)
	if code == "" {
		code = "server_error"
	}
	kind, fields := "error", map[string]any{"code": code, "message": body.Message, "param": body.Param}
	if w.c.faults.wire("failedEvent") {
		v := w.response("failed")
		v.Error = &responseError{Code: code, Message: body.Message}
		kind, fields = "response.failed", map[string]any{"response": v}
	}
	head := fmt.Appendf(nil, `{"type":%q,"sequence_number":%d,`, kind, w.sequence)
	w.sequence++
	w.o.raw(w.o.frame(kind, append(head, encode(fields)[1:]...)))
}
