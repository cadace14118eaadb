// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// geminiRequest has every field of the API, since what it does not know is
// refused.
type geminiRequest struct {
	Model             string          `json:"model"`
	Contents          []geminiContent `json:"contents"`
	SystemInstruction *geminiContent  `json:"systemInstruction"`
	Tools             []geminiTool    `json:"tools"`
	ToolConfig        struct {
		Calling struct {
			Mode    string   `json:"mode"`
			Allowed []string `json:"allowedFunctionNames"`
		} `json:"functionCallingConfig"`
		Retrieval json.RawMessage `json:"retrievalConfig"`
	} `json:"toolConfig"`
	Config        geminiConfig    `json:"generationConfig"`
	Safety        json.RawMessage `json:"safetySettings"`
	CachedContent string          `json:"cachedContent"`
	Labels        json.RawMessage `json:"labels"`
	ServiceTier   string          `json:"serviceTier"`
	Store         *bool           `json:"store"`
}

type geminiConfig struct {
	MaxOutputTokens  *int            `json:"maxOutputTokens"`
	Temperature      *float64        `json:"temperature"`
	TopP             *float64        `json:"topP"`
	TopK             *float64        `json:"topK"`
	CandidateCount   int             `json:"candidateCount"`
	StopSequences    []string        `json:"stopSequences"`
	Seed             *int64          `json:"seed"`
	Presence         *float64        `json:"presencePenalty"`
	Frequency        *float64        `json:"frequencyPenalty"`
	MIMEType         string          `json:"responseMimeType"`
	Schema           json.RawMessage `json:"responseSchema"`
	JSONSchema       json.RawMessage `json:"responseJsonSchema"`
	ResponseLogprobs *bool           `json:"responseLogprobs"`
	Logprobs         *int            `json:"logprobs"`
	Modalities       []string        `json:"responseModalities"`
	Speech           json.RawMessage `json:"speechConfig"`
	Image            json.RawMessage `json:"imageConfig"`
	MediaResolution  string          `json:"mediaResolution"`
	Thinking         *struct {
		Budget  *int   `json:"thinkingBudget"`
		Level   string `json:"thinkingLevel"`
		Include bool   `json:"includeThoughts"`
	} `json:"thinkingConfig"`
}

type geminiTool struct {
	Functions []struct {
		Name           string          `json:"name"`
		Description    string          `json:"description"`
		Parameters     json.RawMessage `json:"parameters"`
		JSONSchema     json.RawMessage `json:"parametersJsonSchema"`
		Response       json.RawMessage `json:"response"`
		ResponseSchema json.RawMessage `json:"responseJsonSchema"`
		Behavior       string          `json:"behavior"`
	} `json:"functionDeclarations"`
	Search    json.RawMessage `json:"googleSearch"`
	Retrieval json.RawMessage `json:"googleSearchRetrieval"`
	Code      json.RawMessage `json:"codeExecution"`
	URL       json.RawMessage `json:"urlContext"`
	Maps      json.RawMessage `json:"googleMaps"`
	Computer  json.RawMessage `json:"computerUse"`
	Files     json.RawMessage `json:"fileSearch"`
}

type geminiContent struct {
	Role  string             `json:"role"`
	Parts []geminiPartOfTurn `json:"parts"`
}

type geminiPartOfTurn struct {
	Text       *string `json:"text"`
	InlineData *struct {
		MIMEType    string `json:"mimeType"`
		Data        string `json:"data"`
		DisplayName string `json:"displayName"`
	} `json:"inlineData"`
	FileData *struct {
		MIMEType    string `json:"mimeType"`
		URI         string `json:"fileUri"`
		DisplayName string `json:"displayName"`
	} `json:"fileData"`
	Call *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	Response *struct {
		ID           string          `json:"id"`
		Name         string          `json:"name"`
		Response     json.RawMessage `json:"response"`
		Parts        json.RawMessage `json:"parts"`
		WillContinue *bool           `json:"willContinue"`
		Scheduling   string          `json:"scheduling"`
	} `json:"functionResponse"`
	Code       json.RawMessage `json:"executableCode"`
	CodeResult json.RawMessage `json:"codeExecutionResult"`
	Thought    bool            `json:"thought"`
	Signature  string          `json:"thoughtSignature"`
	Video      json.RawMessage `json:"videoMetadata"`
	Resolution json.RawMessage `json:"mediaResolution"`
}

// anySignature is accepted for history of other makers.
const anySignature = "skip_thought_signature_validator"

func argument(format string, args ...any) *problem {
	return &problem{class: "invalid", message: fmt.Sprintf(format, args...)}
}

// readGemini reads a request as strictly as the API does; thoughts says that
// the client wants to see them.
func readGemini(body []byte, model string, secret *sealer) (t *turn, thoughts bool, bad *problem) {
	var req geminiRequest
	if bad := strictly(camelNames(body, 0), &req); bad != nil {
		return nil, false, bad
	}
	t = &turn{model: model, n: max(1, req.Config.CandidateCount)}
	if bad := req.Config.read(t); bad != nil {
		return nil, false, bad
	}
	if k := req.Config.Thinking; k != nil {
		thoughts = k.Include
	}
	if bad := req.readTools(t); bad != nil {
		return nil, false, bad
	}
	if s := req.SystemInstruction; s != nil {
		m := message{role: "system"}
		for _, p := range s.Parts {
			if p.Text == nil {
				return nil, false, argument("System instruction has parts that are no text.")
			}
			m.blocks = append(m.blocks, block{kind: "text", text: *p.Text})
		}
		t.messages = append(t.messages, m)
	}
	return t, thoughts, req.conversation(t, secret)
}

func (k *geminiConfig) read(t *turn) *problem {
	t.bounds.stop, t.seed = k.StopSequences, k.Seed
	if k.MaxOutputTokens != nil {
		if *k.MaxOutputTokens < 1 {
			return argument("max_output_tokens must be positive.")
		}
		t.bounds.most, t.bounded = *k.MaxOutputTokens, true
	}
	switch {
	case k.Temperature != nil && (*k.Temperature < 0 || *k.Temperature > 2):
		return argument("* GenerateContentRequest.generation_config.temperature: temperature must be in the range [0.0, 2.0].\n")
	case k.CandidateCount < 0 || k.CandidateCount > 8:
		return argument("* GenerateContentRequest.generation_config.candidate_count: candidate_count must be in the range [1, 8].\n")
	case len(k.StopSequences) > 5:
		return argument("* GenerateContentRequest.generation_config.stop_sequences: at most 5 are supported.\n")
	case len(k.Schema)+len(k.JSONSchema) > 0 && k.MIMEType != "application/json" && k.MIMEType != "text/x.enum":
		return argument("* GenerateContentRequest.generation_config.response_mime_type: response_schema needs application/json.\n")
	case len(k.Schema) > 0 && len(k.JSONSchema) > 0:
		return argument("* GenerateContentRequest.generation_config: response_schema and response_json_schema exclude each other.\n")
	}
	if len(k.Schema) > 0 {
		if bad := googleSchema(k.Schema, "generation_config.response_schema"); bad != nil {
			return bad
		}
		t.schema = k.Schema
	} else if len(k.JSONSchema) > 0 {
		t.schema = k.JSONSchema
	} else if k.MIMEType == "application/json" {
		t.schema = json.RawMessage(`{"type":"object"}`)
	}
	t.thinking = alwaysThinks(t.model)
	if c := k.Thinking; c != nil {
		if c.Budget != nil && c.Level != "" {
			return argument("You can only set only one of thinking budget and thinking level.")
		}
		t.thinking = c.Budget != nil && *c.Budget != 0 || c.Level != "" || c.Include && c.Budget == nil
	}
	return nil
}

// alwaysThinks says that a model thinks unasked; its calls then need their
// signatures back.
func alwaysThinks(model string) bool { return strings.HasPrefix(model, "gemini-3") }

var schemaFields = []string{
	"type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required",
	"minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering",
	"default", "items", "minimum", "maximum",
}

// googleSchema checks that a schema keeps to the part that Google knows.
func googleSchema(raw json.RawMessage, at string) *problem {
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return argument("Invalid value at '%s'", at)
	}
	for name, v := range all {
		if !slices.Contains(schemaFields, name) {
			return argument("Invalid JSON payload received. Unknown name %q at '%s': Cannot find field.", name, at)
		}
		if name == "type" && v[0] == '[' {
			return argument("Invalid JSON payload received. Unknown name \"type\" at '%s': Proto field is not repeating, cannot start list.", at)
		}
	}
	var inner map[string]json.RawMessage
	_ = json.Unmarshal(all["properties"], &inner) // absent: none
	for name, v := range inner {
		if bad := googleSchema(v, at+".properties."+name); bad != nil {
			return bad
		}
	}
	if v := all["items"]; len(v) > 0 {
		return googleSchema(v, at+".items")
	}
	return nil
}

func (req *geminiRequest) readTools(t *turn) *problem {
	for i, tool := range req.Tools {
		for k, f := range tool.Functions {
			at := fmt.Sprintf("tools[%d].function_declarations[%d]", i, k)
			if !toolName.MatchString(strings.NewReplacer(".", "_", ":", "_").Replace(f.Name)) || len(f.Name) > 64 {
				return argument("* GenerateContentRequest.%s.name: Invalid function name. Must start with a letter or an underscore.\n", at)
			}
			schema := f.Parameters
			if len(schema) > 0 {
				if bad := googleSchema(schema, at+".parameters"); bad != nil {
					return bad
				}
			} else {
				schema = f.JSONSchema
			}
			t.tools = append(t.tools, function{Name: f.Name, Parameters: schema})
		}
	}
	c := req.ToolConfig.Calling
	switch c.Mode {
	case "", "AUTO", "VALIDATED":
	case "ANY":
		t.choice = "required"
		if len(c.Allowed) > 0 {
			t.choice = "=" + c.Allowed[0]
		}
	case "NONE":
		t.choice = "none"
	default:
		return argument("Invalid value at 'tool_config.function_calling_config.mode', %q", c.Mode)
	}
	for _, name := range c.Allowed {
		if c.Mode != "ANY" && c.Mode != "VALIDATED" {
			return argument("Allowed function names should be set only when function calling mode is ANY.")
		}
		if !slices.ContainsFunc(t.tools, func(f function) bool { return f.Name == name }) {
			return argument("* GenerateContentRequest.tool_config.function_calling_config.allowed_function_names: %q is not declared.\n", name)
		}
	}
	if c.Mode == "ANY" && len(t.tools) == 0 {
		return argument("Function calling config is set without function_declarations.")
	}
	return nil
}

// conversation reads the contents and checks how they follow one another.
func (req *geminiRequest) conversation(t *turn, secret *sealer) *problem {
	if len(req.Contents) == 0 {
		return argument("* GenerateContentRequest.contents: contents is not specified\n")
	}
	calls := 0 // of the turn before
	for i, c := range req.Contents {
		at := fmt.Sprintf("contents[%d]", i)
		if c.Role != "" && c.Role != "user" && c.Role != "model" && c.Role != "function" {
			return argument("Please use a valid role: user, model.")
		}
		if len(c.Parts) == 0 {
			return argument("* GenerateContentRequest.%s.parts: contents.parts must not be empty.\n", at)
		}
		m := message{role: "user"}
		if c.Role == "model" {
			m.role = "assistant"
		}
		responses, made := 0, 0
		for k := range c.Parts {
			p := &c.Parts[k]
			b, bad := p.block(fmt.Sprintf("%s.parts[%d]", at, k), secret)
			if bad != nil {
				return bad
			}
			if p.Call != nil {
				if m.role != "assistant" {
					return argument("Please ensure that function call parts are in turns of the role model.")
				}
				if made == 0 && p.Signature == "" && alwaysThinks(t.model) && !req.userTextAfter(i) {
					return argument("Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:%s` , position %d. Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details.", p.Call.Name, i+1)
				}
				made++
			}
			if p.Response != nil {
				responses++
			}
			m.blocks = append(m.blocks, b)
		}
		switch {
		case made > 0 && i == 0:
			return argument("Please ensure that function call turn comes immediately after a user turn or after a function response turn.")
		case responses > 0 && calls == 0:
			return argument("Please ensure that function response turn comes immediately after a function call turn.")
		case responses != calls:
			return argument("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.")
		}
		calls = made
		t.messages = append(t.messages, apart(m)...)
	}
	if calls > 0 {
		return argument("Please ensure that function call turn is followed by a function response turn.")
	}
	return nil
}

// userTextAfter says that the user speaks after the turn i: what was before
// needs no signatures any more.
func (req *geminiRequest) userTextAfter(i int) bool {
	for _, c := range req.Contents[i+1:] {
		if c.Role != "model" && slices.ContainsFunc(c.Parts, func(p geminiPartOfTurn) bool { return p.Text != nil }) {
			return true
		}
	}
	return false
}

func (p *geminiPartOfTurn) block(at string, secret *sealer) (block, *problem) {
	var b block
	switch {
	case p.Text != nil && p.Thought:
		return block{kind: "reasoning", text: *p.Text}, nil
	case p.Text != nil:
		return block{kind: "text", text: *p.Text}, nil
	case p.InlineData != nil:
		if !protoBytes(p.InlineData.Data) {
			return b, argument("Invalid value at '%s.inline_data.data' (TYPE_BYTES), Base64 decoding failed", at)
		}
		return block{kind: mediaKind(p.InlineData.MIMEType), text: p.InlineData.Data}, mimeType(at, p.InlineData.MIMEType)
	case p.FileData != nil:
		if p.FileData.URI == "" {
			return b, argument("* GenerateContentRequest.%s.file_data.file_uri: is required\n", at)
		}
		return block{kind: mediaKind(p.FileData.MIMEType), text: p.FileData.URI}, nil
	case p.Call != nil:
		if len(p.Call.Args) > 0 && p.Call.Args[0] != '{' {
			return b, argument("Invalid value at '%s.function_call.args' (type.googleapis.com/google.protobuf.Struct)", at)
		}
		if p.Signature != "" && p.Signature != anySignature && !secret.verify(p.Call.Name, p.Signature) {
			return b, argument("Thought signature is not valid.")
		}
		return block{kind: "call", id: p.Call.ID, name: p.Call.Name, text: string(p.Call.Args)}, nil
	case p.Response != nil:
		if len(p.Response.Response) == 0 || p.Response.Response[0] != '{' {
			return b, argument("Invalid value at '%s.function_response.response' (type.googleapis.com/google.protobuf.Struct)", at)
		}
		if p.Response.Name == "" {
			return b, argument("* GenerateContentRequest.%s.function_response.name: Name cannot be empty.\n", at)
		}
		return block{kind: "result", id: p.Response.ID, text: string(p.Response.Response)}, nil
	case len(p.Code)+len(p.CodeResult) > 0:
		return block{kind: "text", text: string(p.Code) + string(p.CodeResult)}, nil
	}
	return b, argument("* GenerateContentRequest.%s.data: required oneof field 'data' must have one initialized field\n", at)
}

func mimeType(at, kind string) *problem {
	if kind == "" {
		return argument("* GenerateContentRequest.%s.inline_data.mime_type: is required\n", at)
	}
	return nil
}

func mediaKind(mime string) string {
	switch before, _, _ := strings.Cut(mime, "/"); before {
	case "image", "audio":
		return before
	}
	return "file"
}

// opaque are the fields whose content is the client's own: their names are not
// those of the API.
var opaque = map[string]bool{
	"args": true, "response": true, "parametersJsonSchema": true, "responseJsonSchema": true, "labels": true,
	"default": true, "example": true, "enum": true,
}

// camelNames writes the names of fields as JSON has them; the API takes
// snake_case too. What is no JSON stays as it is.
func camelNames(raw json.RawMessage, depth int) json.RawMessage {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || depth > 64 {
		return raw
	}
	switch raw[0] {
	case '[':
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) != nil {
			return raw
		}
		for i, v := range all {
			all[i] = camelNames(v, depth+1)
		}
		return encode(all)
	case '{':
		var all map[string]json.RawMessage
		if json.Unmarshal(raw, &all) != nil {
			return raw
		}
		out := make(map[string]json.RawMessage, len(all))
		for name, v := range all {
			name = camel(name)
			switch {
			case opaque[name]:
			case name == "properties": // of a schema: the names in it are the client's
				var inner map[string]json.RawMessage
				if json.Unmarshal(v, &inner) == nil {
					for k, x := range inner {
						inner[k] = camelNames(x, depth+1)
					}
					v = encode(inner)
				}
			default:
				v = camelNames(v, depth+1)
			}
			out[name] = v
		}
		return encode(out)
	}
	return raw
}

// camel is snake_case as camelCase.
func camel(name string) string {
	head, rest, ok := strings.Cut(name, "_")
	for ok && rest != "" && head != "" {
		var word string
		word, rest, ok = strings.Cut(rest, "_")
		if word != "" {
			head += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return head
}

// protoBytes says that data is base64 as protocol buffers take it from JSON: of
// either alphabet, with and without padding.
func protoBytes(data string) bool {
	data = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(data, "="))
	_, err := base64.RawStdEncoding.DecodeString(data)
	return err == nil && data != ""
}
