// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// openaiSampling are the fields that both kinds of completions share.
type openaiSampling struct {
	Model         string     `json:"model"`
	Stream        bool       `json:"stream"`
	MaxTokens     *int       `json:"max_tokens"`
	MinTokens     int        `json:"min_tokens"` // as some servers have it
	IgnoreEOS     bool       `json:"ignore_eos"` // as some servers have it
	N             *int       `json:"n"`
	Stop          stringList `json:"stop"`
	Seed          *int64     `json:"seed"`
	Temperature   *float64   `json:"temperature"`
	StreamOptions *struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

var samplingFields = []string{
	"model", "stream", "max_tokens", "min_tokens", "ignore_eos", "n", "stop", "seed", "temperature", "stream_options",
	"top_p", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "user", "cache_salt",
}

var chatFields = []string{
	"messages", "max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call",
	"response_format", "reasoning_effort", "verbosity", "service_tier", "store", "metadata", "safety_identifier",
	"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prediction", "modalities", "audio",
	"web_search_options", "moderation", "top_logprobs", "data_sources",
}

var completionFields = []string{"prompt", "best_of", "echo", "suffix"}

// coded is an error with OpenAI's code.
func coded(param, code, format string, args ...any) *problem {
	return &problem{class: "invalid", param: param, code: code, message: fmt.Sprintf(format, args...)}
}

// unreadable words an error of decoding.
func unreadable(err error) *problem {
	if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		return coded(kind.Field, "invalid_type", "Invalid type for '%s': expected a %s, but got a %s instead.", kind.Field, kind.Type, kind.Value)
	}
	return coded("", "", "We could not parse the JSON body of your request. (%v)", err)
}

// unknownFields refuses what the API does not have.
func (p *Provider) unknownFields(names []string, known ...[]string) *problem {
	for _, name := range names {
		if slices.ContainsFunc(known, func(l []string) bool { return slices.Contains(l, name) }) {
			continue
		}
		if p.quirk("unknown-422") {
			return &problem{class: "unprocessable", code: "extra_forbidden", param: name}
		}
		return coded(name, "unknown_parameter", "Unrecognized request argument supplied: %s", name)
	}
	return nil
}

func reasons(model string) bool { return strings.HasPrefix(model, "o-sim") }

// turn makes a turn of the shared fields. most is the bound of the output.
func (s *openaiSampling) turn(p *Provider, most *int) (*turn, *problem) {
	t := &turn{model: s.Model, n: 1, seed: s.Seed, stream: s.Stream}
	t.bounds = bounds{least: s.MinTokens, ignoreEOS: s.IgnoreEOS, stop: s.Stop}
	switch {
	case s.Model == "":
		return nil, coded("", "", "you must provide a model parameter")
	case s.MaxTokens != nil && reasons(s.Model):
		return nil, coded("max_tokens", "unsupported_parameter", "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")
	case s.MaxTokens != nil && p.quirk("no-max-tokens"):
		return nil, coded("max_tokens", "unsupported_parameter", "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
	case s.Temperature != nil && reasons(s.Model) && *s.Temperature != 1:
		return nil, coded("temperature", "unsupported_value", "Unsupported value: 'temperature' does not support %v with this model. Only the default (1) value is supported.", *s.Temperature)
	case s.Temperature != nil && (*s.Temperature < 0 || *s.Temperature > 2):
		return nil, coded("temperature", "decimal_above_max_value", "Invalid 'temperature': must be between 0 and 2, but got %v.", *s.Temperature)
	case len(s.Stop) > 4:
		return nil, coded("stop", "array_above_max_length", "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length %d instead.", len(s.Stop))
	case len(s.Stop) > 0 && reasons(s.Model):
		return nil, coded("stop", "unsupported_parameter", "Unsupported parameter: 'stop' is not supported with this model.")
	}
	if s.N != nil {
		t.n = *s.N
		if t.n < 1 || t.n > 128 {
			return nil, coded("n", "integer_above_max_value", "Invalid 'n': must be between 1 and 128, but got %d.", t.n)
		}
		if t.n > 1 && p.quirk("no-n") {
			return nil, coded("n", "unsupported_value", "'n' : number must be at most 1")
		}
	}
	if most != nil {
		if *most < 1 {
			return nil, coded("max_tokens", "integer_below_min_value", "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got %d instead.", *most)
		}
		t.bounds.most, t.bounded = *most, true
		t.bounds.least = min(t.bounds.least, *most)
	}
	if o := s.StreamOptions; o != nil {
		if p.quirk("no-stream-options") {
			return nil, coded("stream_options", "unknown_parameter", "Unrecognized request argument supplied: stream_options")
		}
		if !s.Stream {
			return nil, coded("stream_options", "", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
		}
		t.usageChunk = o.IncludeUsage
		t.continuousUsage = o.IncludeUsage && o.ContinuousUsage
	}
	return t, nil
}

type openaiChat struct {
	openaiSampling
	Messages            []openaiTurn    `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Tools               []chatTool      `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	Parallel            *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *struct {
		Type       string `json:"type"`
		JSONSchema *struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
			Strict *bool           `json:"strict"`
		} `json:"json_schema"`
	} `json:"response_format"`
	Effort      *string `json:"reasoning_effort"`
	Logprobs    bool    `json:"logprobs"`
	TopLogprobs *int    `json:"top_logprobs"`
}

type openaiTurn struct {
	Role       string        `json:"role"`
	Content    openaiContent `json:"content"`
	Refusal    *string       `json:"refusal"`
	Reasoning  string        `json:"reasoning_content"`
	ToolCallID string        `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// openaiContent is a string or parts; given says that it is not null.
type openaiContent struct {
	parts []openaiPart
	given bool
}

type openaiPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Refusal  string `json:"refusal"`
	ImageURL *struct {
		URL string `json:"url"`
	} `json:"image_url"`
	Audio *struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
	File *struct {
		ID   string `json:"file_id"`
		Data string `json:"file_data"`
	} `json:"file"`
}

func (l *openaiContent) UnmarshalJSON(raw []byte) error {
	*l = openaiContent{given: string(raw) != "null"}
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		l.parts = []openaiPart{{Type: "text", Text: s}}
		return err
	}
	return json.Unmarshal(raw, &l.parts)
}

// readChat reads a chat request as strictly as the API does.
func (p *Provider) readChat(body []byte, deployment string) (*turn, *problem) {
	var req openaiChat
	names, err := fields(body, &req)
	if err != nil {
		return nil, unreadable(err)
	}
	if bad := p.unknownFields(names, samplingFields, chatFields); bad != nil {
		return nil, bad
	}
	if deployment != "" {
		req.Model = deployment
	}
	most := req.MaxTokens
	if req.MaxCompletionTokens != nil {
		if most != nil {
			return nil, coded("max_tokens", "invalid_parameter_combination", "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
		}
		most = req.MaxCompletionTokens
	}
	t, bad := req.turn(p, most)
	if bad != nil {
		return nil, bad
	}
	t.single = req.Parallel != nil && !*req.Parallel
	t.thinking = reasons(req.Model)
	if e := req.Effort; e != nil {
		if !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}, *e) {
			return nil, coded("reasoning_effort", "invalid_value", "Invalid value: '%s'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', and 'xhigh'.", *e)
		}
		t.thinking = *e != "none" && *e != "minimal"
	}
	if req.TopLogprobs != nil && (!req.Logprobs || *req.TopLogprobs < 0 || *req.TopLogprobs > 20) {
		return nil, coded("top_logprobs", "invalid_value", "Invalid 'top_logprobs': 'logprobs' must be true and the value between 0 and 20.")
	}
	if bad := req.chatTools(t); bad != nil {
		return nil, bad
	}
	if bad := req.chatMessages(p, t); bad != nil {
		return nil, bad
	}
	return t, req.format(t)
}

func (req *openaiChat) chatTools(t *turn) *problem {
	for i, tool := range req.Tools {
		if tool.Type == "custom" {
			continue
		}
		if tool.Type != "function" {
			return coded(fmt.Sprintf("tools[%d].type", i), "invalid_value", "Invalid value: '%s'. Supported values are: 'function' and 'custom'.", tool.Type)
		}
		if !toolName.MatchString(tool.Function.Name) || len(tool.Function.Name) > 64 {
			return coded(fmt.Sprintf("tools[%d].function.name", i), "invalid_value", "Invalid 'tools[%d].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", i)
		}
		t.tools = append(t.tools, tool.Function)
	}
	if req.Parallel != nil && len(req.Tools) == 0 {
		return coded("parallel_tool_calls", "", "'parallel_tool_calls' is only allowed when 'tools' are specified.")
	}
	return readChoice(t, req.ToolChoice)
}

// readChoice reads a tool_choice in the form of chat or of responses.
func readChoice(t *turn, raw json.RawMessage) *problem {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if len(t.tools) == 0 && string(raw) != `"none"` && string(raw) != `"auto"` {
		return coded("tool_choice", "", "'tool_choice' is only allowed when 'tools' are specified.")
	}
	if json.Unmarshal(raw, &t.choice) == nil {
		if !slices.Contains([]string{"none", "auto", "required"}, t.choice) {
			return coded("tool_choice", "invalid_value", "Invalid value: '%s'. Supported values are: 'none', 'auto', and 'required'.", t.choice)
		}
		return nil
	}
	var named struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
		Mode    string `json:"mode"`
		Allowed struct {
			Mode string `json:"mode"`
		} `json:"allowed_tools"`
	}
	if json.Unmarshal(raw, &named) != nil {
		return coded("tool_choice", "invalid_type", "Invalid type for 'tool_choice'.")
	}
	if named.Type == "allowed_tools" {
		t.choice = named.Allowed.Mode + named.Mode
		return nil
	}
	name := named.Name + named.Function.Name
	if !slices.ContainsFunc(t.tools, func(f function) bool { return f.Name == name }) {
		return coded("tool_choice", "invalid_value", "Invalid value for 'tool_choice': tool choice '%s' not found in 'tools' parameter.", name)
	}
	t.choice = "=" + name
	return nil
}

// chatMessages reads the messages and checks how they follow one another.
func (req *openaiChat) chatMessages(p *Provider, t *turn) *problem {
	if len(req.Messages) == 0 {
		return coded("messages", "empty_array", "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	}
	var called []string
	for i, m := range req.Messages {
		at := fmt.Sprintf("messages[%d]", i)
		if !slices.Contains([]string{"system", "developer", "user", "assistant", "tool", "function"}, m.Role) || m.Role == "developer" && p.quirk("no-developer") {
			if m.Role == "" {
				return coded(at+".role", "missing_required_parameter", "Missing required parameter: '%s.role'.", at)
			}
			return coded(at+".role", "invalid_value", "Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.", m.Role)
		}
		if len(called) > 0 && m.Role != "tool" {
			return coded(at+".role", "", "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: %s", strings.Join(called, ", "))
		}
		r := message{role: m.Role}
		if m.Role == "developer" {
			r.role = "system"
		}
		if m.Role == "tool" {
			k := slices.Index(called, m.ToolCallID)
			if m.ToolCallID == "" {
				return coded(at+".tool_call_id", "missing_required_parameter", "Missing required parameter: '%s.tool_call_id'.", at)
			}
			if k < 0 {
				return coded(at+".role", "", "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.")
			}
			called = slices.Delete(called, k, k+1)
		}
		if !m.Content.given && (m.Role != "assistant" || len(m.ToolCalls) == 0 && m.Refusal == nil) && m.Role != "function" {
			return coded(at+".content", "", "Invalid value for 'content': expected a string, got null.")
		}
		for k := range m.Content.parts {
			b, bad := m.Content.parts[k].block(m.Role, fmt.Sprintf("%s.content[%d]", at, k))
			if bad != nil {
				return bad
			}
			if m.Role == "tool" {
				b.kind, b.id = "result", m.ToolCallID
			}
			r.blocks = append(r.blocks, b)
		}
		for k, c := range m.ToolCalls {
			at := fmt.Sprintf("%s.tool_calls[%d]", at, k)
			switch {
			case m.Role != "assistant":
				return coded(at, "invalid_value", "'tool_calls' is only allowed in messages of the role 'assistant'.")
			case c.ID == "":
				return coded(at+".id", "missing_required_parameter", "Missing required parameter: '%s.id'.", at)
			case c.Type != "function" && c.Type != "custom":
				return coded(at+".type", "missing_required_parameter", "Missing required parameter: '%s.type'.", at)
			case c.Type == "function" && c.Function.Name == "":
				return coded(at+".function.name", "empty_string", "Invalid '%s.function.name': empty string.", at)
			}
			called = append(called, c.ID)
			r.blocks = append(r.blocks, block{kind: "call", id: c.ID, name: c.Function.Name, text: c.Function.Arguments})
		}
		t.messages = append(t.messages, r)
	}
	if len(called) > 0 {
		return coded("messages", "", "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: %s", strings.Join(called, ", "))
	}
	return nil
}

func (p *openaiPart) block(role, at string) (block, *problem) {
	wrong := coded(at+".type", "invalid_value", "Invalid value: '%s' in a message of the role '%s'.", p.Type, role)
	if p.Type != "text" && p.Type != "refusal" && role != "user" {
		return block{}, wrong
	}
	switch p.Type {
	case "text":
		return block{kind: "text", text: p.Text}, nil
	case "refusal":
		return block{kind: "text", text: p.Refusal}, nil
	case "image_url":
		if p.ImageURL == nil || p.ImageURL.URL == "" {
			return block{}, coded(at+".image_url", "missing_required_parameter", "Missing required parameter: '%s.image_url'.", at)
		}
		u := p.ImageURL.URL
		if !strings.HasPrefix(u, "https://") && !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "data:image/") {
			return block{}, coded(at+".image_url.url", "invalid_image_url", "Invalid image URL: '%s'. Expected a valid URL, but got a value with an invalid format.", truncate(u, 40))
		}
		return block{kind: "image", text: u}, nil
	case "input_audio":
		if p.Audio == nil || p.Audio.Data == "" || p.Audio.Format != "wav" && p.Audio.Format != "mp3" {
			return block{}, coded(at+".input_audio", "invalid_value", "Invalid '%s.input_audio': data and a format of 'wav' or 'mp3' are expected.", at)
		}
		return block{kind: "audio", text: p.Audio.Data}, nil
	case "file":
		if p.File == nil || p.File.ID+p.File.Data == "" {
			return block{}, coded(at+".file", "missing_required_parameter", "Missing required parameter: '%s.file.file_id'.", at)
		}
		return block{kind: "file", text: p.File.ID + p.File.Data}, nil
	}
	return block{}, wrong
}

// format reads the form of the output.
func (req *openaiChat) format(t *turn) *problem {
	f := req.ResponseFormat
	if f == nil {
		return nil
	}
	switch f.Type {
	case "text":
	case "json_object":
		t.schema = json.RawMessage(`{"type":"object"}`)
		for _, m := range t.messages {
			for _, b := range m.blocks {
				if strings.Contains(strings.ToLower(b.text), "json") {
					return nil
				}
			}
		}
		return coded("messages", "", "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.")
	case "json_schema":
		if f.JSONSchema == nil || f.JSONSchema.Name == "" {
			return coded("response_format.json_schema", "missing_required_parameter", "Missing required parameter: 'response_format.json_schema'.")
		}
		t.schema = f.JSONSchema.Schema
		return strictSchema(f.JSONSchema.Name, f.JSONSchema.Schema, f.JSONSchema.Strict)
	default:
		return coded("response_format.type", "invalid_value", "Invalid value: '%s'. Supported values are: 'json_object', 'json_schema', and 'text'.", f.Type)
	}
	return nil
}

// strictSchema checks what strict schemas must say at their root.
func strictSchema(name string, schema json.RawMessage, strict *bool) *problem {
	if strict == nil || !*strict {
		return nil
	}
	var s struct {
		Additional *bool `json:"additionalProperties"`
	}
	if json.Unmarshal(schema, &s) != nil || s.Additional == nil || *s.Additional {
		return coded("response_format", "", "Invalid schema for response_format '%s': In context=(), 'additionalProperties' is required to be supplied and to be false.", name)
	}
	return nil
}

func (p *Provider) readCompletion(body []byte, deployment string) (t *turn, echo bool, bad *problem) {
	var req struct {
		openaiSampling
		Prompt promptList `json:"prompt"`
		Echo   bool       `json:"echo"`
	}
	names, err := fields(body, &req)
	if err != nil {
		return nil, false, unreadable(err)
	}
	if bad := p.unknownFields(names, samplingFields, completionFields); bad != nil {
		return nil, false, bad
	}
	if deployment != "" {
		req.Model = deployment
	}
	most := req.MaxTokens
	if most == nil {
		n := max(defaultCompletionTokens, req.MinTokens)
		most = &n
	}
	t, bad = req.turn(p, most)
	if bad != nil {
		return nil, false, bad
	}
	if len(req.Prompt) == 0 || len(req.Prompt)*t.n > mostChoices {
		return nil, false, coded("prompt", "missing_required_parameter", "Missing required parameter: 'prompt'.")
	}
	t.prompts = req.Prompt
	return t, req.Echo, nil
}
