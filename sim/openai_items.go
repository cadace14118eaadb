// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// turnStore holds responses by their ids, and the conversations behind them. A
// provider knows its own only, and those of a key only with that key.
type turnStore struct {
	mu    sync.Mutex
	byID  map[string]*storedTurn
	order []string
	size  int // bytes
}

type storedTurn struct {
	key      string
	messages []message
	body     []byte
}

// mostStoredBytes bounds the store beside [mostStored].
const mostStoredBytes = 128 << 20

func (t *storedTurn) size() (n int) {
	n = len(t.body)
	for _, m := range t.messages {
		for _, b := range m.blocks {
			n += len(b.text) + len(b.name) + len(b.id)
		}
	}
	return n
}

func (s *turnStore) get(id, key string) *storedTurn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byID[id]; t != nil && t.key == key {
		return t
	}
	return nil
}

func (s *turnStore) put(id string, t *storedTurn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*storedTurn{}
	}
	s.byID[id] = t
	s.size += t.size()
	s.order = append(s.order, id)
	for len(s.order) > mostStored || s.size > mostStoredBytes {
		s.drop(s.order[0])
		s.order = s.order[1:]
	}
}

// drop takes a response out; the caller holds mu. Its place in the order stays.
func (s *turnStore) drop(id string) {
	if t := s.byID[id]; t != nil {
		s.size -= t.size()
		delete(s.byID, id)
	}
}

func (s *turnStore) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
}

// openaiResponse is a request for a response.
type openaiResponse struct {
	Model           string            `json:"model"`
	Input           json.RawMessage   `json:"input"`
	Instructions    string            `json:"instructions"`
	Previous        string            `json:"previous_response_id"`
	MaxOutputTokens *int              `json:"max_output_tokens"`
	Stream          bool              `json:"stream"`
	Store           *bool             `json:"store"`
	Tools           []json.RawMessage `json:"tools"`
	ToolChoice      json.RawMessage   `json:"tool_choice"`
	Parallel        *bool             `json:"parallel_tool_calls"`
	Include         []string          `json:"include"`
	Temperature     *float64          `json:"temperature"`
	TopP            *float64          `json:"top_p"`
	Metadata        json.RawMessage   `json:"metadata"`
	Reasoning       *struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	Text struct {
		Format struct {
			Type   string          `json:"type"`
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
			Strict *bool           `json:"strict"`
		} `json:"format"`
	} `json:"text"`
	Background bool `json:"background"`
}

var responseFields = []string{
	"model", "input", "instructions", "previous_response_id", "conversation", "background", "store", "stream",
	"stream_options", "include", "reasoning", "text", "max_output_tokens", "max_tool_calls", "tools", "tool_choice",
	"parallel_tool_calls", "temperature", "top_p", "top_logprobs", "truncation", "context_management", "prompt",
	"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "metadata", "user", "moderation",
}

// readResponse reads a request as strictly as the API does.
func (c *call) readResponse() (req *openaiResponse, t *turn, bad *problem) {
	req = &openaiResponse{}
	names, err := fields(c.body, req)
	if err != nil {
		return nil, nil, unreadable(err)
	}
	if bad := c.p.unknownFields(names, responseFields); bad != nil {
		return nil, nil, bad
	}
	s := openaiSampling{Model: req.Model, Stream: req.Stream, Temperature: req.Temperature}
	if t, bad = s.turn(c.p, nil); bad != nil {
		return nil, nil, bad
	}
	if n := req.MaxOutputTokens; n != nil {
		if *n < 16 {
			return nil, nil, coded("max_output_tokens", "integer_below_min_value", "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got %d instead.", *n)
		}
		t.bounds.most, t.bounded = *n, true
	}
	t.single = req.Parallel != nil && !*req.Parallel
	t.thinking = reasons(req.Model) || req.Reasoning != nil
	if r := req.Reasoning; r != nil && r.Effort != nil && (*r.Effort == "none" || *r.Effort == "minimal") {
		t.thinking = false
	}
	for i, raw := range req.Tools {
		var tool struct {
			Type     string          `json:"type"`
			Name     string          `json:"name"`
			Function json.RawMessage `json:"function"`
			function
		}
		if err := json.Unmarshal(raw, &tool); err != nil {
			return nil, nil, unreadable(err)
		}
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case tool.Type == "":
			return nil, nil, coded(at+".type", "missing_required_parameter", "Missing required parameter: '%s.type'.", at)
		case tool.Type != "function":
			continue
		case tool.Name == "": // the form of chat has it one level below
			return nil, nil, coded(at+".name", "missing_required_parameter", "Missing required parameter: '%s.name'.", at)
		}
		t.tools = append(t.tools, function{Name: tool.Name, Parameters: tool.Parameters})
	}
	if bad := readChoice(t, req.ToolChoice); bad != nil {
		return nil, nil, bad
	}
	switch f := req.Text.Format; f.Type {
	case "", "text":
	case "json_object":
		t.schema = json.RawMessage(`{"type":"object"}`)
	case "json_schema":
		if f.Name == "" || len(f.Schema) == 0 {
			return nil, nil, coded("text.format.name", "missing_required_parameter", "Missing required parameter: 'text.format.name'.")
		}
		if bad := strictSchema(f.Name, f.Schema, f.Strict); bad != nil {
			return nil, nil, bad
		}
		t.schema = f.Schema
	default:
		return nil, nil, coded("text.format.type", "invalid_value", "Invalid value: '%s'. Supported values are: 'json_object', 'json_schema', and 'text'.", f.Type)
	}
	return req, t, c.responseInput(req, t)
}

// responseItemIn is an item of the input.
type responseItemIn struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   responseContent `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    responseContent `json:"output"`
	Encrypted *string         `json:"encrypted_content"`
}

type responsePartIn struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Refusal  string `json:"refusal"`
	ImageURL string `json:"image_url"`
	FileID   string `json:"file_id"`
	FileURL  string `json:"file_url"`
	FileData string `json:"file_data"`
}

type responseContent []responsePartIn

func (l *responseContent) UnmarshalJSON(raw []byte) error {
	*l = nil
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		*l = responseContent{{Type: "text", Text: s}}
		return err
	}
	return json.Unmarshal(raw, (*[]responsePartIn)(l))
}

// responseInput reads the conversation: what a response before holds, the
// items, and in front the instructions, which hold for this response only.
func (c *call) responseInput(req *openaiResponse, t *turn) *problem {
	var called []string
	if req.Previous != "" {
		before := c.p.stored.get(req.Previous, c.key)
		if before == nil {
			return coded("previous_response_id", "previous_response_not_found", "Previous response with id '%s' not found.", req.Previous)
		}
		t.messages = append(t.messages, before.messages...)
		for _, m := range before.messages {
			for _, b := range m.blocks {
				switch b.kind {
				case "call":
					called = append(called, b.id)
				case "result":
					called = slices.DeleteFunc(called, func(id string) bool { return id == b.id })
				}
			}
		}
	}
	var text string
	var items []responseItemIn
	switch {
	case len(req.Input) == 0 || string(req.Input) == "null":
		return coded("input", "missing_required_parameter", "Missing required parameter: 'input'.")
	case json.Unmarshal(req.Input, &text) == nil:
		items = []responseItemIn{{Role: "user", Content: responseContent{{Type: "input_text", Text: text}}}}
	default:
		if err := json.Unmarshal(req.Input, &items); err != nil {
			return unreadable(err)
		}
	}
	if len(items) == 0 {
		return coded("input", "empty_array", "Invalid 'input': empty array.")
	}
	for i := range items {
		m, bad := c.item(&items[i], fmt.Sprintf("input[%d]", i), &called)
		if bad != nil {
			return bad
		}
		if n := len(t.messages); n > 0 && m.role == "assistant" && t.messages[n-1].role == "assistant" {
			t.messages[n-1].blocks = append(slices.Clip(t.messages[n-1].blocks), m.blocks...)
		} else if n > 0 && m.role == "tool" && t.messages[n-1].role == "tool" {
			t.messages[n-1].blocks = append(slices.Clip(t.messages[n-1].blocks), m.blocks...)
		} else {
			t.messages = append(t.messages, m)
		}
	}
	if len(called) > 0 {
		return coded("input", "", "No tool output found for function call %s.", called[0])
	}
	return nil
}

// item reads one item; called are the calls that wait for their results.
func (c *call) item(in *responseItemIn, at string, called *[]string) (message, *problem) {
	secret := &c.p.maker.secret
	switch in.Type {
	case "", "message":
		if !slices.Contains([]string{"user", "assistant", "system", "developer"}, in.Role) {
			return message{}, coded(at+".role", "invalid_value", "Invalid value: '%s'. Supported values are: 'assistant', 'system', 'developer', and 'user'.", in.Role)
		}
		m := message{role: in.Role}
		if in.Role == "developer" {
			m.role = "system"
		}
		for k, p := range in.Content {
			b, bad := p.block(in.Role, fmt.Sprintf("%s.content[%d]", at, k))
			if bad != nil {
				return m, bad
			}
			m.blocks = append(m.blocks, b)
		}
		return m, nil
	case "function_call":
		if in.CallID == "" || in.Name == "" {
			return message{}, coded(at+".call_id", "missing_required_parameter", "Missing required parameter: '%s.call_id'.", at)
		}
		*called = append(*called, in.CallID)
		return message{role: "assistant", blocks: []block{{kind: "call", id: in.CallID, name: in.Name, text: in.Arguments}}}, nil
	case "function_call_output":
		k := slices.Index(*called, in.CallID)
		if k < 0 {
			return message{}, coded("input", "", "No tool call found for function call output with call_id %s.", in.CallID)
		}
		*called = slices.Delete(*called, k, k+1)
		m := message{role: "tool"}
		text := ""
		for _, p := range in.Output {
			text += p.Text
			if p.Type == "input_image" {
				m.blocks = append(m.blocks, block{kind: "image", text: p.ImageURL + p.FileID})
			}
		}
		m.blocks = append(m.blocks, block{kind: "result", id: in.CallID, text: text})
		return m, nil
	case "reasoning":
		if in.Encrypted != nil && *in.Encrypted != "" {
			text, err := secret.open(*in.Encrypted)
			if err != nil {
				return message{}, coded(at, "invalid_encrypted_content", "The encrypted content for item %s could not be verified. Reason: Encrypted content could not be decrypted or parsed.", in.ID)
			}
			return message{role: "assistant", blocks: []block{{kind: "reasoning", text: text}}}, nil
		}
		if !c.p.made(in.ID) {
			return message{}, &problem{class: "invalid", status: 404, param: "input", message: fmt.Sprintf("Item with id '%s' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.", in.ID)}
		}
		return message{role: "assistant", blocks: []block{{kind: "reasoning"}}}, nil
	case "item_reference":
		if !c.p.made(in.ID) {
			return message{}, &problem{class: "invalid", status: 404, param: "input", message: fmt.Sprintf("Item with id '%s' not found.", in.ID)}
		}
		return message{role: "assistant", blocks: []block{{kind: "reasoning"}}}, nil
	}
	return message{}, coded(at, "invalid_value", "Invalid value: '%s'.", in.Type)
}

// itemID is an id that the provider recognises as its own.
func (p *Provider) itemID(prefix, id string) string {
	id = prefix + "_" + id
	return fmt.Sprintf("%s_%x", id, p.maker.secret.mac(id)[:6])
}

func (p *Provider) made(id string) bool {
	i := strings.LastIndexByte(id, '_')
	return i > 0 && fmt.Sprintf("%x", p.maker.secret.mac(id[:i])[:6]) == id[i+1:]
}

func (p *responsePartIn) block(role, at string) (block, *problem) {
	switch {
	case p.Type == "text":
		return block{kind: "text", text: p.Text}, nil
	case p.Type == "input_text" && role != "assistant", p.Type == "output_text" && role == "assistant":
		return block{kind: "text", text: p.Text}, nil
	case p.Type == "refusal" && role == "assistant":
		return block{kind: "text", text: p.Refusal}, nil
	case p.Type == "input_image" && role != "assistant":
		if p.ImageURL+p.FileID == "" {
			return block{}, coded(at+".image_url", "missing_required_parameter", "Missing required parameter: '%s.image_url'.", at)
		}
		return block{kind: "image", text: p.ImageURL + p.FileID}, nil
	case p.Type == "input_file" && role != "assistant":
		return block{kind: "file", text: p.FileID + p.FileURL + p.FileData}, nil
	}
	return block{}, coded(at, "invalid_value", "Invalid value: '%s'. Supported values are: 'input_text', 'input_image', 'input_file', 'output_text' and 'refusal'.", p.Type)
}
