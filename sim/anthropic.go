// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// anthropicShape is the Messages API.
type anthropicShape struct{}

func (anthropicShape) routes(p *Provider, mux *http.ServeMux) {
	p.handle(mux, "POST /v1/messages", func(c *call) { c.messages(false) })
	p.handle(mux, "POST /v1/messages/count_tokens", func(c *call) { c.messages(true) })
	p.handle(mux, "POST /v1/projects/{project}/locations/{location}/publishers/anthropic/models/{call...}", (*call).rawPredict)
	p.handle(mux, "GET /v1/models", func(c *call) {
		all := []any{}
		for _, name := range p.cfg.Models {
			all = append(all, anthropicModel(p, name))
		}
		c.reply(map[string]any{"data": all, "has_more": false, "first_id": p.cfg.Models[0], "last_id": p.cfg.Models[len(all)-1]})
	})
	p.handle(mux, "GET /v1/models/{id...}", func(c *call) {
		if name := c.r.PathValue("id"); c.resolve(name) {
			c.reply(anthropicModel(p, name))
		}
	})
}

func anthropicModel(p *Provider, name string) any {
	return map[string]any{
		"type": "model", "id": name, "display_name": name,
		"created_at": time.Unix(p.created, 0).UTC().Format(time.RFC3339),
	}
}

func (anthropicShape) credential(p *Provider, r *http.Request, _ []byte) (string, *problem) {
	key := r.Header.Get("x-api-key")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	switch {
	case !p.knows(key):
		return key, &problem{class: "auth", message: "invalid x-api-key"}
	case r.Header.Get("anthropic-version") == "" && !strings.HasPrefix(r.URL.Path, "/v1/projects/"):
		return key, invalidField("anthropic-version", "anthropic-version: header is required")
	}
	return key, nil
}

func (anthropicShape) wording(h http.Header, e *problem, id string) (int, any) {
	status, kind, message := 400, "invalid_request_error", e.text("The request is invalid.")
	switch e.class {
	case "auth":
		status, kind, message = 401, "authentication_error", e.text("invalid x-api-key")
	case "billing":
		status, kind, message = 402, "billing_error", e.text("There is an issue with your billing or payment information.")
	case "quota":
		message = e.text("Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.")
	case "permission":
		status, kind, message = 403, "permission_error", e.text("Your API key does not have permission to use the specified resource.")
	case "path":
		status, kind, message = 404, "not_found_error", e.text("Not Found")
	case "model":
		status, kind, message = 404, "not_found_error", e.text("model: "+e.model)
	case "timeout":
		status, kind, message = 504, "timeout_error", e.text("The request timed out.")
		if e.status == 408 {
			status = 408
		}
	case "tooLarge":
		status, kind, message = 413, "request_too_large", e.text("Request exceeds the maximum size")
	case "rate":
		status, kind, message = 429, "rate_limit_error", e.text("This request would exceed your account's rate limit. Please try again later.")
	case "server":
		status, kind, message = 500, "api_error", e.text("Internal server error")
	case "unavailable", "overloaded":
		status, kind, message = 529, "overloaded_error", e.text("Overloaded")
	case "filter":
		message = e.text("Output blocked by content filtering policy")
	case "context":
		message = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", e.used, e.most)
		if e.used <= e.most {
			message = fmt.Sprintf("input length and `max_tokens` exceed context limit: %d + %d > %d, decrease input length or `max_tokens` and try again", e.used, e.asked, e.most)
		}
	}
	h.Set("request-id", "req_"+id)
	return status, map[string]any{
		"type": "error", "error": map[string]string{"type": kind, "message": message}, "request_id": "req_" + id,
	}
}

func (anthropicShape) limited(h http.Header, l limitState) {
	reset := l.now.Add(l.reset).UTC().Format(time.RFC3339)
	set := func(what string, limit, left int) {
		if limit > 0 {
			h.Set("anthropic-ratelimit-"+what+"-limit", strconv.Itoa(limit))
			h.Set("anthropic-ratelimit-"+what+"-remaining", strconv.Itoa(left))
			h.Set("anthropic-ratelimit-"+what+"-reset", reset)
		}
	}
	set("requests", l.requests, l.requestsLeft)
	set("tokens", l.tokens, l.tokensLeft)
	set("input-tokens", l.tokens, l.tokensLeft)
	set("output-tokens", l.tokens, l.tokensLeft)
}

// rawPredict is the API as Vertex has it: the model in the path, the version in
// the body.
func (c *call) rawPredict() {
	model, method, _ := strings.Cut(c.r.PathValue("call"), ":")
	var all map[string]json.RawMessage
	err := json.Unmarshal(c.body, &all)
	switch {
	case method != "rawPredict" && method != "streamRawPredict":
		c.refuse(&problem{class: "path", message: "Not Found"})
	case err != nil:
		c.refuse(invalidField("", "The request body is not valid JSON: "+err.Error()))
	case string(all["anthropic_version"]) != `"vertex-2023-10-16"`:
		c.refuse(invalidField("anthropic_version", "anthropic_version: Field required"))
	case model == "count-tokens" && method == "rawPredict": // of the model in the body
		delete(all, "anthropic_version")
		c.body = encode(all)
		c.messages(true)
	case all["model"] != nil:
		c.refuse(invalidField("model", "model: Extra inputs are not permitted"))
	default:
		delete(all, "anthropic_version")
		delete(all, "anthropic_beta")
		all["model"], all["stream"] = encode(model), encode(method == "streamRawPredict")
		c.body = encode(all)
		c.messages(false)
	}
}

// messages answers a request for a message, or counts it.
func (c *call) messages(count bool) {
	c.w.Header().Set("request-id", "req_"+c.id)
	c.w.Header().Set("anthropic-organization-id", "org-"+c.p.cfg.Name)
	t, bad := readAnthropic(c.body, &c.p.maker.secret, count)
	if bad != nil {
		c.refuse(bad)
		return
	}
	if count {
		if c.resolve(t.model) {
			prompt, _ := t.render()
			c.reply(map[string]int{"input_tokens": prompt.count()})
		}
		return
	}
	if !c.begin(t) {
		return
	}
	w := &anthropicWire{c: c}
	if t.stream && !c.faults.wire("json") {
		w.o = c.sse()
		c.stream(w.o, w, true)
	} else if c.complete() {
		c.reply(w.whole())
	}
}

// anthropicWire words answers.
type anthropicWire struct {
	c *call
	o *frames
}

type anthropicAnswer struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Role         string          `json:"role"`
	Model        string          `json:"model"`
	Content      []any           `json:"content"`
	StopReason   *string         `json:"stop_reason"`
	StopSequence *string         `json:"stop_sequence"`
	Usage        *anthropicUsage `json:"usage,omitempty"`
}

type anthropicUsage struct {
	Input    int `json:"input_tokens"`
	Written  int `json:"cache_creation_input_tokens"`
	Read     int `json:"cache_read_input_tokens"`
	Creation struct {
		Short int `json:"ephemeral_5m_input_tokens"`
		Long  int `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	Output int    `json:"output_tokens"`
	Tier   string `json:"service_tier,omitempty"`
}

func newAnthropicUsage(n counts) *anthropicUsage {
	u := &anthropicUsage{
		Input: n.prompt - n.cached - n.written, Written: n.written, Read: n.cached, Output: n.output, Tier: "standard",
	}
	u.Creation.Short = n.written
	return u
}

func (w *anthropicWire) message() anthropicAnswer {
	return anthropicAnswer{
		ID: "msg_" + w.c.id, Type: "message", Role: "assistant", Model: w.c.served(), Content: []any{},
	}
}

// stopReason is how the answer ended.
func (w *anthropicWire) stopReason() (reason string, sequence *string) {
	a := &w.c.answers[0]
	switch a.finish {
	case "length":
		return "max_tokens", nil
	case "calls":
		return "tool_use", nil
	case "filter", "refusal":
		return "refusal", nil
	case "odd":
		return "model_context_window_exceeded", nil
	}
	if a.stop != "" {
		return "stop_sequence", &a.stop
	}
	return "end_turn", nil
}

func (w *anthropicWire) whole() any {
	v := w.message()
	a := &w.c.answers[0]
	for i := range a.parts {
		p := &a.parts[i]
		switch p.kind {
		case "reasoning":
			v.Content = append(v.Content, thinkingBlock{"thinking", p.text(), p.signature})
		case "call":
			v.Content = append(v.Content, toolUseBlock{"tool_use", "toolu_" + p.id, p.name, object(p.text())})
		default:
			v.Content = append(v.Content, textBlock{"text", p.text()})
		}
	}
	reason, sequence := w.stopReason()
	v.StopReason, v.StopSequence = &reason, sequence
	if n, known := w.c.usage(); known {
		v.Usage = newAnthropicUsage(n)
	}
	return v
}

// object is JSON text as it is, or {} if a bound has cut it.
func object(text string) json.RawMessage {
	if !json.Valid([]byte(text)) {
		return json.RawMessage("{}")
	}
	return json.RawMessage(text)
}

type (
	textBlock struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingBlock struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}
	toolUseBlock struct {
		Type  string          `json:"type"`
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	}
	anthropicEvent struct {
		Type         string           `json:"type"`
		Message      *anthropicAnswer `json:"message,omitempty"`
		Index        *int             `json:"index,omitempty"`
		ContentBlock any              `json:"content_block,omitempty"`
		Delta        any              `json:"delta,omitempty"`
		Usage        any              `json:"usage,omitempty"`
	}
)

func (w *anthropicWire) emit(e anthropicEvent, output bool) { w.o.send(e.Type, e, output) }

func (w *anthropicWire) open() {
	m := w.message()
	w.c.shown = 1
	if n, known := w.c.usage(); known {
		m.Usage = newAnthropicUsage(n)
	}
	w.c.shown = 0
	w.emit(anthropicEvent{Type: "message_start", Message: &m}, false)
}

func (w *anthropicWire) part(_, k int, p *part, on bool) {
	if !on {
		if p.kind == "reasoning" {
			delta := map[string]string{"type": "signature_delta", "signature": p.signature}
			w.emit(anthropicEvent{Type: "content_block_delta", Index: &k, Delta: delta}, false)
		}
		w.emit(anthropicEvent{Type: "content_block_stop", Index: &k}, false)
		return
	}
	var b any = textBlock{Type: "text"}
	switch p.kind {
	case "reasoning":
		b = thinkingBlock{Type: "thinking"}
	case "call":
		b = toolUseBlock{"tool_use", "toolu_" + p.id, p.name, json.RawMessage("{}")}
	}
	w.emit(anthropicEvent{Type: "content_block_start", Index: &k, ContentBlock: b}, p.kind == "call")
	if k == 0 {
		w.emit(anthropicEvent{Type: "ping"}, false)
	}
	if p.kind == "call" && p.text() != "{}" {
		delta := map[string]string{"type": "input_json_delta", "partial_json": ""}
		w.emit(anthropicEvent{Type: "content_block_delta", Index: &k, Delta: delta}, false)
	}
}

func (w *anthropicWire) piece(_, k int, p *part, text string) {
	delta := map[string]string{"type": "text_delta", "text": text}
	switch p.kind {
	case "reasoning":
		delta = map[string]string{"type": "thinking_delta", "thinking": text}
	case "call":
		if p.text() == "{}" { // a tool without arguments has no delta
			return
		}
		delta = map[string]string{"type": "input_json_delta", "partial_json": text}
	}
	w.emit(anthropicEvent{Type: "content_block_delta", Index: &k, Delta: delta}, true)
	if n, known := w.c.usage(); known && w.c.faults.Usage == "every" {
		w.emit(anthropicEvent{Type: "message_delta", Delta: map[string]any{"stop_reason": nil, "stop_sequence": nil}, Usage: newAnthropicUsage(n)}, false)
	}
}

func (w *anthropicWire) close(n counts, known bool) {
	reason, sequence := w.stopReason()
	e := anthropicEvent{Type: "message_delta", Delta: map[string]any{"stop_reason": reason, "stop_sequence": sequence}}
	if known {
		e.Usage = map[string]int{
			"input_tokens": n.prompt - n.cached - n.written, "cache_creation_input_tokens": n.written,
			"cache_read_input_tokens": n.cached, "output_tokens": n.output,
		}
	}
	w.emit(e, false)
	if !w.c.faults.wire("noEnd") {
		w.emit(anthropicEvent{Type: "message_stop"}, false)
	}
}

func (w *anthropicWire) fail(e *problem) {
	_, body := anthropicShape{}.wording(http.Header{}, e, w.c.id)
	w.o.raw(w.o.frame("error", encode(body)))
}

// anthropicRequest is what a request says that matters here.
type anthropicRequest struct {
	Model     string             `json:"model"`
	MaxTokens *int               `json:"max_tokens"`
	Messages  []anthropicMessage `json:"messages"`
	System    anthropicContent   `json:"system"`
	Tools     []struct {
		Name        string          `json:"name"`
		Type        string          `json:"type"`
		InputSchema json.RawMessage `json:"input_schema"`
		Cache       *struct{}       `json:"cache_control"`
	} `json:"tools"`
	ToolChoice *struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	StopSequences []string `json:"stop_sequences"`
	Stream        bool     `json:"stream"`
	Temperature   *float64 `json:"temperature"`
	Thinking      *struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	OutputConfig struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	Cache *struct{} `json:"cache_control"`
}

var anthropicFields = []string{
	"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stop_sequences", "stream", "temperature",
	"thinking", "output_config", "cache_control", "top_p", "top_k", "metadata", "service_tier", "container",
	"context_management", "mcp_servers", "inference_geo", "output_format",
}

type anthropicMessage struct {
	Role    string           `json:"role"`
	Content anthropicContent `json:"content"`
}

// anthropicContent is text or a list of blocks.
type anthropicContent []anthropicBlock

func (l *anthropicContent) UnmarshalJSON(raw []byte) error {
	*l = nil
	if raw[0] != '"' {
		return json.Unmarshal(raw, (*[]anthropicBlock)(l))
	}
	var s string
	err := json.Unmarshal(raw, &s)
	*l = anthropicContent{{Type: "text", Text: &s}}
	return err
}

type anthropicBlock struct {
	Type      string           `json:"type"`
	Text      *string          `json:"text"`
	ID        string           `json:"id"`
	Name      string           `json:"name"`
	Input     json.RawMessage  `json:"input"`
	ToolUseID string           `json:"tool_use_id"`
	Content   anthropicContent `json:"content"`
	Thinking  string           `json:"thinking"`
	Signature string           `json:"signature"`
	Data      string           `json:"data"`
	Source    *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
		FileID    string `json:"file_id"`
	} `json:"source"`
	Cache *struct{} `json:"cache_control"`
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)

// readAnthropic reads a request as strictly as the API does.
func readAnthropic(body []byte, secret *sealer, count bool) (*turn, *problem) {
	var req anthropicRequest
	names, err := fields(body, &req)
	if err != nil {
		return nil, invalidField("", "The request body is not valid JSON: "+err.Error())
	}
	for _, name := range names {
		if !slices.Contains(anthropicFields, name) {
			return nil, invalidField(name, name+": Extra inputs are not permitted")
		}
	}
	switch {
	case req.Model == "":
		return nil, invalidField("model", "model: Field required")
	case req.MaxTokens == nil && !count:
		return nil, invalidField("max_tokens", "max_tokens: Field required")
	case req.MaxTokens != nil && *req.MaxTokens < 1:
		return nil, invalidField("max_tokens", "max_tokens: must be greater than or equal to 1")
	case len(req.Messages) == 0:
		return nil, invalidField("messages", "messages: at least one message is required")
	case req.Temperature != nil && (*req.Temperature < 0 || *req.Temperature > 1):
		return nil, invalidField("temperature", "temperature: range: 0..1")
	}
	t := &turn{model: req.Model, stream: req.Stream, marked: true, n: 1}
	t.bounds.stop = req.StopSequences
	if req.MaxTokens != nil {
		t.bounds.most, t.bounded = *req.MaxTokens, true
	}
	if bad := req.options(t); bad != nil {
		return nil, bad
	}
	if len(req.System) > 0 {
		m, bad := req.System.message("system", "system", secret)
		if bad != nil {
			return nil, bad
		}
		t.messages = append(t.messages, m)
	}
	if bad := req.conversation(t, secret); bad != nil {
		return nil, bad
	}
	marks := 0
	for _, f := range t.tools {
		if f.mark {
			marks++
		}
	}
	for _, m := range t.messages {
		for _, b := range m.blocks {
			if b.mark {
				marks++
			}
		}
	}
	if marks > 4 {
		return nil, invalidField("", fmt.Sprintf("A maximum of 4 blocks with cache_control may be provided. Found %d.", marks))
	}
	if req.Cache != nil {
		blocks := t.messages[len(t.messages)-1].blocks
		if len(blocks) > 0 {
			blocks[len(blocks)-1].mark = true
		}
	}
	return t, nil
}

// options reads tools, their choice, thinking and the form of the output.
func (req *anthropicRequest) options(t *turn) *problem {
	for i, tool := range req.Tools {
		at := fmt.Sprintf("tools.%d", i)
		if tool.Type != "" && tool.Type != "custom" {
			continue // tools of the server do nothing here
		}
		if !toolName.MatchString(tool.Name) {
			return invalidField(at+".custom.name", at+".custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
		}
		var schema struct {
			Type string `json:"type"`
		}
		if len(tool.InputSchema) == 0 {
			return invalidField(at+".custom.input_schema", at+".custom.input_schema: Field required")
		}
		if json.Unmarshal(tool.InputSchema, &schema) != nil || schema.Type != "object" {
			return invalidField(at+".custom.input_schema.type", at+".custom.input_schema.type: Input should be 'object'")
		}
		if slices.ContainsFunc(t.tools, func(f function) bool { return f.Name == tool.Name }) {
			return invalidField("tools", "tools: Tool names must be unique.")
		}
		t.tools = append(t.tools, function{Name: tool.Name, Parameters: tool.InputSchema, mark: tool.Cache != nil})
	}
	if k := req.ToolChoice; k != nil {
		t.single = k.Single
		switch k.Type {
		case "auto", "none":
			t.choice = k.Type
		case "any":
			t.choice = "required"
		case "tool":
			t.choice = "=" + k.Name
			if !slices.ContainsFunc(t.tools, func(f function) bool { return f.Name == k.Name }) {
				return invalidField("tool_choice", fmt.Sprintf("Tool '%s' not found in provided tools", k.Name))
			}
		default:
			return invalidField("tool_choice", "tool_choice: Input tag '"+k.Type+"' found using 'type' does not match any of the expected tags: 'auto', 'any', 'tool', 'none'")
		}
		if len(req.Tools) == 0 && k.Type != "none" {
			return invalidField("tool_choice", "tool_choice: may only be specified while providing `tools`.")
		}
	}
	if k := req.Thinking; k != nil {
		switch k.Type {
		case "disabled":
		case "adaptive":
			t.thinking = true
		case "enabled":
			t.thinking = true
			if k.Budget < 1024 {
				return invalidField("thinking", "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
			}
			if t.bounded && k.Budget >= t.bounds.most {
				return invalidField("max_tokens", "`max_tokens` must be greater than `thinking.budget_tokens`.")
			}
		default:
			return invalidField("thinking", "thinking: Input tag '"+k.Type+"' does not match any of the expected tags: 'adaptive', 'disabled', 'enabled'")
		}
		if t.thinking && strings.HasPrefix(t.choice, "=") || t.thinking && t.choice == "required" {
			return invalidField("thinking", "Thinking may not be enabled when tool_choice forces tool use.")
		}
		if t.thinking && req.Temperature != nil && *req.Temperature != 1 {
			return invalidField("temperature", "`temperature` may only be set to 1 when thinking is enabled.")
		}
	}
	if k := req.OutputConfig.Format; k.Type != "" {
		if k.Type != "json_schema" || len(k.Schema) == 0 {
			return invalidField("output_config.format", "output_config.format: a json_schema with a schema is expected")
		}
		t.schema = k.Schema
	}
	return nil
}
