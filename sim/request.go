// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// generation is a request for tokens, whatever endpoint it came by.
type generation struct {
	id      string
	created int64
	model   string // as the client wrote it
	adapter string
	prompts []tokens
	n       int // choices per prompt
	bounds  bounds
	bounded bool // the client gave bounds.most
	seed    *int64
	salt    string
	tool    *toolCall // the choices call this tool instead of talking
	echo    bool
	silent  bool // its one output token is no output: embeddings and scores

	stream          bool
	usageChunk      bool // a last chunk with the usage
	continuousUsage bool // the usage in every chunk
}

// toolCall is what a choice says when it calls a tool.
type toolCall struct{ name, arguments string }

// mostChoices bounds the sequences of one request.
const mostChoices = 1024

// textContent is a string, or a list of parts, or null. What is not text
// counts as its JSON.
type textContent []string

func (c *textContent) UnmarshalJSON(raw []byte) error {
	*c = nil
	switch {
	case bytes.Equal(raw, []byte("null")):
		return nil
	case raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		*c = textContent{s}
		return err
	case raw[0] == '{': // one item, as some clients send
		*c = textContent{string(raw)}
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return fmt.Errorf("content is neither a string nor a list of parts")
	}
	for _, raw := range parts {
		var part struct {
			Text *string `json:"text"`
		}
		if raw[0] == '"' {
			part.Text = new(string)
			_ = json.Unmarshal(raw, part.Text)
		} else if err := json.Unmarshal(raw, &part); err != nil {
			return fmt.Errorf("content part: %w", err)
		}
		if part.Text != nil {
			*c = append(*c, *part.Text)
		} else {
			*c = append(*c, string(raw))
		}
	}
	return nil
}

// stringList is a string or a list of strings.
type stringList []string

func (l *stringList) UnmarshalJSON(raw []byte) error {
	*l = nil
	if raw[0] != '"' {
		return json.Unmarshal(raw, (*[]string)(l))
	}
	var s string
	err := json.Unmarshal(raw, &s)
	*l = stringList{s}
	return err
}

// promptList is a prompt, as text or token ids, or a list of prompts.
type promptList []tokens

func (l *promptList) UnmarshalJSON(raw []byte) error {
	*l = nil
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		*l = promptList{tokens(nil).segment(text)}
		return nil
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		*l = promptList{tokensOf(ids)}
		return nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return fmt.Errorf("prompt is neither text nor token ids nor a list of them")
	}
	for _, item := range items {
		ids = nil
		if item[0] == '"' {
			if err := json.Unmarshal(item, &text); err != nil {
				return err
			}
			*l = append(*l, tokens(nil).segment(text))
		} else if err := json.Unmarshal(item, &ids); err != nil {
			return fmt.Errorf("prompt: %w", err)
		} else {
			*l = append(*l, tokensOf(ids))
		}
	}
	return nil
}

// sampling are the fields that chat and completions share. Temperature,
// penalties, logprobs and the like are accepted and change nothing.
type sampling struct {
	Model         string     `json:"model"`
	Stream        bool       `json:"stream"`
	MaxTokens     *int       `json:"max_tokens"`
	MinTokens     int        `json:"min_tokens"`
	IgnoreEOS     bool       `json:"ignore_eos"`
	N             *int       `json:"n"`
	Stop          stringList `json:"stop"`
	Seed          *int64     `json:"seed"`
	CacheSalt     string     `json:"cache_salt"`
	StreamOptions *struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

func (s *sampling) generation(maxTokens *int) (*generation, *apiError) {
	g := &generation{
		model: s.Model, n: 1, seed: s.Seed, salt: s.CacheSalt, stream: s.Stream,
		bounds: bounds{most: math.MaxInt32, least: s.MinTokens, ignoreEOS: s.IgnoreEOS, stop: s.Stop},
	}
	if s.Model == "" {
		return nil, invalid("model", "model is required")
	}
	if s.N != nil {
		g.n = *s.N
	}
	if g.n < 1 || g.n > 128 {
		return nil, invalid("n", "n must be between 1 and 128")
	}
	if maxTokens != nil {
		g.bounds.most, g.bounded = *maxTokens, true
	}
	if g.bounds.most < 1 {
		return nil, invalid("max_tokens", fmt.Sprintf("max_tokens must be at least 1, got %d.", g.bounds.most))
	}
	if g.bounds.least < 0 || g.bounded && g.bounds.least > g.bounds.most {
		return nil, invalid("min_tokens", "min_tokens must be between 0 and max_tokens")
	}
	if s.StreamOptions != nil {
		if !s.Stream {
			return nil, invalid("stream_options", "Stream options can only be defined when `stream=True`.")
		}
		g.usageChunk = s.StreamOptions.IncludeUsage
		g.continuousUsage = g.usageChunk && s.StreamOptions.ContinuousUsage
	}
	return g, nil
}

type chatRequest struct {
	sampling
	Messages            []chatMessage   `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Tools               []chatTool      `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
}

type chatMessage struct {
	Role      string      `json:"role"`
	Content   textContent `json:"content"`
	ToolCalls []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type chatTool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name       string          `json:"name"`
	Parameters json.RawMessage `json:"parameters"`
	mark       bool            // a cache mark follows it
}

func parseChat(body []byte) (*generation, *apiError) {
	var req chatRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, badJSON(err)
	}
	most := req.MaxTokens
	if req.MaxCompletionTokens != nil {
		most = req.MaxCompletionTokens
	}
	g, bad := req.generation(most)
	if bad != nil {
		return nil, bad
	}
	if len(req.Messages) == 0 {
		return nil, invalid("messages", "messages must not be empty")
	}
	for i, m := range req.Messages {
		if m.Role == "" {
			return nil, invalid("messages", fmt.Sprintf("messages[%d]: role is required", i))
		}
	}
	functions := make([]function, len(req.Tools))
	for i, t := range req.Tools {
		functions[i] = t.Function
	}
	g.prompts = []tokens{renderChat(req.Messages, functions)}
	g.tool, bad = chooseTool(functions, req.ToolChoice, lastUserText(req.Messages))
	return g, bad
}

const assistantTurn = "<|assistant|>"

// renderChat is the chat template: tools, then the messages, then the turn of
// the assistant. An answer that comes back as a message renders as the tokens
// that were generated.
func renderChat(messages []chatMessage, functions []function) tokens {
	var t tokens
	for _, f := range functions {
		t = t.segment("<|tool|>" + f.Name)
		t = t.segment(string(f.Parameters))
	}
	for _, m := range messages {
		t = t.segment("<|" + m.Role + "|>")
		for _, part := range m.Content {
			t = t.segment(part)
		}
		for _, call := range m.ToolCalls {
			t = t.segment(call.Function.Arguments)
			t = t.segment(call.Function.Name)
		}
	}
	return t.segment(assistantTurn)
}

func lastUserText(messages []chatMessage) string {
	if last := messages[len(messages)-1]; last.Role == "user" {
		return strings.Join(last.Content, "\n")
	}
	return ""
}

// chooseTool decides which tool is called, if any: the one that tool_choice
// names, the first one where a call is required, else the first one whose name
// occurs in the last message when that is the user's.
func chooseTool(functions []function, choice json.RawMessage, asked string) (*toolCall, *apiError) {
	var mode string
	var named struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if len(choice) > 0 && json.Unmarshal(choice, &mode) != nil {
		if err := json.Unmarshal(choice, &named); err != nil {
			return nil, invalid("tool_choice", "tool_choice is neither a mode nor a function")
		}
		mode = "named"
	}
	name := named.Name + named.Function.Name
	i := -1
	switch mode {
	case "none":
		return nil, nil
	case "named":
		i = slices.IndexFunc(functions, func(f function) bool { return f.Name == name })
	case "required":
		i = min(0, len(functions)-1)
	case "", "auto":
		i = slices.IndexFunc(functions, func(f function) bool { return f.Name != "" && strings.Contains(asked, f.Name) })
		if i < 0 {
			return nil, nil
		}
	}
	if i < 0 {
		return nil, invalid("tool_choice", "tool_choice names no tool of the request")
	}
	return &toolCall{functions[i].Name, arguments(functions[i].Parameters)}, nil
}

// arguments makes up values for the required properties of a JSON schema, all
// properties if none is required.
func arguments(schema json.RawMessage) string {
	var s struct {
		Properties map[string]struct {
			Type json.RawMessage   `json:"type"`
			Enum []json.RawMessage `json:"enum"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	_ = json.Unmarshal(schema, &s) // what is no schema has no properties
	names := s.Required
	if len(names) == 0 {
		for name := range s.Properties {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	values := make(map[string]json.RawMessage, len(names))
	for _, name := range names {
		p := s.Properties[name]
		values[name] = json.RawMessage(`"kot mel"`)
		switch string(p.Type) {
		case `"integer"`, `"number"`:
			values[name] = json.RawMessage(`7`)
		case `"boolean"`:
			values[name] = json.RawMessage(`true`)
		case `"array"`:
			values[name] = json.RawMessage(`[]`)
		case `"object"`:
			values[name] = json.RawMessage(`{}`)
		}
		if len(p.Enum) > 0 {
			values[name] = p.Enum[0]
		}
	}
	return string(encode(values))
}

type completionRequest struct {
	sampling
	Prompt promptList `json:"prompt"`
	Echo   bool       `json:"echo"`
}

// defaultCompletionTokens is the default of max_tokens for completions alone.
const defaultCompletionTokens = 16

func parseCompletion(body []byte) (*generation, *apiError) {
	var req completionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, badJSON(err)
	}
	most := req.MaxTokens
	if most == nil {
		most = new(int)
		*most = max(defaultCompletionTokens, req.MinTokens)
	}
	g, bad := req.generation(most)
	if bad != nil {
		return nil, bad
	}
	if len(req.Prompt) == 0 {
		return nil, invalid("prompt", "prompt is required")
	}
	g.prompts, g.echo = req.Prompt, req.Echo
	return g, nil
}
